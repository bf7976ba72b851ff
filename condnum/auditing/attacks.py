"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import TargetKind
from condnum.auditing.measures import AS_IS, ERASED, Extractors
from condnum.data.feature_rows import TaskRows, one_hot
from condnum.errors import InvalidInputError
from condnum.probing.panel import attack_panel
from condnum.probing.race import AttackBudget
from condnum.probing.report import AttackReport
from condnum.theory.erasure import erasure

#: Rows that attackers train on at most: each of them runs many times over them.
PANEL_ROWS = 2_000
#: Fraction of the sampled rows that attackers do not see, on which their accuracy is measured.
HELD_OUT_FRACTION = 0.2
#: Columns of targets that attackers learn at most; more classes are mixed at random.
PANEL_OUTPUTS = 16
#: Fewest rows of a task of which some are held out.
LEAST_ROWS = 20
#: Ends the seed of the sample of rows, so that no other stream of random numbers is the same one.
_SAMPLE_SEED = 79
#: The same, of the mixtures of classes.
_MIXTURE_SEED = 83
#: What each attacker may spend in an audit, a tenth of what the panel allows by itself.
PANEL_BUDGET = AttackBudget(steps=5_000, dense_steps=500, full_features=256)


@dataclass(frozen=True, eq=False)
class AttackSection:
    """What the panel found, or why there is none."""

    report: AttackReport | None
    reason: str  # why there is no report; empty if there is one
    rows: int = 0  # rows the attackers trained on
    held_out: int = 0  # rows on which they were measured
    of_rows: int = 0  # rows there are
    reduced: Sequence[str] = ()  # sentences on what large tasks are spared


def attack_section(
    task: TaskRows,
    targets: NDArray[Any] | None,
    extractors: Extractors,
    *,
    budget: AttackBudget,
    kind: TargetKind = "auto",
    seed: int = 0,
    erase: bool = True,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackSection:
    """Run the attack panel on a sample of rows; without targets, say so.

    Labels are learned by least squares, one column per class, unless `kind` asks for a classification: κ of
    θᵀKθ is that of the squared loss, and logistic attackers take minutes instead of seconds. Of more than 16
    classes, 16 random orthogonal mixtures of the columns are learned; losses are estimates of those on all
    columns. With `erase`, erasure made from other rows than the attackers' is attacked too.
    """
    if targets is None:
        return AttackSection(
            None, "no targets of the harmful task were given (--y-harmful), and every attacker needs targets"
        )
    X, y, rows = task.sample, targets[task.places], len(task.sample)
    size = min(rows, round(PANEL_ROWS / (1 - HELD_OUT_FRACTION)))
    held_out = min(size - 2, round(size * HELD_OUT_FRACTION)) if size >= LEAST_ROWS else 0
    drawn = np.random.default_rng([seed, _SAMPLE_SEED]).permutation(rows)
    chosen, defender = np.sort(drawn[:size]), np.sort(drawn[size : 2 * size])
    test = np.isin(chosen, drawn[:held_out])
    classes, Y = int(y.max()) + 1, y[chosen]
    reduced = list[str]()
    if X.shape[1] > budget.full_features:
        reduced.append(
            f"Beyond {budget.full_features} features, SGD, Adam, the stacked layer and fine-tuning of θ take "
            "float32, and all but SGD drop the slower half of their rates after 1/16 and again after 1/8 of "
            "the steps: a rate that starts slowly may be missed."
        )
    if y.dtype.kind == "i":
        known = np.isin(Y, Y[~test])  # what no attacker has seen cannot be asked of one
        chosen, test = chosen[known], test[known]
        names, Y = np.unique(Y[known], return_inverse=True)
        if len(names) < 2:
            return AttackSection(None, "all targets belong to one class, so there is nothing to learn")
        Y = Y.astype(np.int64) if kind == "classification" else _mixed(one_hot(Y, len(names)), seed)
        if Y.shape[1:] == (PANEL_OUTPUTS,) != (len(names),):
            reduced.append(
                f"The attackers learn {PANEL_OUTPUTS} random mixtures of the {len(names)} classes; their "
                "losses are estimates of those on all classes."
            )
    held_out = int(test.sum())
    fit = len(chosen) - held_out
    thetas: dict[str, Any] = {AS_IS: None, **extractors}
    if erase and len(defender) >= LEAST_ROWS:
        with suppress(InvalidInputError):  # the targets have no linear part in these rows
            answers = one_hot(y[defender], classes)
            erased = erasure(X[defender], answers, kind="regression", intercept=False).theta
            thetas |= {ERASED: erased} if erased.any() else {}  # many classes may take all directions
    with np.errstate(over="ignore", invalid="ignore"):  # candidates that diverge are part of the race
        report = attack_panel(
            X[chosen[~test]],
            Y[~test],
            thetas,
            kind="classification" if kind == "classification" else "regression",
            held_out=(X[chosen[test]], Y[test]) if held_out else None,
            budget=budget,
            on_attack=on_attack,
            title=f"{Path(task.stream.source).name}, {fit:,d} rows",
        )
    return AttackSection(report, "", fit, held_out, task.rows, reduced)


def _mixed(Y: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return at most `PANEL_OUTPUTS` columns: random orthogonal mixtures, with Y's squares on average."""
    m = Y.shape[1]
    if m <= PANEL_OUTPUTS:
        return Y
    mixtures = np.linalg.qr(np.random.default_rng([seed, _MIXTURE_SEED]).normal(size=(m, PANEL_OUTPUTS)))[0]
    return Y @ mixtures * np.sqrt(m / PANEL_OUTPUTS)
