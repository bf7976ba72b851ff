"""A notebook as a command: its options, its results, and what is left when it fails or is stopped."""

import signal
import subprocess
import sys
from pathlib import Path

import papermill
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.page import run as runner


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
        "--maybe TEXT",
        "--shout / --no-shout In capitals.",
    ):
        assert words in text, text
    assert "--static" not in text


def test_a_whole_run(condnum, own, tmp_path):
    given = {"count": "3", "word": "xy", "share": "1", "layers": "[1, 2]", "maybe": "no one"}
    words = ["run", str(own), "--shout", *(f"--{name}={value}" for name, value in given.items())]
    done = condnum(*words, "-q", "--out", "res", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("res/report.html\n", "")
    assert tree(tmp_path / "res") == ["cells/ours-0.npz", "report.html", "report.ipynb", "results.csv"]
    page = (tmp_path / "res/report.html").read_text("utf-8")
    assert "XYXYXY [1, 2] no one 1.0 True" in page
    assert "<title>My own</title>" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run house-prices --data train.csv", "condnum: train.csv lacks the column(s) LotArea, SalePrice"),
        ("run house-prices --features all", "unknown features 'all'"),
        ("run own.ipynb --mode fail", "condnum: column 'SalePrice' is missing."),
        ("run own.ipynb --out own.ipynb", "cannot be written to the folder own.ipynb"),
        ("run own.ipynb --twice 3", "--twice is no option: `twice = 2 * count`"),
        ("run own.ipynb --cuont 3", "Did you mean one of: '--count'"),
    ],
)
def test_what_is_refused_is_one_paragraph_and_leaves_nothing(refused, own, words, message):
    (own.parent / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
    assert message in refused(words)


def test_an_error_that_nobody_knows_keeps_the_executed_part_beside_the_older_page(condnum, own, tmp_path):
    words = ["run", str(own), "-q", "--out", "o2"]
    assert condnum(*words, cwd=tmp_path).returncode == 0
    before = (tmp_path / "o2/report.ipynb").read_bytes()
    done = condnum(*words, "--mode", "broken", cwd=tmp_path)
    assert done.returncode == 2
    said = "with ZeroDivisionError: division by zero; the executed part is kept in o2/report.failed.ipynb."
    assert said in " ".join(done.stderr.split())
    assert (tmp_path / "o2/report.ipynb").read_bytes() == before
    assert condnum(*words, cwd=tmp_path).returncode == 0
    assert not (tmp_path / "o2/report.failed.ipynb").exists()


def test_a_stopped_run_keeps_finished_cells_and_leaves_no_process(start, own, tmp_path):
    words = [sys.executable, "-m", "condnum", "run", str(own), "--mode", "wait", "-q", "--out", "res"]
    process = start(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((tmp_path / "res/waiting").exists, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert " ".join(err.split()) == (
        "condnum: stopped by Ctrl-C; finished cells kept in res/cells: 1. "
        "The same command resumes from there."
    )
    assert not (tmp_path / "res/report.ipynb").exists()
    assert (tmp_path / "cleaned up").exists()
    assert len(family) >= 2  # the kernel and the stubborn worker
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]


def test_a_run_stopped_at_once_leaves_nothing(condnum, own, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        runner.STOPPED.set()
        raise RuntimeError("invalid state")  # as an event loop's own error

    monkeypatch.setattr(runner, "run_notebook", interrupted)
    done = condnum("run", str(own), "--out", "res", cwd=tmp_path)
    assert done.returncode == 130
    assert "before the first cell was finished; nothing was kept" in " ".join(done.stderr.split())
    assert not list(tmp_path.glob("res*"))


def test_the_callers_handlers_of_signals_are_its_own_again(condnum, own, tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    for words in (["--version"], ["run", "nothing.ipynb"], ["--nonsense"]):
        condnum(*words, cwd=tmp_path)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.slow
def test_papermill_alone_and_the_command_give_the_same_table(condnum, tmp_path, monkeypatch):
    given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "steps": 5, "jobs": 1}
    words = [f"--{name}={value}" for name, value in given.items()]
    assert condnum("run", "house-prices", *words, "-q", "--out", "one", cwd=tmp_path).returncode == 0
    monkeypatch.chdir(tmp_path)  # papermill takes paths as format strings
    notebook = Path(__file__).parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"
    papermill.execute_notebook(
        notebook, "plain.ipynb", parameters={**given, "out": "two"}, kernel_name="python3", progress_bar=False
    )
    tables = [(tmp_path / folder / "table.csv").read_text() for folder in ("one", "two")]
    assert tables[0] == tables[1]
    assert "ours" in tables[0]
