"""`reproduction.json`: what ran, what became of it, and what it depended on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from condnum.errors import InvalidInputError
from condnum.files import write_json

RECORD = "reproduction.json"

#: Of the file: a reader refuses others.
FORMAT = 1

#: `reused`: an earlier run had the same parameters, data and code. `waiting`: asked for, and its turn has not
#: come or not ended. `not run`: never asked for here, or its data are missing.
Status = Literal["finished", "reused", "failed", "waiting", "not run"]


@dataclass(frozen=True)
class Fingerprint:
    """What a result depends on; equal fingerprints give equal results."""

    words: tuple[str, ...]  # the command without --out and --jobs
    data: Mapping[str, str]  # SHA-256 by data set
    code: str  # SHA-256 of the package, its notebook and the versions of what computes


@dataclass(frozen=True)
class ExperimentRecord:
    """One experiment of a reproduction."""

    name: str
    title: str
    summary: str
    kind: str
    command: str  # as it can be typed
    status: Status
    folder: str | None  # of a finished result, relative to the record; also of an older one after a failure
    error: str  # "" unless failed or not run
    seconds: float  # of the run that made the folder
    fingerprint: Fingerprint | None  # of the folder; None if there is none

    @property
    def ok(self) -> bool:
        """Whether the folder holds what was asked for."""
        return self.status in ("finished", "reused")


@dataclass(frozen=True)
class ReproductionRecord:
    """A reproduction: when, with what, and every experiment of its scale."""

    scale: str
    started_utc: str
    seconds: float
    source: Mapping[str, Any] | None  # git revision, dirty
    versions: Mapping[str, str]
    device: Mapping[str, Any]
    experiments: tuple[ExperimentRecord, ...]
    format: int = FORMAT

    def __getitem__(self, name: str) -> ExperimentRecord:
        """Return an experiment by name."""
        return next(record for record in self.experiments if record.name == name)

    def save(self, folder: Path) -> Path:
        """Write `reproduction.json` atomically.

        Args:
            folder: Of the reproduction.

        Returns:
            The file.

        Raises:
            OutputError: It cannot be written.
        """
        return write_json(folder / RECORD, asdict(self))


def read_record(folder: Path) -> ReproductionRecord | None:
    """Read the record of a reproduction.

    Args:
        folder: Of the reproduction.

    Returns:
        The record; None if there is no such file.

    Raises:
        InvalidInputError: The file is damaged or of another format.
    """
    path = folder / RECORD
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read ({error}); remove it to start anew.") from error
    try:
        value = json.loads(text)
        (FORMAT,).index(value["format"])  # refuses others
        rows = [_experiment(row) for row in value["experiments"]]
        known = {field.name for field in fields(ReproductionRecord)} - {"experiments"}
        return ReproductionRecord(**{name: value[name] for name in known}, experiments=tuple(rows))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            f"{path} is no record of this version of condnum ({type(error).__name__}: {error}); "
            "remove it to start anew; the finished folders beside it stay."
        ) from error


def _experiment(row: Mapping[str, Any]) -> ExperimentRecord:
    """Build an experiment's record from JSON."""
    get_args(Status).index(row["status"])  # refuses others
    mark = row["fingerprint"]
    if mark is not None:
        mark = Fingerprint(tuple(mark["words"]), dict(mark["data"]), str(mark["code"]))
    known = {field.name for field in fields(ExperimentRecord)} - {"fingerprint"}
    return ExperimentRecord(**{name: row[name] for name in known}, fingerprint=mark)
