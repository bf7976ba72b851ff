"""The pair of feature matrices that lesson 5 looks at: two files, or an embedded example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from condnum.data.digits import digit_pair
from condnum.data.embedded import load_diabetes_tasks, load_small_digits
from condnum.data.feature_pair import FeaturePair, look_at, match_streams, open_pair
from condnum.data.feature_stream import FeatureStream, array_stream
from condnum.data.task_arrays import FloatArray
from condnum.errors import InvalidInputError, UnknownNameError

Example = Literal["diabetes", "digits"]
EXAMPLES: tuple[Example, ...] = ("diabetes", "digits")
#: Widest features that lesson 5 takes: each eigendecomposition takes seconds from there on.
MAX_DIMENSION = 2048


@dataclass(frozen=True, eq=False)
class OwnPair:
    """A pair in memory."""

    title: str
    pair: FeaturePair
    X_P: FloatArray  # (N_P, D), complete rows, standardised if that was asked for
    X_H: FloatArray  # (N_H, D)


def own_pair(
    pretrain: str, harmful: str, example: Example, *, key: str = "", drop: str = "", standardise: bool = False
) -> OwnPair:
    """Return the pair of two files, or the example; each version of a file is read once.

    Examples:
        >>> own_pair("", "", "digits").X_P.shape
        (179, 64)
    """
    if example not in EXAMPLES:
        raise UnknownNameError("example", example, EXAMPLES)
    if bool(pretrain) != bool(harmful):
        missing, given, field = ("X_P", "X_H", "pretrain") if not pretrain else ("X_H", "X_P", "harmful")
        error = InvalidInputError(
            f"{given} is there, {missing} is still missing: give both, or neither for the example."
        )
        error.field = field
        raise error
    stamps = tuple(_stamp(path) for path in (pretrain, harmful))
    return _looked_at(pretrain, harmful, stamps, example, key, drop, standardise)


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes when a file is written again; a missing one is the reader's to report."""
    try:
        status = Path(path).expanduser().stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _looked_at(
    pretrain: str, harmful: str, _: object, example: Example, key: str, drop: str, standardise: bool
) -> OwnPair:
    """Read two files, once for each version of them."""
    if pretrain:
        title = f"{Path(pretrain).name} and {Path(harmful).name}"
        P, H, notes = open_pair(pretrain, harmful, key=key, drop=drop, max_dimension=MAX_DIMENSION)
    else:
        title, *streams = _example(example)
        P, H, notes = match_streams(streams[0], streams[1], drop=drop)
    pair = look_at(P, H, notes, standardise=standardise)
    title = f"{title}, standardised" if standardise else title
    return OwnPair(title, pair, pair.pretrain.array(), pair.harmful.array())


def _example(name: Example) -> tuple[str, FeatureStream, FeatureStream]:
    """Return an embedded pair as a reader's files would be."""
    if name == "diabetes":
        task = load_diabetes_tasks()
        title = "Example: diabetes patients in two groups"
    else:
        task = digit_pair(load_small_digits(), 4, 7)
        title = "Example: the digits 4 and 7 in 8×8 pixels"
    P, H = (array_stream(X, name=task.name, columns=task.feature_names) for X in (task.X_P, task.X_H))
    return title, P, H
