"""The four panels of notebook 7: overlaps on both tasks, spectra, a direction in the data."""

from typing import Any

import numpy as np

from condnum.lessons.alignment_paths import Selection
from condnum.lessons.frame.sheet import Sheet
from condnum.numbers import num
from condnum.page.style import BLUE, NEUTRAL, ORANGE, PURPLE, overlap_heatmap, translucent

#: D_P and D_H.
TASK = ("D<sub>P</sub>", "D<sub>H</sub>")
#: Height of the figure in pixels, colors of both tasks, and of the bars: u_i, q_j.
HEIGHT, COLORS, BAR_COLORS = 470, (BLUE, ORANGE), (PURPLE, NEUTRAL)
#: Negative, zero, positive: of the name "RdBu" every version of plotly has colors of its own.
DIVERGING = [[0, "#B2182B"], [0.5, "#FFFFFF"], [1, "#2166AC"]]
#: Points of a spectrum that are drawn, and columns of a table that have a bar.
POINTS, BARS = 80, 7
#: Spectra are drawn down to here.
_SPECTRUM_FLOOR = 1e-18
_EPS = 2.0**-52
#: What is chosen: a ring of this look in every panel.
RING: dict[str, Any] = {"marker": {"line": {"color": PURPLE, "width": 3}}}


def _small(title: str) -> dict[str, Any]:
    """Return the look of an axis among four panels."""
    return {"title": {"text": title, "font": {"size": 11}, "standoff": 3}, "tickfont": {"size": 10.5}}


def colored(text: str, color: str) -> str:
    """Return text in the color of what it names."""
    return f"<span style='color:{color}'>{text}</span>"


def draw(view: Selection) -> Any:
    """Draw the four panels, always of the same traces."""
    named = [colored(name, color) for name, color in zip(TASK, COLORS, strict=True)]
    maps = [f"{name}: |u<sub>i</sub>ᵀq<sub>j</sub>|²" for name in named]
    below = (f"spectrum of H: {', '.join(named)}", "the direction in the data")
    grid = {"rows": 2, "cols": 2, "vertical_spacing": 0.21}
    sheet = Sheet(*maps, *below, gap=0.09, grid=grid)
    left, right, spectra, data = sheet.panels
    draw_overlaps(left, view, 0)
    draw_overlaps(right, view, 1)
    draw_spectra(spectra, view)
    if view.tasks.shape:
        draw_images(data, view)
    else:
        draw_loadings(data, view)
    sheet.layout |= {
        "font": {"size": 12},
        "title": {"font": {"size": 15}, "y": 0.97},
        "legend": {"traceorder": "normal", "font": {"size": 11}, "y": 0.0, "entrywidth": 66},
        "margin": {"l": 50, "r": 16 if view.tasks.shape else 92, "t": 58, "b": 74},
    }
    title = f"{view.step.name}: {view.step.verdict}"
    return sheet.finish(title, height=HEIGHT, heading_size=12)


def in_shades(values: Any, shades: int) -> Any:
    """Round values to so many shades of the largest, as colors show them: recordings are half as large."""
    largest = float(np.abs(values).max()) or 1.0
    return np.round(np.asarray(values, dtype=np.float64) / largest * shades) / shades * largest


def draw_overlaps(panel: Any, view: Selection, side: int) -> None:
    """Draw a map of overlaps and frame the cell (i, j)."""
    step = view.step
    z = step["blocks"][side]
    heat = overlap_heatmap(z, view.tasks.dimension)
    centres = np.rint(heat["x"])  # what a click chooses
    # One scale along a training: of generic directions no overlap is near 1.
    most = float(step.path.arrays["blocks"][:, side].max())
    look = {"type": "heatmap", "zmin": 0, "zmax": most, "showscale": False, "showlegend": None}
    look |= {"colorscale": heat["colorscale"], "hover": heat["hovertemplate"]}
    click = {"meta": {"click": {"i": "y", "j": "x"}}}
    panel.trace(f"overlaps, {TASK[side]}", centres, centres, z=in_shades(z, 1024), **look, **click)
    panel.marks("(i, j)", [view.j], [view.i], "square-open", 11, PURPLE, hover="(i, j)", legend=False, **RING)
    half = 0.5 * (centres[1] - centres[0]) if len(centres) > 1 else 0.5
    low, high = centres[0] - half, centres[-1] + half
    panel.x("", low, high, **_small(f"j of q<sub>j</sub> of {TASK[side]}; brightest {num(most, 2)}"))
    panel.y("", high, low, **_small("i of u<sub>i</sub>"))


def directions(view: Selection) -> list[tuple[str, Any]]:
    """Return u_i, and q_j turned to its side, with their names."""
    u, q = view.step.left(view.i)[:, 0], view.tasks.vectors[view.side][:, view.j - 1]
    return [("u<sub>i</sub>", u), ("q<sub>j</sub>", q * (np.sign(q @ u) or 1))]


#: An axis of a picture.
BARE = {"showticklabels": False, "ticks": "", "showgrid": False, "zeroline": False, "showline": False}


