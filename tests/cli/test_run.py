import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from typer.testing import CliRunner

from condnum.cli import app, house_prices, main
from condnum.cli.run import failure_table, run_report
from condnum.data.resolver import BOX
from condnum.errors import DataNotFoundError, DeviceError, UnknownNameError
from condnum.studies.store import ResultStore

PARAMETERS = """
seeds: int = 1
device: str = "cpu"
out: str = ""
quiet: bool = False
mode: str = "whole"
"""
BODY = """
import pathlib, time
from condnum.cli.run import run_report
from condnum.errors import DataFormatError
folder = pathlib.Path(out)
(folder / "cells").mkdir(exist_ok=True)
(folder / "results.csv").write_text("rir\\n1\\n")
if mode == "fail":
    raise DataFormatError("column 'SalePrice' is missing.")
from condnum.studies.store import ResultStore
with ResultStore(folder / "cells") as store:
    store.put("ours-0", {"rir": 2.0})
if mode == "some fail":
    (folder / "failures.csv").write_text("cell,error\\nours,ZeroDivisionError: 1\\nimma,RankError: 2\\n")
if mode == "wait":
    (folder / "waiting").write_text("")
    time.sleep(60)
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    node = new_notebook()
    node.cells = [new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}), new_code_cell(BODY)]
    path = tmp_path / "tiny.ipynb"
    nbformat.write(node, path)
    return path


DRIVER = """
import sys
import condnum.cli.house_prices as command
from condnum.cli import main
from condnum.cli.run import run_report

def tiny(name, parameters, **options):
    run_report(sys.argv[1], {"seeds": 1, "device": "cpu", "mode": "wait"}, **options)

