import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.utils import run_sync

from condnum.errors import (
    CondnumError,
    DataNotFoundError,
    InvalidInputError,
    MissingExtraError,
    OutputError,
    UnknownNameError,
)
from condnum.report import notebook
from condnum.report import notebook as kernel
from condnum.report.notebook import NotebookError, find_notebook, read_notebook, run_notebook, running_kernel


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def text_of(path: Path) -> str:
    return "".join(
        output.get("text", "") for cell in read_notebook(path).cells for output in cell.get("outputs", [])
    )


EVENTS = """
import json, os, sys
with open(os.environ["CONDNUM_PROGRESS"], "a") as stream:
    for done in range(3):
        stream.write(json.dumps({"stage": "ours", "done": done, "total": 3}) + "\\n")
print(sys.executable, os.getcwd(), seeds, sep="|")
"""


def test_a_whole_run(write_notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    folder = tmp_path / "out {braces}"  # papermill takes paths as format strings
    folder.mkdir()
    (folder / "report.failed.ipynb").write_text("of an earlier try")
    seen: list[Any] = []
    report = run_notebook(write_notebook("# Title", EVENTS), {"seeds": 7}, folder, progress=seen.append)
    assert report == folder / "report.ipynb"
    assert names(folder) == ["report.ipynb"]
    assert text_of(report).split("|") == [sys.executable, str(tmp_path / "cwd"), "7\n"]
    assert [event["done"] for event in seen] == [0, 1, 2]
    node = read_notebook(report)
    assert node.metadata["condnum"] == {"parameters": {"seeds": 7}}
    assert node.metadata["kernelspec"]["name"] == "python3"
    assert str(tmp_path) not in str(node.metadata)
    assert "widgets" not in node.metadata


def test_quiet_sets_no_progress_file(
    write_notebook: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_notebook("import os; print('CONDNUM_PROGRESS' in os.environ)")
    assert text_of(run_notebook(path, {}, tmp_path / "out", quiet=True)) == "False\n"
    assert capsys.readouterr() == ("", "")


def test_terminal_progress_is_the_default(
    write_notebook: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_notebook(write_notebook(EVENTS), {}, tmp_path / "out")
    assert "small: 2/3 done (ours)" in capsys.readouterr().err


def test_our_error_in_a_cell_comes_back_as_itself(write_notebook: Any, tmp_path: Path) -> None:
    path = write_notebook("from condnum.errors import *\nraise UnknownNameError('method', 'our', ['ours'])")
    with pytest.raises(UnknownNameError, match=r"^unknown method 'our'; did you mean 'ours'\?") as caught:
        run_notebook(path, {}, tmp_path / "out", quiet=True)
    assert "report.failed.ipynb" in caught.value.__notes__[0]
    assert names(tmp_path / "out") == ["report.failed.ipynb"]
    assert "UnknownNameError" in (tmp_path / "out" / "report.failed.ipynb").read_text()


def test_another_error_names_cell_and_error(write_notebook: Any, tmp_path: Path) -> None:
    path = write_notebook("1 + 1", "[][3]")
    with pytest.raises(
        NotebookError,
        match=r"notebook small failed in cell \[3\] with IndexError: list index .*failed\.ipynb",
    ):
        run_notebook(path, {}, tmp_path / "out", quiet=True)


def test_a_dead_kernel(write_notebook: Any, tmp_path: Path) -> None:
    path = write_notebook("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(NotebookError, match=r"the kernel of the notebook small died.*fewer rows"):
        run_notebook(path, {}, tmp_path / "out", quiet=True)
    assert names(tmp_path / "out") == ["report.failed.ipynb"]


def test_a_cell_over_its_time_limit(write_notebook: Any, tmp_path: Path) -> None:
    with pytest.raises(NotebookError, match="ran into its time limit; raise the limit"):
        run_notebook(
            write_notebook("import time; time.sleep(60)"), {}, tmp_path / "out", quiet=True, timeout=1
        )


def test_any_other_failure_is_named(
    write_notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("Kernel didn't respond in 60 seconds")

    monkeypatch.setattr(notebook, "_execute", broken)
    with pytest.raises(NotebookError, match=r"could not be run \(RuntimeError: Kernel didn't respond"):
        run_notebook(write_notebook(), {}, tmp_path / "out", quiet=True)


@pytest.mark.parametrize(
    ("parameters", "error", "match"),
    [
        (
            {"seed": 1},
            UnknownNameError,
            r"unknown parameter of the notebook small 'seed'; did you mean 'seeds'",
        ),
        (
            {"seeds": "3"},
            InvalidInputError,
            r"parameter 'seeds' of the notebook small must be int, got '3' \(str\)",
        ),
    ],
    ids=["name", "type"],
)
def test_parameters_are_checked_before_anything_is_written(
    write_notebook: Any, tmp_path: Path, parameters: dict[str, Any], error: type[CondnumError], match: str
) -> None:
    with pytest.raises(error, match=match):
        run_notebook(write_notebook(), parameters, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_is_a_file(write_notebook: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="cannot be written to the folder"):
        run_notebook(write_notebook(), {}, tmp_path / "out")


def test_without_papermill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "papermill", None)
    with pytest.raises(MissingExtraError, match=r"'papermill'.*condnum\[notebooks\]"):
        run_notebook("house_prices", {}, tmp_path)


def test_finding_notebooks(tmp_path: Path, write_notebook: Any) -> None:
    path = write_notebook(name="house_prices")
    assert find_notebook(path) == path
    assert find_notebook("house_prices", tree=tmp_path) == path
    assert find_notebook("limits").parent.name == "experiments"
    assert find_notebook("4_ceiling").parent.name == "notebooks"
    with pytest.raises(UnknownNameError, match="unknown notebook 'house_price'; did you mean 'house_prices'"):
        find_notebook("house_price", tree=tmp_path)
    with pytest.raises(DataNotFoundError, match=r"there is no notebook .*none.ipynb; check the path"):
        find_notebook(tmp_path / "none.ipynb")
    with pytest.raises(DataNotFoundError, match="no notebooks folder beside it; run from a source tree"):
        find_notebook("house_prices", tree=tmp_path / "empty")


def test_a_file_that_is_no_notebook(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text("hello")
    with pytest.raises(InvalidInputError, match=r"a\.ipynb is not a Jupyter notebook"):
        run_notebook(path, {}, tmp_path / "out")


def test_the_kernel_is_killed_when_a_gentle_stop_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    with pytest.raises(KeyboardInterrupt), running_kernel(cwd=tmp_path) as manager:  # ruff: ignore[pytest-raises-with-multiple-statements]
        kill = manager.shutdown_kernel
        process = manager.provisioner.process

        async def stop(now: bool = False) -> None:
            calls.append(now)
            if not now:
                raise KeyboardInterrupt
            await kill(now=True)

        manager.shutdown_kernel = stop
    assert calls == [False, True]
    assert process.poll() is not None


def test_a_kernel_that_has_gone_needs_no_stop() -> None:
    class Gone:
        has_kernel = False

    kernel._stop(Gone(), run_sync)


def running(pid: int) -> bool:
    """Tell whether a process runs; one that waits only for its parent to notice its death does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


INTERRUPTED = """
import sys
from condnum.report.notebook import run_notebook
try:
    run_notebook(sys.argv[1], {}, sys.argv[2], quiet=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_interrupt_lets_the_cell_clean_up_and_leaves_nothing(
    start: Callable[..., Any], write_notebook: Any, tmp_path: Path
) -> None:
    path = write_notebook(
        f"""
import os, pathlib, subprocess, time
child = subprocess.Popen("trap '' INT; sleep 60", shell=True)  # a stubborn worker
folder = pathlib.Path({str(tmp_path)!r})
(folder / "pid.part").write_text(f"{{os.getpid()}} {{child.pid}}")
(folder / "pid.part").rename(folder / "pid")
try:
    time.sleep(60)
except KeyboardInterrupt:
    (folder / "interrupted").write_text("")
    raise
"""
    )
    process = start([sys.executable, "-c", INTERRUPTED, str(path), str(tmp_path / "out")])
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(word) for word in (tmp_path / "pid").read_text().split()]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert names(tmp_path / "out") == []
    assert (tmp_path / "interrupted").exists()
    assert len(pids) == 2
    assert not any(running(pid) for pid in pids)
