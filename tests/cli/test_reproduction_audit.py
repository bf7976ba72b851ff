"""`condnum run reproduction-audit` from the command line."""

import pandas as pd
import pytest

pytest.importorskip("papermill", reason="the extra notebooks is not installed")


def test_end_to_end(command, tmp_path):
    done = command(
        "run", "reproduction-audit", "--data", "embedded", "--seeds", "2", "--epochs", "3", "--ends", "5",
        "--jobs", "1", "--out", "o", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    names = {"results.csv", "waterfall.csv", "landing.csv", "report.ipynb", "report.html", "provenance.json"}
    assert {path.name for path in (tmp_path / "o").iterdir()} == names
    waterfall = pd.read_csv(tmp_path / "o" / "waterfall.csv")
    assert set(waterfall["path"]) == {"cumulative", "alone", "ridge", "released"}
    assert waterfall["seeds"].eq(2).all()
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 2
    assert "Seeds that meet" in page
    assert "how it is here" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "svhn"), "svhn"),
        (("--data", "mnist"), "come with a pair"),
        (("--data", "digits:4-4"), "two different digits"),
        (("--data", "mnist:4-7", "--source", "nowhere"), "nowhere"),
        (("--data", "embedded", "--epochs", "ten"), "no list of whole numbers"),
        (("--data", "embedded", "--epochs", "-1"), "at least 1, got -1"),
        (("--data", "embedded", "--seeds", "0"), "no whole number of at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_runs(command, tmp_path, arguments, words):
    done = command("run", "reproduction-audit", *arguments, "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "o").exists()
