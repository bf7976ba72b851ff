"""What the fault tests share: a child that meets a fault at its k-th change of a folder, and the table."""

import csv
import os
import sys
import traceback
from collections import Counter
from pathlib import Path

import pytest

#: `make faults` sets it: every moment of every command instead of a few.
LONG = bool(os.environ.get("CONDNUM_FAULTS_LONG"))
REPORT = os.environ.get("CONDNUM_FAULTS_REPORT", "")

_OUTCOMES: dict[tuple[str, str], Counter[str]] = {}

#: Changes of a file system, as Python announces them before it makes them.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "os.truncate"}


def in_child(action, folder, step, fault):
    """Run an action in a forked process that meets a fault right before its k-th change inside a folder.

    Return the exit status (negative: the signal), and whether the fault came.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        count = 0

        def watch(event, arguments):
            nonlocal count
            flags = arguments[2] if event == "open" else 0
            written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if (written or event in CHANGES) and str(folder) in str(arguments[0]):
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
def outcome():
    """`outcome(fault, command, what)`: count what a fault led to, for the table of a long run."""
    return lambda fault, command, what: _OUTCOMES.setdefault((fault, command), Counter()).update([what])


def pytest_sessionfinish():
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
def long():
    """Whether every moment is tried."""
    return LONG


@pytest.fixture(scope="session")
def faulty():
    """`faulty(action, folder, step, fault)`: see `in_child`."""
    return in_child
