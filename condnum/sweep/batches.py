"""An executor that computes many cells at once, in this process: for a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from condnum.sweep.memory import own_peak
from condnum.sweep.outcome import Compute, Outcome, evaluate
from condnum.sweep.plan import CellPlan
from condnum.sweep.result import CellResult, checked_result


class BatchComputation(Protocol):
    """How an experiment computes many of its cells at once."""

    def group(self, plan: CellPlan) -> Hashable | None:
        """Return what the cells of one batch have in common; None for a cell that is computed alone."""

    def size(self, plans: Sequence[CellPlan]) -> int:
        """Return how many of these cells fit into one batch, at least 1."""

    def compute(self, plans: Sequence[CellPlan]) -> Sequence[CellResult | Exception]:
        """Return a result or an error for each cell of a batch, in order."""


@dataclass
class BatchExecutor:
    """Cells that have a group in common together, batch by batch; the others one at a time.

    A batch for which the device's memory does not suffice is tried again in halves, and so are the batches
    of its group that follow. A batch that fails otherwise is computed cell by cell, so that the cell at
    fault fails alone.

    Attributes:
        batches: The experiment's part.

    Examples:
        >>> class Squares:
        ...     def group(self, plan): return "all"
        ...     def size(self, plans): return 2
        ...     def compute(self, plans): return [CellResult({"y": p.payload["x"] ** 2}, {}) for p in plans]
        >>> plans = [CellPlan("square", {"x": x}, {}, "", "1") for x in (2, 3, 4)]
        >>> executor = BatchExecutor(Squares())
        >>> [outcome.row["y"] for outcome in executor.run(lambda plan: ({}, {}), plans)]
        [4, 9, 16]
        >>> executor.note
        '2 batches of at most 2 cells'
    """

    batches: BatchComputation
    _sizes: list[int] = field(default_factory=list, init=False)  # of the batches that were computed
    _notes: list[str] = field(default_factory=list, init=False)

    @property
    def note(self) -> str:
        """What became of the batches, in words."""
        count = len(self._sizes)
        words = [f"{count} batch{'es' * (count > 1)} of at most {max(self._sizes)} cells"] if count else []
        return "; ".join([*words, *self._notes])

    def run(self, compute: Compute, plans: Sequence[CellPlan]) -> Iterator[Outcome]:
        """Yield the outcomes, those of a batch one after the other.

        Args:
            compute: Computes a cell by itself.
            plans: The cells.

        Yields:
            Each outcome; `seconds` is an equal share of its batch's.
        """
        groups: dict[Hashable, list[CellPlan]] = {}
        alone = []
        for plan in plans:
            group = self.batches.group(plan)
            if group is None:
                alone.append(plan)
            else:
                groups.setdefault(group, []).append(plan)
        for members in groups.values():
            yield from self._group(compute, members)
        for plan in alone:
            yield evaluate(compute, plan)

    def _group(self, compute: Compute, plans: list[CellPlan]) -> Iterator[Outcome]:
        """Yield the outcomes of the cells of one group."""
        from condnum.out_of_memory import is_out_of_memory

        try:
            size = max(1, self.batches.size(plans))
        except Exception:  # such as a cell whose data cannot be had: each cell says so by itself
            size = 1
        begin = 0
        while begin < len(plans):
            chunk = plans[begin : begin + size]
            tried = _try(self.batches.compute, chunk)
            if isinstance(tried, Exception) and is_out_of_memory(tried):
                _release_memory(tried)
                if len(chunk) > 1:
                    size = max(1, len(chunk) // 2)
                    self._notes.append(
                        f"the device's memory did not hold {len(chunk)} cells ({chunk[0].short_label}, …): "
                        f"{size} at a time"
                    )
                    continue
                yield Outcome.failed(chunk[0], tried, memory=own_peak())
            elif isinstance(tried, Exception):
                yield from (evaluate(compute, plan) for plan in chunk)
            else:
                self._sizes.append(len(chunk))
                yield from tried
            begin += len(chunk)


def _try(
    compute: Callable[[Sequence[CellPlan]], Sequence[CellResult | Exception]], plans: list[CellPlan]
) -> list[Outcome] | Exception:
    """Compute a batch; an exception other than an interruption is returned."""
    started = time.perf_counter()
    try:
        results = compute(plans)
    except Exception as error:
        return error
    share = (time.perf_counter() - started) / len(plans)
    memory = own_peak()
    outcomes = []
    for plan, result in zip(plans, results, strict=True):
        try:
            if isinstance(result, Exception):
                raise result
            row, arrays = checked_result(*result)
            outcomes.append(Outcome(plan, row, arrays, share, memory=memory))
        except Exception as error:
            outcomes.append(Outcome.failed(plan, error, share, memory))
    return outcomes


def _release_memory(error: Exception) -> None:
    """Give back what a batch held: its tensors live in the frames of its traceback."""
    import traceback

    import torch

    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
