"""Notebook 8: what an attacker gains in 1, 10, … and infinitely many steps, and what bounds of it say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from condnum.figures.style import GREY, NEUTRAL, method_style
from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import Choice, Explorer, ExplorerResult, Preset, Slider, with_controls
from condnum.lessons.frame.own import Own
from condnum.lessons.frame.sheet import Sheet
from condnum.lessons.slowing import POWERS, digit_tasks, path_extractor
from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.probing.attack_path import AttackPath, attack_gain, path_of_modes
from condnum.probing.quadratic import Modes
from condnum.studies.linear import SETTINGS

Defense = Literal["raw", "ours", "trap", "contract", "pareto", "shrunk", "erased"]
LABELS = {
    "raw": "raw pixels",
    "ours": "Algorithm 1",
    "trap": "trap",
    "contract": "contraction",
    "pareto": "Pareto",
    "shrunk": "shrunk, s = 0.01",
    "erased": "erased, s = 0",
}
#: Steps that are drawn, the last of them for infinitely many, at the end of the axis; and where bounds begin.
STEPS = np.r_[np.unique(np.geomspace(1, 1e6, 61).round()), np.inf]
_END, STARTS = 10**6.7, (0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 300, 1000, 10_000)
#: The top of the axis: bounds above lie there, with an arrow.
_TOP = 1.3

#: Takes σ/σ₁ `(k,)`, the energies p `(k,)` and numbers of steps `(T,)` to the gains `(T,)`.
Gain = Callable[[Floats, Floats, Floats], Floats]


@lru_cache(maxsize=1)
def defenses() -> Mapping[str, Modes]:
    """Return the harmful probe of each extractor on the attacker's rows; defenders had the eraser's rows."""
    tasks = digit_tasks()
    own, benign, attacker = tasks.eraser, tasks.benign, tasks.attacker
    problem = ImmunizationProblem.from_data(benign.X, benign.Z, own.X, own.Z)
    known: dict[str, Any] = {"raw": None, "pareto": immunize(problem).theta}
    for name in ("ours", "trap", "contract"):
        settings = SETTINGS["digits"][name].with_overrides(record_every=0)
        known[name] = immunize(problem, name, settings=settings).theta
    known |= {"shrunk": path_extractor(0.01), "erased": path_extractor(0.0)}
    task, moment = attacker.covariance, attacker.X.T @ attacker.Z
    matrices = {name: None if theta is None else torch.as_tensor(theta) for name, theta in known.items()}
    return {name: Modes.of(matrices[name], task, torch.from_numpy(moment)) for name in LABELS}


@dataclass(frozen=True)
class Horizon(ExplorerResult):
    """The gains of every defense, and what the first K steps on one of them say about all later ones."""

    gains: Mapping[str, Floats]  # at `STEPS`
    defense: Defense
    reached: float  # gain of that at K steps
    path: AttackPath  # of that, at K steps, by the library

    def figure(self) -> Any:
        """Draw a line per defense; of one, the bound and the estimate from K on."""
        sheet = Sheet()
        (panel,) = sheet.panels
        for name, gain in self.gains.items():
            (color, dash), width = _look(name), 4.5 if name == self.defense else 2
            hover = "%{x:,.0f} steps: %{y:.1%}"
            panel.line(LABELS[name], STEPS[:-1], gain[:-1], color, dash, width=width, hover=hover)
            look = {"hover": "%{y:.1%}", "legend": False}
            panel.marks(LABELS[name], [_END], gain[-1:], "circle", 5 + 1.5 * width, color, **look)
        start = max(float(self.path.steps[0]), 1.0)
        for words, value, dash in (
            ("bound on all steps", self.path.bound[0], "dash"),
            ("estimate by ĉ", self.path.estimate[0], "dot"),
        ):
            y, symbol = [min(value, _TOP)] * 2, "triangle-up" if value > _TOP else "line-ew"
            panel.line(words, [start, _END], y, _look(self.defense)[0], dash, hover=f"{num(100 * value)} %")
            panel.marks(words, [_END], y[1:], symbol, 12, _look(self.defense)[0], legend=False)
        ticks = {"tickvals": [*10.0 ** np.arange(7), _END], "ticktext": [*POWERS, "∞"]}
        panel.x("steps K of the attacker", -0.1, 6.9, type="log", **ticks)
        drawn = list(self.gains.values())
        low, high = (float(of) for of in np.clip([np.min(drawn), np.max(drawn)], -_TOP, 2 * _TOP))
        ends = min(low, 0) - 0.03, max(high, _TOP) + 0.06
        panel.y("gain, of what raw pixels allow", *ends, tickformat=".0%")
        gain = self.gains[self.defense]
        title = f"{LABELS[self.defense]}: {gain[0]:.0%} after one step, {gain[-1]:.0%} in the end"
        return sheet.finish(title, height=470, margin={"b": 130})

    def caption(self) -> str:
        """Compare what K steps show with what all steps gain."""
        path, raw, first = self.path, self.gains["raw"][0], self.gains[self.defense][0]
        promised, bound, estimate = (
            num(100 * float(of[0])) for of in (path.expected, path.bound, path.estimate)
        )
        text = (
            f"{LABELS[self.defense]}: after K = {num(path.steps[0])} steps the attacker has "
            f"{self.reached:.1%}; the first gradient promised {promised} %. "
            f"The bound on all steps is {bound} %, the estimate {estimate} %. An attacker who solves has "
            f"<b>{self.gains[self.defense][-1]:.1%}</b>."
        )
        if path.estimate[0] < 0.999 * path.limit:
            text += " <b>The estimate is below that: it is no bound.</b>"
        return text + (" The first step gains more than on raw pixels." if first > raw + 1e-9 else "")


def _look(name: str) -> tuple[str, str]:
    """Return color and dash; a method's own, as on all pages."""
    own = {"raw": (NEUTRAL, "solid"), "shrunk": (GREY, "dashdot")}
    return own.get(name) or method_style("erase" if name == "erased" else name)[1:]


@with_controls(
    defense=Choice("defense", "Extractor whose bounds are drawn.", LABELS),
    steps=Slider(
        "K", "Steps after which the bounds are computed.", 0, 10_000, values=STARTS, marks=len(STARTS)
    ),
)
def horizon(*, defense: Defense = "contract", steps: int = 10, gain: Gain = attack_gain) -> Horizon:
    """Attack every extractor by gradient descent, on rows that no defender had."""
    known = defenses()
    gains = {name: gain(of.sigma, of.energy, STEPS) for name, of in known.items()}
    at, of = np.array([float(steps)]), known[defense]
    reached = float(gain(of.sigma, of.energy, at)[0])
    return Horizon(gains, defense, reached, path_of_modes(of, at))


class HorizonExplorer(Explorer):
    """What an attacker gains in K steps, and whether a bound on later steps holds."""

    compute = staticmethod(horizon)
    own = Own("gain", attack_gain)
    presets = (
        Preset("A trap that helps the attacker", "trap, K = 10", {"defense": "trap", "steps": 10}),
        Preset("An estimate below the truth", "contraction, K = 10", {"defense": "contract", "steps": 10}),
        Preset("Slow, not stopped", "Pareto, K = 100", {"defense": "pareto", "steps": 100}),
    )
