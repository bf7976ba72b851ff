"""Two feature matrices as one pair of tasks: the columns that they share, and what to be wary of.

Lesson 5 and `condnum audit` both open, match, scale and check a reader's own data here, so that they say
the same of the same files.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import check_same_names, few_whole_numbers
from condnum.data.feature_rows import TaskRows, read_rows
from condnum.data.feature_stream import ARCHIVES, FeaturesLike, FeatureStream, as_stream
from condnum.data.task_pair import Float64Array
from condnum.errors import CondnumError, InvalidInputError, check_known

#: Names that answers usually have.
ANSWERS = frozenset(
    {"label", "labels", "target", "targets", "y", "class", "outcome", "response", "diagnosis"}
)


@dataclass(frozen=True, eq=False)
class FeaturePair:
    """Inputs of a pre-training and a harmful task over the same D columns."""

    pretrain: TaskRows
    harmful: TaskRows
    columns: pd.DataFrame  # a row per column: `column`, mean, deviation, smallest, largest of both, `look`
    notes: tuple[str, ...]  # what was done to the data, and what to be wary of, in sentences


def odd_columns(columns: pd.DataFrame) -> list[str]:
    """Return the names of the columns that look like an answer or an index: `drop` takes them out."""
    return [str(name) for name in columns["column"][columns["look"].str.startswith(("label", "index"))]]


#: What is said of rows that are left out.
MISSING = "missing entries"


def _words(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _some(names: Sequence[str] | pd.Series) -> str:
    return ", ".join(map(str, names[:5])) + (", …" if len(names) > 5 else "")


@contextmanager
def _at_fault(field: str) -> Generator[None]:
    """Name the setting that an error comes from."""
    try:
        yield
    except CondnumError as error:
        error.field = error.field or field
        raise


def open_pair(
    pretrain: FeaturesLike, harmful: FeaturesLike, *, key: str = "", drop: str = ""
) -> tuple[FeatureStream, FeatureStream, list[str]]:
    """Open two matrices, reading nothing but headers, and match them; `key` names one or two arrays."""
    keys: list[str | None] = [*_words(key)] or [None]
    if len(keys) > 2:
        raise InvalidInputError(f"key names {len(keys)} arrays ({key}); give one name, or one for each file.")
    if key and not any(str(features).lower().endswith(ARCHIVES) for features in (pretrain, harmful)):
        raise InvalidInputError(f"key {key} has no effect: neither task is in a file of several arrays.")
    with _at_fault("pretrain"):
        P = as_stream(pretrain, name="pretrain", key=keys[0])
    with _at_fault("harmful"):
        H = as_stream(harmful, name="harmful", key=keys[-1])
    return match_streams(P, H, drop=drop)


def match_streams(
    P: FeatureStream, H: FeatureStream, *, drop: str = ""
) -> tuple[FeatureStream, FeatureStream, list[str]]:
    """Bring two streams to the same columns, by name or else by position, with notes on what was done."""
    dropped, notes = _words(drop), [*P.notes, *H.notes]

    with _at_fault("drop"):
        for name in dropped:
            check_known("column to leave out (drop)", name, dict.fromkeys(P.columns + H.columns))
    with _at_fault("harmful"):  # the second file does not fit the first
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
    pretrain: FeatureStream,
    harmful: FeatureStream,
    notes: Sequence[str] = (),
    *,
    standardize: bool = False,
    y_benign: NDArray[Any] | None = None,
    y_harmful: NDArray[Any] | None = None,
    seed: int = 0,
) -> FeaturePair:
    """Read both matrices once: drop rows with gaps, list the columns, flag suspicious ones, sum K.

    Targets are labels `(N,)` or numbers `(N, m)` of all rows; those of D_H show which columns leak them.
    """
    said, read = list(notes), list[TaskRows]()
    for task, field, stream, y in (
        ("D_P", "pretrain", pretrain, y_benign),
        ("D_H", "harmful", harmful, y_harmful),
    ):
        with _at_fault(field):
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
    P, H = read
    answers = np.zeros(pretrain.dimension, dtype=bool)
    if y_harmful is not None:
        answers = _functions_of(y_harmful[H.places], H.drawn)
    table = pd.DataFrame({"column": list(pretrain.columns)})
    for field, found in (("pretrain", P), ("harmful", H)):
        for figure in ("mean", "deviation", "smallest", "largest"):
            table[f"{figure}_{field}"] = getattr(found, figure)
    table["look"] = _looks(pretrain.columns, P, H, answers)
    said += _warnings(table, y_harmful is not None)
    if standardize:
        said.append("Columns are standardized, each task with its own mean and standard deviation.")
    return FeaturePair(P, H, table, tuple(said))


def _looks(names: Sequence[str], P: TaskRows, H: TaskRows, answers: NDArray[np.bool_]) -> list[str]:
    """Say of every column what it looks like: nothing for a measurement."""
    both = np.concatenate([P.drawn, H.drawn])
    whole = (both == np.round(both)).all(axis=0)
    codes = np.array([few_whole_numbers(x) and np.ptp(x) == len(np.unique(x)) - 1 for x in both.T])
    codes &= len(both) >= 20
    rare = codes.sum() <= max(1, len(names) // 10) and 2 * whole.sum() <= len(names)
    found = []
    for i, name in enumerate(names):
        flat = [task for task, s in (("D_P", P), ("D_H", H)) if s.deviation[i] == 0]
        apart = P.largest[i] < H.smallest[i] or H.largest[i] < P.smallest[i]
        looks = {  # the first that holds
            "label: a function of the targets": answers[i],
            "constant": len(flat) == 2 and np.isclose(P.mean[i], H.mean[i], rtol=1e-12, atol=0),
            "index: consecutive integers over the rows": whole[i]
            and _runs(P.drawn[:, i])
            and _runs(H.drawn[:, i]),
            "label: by its name": name.strip().lower() in ANSWERS,
            "label: different integers in the two tasks": codes[i] and apart,
            f"constant in {' and '.join(flat)}": flat,
            "label: a few distinct integers among measurements": codes[i] and rare,
        }
        found.append(next((look for look, holds in looks.items() if holds), ""))
    return found


def _runs(values: Float64Array) -> bool:
    """Tell whether whole numbers are an index: all different, and sorted or without a hole."""
    if len(values) < 10 or len(np.unique(values)) < len(values):
        return False
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all() or values.max() - values.min() == len(values) - 1)


def _functions_of(targets: NDArray[Any], X: Float64Array) -> NDArray[np.bool_]:
    """Tell for each column whether the targets give it exactly, up to an affine map of numbers."""
    if targets.ndim == 1:
        targets = targets[:, None] == np.unique(targets)
    A = np.column_stack([np.ones(len(targets)), targets])
    Q, s, _ = np.linalg.svd(A, full_matrices=False)
    Q = Q[:, s > 1e-10 * s[0]]
    centred = X - X.mean(axis=0)
    total = (centred**2).sum(axis=0)
    left = ((centred - Q @ (Q.T @ centred)) ** 2).sum(axis=0)
    # A fit with as many parameters as rows says nothing; seven digits, squared, as files are rounded.
    return (left <= 1e-14 * total) & (total > 0) & (len(X) > 2 * Q.shape[1])


def _warnings(table: pd.DataFrame, targets: bool) -> list[str]:
    """Say what is suspicious about columns, and what to do about it."""
    notes = []
    given = "an answer must not be a feature"
    if targets:
        given = "targets are given as well, so the answer may be among the features"
    for kind in ("label", "index"):
        odd = table[table["look"].str.startswith(kind)]
        if len(odd):
            why = odd["look"].iloc[0].removeprefix("label: ")
            says = {
                "label": f"the answer ({_some(odd['column'])}: {why}); {given}",
                "index": f"an index of the rows ({_some(odd['column'])}): its scale only distorts κ",
            }[kind]
            drop = ",".join(odd["column"][:5])
            notes.append(f"{len(odd)} column(s) look like {says}. Drop the columns that are: drop={drop}.")
    for task, label in (("pretrain", "D_P"), ("harmful", "D_H")):
        constant = table[table[f"deviation_{task}"] == 0]
        zero = constant[f"largest_{task}"] == 0
        if zero.any():
            notes.append(
                f"{label} has {zero.sum()} column(s) of zeros ({_some(constant['column'][zero])}): each "
                "lowers the rank."
            )
        if len(flat := constant[~zero]):
            notes.append(
                f"{label} has {len(flat)} constant column(s) ({_some(flat['column'])}): K is not centered, "
                "so each acts as an intercept; standardizing turns it into zeros, which lowers the rank."
            )
    return notes
