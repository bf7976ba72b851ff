"""Executors: what a user's options ask for, workers that die, threads."""

import pytest
import torch

from condnum.studies.frame import Cell
from condnum.studies.frame.executors import (
    ProcessExecutor,
    SerialExecutor,
)


@pytest.mark.long
def test_a_cell_that_kills_its_worker_fails_alone(squares):
    run = squares(count=12, trouble="killed").run(jobs=2)
    assert run.tables["results"]["x"].tolist() == [x for x in range(12) if x != 7]
    assert "worker process died" in run.failures["error"].item()


@pytest.mark.slow
def test_a_worker_may_keep_data_for_its_next_cells_and_has_its_threads():
    def hoards(cell):
        import os

        import torch
        from joblib.externals.loky import process_executor

        process_executor._MEMORY_LEAK_CHECK_DELAY = 0  # loky looks after each cell
        vars(torch).setdefault("hoard", []).append(torch.ones(40_000_000))  # 160 MB
        return {"pid": os.getpid(), "threads": torch.get_num_threads()}

    outcomes = ProcessExecutor(1, threads=3).run(hoards, [Cell({"x": x}) for x in range(4)])
    rows = [outcome.result.row for outcome in outcomes]
    assert len({row["pid"] for row in rows}) == 1
    assert {row["threads"] for row in rows} == {3}


def test_threads():
    def threads(cell):
        return {"torch": torch.get_num_threads()}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (outcome,) = SerialExecutor(threads=1).run(threads, [Cell({})])
        assert (outcome.result.row["torch"], torch.get_num_threads()) == (1, 2)
        (outcome,) = SerialExecutor().run(threads, [Cell({})])
        assert outcome.result.row["torch"] == 2
    finally:
        torch.set_num_threads(before)
