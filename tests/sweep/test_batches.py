"""The executor that computes many cells at once: every cell once, memory, failures, resume."""

import pytest
import torch

from condnum.studies.cell import CellResult
from condnum.studies.executors import BatchExecutor
from condnum.studies.store import ResultStore
from condnum.studies.sweep import run_sweep


class Squares:
    """Even and odd numbers are groups; multiples of ten are computed alone; what fits is given."""

    def __init__(self, size, holds=None):
        self.fits, self.holds = size, holds
        self.batches = []

    def group(self, plan):
        x = plan.payload["x"]
        return None if x % 10 == 0 else x % 2

    def size(self, plans):
        return self.fits

    def compute(self, plans):
        self.batches.append([plan.payload["x"] for plan in plans])
        if self.holds is not None and len(plans) > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return [self.result(plan.payload["x"]) for plan in plans]

    def result(self, x):
        return CellResult({"x": x, "y": x * x}, {})


def rows(outcomes):
    return sorted((outcome.row["x"], outcome.row["y"]) for outcome in outcomes)


def test_cells_of_a_group_go_together_in_batches_that_fit(cells, plans, started):
    squares = Squares(3)
    executor = BatchExecutor(squares)
    outcomes = list(executor.run(cells.square, plans(12)))
    assert rows(outcomes) == [(x, x * x) for x in range(12)]
    assert squares.batches == [[1, 3, 5], [7, 9, 11], [2, 4, 6], [8]]
    assert started() == [0, 10]  # alone
    assert executor.note == "4 batches of at most 3 cells"
    assert all(outcome.seconds > 0 and outcome.memory is not None for outcome in outcomes)


def test_a_batch_that_the_memory_does_not_hold_is_halved_and_the_note_says_so(cells, plans, started):
    squares = Squares(100, holds=2)
    executor = BatchExecutor(squares)
    odd = [plan for plan in plans(18) if plan.payload["x"] % 2]
    assert rows(executor.run(cells.square, odd)) == [(x, x * x) for x in range(1, 18, 2)]
    assert [len(batch) for batch in squares.batches] == [9, 4, 2, 2, 2, 2, 1]
    assert started() == []
    assert executor.note.startswith("5 batches of at most 2 cells; the device's memory did not hold 9 cells")
    assert "did not hold 4 cells" in executor.note


def test_a_single_cell_that_does_not_fit_has_failed_with_the_message(cells, plans, started):
    outcomes = list(BatchExecutor(Squares(4, holds=0)).run(cells.square, plans(4)[1:]))
    assert [outcome.error.type for outcome in outcomes] == ["OutOfMemoryError"] * 3
    assert "Tried to allocate 2.00 GiB" in outcomes[0].error.message
    assert started() == []


def test_other_words_for_no_memory(cells, plans):
    class Cublas(Squares):
        def compute(self, plans):
            if len(plans) > 1:
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
            return super().compute(plans)

    executor = BatchExecutor(Cublas(2))
    assert rows(executor.run(cells.square, plans(4)[1:])) == [(1, 1), (2, 4), (3, 9)]
    assert "did not hold 2 cells" in executor.note


def test_what_a_failed_batch_held_is_let_go_before_the_next_try(cells, plans):
    import weakref

    alive = []

    class Hoards(Squares):
        def compute(self, plans):
            assert not any(ref() is not None for ref in alive)
            tensor = torch.zeros(10)
            alive.append(weakref.ref(tensor))
            return super().compute(plans)

    assert len(list(BatchExecutor(Hoards(9, holds=2)).run(cells.square, plans(9)[1::2]))) == 4
    assert len(alive) == 3


def test_a_batch_that_fails_is_computed_cell_by_cell(cells, plans, started):
    class Broken(Squares):
        def compute(self, plans):
            raise ValueError("singular")

    outcomes = list(BatchExecutor(Broken(4)).run(cells.odd_fails, plans(4)[1:]))
    assert [(o.plan.payload["x"], o.error is None) for o in outcomes] == [(1, False), (3, False), (2, True)]
    assert str(outcomes[0].error) == "ValueError: 1 is odd"
    assert started() == [2]


def test_an_error_of_one_cell_is_its_own(cells, plans):
    class Partly(Squares):
        def result(self, x):
            if x == 3:
                return ValueError("3 has no spectrum")
            return CellResult({"x": x, "y": [x]}, {}) if x == 5 else super().result(x)

    outcomes = {o.plan.payload["x"]: o for o in BatchExecutor(Partly(9)).run(cells.square, plans(8)[1::2])}
    assert [x for x, outcome in outcomes.items() if outcome.error is None] == [1, 7]
    assert str(outcomes[3].error) == "ValueError: 3 has no spectrum"
    assert "column 'y' of a cell is a list" in outcomes[5].error.message


def test_interruption_passes(cells, plans):
    class Stopped(Squares):
        def compute(self, plans):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(BatchExecutor(Stopped(2)).run(cells.square, plans(3)))


def test_a_sweep_keeps_each_batch_and_goes_on_after_it(cells, plans, tmp_path):
    class Dies(Squares):
        def compute(self, plans):
            if len(self.batches) == 2:
                raise KeyboardInterrupt
            return super().compute(plans)

    wanted = [plan for plan in plans(20) if plan.payload["x"] % 2]
    seen = []
    with ResultStore(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(wanted, cells.square, store, BatchExecutor(Dies(3)), on_progress=seen.append)
        assert store.count() == 6
        assert [event.done for event in seen] == [0, 1, 2, 3, 4, 5, 6]  # an event a cell
        squares = Squares(3)
        report = run_sweep(wanted, cells.square, store, BatchExecutor(squares))
    assert (report.reused, report.computed) == (6, 4)
    assert squares.batches == [[13, 15, 17], [19]]
