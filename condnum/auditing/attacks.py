"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import TargetKind, extracted
from condnum.auditing.lights import NO_LIGHTS, NONLINEAR, attacker_lights
from condnum.auditing.measures import AS_IS, ERASED
from condnum.auditing.own_rows import made_from
from condnum.data.feature_rows import TaskRows
from condnum.errors import InvalidInputError
from condnum.estimators import Eraser
from condnum.probing.attackers import ATTACKERS
from condnum.probing.panel import AttackReport, attack_panel, judging_rows
from condnum.probing.race import MOST_OUTPUTS, AttackBudget
from condnum.studies.heads import Sample, chance, nonlinear_score, tree_score

#: Rows that attackers have at most: each of them runs many times over those that train it.
PANEL_ROWS = 2_500
#: Fraction of them on which no attacker trains: half of it chooses each attacker's step and candidate, and
#: half judges it.
HELD_OUT_FRACTION = 0.4
#: Fewest rows of a task of which some are held out.
LEAST_ROWS = 20
#: Ends the seed of the sample of rows, so that no other stream of random numbers is the same one.
_SAMPLE_SEED = 79
#: Beyond so many features an attacker may take fewer steps that cost a product with all of them.
WIDE_FEATURES = 256


def audit_budget(columns: int, seed: int) -> AttackBudget:
    """Return what each attacker may spend in an audit: a fraction of what the panel allows by itself."""
    return AttackBudget(5_000, 100 if columns > WIDE_FEATURES else 500, seed=seed)


@dataclass(frozen=True, eq=False)
class AttackSection:
    """What the attackers found, or why there is nothing."""

    report: AttackReport | None
    reason: str  # why there is no report, or no light; empty if there are
    rows: int = 0  # rows the attackers trained on
    choosing: int = 0  # rows on which their steps and candidates were chosen
    held_out: int = 0  # rows on which they were judged
    reduced: Sequence[str] = ()  # sentences on what large tasks are spared
    lights: pd.DataFrame = field(default_factory=NO_LIGHTS.copy)  # of `attacker_lights`
    own_rows: Collection[str] = ()  # extractors that were made from these rows


