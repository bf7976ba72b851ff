"""What deep attacks say together: one goal, the cheapest success, paired factors beside A against A."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from condnum.deep.attacks.attack import DeepAttackRun, attack
from condnum.deep.attacks.attackers import ATTACKERS, SHOTS, DeepAttacker, DeepBudget
from condnum.deep.attacks.target import Pixels, Target, TrunkOutputs, from_scratch
from condnum.errors import InvalidInputError

#: References of a panel: θ₀, θ₀ once more with other random numbers (A against A), and the drawn net.
THETA_0, AGAIN, SCRATCH = "theta_0", "theta_0 again", "scratch"

#: Goals: fractions of the way from chance to the best attacker's accuracy on θ₀.
FRACTIONS = (0.5, 0.8, 0.9, 0.95)

#: Level of the intervals, and the least head start of θ₀ over a net from scratch (a factor of steps) that a
#: protection score needs.
_LEVEL = 0.95
HEAD_START = 1.25

Steps = NDArray[np.float64]


class AttackKey(NamedTuple):
    """One net's attack, by what names it."""

    backbone: str
    net: str
    attacker: str
    shots: int  # examples per class; 0: all
    seed: int


def first_reached(x: Steps, accuracy: Steps, goal: float) -> float:
    """Return where a curve `(T,)` first reaches a goal, interpolated in log x from 1 on; NaN if nowhere."""
    over = accuracy >= goal
    if not over.any():
        return math.nan
    index, log = int(np.argmax(over)), np.log(np.maximum(x, max(1.0, x[0])))
    if index == 0:
        return float(np.exp(log[0]))
    return float(np.exp(np.interp(goal, accuracy[index - 1 : index + 1], log[index - 1 : index + 1])))


