"""The command line: options of a notebook, exit status, one paragraph for an error, signals, what is left."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import nbformat
import papermill
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum import cli
from condnum.cli import main
from condnum.data import catalog
from condnum.data.task_pair import TaskPair
from condnum.errors import DataFormatError, DataNotFoundError
from condnum.experiments import frame, house_prices
from condnum.files import shipped
from condnum.page.notebook import ParameterNotebook, experiment_names

PARAMETERS = """
# What the notebook shows.
#
# And more of it.
count: int = 2  # how often
word: str = "a"  # a|b: what is written
share: float = 0.5
layers: list = [1]  # sizes
maybe: str | None = None
twice = 2 * count
shout: bool = False  # in capitals
out: str = ""
mode: str = "whole"
""".strip()
BODY = """
import pathlib, subprocess, time
folder = pathlib.Path(out)
print((word.upper() if shout else word) * count, layers, maybe, share)
if mode == "broken":
    1 / 0
if mode == "fail":
    from condnum.errors import DataFormatError
    raise DataFormatError("column 'SalePrice' is missing.")
(folder / "results.csv").write_text("rir\\n1\\n")
(folder / "cells").mkdir(exist_ok=True)
(folder / "cells" / "ours-0.npz").write_text("")
if mode == "wait":
    import helper  # beside the notebook, and not in the reader's folder
    subprocess.Popen("trap '' INT; sleep 600", shell=True)  # a stubborn worker
    (folder / "waiting").write_text("")
    try:
        time.sleep(600)
    finally:
        pathlib.Path("cleaned up").write_text("")
"""


@pytest.fixture
def own(tmp_path):
    """A notebook of somebody's own, with a parameter of each type."""
    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_markdown_cell("# My own"),
        nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(BODY),
    ]
    nbformat.write(book, tmp_path / "own.ipynb")
    return tmp_path / "own.ipynb"


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_help_is_the_parameters_cell(condnum, own, tmp_path):
    text = " ".join(condnum("run", str(own), "--help", cwd=tmp_path).stdout.split())
    for words in (
        "What the notebook shows. And more of it.", "--count N How often. [default: 2]",
        "--word a|b What is written. [default: a]", "--share X [default: 0.5]",
        "--layers VALUE Sizes. [default: [1]]", "--maybe TEXT", "--shout / --no-shout In capitals.",
    ):  # fmt: skip
        assert words in text, text


