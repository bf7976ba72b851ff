"""The attack panel of an audit: a sample of the harmful task's rows, at every extractor."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import TargetKind, extracted
from condnum.auditing.lights import HEADS, KERNEL, NO_LIGHTS, attacker_lights
from condnum.auditing.measures import AS_IS, ERASED
from condnum.auditing.own_rows import made_from
from condnum.data.feature_rows import TaskRows
from condnum.errors import InvalidInputError
from condnum.estimators import Eraser
from condnum.probing.panel import attack_panel
from condnum.probing.race import AttackBudget
from condnum.probing.report import AttackReport
from condnum.probing.tasks import float_matrix
from condnum.studies.heads import Sample, chance, linear_heads, nonlinear_score, score

#: Rows that attackers have at most: each of them runs many times over those that train it.
PANEL_ROWS = 2_500
#: Fraction of them that chooses each attacker's step and candidate, and fraction that judges it; no attacker
#: trains on either.
CHOOSING_FRACTION, JUDGING_FRACTION = 0.2, 0.2
#: Columns of targets that attackers learn at most; more classes are mixed at random.
PANEL_OUTPUTS = 16
#: Fewest rows of a task of which some are held out.
LEAST_ROWS = 20
#: Ends the seed of the sample of rows, so that no other stream of random numbers is the same one.
_SAMPLE_SEED = 79
#: The same, of the mixtures of classes.
_MIXTURE_SEED = 83
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
    never its product matrix. Labels are learned by least squares, one column per class. Of more than 16
    classes, 16 random orthogonal mixtures of the columns are learned; losses are estimates of those on all
    columns. With `erase`, erasure made from other rows than the attackers' is attacked too; with `half`, half
    of the rows are the defender's. The panel runs alone where `attackers` are named.
    """
    if targets is None:
        return AttackSection(
            None, "no targets of the harmful task were given (--y-harmful), and every attacker needs targets"
        )
    y, reduced, decode = targets[task.places], list[str](), None
    train, choosing, judging = _parts(y, split_rows(len(y), seed, half=half)[0])
    held = np.concatenate([choosing, judging])
    wide = task.sample.shape[1] > WIDE_FEATURES
    if wide:
        reduced.append(
            f"Beyond {WIDE_FEATURES} features, Adam, L-BFGS, the stacked layer and fine-tuning of θ take "
            f"{budget.dense_steps} steps at most and SGD as many passes over the data; the heads of "
            "libraries are those without a penalty, in float64."
        )
    learned, labels = y, y.dtype.kind == "i"
    names, codes = np.unique(y[train], return_inverse=True, axis=0)
    if len(names) < 2:
        what = "belong to one class" if labels else "are equal"
        return AttackSection(None, f"all targets that attackers train on {what}: there is nothing to learn")
    if labels:
        columns = _mixed(np.eye(len(names)), seed)
        learned = columns[np.searchsorted(names, y).clip(max=len(names) - 1)]
        decode = (np.searchsorted(names, y[held]) if len(held) else codes, columns.T)
        if columns.shape[1] < len(names):
            reduced.append(
                f"The attackers learn {PANEL_OUTPUTS} random mixtures of the {len(names)} classes; their "
                "losses are estimates of those on all classes, and their accuracies are too low."
            )
    thetas: dict[str, Any] = {AS_IS: None, **extractors}
    if erase:
        with suppress(InvalidInputError):  # too few rows, or no linear part in them
            thetas[ERASED] = eraser_of(task, targets, seed, half=half)
    with np.errstate(over="ignore", invalid="ignore"):  # candidates that diverge are part of the race
        report = attack_panel(
            _inputs(task, train),
            learned[train],
            thetas,
            kind="regression",
            held_out=(_inputs(task, held), learned[held]) if len(held) else None,
            choosing=len(choosing),
            decode=decode,
            budget=budget,
            attackers=attackers,
            on_attack=on_attack,
            title=f"{Path(task.stream.source).name}, {len(train):,d} rows",
        )
    if not len(held):
        reason = f"fewer than {LEAST_ROWS} rows leave none on which to score attackers"
        return AttackSection(report, reason, len(train), reduced=reduced)
    own, solved, rows = list[str](), list[dict[str, Any]](), np.concatenate([train, held])
    raw = Sample(task.sample[rows], y[rows], labels)
    for name, theta in thetas.items() if attackers is None else ():
        F = float_matrix(extracted(theta, _inputs(task, rows), name), name)
        F = np.ldexp(F, -int(np.frexp(np.abs(F).max())[1]))  # the scale of θ is free; no bit of F is lost
        parts = np.split(np.arange(len(rows)), np.cumsum([len(train), len(choosing)]))
        samples = [Sample(F[part], raw.y[part], labels) for part in parts]
        solved += [{"extractor": name, **of} for of in _solved_heads(*samples, wide=wide)]
        if name in extractors and made_from(F, raw.X, raw.columns):
            own.append(name)
    lights = _lights(report, solved, raw._replace(X=task.sample[judging], y=y[judging]))
    doubted = lights["extractor"].isin(own) & (lights["light"] == "stopped")
    lights = lights.assign(light=lights["light"].mask(doubted, "not known"))
    counts = len(train), len(choosing), len(judging)
    return AttackSection(report, "", *counts, reduced, lights, own)


