"""What the fault tests share: a child that meets a fault at its k-th change of a folder, and the table."""

import csv
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: `make faults` sets it: every moment of every command instead of a few.
LONG = bool(os.environ.get("CONDNUM_FAULTS_LONG"))
REPORT = os.environ.get("CONDNUM_FAULTS_REPORT", "")

_OUTCOMES: dict[tuple[str, str], Counter[str]] = {}

#: Changes of a file system, as Python announces them before it makes them.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "os.truncate"}

Fault = Callable[[], None]


def in_child(action: Callable[[], Any], folder: Path, step: int, fault: Fault) -> tuple[int, bool]:
    """Run an action in a forked process that meets a fault right before its k-th change inside a folder.

    Returns the exit status (negative: the signal), and whether the fault came.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        count = 0

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            opened = (
                event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            )
            if not (opened or event in CHANGES) or str(folder) not in str(arguments[0]):
                return
            count += 1
            if count == step:
                os.write(writing, b"x")
                fault()

        status = 1
        try:
            sys.addaudithook(watch)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        came = bool(pipe.read())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), came


@pytest.fixture(scope="session")
def outcome() -> Callable[[str, str, str], None]:
    """`outcome(fault, command, what)`: count what a fault led to, for the table."""

    def count(fault: str, command: str, what: str) -> None:
        _OUTCOMES.setdefault((fault, command), Counter())[what] += 1

    return count


def pytest_sessionfinish() -> None:
    """Write the table of a long run."""
    if not REPORT or not _OUTCOMES:
        return
    names = sorted({name for counts in _OUTCOMES.values() for name in counts})
    Path(REPORT).parent.mkdir(parents=True, exist_ok=True)
    with open(REPORT, "w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(["fault", "command", "times", *names])
        for (fault, command), counts in sorted(_OUTCOMES.items()):
            table.writerow([fault, command, counts.total(), *(counts[name] for name in names)])


@pytest.fixture(scope="session")
def long() -> bool:
    """Whether every moment is tried."""
    return LONG


@pytest.fixture(scope="session")
def faulty() -> Callable[..., tuple[int, bool]]:
    """`faulty(action, folder, step, fault)`: see `in_child`."""
    return in_child