def test_a_whole_run_and_an_error_that_keeps_the_executed_part_beside_the_older_page(condnum, own, tmp_path):
    given = {"count": "3", "word": "xy", "share": "1", "layers": "[1, 2]", "maybe": "no one"}
    words = ["run", str(own), "--shout", *(f"--{name}={value}" for name, value in given.items())]
    words += ["-q", "--out", "res"]
    done = condnum(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "res/report.html\n", "")
    assert tree(tmp_path / "res") == ["cells/ours-0.npz", "report.html", "report.ipynb", "results.csv"]
    page = (tmp_path / "res/report.html").read_text("utf-8")
    assert "XYXYXY [1, 2] no one 1.0" in page
    assert "<title>My own</title>" in page
    before = (tmp_path / "res/report.ipynb").read_bytes()
    done = condnum(*words, "--mode", "broken", cwd=tmp_path)
    assert done.returncode == 2
    said = "with ZeroDivisionError: division by zero; the executed part is kept in res/report.failed.ipynb."
    assert said in " ".join(done.stderr.split())
    assert (tmp_path / "res/report.ipynb").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nonsense", "Usage: condnum"),
        ("run house-prices --nonsense", "No such option"),
        ("run house-prices --seeds x", "'x' is not a valid integer"),
        ("run house-price", "condnum: unknown experiment 'house-price'; did you mean 'house-prices'?"),
        ("run none.ipynb", "there is no notebook none.ipynb; check the path"),
        ("run house-prices --data train.csv", "condnum: train.csv lacks the column(s) LotArea, SalePrice"),
        ("run own.ipynb --mode fail", "condnum: column 'SalePrice' is missing."),
        ("run own.ipynb --out own.ipynb", "cannot be written to the folder own.ipynb"),
        ("run own.ipynb --twice 3", "--twice is no option: `twice = 2 * count`"),
        ("run own.ipynb --cuont 3", "Did you mean one of: '--count'"),
        ("reproduce --only mnits", "did you mean 'mnist'"),
    ],
)
def test_what_is_refused_is_one_paragraph_with_status_2_and_leaves_nothing(
    condnum, own, tmp_path, words, said
):
    (tmp_path / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
    before = tree(tmp_path)
    done = condnum(*words.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert [name for name in tree(tmp_path) if not name.endswith(".lock")] == before


def test_a_stopped_run_keeps_finished_cells_and_leaves_no_process(start, own, tmp_path):
    (tmp_path / "helper.py").touch()
    (desk := tmp_path / "desk").mkdir()
    words = [sys.executable, "-m", "condnum", "run", str(own), "--mode", "wait", "-q", "--out", "res"]
    process = start(words, cwd=desk, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((desk / "res/waiting").exists, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    said = " ".join(err.split())
    assert said.startswith(
        "condnum: stopped by Ctrl-C; finished cells kept in res/cells: 1. The same command"
    )
    assert not (desk / "res/report.ipynb").exists()
    assert (desk / "cleaned up").exists()
    assert len(family) >= 2  # the kernel and the stubborn worker
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]


@pytest.mark.slow
def test_papermill_alone_gives_the_table_of_its_parameters(tmp_path, monkeypatch):
    given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "steps": 5, "jobs": 1}
    monkeypatch.chdir(tmp_path)  # papermill takes paths as format strings
    notebook = Path(__file__).parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"
    options = {"kernel_name": "python3", "progress_bar": False}
    papermill.execute_notebook(notebook, "plain.ipynb", given | {"out": "out"}, **options)
    run = frame.run(house_prices, **ParameterNotebook.find(notebook).defaults | given | {"out": "own"})
    tables = [Path(folder, "table.csv").read_text() for folder in ("out", "own")]
    assert tables[0] == tables[1]
    assert list(run.table["method"]) == ["ours", "identity"]


# The program itself.


def test_a_bug_keeps_its_traceback_and_signals_are_the_callers_again(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def ended():
        os.kill(os.getpid(), signal.SIGTERM)  # counts as Ctrl-C
        time.sleep(5)

    monkeypatch.setattr(cli.app, "main", lambda *_, **__: ended())
    assert main([]) == 130
    assert capsys.readouterr().err == "condnum: stopped by Ctrl-C.\n"
    monkeypatch.setattr(cli.app, "main", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([])
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_help_lists_every_experiment_and_waits_for_no_heavy_library(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"condnum {version('condnum')}\n"
    assert main(["run", "digits", "--help"]) == 0
    assert "[default: digits]" in capsys.readouterr().out  # the notebook of MNIST on other data
    code = "import sys; from condnum.cli import main; [main([*w, '--help']) for w in ([], ['run'])]; "
    code += "sys.exit('torch' in sys.modules)"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    for name in (*experiment_names(), "digits"):
        assert f"  {name} " in shown


def test_lab_copies_the_notebooks_but_keeps_what_is_there(tmp_path, monkeypatch, capsys):
    server, started = pytest.importorskip("jupyterlab.labapp").LabApp, []
    monkeypatch.setattr(server, "launch_instance", started.append)
    monkeypatch.chdir(tmp_path)
    assert main(["lab"]) == 0
    for kind in ("*.ipynb", "experiments/*.ipynb"):
        copies = {path.name for path in (tmp_path / "notebooks").glob(kind)}
        assert copies == {path.name for path in shipped("notebooks").glob(kind)}
    (tmp_path / "notebooks" / "2_alignment.ipynb").write_text("my work")
    (tmp_path / "notebooks" / "experiments" / "limits.ipynb").unlink()
    assert main(["lab", "notebooks", "--ip", "0.0.0.0", "--", "--port=9999"]) == 0
    assert (tmp_path / "notebooks" / "2_alignment.ipynb").read_text() == "my work"
    assert (tmp_path / "notebooks" / "experiments" / "limits.ipynb").is_file()
    assert "keeps its own 2_alignment.ipynb; move" in " ".join(capsys.readouterr().err.split())
    first, second = started
    assert {"--ServerApp.ip=127.0.0.1", "--notebook-dir=notebooks"} <= set(first)
    assert second == ["--ServerApp.ip=0.0.0.0", *first[1:], "--port=9999"]


def test_the_list_of_data(monkeypatch, capsys):
    def fail(error):
        raise error

    pair = TaskPair.from_arrays([[1], [2]], [0, 1], [[3], [4]], [1, 0])
    loaders = {
        "whole": catalog.LOADERS["diabetes"],
        "own": lambda: pair,
        "gone": lambda: fail(DataNotFoundError("gone: put a.csv into data/.")),
        "torn": lambda: fail(DataFormatError("torn: fetch it again.")),
    }
    monkeypatch.setattr(catalog, "LOADERS", loaders)
    assert main(["data"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["data", "set", "status", "source", "rows", "SHA-256", "location"]
    assert lines[1][:5] == ["whole", "ok", "embedded", "442", loaders["whole"]().checksum[:8]]
    assert " ".join(lines[2]) == f"own unknown checksum given arrays 4 {pair.checksum[:8]} memory"
    assert lines[3:5] == [["gone", "missing"], ["torn", "broken"]]
    said = [" ".join(line) for line in lines[6:]]
    assert said == ["gone: put a.csv into data/.", "", "torn: fetch it again."]
    del loaders["torn"], loaders["own"]
    assert main(["data"]) == 0
