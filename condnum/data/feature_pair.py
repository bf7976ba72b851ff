"""Two feature matrices as one pair of tasks: the columns that they share, matched and scaled.

Lesson 5 and `condnum audit` both open a reader's own data here, so that they say the same of the same files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import check_same_names
from condnum.data.feature_rows import TaskRows, read_rows
from condnum.data.files import FeaturesLike, FeatureStream, as_stream
from condnum.errors import InvalidInputError, check_known


@dataclass(frozen=True, eq=False)
class FeaturePair:
    """Inputs of a pre-training and a harmful task over the same D columns."""

    benign: TaskRows
    harmful: TaskRows
    notes: tuple[str, ...]  # what was done to the data, in sentences


#: What is said of rows that are left out.
MISSING = "missing entries"


def _words(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def open_pair(
    benign: FeaturesLike, harmful: FeaturesLike, *, drop: str = ""
) -> tuple[FeatureStream, FeatureStream, list[str]]:
    """Open two matrices, reading nothing but headers, and match them."""
    P, H = as_stream(benign, name="benign"), as_stream(harmful, name="harmful")
    return match_streams(P, H, drop=drop)


def match_streams(
    P: FeatureStream, H: FeatureStream, *, drop: str = ""
) -> tuple[FeatureStream, FeatureStream, list[str]]:
    """Bring two streams to the same columns, by name or else by position, with notes on what was done."""
    dropped, notes = _words(drop), [*P.notes, *H.notes]

    for name in dropped:
        check_known("column to leave out (drop)", name, dict.fromkeys(P.columns + H.columns))
    first, second = ([name for name in stream.columns if name not in dropped] for stream in (P, H))
    if not (first and second):
        raise InvalidInputError(f"drop={drop} leaves no column; drop fewer of them.")
    if P.named and H.named:
        check_same_names(P.source, first, H.source, second)
        second = first
    elif len(first) != len(second):
        raise InvalidInputError(
            f"{P.source} has {len(first)} columns and {H.source} has {len(second)}: both tasks share "
            "one feature space. Give both the same columns, or use files with column names (csv, "
            "parquet), so that columns can be matched."
        )
    elif P.named != H.named:
        notes.append("Only one file names its columns; they are matched by position.")
    return P.select(first), H.select(second), list(dict.fromkeys(notes))


def look_at(
    benign: FeatureStream,
    harmful: FeatureStream,
    notes: Sequence[str] = (),
    *,
    standardize: bool = False,
    y_benign: NDArray[Any] | None = None,
    y_harmful: NDArray[Any] | None = None,
    seed: int = 0,
) -> FeaturePair:
    """Read both matrices once: drop rows with gaps, sum K.

    Targets are labels `(N,)` or numbers `(N, m)` of all rows.
    """
    said, read = list(notes), list[TaskRows]()
    for task, stream, y in (("D_P", benign, y_benign), ("D_H", harmful, y_harmful)):
        found = read_rows(stream, targets=y, standardize=standardize, seed=seed)
        read.append(found)
        total, rows, D = len(found.complete), found.rows, stream.dimension
        if rows < total:
            worst = [i for i in np.argsort(-found.gaps)[:3] if found.gaps[i]]
            where = ", ".join(f"{stream.columns[i]}: {found.gaps[i]:,d}" for i in worst)
            verb = ("has", "is") if total - rows == 1 else ("have", "are")
            said.append(
                f"{task}: {total - rows:,d} of {total:,d} rows {verb[0]} {MISSING} and {verb[1]} left out "
                f"({where})."
            )
        if rows < D:
            said.append(
                f"{task} has fewer rows than columns ({rows:,d} < {D:,d}): its rank is at most {rows:,d}, "
                "and κ describes this sample, not the task."
            )
        flat = [stream.columns[i] for i in np.flatnonzero(found.deviation == 0)]
        if flat:
            named = ", ".join(flat[:5]) + ", …" * (len(flat) > 5)
            said.append(f"{task} has {len(flat)} constant column(s) ({named}).")
    if standardize:
        said.append("Columns are standardized, each task with its own mean and standard deviation.")
    P, H = read
    return FeaturePair(P, H, tuple(said))