def _parts(y: NDArray[Any], drawn: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split drawn rows into those that train, choose and judge; the last two are empty where rows are few."""
    counts = [round(len(drawn) * of) for of in (JUDGING_FRACTION, CHOOSING_FRACTION)]
    judging, choosing, train = (np.sort(part) for part in np.split(drawn, np.cumsum(counts)))
    if len(drawn) < LEAST_ROWS:
        return [np.sort(drawn), choosing[:0], judging[:0]]
    if y.dtype.kind == "i":  # what no attacker has seen cannot be asked of one
        choosing, judging = (part[np.isin(y[part], y[train])] for part in (choosing, judging))
    return (
        [train, choosing, judging] if len(choosing) and len(judging) else [train, choosing[:0], judging[:0]]
    )


def _inputs(task: TaskRows, rows: NDArray[np.int64]) -> Any:
    """Return sampled rows as extractors take them: with the names of columns, where there are some."""
    X = task.sample[rows]
    return pd.DataFrame(X, columns=list(task.stream.columns)) if task.stream.named else X


def _solved_heads(
    train: Sample, choosing: Sample, judging: Sample, *, wide: bool
) -> Iterator[dict[str, Any]]:
    """Yield the solved head that is best on the rows that choose, and the kernel's, with their scores."""
    heads = linear_heads(train, np.concatenate([choosing.X, judging.X]), penalized=not wide)
    if wide:
        heads = takewhile(lambda head: "float32" not in head[0], heads)
    tried = [(score(F[: len(choosing.y)], train, choosing), name, F) for name, F in heads]
    _, name, F = max(tried, key=lambda of: of[0])
    reached = score(F[len(choosing.y) :], train, judging)
    yield {"attacker": HEADS, "label": f"Head: {name}", "score": reached}
    kernel = nonlinear_score(np.eye(train.X.shape[1]), train, judging)
    yield {"attacker": KERNEL[0], "label": KERNEL[1], "score": kernel}


def _lights(report: AttackReport, solved: Sequence[dict[str, Any]], judging: Sample) -> pd.DataFrame:
    """Judge the panel and solved heads on the rows that judge."""
    reached, curves = report.reached, report.curves
    if judging.labels:
        reached = reached.assign(score=reached["accuracy"])
        curves = curves.assign(score=curves["accuracy"], choice=curves["choosing_accuracy"])
    else:
        spread = ((judging.columns - judging.columns.mean(axis=0)) ** 2).sum(axis=1).mean()
        reached = reached.assign(score=1 - reached["loss"] / spread)
        score = 1 - curves["evaluation_loss"] / spread
        curves = curves.assign(score=score, choice=-curves["choosing_loss"])
    scores = pd.concat([reached, pd.DataFrame(solved)], ignore_index=True)
    return attacker_lights(
        report, scores, curves, chance=chance(judging), rows=len(judging.y), labels=judging.labels
    )


def _mixed(Y: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return at most `PANEL_OUTPUTS` columns: random orthogonal mixtures, with Y's squares on average."""
    m = Y.shape[1]
    if m <= PANEL_OUTPUTS:
        return Y
    mixtures = np.linalg.qr(np.random.default_rng([seed, _MIXTURE_SEED]).normal(size=(m, PANEL_OUTPUTS)))[0]
    return Y @ mixtures * np.sqrt(m / PANEL_OUTPUTS)
