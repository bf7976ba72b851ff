"""The pair of feature matrices that notebook 5 looks at: two files, or an embedded example."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from condnum.data.digits import digit_pair
from condnum.data.embedded import load_diabetes_tasks, load_small_digits
from condnum.data.feature_pair import FeaturePair, match_tables
from condnum.data.feature_table import FeatureTable, read_feature_table
from condnum.errors import InvalidInputError, UnknownNameError

Example = Literal["diabetes", "digits"]
EXAMPLES: tuple[Example, ...] = ("diabetes", "digits")


def own_pair(pretrain: str, harmful: str, example: Example) -> tuple[str, FeaturePair]:
    """Return the pair of two files, or the example; each version of a file is read once.

    Args:
        pretrain: Path of X_P, see `read_feature_table`; empty together with `harmful`: the example.
        harmful: Path of X_H.
        example: `diabetes` or `digits`.

    Returns:
        A title, and the matched pair.

    Raises:
        InvalidInputError: One path only, or tables that do not fit.
        DataNotFoundError: A file is missing.
        DataFormatError: A file is not a table of features.
        UnknownNameError: No such example.

    Examples:
        >>> own_pair("", "", "digits")[1].X_P.shape
        (179, 64)
    """
    if example not in EXAMPLES:
        raise UnknownNameError("example", example, EXAMPLES)
    if not pretrain and not harmful:
        return _example(example)
    if not pretrain or not harmful:
        missing, given = ("X_P", "X_H") if not pretrain else ("X_H", "X_P")
        raise InvalidInputError(
            f"{given} is there, {missing} is still missing: give both, or neither for the example."
        )
    P, H = Path(pretrain), Path(harmful)
    return f"{P.name} and {H.name}", _files(pretrain, _stamp(P), harmful, _stamp(H))


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written again; a missing one is the reader's to report."""
    try:
        status = path.expanduser().stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _files(pretrain: str, _p: tuple[int, int], harmful: str, _h: tuple[int, int]) -> FeaturePair:
    """Read two files, once for each version of them."""
    return match_tables(read_feature_table(pretrain), read_feature_table(harmful))


@lru_cache(maxsize=2)
def _example(name: Example) -> tuple[str, FeaturePair]:
    """Return an embedded pair as a reader's files would be."""
    if name == "diabetes":
        task = load_diabetes_tasks()
        title = "Example: diabetes patients in two groups"
    else:
        task = digit_pair(load_small_digits(), 4, 7)
        title = "Example: the digits 4 and 7 in 8×8 pixels"
    eps = float(np.finfo(np.float64).eps)
    P, H = (FeatureTable(X, task.feature_names, True, eps, task.name) for X in (task.X_P, task.X_H))
    return title, match_tables(P, H)
