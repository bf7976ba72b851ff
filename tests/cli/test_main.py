import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import pytest
import typer

from condnum.cli import main
from condnum.cli import main as _main  # ruff: ignore[unused-import]
from condnum.errors import RankError

command = sys.modules["condnum.cli.main"]


def raising(error: BaseException) -> object:
    def app(**_: object) -> None:
        raise error

    return app


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"condnum {version('condnum')}\n"


@pytest.mark.parametrize(
    "words", [["--nonsense"], ["nonsense"], ["run", "nonsense"], ["data", "check", "--x"]]
)
def test_wrong_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: condnum" in err
    assert "onsense" in err or "--x" in err


def test_one_paragraph_without_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["data", "check", "diabets"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert " ".join(err.split()).startswith("condnum: unknown data set 'diabets'; did you mean 'diabetes'?")
    assert max(map(len, err.splitlines())) <= 60
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [["--debug", "data", "check", "x"], ["data", "check", "x", "--debug"]])
def test_debug_before_and_after_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()], ids=repr)
def test_interrupt(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "app", raising(error))
    assert main(["data"]) == 130
    assert capsys.readouterr().err == "condnum: stopped by Ctrl-C.\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "app", raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        main([])


def test_arguments_come_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["condnum", "--debug"])
    monkeypatch.setattr(command, "app", raising(RankError("rank 0")))
    assert main() == 2
    assert "RankError: rank 0" in capsys.readouterr().err


def test_a_termination_signal_counts_as_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def app(**_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command, "app", app)
    assert main([]) == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_may_call_it(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(main, ["--version"]).result() == 0


def test_help_needs_no_notebook_libraries() -> None:
    code = "import sys, condnum.cli as c; c.main(sys.argv[1:]); sys.exit('papermill' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code, "run", "house-prices", "--help"], check=True, stdout=subprocess.DEVNULL
    )
