"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import TargetKind
from condnum.auditing.lights import KERNEL, NO_LIGHTS, attacker_lights
from condnum.auditing.measures import AS_IS, ERASED, Extractors
from condnum.data.feature_rows import TaskRows, one_hot
from condnum.errors import InvalidInputError
from condnum.probing.panel import attack_panel
from condnum.probing.race import AttackBudget
from condnum.probing.report import AttackReport
from condnum.studies.heads import Sample, chance, nonlinear_score
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
    """What the attackers found, or why there is nothing."""

    report: AttackReport | None
    reason: str  # why there is no report, or no light; empty if there are
    rows: int = 0  # rows the attackers trained on
    held_out: int = 0  # rows on which they were measured
    of_rows: int = 0  # rows there are
    reduced: Sequence[str] = ()  # sentences on what large tasks are spared
    lights: pd.DataFrame = field(default_factory=NO_LIGHTS.copy)  # of `attacker_lights`


def split_rows(rows: int, seed: int, *, half: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the attackers' rows, and the defender's; the former are half of them at most where asked."""
    drawn = np.random.default_rng([seed, _SAMPLE_SEED]).permutation(rows)
    size = min(rows // 2 if half else rows, round(PANEL_ROWS / (1 - HELD_OUT_FRACTION)))
    return drawn[:size], drawn[size : 2 * size]


def erased_theta(task: TaskRows, targets: NDArray[Any] | None, seed: int, *, half: bool) -> NDArray[Any]:
    """Return what erases the targets in the defender's rows, which no attacker sees."""
    if targets is None:
        raise InvalidInputError("erasure needs the targets of the harmful task; give y_harmful.")
    y, defender = targets[task.places], np.sort(split_rows(len(task.sample), seed, half=half)[1])
    if len(defender) < LEAST_ROWS:
        least = f"at least {LEAST_ROWS} rows that no attacker sees are needed"
        raise InvalidInputError(f"erasure is made of {len(defender)} rows of {task.stream.source}; {least}.")
    answers = one_hot(y[defender], int(y.max()) + 1)
    theta = erasure(task.sample[defender], answers, kind="regression", intercept=False).theta
    if not theta.any():
        raise InvalidInputError(
            f"erasing {answers.shape[1]} columns of targets leaves nothing of {task.stream.dimension} "
            "features; use more features or fewer classes."
        )
    return np.asarray(theta)


def attack_section(
    task: TaskRows,
    targets: NDArray[Any] | None,
    extractors: Extractors,
    *,
    budget: AttackBudget,
    kind: TargetKind = "auto",
    seed: int = 0,
    erase: bool = True,
    half: bool = False,
    attackers: Sequence[str] | None = None,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackSection:
    """Run the attack panel and a nonlinear head on a sample of rows; without targets, say so.

    Labels are learned by least squares, one column per class, unless `kind` asks for a classification: κ of
    θᵀKθ is that of the squared loss, and logistic attackers take minutes instead of seconds. Of more than 16
    classes, 16 random orthogonal mixtures of the columns are learned; losses are estimates of those on all
    columns. With `erase`, erasure made from other rows than the attackers' is attacked too; with `half`,
    half of the rows are the defender's. The nonlinear head is left out where `attackers` are named.
    """
    if targets is None:
        return AttackSection(
            None, "no targets of the harmful task were given (--y-harmful), and every attacker needs targets"
        )
    X, y = task.sample, targets[task.places]
    drawn, _ = split_rows(len(X), seed, half=half)
    size = len(drawn)
    held_out = min(size - 2, round(size * HELD_OUT_FRACTION)) if size >= LEAST_ROWS else 0
    chosen = np.sort(drawn)
    test = np.isin(chosen, drawn[:held_out])
    Y, decode, reduced = y[chosen], None, list[str]()
    if X.shape[1] > budget.full_features:
        reduced.append(
            f"Beyond {budget.full_features} features, SGD, Adam, the stacked layer and fine-tuning of θ take "
            "float32, and all but SGD drop the slower half of their rates after 1/16 and again after 1/8 of "
            "the steps: a rate that starts slowly may be missed."
        )
    if labels := y.dtype.kind == "i":
        known = np.isin(Y, Y[~test])  # what no attacker has seen cannot be asked of one
        chosen, test = chosen[known], test[known]
        names, Y = np.unique(Y[known], return_inverse=True)
        if len(names) < 2:
            return AttackSection(None, "all targets belong to one class, so there is nothing to learn")
        codes, Y = Y.astype(np.int64), Y.astype(np.int64)
        if kind != "classification":
            columns = _mixed(np.eye(len(names)), seed)
            Y, decode = columns[codes], (codes[test if held_out else ~test], columns.T)
            if columns.shape[1] < len(names):
                reduced.append(
                    f"The attackers learn {PANEL_OUTPUTS} random mixtures of the {len(names)} classes; their "
                    "losses are estimates of those on all classes, and their accuracies are too low."
                )
    held_out = int(test.sum())
    fit = len(chosen) - held_out
    thetas: dict[str, Any] = {AS_IS: None, **extractors}
    if erase:
        with suppress(InvalidInputError):  # too few rows, or no linear part in them
            thetas[ERASED] = erased_theta(task, targets, seed, half=half)
    with np.errstate(over="ignore", invalid="ignore"):  # candidates that diverge are part of the race
        report = attack_panel(
            X[chosen[~test]],
            Y[~test],
            thetas,
            kind="classification" if kind == "classification" else "regression",
            held_out=(X[chosen[test]], Y[test]) if held_out else None,
            decode=decode,
            budget=budget,
            attackers=attackers,
            on_attack=on_attack,
            title=f"{Path(task.stream.source).name}, {fit:,d} rows",
        )
    lights = NO_LIGHTS
    if held_out:
        answers: Any = codes if labels else Y.reshape(len(Y), -1)
        train, judge = (Sample(X[chosen[of]], answers[of], labels) for of in (~test, test))
        spread = 0 if labels else ((judge.columns - train.columns.mean(axis=0)) ** 2).sum(axis=1).mean()
        scores, curves = (
            of.assign(score=of["accuracy"] if labels else 1 - of[loss] / spread)
            for of, loss in ((report.reached, "loss"), (report.curves, "evaluation_loss"))
        )
        for name, theta in thetas.items() if attackers is None else ():
            reached = nonlinear_score(np.eye(X.shape[1]) if theta is None else theta, train, judge)
            head = {"extractor": name, "attacker": KERNEL[0], "label": KERNEL[1], "score": reached}
            scores = pd.concat([scores, pd.DataFrame([head])], ignore_index=True)
        lights = attacker_lights(report, scores, curves, chance=chance(judge), rows=held_out, labels=labels)
    reason = "" if held_out else f"fewer than {LEAST_ROWS} rows leave none on which to score attackers"
    return AttackSection(report, reason, fit, held_out, task.rows, reduced, lights)


def _mixed(Y: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return at most `PANEL_OUTPUTS` columns: random orthogonal mixtures, with Y's squares on average."""
    m = Y.shape[1]
    if m <= PANEL_OUTPUTS:
        return Y
    mixtures = np.linalg.qr(np.random.default_rng([seed, _MIXTURE_SEED]).normal(size=(m, PANEL_OUTPUTS)))[0]
    return Y @ mixtures * np.sqrt(m / PANEL_OUTPUTS)
