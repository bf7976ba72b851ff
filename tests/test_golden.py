"""Golden tables: the bundled run of every experiment has the tables kept under `tests/golden`.

Columns, rows and words are compared of all of them; numbers where they follow from the input: closed forms,
spectra, published values. What a descent reaches is the matter of the tests of each study.
`CONDNUM_GOLDEN=record pytest tests/test_golden.py` writes them anew; say in the commit why they changed.
"""

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from golden_runs import GOLDEN, RUNS
from pandas.api.types import is_numeric_dtype

#: Seconds differ; a checksum is of float32 weights.
LEFT_OUT = ["seconds", "seconds_mean", "checksum"]
#: How many figures the page of a run has, and words that stand on it.
PAGES = {
    "house-prices": (3, "Table 1"),
    "digits": (3, "from the store, 0 failed"),
    "limits": (4, "RIR / ceiling"),
    "attackers": (4, "the least-slowed attacker is"),
    "reproduction-audit": (1, "The table shows the geometric mean"),
    "deep": (2, "for orientation only"),
    "deep-attackers": (3, "The cheapest successful attack is "),
    "audit": (2, ">Verdict</h2>"),
    "corrections": (4, "counter-example"),
    "stability": (1, "results of nets contain one choice of each"),
}
#: Runs that end with a table of verdicts in the terminal.
JUDGED = ("house-prices", "digits", "attackers", "deep", "deep-attackers", "audit")
#: Rows whose numbers follow from the input: closed forms, and attackers whose steps the spectrum decides.
DETERMINED = {
    "method": ("identity", "initial", "max_rir", "pareto", "erase"),
    "extractor": ("raw", "max_rir"),
    "attacker": ("gd", "momentum", "nesterov", "standardize", "whiten", "closed_form"),
}
#: Runs without such rows: all is trained.
TRAINED = ("deep", "deep-attackers", "reproduction-audit")
#: Relative to the largest number of a column: eps·κ of the bundled tasks, which is below 1e8.
TOLERANCE = 1e-7


def numbers(value, path=""):
    """Yield path and value of every number in nested JSON, of long lists the first ones."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in LEFT_OUT:
                yield from numbers(item, f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value[:6]):
            yield from numbers(item, f"{path}/{index}")
    elif isinstance(value, int | float):
        yield path, float(value)


def determined(table):
    """Return the rows whose numbers follow from the input."""
    for column in {*DETERMINED} & {*table}:
        table = table[table[column].isin(DETERMINED[column])]
    return table


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_tables(name, golden_run):
    done, out = golden_run(name)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["Results: out", "out/report.html"]
    assert done.stdout.startswith("Verdict by Definition 3.1") == (name in JUDGED)
    page, (figures, words) = (out / "report.html").read_text(encoding="utf-8"), PAGES[name]
    assert page.count('class="plot-frame"') == figures
    assert words in page
    record = json.loads((out / "provenance.json").read_text())
    left = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert left == {*record["files"], "provenance.json"}
    assert all(len(checksum) == 64 for checksum in record.get("data", {}).values())
    tables = {path.name: pd.read_csv(path) for path in sorted(out.glob("*.csv"))}
    for path in out.glob("audit.json"):
        found = numbers(json.loads(path.read_text()))
        tables["audit.csv"] = pd.DataFrame(found, columns=["number", "value"])
    tables = {file: table.drop(columns=LEFT_OUT, errors="ignore") for file, table in tables.items()}
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
            where = f"{name}/{file}, {column}"
            if not is_numeric_dtype(wanted[column]) or wanted[column].dtype == bool:
                assert found[column].fillna("").tolist() == wanted[column].fillna("").tolist(), where
                continue
            a, b = (
                of[column].abs() if column in ("filter", "pattern") else of[column] for of in (found, wanted)
            )
            size = np.abs(b[np.isfinite(b)]).max() if column in ("filter", "pattern", "share") else 0
            np.testing.assert_allclose(a, b, TOLERANCE, TOLERANCE * 1e-3 + TOLERANCE * size, err_msg=where)
