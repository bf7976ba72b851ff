"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.audit.extractors import FRONT, LABELS, OPTIMAL, RAW
from condnum.audit.hessian_spectra import Extractors
from condnum.audit.targets import Kind, one_hot
from condnum.data.feature_stream import FeatureStream
from condnum.probing.attackers import AttackBudget, AttackReport, AttackTask, attack_panel, attack_sentences

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
        sample = ", a random sample without replacement" if self.rows + self.held_out < self.of_rows else ""
        held = f", and their loss and accuracy were measured on {self.held_out:,d} others" * bool(
            self.held_out
        )
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
    """Read some rows of a stream.

    Examples:
        >>> from condnum.data.feature_stream import array_stream
        >>> sampled_rows(array_stream(np.arange(6.0).reshape(3, 2)), np.array([0, 2]))
        array([[0., 1.],
               [4., 5.]])
    """
    parts, seen = [], 0
    for block in stream.blocks():
        here = chosen[(chosen >= seen) & (chosen < seen + len(block))] - seen
        parts.append(block[here].astype(np.float64))
        seen += len(block)
    return np.concatenate(parts)