command.run_report = tiny
sys.exit(main(["run", "house-prices", "--data", "embedded", *sys.argv[2:]]))
"""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, notebook: Path, tmp_path: Path) -> Callable[..., int]:
    """Return the command line with the tiny notebook in the place of the real one."""

    def run(mode: str, *words: str) -> int:
        parameters = {"seeds": 1, "device": "cpu", "mode": mode}
        monkeypatch.setattr(
            house_prices,
            "run_report",
            lambda _, __, **options: run_report(str(notebook), parameters, **options),
        )
        return main(["run", "house-prices", "--data", "embedded", "--quiet", *words])

    monkeypatch.chdir(tmp_path)
    return run


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_whole_run(tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny("whole", "--out", "res") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["Results: res", "res/report.html"]
    assert err == ""
    assert tree(tmp_path / "res") == ["provenance.json", "report.html", "report.ipynb", "results.csv"]
    record = json.loads((tmp_path / "res" / "provenance.json").read_text())
    assert record["seeds"] == [0]
    assert record["parameters"]["mode"] == "whole"
    assert list(record["data"]) == ["diabetes, embedded"]
    assert record["duration_seconds"] > 0
    html = (tmp_path / "res" / "report.html").read_text()
    assert "<title>Immunization of a linear feature extractor (diabetes, embedded)</title>" in html


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_in_a_cell_is_one_paragraph(
    tiny: Any, tmp_path: Path, debug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny("fail", *(["--debug"] if debug else [])) == 2
    out, err = capsys.readouterr()
    assert out == ""
    if debug:
        assert "Traceback" in err
        assert "report.failed.ipynb" in err
    else:
        assert err == "condnum: column 'SalePrice' is missing.\n"
    assert tree(tmp_path / "runs" / "house-prices-embedded") == ["report.failed.ipynb"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_a_stopped_run_keeps_finished_cells(
    start: Callable[..., subprocess.Popen[str]], notebook: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    command = [sys.executable, "-c", DRIVER, str(notebook), "-q", "--out", "res"]
    process = start(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "res/.partial/waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(stop)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert " ".join(err.split()) == (
        "condnum: stopped by Ctrl-C; 1 finished piece kept in res/.partial/cells: "
        "the same command resumes from there."
    )
    with ResultStore(tmp_path / "res/.partial/cells", mode="read") as store:
        assert list(store.rows()) == ["ours-0"]


def test_a_run_stopped_at_once_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: Path
) -> None:
    from condnum.report import notebook as runner

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_execute", interrupt)
    monkeypatch.setattr(
        house_prices, "run_report", lambda name, parameters, **k: run_report(str(notebook), {}, **k)
    )
    result = CliRunner().invoke(app, ["run", "house-prices", "--out", str(tmp_path / "res")])
    assert result.exit_code == 130
    assert "before the first piece was finished; nothing was kept" in " ".join(result.stderr.split())
    assert not (tmp_path / "res").exists()


def test_ctrl_c_that_an_event_loop_turns_into_an_error_of_its_own(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from condnum.report import notebook as runner

    def interrupted(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise RuntimeError("invalid state") from None

    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    monkeypatch.setattr(runner, "_execute", interrupted)
    assert tiny("whole", "--out", "res") == 130
    assert "stopped by Ctrl-C before the first piece was finished" in capsys.readouterr().err
    assert not (tmp_path / "res").exists()


def test_cells_that_failed(tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny("some fail", "--out", "res") == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "res/report.html"
    assert err.splitlines() == [
        "2 cells failed:",
        "  cell  error",
        "  ours  ZeroDivisionError: 1",
        "  imma  RankError: 2",
        "All of them are in res/failures.csv; the same command tries them again and keeps the others.",
    ]
    with ResultStore(tmp_path / "res/.partial/cells", mode="read") as store:
        assert store.done("ours-0")
    assert tiny("whole", "--out", "res") == 0
    assert not (tmp_path / "res/failures.csv").exists()
    assert not (tmp_path / "res/.partial").exists()


def test_the_table_of_failures_is_not_endless() -> None:
    rows = [{"cell": f"seed {i}", "error": "ValueError: no"} for i in range(100)]
    lines = failure_table(rows, Path("o")).splitlines()
    assert (lines[0], lines[-2]) == ("100 cells failed:", "  … and 80 more")
    assert len(lines) == 1 + 1 + 20 + 2


def test_what_an_earlier_version_kept_is_told(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "res/.partial/cells/ours-0-0123456789abcdef.npz"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"PK")
    assert tiny("whole", "--out", "res") == 0
    err = " ".join(capsys.readouterr().err.split())
    assert (
        "1 piece(s) in res/.partial/cells were kept by an earlier version (ours-0-0123456789abcdef.npz" in err
    )
    assert "computed again" in err


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(house_prices, "run_report", lambda n, p, **k: calls.append((n, p, k)))
    monkeypatch.setattr(house_prices, "valid_methods", lambda: ["ours", "imma"])
    return calls


def test_defaults(called: list[Any]) -> None:
    assert CliRunner().invoke(app, ["run", "house-prices", "--device", "cpu"]).exit_code == 0
    ((name, parameters, options),) = called
    assert name == "house_prices"
    assert parameters == {
        "data": "auto", "methods": None, "seeds": 5, "epochs": None, "features": "published",
        "rows": None, "device": "cpu", "jobs": 0,
    }  # fmt: skip
    assert options["out"] == Path("runs/house-prices-auto")
    assert options["quiet"] is False


def test_all_options(called: list[Any]) -> None:
    words = "--methods imma,ours --seeds 2 --epochs 7 --features clean --rows 9 --device cpu -j 3 -q --debug"
    result = CliRunner().invoke(
        app, ["run", "house-prices", "--data", str(BOX), "--out", "x", *words.split()]
    )
    assert result.exit_code == 0, result.output
    ((_, parameters, options),) = called
    assert parameters == {
        "data": str(BOX), "methods": "imma,ours", "seeds": 2, "epochs": 7, "features": "clean",
        "rows": 9, "device": "cpu", "jobs": 3,
    }  # fmt: skip
    assert (options["out"], options["quiet"]) == (Path("x"), True)


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ("--methods our", UnknownNameError, "unknown method 'our'; did you mean 'ours'"),
        ("--device cuda:99", DeviceError, "device 'cuda:99' was asked for"),
        ("--data /none/there", DataNotFoundError, "no such file or folder"),
    ],
)
def test_early_errors(called: list[Any], words: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        CliRunner().invoke(app, ["run", "house-prices", *words.split()], catch_exceptions=False)
    assert called == []


@pytest.mark.parametrize(
    "words", ["--seeds 0", "--epochs x", "--features all", "--nonsense", "--rows -1", "-j -1"]
)
def test_wrong_use(called: list[Any], words: str) -> None:
    assert CliRunner().invoke(app, ["run", "house-prices", *words.split()]).exit_code == 2
    assert called == []


def test_the_registry_of_methods() -> None:
    assert len(house_prices.valid_methods()) > 1
