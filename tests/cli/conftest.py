"""The command line without a process for each call: `command` runs it here, on one kernel for all.

A process and a kernel of their own cost several seconds of imports a call. What depends on them
(signals, the exit status, a kernel that ends with its command) is tested with real ones: the fixtures
`condnum`, `start` and `embedded_run` of the folder above.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from condnum.cli import main


@pytest.fixture
def command(
    on_shared_kernel: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line, run in this process: `command("data", cwd=folder)`."""

    def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            status = main(arguments)
        written = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, written.out, written.err)

    return call
