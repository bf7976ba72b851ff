"""What is possible in the (ii)/(i) plane, as a background of figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.pareto import FeasibleRegion
from condnum.plots.style import translucent
from condnum.plots.theme import GREEN, NEUTRAL, ORANGE

#: Drawn this far beyond the corners of the region.
_FAR = 1e9


def add_region(figure: Any, region: FeasibleRegion, **place: Any) -> None:
    """Add the success quadrant of Definition 3.1, what no θ reaches, and the Pareto front."""
    common: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", **place}
    figure.add_scatter(
        x=[1 / _FAR**2, 1, 1, 1 / _FAR**2], y=[1, 1, _FAR**2, _FAR**2], fill="toself",
        fillcolor=translucent(GREEN, 0.14), line={"color": GREEN, "width": 1, "dash": "dot"},
        name="immunized: (i) > 1, (ii) ≤ 1", **common,
    )  # fmt: skip
    x, y = region_border(region)
    figure.add_scatter(
        x=x, y=y, fill="toself", fillcolor=translucent(NEUTRAL, 0.45), line={"width": 0},
        name="no θ gets here", **common,
    )  # fmt: skip
    start = region.start[0]
    ray = np.array([start, _FAR * start]) if math.isfinite(region.ceiling.value) else np.full(2, np.nan)
    figure.add_scatter(
        x=ray, y=region.highest(ray), line={"color": ORANGE, "width": 3.5},
        name="Pareto front: RIR = RIR<sub>max</sub>", **common,
    )  # fmt: skip


def region_border(region: FeasibleRegion) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the outline of what is impossible: left of θ*, above the ceiling, below the least (i)."""
    wall = 1 / region.kappa_pretrain
    knee = region.kappa_pencil / region.kappa_pretrain  # where the least (i) turns
    far = max(_FAR * wall, _FAR * knee)
    lower = np.array([far, max(knee, wall), wall])
    upper = np.array([wall, far])
    top = max(_FAR**2, far)
    high = np.minimum(region.highest(upper), top)
    bottom = 1 / _FAR / region.kappa_harmful
    x = np.concatenate([lower, upper, [wall / _FAR, wall / _FAR, far]])
    y = np.concatenate([region.lowest(lower), high, [top, bottom, bottom]])
    return x, y
