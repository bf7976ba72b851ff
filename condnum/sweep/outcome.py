"""Computing one cell, wherever that happens: an error becomes a value, so that the others go on."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from condnum.sweep.memory import ProcessPeak, own_peak
from condnum.sweep.plan import CellPlan
from condnum.sweep.result import Arrays, Row, checked_result
from condnum.threads import limit_threads

#: Computes a cell: its row of scalars and its arrays by name.
Compute: TypeAlias = Callable[[CellPlan], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class CellError:
    """Why a cell failed."""

    type: str  # name of the exception's class
    message: str
    traceback: str  # as Python prints it, with type and message; of another process, perhaps

    @classmethod
    def of(cls, error: BaseException) -> CellError:
        """Return an exception as text.

        Args:
            error: As caught.

        Returns:
            Its type, message and traceback.

        Examples:
            >>> print(CellError.of(ValueError("D = 0")))
            ValueError: D = 0
        """
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class Outcome:
    """A cell that was tried."""

    plan: CellPlan
    row: Row  # empty if it failed
    arrays: Arrays  # empty if it failed
    seconds: float
    error: CellError | None = None
    memory: ProcessPeak | None = None  # of the process that tried; None if it was lost

    @classmethod
    def failed(
        cls, plan: CellPlan, error: BaseException, seconds: float = 0.0, memory: ProcessPeak | None = None
    ) -> Outcome:
        """Return the outcome of a cell that raised an exception, or was lost with its worker.

        Args:
            plan: The cell.
            error: Why.
            seconds: How long it took to fail.
            memory: Of the process that tried.

        Returns:
            An outcome without row and arrays.
        """
        return cls(plan, {}, {}, seconds, CellError.of(error), memory)


def evaluate(compute: Compute, plan: CellPlan, threads: int | None = None) -> Outcome:
    """Compute a cell in this process.

    Args:
        compute: Computes it.
        plan: The cell.
        threads: Threads of torch and BLAS from here on; None leaves them.

    Returns:
        The outcome; an exception other than an interruption is its error.

    Examples:
        >>> plan = CellPlan("half", {"x": 3}, {}, "", "1")
        >>> evaluate(lambda plan: ({"y": plan.payload["x"] / 2}, {}), plan).row
        {'y': 1.5}
        >>> print(evaluate(lambda plan: ({"y": 1 / 0}, {}), plan).error)
        ZeroDivisionError: division by zero
    """
    started = time.perf_counter()
    try:
        limit_threads(threads)
        result = checked_result(*compute(plan))
    except Exception as error:
        return Outcome.failed(plan, error, time.perf_counter() - started, own_peak())
    seconds = time.perf_counter() - started
    return Outcome(plan, result.row, result.arrays, seconds, memory=own_peak())