def draw_images(panel: Any, view: Selection) -> None:
    """Draw the directions as images of the pixels, beside each other and each on its own scale."""
    shape, shown = view.tasks.shape or (1, view.tasks.dimension), directions(view)
    gap = np.full((shape[0], max(1, shape[1] // 14)), np.nan)
    left, right = (in_shades(of / np.abs(of).max(), 64).reshape(shape) for _, of in shown)
    image = np.concatenate([left, gap, right], axis=1)
    look = {"type": "heatmap", "colorscale": DIVERGING, "zmin": -1, "zmax": 1, "showscale": False}
    rows, columns = map(np.arange, image.shape)
    panel.trace("image", columns, rows, z=image, showlegend=None, hover="%{z:.2f}<extra></extra>", **look)
    title = _small(" | ".join(name for name, _ in shown))["title"]
    panel.x("", **BARE, constrain="domain", title=title)
    panel.y("", **BARE, autorange="reversed", scaleanchor="x4", constrain="domain")


def draw_loadings(panel: Any, view: Selection) -> None:
    """Draw the largest loadings of the directions as bars, in the order of the columns."""
    shown = directions(view)
    kept = np.sort(np.argsort(-np.abs(shown[0][1]), kind="stable")[:BARS])[::-1]
    columns = [view.tasks.features[k][:14] for k in kept]
    for (name, of), color in zip(shown, BAR_COLORS, strict=True):
        look = {"type": "bar", "orientation": "h", "marker": {"color": color}}
        panel.trace(name, of[kept], columns, legend=False, hover="%{label}: %{value:.3f}", **look)
    said = [colored(name, color) for (name, _), color in zip(shown, BAR_COLORS, strict=True)]
    panel.x("", autorange=True, **_small(f"loadings of {', '.join(said)}"))
    panel.y("", side="right", type="category", autorange=True, dtick=1, tickfont={"size": 10})


def draw_spectra(panel: Any, view: Selection) -> None:
    """Draw the spectra of H, Eq. 10 sorted, Ostrowski's band, and the term of σ_i."""
    D, lowest = view.tasks.dimension, 0.0
    shown = np.unique(np.linspace(0, D - 1, POINTS).round().astype(int))
    step = view.step
    for side, color in enumerate(COLORS):
        first = {"legend": side == 0}
        s, gamma, rank = step["sigma"], view.tasks.values[side], view.tasks.rank(side)
        scale = s[0] ** 2 * gamma[0]
        truth, predicted = step["spectrum"][side] / scale, step["predicted"][side] / scale
        order = np.argsort(-predicted, kind="stable")
        lower, upper = (np.maximum(s[k] ** 2 * gamma / scale, _SPECTRUM_FLOOR) for k in (-1, 0))
        around = np.concatenate([shown, shown[::-1]]) + 1
        band = np.concatenate([lower[shown], upper[shown][::-1]])
        panel.area("Ostrowski", around, band, translucent(color, 0.13), **first)
        kept = shown[truth[shown] > _SPECTRUM_FLOOR]
        hover = {"hover": "σ<sub>%{x}</sub>(H) = %{y:.2e}"}
        panel.line("true", kept + 1, truth[kept], color, width=2.5, **hover, **first)
        kept = shown[predicted[order][shown] > _SPECTRUM_FLOOR]
        click = {"customdata": order[kept] + 1, "meta": {"click": {"i": "customdata"}}}
        hover = {"hover": "Eq. 10, u<sub>%{customdata}</sub>: %{y:.2e}"}
        at = kept + 1, predicted[order][kept]
        panel.marks("Eq. 10", *at, "circle-open", 5, color, **hover, **click, **first)
        # The m-th largest term is at most what the sums of the truth leave it, by majorization.
        left = truth.cumsum() - predicted[order].cumsum() + predicted[order]
        kept = shown[left[shown] > max(_SPECTRUM_FLOOR, len(truth) * _EPS * truth[0])]
        hover = {"hover": "Schur–Horn: at most %{y:.2e}"}
        panel.line("Schur–Horn", kept + 1, left[kept], color, "dot", width=1.5, **hover, **first)
        at = np.flatnonzero(order == view.i - 1) + 1, predicted[[view.i - 1]].clip(_SPECTRUM_FLOOR)
        hover = {"hover": "term of σ<sub>i</sub>: %{y:.2e}"}
        panel.marks("σ<sub>i</sub>'s term", *at, "circle-open", 12, PURPLE, **RING, **hover, **first)
        every = step.path.arrays  # the axis stays where it is along a training
        ends = every["spectrum"][:, side, rank - 1] / (every["sigma"][:, 0] ** 2 * gamma[0])
        lowest = min(lowest, float(np.log10(ends.clip(_SPECTRUM_FLOOR)).min()))
    panel.x("", 1 - 0.03 * D, D + 0.03 * D, **_small("index, largest first"))
    look = {"log": True, "dtick": max(1, round(-lowest / 4))}
    panel.y("", lowest * 1.08 - 0.3, 0.4, **look, **_small("σ / σ<sub>θ,1</sub>²γ<sub>1</sub>"))
