"""The executor that computes many cells at once: every cell once, memory, failures, resume."""

import weakref

import pytest
import torch

from condnum.studies.cells import Cell, CellResult, ResultStore
from condnum.studies.executors import BatchExecutor
from condnum.studies.study import run_sweep


class Squares:
    """Even and odd numbers are groups; multiples of ten are computed alone; what fits is given."""

    def __init__(self, size, holds=None):
        self.fits, self.holds = size, holds
        self.batches = []

    def group(self, cell):
        return None if cell["x"] % 10 == 0 else cell["x"] % 2

    def size(self, cells):
        return self.fits

    def compute(self, cells):
        self.batches.append([cell["x"] for cell in cells])
        if self.holds is not None and len(cells) > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return [self.result(cell["x"]) for cell in cells]

    def result(self, x):
        return CellResult({"x": x, "y": x * x}, {})


def cells(*numbers):
    return [Cell({"x": x}).named("squares", "", "1") for x in numbers]


def alone(cell):
    if cell["x"] == 1:
        raise ValueError("1 is odd")
    return {"x": cell["x"], "y": cell["x"] ** 2, "alone": True}


def found(outcomes):
    """x and y of what came out, and the errors by x."""
    outcomes = list(outcomes)
    rows = sorted((o.result.row["x"], o.result.row["y"]) for o in outcomes if o.error is None)
    return rows, {o.cell["x"]: str(o.error) for o in outcomes if o.error is not None}


def squares(*numbers):
    return [(x, x * x) for x in numbers]


def test_cells_of_a_group_go_together_in_batches_that_fit():
    executor = BatchExecutor(batches := Squares(3))
    outcomes = list(executor.run(alone, cells(*range(12))))
    assert found(outcomes) == (squares(*range(12)), {})
    assert batches.batches == [[1, 3, 5], [7, 9, 11], [2, 4, 6], [8]]
    assert [o.cell["x"] for o in outcomes if "alone" in o.result.row] == [0, 10]
    assert executor.note == "4 batches of at most 3 cells"
    assert all(o.seconds > 0 and o.memory is not None for o in outcomes)


def test_a_batch_that_the_memory_does_not_hold_is_halved_and_lets_go_of_what_it_held():
    alive = []

    class Hoards(Squares):
        def compute(self, cells):
            assert not any(ref() is not None for ref in alive)
            tensor = torch.zeros(10)
            alive.append(weakref.ref(tensor))
            return super().compute(cells)

    executor = BatchExecutor(batches := Hoards(100, holds=2))
    assert found(executor.run(alone, cells(*range(1, 18, 2)))) == (squares(*range(1, 18, 2)), {})
    assert [len(batch) for batch in batches.batches] == [9, 4, 2, 2, 2, 2, 1]
    assert executor.note.startswith("5 batches of at most 2 cells; the device's memory did not hold 9 cells")
    assert "did not hold 4 cells" in executor.note


def test_a_single_cell_that_does_not_fit_has_failed_with_the_message():
    rows, errors = found(BatchExecutor(Squares(4, holds=0)).run(alone, cells(1, 2, 3)))
    assert rows == []
    assert all("Tried to allocate 2.00 GiB" in error for error in errors.values())


def test_a_batch_that_fails_is_computed_cell_by_cell():
    class Broken(Squares):
        def compute(self, cells):
            raise ValueError("singular")

    assert found(BatchExecutor(Broken(4)).run(alone, cells(1, 2, 3))) == (
        squares(2, 3),
        {1: "ValueError: 1 is odd"},
    )


def test_an_error_of_one_cell_is_its_own():
    class Partly(Squares):
        def result(self, x):
            if x == 3:
                return ValueError("3 has no spectrum")
            return CellResult({"x": x, "y": [x]}, {}) if x == 5 else super().result(x)

    rows, errors = found(BatchExecutor(Partly(9)).run(alone, cells(1, 3, 5, 7)))
    assert rows == squares(1, 7)
    assert errors[3] == "ValueError: 3 has no spectrum"
    assert "column 'y' of a cell is a list" in errors[5]


def test_a_sweep_keeps_each_batch_and_goes_on_after_an_interruption(tmp_path):
    class Dies(Squares):
        def compute(self, cells):
            if len(self.batches) == 2:
                raise KeyboardInterrupt
            return super().compute(cells)

    wanted, seen = cells(*range(1, 20, 2)), []
    with ResultStore(tmp_path) as store:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(wanted, alone, store, BatchExecutor(Dies(3)), on_progress=seen.append)
        assert store.count() == 6
        assert [event.done for event in seen] == [0, 1, 2, 3, 4, 5, 6]  # an event a cell
        report = run_sweep(wanted, alone, store, BatchExecutor(batches := Squares(3)))
    assert (report.reused, report.computed) == (6, 4)
    assert batches.batches == [[13, 15, 17], [19]]
