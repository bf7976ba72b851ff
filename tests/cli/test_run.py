"""A notebook as a command: its options, its results, and what is left when it fails or is stopped."""

import html
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.report import notebook as runner
from condnum.studies.frame.cells import ResultStore


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_help_is_the_parameters_cell(condnum, own, tmp_path):
    text = " ".join(condnum("run", str(own), "--help", cwd=tmp_path).stdout.split())
    for words in (
        "What the notebook shows. And more of it.",
        "--count N How often. [default: 2]",
        "--word a|b What is written. [default: a]",
        "--share X [default: 0.5]",
        "--layers YAML Sizes. [default: ([1])]",
        "--shout / --no-shout In capitals.",
        "--product X [default: (2 * 3)]",
        "--pair TEXT [default: a=b]",
        "--limits YAML [default: ({'low': 1})]",
    ):
        assert words in text, text
    assert "--static" not in text


def test_a_whole_run(condnum, own, tmp_path):
    given = {"count": "3", "word": "xy", "share": "1", "layers": "[1, 2]", "maybe": "no one"}
    given |= {"product": "1e-3", "pair": "1e-3", "limits": "{low: 1e-3}"}
    words = ["run", str(own), "--shout", *(f"--{name}={value}" for name, value in given.items())]
    done = condnum(*words, "-q", "--out", "res", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Results: res", "res/report.html"]
    assert done.stderr == ""
    assert tree(tmp_path / "res") == ["provenance.json", "report.html", "report.ipynb", "results.csv"]
    assert not (tmp_path / "res.partial").exists()
    page = (tmp_path / "res/report.html").read_text("utf-8")
    assert "XYXYXY [1, 2] no one 1.0 True" in page
    assert "0.001 1e-3 {'low': 0.001}" in html.unescape(page)  # numbers where the default is one
    assert "<title>My own</title>" in page
    record = json.loads((tmp_path / "res/provenance.json").read_text())
    assert (record["parameters"]["count"], record["duration_seconds"] > 0) == (3, True)
    assert set(record["files"]) == {"report.html", "report.ipynb", "results.csv"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run own.ipynb --count many", "'many' is not an integer."),
        ("run limits --seeds -1", "'-1' is not an integer ≥ 0."),
        ("run own.ipynb --share x", "'x' is not a number"),
        ("run own.ipynb --product x", "'x' is not a number"),
        ("run own.ipynb --layers [1", "is not valid YAML"),
        ("run own.ipynb --layers=!!python/object/apply:os.system[true]", "is not valid YAML"),
        ("run none.ipynb", "there is no notebook none.ipynb; check the path"),
        ("run own.ipynb --out own.ipynb", "cannot be written to the folder own.ipynb"),
        ("run own.ipynb --out .", "cannot be renamed while it is in use"),
    ],
)
def test_bad_words(refused, own, words, message):
    assert message in refused(words)


def test_an_error_in_a_cell_is_one_paragraph(condnum, own, tmp_path):
    done = condnum("run", str(own), "--mode", "fail", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "condnum: column 'SalePrice' is missing.\n"
    assert tree(tmp_path / "runs") == [".own.lock", "own/report.failed.ipynb"]


def test_the_message_names_the_failed_notebook_where_it_is(condnum, own, tmp_path):
    done = condnum("run", str(own), "--mode", "broken", "-q", "--out", "o2", cwd=tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert (
        "with ZeroDivisionError: division by zero; the executed part is kept in o2/report.failed.ipynb."
        in said
    )
    assert (tmp_path / "o2/report.failed.ipynb").is_file()
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
    with ResultStore(tmp_path / "res.partial/cells", mode="read") as store:
        assert store.get("ours-0").row == {"rir": 2.0}
    assert not (tmp_path / "res").exists()
    assert (tmp_path / "cleaned up").exists()
    assert len(family) >= 2  # the kernel and the stubborn worker
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]


@pytest.mark.parametrize("as_another", [False, True], ids=["as it is", "as an event loop's own error"])
def test_a_run_stopped_at_once_leaves_nothing(condnum, own, tmp_path, monkeypatch, as_another):
    def interrupted(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            if as_another:
                raise RuntimeError("invalid state") from None
            raise

    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    monkeypatch.setattr(runner, "_execute", interrupted)
    done = condnum("run", str(own), "--out", "res", cwd=tmp_path)
    assert done.returncode == 130
    assert "before the first cell was finished; nothing was kept" in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("res*"))


def test_cells_that_failed_are_tried_again(condnum, own, tmp_path):
    done = condnum("run", str(own), "--mode", "some fail", "--count", "23", "--out", "res", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "res/report.html"
    lines = done.stderr.splitlines()
    assert lines[:2] == ["23 cells failed:", "  ours, 0: ZeroDivisionError: 1"]
    assert lines[-1].startswith("All failures are listed in res/failures.csv; the same command retries them")
    assert len(lines) == 1 + 20 + 1
    with ResultStore(tmp_path / "res/cells", mode="read") as store:
        assert store.get("ours-0") is not None
    assert condnum("run", str(own), "--out", "res", cwd=tmp_path).returncode == 0
    assert tree(tmp_path / "res") == ["provenance.json", "report.html", "report.ipynb", "results.csv"]
    assert not (tmp_path / "res.partial").exists()
