"""One experiment's process: its message, its death, its interruption, its progress."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from condnum.report import reproduce as process
from condnum.report.reproduce import Ended, code_checksum, fingerprint, run_command


def test_an_error_is_heard_without_the_programs_name(tmp_path: Path) -> None:
    ended = run_command(["run", "notebook", str(tmp_path / "none.ipynb")], progress=lambda event: None)
    assert ended.status == 2
    assert ended.error == f"there is no notebook {tmp_path / 'none.ipynb'}; check the path."


def test_success_has_no_error() -> None:
    assert run_command(["--version"], progress=lambda event: None).error == ""


def test_endings_in_words() -> None:
    assert "SIGKILL (most often for lack of memory)" in Ended(-signal.SIGKILL, "").error
    assert Ended(-signal.SIGSEGV, "said something").error == "killed by SIGSEGV: said something"
    assert Ended(3, "").error == "ended with status 3 and without a message"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Replace `python -m condnum` by a small program."""

    def put(text: str) -> None:
        package = tmp_path / "condnum"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.chdir(tmp_path)

    return put


def test_progress_comes_through_while_it_runs(program) -> None:
    program(
        "import json, os\n"
        "with open(os.environ['CONDNUM_PROGRESS'], 'a') as f:\n"
        "    for k in range(3): f.write(json.dumps({'stage': 'ours', 'done': k + 1, 'total': 3}) + '\\n')\n"
    )
    events: list = []
    assert run_command([], progress=events.append).status == 0
    assert [(event["stage"], event["done"], event["total"]) for event in events] == [
        ("ours", k, 3) for k in (1, 2, 3)
    ]


def test_a_traceback_is_kept_as_it_is(program) -> None:
    program("raise RuntimeError('a bug')")
    ended = run_command([], progress=lambda event: None)
    assert ended.status == 1
    assert ended.error.startswith("Traceback")
    assert ended.error.endswith("RuntimeError: a bug")


_STUBBORN = "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, {handler})\n"
_READY = "pathlib.Path('ready').write_text('')\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    ("handler", "grace"),
    [("lambda *_: (pathlib.Path('kept').write_text(''), exit(130))", 20.0), ("signal.SIG_IGN", 0.5)],
    ids=["keeps its work", "does not listen"],
)
def test_an_interrupted_process_ends(
    program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, grace: float
) -> None:
    program(_STUBBORN.format(handler=handler) + _READY)
    monkeypatch.setattr(process, "GRACE_SECONDS", grace)
    started: list = []
    popen = process.subprocess.Popen

    def noticed(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(process.subprocess, "Popen", noticed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_command([], progress=lambda event: None)
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    assert started[0].poll() is not None
    assert (tmp_path / "kept").exists() == ("kept" in handler)


def test_the_code_checksum_sees_code_and_experiments_only(tmp_path: Path) -> None:
    lesson, experiment = "notebooks/4_ceiling.ipynb", "notebooks/experiments/limits.ipynb"
    for name in ("condnum/spectra.py", "condnum/report/site.py", lesson, experiment, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = code_checksum(tmp_path)
    for name, changes in (
        ("README.md", False),
        ("condnum/report/site.py", False),
        ("condnum/spectra.py", True),
        (lesson, False),
        (experiment, True),
    ):
        code_checksum.cache_clear()
        (tmp_path / name).write_text("2")
        after = code_checksum(tmp_path)
        assert (after != before) == changes, name
        before = after


def test_a_fingerprint_names_its_data() -> None:
    mark = fingerprint(["run", "digits"], ["digits-8x8", "diabetes"])
    assert set(mark.data) == {"digits-8x8", "diabetes"}
    assert all(len(value) == 64 for value in mark.data.values())
    assert mark.words == ("run", "digits")
    assert fingerprint(["run", "digits"], []).data == {}
