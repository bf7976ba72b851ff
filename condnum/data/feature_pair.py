"""Two feature tables as one pair of tasks: the columns that they share, and what to be wary of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from condnum.data.feature_table import FeatureTable, select_columns
from condnum.data.task_arrays import FloatArray, read_only
from condnum.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class FeaturePair:
    """Inputs of a pre-training and a harmful task over the same D columns, all finite."""

    X_P: FloatArray  # (N_P, D), read-only
    X_H: FloatArray  # (N_H, D), read-only
    columns: tuple[str, ...]  # D names
    stored_eps: float  # machine epsilon of the coarser of the two stored types
    warnings: tuple[str, ...]  # plain sentences about the data; empty if there is nothing to say

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return len(self.columns)


def match_tables(pretrain: FeatureTable, harmful: FeatureTable) -> FeaturePair:
    """Bring two tables to the same columns and drop incomplete rows, and say what was done.

    Columns are matched by name when both files name them, else by position. Nothing is scaled or
    imputed.

    Args:
        pretrain: Inputs of the pre-training task.
        harmful: Inputs of the harmful task.

    Returns:
        The pair, with a warning for each of: columns left out, columns matched by position, rows with
        missing entries, constant columns, fewer rows than columns.

    Raises:
        InvalidInputError: No column in common, different numbers of unnamed columns, a column name
            that occurs twice, or fewer than two complete rows.

    Examples:
        >>> def table(rows, names):
        ...     return FeatureTable(np.array(rows), names, True, 2.0**-52, "memory")
        >>> P = table([[1.0, 2.0], [3.0, np.nan], [5.0, 7.0]], ("a", "b"))
        >>> H = table([[1.0, 0.0], [4.0, 1.0], [9.0, 1.0]], ("b", "a"))
        >>> pair = match_tables(P, H)
        >>> pair.X_P.tolist(), pair.X_H[0].tolist()
        ([[1.0, 2.0], [5.0, 7.0]], [0.0, 1.0])
        >>> pair.warnings
        ('X_P: 1 of 3 rows has missing entries and is left out.',)
    """
    P, H, warnings = _common_columns(pretrain, harmful)
    inputs = {}
    for name, table in (("X_P", P), ("X_H", H)):
        X = _complete_rows(table, name, warnings)
        _note_constants(X, table.columns, name, warnings)
        if len(X) < table.dimension:
            warnings.append(
                f"{name} has fewer rows than columns (N = {len(X)} < D = {table.dimension}): its rank is at "
                "most N, and κ is that of this sample, not of the task."
            )
        inputs[name] = read_only(X, name)
    eps = max(P.stored_eps, H.stored_eps)
    return FeaturePair(inputs["X_P"], inputs["X_H"], P.columns, eps, tuple(warnings))


def _common_columns(P: FeatureTable, H: FeatureTable) -> tuple[FeatureTable, FeatureTable, list[str]]:
    """Return both tables over the same columns, and what had to be done for it."""
    if not (P.named and H.named):
        if P.dimension != H.dimension:
            raise InvalidInputError(
                f"X_P has {P.dimension} columns and X_H has {H.dimension}: both tasks share one feature "
                "space. Give both the same columns, or name them (csv, parquet) so that they can be matched."
            )
        mixed = P.named != H.named
        note = ["Only one file names its columns; they are matched by position."] if mixed else []
        return P, H, note
    for name, table in (("X_P", P), ("X_H", H)):
        if len(set(table.columns)) < table.dimension:
            twice = next(c for c in table.columns if table.columns.count(c) > 1)
            raise InvalidInputError(f"{name} has the column '{twice}' twice; rename or drop one.")
    shared = [c for c in P.columns if c in set(H.columns)]
    if not shared:
        raise InvalidInputError(
            f"X_P and X_H have no column in common (X_P starts with '{P.columns[0]}', X_H with "
            f"'{H.columns[0]}'); is one of the files without a line of names?"
        )
    warnings = []
    for name, table in (("X_P", P), ("X_H", H)):
        alone = [c for c in table.columns if c not in set(shared)]
        if alone:
            shown = ", ".join(alone[:5]) + (", …" if len(alone) > 5 else "")
            warnings.append(f"Different columns: {len(alone)} that only {name} has left out ({shown}).")
    return select_columns(P, shared), select_columns(H, shared), warnings


def _complete_rows(table: FeatureTable, name: str, warnings: list[str]) -> FloatArray:
    """Return the rows without NaN."""
    complete = ~np.isnan(table.features).any(axis=1)
    kept = int(complete.sum())
    if kept < 2:
        raise InvalidInputError(
            f"{name} has {kept} row(s) without missing entries, out of {table.rows}; at least 2 are needed: "
            "impute, or leave out the columns that are mostly empty."
        )
    if kept < table.rows:
        lost = table.rows - kept
        verb = "has missing entries and is" if lost == 1 else "have missing entries and are"
        rows = "rows" if table.rows > 1 else "row"
        warnings.append(f"{name}: {lost} of {table.rows} {rows} {verb} left out.")
    return table.features[complete]


def _note_constants(X: FloatArray, columns: tuple[str, ...], name: str, warnings: list[str]) -> None:
    """Name the columns that never vary: they lower the rank, or stand for an intercept."""
    constant = [c for c, same in zip(columns, (X[:1] == X).all(axis=0), strict=True) if same]
    if constant:
        shown = ", ".join(constant[:5]) + (", …" if len(constant) > 5 else "")
        warnings.append(
            f"{name}: {len(constant)} constant column(s) ({shown}). K is not centred: a column of zeros "
            "lowers the rank, any other constant acts as an intercept, and standardising turns it into zeros."
        )
