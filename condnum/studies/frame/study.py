"""A study: frozen parameters → data, loaded once → cells, kept as they finish → tables in a folder."""

from __future__ import annotations

import dataclasses
import inspect
import math
import platform
import socket
import sys
import tempfile
import textwrap
import types
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, Union, get_args, get_origin
from typing import get_type_hints as type_hints

import numpy as np
import pandas as pd

from condnum.errors import (
    CondnumError,
    InvalidInputError,
    UnknownNameError,
    check_flag,
    check_integer,
    check_known,
)
from condnum.files import CELLS, FAILURES, write_tables
from condnum.machine import revision_text, source_revision
from condnum.stale import code_hash
from condnum.studies.frame.cells import Arrays, Cell, ResultStore, Row
from condnum.studies.frame.executors import Executor, choose_executor, core_count
from condnum.studies.frame.record import study_record, write_record
from condnum.studies.frame.sweep import OnProgress, SweepError, SweepReport, run_sweep

# Types of fields: what a field may hold is said once, by its annotation.


def at_least(least: int) -> Callable[[str, Any], int]:
    """Return the check of a whole number that is not smaller."""
    return lambda name, value: check_integer(name, value, least)


def several(read: Callable[[Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    """Return the check of a tuple, or of a text with commas, whose parts are read; each counts once."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        given = value.split(",") if isinstance(value, str) else value
        parts = [part.strip() if isinstance(part, str) else part for part in given]
        return tuple(dict.fromkeys(read(part) for part in parts if part != ""))

    return check


def some_of(kind: str, choices: Callable[[], Iterable[str]]) -> Callable[[str, Any], tuple[str, ...]]:
    """Return the check of names that have to be among others."""

    def known(word: str) -> str:
        check_known(kind, word, list(choices()))
        return word

    return several(known)


#: A whole number of at least 1.
Count: TypeAlias = Annotated[int, at_least(1)]

#: Names, in a notebook or on the command line with commas between them.
Names: TypeAlias = Annotated[tuple[str, ...], several(str)]

_PLAIN = {int: (Integral, "an integer"), str: (str, "text"), float: (Real, "a finite number")}


def _checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a field as its type has it, or say what is wrong with it."""
    if get_origin(hint) in (Union, types.UnionType):  # `… | None`
        return None if value is None else _checked(name, value, get_args(hint)[0])
    if get_origin(hint) is Annotated:
        return get_args(hint)[1](name, value)
    if get_origin(hint) is Literal:
        check_known(name.replace("_", " "), value, get_args(hint))
    elif hint is bool:
        return check_flag(name, value)
    elif hint in _PLAIN:
        kind, words = _PLAIN[hint]
        right = isinstance(value, kind) and not isinstance(value, bool)
        if not right or (hint is float and not math.isfinite(value)):
            raise InvalidInputError(f"{name} must be {words}, got {value!r}.")
        return hint(value)
    return value


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
    processes or on a dask cluster. `class Mine(Study, name="mine")` names it (default: the class's name).
    """

    name: ClassVar[str] = ""
    _code: ClassVar[str] = ""  # hash of a module that is not of condnum, as it was imported

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        own = not cls.__module__.startswith("condnum.")
        cls.name, cls._code = name or cls.__name__, own_hash(cls) if own else ""

    def __post_init__(self) -> None:
        """Check every field by its type, then what the study itself refuses."""
        for name, hint in self._hints().items():
            try:
                object.__setattr__(self, name, _checked(name, getattr(self, name), hint))
            except CondnumError as error:
                error.field = name
                raise
        self.check()

    @classmethod
    def _hints(cls) -> dict[str, Any]:
        """Return the types of the fields."""
        hints = type_hints(cls, include_extras=True)
        return {field.name: hints[field.name] for field in dataclasses.fields(cls)}

    @classmethod
    def from_parameters(cls, **values: Any) -> Self:
        """Build a study from notebook parameters; "" and 0 stand for a default that means none or all."""
        given, hints = {}, cls._hints()
        for name, value in values.items():
            if name not in hints:
                raise UnknownNameError("parameter", name, list(hints))
            hint = hints[name]
            plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            optional = types.NoneType in get_args(plain) or get_origin(plain) is tuple
            if not (optional and not isinstance(value, bool) and value in ("", 0)):
                given[name] = value
        return cls(**given)

    def check(self) -> None:
        """Refuse combinations of fields that cannot run, before anything is computed."""

    def load(self) -> Any:
        """Load the data; called once in each process that computes."""
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

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Choose where cells are computed; `jobs` 0 leaves the number of processes to the study."""
        # One thread each: a long descent amplifies the round-off in which differently threaded sums differ.
        return choose_executor(min(jobs or core_count(), max(1, len(cells))), scheduler, threads=1)

    def prepare(self, cells: Sequence[Cell], store: ResultStore) -> None:
        """Look at the store before the sweep, for a study whose cells keep files of their own."""

    def files(self, results: Sequence[FinishedCell], folder: Path) -> list[str]:
        """Write what a run leaves beside its tables; return the names."""
        return []

    @classmethod
    def code(cls) -> str:
        """Return the hash of what computes: the study's module and all that it imports."""
        return cls._code or code_hash(cls.__module__)

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
        data = self.load() if data is None else data
        kept = nullcontext(Path(out) / CELLS) if out else tempfile.TemporaryDirectory(prefix="condnum-")
        with kept as place, ResultStore(place) as store:
            cells = self.planned(data, str(Path(place).absolute()))
            chosen = self.executor(data, cells, jobs, scheduler) if executor is None else executor
            self.prepare(cells, store)
            report = run_sweep(
                sorted(cells, key=self.order),
                Computation(self, data, self.code()),
                store,
                chosen,
                revision=revision_text(source_revision()),
                on_progress=on_progress,
            )
        if report.failures and not report.results:
            (cell, error), count = next(iter(report.failures.items())), len(report.failures)
            raise SweepError(
                f"no cell succeeded: {count} failed, the first one ({cell.label}) with {error}; "
                "fix this and run again."
            )
        results = [FinishedCell(cell, *report.results[cell]) for cell in cells if cell in report.results]
        return StudyRun(self, data, results, report, chosen.where)


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


def own_hash(kind: type[Study]) -> str:
    """Return the hash of the code of a study that is not of condnum, with the modules of its bases.

    One without a file, as of a notebook, is hashed by its text; where there is none, it is like no other.
    """
    modules = {base.__module__ for base in kind.__mro__ if issubclass(base, Study)}
    filed = {name for name in modules if hasattr(sys.modules.get(name), "__file__")}
    source = ""
    if kind.__module__ not in filed:
        try:
            source = f"import condnum, condnum.deep\n{textwrap.dedent(inspect.getsource(kind))}"
        except (OSError, TypeError):
            source = f"# {uuid.uuid4().hex}"
    return code_hash(*sorted(filed), source=source)


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


@dataclass(frozen=True)
class StudyRun:
    """A finished run."""

    study: Any
    data: Any
    cells: list[FinishedCell]  # the finished ones, in the order of the study's `cells`
    report: SweepReport
    where: str  # what computed

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
        rows = [(cell.label, error) for cell, error in self.report.failures.items()]
        return pd.DataFrame(rows, columns=["cell", "error"])

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        import torch

        from condnum import __version__

        study, data, report = self.study, self.data, self.report
        parts = report.revisions if len(report.revisions) > 1 else {}
        checksum, origin = study.checksum(data), getattr(data, "provenance", None)
        if origin is not None:
            checksum += " (known)" if origin.known_checksum else " (unknown to this project)"
        given = {field.name: getattr(study, field.name) for field in dataclasses.fields(study)}
        defaults = {field.name: field.default for field in dataclasses.fields(study)}
        facts = {
            "data": getattr(data, "label", "") + (f": {origin.description}" if origin else ""),
            "SHA-256": checksum,
            "parameters": ", ".join(f"{name}={of}" for name, of in given.items() if of != defaults[name]),
            "cells": f"{report.computed} computed, {report.reused} from the store, "
            f"{len(report.failures)} failed"
            + (f"; {report.outdated} were there, of other code" if report.outdated else ""),
            "revisions": ", ".join(f"{name} ({count} cells)" for name, count in parts.items()),
            "where": self.where,
            "seconds": f"{report.seconds:,.1f}",
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
        known = study_record(self.study, self.data, self.tables)
        parts = self.report.revisions if len(self.report.revisions) > 1 else {}
        return [*written, write_record(folder, **known, revisions=parts)]
