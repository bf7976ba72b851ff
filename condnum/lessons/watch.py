"""A figure that follows a descent while it runs: `immunize(problem, "ours", callback=Watch(problem))`."""

import time
from typing import Any

import numpy as np
import torch

from condnum.lessons.draw import Json, Panel, figure, plotly_figure
from condnum.lessons.explore import is_page
from condnum.lessons.widget import FigureView
from condnum.methods import Progress
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.page.look import BLUE, NEUTRAL, ORANGE
from condnum.probing import linear_probe

#: Seconds between two drawings, and steps of the probe whose norm ratio is drawn.
PAUSE, PROBE_STEPS = 0.25, 20


class Watch:
    """Both κ, (i) and (ii), and the norm ratio of probes, over the steps; a callback of `immunize`.

    The probes learn random targets by exact line search, and the norm ratio (Eq. 16) is what is left of the
    squared distance after `PROBE_STEPS` steps at each recorded θ.
    """

    def __init__(self, problem: ImmunizationProblem) -> None:
        self.rows: list[tuple[float, ...]] = []  # step, (ii), (i), norm ratio on D_P and on D_H
        self._view: FigureView | None = None  # what stands in the notebook while it runs
        self._drawn, tasks = 0.0, (problem.benign, problem.harmful)
        solution = torch.from_numpy(np.random.default_rng(0).normal(size=problem.dimension))
        self._probed = [task.aimed_at((task.root @ solution)[:, None]) for task in tasks]
        self._kappa = [task.kappa for task in tasks]

    def __call__(self, progress: Progress) -> None:
        """Take over a recorded step, and draw it unless that has just been done."""
        if not progress.record:
            return
        kappa = [progress.record[f"kappa_{task}"] for task in ("benign", "harmful")]
        ratios = (value / start for value, start in zip(kappa, self._kappa, strict=True))
        probes = (linear_probe(progress.theta, task, steps=PROBE_STEPS) for task in self._probed)
        self.rows.append((progress.step, *ratios, *(float(probe.norm_ratio[-1]) for probe in probes)))
        if is_page() or time.monotonic() - self._drawn < PAUSE:
            return
        self._drawn = time.monotonic()
        if self._view:
            self._view.change(self.draw())
            return
        from IPython.display import display  # the notebook is there

        self._view = FigureView(self.draw())
        display(self._view)

    def show(self) -> Any:
        """Draw all that has come, and return the figure unless it stands there live."""
        if self._view is None:
            return plotly_figure(self.draw())
        return self._view.change(self.draw())

    def draw(self) -> Json:
        """Return the figure of the recorded steps."""
        t, benign, harmful, *left = np.array(self.rows or np.full((1, 5), np.nan), dtype=np.float64).T
        kappas, ratios, probes = (
            Panel("both κ", x="step t", y="κ", log="y"),
            Panel("the two ratios of Eq. 15", x="step t", y="ratio", log="y"),
            Panel(f"probes after {PROBE_STEPS} steps", x="step t", y="norm ratio (Eq. 16)", ylim=(0, 1.03)),
        )
        tasks = zip("PH", (BLUE, ORANGE), self._kappa, (benign, harmful), left, strict=True)
        for task, color, start, ratio, norm in tasks:
            name = f"D<sub>{task}</sub>"
            kappas.line(f"κ, {name}", t, ratio * start, color, hover="t = %{x:,d}: κ = %{y:.4g}")
            probes.line(f"norm ratio, {name}", t, norm, color, "dot", hover="t = %{x:,d}: %{y:.3g} left")
        ratios.line("(i), harmful: more is better", t, harmful, ORANGE, "dash", hover="(i) = %{y:.4g}")
        ratios.line("(ii), benign: at most 1", t, benign, BLUE, "dash", hover="(ii) = %{y:.4g}")
        ratios.line("unchanged", t[[0, -1]], [1.0, 1.0], NEUTRAL, "longdash", width=1.5)
        now = f", step {t[-1]:,.0f}: (i) = {num(harmful[-1])}, (ii) = {num(benign[-1])}"
        return figure([kappas, ratios, probes], f"Immunization{now if self.rows else ' has not started'}")
