"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.audit.measures import FRONT, LABELS, OPTIMAL, RAW, Extractors
from condnum.data.feature_stream import (
    FeatureStream,
    all_numbers,
    first_line,
    mapped_array,
    readable,
    whole_array,
)
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError, require
from condnum.probing.attackers import AttackBudget
from condnum.probing.panel import attack_panel
from condnum.probing.report import AttackReport, attack_sentences
from condnum.probing.tasks import AttackTask

Kind = Literal["auto", "regression", "classification"]
KINDS: tuple[Kind, ...] = ("auto", "regression", "classification")

#: Whole numbers with at most so many different values are taken for labels.
MOST_CLASSES = 100

#: Largest array of targets that is read.
MAX_BYTES = 256 << 20

TargetsLike = str | os.PathLike[str] | NDArray[Any]


def read_targets(value: TargetsLike, *, kind: Kind = "auto", name: str = "targets") -> NDArray[Any]:
    """Read targets; labels are numbered from 0 in sorted order.

    Examples:
        >>> read_targets(np.array(["cat", "dog", "cat"]))
        array([0, 1, 0])
        >>> read_targets(np.array([0.5, 1.5])).shape
        (2, 1)
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of targets", kind, KINDS)
    Y = _loaded(Path(value).expanduser()) if isinstance(value, str | os.PathLike) else np.asarray(value)
    if Y.ndim == 2 and Y.shape[1] == 1:
        Y = Y[:, 0]
    if Y.ndim not in (1, 2) or not Y.size:
        raise InvalidInputError(f"{name} must be (N,) or (N, m), one for each row, got shape {Y.shape}.")
    if Y.dtype.kind == "O":
        Y = _words(Y, name)
    labels = Y.dtype.kind in "USb"
    if Y.dtype.kind in "fiu" and Y.ndim == 1 and np.isfinite(Y).all() and (np.round(Y) == Y).all():
        labels = len(np.unique(Y)) <= min(MOST_CLASSES, max(2, len(Y) // 5))
    if kind == "classification" or (kind == "auto" and labels):
        if Y.ndim != 1:
            raise InvalidInputError(f"{name} of a classification must be (N,) labels, got shape {Y.shape}.")
        return np.asarray(np.unique(Y, return_inverse=True)[1], dtype=np.int64)
    if Y.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} holds {Y.dtype}, no numbers; a regression needs numbers.")
    with np.errstate(all="ignore"):  # what does not fit becomes infinite, and is refused below
        Y = Y.astype(np.float64).reshape(len(Y), -1)
    if not np.isfinite(Y).all():
        first = int(np.flatnonzero(~np.isfinite(Y).all(axis=1))[0])
        raise InvalidInputError(
            f"{name} has NaN or infinite values, the first in row {first}; drop such rows."
        )
    return Y


def _words(Y: NDArray[Any], name: str) -> NDArray[Any]:
    """Return objects of a table as words, or as numbers where they are none; refuse empty cells and lists."""
    for row, value in enumerate(Y.reshape(-1)):
        if not isinstance(value, str | bool | int | float | np.generic | Decimal) or value != value:
            raise InvalidInputError(
                f"{name} has {type(value).__name__} {str(value)[:40]!r} among its values (number {row}); "
                "a label is a word or a number, one for each row: fill or drop empty cells."
            )
    if any(isinstance(value, str) for value in Y.reshape(-1)):
        return Y.astype(str)
    return Y.astype(np.float64)


def one_hot(targets: NDArray[Any]) -> NDArray[np.float64]:
    """Return labels as one column a class, the targets of a least-squares probe; numbers as they are."""
    if targets.dtype.kind == "f":
        return np.asarray(targets, dtype=np.float64)
    return np.eye(int(targets.max()) + 1)[targets]


def _loaded(path: Path) -> NDArray[Any]:
    """Read a file of numbers or words."""
    ending, advice = path.suffix.lower(), "targets are one or a few numbers for each row, or short words."
    with readable(path):
        if path.stat().st_size > MAX_BYTES:
            raise DataFormatError(f"{path} has {path.stat().st_size / 2**20:,.0f} MiB; {advice}")
        if ending == ".npz":
            return whole_array(path, None, MAX_BYTES, advice, kinds="fiubSU")
        if ending == ".npy":
            array = mapped_array(path)
            if array.dtype.kind not in "fiubSU" or not array.dtype.itemsize:
                raise DataFormatError(f"{path} holds an array of type {array.dtype}; {advice}")
            return np.array(array)
        if ending == ".csv":
            header = None if all_numbers(first_line(path)) else 0
            return pd.read_csv(path, header=header, encoding="utf-8-sig").to_numpy()
        if ending == ".parquet":
            require("pyarrow", "notebooks")
            return pd.read_parquet(path).to_numpy()
    raise DataFormatError(f"{path} ends in '{ending}'; targets come as .npy, .npz, .csv or .parquet.")


#: Rows that attackers train on at most: each of them runs many times over them.
PANEL_ROWS = 2_000
#: Share of the sampled rows that attackers do not see, on which their accuracy is measured.
HELD_OUT = 0.2
#: Fewest rows of a task of which some are held out.
LEAST_ROWS = 20
#: Ends the seed of the sample of rows, see `moments.LABELS`.
SAMPLE = 79
#: What each attacker may spend in an audit, a tenth of what the panel allows by itself.
PANEL_BUDGET = AttackBudget(steps=5_000, dense_steps=500)


@dataclass(frozen=True, eq=False)
class AttackSection:
    """What the panel found, or why there is none."""

    report: AttackReport | None
    reason: str  # why there is no report; empty if there is one
    rows: int = 0  # rows the attackers trained on
    held_out: int = 0  # rows on which they were measured
    of_rows: int = 0  # rows there are

    @property
    def sentences(self) -> list[str]:
        """What the numbers say, or why there are none."""
        if self.report is None:
            return [f"Attackers were not run: {self.reason}."]
        sample = ", a random sample without replacement" * (self.rows + self.held_out < self.of_rows)
        others = f", and their loss and accuracy were measured on {self.held_out:,d} others"
        held = others * bool(self.held_out)
        said = f"Attackers trained on {self.rows:,d} of {self.of_rows:,d} rows of D_H{sample}{held}."
        return [said, *attack_sentences(self.report.renamed(LABELS | {RAW: "the raw input"}))]


def attack_section(
    stream: FeatureStream,
    rows: int,
    targets: NDArray[Any] | None,
    extractors: Extractors,
    *,
    kind: Kind = "auto",
    attackers: bool = True,
    limit: int = PANEL_ROWS,
    budget: AttackBudget | None = None,
    seed: int = 0,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackSection:
    """Run the attack panel on a sample of rows; without targets, say so.

    Labels are learned by least squares, one column a class, unless `kind` asks for a classification: κ of
    θᵀKθ is that of the squared loss, and logistic attackers take minutes instead of seconds. θ* is attacked
    only where no other extractor was given.
    """
    if not attackers:
        return AttackSection(None, "the panel was switched off")
    if targets is None:
        return AttackSection(
            None, "no targets of the harmful task were given (--targets), and every attacker learns targets"
        )
    generator = np.random.default_rng([seed, SAMPLE])
    size = min(rows, round(limit / (1 - HELD_OUT)))
    held_out = min(size - 2, round(size * HELD_OUT)) if size >= LEAST_ROWS else 0
    drawn = generator.choice(rows, size=size, replace=False)
    chosen = np.sort(drawn)
    test = np.isin(chosen, drawn[:held_out])
    if targets.dtype.kind == "i":  # what no attacker has seen cannot be asked of one
        known = np.isin(targets[chosen], targets[chosen[~test]])
        chosen, test = chosen[known], test[known]
        held_out = int(test.sum())
    X, y = sampled_rows(stream, chosen), targets[chosen]
    if y.dtype.kind == "i":
        y = np.unique(y, return_inverse=True)[1].astype(np.int64)
        if y[~test].max() == y[~test].min():
            return AttackSection(None, "all targets are one class, so that there is nothing to learn")
    logistic = kind == "classification"
    Y = y if logistic else one_hot(y)
    task = AttackTask(
        X[~test],
        Y[~test],
        "classification" if logistic else "regression",
        X[test] if held_out else None,
        Y[test] if held_out else None,
        name=f"{Path(stream.source).name}, {len(X) - held_out:,d} rows",
    )
    own = {name: theta for name, theta in extractors.items() if name not in (RAW, OPTIMAL, FRONT)}
    chosen_extractors = own or {OPTIMAL: extractors[OPTIMAL]}
    spend = replace(PANEL_BUDGET, seed=seed) if budget is None else budget
    with np.errstate(over="ignore", invalid="ignore"):  # candidates that diverge are part of the race
        report = attack_panel({RAW: None, **chosen_extractors}, task, budget=spend, on_attack=on_attack)
    return AttackSection(report, "", len(X) - held_out, held_out, rows)


def sampled_rows(stream: FeatureStream, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Read some rows of a stream."""
    parts, seen = [], 0
    for block in stream.blocks():
        here = chosen[(chosen >= seen) & (chosen < seen + len(block))] - seen
        parts.append(block[here].astype(np.float64))
        seen += len(block)
    return np.concatenate(parts)
