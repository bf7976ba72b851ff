"""`condnum run digits` and `condnum run mnist` from the command line."""

import pandas as pd
import pytest


def test_digits_end_to_end(condnum, tmp_path):
    done = condnum(
        "run", "digits", "--methods", "ours,imma", "--seeds", "1", "--epochs", "4",
        "--pairs", "4-7,9-0", "--jobs", "1", "--out", "o", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "results.csv", "summary.csv", "rtol_sensitivity.csv",
        "report.ipynb", "report.html", "provenance.json",
    }  # fmt: skip
    results = pd.read_csv(tmp_path / "o" / "results.csv")
    assert len(results) == 2 * 2 * 3
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("digits", "--pairs", "4-4"), "two different digits"),
        (("digits", "--pairs", "x"), "'x' is no pair of digits"),
        (("digits", "--methods", "our"), "did you mean 'ours'"),
        (("mnist", "--data", "nowhere"), "nowhere"),
        (("mnist", "--data", "embedded"), "condnum run digits"),
        (("digits", "--device", "cuda:9"), "cuda:9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_runs(condnum, tmp_path, arguments, words):
    done = condnum("run", *arguments, "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "o").exists()
