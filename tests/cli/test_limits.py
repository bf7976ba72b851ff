"""`condnum run limits` from the command line."""

import pandas as pd
import pytest


def test_end_to_end(command, tmp_path):
    done = command(
        "run", "limits", "--data", "embedded", "--methods", "ours,identity", "--seeds", "1",
        "--epochs", "20", "--race-steps", "20", "--jobs", "1", "--out", "o", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    tables = {
        "results",
        "summary",
        "ridged",
        "ceilings",
        "null_spaces",
        "points",
        "overshoots",
        "directions",
        "race",
    }
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        *(f"{name}.csv" for name in tables), "report.ipynb", "report.html", "provenance.json",
    }  # fmt: skip
    ridged = pd.read_csv(tmp_path / "o" / "ridged.csv")
    assert (ridged["rir"] <= ridged["rir_ceiling"] * (1 + 1e-6)).all()
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 4
    assert "lies beyond it" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "svhn"), "svhn"),
        (("--data", "mnist", "--source", "nowhere"), "nowhere"),
        (("--data", "digits", "--pairs", "4-4"), "two different digits"),
        (("--source", "embedded", "--pairs", "4-7"), "house prices are one pair"),
        (("--source", "embedded", "--ridge", "0"), "must be positive, got 0"),
        (("--methods", "our"), "did you mean 'ours'"),
        (("--race-steps", "-1"), "no whole number of at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_runs(command, tmp_path, arguments, words):
    done = command("run", "limits", *arguments, "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "o").exists()
