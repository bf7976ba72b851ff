"""Which executor a user's options ask for, and the memory of a worker."""

import pytest

from condnum.errors import InvalidInputError
from condnum.studies import executors
from condnum.studies.cells import Cell
from condnum.studies.executors import (
    DaskExecutor,
    ProcessExecutor,
    SerialExecutor,
    choose_executor,
    core_count,
)


@pytest.mark.parametrize(
    ("options", "chosen", "note"),
    [
        ((1, None, 100), SerialExecutor(), ""),
        ((4, None, 100), ProcessExecutor(4), ""),
        ((8, "", 3), ProcessExecutor(3), "3 cells keep 3 of the 8 workers busy: 3 are started."),
        ((8, None, 1), SerialExecutor(), "1 cell keeps 1 of the 8 workers busy: 1 is started."),
        ((8, None, 0), SerialExecutor(), "0 cells keep 1 of the 8 workers busy: 1 is started."),
        ((1, "tcp://h:1", 5), DaskExecutor("tcp://h:1"), ""),
        (
            (4, "tcp://h:1", 5),
            DaskExecutor("tcp://h:1"),
            "jobs=4 is ignored: the workers of tcp://h:1 compute.",
        ),
    ],
    ids=str,
)
def test_choice(options, chosen, note):
    found = choose_executor(*options)
    assert (found, found.note) == (chosen, note)


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
def test_refused(jobs):
    with pytest.raises(InvalidInputError, match=f"at least 1, got {jobs}; this machine has {core_count()} "):
        choose_executor(jobs)
    with pytest.raises(InvalidInputError, match="threads must be at least 1, got 0"):
        ProcessExecutor(2, threads=0)


def test_cores_are_shared(monkeypatch):
    monkeypatch.setattr(executors, "core_count", lambda: 8)
    assert [ProcessExecutor(jobs).inner_threads for jobs in (1, 3, 8, 20)] == [8, 2, 1, 1]


def test_a_worker_ends_when_its_parent_was_killed(monkeypatch):
    parents, codes = iter([5, 5, 1]), []
    monkeypatch.setattr(executors.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(executors.os, "_exit", codes.append)
    monkeypatch.setattr(executors, "_WATCH_SECONDS", 0)
    executors._end_with(5)
    assert codes == [1]


@pytest.mark.slow
def test_a_worker_may_keep_data_for_its_next_cells():
    def hoards(cell):
        import os
        import time

        import numpy as np

        from condnum.studies.cells import cached

        cached(("hoard", cell["x"]), lambda: np.ones(20_000_000))  # 160 MB, over several looks of loky's
        time.sleep(1.2)
        return {"pid": os.getpid()}

    outcomes = ProcessExecutor(1).run(hoards, [Cell({"x": x}) for x in range(4)])
    assert len({outcome.result.row["pid"] for outcome in outcomes}) == 1
