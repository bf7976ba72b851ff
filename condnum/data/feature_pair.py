"""Two feature matrices as one pair of tasks: the columns that they share, and what to be wary of.

Lesson 5 and `condnum audit` both open, match, scale and check a reader's own data here, so that they say
the same of the same files.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import check_same_names, few_whole_numbers
from condnum.data.feature_files import ARCHIVES
from condnum.data.feature_stream import FeaturesLike, FeatureStream, as_stream
from condnum.data.task_pair import Float64Array, constant_columns
from condnum.errors import CondnumError, DataFormatError, InvalidInputError, check_known

#: Rows at the beginning of a file by which labels and indices are recognized.
_LOOK = 10_000
#: Names that answers usually have.
ANSWERS = frozenset(
    {"label", "labels", "target", "targets", "y", "class", "outcome", "response", "diagnosis"}
)
#: Rows that are looked at in one go: a few MiB, whatever a block holds.
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Survey:
    """What one look at all rows says about a task's columns; all but `complete` over complete rows."""

    complete: NDArray[np.bool_]  # (all rows of the file,) those without gaps
    gaps: NDArray[np.int64]  # (D,) missing entries
    mean: Float64Array  # (D,)
    deviation: Float64Array  # (D,) of the population; exactly 0 for a constant column
    smallest: Float64Array  # (D,)
    largest: Float64Array  # (D,)
    head: Float64Array  # (at most _LOOK, D) the first rows


@dataclass(frozen=True, eq=False)
class FeaturePair:
    """Inputs of a pre-training and a harmful task over the same D columns."""

    pretrain: FeatureStream  # X_P, complete rows, standardized if that was asked for
    harmful: FeatureStream  # X_H
    surveys: tuple[Survey, Survey]  # of both as they are in the files
    columns: pd.DataFrame  # a row a column: `column`, mean, deviation, smallest and largest of both, `look`
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

    def names(name: str) -> tuple[str, str]:
        return name, re.sub(r"\[\d+\]$", "", name)  # of a column of vectors: that of the column as well

    with _at_fault("drop"):
        known = dict.fromkeys(of for name in P.columns + H.columns for of in names(name))
        for name in dropped:
            check_known("column to leave out (drop)", name, known)
    with _at_fault("harmful"):  # the second file does not fit the first
        first, second = (
            [name for name in stream.columns if not set(names(name)) & set(dropped)] for stream in (P, H)
        )
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
    targets: NDArray[Any] | None = None,
) -> FeaturePair:
    """Read both matrices once: leave out rows with gaps, list the columns, flag suspicious ones, standardize.

    `targets`, `(N,)` labels or `(N, m)` numbers of all harmful rows, show which columns leak them.
    """
    said, surveys, streams = list(notes), [], [pretrain, harmful]
    for task, field, stream in zip(("D_P", "D_H"), ("pretrain", "harmful"), streams, strict=True):
        with _at_fault(field):
            survey = _survey(stream)
        surveys.append(survey)
        total, rows, D = len(survey.complete), int(survey.complete.sum()), stream.dimension
        if rows < total:
            worst = [i for i in np.argsort(-survey.gaps)[:3] if survey.gaps[i]]
            where = ", ".join(f"{stream.columns[i]}: {survey.gaps[i]:,d}" for i in worst)
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
    P, H = surveys
    answers = np.zeros(pretrain.dimension, dtype=bool)
    if targets is not None:
        answers = _functions_of(complete_targets(targets, H, harmful, notes)[: len(H.head)], H.head)
    table = pd.DataFrame({"column": list(pretrain.columns)})
    for field, survey in (("pretrain", P), ("harmful", H)):
        for figure in ("mean", "deviation", "smallest", "largest"):
            table[f"{figure}_{field}"] = getattr(survey, figure)
    table["look"] = _looks(pretrain.columns, P, H, answers)
    said += _warnings(table, targets is not None)
    if standardize:
        streams = [
            replace(stream, centre=survey.mean, scale=survey.deviation)
            for stream, survey in zip(streams, surveys, strict=True)
        ]
        said.append("Columns are standardized, each task with its own mean and standard deviation.")
    return FeaturePair(streams[0], streams[1], (P, H), table, tuple(said))


