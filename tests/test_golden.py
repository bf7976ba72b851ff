"""Golden tables: the embedded run of every experiment gives the tables that are kept under `tests/golden`.

And it leaves a page, with its figures, and a record of every file.

`CONDNUM_GOLDEN=record pytest tests/test_golden.py` writes them anew; say in the commit why they changed.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.api.types import is_numeric_dtype
from sklearn.datasets import load_digits

GOLDEN = Path(__file__).parent / "golden"
#: Seconds differ; a checksum is of float32 weights, whose last bit is the machine's.
LEFT_OUT = ["seconds", "seconds_mean", "checksum", "peak_memory_mib"]
#: How many figures the page of a run has, and words that stand on it.
PAGES = {
    "house-prices": (4, "Table 1"),
    "digits": (3, "from the store, 0 failed"),
    "limits": (4, "RIR / ceiling"),
    "attackers": (4, "needs one step on every extractor"),
    "reproduction-audit": (1, "The same in numbers"),
    "deep": (2, "for orientation only"),
    "deep-attackers": (4, "The cheapest attack that succeeds: "),
    "audit": (3, ">Verdict</h2>"),
    "corrections": (4, "counter-example"),
    "stability": (1, "its nets are not run again"),
}
RUNS = {
    "house-prices": "run house-prices --data embedded --seeds 2 --epochs 60 -j 1",
    "digits": "run digits --pairs 4-7,9-0 --seeds 1 --epochs 5 -j 1",
    "limits": "run limits --data embedded --seeds 1 -j 1",
    "attackers": "run attackers --data embedded --methods ours,optimal --steps 1000 --dense-steps 200",
    "reproduction-audit": "run reproduction-audit --data embedded --seeds 1 --epochs 10 --ends 20 -j 1",
    "deep": "run deep --seeds 1 --epochs 1 --limit 40 --backbone test_resnet -j 1",
    "deep-attackers": "run deep-attackers --seeds 1 --epochs 1 --pretrain-epochs 2 --limit 40 --backbone "
    "test_resnet --shots 8,0 --steps 8 --trials 2 --attackers head-sgd,ridge,trunk,fresh-ridge,stage-adamw "
    "--curvature-rows 16 -j 1",
    "audit": "audit --pretrain P.npy --harmful H.npy --bootstrap 20 --no-attackers",
    "corrections": "run corrections",
    # Of the tables that are kept here for the others.
    "stability": f"run stability --runs {','.join(str(GOLDEN / name) for name in ('digits', 'deep'))} -j 1",
}
#: Runs that end with a table of verdicts in the terminal.
JUDGED = ("house-prices", "digits", "attackers", "deep", "deep-attackers", "audit")
#: Relative. Deep nets run in float32, where another order of a sum is 1e-7 and each step multiplies it.
TOLERANCE = {"deep": 1e-3, "deep-attackers": 1e-3}
#: Updates from which a descent is not compared: 2000 of them make 29 % of a change of θ₀ by 3e-16.
LONG = 1000


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


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_tables(name, condnum, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    images, labels = load_digits(return_X_y=True)
    np.save(tmp_path / "P.npy", images[labels < 5])
    np.save(tmp_path / "H.npy", images[labels >= 5])
    done = condnum(*RUNS[name].split(), "--out", "out", "-q", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["Results: out", "out/report.html"]
    assert done.stdout.startswith("Verdict by Definition 3.1") == (name in JUDGED)
    page, (figures, words) = (tmp_path / "out/report.html").read_text(encoding="utf-8"), PAGES[name]
    assert page.count('class="plotly-graph-div"') == figures
    assert words in page
    record = json.loads((tmp_path / "out/provenance.json").read_text())
    left = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert left == {*record["files"], "provenance.json"}
    assert all(len(checksum) == 64 for checksum in record["data"].values())
    tables = {path.name: pd.read_csv(path) for path in sorted((tmp_path / "out").glob("*.csv"))}
    for path in (tmp_path / "out").glob("audit.json"):
        found = numbers(json.loads(path.read_text()))
        tables["audit.csv"] = pd.DataFrame(found, columns=["number", "value"])
    tables = {file: table.drop(columns=LEFT_OUT, errors="ignore") for file, table in tables.items()}
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        (GOLDEN / name).mkdir(parents=True)
        for file, table in tables.items():
            table.to_csv(GOLDEN / name / file, index=False)
    kept = {path.name: pd.read_csv(path) for path in sorted((GOLDEN / name).glob("*.csv"))}
    assert kept
    assert list(tables) == list(kept)
    for file, table in kept.items():
        found = tables[file]
        assert list(found) == list(table), file
        for column in table:
            where = f"{name}/{file}, {column}"
            if is_numeric_dtype(table[column]) and table[column].dtype != bool:
                rtol = TOLERANCE.get(name, 1e-9)
                steady = table["updates"] < LONG if "updates" in table else slice(None)
                np.testing.assert_allclose(
                    found[column][steady], table[column][steady], rtol=rtol, atol=rtol * 1e-3, err_msg=where
                )
            else:
                assert found[column].fillna("").tolist() == table[column].fillna("").tolist(), where
