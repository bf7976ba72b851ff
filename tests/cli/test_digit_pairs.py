"""`condnum run digits` and `condnum run mnist` from the command line."""

import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from condnum.cli import digit_pairs as module
from condnum.studies.store import ResultStore


def test_digits_end_to_end_with_more_workers_than_cells(condnum, tmp_path):
    done = condnum(
        "run", "digits", "--methods", "ours,imma", "--seeds", "1", "--epochs", "4",
        "--pairs", "4-7", "--jobs", "64", "--out", "o", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    assert "2/2 done" in done.stderr
    assert "best RIR" in done.stderr
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "results.csv", "summary.csv", "rtol_sensitivity.csv", "ridge_sensitivity.csv",
        "report.ipynb", "report.html", "provenance.json",
    }  # fmt: skip
    results = pd.read_csv(tmp_path / "o" / "results.csv")
    assert len(results) == 2 * 3
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 3
    assert "2 cells keep 2 of the 64 workers busy" in page
    assert "peak memory" in page


@pytest.mark.slow
def test_ctrl_c_keeps_the_store_and_the_same_command_resumes(start, command, tmp_path):
    words = ["run", "digits", "--methods", "imma", "--seeds", "1"]
    words += ["--epochs", "30", "--jobs", "1", "--out", "o"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start([sys.executable, "-m", "condnum", *words], cwd=tmp_path, **pipes)
    cells, deadline = tmp_path / "o" / ".partial" / "cells", time.monotonic() + 120
    while len(list(cells.glob("arrays/[0-9a-f]*.npz"))) < 5:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    with ResultStore(cells, mode="read") as store:
        kept = store.count()
    assert 4 <= kept < 90  # the arrays of a fifth were there, its row perhaps not yet
    assert f"{kept} finished pieces kept in o/.partial/cells" in " ".join(stderr.split())
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert f"{90 - kept} computed, {kept} from the store, 0 failed" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("digits", "--pairs", "4-4"), "two different digits"),
        (("digits", "--pairs", "x"), "'x' is no pair of digits"),
        (("digits", "--methods", "our"), "did you mean 'ours'"),
        (("mnist", "--data", "nowhere"), "nowhere"),
        (("mnist", "--data", "embedded"), "condnum run digits"),
        (("digits", "--data", "nowhere"), "condnum run mnist"),
        (("digits", "--device", "cuda:9"), "cuda:9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_runs(command, tmp_path, arguments, words):
    done = command("run", *arguments, "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "source", "folder"),
    [
        (("digits",), ("digits", "auto"), "digits-embedded"),
        (("digits", "--data", "embedded"), ("digits", "auto"), "digits-embedded"),
        (("mnist",), ("mnist", "auto"), "mnist-auto"),
    ],
    ids=" ".join,
)
def test_both_commands_hand_all_options_on(command, tmp_path, monkeypatch, words, source, folder):
    given = []
    monkeypatch.setattr(module, "run_report", lambda *values, **options: given.append((*values, options)))
    options = "--methods imma,ours --seeds 2 --epochs 7 --pairs 4-7 --labels published --jobs 3 --device cpu"
    done = command("run", *words, *options.split(), "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ((notebook, parameters, rest),) = given
    assert notebook == "mnist_pairs"
    assert parameters == {
        "dataset": source[0], "data": source[1], "methods": "imma,ours", "seeds": 2, "epochs": 7,
        "pairs": "4-7", "labels": "published", "jobs": 3, "scheduler": "", "device": "cpu", "static": True,
    }  # fmt: skip
    assert (str(rest["out"]), rest["quiet"]) == (f"runs/{folder}", True)
    assert source[0] in rest["title"]


def test_defaults_and_help(command, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(module, "run_report", lambda _, parameters, **__: given.append(parameters))
    assert command("run", "digits", "--device", "cpu", cwd=tmp_path).returncode == 0
    assert given[0] == {
        "dataset": "digits", "data": "auto", "methods": None, "seeds": 3, "epochs": None, "pairs": "",
        "labels": "one_vs_rest", "jobs": 0, "scheduler": "", "device": "cpu", "static": True,
    }  # fmt: skip
    for name, text in (("mnist", "MNIST digits"), ("digits", "embedded 8×8 digits")):
        shown = command("run", name, "--help", cwd=tmp_path).stdout
        assert text in " ".join(shown.split())
        assert "--scheduler" in shown
