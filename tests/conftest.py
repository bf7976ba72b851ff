"""What tests of several folders share: the real data, and one run of the embedded experiment."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """A finished `condnum run`."""

    folder: Path
    stdout: str
    stderr: str


Condnum = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def condnum() -> Condnum:
    """The command line, run in a process of its own: `condnum("data", cwd=folder)`."""

    def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "condnum", *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return call


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start a process that Ctrl-C can stop, even where the tests themselves run in the background.

    A shell starts background jobs with SIGINT ignored, children inherit that, and Python then
    installs no handler.
    """

    def launch(command: list[str], **options: Any) -> subprocess.Popen[str]:
        heed = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
        return subprocess.Popen(command, preexec_fn=heed, text=True, **options)

    return launch


@pytest.fixture(scope="session")
def embedded_run(condnum: Condnum, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run `condnum run house-prices` once on the embedded table, with few epochs and two seeds."""
    base = tmp_path_factory.mktemp("embedded")
    options = ("--data", "embedded", "--seeds", "2", "--epochs", "60", "--out", "out")
    done = condnum("run", "house-prices", *options, cwd=base)
    assert done.returncode == 0, done.stderr
    return Run(base / "out", done.stdout, done.stderr)


_REAL = os.environ.get("CONDNUM_DATA")
_SHARED = REPOSITORY.parent / "shared" / "data"


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data; the variable is set to it."""
    folder = Path(_REAL).resolve() if _REAL else _SHARED
    if not (folder / "house_prices" / "train.csv").is_file() or not (folder / "MNIST" / "raw").is_dir():
        pytest.skip(f"no real data in {folder}; set CONDNUM_DATA to the folder that holds it")
    monkeypatch.setenv("CONDNUM_DATA", str(folder))
    return folder
