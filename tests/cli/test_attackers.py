"""`condnum run attackers` from the command line."""

import json

import pandas as pd
import pytest


def test_embedded_end_to_end(command, tmp_path):
    done = command(
        "run", "attackers", "--source", "embedded", "--epochs", "20", "--attackers", "gd,whiten",
        "--steps", "500", "--out", "o", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "results.csv", "factors.csv", "extractors.csv", "immunization.csv", "curves.parquet",
        "report.ipynb", "report.html", "provenance.json",
    }  # fmt: skip
    results = pd.read_csv(tmp_path / "o" / "results.csv")
    assert set(results["extractor"]) == {"raw", "initial", "ours", "optimal", "front"}
    assert (results.loc[results["attacker"] == "whiten", "steps"] == 1).all()
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 4
    assert "Whiten + GD needs one step on every extractor" in page
    record = json.loads((tmp_path / "o" / "provenance.json").read_text(encoding="utf-8"))
    assert record["parameters"]["attackers"] == "gd,whiten"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "mnst:4-9"), "did you mean 'mnist:4-9'"),
        (("--attackers", "adm"), "did you mean 'adam'"),
        (("--source", "nowhere"), "nowhere"),
        (("--seed", "x"), "'x' is no whole number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_runs(command, tmp_path, arguments, words):
    done = command("run", "attackers", *arguments, "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "o").exists()
