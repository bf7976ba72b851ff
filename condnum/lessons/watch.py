"""A figure that follows a descent while it runs: `immunize(problem, "ours", callback=Watch(problem))`."""

import time
from importlib import import_module
from typing import Any

import numpy as np
import torch

from condnum.lessons.frame.sheet import Sheet
from condnum.lessons.frame.widget import FigureView, payload_json
from condnum.methods import Progress
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.page.style import BLUE, NEUTRAL, ORANGE, log_axis
from condnum.probing import linear_probe

#: Seconds between two drawings, and steps of the probe whose norm ratio is drawn.
PAUSE, PROBE_STEPS = 0.25, 20


class Watch(FigureView):
    """Both κ, (i) and (ii), and the norm ratio of probes, over the steps; a callback of `immunize`.

    The probes learn random targets by exact line search, and the norm ratio (Eq. 16) is what is left of the
    squared distance after `PROBE_STEPS` steps at each recorded θ.
    """

    def __init__(self, problem: ImmunizationProblem, *, static: bool = False) -> None:
        self.static = static  # draw at the end alone
        self.rows: list[tuple[float, ...]] = []  # step, (ii), (i), norm ratio on D_P and on D_H
        self._tasks, self._drawn, self._displayed = (problem.benign, problem.harmful), 0.0, False
        solution = torch.from_numpy(np.random.default_rng(0).normal(size=problem.dimension))
        self._probed = [task.aimed_at((task.root @ solution)[:, None]) for task in self._tasks]
        self._kappa = [task.kappa for task in self._tasks]
        super().__init__(self.draw())

    def __call__(self, progress: Progress) -> None:
        """Take over a recorded step, and draw it unless that has just been done."""
        if not progress.record:
            return
        kappa = [progress.record[f"kappa_{task}"] for task in ("benign", "harmful")]
        left = [
            float(linear_probe(progress.theta, task, steps=PROBE_STEPS).norm_ratio[-1])
            for task in self._probed
        ]
        self.rows.append(
            (progress.step, *(k / start for k, start in zip(kappa, self._kappa, strict=True)), *left)
        )
        if self.static or time.monotonic() - self._drawn < PAUSE:
            return
        self._update()
        if not self._displayed:
            self._displayed = True
            import_module("IPython.display").display(self._repr_mimebundle_()[0], raw=True)

    def _update(self) -> None:
        self.figure, self._drawn = self.draw(), time.monotonic()
        self.payload = payload_json(self.figure)

    def show(self) -> Any:
        """Draw all that has come, and return the figure unless it stands there live."""
        self._update()
        return self.figure if self.static or not self._displayed else None

    def draw(self) -> Any:
        """Return the figure of the recorded steps."""
        nothing = np.full((1, 5), np.nan)
        t, benign, harmful, *left = np.array(self.rows or nothing, dtype=np.float64).T
        sheet = Sheet("both κ", "the two ratios of Eq. 15", f"probes after {PROBE_STEPS} steps")
        kappas, ratios, probes = sheet.panels
        names = ("benign D<sub>P</sub>", "harmful D<sub>H</sub>")
        for name, color, start, ratio, norm in zip(
            names, (BLUE, ORANGE), self._kappa, (benign, harmful), left, strict=True
        ):
            kappas.line(f"κ, {name}", t, ratio * start, color, hover="t = %{x:,d}: κ = %{y:.4g}")
            probes.line(f"norm ratio, {name}", t, norm, color, "dot", hover="t = %{x:,d}: %{y:.3g} left")
        ratios.line("(i), harmful: more is better", t, harmful, ORANGE, "dash", hover="(i) = %{y:.4g}")
        ratios.line("(ii), benign: at most 1", t, benign, BLUE, "dash", hover="(ii) = %{y:.4g}")
        ratios.line("unchanged", t[[0, -1]], [1.0, 1.0], NEUTRAL, "longdash", width=1.5, hoverinfo="skip")
        for panel, words, drawn in ((kappas, "κ", self._kappa), (ratios, "ratio", [1.0])):
            both = np.outer(drawn, np.append(benign, harmful))
            panel.y(**log_axis(words, both))
        probes.y("norm ratio (Eq. 16)", 0, 1.03)
        for panel in sheet.panels:
            panel.x("step t")
        now = f"step {t[-1]:,.0f}: (i) = {num(harmful[-1])}, (ii) = {num(benign[-1])}"
        return sheet.finish(f"Immunization, {now}" if self.rows else "Immunization: not started")