def complete_targets(
    targets: NDArray[Any], survey: Survey, stream: FeatureStream, notes: Sequence[str] = ()
) -> NDArray[Any]:
    """Return the targets of the rows that are kept."""
    if len(targets) != len(survey.complete):
        raise InvalidInputError(
            f"{stream.source} has {len(survey.complete):,d} rows, but there are {len(targets):,d} targets; "
            f"give one target for each row, in the same order.{''.join(f' {note}' for note in notes)}"
        )
    return targets[survey.complete]


def _survey(stream: FeatureStream) -> Survey:
    """Read all rows once; scikit-learn's means and deviations do not cancel."""
    from sklearn.preprocessing import StandardScaler

    D, masks, heads = stream.dimension, list[NDArray[np.bool_]](), list[Float64Array]()
    moments, gaps = StandardScaler(), np.zeros(D, dtype=np.int64)
    smallest, largest, rows, total = np.full(D, np.inf), np.full(D, -np.inf), 0, 0
    chunks = (block[at : at + _CHUNK] for block in stream.raw_blocks() for at in range(0, len(block), _CHUNK))
    for chunk in chunks:
        with np.errstate(all="ignore"):  # what float64 cannot hold becomes infinite, which is refused
            whole = np.asarray(chunk, dtype=np.float64)
        missing = np.isnan(whole)
        masks.append(np.asarray(~missing.any(axis=1), dtype=np.bool_))
        total += len(whole)
        X = whole
        if not masks[-1].all():
            gaps += missing.sum(axis=0)
            X = whole[masks[-1]]
        if not len(X):
            continue
        smallest, largest = np.minimum(smallest, X.min(axis=0)), np.maximum(largest, X.max(axis=0))
        if not (np.isfinite(smallest).all() and np.isfinite(largest).all()):
            row, column = np.argwhere(np.isinf(whole))[0]
            raise DataFormatError(
                f"{stream.source} holds infinite values, the first in data row "
                f"{total - len(whole) + row + 1:,d}, column '{stream.columns[column]}'; "
                "replace them, or drop these rows."
            )
        heads.append(X[: max(0, _LOOK - rows)])
        rows += len(X)
        with np.errstate(all="ignore"):  # squares beyond float64 are refused below
            moments.partial_fit(X)
    if rows < 2:
        empty = [f"'{stream.columns[i]}'" for i in np.argsort(-gaps)[:5] if 2 * gaps[i] > total]
        where = f" (mostly empty: {', '.join(empty)})" if empty else ""
        raise InvalidInputError(
            f"{stream.source} has {rows} row(s) without missing entries, out of {total:,d}; at least 2 are "
            f"needed: impute them, or drop the columns that are mostly empty{where}."
        )
    if not np.isfinite(moments.var_).all():
        large = stream.columns[int(np.argmin(np.isfinite(moments.var_)))]
        raise DataFormatError(
            f"{stream.source} holds numbers so large that their squares overflow float64 (above 1e154), in "
            f"column '{large}' for example; rescale or drop such columns."
        )
    deviation = np.where(constant_columns(moments), 0.0, moments.scale_)
    return Survey(
        np.concatenate(masks), gaps, moments.mean_, deviation, smallest, largest, np.concatenate(heads)
    )


def _looks(names: Sequence[str], P: Survey, H: Survey, answers: NDArray[np.bool_]) -> list[str]:
    """Say of every column what it looks like: nothing for a measurement."""
    both = np.concatenate([P.head, H.head])
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
            and _runs(P.head[:, i])
            and _runs(H.head[:, i]),
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
        flat = table[table[f"deviation_{task}"] == 0]
        if len(flat):
            notes.append(
                f"{label} has {len(flat)} constant column(s) ({_some(flat['column'])}): K is not centered, "
                "so each acts as an intercept; standardizing turns it into zeros, which lowers the rank."
            )
    return notes
