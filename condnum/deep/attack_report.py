"""What attacks on θ₀, θ_I and the net from scratch say together: factors, intervals, and a place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.deep.attack_panel import (
    ATTACKERS,
    CHUNK,
    SCRATCH,
    SHARES,
    SHOTS,
    THETA_0,
    AttackRun,
    DeepAttacker,
    DeepBudget,
    Pixels,
    Target,
    attack,
)
from condnum.deep.backbone import Backbone
from condnum.errors import InvalidInputError

#: Draws of the bootstrap, its level, and the least head start of θ₀ over a net from scratch (a factor of
#: steps) by which a place can be told.
DRAWS = 1000
LEVEL = 0.95
HEAD_START = 1.25

#: Added to the seed of a net from scratch, so that it is not what θ₀ was trained from.
SCRATCH_SEED = 1_000

Steps = NDArray[np.float64]


class Place(NamedTuple):
    """One net's attack, by what names it."""

    backbone: str
    net: str
    attacker: str
    shots: int  # rows a class; 0: all
    seed: int


def first_reached(x: Steps, accuracy: Steps, target: Steps) -> Steps:
    """Return where curves `(T, B)` first reach their targets `(B,)`, interpolated in log x; NaN if nowhere.

    A curve that starts at its target, or reaches it before x = 1, gives 1 (or the first x above it).

    Examples:
        >>> curve = np.array([[0.2], [0.4], [0.8], [0.9]])
        >>> first_reached(np.array([0.0, 1.0, 10.0, 100.0]), curve, np.array([0.6])).round(2)
        array([3.16])
        >>> first_reached(np.array([0.0, 1.0, 10.0, 100.0]), curve, np.array([0.95]))
        array([nan])
    """
    over = accuracy >= target
    index = np.argmax(over, axis=0)
    before, column = np.maximum(index - 1, 0), np.arange(accuracy.shape[1])
    log = np.log(np.maximum(x, max(1.0, x[0])))
    low, high = accuracy[before, column], accuracy[index, column]
    share = np.divide(target - low, high - low, out=np.ones_like(target), where=high > low)
    reached = np.exp(log[before] + np.where(index > 0, share, 0.0) * (log[index] - log[before]))
    return np.where(over.any(axis=0), reached, np.nan)


class Curves(NamedTuple):
    """Curves of one attacker on one net: x `(T,)`, and `(T, M)` which test images are right."""

    x: Steps
    correct: NDArray[np.bool_]


