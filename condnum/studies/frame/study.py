"""A study: frozen parameters → data, loaded once → cells, kept as they finish → tables in a folder."""

from __future__ import annotations

import dataclasses
import platform
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from typing import get_type_hints as type_hints

import numpy as np
import pandas as pd

from condnum.errors import CondnumError, InvalidInputError
from condnum.files import CELLS, FAILURES, write_tables
from condnum.machine import core_count
from condnum.progress import OnProgress
from condnum.stale import class_hash, code_hash
from condnum.studies.frame.cells import Arrays, Cell, ResultStore, Row
from condnum.studies.frame.executors import Executor, choose_executor
from condnum.studies.frame.fields import checked, notebook_defaults
from condnum.studies.frame.record import imported_revision, study_record, write_record
from condnum.studies.frame.sweep import sweep


class SweepError(CondnumError, RuntimeError):
    """Every cell of a sweep failed; the message has the first error."""


class FinishedCell(NamedTuple):
    """A finished cell with its row and arrays."""

    cell: Cell
    row: Row
    arrays: Arrays


@dataclass(frozen=True)
class Study:
    """An experiment: a frozen dataclass whose fields are its parameters, and the four methods that differ.

    A subclass says how to `load` the data, which `cells` there are, how to `compute` one, and which `tables`
    are made of the results. All else is here: fields are checked by their types (`Count`, `Names`, `Literal`,
    `int | None`, …), data are loaded once a run, finished cells are kept and found again as long as their
    data and code are the same (`code`), errors become rows of failures.csv, and cells run one by one, in
    processes or on a dask cluster. `class Mine(Study, name="mine")` names it (default: the class's name);
    with `notebook="mine"`, fields without a default have that of the notebook's parameters cell.
    """

    name: ClassVar[str] = ""
    threads: ClassVar[int | None] = 1  # of a cell: a long descent amplifies what other sums round
    _code: ClassVar[str] = ""  # hash of a module that is not of condnum, as it was imported

    def __init_subclass__(cls, name: str = "", notebook: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        own = not cls.__module__.startswith("condnum.")
        cls.name, cls._code = name or cls.__name__, class_hash(cls) if own else ""
        for field, value in notebook_defaults(notebook).items() if notebook else ():
            if field in cls.__annotations__ and field not in vars(cls):
                setattr(cls, field, value)

    def __post_init__(self) -> None:
        """Check every field by its type, then what the study itself refuses."""
        hints = type_hints(type(self), include_extras=True)
        for name in (field.name for field in dataclasses.fields(self)):
            object.__setattr__(self, name, checked(name, getattr(self, name), hints[name]))
        self.check()

    def check(self) -> None:
        """Refuse combinations of fields that cannot run, before anything is computed."""

    def fill(self, **values: Any) -> None:
        """Give fields that are empty their value, as a study's `check` does."""
        for name, value in values.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    def load(self) -> Any:
        """Load the data; called once for a run."""
        return None

    def cells(self, data: Any) -> Iterable[Cell]:
        """List what is computed, kept and resumed one by one, in the order of the tables."""
        raise NotImplementedError

    def compute(self, data: Any, cell: Cell) -> Any:
        """Compute a cell: a row of scalars, or `(row, arrays)`."""
        raise NotImplementedError

    def tables(self, data: Any, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return the tables by name; they are saved as CSV, or as Parquet if the name ends so."""
        return {"results": pd.DataFrame([{**result.cell.at, **result.row} for result in results])}

    def facts(self, data: Any) -> dict[str, str]:
        """Return what the provenance says beside data, parameters and what it says of every run."""
        return {}

    def order(self, cell: Cell) -> Any:
        """Sort the cells for computing; those with small values go first, default: as they are listed."""
        return 0

    def processes(self, data: Any, cells: Sequence[Cell]) -> int:
        """Return how many processes compute where the user has not said."""
        return core_count()

    def is_whole(self, cell: Cell) -> bool:
        """Tell whether the files that a finished cell has left beside its result are there."""
        return True

    def files(self, results: Sequence[FinishedCell], folder: Path) -> list[str]:
        """Write what a run leaves beside its tables; return the names."""
        return []

    def code(self) -> str:
        """Return the hash of what computes: of condnum, and of the modules of a study of one's own."""
        return self._code or code_hash()

    @staticmethod
    def checksum(data: Any) -> str:
        """Return the SHA-256 that the data know of themselves, or a hash of their content."""
        known = getattr(data, "checksum", None)
        return known if isinstance(known, str) else content_checksum(data)

    def planned(self, data: Any, folder: str = "") -> list[Cell]:
        """Return the cells with their keys."""
        checksum, code = content_checksum(data), self.code()
        return [cell.named(self.name, checksum, code, folder) for cell in self.cells(data)]

    def run(
        self,
        data: Any = None,
        *,
        out: str | Path = "",
        jobs: int = 0,
        scheduler: str = "",
        executor: Executor | None = None,
        on_progress: OnProgress | None = None,
    ) -> StudyRun:
        """Compute the cells that an earlier run into `out` has left; `data` are loaded if None."""
        imported_revision()
        started, began = datetime.now(UTC), time.perf_counter()
        data = self.load() if data is None else data
        kept = nullcontext(Path(out) / CELLS) if out else tempfile.TemporaryDirectory(prefix="condnum-")
        with kept as place, ResultStore(place) as store:
            cells = self.planned(data, str(Path(place).absolute()))
            most = min(jobs or self.processes(data, cells), max(1, len(cells)))
            chosen = executor or choose_executor(most, scheduler, threads=self.threads)
            results, errors, reused = sweep(
                sorted(cells, key=self.order),
                Computation(self, data, self.code()),
                store,
                chosen,
                kept=self.is_whole,
                on_progress=on_progress,
            )
        if errors and not results:
            (cell, error), count = next(iter(errors.items())), len(errors)
            raise SweepError(
                f"no cell succeeded: {count} failed, the first one ({cell.label}) with {error}; "
                "fix this and run again."
            )
        finished = [FinishedCell(cell, *results[cell]) for cell in cells if cell in results]
        told: dict[str, Any] = {"reused": reused, "computed": len(results) - reused}
        told |= {"seconds": time.perf_counter() - began}
        told |= {"where": chosen.where, "threads": getattr(chosen, "threads", None), "started": started}
        return StudyRun(self, data, finished, errors, **told)


@dataclass(frozen=True)
class StudyRun:
    """A finished run."""

    study: Any
    data: Any
    cells: list[FinishedCell]  # the finished ones, in the order of the study's `cells`
    errors: dict[Cell, str]  # of the cells that failed
    reused: int  # cells found in the store
    computed: int
    seconds: float
    where: str  # what computed
    threads: int | None  # of each process there; None: torch's default
    started: datetime

    @cached_property
    def _files(self) -> dict[str, pd.DataFrame]:
        """What the study makes of the results, as it names the files."""
        return dict(self.study.tables(self.data, self.cells))

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name: `run.tables["results"]`."""
        return {Path(file).stem: table for file, table in self._files.items()}

    @property
    def failures(self) -> pd.DataFrame:
        """Cells that failed, with their errors."""
        rows = [(cell.label, error) for cell, error in self.errors.items()]
        return pd.DataFrame(rows, columns=["cell", "error"])

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        import torch

        from condnum import __version__

        study, data = self.study, self.data
        checksum, origin = study.checksum(data), getattr(data, "provenance", None)
        if origin is not None:
            checksum += " (known)" if origin.known_checksum else " (unknown to this project)"
        given = {field: getattr(study, field.name) for field in dataclasses.fields(study)}
        facts = {
            "data": getattr(data, "label", ""),
            "SHA-256": checksum,
            "parameters": ", ".join(
                f"{of.name}={value}"
                for of, value in given.items()
                if value != of.default and not (value in ((), None) and of.default in ("", 0))
            ),
            "cells": f"{self.computed} computed, {self.reused} from the store, {len(self.errors)} failed",
            "where": self.where + (f", threads each: {self.threads}" if self.threads else ""),
            "seconds": f"{self.seconds:,.1f}",
            "numerics": "float64",
            "versions": f"condnum {__version__}, torch {torch.__version__}, "
            f"Python {platform.python_version()}",
        } | study.facts(data)
        return pd.DataFrame([fact for fact in facts.items() if fact[1]], columns=["what", "value"])

    def save(self, folder: str | Path) -> list[str]:
        """Write the tables, failures.csv if cells failed, and the record of the run; return the names."""
        tables = {name if "." in name else f"{name}.csv": table for name, table in self._files.items()}
        tables |= {FAILURES: self.failures} if len(self.failures) else {}
        written = write_tables(folder, tables) + self.study.files(self.cells, Path(folder))
        return [*written, write_record(folder, **study_record(self))]


@dataclass(frozen=True)
class Computation:
    """Computes cells of a study on the data of its run, wherever that is, by the code of its run."""

    study: Study
    data: Any
    code: str

    def __call__(self, cell: Cell) -> Any:
        """Compute a cell."""
        return self.study.compute(self.data, cell)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in another process, which must have imported the same code."""
        self.__dict__.update(state)
        if self.study.code() != self.code:
            raise InvalidInputError(
                f"the code of {self.study.name} in a worker on host {socket.gethostname()} is not that of "
                "the run: it was changed after the run began, or is another version there; start it again."
            )


def content_checksum(data: Any) -> str:
    """Return a hash of data: of what they know of themselves, and of the numbers that they hold."""
    from joblib import hash as content_hash

    known = getattr(data, "checksum", None)
    if not isinstance(known, str):
        return str(content_hash(data))
    fields = getattr(data, "__dataclass_fields__", ())
    if "checksum" not in fields:  # it is computed from the content
        return known
    held = {name: getattr(data, name) for name in fields}
    numbers = {name: value for name, value in held.items() if isinstance(value, np.ndarray | int | float)}
    return str(content_hash([known, numbers]))