def t_interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of independent values and the ends of its 95 % t-interval; NaN ends for one value."""
    from scipy.stats import t

    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return mean, math.nan, math.nan
    half = float(t.ppf((1 + _LEVEL) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return mean, mean - half, mean + half


def compare_needs(needs: Mapping[str, Steps], most: float) -> dict[str, Any]:
    """Compare the steps `(seeds, repeats)` that an attacker needs on θ_I and from scratch with those on θ₀.

    NaN stands for a missed goal, `most` for the budget (NaN for what is solved, which has no factor). An
    attack on θ_I that misses the goal counts as `most`: the factor is a lower bound, and the upper end of its
    interval infinite. If one on θ₀ misses it there is no factor. The unit of replication is the seed, of one
    seed the repeat: log-factors are averaged within it, then come mean and t-interval.

    The protection score is 0 where the attack on θ_I is as fast as on θ₀ and 1 where it is no faster than
    from scratch: an upper bound where scratch misses the goal, a lower one where θ_I does, NaN where both do
    or θ₀'s head start is below 1.25. `noise` is the largest factor between θ₀ and θ₀ again.
    """
    row: dict[str, Any] = {"seeds": len(needs[THETA_0]), "attacks": needs[THETA_0].size}
    reached = {net: int((~np.isnan(found)).sum()) for net, found in needs.items()}
    logs = {net: np.log(np.where(np.isnan(found), most, found)) for net, found in needs.items()}
    row |= {f"needs_{net}": float(np.exp(of.mean())) for net, of in logs.items() if net != AGAIN}
    row |= {f"reached_{net}": reached[net] for net in logs if net != AGAIN}
    missed = {net for net, count in reached.items() if count < row["attacks"]}
    slower, start = (logs[net] - logs[THETA_0] for net in ("theta_i", SCRATCH))
    if row["seeds"] > 1:
        slower, start = slower.mean(axis=1), start.mean(axis=1)
    known = THETA_0 not in missed and not math.isnan(most)
    factor = np.exp(t_interval(slower.ravel())) if known else np.full(3, math.nan)
    if known and "theta_i" in missed:
        factor[2] = math.inf
    ahead = known and start.min() > math.log(HEAD_START) and not {"theta_i", SCRATCH} <= missed
    protection = t_interval((slower / start).ravel()) if ahead else [math.nan] * 3
    for name, values in (("factor", factor), ("protection", protection)):
        row |= {f"{name}{end}": float(v) for end, v in zip(("", "_low", "_high"), values, strict=True)}
    noise = np.abs(logs[AGAIN] - logs[THETA_0]).max() if known and AGAIN in logs else math.nan
    return row | {"noise": float(np.exp(noise))}


def effect(row: Any) -> str:
    """Say in words what a row of `DeepAttackReport.factors` shows; a slowdown has to leave the A/A range."""
    if DeepAttacker.named(row["attacker"]).closed_form:
        arrives = row["reached_theta_i"] == row["attacks"]
        return "reaches the goal at once" if arrives else "misses the goal"
    if math.isnan(row["factor"]):
        return "not comparable: missed on θ₀"
    inside = 1 / row["noise"] <= row["factor"] <= row["noise"]
    if inside or not (row["factor_low"] > 1 or row["factor_high"] < 1):
        return "no measurable slowdown"
    return "slowdown" if row["factor"] > 1 else "faster on θ_I"


@dataclass(frozen=True, eq=False)
class DeepAttackReport:
    """A panel of attacks on a θ₀, what was made of it, and the same net from scratch."""

    runs: Mapping[AttackKey, DeepAttackRun]
    budget: DeepBudget
    chance: float  # fraction of the most common class of the test images

    @property
    def methods(self) -> list[str]:
        """What made each θ_I."""
        return list(dict.fromkeys(p.net for p in self.runs if p.net not in (THETA_0, AGAIN, SCRATCH)))

    def examples(self, place: AttackKey) -> int:
        """Return the examples that an attacker sees in a step, or in a pass of what is solved."""
        rows = self.runs[place].rows
        return rows if DeepAttacker.named(place.attacker).full_batch else min(rows, self.budget.batch_size)

    def goal(self, place: AttackKey, fraction: float) -> float:
        """Return chance + fraction × (best attacker's accuracy on θ₀ − chance): one goal for all attackers.

        The best is that of this net and seed with as many examples, in the end, mean over repeats.
        """
        where = (place.backbone, THETA_0, place.shots, place.seed)
        best = max(
            run.final_accuracy
            for p, run in self.runs.items()
            if (p.backbone, p.net, p.shots, p.seed) == where
        )
        return self.chance + fraction * (best - self.chance)

    def needs(self, place: AttackKey, fraction: float) -> Steps:
        """Return the steps of each repeat `(R,)` to the goal; NaN if missed."""
        run, goal = self.runs[place], self.goal(place, fraction)
        return np.array([first_reached(run.steps.astype(float), curve, goal) for curve in run.accuracy])

    def table(self) -> pd.DataFrame:
        """Return a row an attack: chosen trial, accuracies before and after, examples, seconds."""
        return pd.DataFrame(
            {
                **place._asdict(),
                "label": DeepAttacker.named(place.attacker).label,
                "rows": run.rows,
                "chosen": run.chosen,
                "at_edge": run.at_edge,
                "layer": run.layer,
                "repeats": len(run.accuracy),
                "start_accuracy": run.accuracy[:, 0].mean() if len(run.steps) > 1 else math.nan,
                "final_accuracy": run.final_accuracy,
                "steps": int(run.steps[-1]),
                "examples": int(run.steps[-1]) * self.examples(place),
                "benign_accuracy": run.benign_accuracy,
                "seconds": run.seconds,
            }
            for place, run in self.runs.items()
        )

    def trials(self) -> pd.DataFrame:
        """Return the trials of every attack, and the test accuracy of the best so far by held-out images."""
        return pd.concat([run.trials.assign(**place._asdict()) for place, run in self.runs.items()])

    def curves(self) -> pd.DataFrame:
        """Return test accuracy against steps and examples of every repeat."""
        parts = [
            pd.DataFrame({"step": run.steps, "examples": run.steps * self.examples(place), "accuracy": curve})
            .assign(epochs=lambda part, rows=run.rows: part["examples"] / rows)
            .assign(**place._asdict(), repeat=repeat)
            for place, run in self.runs.items()
            for repeat, curve in enumerate(run.accuracy)
        ]  # fmt: skip
        return pd.concat(parts, ignore_index=True)

    def sgrc(self) -> pd.DataFrame:
        """Return `SGRC = (M(θ₀) − M(θ_I)) / M(θ₀)` in percent, M the attacker's accuracy, along the attack.

        A row for each backbone, net, attacker, examples per class and step: mean and standard deviation over
        `pairs` of the same seed and repeat, and both accuracies. The rows of `theta_0 again` show what it is
        where nothing differs.
        """
        table = self.curves()
        pair = ["backbone", "attacker", "shots", "seed", "repeat", "step"]
        start = table[table["net"] == THETA_0][[*pair, "accuracy"]]
        both = table[table["net"] != THETA_0].merge(start, on=pair, suffixes=("", "_theta_0"))
        both["sgrc"] = 100 * (1 - both["accuracy"] / both["accuracy_theta_0"])
        where = ["backbone", "net", "attacker", "shots", "step", "epochs"]
        return both.groupby(where, sort=False, as_index=False).agg(
            sgrc=("sgrc", "mean"), sgrc_std=("sgrc", "std"), pairs=("sgrc", "count"),
            accuracy=("accuracy", "mean"), accuracy_theta_0=("accuracy_theta_0", "mean"),
        )  # fmt: skip

    def factors(self, fractions: Sequence[float] = FRACTIONS) -> pd.DataFrame:
        """Return a row for each backbone, method, examples per class, fraction and attacker (`compare`).

        The first row of each group is the cheapest attack that succeeds: it reaches the goal on θ_I in every
        repeat, after `examples_theta_i`. Those that miss it come last, the most accurate first.
        """
        keys = dict.fromkeys((place.backbone, place.shots, place.attacker) for place in self.runs)
        rows = [
            row
            for (where, method, fraction) in itertools.product(keys, self.methods, fractions)
            if (row := self._row(where, method, fraction))
        ]
        table = pd.DataFrame(rows)
        if table.empty:
            return table
        groups = table[["backbone", "shots", "method", "fraction"]].apply(tuple, axis=1)
        order = pd.factorize(groups)[0], table["examples_theta_i"].fillna(math.inf), -table["final_theta_i"]
        return table.iloc[np.lexsort(order[::-1])].reset_index(drop=True)

    def _row(self, where: tuple[str, int, str], method: str, fraction: float) -> dict[str, Any]:
        """Compare one attacker on all nets; empty where a net was not attacked."""
        own = [place for place in self.runs if (place.backbone, place.shots, place.attacker) == where]
        backbone, shots, attacker = where
        names = {THETA_0: THETA_0, "theta_i": method, SCRATCH: SCRATCH, AGAIN: AGAIN}
        by_net = {name: {p.seed: p for p in own if p.net == net} for name, net in names.items()}
        by_net = {name: of for name, of in by_net.items() if of or name != AGAIN}
        seeds = sorted(set.intersection(*(set(of) for of in by_net.values())))
        if not seeds:
            return {}
        of_nets = {name: [of[seed] for seed in seeds] for name, of in by_net.items()}
        needs = {name: np.array([self.needs(p, fraction) for p in of]) for name, of in of_nets.items()}
        kind = DeepAttacker.named(attacker)
        step = float(np.mean([self.examples(place) for place in of_nets[THETA_0]]))
        row: dict[str, Any] = {"backbone": backbone, "method": method, "attacker": attacker}
        row |= {"label": kind.label, "shots": shots, "fraction": fraction}
        row["goal"] = float(np.mean([self.goal(place, fraction) for place in of_nets[THETA_0]]))
        row |= compare_needs(needs, math.nan if kind.closed_form else float(self.budget.steps))
        for name in (THETA_0, "theta_i"):
            arrives = row[f"reached_{name}"] == row["attacks"]
            row[f"examples_{name}"] = step * row[f"needs_{name}"] if arrives else math.nan
        row["examples_budget"] = math.nan if kind.closed_form else step * self.budget.steps
        row["effect"] = effect(row)
        for name in (THETA_0, "theta_i", SCRATCH):
            runs = [self.runs[place] for place in of_nets[name]]
            row[f"final_{name}"] = float(np.mean([run.final_accuracy for run in runs]))
            row[f"benign_{name}"] = float(np.mean([run.benign_accuracy for run in runs]))
        chosen = dict.fromkeys(self.runs[place].layer for place in of_nets["theta_i"])
        row["layer_theta_i"] = ", ".join(filter(None, chosen))
        row["at_edge"] = sum(self.runs[p].at_edge for n, of in of_nets.items() if n != AGAIN for p in of)
        return row


def cheapest_attack(rows: pd.DataFrame) -> str:
    """Name the cheapest attack that succeeds, of rows of `DeepAttackReport.factors` in their order."""
    first = rows.iloc[0]
    goal = f"{100 * first['goal']:.1f} %"
    if math.isnan(first["examples_theta_i"]):
        return f"No attack in this panel reaches {goal} on θ_I in every repeat within its budget."
    return (
        f"The cheapest successful attack is {first['label']}: it reaches {goal} on θ_I after "
        f"{first['examples_theta_i']:,.0f} examples."
    )


def deep_attack_panel(
    theta_0: nn.Module,
    theta_i: nn.Module | Mapping[str, nn.Module],
    train: Pixels,
    test: Pixels,
    *,
    fresh: Pixels | None = None,
    scratch: nn.Module | None = None,
    benign_train: Pixels | None = None,
    benign_test: Pixels | None = None,
    attackers: Iterable[str] = ATTACKERS,
    shots: Sequence[int] = SHOTS,
    budget: DeepBudget | None = None,
    seeds: Sequence[int] = (0,),
    device: str | torch.device = "cpu",
) -> DeepAttackReport:
    """Attack θ₀, θ_I and the same net from scratch, each by every attacker with few and with many examples.

    Every attacker has the same number of trials over its learning rates, on every net, chosen on held-out
    harmful images. A repeat has the same new head and batches on every net. θ₀ is attacked a second time,
    as if it were θ_I, with other heads and batches: the range of A against A, which an effect has to leave.

    Args:
        theta_0: Before immunization: a `Backbone`, or any module from images to features `(B, D)`.
        theta_i: After it; several by the names of their methods.
        train: D_H's images that the attacker may have (`load_pixels`).
        test: D_H's test images, on which accuracy is measured.
        fresh: Images of D_H on which θ_I was not trained, for attackers named `fresh-…`.
        scratch: The same architecture with weights drawn anew; of a `Backbone` it is made here.
        benign_train: Training images of D_P, for attackers named `benign-…`.
        benign_test: D_P's test images, for what is left of the benign task after an attack.
        attackers: Names (`DeepAttacker.named`).
        shots: Examples per class; 0 for all.
        budget: Steps, trials, repeats, batch size.
        seeds: Of images, heads, batches.
        device: `auto`, `cpu`, `cuda[:i]`.

    Returns:
        The report.

    Raises:
        UnknownNameError: No such attacker.
        InvalidInputError: Classes that differ, too few examples, or every trial diverges.
    """
    budget, chosen = budget or DeepBudget(), [DeepAttacker.named(name) for name in attackers]
    if train.classes != test.classes:
        raise InvalidInputError(
            f"train has {train.classes} classes and test has {test.classes}; use the same classes for both."
        )
    scratch = from_scratch(theta_0, seeds[0], train.images) if scratch is None else scratch
    name = str(getattr(theta_0, "name", type(theta_0).__name__))
    made = theta_i if isinstance(theta_i, Mapping) else {"theta_i": theta_i}
    nets = {THETA_0: theta_0, AGAIN: theta_0, **made, SCRATCH: scratch}
    runs, kept = {}, TrunkOutputs()
    for net, theta in nets.items():
        benign = {"benign_train": benign_train, "benign_test": benign_test}
        target = Target(theta, train, test, fresh=fresh, **benign, device=device, kept=kept)
        for attacker, count, seed in itertools.product(chosen, shots, seeds):
            if net == AGAIN and attacker.closed_form:
                continue  # nothing is drawn
            again = net == AGAIN
            found = attack(target, attacker, shots=count, budget=budget, seed=seed, again=again)
            runs[AttackKey(name, net, attacker.name, count, seed)] = found
    return DeepAttackReport(runs, budget, test.chance)
