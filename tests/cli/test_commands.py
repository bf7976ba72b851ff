"""The program itself: exit status, one paragraph for an error, signals, and `condnum data`."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version

import pytest

from condnum import cli
from condnum.cli import main
from condnum.data import catalog
from condnum.data.task_pair import TaskPair
from condnum.errors import DataFormatError, DataNotFoundError
from condnum.files import shipped
from condnum.page.notebook import experiment_names


@pytest.fixture
def ends(monkeypatch):
    """Let the next command do this instead."""
    return lambda do: monkeypatch.setattr(cli.app, "main", lambda *_, **__: do())


@pytest.mark.parametrize("user", [0, 1000])
def test_lab_copies_the_notebooks_but_keeps_what_is_there(user, tmp_path, monkeypatch, capsys):
    server, started = pytest.importorskip("jupyterlab.labapp").LabApp, []
    monkeypatch.setattr(server, "launch_instance", started.append)
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["lab"]) == 0
    assert capsys.readouterr().err == ""
    for kind in ("*.ipynb", "experiments/*.ipynb"):
        copies = {path.name for path in (tmp_path / "notebooks").glob(kind)}
        assert copies == {path.name for path in shipped("notebooks").glob(kind)}
    (tmp_path / "notebooks" / "2_alignment.ipynb").write_text("my work")
    (tmp_path / "notebooks" / "experiments" / "limits.ipynb").unlink()
    assert main(["lab", "notebooks", "--ip", "0.0.0.0", "--", "--port=9999"]) == 0
    assert (tmp_path / "notebooks" / "2_alignment.ipynb").read_text() == "my work"
    assert (tmp_path / "notebooks" / "experiments" / "limits.ipynb").is_file()
    assert "keeps its own 2_alignment.ipynb; move" in " ".join(capsys.readouterr().err.split())
    assert main(["lab", "--", "--no-browser"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]  # no folder of that name
    first, second, third = started
    assert third == [*first, "--no-browser"]
    assert {"--ServerApp.ip=127.0.0.1", "--notebook-dir=notebooks"} <= set(first)
    assert second == ["--ServerApp.ip=0.0.0.0", *first[1:], "--port=9999"]
    assert ("--allow-root" in first) == (user == 0)


def test_digits_are_the_notebook_of_mnist_on_other_data(capsys):
    assert main(["run", "--help"]) == 0
    assert " digits " in capsys.readouterr().out
    assert main(["run", "digits", "--help"]) == 0
    assert "[default: digits]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nonsense", "Usage: condnum"),
        ("nonsense", "Usage: condnum"),
        ("run house-prices --nonsense", "No such option"),
        ("run house-prices --seeds x", "'x' is not a valid integer"),
        ("run none.ipynb", "there is no notebook none.ipynb; check the path"),
        ("reproduce --only mnits", "did you mean 'mnist'"),
        ("reproduce --jobs -1", "-1 is not in the range"),
    ],
)
def test_wrong_use(words, said, refused):
    assert said in refused(words)


def test_one_paragraph_without_traceback(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["run", "house-price"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    said = "condnum: unknown experiment 'house-price'; did you mean 'house-prices'?"
    assert " ".join(err.split()).startswith(said)
    assert max(map(len, err.splitlines())) <= 60
    assert main(["run", "house-price", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(ends):
    ends(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([])


def test_a_termination_signal_counts_as_ctrl_c(ends, capsys):
    def wait():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    ends(wait)
    assert main([]) == 130
    assert capsys.readouterr().err == "condnum: stopped by Ctrl-C.\n"


def test_help_lists_every_experiment_and_waits_for_no_heavy_library(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"condnum {version('condnum')}\n"
    code = "import sys; from condnum.cli import main; [main([*w, '--help']) for w in ([], ['run'])]; "
    code += "sys.exit('torch' in sys.modules)"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    for name in experiment_names():
        assert f"  {name} " in shown


def test_the_list_of_data(monkeypatch, capsys):
    def fail(error):
        raise error

    pair = TaskPair.from_arrays([[1], [2]], [0, 1], [[3], [4]], [1, 0])
    loaders = {
        "own": lambda: pair,
        "gone": lambda: fail(DataNotFoundError("gone: put a.csv into data/.")),
        "torn": lambda: fail(DataFormatError("torn: fetch it again.")),
    }
    whole = catalog.LOADERS["diabetes"]
    monkeypatch.setattr(catalog, "LOADERS", {"whole": whole, **loaders})
    assert main(["data"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["data", "set", "status", "source", "rows", "SHA-256", "location"]
    assert lines[1][:5] == ["whole", "ok", "embedded", "442", whole().checksum[:8]]
    assert " ".join(lines[2]) == f"own unknown checksum given arrays 4 {pair.checksum[:8]} memory"
    assert lines[3:5] == [["gone", "missing"], ["torn", "broken"]]
    assert [" ".join(line) for line in lines[6:]] == [
        "gone: put a.csv into data/.",
        "",
        "torn: fetch it again.",
    ]
    monkeypatch.setattr(catalog, "LOADERS", {"whole": whole, "gone": loaders["gone"]})
    assert main(["data"]) == 0
