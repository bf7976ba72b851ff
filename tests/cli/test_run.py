"""A notebook as a command: its options, its results, and what is left when it fails or is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import papermill
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.report import run as runner
from condnum.report.command import verdict_table
from condnum.studies.frame import ResultStore

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_help_is_the_parameters_cell(condnum, own, tmp_path):
    text = " ".join(condnum("run", str(own), "--help", cwd=tmp_path).stdout.split())
    for words in (
        "What the notebook shows. And more of it.",
        "--count N How often. [default: 2]",
        "--word a|b What is written. [default: a]",
        "--share X [default: 0.5]",
        "--layers VALUE Sizes. [default: [1]]",
        "--shout / --no-shout In capitals.",
    ):
        assert words in text, text
    assert "--static" not in text


def test_a_whole_run(condnum, own, tmp_path):
    given = {"count": "3", "word": "xy", "share": "1", "layers": "[1, 2]", "maybe": "no one"}
    words = ["run", str(own), "--shout", *(f"--{name}={value}" for name, value in given.items())]
    done = condnum(*words, "-q", "--out", "res", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Results: res", "res/report.html"]
    assert done.stderr == ""
    assert tree(tmp_path / "res") == ["provenance.json", "report.html", "report.ipynb", "results.csv"]
    assert not (tmp_path / "res.partial").exists()
    page = (tmp_path / "res/report.html").read_text("utf-8")
    assert "XYXYXY [1, 2] no one 1.0 True" in page
    assert "<title>My own</title>" in page
    record = json.loads((tmp_path / "res/provenance.json").read_text())
    assert (record["parameters"]["count"], record["duration_seconds"] > 0) == (3, True)
    assert set(record["files"]) == {"report.html", "report.ipynb", "results.csv"}


def test_a_finished_run_is_reused_until_what_it_depends_on_changes(condnum, own, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "shipped", lambda folder: tmp_path)  # only condnum's own are reused
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word.txt").write_text("a")

    def again(*words):
        done = condnum("run", str(own), *words, "--word", "word.txt", "-q", "--out", "res", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "Results: res\nres/report.html\n")
        return "reused" not in done.stderr

    assert [again(), again(), again("--share", "0.5"), again("--share", "1")] == [True, False, False, True]
    (tmp_path / "word.txt").write_text("ab")
    assert [again("--share", "1"), again("--share", "1")] == [True, False]
    (tmp_path / "res/results.csv").write_text("damaged")
    assert again("--share", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run house-prices --data train.csv", "condnum: train.csv lacks the column(s) LotArea, SalePrice"),
        ("audit --benign P.npy", "--benign was given without --harmful"),
        ("audit --layers all", "an audit of a net needs --backbone, --benign-images"),
        ("audit --method erase --save-theta t.npy", "must end in .safetensors: an eraser is a map"),
        ("audit --save-theta t.safetensors", "must end in .npy: θ is an array"),
        ("run own.ipynb --mode fail", "condnum: column 'SalePrice' is missing."),
        ("run own.ipynb --out own.ipynb", "it exists and is a file"),
        ("run own.ipynb --out .", "cannot be renamed while it is in use"),
    ],
)
def test_what_the_notebook_refuses_is_one_paragraph_and_leaves_nothing(refused, own, words, message):
    (own.parent / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
    np.save(own.parent / "P.npy", np.eye(3))
    assert message in refused(words)


@pytest.mark.parametrize(("method", "file"), [("pareto", "theta.npy"), ("erase", "theta.safetensors")])
def test_what_an_audit_made_is_written_and_judged_again(condnum, tmp_path, method, file):
    rng = np.random.default_rng(0)
    words = ["audit", "--benign", "P.npy", "--harmful", "H.npy", "--no-attackers", "-q"]
    for name in "PH":
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(200, 3)) * rng.uniform(1, 9, 3))
    np.save(tmp_path / "y.npy", np.load(tmp_path / "H.npy")[:, 0] > 0)
    words += ["--y-harmful", "y.npy"]
    first = condnum(*words, "--method", method, "--save-theta", file, "--out", "first", cwd=tmp_path)
    again = condnum(*words, "--theta", file, "--out", "again", cwd=tmp_path)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert tree(tmp_path / "again") == ["audit.json", "provenance.json", "report.html", "report.ipynb"]
    rows = [json.loads((tmp_path / of / "audit.json").read_text())["measures"] for of in ("first", "again")]
    front, theta = (
        next(row["rir"] for row in of if row["extractor"] == name)
        for of, name in zip(rows, (method, "theta"), strict=True)
    )
    assert theta == front


def test_an_error_that_nobody_knows_keeps_the_executed_part(condnum, own, tmp_path):
    done = condnum("run", str(own), "--mode", "broken", "-q", "--out", "o2", cwd=tmp_path)
    assert done.returncode == 2
    said = "with ZeroDivisionError: division by zero; the executed part is kept in o2/report.failed.ipynb."
    assert said in " ".join(done.stderr.split())
    assert tree(tmp_path / "o2") == ["report.failed.ipynb"]
    assert not (tmp_path / "o2.partial").exists()


def test_a_stopped_run_keeps_finished_cells_and_leaves_no_process(start, own, tmp_path):
    words = [sys.executable, "-m", "condnum", "run", str(own), "--mode", "wait", "-q", "--out", "res"]
    process = start(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((tmp_path / "res.partial/waiting").exists, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert " ".join(err.split()) == (
        "condnum: stopped by Ctrl-C; finished cells kept in res.partial/cells: 1. "
        "The same command resumes from there."
    )
    assert [path.name for path in (tmp_path / "res.partial").iterdir()] == ["cells"]
    with ResultStore(tmp_path / "res.partial/cells") as store:
        assert store.get("ours-0").row == {"rir": 2.0}
    assert not (tmp_path / "res").exists()
    assert (tmp_path / "cleaned up").exists()
    assert len(family) >= 2  # the kernel and the stubborn worker
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]


def test_a_run_stopped_at_once_leaves_nothing(condnum, own, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt:
            raise RuntimeError("invalid state") from None  # as an event loop's own error

    monkeypatch.setattr(runner, "run_notebook", interrupted)
    done = condnum("run", str(own), "--out", "res", cwd=tmp_path)
    assert done.returncode == 130
    assert "before the first cell was finished; nothing was kept" in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("res*"))


def test_cells_that_failed_are_tried_again(condnum, own, tmp_path):
    done = condnum("run", str(own), "--mode", "some fail", "--count", "23", "--out", "res", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "res/report.html"
    lines = done.stderr.splitlines()
    assert lines[-22:-20] == ["23 cells failed:", "  ours, 0: ZeroDivisionError: 1"]
    assert lines[-1].startswith("All failures are listed in res/failures.csv; the same command retries them")
    with ResultStore(tmp_path / "res/cells") as store:
        assert store.get("ours-0") is not None
    assert condnum("run", str(own), "--out", "res", cwd=tmp_path).returncode == 0
    assert tree(tmp_path / "res") == ["provenance.json", "report.html", "report.ipynb", "results.csv"]


@pytest.mark.slow
def test_plain_papermill_runs_the_same_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # papermill takes paths as format strings
    given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "steps": 5}
    papermill.execute_notebook(
        NOTEBOOK, "plain.ipynb", parameters={**given, "out": str(tmp_path / "plain")},
        kernel_name="python3", progress_bar=False,
    )  # fmt: skip
    results = pd.read_csv(tmp_path / "plain" / "results.csv")
    assert list(dict.fromkeys(results["method"])) == ["ours", "identity"]
    record = json.loads((tmp_path / "plain" / "provenance.json").read_text())
    known = {
        "versions",
        "platform",
        "parameters",
        "source",
        "started_utc",
        "duration_seconds",
        "device",
        "data",
    }
    assert known <= set(record)  # as `condnum run` writes it
    assert (record["seeds"], record["parameters"]["steps"]) == ([0], 5)
    assert record["device"]["threads"] == 1  # of a descent, whatever the kernel has


def test_the_table_of_verdicts_leaves_out_what_is_not_known_but_no_probe():
    row = {"method": "ours", "convention": "ridge", "immunized": "no, 0 of 2", "(i)": 2.5, "(ii)": None}
    shown = verdict_table([{**row, "RIR": float("inf"), "benign probe": 0.5, "harmful probe": None}])
    head, line = map(" ".join, map(str.split, shown.splitlines()))
    assert (head, line) == (
        "method convention immunized (i) RIR benign probe harmful probe",
        "ours ridge no, 0 of 2 2.5 ∞ 0.5× not known",
    )
