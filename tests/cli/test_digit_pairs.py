"""`condnum run digits` and `condnum run mnist` from the command line."""

import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from condnum.sweep import ResultStore


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


@pytest.mark.slow
def test_ctrl_c_keeps_the_store_and_the_same_command_resumes(start, tmp_path):
    command = [sys.executable, "-m", "condnum", "run", "digits", "--methods", "imma", "--seeds", "1"]
    command += ["--epochs", "30", "--jobs", "1", "--out", "o"]
    process = start(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
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
        (("digits", "--device", "cuda:9"), "cuda:9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_before_anything_runs(condnum, tmp_path, arguments, words):
    done = condnum("run", *arguments, "--out", "o", cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "o").exists()
