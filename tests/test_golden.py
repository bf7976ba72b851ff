"""Golden tables: the bundled run of every experiment has the tables kept under `tests/golden`.

Columns and rows are compared of all of them; words and numbers where they follow from the input: closed
forms, spectra, converged optima, published values. Whole numbers of steps, and what a descent reaches, are
the matter of the tests of each study, as round-off moves them from one processor to another.
`CONDNUM_GOLDEN=record pytest tests/test_golden.py` writes them anew; say in the commit why they changed.
"""

import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from golden_runs import GOLDEN, RUNS
from pandas.api.types import is_numeric_dtype

#: Times, checksums of weights, and what round-off moves: numbers of steps, and what is made of them.
MOVED = re.compile(
    r"seconds|checksum|step|slowdown|passes|predicted|choice|edge|factor|bound|effective|lost|lights|price"
)
#: How many figures the page of a run has, and words that stand on it.
PAGES = {
    "house-prices": (3, "Table 1"),
    "digits": (2, "from the store, 0 failed"),
    "limits": (4, "RIR / limit"),
    "attackers": (4, "the least-slowed attacker is"),
    "reproduction-audit": (1, "The table shows the geometric mean"),
    "deep": (2, "for orientation only"),
    "deep-attackers": (3, "A against A"),
    "audit": (2, "Not known whether"),
    "corrections": (4, "counter-example"),
}
#: Runs that end with a table of verdicts in the terminal.
JUDGED = ("house-prices", "digits", "attackers", "deep", "deep-attackers", "audit")
#: Rows whose numbers follow from the input: those of closed forms.
DETERMINED = {
    "method": ("identity", "initial", "max_rir", "pareto", "erase"),
    "extractor": ("raw", "max_rir"),
}
#: Runs without such rows: all is trained.
TRAINED = ("deep", "deep-attackers", "reproduction-audit")
#: Relative to a number, and for directions to the largest of a column, which an eigenvector's entries share:
#: eps·κ of the bundled tasks, whose κ is below 1e8 over their ranks, with a margin of ten.
TOLERANCE = 1e-7


def numbers(value, path=""):
    """Yield path and value of every number in nested JSON, of long lists the first ones."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value[:6]):
            yield from numbers(item, f"{path}/{key}") if key != "seconds" else ()
    elif isinstance(value, int | float):
        yield path, float(value)


def determined(table):
    """Return the rows and columns whose numbers follow from the input."""
    for column in {*DETERMINED} & {*table}:
        table = table[table[column].isin(DETERMINED[column])]
    if "number" in table:  # of an audit
        table = table[~table["number"].str.contains(MOVED)]
    return table[[column for column in table if not MOVED.search(column)]]


#: Half a minute each: with CONDNUM_LONG=1.
LONG = ("deep", "deep-attackers", "limits")
EACH_RUN = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in RUNS]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH_RUN)
def test_tables(name, golden_run):
    done, out = golden_run(name)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[(at := said.index("Results: out")) : at + 2] == ["Results: out", "out/report.html"]
    record = json.loads((out / "provenance.json").read_text())
    assert said[at + 2 :] == ([record["answer"]] if record.get("answer") else [])
    assert ("Verdict by Definition 3.1" in done.stdout) == (name in JUDGED)
    page, (figures, words) = (out / "report.html").read_text(encoding="utf-8"), PAGES[name]
    assert page.count('class="plot-frame"') == figures
    assert words in page
    left = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert left == {*record["files"], "provenance.json"}
    assert all(len(checksum) == 64 for checksum in record.get("data", {}).values())
    tables = {path.name: pd.read_csv(path) for path in sorted(out.glob("*.csv"))}
    for path in out.glob("audit.json"):
        found = numbers(json.loads(path.read_text()))
        tables["audit.csv"] = pd.DataFrame(found, columns=["number", "value"])
    clock = {"seconds", "seconds_mean", "checksum"}
    tables = {file: table.drop(columns=clock & {*table}) for file, table in tables.items()}
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        (GOLDEN / name).mkdir(parents=True)
        for file, table in tables.items():
            table.to_csv(GOLDEN / name / file, index=False)
    kept = {path.name: pd.read_csv(path) for path in sorted((GOLDEN / name).glob("*.csv"))}
    assert list(tables) == list(kept) != []
    for file, table in kept.items():
        assert (list(tables[file]), len(tables[file])) == (list(table), len(table)), file
        found, wanted = determined(tables[file]), determined(table)
        for column in found if name not in TRAINED else ():
            a, b, where = found[column], wanted[column], f"{name}/{file}, {column}"
            if not is_numeric_dtype(b) or b.dtype == bool:
                assert a.fillna("").tolist() == b.fillna("").tolist(), where
                continue
            whole = column in ("filter", "pattern", "share")  # of a direction, whose sign is free
            a, b = (a.abs(), b.abs()) if whole else (a, b)
            size = np.abs(b[np.isfinite(b)]).max() if whole else 1e-3
            np.testing.assert_allclose(a, b, TOLERANCE, TOLERANCE * size, err_msg=where)