def compare(
    curves: Mapping[str, Mapping[int, Curves]],
    goals: Mapping[int, NDArray[np.bool_]],
    share: float,
    most: float,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare what θ₀, θ_I and scratch need until they have a share of θ₀'s final accuracy.

    Curves that never arrive count as `most`, and say so (`…_reached`): the factor is then a lower bound (of
    θ_I) or meaningless (of both). Means are geometric, over seeds. Intervals: percentiles of a bootstrap over
    seeds and test images, the same images for all three nets.

    Args:
        curves: By net (`theta_0`, `theta_i`, `scratch`) and seed.
        goals: By seed, which test images θ₀ has right in the end `(M,)`.
        share: Of that accuracy.
        most: The budget.
        seed: Of the bootstrap.

    Returns:
        Needs of the three, `factor`, `factor_low`, `factor_high`, and `place`, `place_low`, `place_high`:
        0 is void (as fast as from θ₀), 1 complete (no faster than from scratch), an upper bound where scratch
        never arrives. NaN where θ₀ is at its target from the start, or has no head start of 1.25.
    """
    seeds = sorted(set.intersection(*(set(of) for of in curves.values())))
    generator = np.random.default_rng([seed, 5])
    images = len(next(iter(goals.values())))
    weights = np.column_stack(
        [np.full(images, 1 / images), generator.multinomial(images, [1 / images] * images, DRAWS).T / images]
    )  # the first column is the sample itself
    needs = dict[str, Any]()
    met = np.ones((len(seeds), DRAWS + 1), dtype=bool)
    for k, one in enumerate(seeds):
        target = share * (goals[one] @ weights)
        begin, first = curves[THETA_0][one]
        met[k] = (first[0] @ weights < target) | (begin[0] > 0)
        for net, of in curves.items():
            x, correct = of[one]
            found = first_reached(x, correct @ weights, target)
            needs.setdefault(net, np.full((len(seeds), DRAWS + 1), np.nan))[k] = found
    drawn = np.column_stack([np.arange(len(seeds)), generator.integers(0, len(seeds), (len(seeds), DRAWS))])
    used = np.where(np.take_along_axis(met, drawn, 0), 1.0, np.nan)

    def log_mean(net: str) -> Steps:
        """Return the mean log need of each draw."""
        filled = np.log(np.where(np.isnan(needs[net]), most, needs[net]))
        total = np.nansum(np.take_along_axis(filled, drawn, 0) * used, axis=0)
        count = np.sum(~np.isnan(used), axis=0)
        return np.divide(total, count, out=np.full(DRAWS + 1, np.nan), where=count > 0)

    means = {net: log_mean(net) for net in curves}
    factor = means["theta_i"] - means[THETA_0]
    start = means[SCRATCH] - means[THETA_0]
    place = np.divide(factor, start, out=np.full(DRAWS + 1, np.nan), where=start > math.log(HEAD_START))
    row: dict[str, Any] = {f"needs_{net}": math.exp(value[0]) for net, value in means.items()}
    row |= {f"reached_{net}": int((~np.isnan(found[:, 0])).sum()) for net, found in needs.items()}
    for name, values in (("factor", np.exp(factor)), ("place", place)):
        known = values[1:][np.isfinite(values[1:])]
        low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (math.nan,) * 2
        if name == "place" and np.isnan(values[0]):
            low = high = math.nan
        row |= {name: values[0], f"{name}_low": low, f"{name}_high": high}
    return {"seeds": len(seeds), **row}


@dataclass(frozen=True, eq=False)
class DeepAttackReport:
    """A panel of attacks on a θ₀, what was made of it, and the same net from scratch."""

    runs: Mapping[Place, AttackRun]
    budget: DeepBudget
    rows: Mapping[int, int]  # rows of the attacker by rows a class, held-out ones among them

    @property
    def methods(self) -> list[str]:
        """What made each θ_I."""
        return list(dict.fromkeys(p.net for p in self.runs if p.net not in (THETA_0, SCRATCH)))

    def table(self) -> pd.DataFrame:
        """Return a row an attack: chosen trial, accuracies before and after, seconds."""
        return pd.DataFrame(
            {
                **place._asdict(),
                "label": DeepAttacker.named(place.attacker).label,
                "rows": run.rows,
                "chosen": run.chosen,
                "at_edge": run.at_edge,
                "start_accuracy": run.accuracy[0] if len(run.steps) > 1 else math.nan,
                "final_accuracy": run.accuracy[-1],
                "steps": int(run.steps[-1]),
                "pretrain_accuracy": run.pretrain_accuracy,
                "seconds": run.seconds,
            }
            for place, run in self.runs.items()
        )

    def trials(self) -> pd.DataFrame:
        """Return the trials of every attack, and the test accuracy of the best so far by held-out rows."""
        return pd.concat([run.trials.assign(**place._asdict()) for place, run in self.runs.items()])

    def curves(self) -> pd.DataFrame:
        """Return test accuracy against steps of every attack."""
        parts = [
            pd.DataFrame({"step": run.steps, "accuracy": run.accuracy}).assign(**place._asdict())
            for place, run in self.runs.items()
        ]
        return pd.concat(parts, ignore_index=True)

    def factors(self, shares: Sequence[float] = SHARES) -> pd.DataFrame:
        """Return factors of steps: a row for each backbone, method, attacker, rows and share (`compare`).

        Beside them are the final accuracies on the three nets, D_P's accuracy before and after the attack,
        and in how many attacks the chosen trial is at the edge of its grid.
        """
        return self._compared(
            shares,
            lambda p: p.shots,
            lambda parts: next(Curves(run.steps.astype(float), run.correct) for run in parts.values()),
            self.budget.steps,
            "shots",
        )

    def rows_factors(self, shares: Sequence[float] = SHARES) -> pd.DataFrame:
        """Return factors of rows: how many θ_I asks for, against θ₀, to the same accuracy at its full budget.

        The goal is θ₀'s final accuracy with most rows; one kind of rows gives no such table.
        """
        if len(self.rows) < 2:
            return pd.DataFrame()
        by_rows = sorted(self.rows, key=lambda shots: self.rows[shots])

        def curve(parts: Mapping[int, AttackRun]) -> Curves:
            known = [shots for shots in by_rows if shots in parts]
            x = np.array([float(self.rows[shots]) for shots in known])
            return Curves(x, np.stack([parts[shots].correct[-1] for shots in known]))

        return self._compared(shares, lambda p: 0, curve, float(max(self.rows.values())), "")

    def _compared(
        self,
        shares: Sequence[float],
        split: Callable[[Place], int],
        curve: Callable[[Mapping[int, AttackRun]], Curves],
        most: float,
        name: str,
    ) -> pd.DataFrame:
        """Compare all nets, a row for each share."""
        groups: dict[tuple[str, str, int], dict[str, dict[int, dict[int, AttackRun]]]] = {}
        for place, run in self.runs.items():
            nets = groups.setdefault((place.backbone, place.attacker, split(place)), {})
            nets.setdefault(place.net, {}).setdefault(place.seed, {})[place.shots] = run
        found = []
        for (backbone, attacker, part), nets in groups.items():
            if not {THETA_0, SCRATCH} <= nets.keys():
                continue
            for method in self.methods:
                if method not in nets:
                    continue
                named = {THETA_0: nets[THETA_0], "theta_i": nets[method], SCRATCH: nets[SCRATCH]}
                curves = {net: {s: curve(runs) for s, runs in of.items()} for net, of in named.items()}
                seeds = sorted(set.intersection(*(set(of) for of in curves.values())))
                if not seeds:
                    continue
                goals = {s: curves[THETA_0][s].correct[-1] for s in seeds}
                label = DeepAttacker.named(attacker).label
                facts: dict[str, Any] = {
                    "backbone": backbone,
                    "method": method,
                    "attacker": attacker,
                    "label": label,
                }
                facts |= {name: part} if name else {}
                for share in shares:
                    facts |= {"share": share} | compare(curves, goals, share, most)
                    last = {net: [[*named[net][s].values()][-1] for s in seeds] for net in named}
                    for net, runs in last.items():
                        facts[f"final_{net}"] = float(np.mean([run.accuracy[-1] for run in runs]))
                        facts[f"pretrain_{net}"] = float(np.mean([run.pretrain_accuracy for run in runs]))
                    facts["at_edge"] = sum(run.at_edge for runs in last.values() for run in runs)
                    found.append(dict(facts))
        return pd.DataFrame(found)

    def sentences(self, share: float = 0.9) -> list[str]:
        """Say what the defence buys against each attacker with most rows, the least first."""
        table = self.factors([share])
        most = max(self.rows, key=lambda shots: self.rows[shots])
        return [sentence(row, self.budget.steps) for _, row in table[table["shots"] == most].iterrows()]


def sentence(row: Any, budget: float) -> str:
    """Say in words what a row of `DeepAttackReport.factors` holds."""
    goal = f"{100 * row['share']:g} % of θ₀'s accuracy"
    never, closed = row["reached_theta_i"] < row["seeds"], DeepAttacker.named(row["attacker"]).closed_form
    if closed or row["needs_theta_0"] <= 1 >= row["needs_theta_i"]:
        how = "solved at once" if closed else "one step"
        shares = (100 * row[f"final_{net}"] for net in ("theta_i", "theta_0", "scratch"))
        what = "{:.1f} % in the end on θ_I, {:.1f} on θ₀, {:.1f} from scratch".format(*shares)
        return f"{row['label']}: {how}, {'without' if never else 'with'} {goal}; {what}."
    if math.isnan(row["factor"]):
        return f"{row['label']}: θ₀ has {goal} from the start, so steps say nothing."
    steps = f"{row['needs_theta_i']:.3g} steps instead of {row['needs_theta_0']:.3g} to {goal}"
    factor = "{:.3g} times ({:.3g} to {:.3g})".format(*(row[f"factor{end}"] for end in ("", "_low", "_high")))
    told = f"{row['label']}: {'more than ' * never}{steps}, {'at least ' * never}{factor}"
    if math.isnan(row["place"]):
        return f"{told}; θ₀ has no head start over a net from scratch here, so there is nothing to defend."
    most = "at most " if row["reached_scratch"] < row["seeds"] and not never else ""
    low, high = row["place_low"], row["place_high"]
    told_apart = "complete" if low > 0.75 else "in between" if low > 0 else "not told apart from void"
    where = "void" if high < 0.25 else told_apart
    places = (round(row[f"place{end}"], 2) + 0.0 for end in ("", "_low", "_high"))  # no -0.00
    place = "{:.2f} ({:.2f} to {:.2f})".format(*places)
    return f"{told}; from void (0) to complete (1) {most}{place}: {where}."


def from_scratch(backbone: Backbone, seed: int, images: Tensor) -> Backbone:
    """Return the same architecture with weights drawn anew, and BatchNorm's statistics of these images.

    As they are drawn, statistics are 0 and 1, with which the features of a deep net are nearly constant.
    """
    made = Backbone(
        backbone.name,
        trainable=backbone.split.trainable,
        num_classes=backbone.num_classes,
        seed=SCRATCH_SEED + seed,
        **backbone.model_arguments,
    )
    norms = [part for part in made.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [part.momentum for part in norms]
    for part in norms:
        part.reset_running_stats()
        part.train().momentum = None  # a plain mean over all batches
    with torch.no_grad():
        for batch in images.split(CHUNK) if norms else ():
            made(batch)
    for part, momentum in zip(norms, momenta, strict=True):
        part.eval().momentum = momentum
    return made


def deep_attack_panel(
    theta_0: nn.Module,
    theta_i: nn.Module | Mapping[str, nn.Module],
    train: Pixels,
    test: Pixels,
    *,
    scratch: nn.Module | None = None,
    pretrain_test: Pixels | None = None,
    attackers: Iterable[str] = ATTACKERS,
    shots: Sequence[int] = SHOTS,
    budget: DeepBudget | None = None,
    seeds: Sequence[int] = (0,),
    device: str | torch.device = "cpu",
) -> DeepAttackReport:
    """Attack θ₀, θ_I and the same net from scratch, each by every attacker with few and with many rows.

    Every attacker has the same number of trials over its learning rates, on every net, chosen on held-out
    harmful rows. Nets are attacked with different random numbers: the intervals hold that luck.

    Args:
        theta_0: Before immunization: a `Backbone`, or any module from images to features `(B, D)`.
        theta_i: After it; several by the names of their methods.
        train: D_H's images that the attacker may have (`load_pixels`).
        test: D_H's test images, on which accuracy is measured.
        scratch: The same architecture with weights drawn anew; of a `Backbone` it is made here.
        pretrain_test: D_P's, for what is left of the benign task after an attack.
        attackers: Names (`DeepAttacker.named`).
        shots: Rows of each class; 0 for all.
        budget: Steps, trials, batch size.
        seeds: Of rows, heads, batches.
        device: `auto`, `cpu`, `cuda[:i]`.

    Returns:
        The report.

    Raises:
        UnknownNameError: No such attacker.
        InvalidInputError: Classes that differ, too few rows, or every trial diverges.
    """
    budget, chosen = budget or DeepBudget(), [DeepAttacker.named(name) for name in attackers]
    if train.classes != test.classes:
        raise InvalidInputError(f"train has {train.classes} classes and test {test.classes}; use the same.")
    if scratch is None:
        if not isinstance(theta_0, Backbone):
            raise InvalidInputError(
                f"a {type(theta_0).__name__} cannot be drawn anew here; give scratch=, the same architecture "
                "with new weights."
            )
        scratch = from_scratch(theta_0, seeds[0], train.images)
    name = str(getattr(theta_0, "name", type(theta_0).__name__))
    made = theta_i if isinstance(theta_i, Mapping) else {"theta_i": theta_i}
    runs = {}
    for index, (net, theta) in enumerate({THETA_0: theta_0, **made, SCRATCH: scratch}.items()):
        target = Target(theta, train, test, pretrain_test=pretrain_test, device=device)
        for attacker, count, seed in itertools.product(chosen, shots, seeds):
            found = attack(target, attacker, shots=count, budget=budget, seed=seed, stream=index)
            runs[Place(name, net, attacker.name, count, seed)] = found
    return DeepAttackReport(runs, budget, {count: len(train.few(count, 0)) for count in shots})