def split_rows(rows: int, seed: int, *, half: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the attackers' rows, and the defender's; the former are half of them at most where asked."""
    drawn = np.random.default_rng([seed, _SAMPLE_SEED]).permutation(rows)
    size = min(rows // 2 if half else rows, PANEL_ROWS)
    return drawn[:size], drawn[size : 2 * size]


def eraser_of(task: TaskRows, targets: NDArray[Any] | None, seed: int, *, half: bool) -> Eraser:
    """Return what erases the targets in the defender's rows, which no attacker sees.

    It is centered: attackers have an intercept, or find one in the mean of the features.
    """
    if targets is None:
        raise InvalidInputError("erasure needs the targets of the harmful task; give y_harmful.")
    y, defender = targets[task.places], np.sort(split_rows(len(task.sample), seed, half=half)[1])
    if len(defender) < LEAST_ROWS:
        least = f"at least {LEAST_ROWS} rows that no attacker sees are needed"
        raise InvalidInputError(f"erasure is made of {len(defender)} rows of {task.stream.source}; {least}.")
    kind: TargetKind = "classification" if y.dtype.kind == "i" else "regression"
    eraser = Eraser(kind=kind).fit(task.sample[defender], y[defender])
    if not eraser.erasure_.left.shape[1]:
        raise InvalidInputError(
            "erasure leaves nothing of these features; give more features or fewer classes."
        )
    return eraser


def attack_section(
    task: TaskRows,
    targets: NDArray[Any] | None,
    extractors: Mapping[str, Any],
    *,
    budget: AttackBudget,
    seed: int = 0,
    erase: bool = True,
    half: bool = False,
    attackers: Sequence[str] | None = None,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackSection:
    """Run the attack panel, solved heads and a nonlinear one on a sample of rows; without targets, say so.

    Extractors are matrices or maps, which are applied as they are: attackers meet what a map returns, and
    never its product matrix. With `erase`, erasure made from other rows than the attackers' is attacked too;
    with `half`, half of the rows are the defender's. The panel runs alone where `attackers` are named.
    """
    if targets is None:
        return AttackSection(
            None, "no targets of the harmful task were given (--y-harmful), and every attacker needs targets"
        )
    y, reduced = targets[task.places], list[str]()
    train, held = _parts(y, split_rows(len(y), seed, half=half)[0])
    wide, labels = task.sample.shape[1] > WIDE_FEATURES, y.dtype.kind == "i"
    if wide:
        reduced.append(
            f"Beyond {WIDE_FEATURES} features, Adam, L-BFGS, the stacked layer and fine-tuning of θ take "
            f"{budget.dense_steps} steps at most and SGD as many passes over the data; logistic regression "
            "is left out."
        )
    names = np.unique(y[train], axis=0)
    if len(names) < 2:
        what = "belong to one class" if labels else "are equal"
        return AttackSection(None, f"all targets that attackers train on {what}: there is nothing to learn")
    if labels and len(names) > MOST_OUTPUTS:
        reduced.append(
            f"Adam, SGD, L-BFGS, the stacked layer and fine-tuning of θ learn {MOST_OUTPUTS} random mixtures "
            f"of the {len(names)} classes; their losses are estimates of those on all classes, and their "
            "accuracies are too low."
        )
    thetas: dict[str, Any] = {AS_IS: None, **extractors}
    if erase:
        with suppress(InvalidInputError):  # too few rows, or no linear part in them
            thetas[ERASED] = eraser_of(task, targets, seed, half=half)
    chosen = attackers or [name for name in ATTACKERS if not (wide and name == "logistic")]
    report = attack_panel(
        _inputs(task, train),
        y[train],
        thetas,
        kind="classification" if labels else "regression",
        held_out=(_inputs(task, held), y[held]) if len(held) else None,
        budget=budget,
        attackers=chosen,
        on_attack=on_attack,
    )
    if not len(held):
        reason = f"fewer than {LEAST_ROWS} rows leave none on which to score attackers"
        return AttackSection(report, reason, len(train), reduced=reduced)
    n, judges = len(train), judging_rows(len(held), budget.seed)
    rows, own, nonlinear = np.r_[train, held], list[str](), list[dict[str, Any]]()
    raw, (answers, asked) = Sample(task.sample[rows], y[rows], labels), (y[train], y[held][judges])
    for name, theta in thetas.items() if attackers is None else ():
        F = np.asarray(extracted(theta, _inputs(task, rows), name), dtype=np.float64)
        seen = Sample(F[:n], answers, labels), Sample(F[n:][judges], asked, labels)
        reached = nonlinear_score(np.eye(F.shape[1]), *seen), tree_score(*seen)
        for (head, named), score in zip(NONLINEAR.items(), reached, strict=True):
            nonlinear.append({"extractor": name, "attacker": head, "label": named, "score": score})
        if name in extractors and made_from(F, raw.X, raw.columns):
            own.append(name)
    lights = _lights(report, nonlinear, Sample(raw.X[n:][judges], asked, labels))
    doubted = lights["extractor"].isin(own) & (lights["light"] == "stopped")
    lights = lights.assign(light=lights["light"].mask(doubted, "not known"))
    counts = n, int((~judges).sum()), int(judges.sum())
    return AttackSection(report, "", *counts, reduced, lights, own)


def _parts(y: NDArray[Any], drawn: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split drawn rows into those that train and those held out; of few rows, none are."""
    held, train = (np.sort(part) for part in np.split(drawn, [round(len(drawn) * HELD_OUT_FRACTION)]))
    if len(drawn) < LEAST_ROWS:
        return [np.sort(drawn), held[:0]]
    if y.dtype.kind == "i":  # what no attacker has seen cannot be asked of one
        held = held[np.isin(y[held], y[train])]
    return [train, held if len(held) > 1 else held[:0]]


def _inputs(task: TaskRows, rows: NDArray[np.int64]) -> Any:
    """Return sampled rows as extractors take them: with the names of columns, where there are some."""
    X = task.sample[rows]
    return pd.DataFrame(X, columns=list(task.stream.columns)) if task.stream.named else X


def _lights(report: AttackReport, nonlinear: Sequence[dict[str, Any]], judging: Sample) -> pd.DataFrame:
    """Judge the panel and nonlinear heads on the rows that judge."""
    keys = ["extractor", "attacker", "label"]
    reached = report.table.drop_duplicates(keys)[[*keys, "loss", "accuracy"]]
    curves = report.curves
    if judging.labels:
        reached = reached.assign(score=reached["accuracy"])
        curves = curves.assign(score=curves["accuracy"], choice=curves["choosing_accuracy"])
    else:
        spread = ((judging.columns - judging.columns.mean(axis=0)) ** 2).sum(axis=1).mean()
        reached = reached.assign(score=1 - reached["loss"] / spread)
        curves = curves.assign(score=1 - curves["loss"] / spread, choice=-curves["choosing_loss"])
    scores = pd.concat([reached, pd.DataFrame(nonlinear)], ignore_index=True)
    return attacker_lights(
        report, scores, curves, chance=chance(judging), rows=len(judging.y), labels=judging.labels
    )
