"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import TargetKind, as_targets
from condnum.audit.measures import AS_IS, CLOSED, ERASED, LABEL_OF, PARETO, Extractors
from condnum.data.feature_stream import FeatureStream, as_stream
from condnum.errors import InvalidInputError
from condnum.probing.panel import attack_panel
from condnum.probing.race import AttackBudget
from condnum.probing.report import AttackReport, attack_sentences
from condnum.theory.erasure import erasure

#: Targets of any kind (array, tensor, series, sparse), where to find some, or a stream of them.
TargetsLike = Any


def read_targets(value: TargetsLike, *, kind: TargetKind = "auto", name: str = "targets") -> NDArray[Any]:
    """Read targets: labels, numbered from 0 in ascending order, or numbers `(N, m)`; see `as_targets`."""
    return as_targets(as_stream(value, name=name, vector=True).targets(), name, kind)[0]


def one_hot(targets: NDArray[Any]) -> NDArray[np.float64]:
    """Return labels as one column a class, the targets of a least-squares probe; numbers as they are."""
    return targets if targets.dtype.kind == "f" else np.eye(int(targets.max()) + 1)[targets]


#: Rows that attackers train on at most: each of them runs many times over them.
PANEL_ROWS = 2_000
#: Fraction of the sampled rows that attackers do not see, on which their accuracy is measured.
HELD_OUT_FRACTION = 0.2
#: Fewest rows of a task of which some are held out.
LEAST_ROWS = 20
#: Ends the seed of the sample of rows, see `moments._GROUPS_SEED`.
_SAMPLE_SEED = 79
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
        return [said, *attack_sentences(self.report, LABEL_OF | {AS_IS: "the raw input"})]


def attack_section(
    stream: FeatureStream,
    rows: int,
    targets: NDArray[Any] | None,
    extractors: Extractors,
    *,
    budget: AttackBudget,
    kind: TargetKind = "auto",
    seed: int = 0,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackSection:
    """Run the attack panel on a sample of rows; without targets, say so.

    Labels are learned by least squares, one column a class, unless `kind` asks for a classification: κ of
    θᵀKθ is that of the squared loss, and logistic attackers take minutes instead of seconds. The front, and
    erasure made from other rows than the attackers', are attacked only where no extractor was given.
    """
    if targets is None:
        return AttackSection(
            None, "no targets of the harmful task were given (--targets), and every attacker needs targets"
        )
    size = min(rows, round(PANEL_ROWS / (1 - HELD_OUT_FRACTION)))
    held_out = min(size - 2, round(size * HELD_OUT_FRACTION)) if size >= LEAST_ROWS else 0
    generator = np.random.default_rng([seed, _SAMPLE_SEED])
    drawn = generator.choice(rows, size=size, replace=False)
    own = {name: theta for name, theta in extractors.items() if name not in (AS_IS, *CLOSED)}
    spare = np.setdiff1d(np.arange(0 if own else rows), drawn)
    defender = np.sort(generator.choice(spare, size=min(size, len(spare)), replace=False))
    chosen = np.sort(drawn)
    test = np.isin(chosen, drawn[:held_out])
    labels = targets.dtype.kind == "i"
    if labels:  # what no attacker has seen cannot be asked of one
        known = np.isin(targets[chosen], targets[chosen[~test]])
        chosen, test = chosen[known], test[known]
    X, X_defender = _rows(stream, chosen, defender)
    y, held_out = targets[chosen], int(test.sum())
    if labels:
        y = np.unique(y, return_inverse=True)[1].astype(np.int64)
        if y.max() == 0:
            return AttackSection(None, "all targets belong to one class, so there is nothing to learn")
    learned: TargetKind = "classification" if kind == "classification" else "regression"
    Y = y if learned == "classification" else one_hot(y)
    fit = len(X) - held_out
    attacked = {AS_IS: None, **(own or {PARETO: extractors[PARETO]})}
    if len(defender) >= LEAST_ROWS:
        with suppress(InvalidInputError):  # the targets have no linear part in these rows
            made = erasure(X_defender, one_hot(targets)[defender], kind="regression", intercept=False)
            attacked[ERASED] = made.theta
    with np.errstate(over="ignore", invalid="ignore"):  # candidates that diverge are part of the race
        report = attack_panel(
            X[~test],
            Y[~test],
            attacked,
            kind=learned,
            held_out=(X[test], Y[test]) if held_out else None,
            budget=budget,
            on_attack=on_attack,
            title=f"{Path(stream.source).name}, {fit:,d} rows",
        )
    return AttackSection(report, "", fit, held_out, rows)


def _rows(stream: FeatureStream, *wanted: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Return several sorted selections of rows, from one pass over the stream."""
    parts: list[list[NDArray[np.float64]]] = [[] for _ in wanted]
    seen = 0
    for block in stream.blocks():
        for part, index in zip(parts, wanted, strict=True):
            here = index[(index >= seen) & (index < seen + len(block))] - seen
            part.append(block[here].astype(np.float64))
        seen += len(block)
    return [np.concatenate(part) for part in parts]
