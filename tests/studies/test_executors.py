"""Executors: what a user's options ask for, workers that die, threads, batches of a device, memory."""

import weakref

import pytest
import torch

from condnum.errors import InvalidInputError
from condnum.studies.frame import executors
from condnum.studies.frame.cells import Cell, CellResult
from condnum.studies.frame.executors import (
    BatchExecutor,
    ProcessExecutor,
    SerialExecutor,
    choose_executor,
    core_count,
)


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
def test_refused(jobs):
    message = rf"this machine has {core_count()} cores\) must be an integer ≥ 1, got {jobs}"
    with pytest.raises(InvalidInputError, match=message):
        choose_executor(jobs)


def test_a_cell_that_kills_its_worker_fails_alone(squares):
    run = squares(count=12, trouble="killed").run(jobs=2)
    assert run.tables["results"]["x"].tolist() == [x for x in range(12) if x != 7]
    assert "worker process died" in run.failures["error"].item()


def test_a_worker_ends_when_its_parent_was_killed(monkeypatch):
    parents, codes = iter([5, 5, 1]), []
    monkeypatch.setattr(executors.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(executors.os, "_exit", codes.append)
    monkeypatch.setattr(executors, "_WATCH_SECONDS", 0)
    executors._end_with(5)
    assert codes == [1]


@pytest.mark.slow
def test_a_worker_may_keep_data_for_its_next_cells_and_has_its_threads():
    def hoards(cell):
        import os

        import torch
        from joblib.externals.loky import process_executor

        from condnum.studies.frame.cells import cached

        process_executor._MEMORY_LEAK_CHECK_DELAY = 0  # loky looks after each cell
        cached(("hoard", cell["x"]), lambda: torch.ones(40_000_000))  # 160 MB
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


def test_a_function_that_cannot_be_sent_is_the_cells_error(tmp_path):
    with open(tmp_path / "file", "w") as stream:
        (outcome,) = ProcessExecutor(2).run(lambda cell: {"y": stream.name}, [Cell({})])
    assert "pickle" in outcome.error


class Squares:
    """Even and odd numbers are groups; multiples of ten are computed alone; what fits is given."""

    device = "no device"

    def __init__(self, size, holds=None, trouble=lambda x, batches: None):
        self.fits, self.holds, self.trouble = size, holds, trouble
        self.batches = []

    def group(self, cell):
        return None if cell["x"] % 10 == 0 else cell["x"] % 2

    def size(self, cells):
        return self.fits

    def compute(self, cells):
        self.batches.append([cell["x"] for cell in cells])
        if self.holds is not None and len(cells) > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return [
            self.trouble(x, self.batches) or CellResult({"x": x, "y": x * x}, {}) for x in self.batches[-1]
        ]


def cells(*numbers):
    return [Cell({"x": x}).named("squares", "", "1") for x in numbers]


def alone(cell):
    if cell["x"] == 1:
        raise ValueError("1 is odd")
    return {"x": cell["x"], "y": cell["x"] ** 2, "alone": True}


def found(outcomes):
    """x of what came out right, and the errors by x."""
    outcomes = list(outcomes)
    right = [o.result.row for o in outcomes if o.result is not None]
    assert all(row["y"] == row["x"] ** 2 for row in right)
    return sorted(row["x"] for row in right), {o.cell["x"]: o.error for o in outcomes if o.error}


class TestBatches:
    def test_cells_of_a_group_go_together_in_batches_that_fit(self):
        executor = BatchExecutor(batches := Squares(3))
        outcomes = list(executor.run(alone, cells(*range(12))))
        assert found(outcomes) == ([*range(12)], {})
        assert batches.batches == [[1, 3, 5], [7, 9, 11], [2, 4, 6], [8]]
        assert [o.cell["x"] for o in outcomes if "alone" in o.result.row] == [0, 10]
        assert executor.where == "1 process, in batches on no device"

    def test_a_batch_that_the_memory_does_not_hold_is_halved_and_lets_go_of_what_it_held(self):
        alive = []

        class Hoards(Squares):
            def compute(self, cells):
                assert not any(ref() is not None for ref in alive)
                tensor = torch.zeros(10)
                alive.append(weakref.ref(tensor))
                return super().compute(cells)

        executor = BatchExecutor(batches := Hoards(100, holds=2))
        assert found(executor.run(alone, cells(*range(1, 18, 2)))) == ([*range(1, 18, 2)], {})
        assert [len(batch) for batch in batches.batches] == [9, 4, 2, 2, 2, 2, 1]
        rows, errors = found(BatchExecutor(Squares(4, holds=0)).run(alone, cells(1, 2, 3)))
        assert rows == []
        assert all("Tried to allocate 2.00 GiB" in error for error in errors.values())

    def test_a_batch_that_fails_is_computed_cell_by_cell_and_an_error_of_one_cell_is_its_own(self):
        def broken(x, batches):
            raise ValueError("singular")

        executor = BatchExecutor(Squares(4, trouble=broken))
        assert found(executor.run(alone, cells(1, 2, 3))) == ([2, 3], {1: "ValueError: 1 is odd"})

        def partly(x, batches):
            wrong = {3: ValueError("3 has no spectrum"), 5: CellResult({"x": x, "y": [x]}, {})}
            return wrong.get(x)

        rows, errors = found(BatchExecutor(Squares(9, trouble=partly)).run(alone, cells(1, 3, 5, 7)))
        assert rows == [1, 7]
        assert errors[3] == "ValueError: 3 has no spectrum"
        assert "column 'y' of a cell is a list" in errors[5]
