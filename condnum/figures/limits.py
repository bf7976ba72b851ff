"""Figures of the experiment on limits: limits and shares along ε, the front, and what carries it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from condnum.arrays import ArrayLike, as_tensor
from condnum.errors import InvalidInputError
from condnum.page.style import (
    BLUE,
    GREEN,
    GREY,
    LIMIT,
    NEUTRAL,
    ORANGE,
    add_line,
    empty,
    express,
    finish,
    lines_by_method,
    log_axis,
    method_style,
    panels,
    square,
    translucent,
)
from condnum.numbers import num
from condnum.theory.limits import FeasibleRegion, extractor_ratios, feasible_region, immunizer_family
from condnum.theory.task import two_tasks

#: Drawn this far beyond the corners of the region: more than the largest κ that `extractor_ratios` trusts.
_FAR = 1e32


def region_traces(region: FeasibleRegion) -> list[dict[str, Any]]:
    """Return the success quadrant of Definition 3.1, what no θ reaches, and the Pareto front."""
    # The outline of what is impossible: left of θ*, above the limit, below the least (i).
    wall = 1 / region.kappa_benign
    knee = region.kappa_pencil / region.kappa_benign  # where the least (i) turns
    far = max(_FAR * wall, _FAR * knee)
    top = max(_FAR**2, far)
    bottom = 1 / _FAR / region.kappa_harmful
    lower, upper = np.array([far, max(knee, wall), wall]), np.array([wall, far])
    x = np.concatenate([lower, upper, [wall / _FAR, wall / _FAR, far]])
    y = np.concatenate([region.lowest(lower), np.minimum(region.highest(upper), top), [top, bottom, bottom]])
    start = region.start[0]
    ray = np.array([start, _FAR * start]) if math.isfinite(region.limit.value) else np.full(2, np.nan)
    traces: list[dict[str, Any]] = [
        {
            "name": "immunized: (i) > 1, (ii) ≤ 1",
            "x": np.array([1 / _FAR**2, 1, 1, 1 / _FAR**2]),
            "y": np.array([1, 1, _FAR**2, _FAR**2]),
            "fill": "toself",
            "fillcolor": translucent(GREEN, 0.14),
            "line": {"color": GREEN, "width": 1, "dash": "dot"},
        },
        {
            "name": "unreachable",
            "x": x,
            "y": y,
            "fill": "toself",
            "fillcolor": translucent(NEUTRAL, 0.45),
            "line": {"width": 0},
        },
        {
            "name": "Pareto front: RIR = RIR<sub>max</sub>",
            "x": ray,
            "y": region.highest(ray),
            "line": {"color": LIMIT, "width": 3.5},
        },
    ]
    return [{"type": "scatter", "mode": "lines", "hoverinfo": "skip", **trace} for trace in traces]


RIDGE_TITLE = "ridge ε, in mean eigenvalues of K<sub>P</sub>"


def pair_label(benign_task: str, harmful_task: str) -> str:
    """Return a pair of tasks in a few characters."""
    names = (benign_task, harmful_task)
    if all(name.startswith("digit ") for name in names):
        return " → ".join(name.removeprefix("digit ") for name in names)
    return f"D<sub>P</sub>: {names[0]}, D<sub>H</sub>: {names[1]}"


def limits_figure(limits: pd.DataFrame, subtitle: str) -> Any:
    """Draw the limit of RIR of `K + εI` against ε, a line per pair."""
    pairs = [pair_label(*tasks) for tasks in limits[["benign_task", "harmful_task"]].to_numpy()]
    hover = "ε = %{x:.1e} mean eigenvalues = %{customdata[0]:.3g}<br>RIR<sub>max</sub> = %{y:.4g}"
    figure = express(
        "line", limits.assign(pair=pairs), x="ridge_share", y="rir_limit", color="pair",
        line_dash="pair", markers=True, custom_data="ridge",
    ).update_traces(hovertemplate=hover, line_width=2.5)  # fmt: skip
    figure.add_hline(y=1, line_color=GREY, line_width=1)
    figure.update_xaxes(**log_axis(RIDGE_TITLE, limits["ridge_share"]))
    figure.update_yaxes(**log_axis("RIR on K + εI", limits["rir_limit"]))
    title = "Theoretical limit of RIR as a function of ε"
    if len(set(pairs)) == 1:
        subtitle = f"{subtitle}. {pairs[0]}"
    return finish(figure, title, subtitle, legend="D<sub>P</sub> → D<sub>H</sub>").update_layout(
        showlegend=len(set(pairs)) > 1
    )


def shares_figure(ridged: pd.DataFrame, subtitle: str) -> Any:
    """Draw RIR as a fraction of its limit against ε, a line per method."""
    figure = empty()
    lines_by_method(
        figure, ridged.dropna(subset="rir_share"), "ridge_share", "rir_share",
        over=["benign_task", "harmful_task", "seed"], mode="lines+markers", marker={"size": 5},
        hovertemplate="ε = %{x:.1e}: %{y:.2e} of the limit (%{customdata[0]:.1e} … %{customdata[1]:.1e})",
    )  # fmt: skip
    figure.add_hline(y=1, line_color=LIMIT, line_width=3)
    figure.update_xaxes(**log_axis(RIDGE_TITLE, ridged["ridge_share"]))
    figure.update_yaxes(**log_axis("RIR / theoretical limit, on K + εI", np.r_[ridged["rir_share"], 1.0]))
    note = (
        f"{subtitle}. Line: geometric mean over pairs and seeds; "
        "band: least to largest; thick line: the theoretical limit"
    )
    return finish(figure, "Fraction of the theoretical limit that each method reaches", note, height=480)


def front_figure(points: pd.DataFrame, methods: pd.DataFrame, region: FeasibleRegion, subtitle: str) -> Any:
    """Draw one pair in the (ii)/(i) plane: what is possible, its front, and the methods."""
    figure = empty()
    figure.add_traces(region_traces(region))
    hover = "(ii) = %{x:.4g}, (i) = %{y:.4g}"
    methods = methods.dropna(subset="rir")
    family, front = (points[points["kind"] == kind] for kind in ("family", "pareto"))
    add_line(
        figure, "(K<sub>P</sub> + εI)<sup>−s/2</sup>, from I to θ*", family["benign_ratio"],
        family["harmful_ratio"], GREEN, "dash", hovertemplate=hover,
    )  # fmt: skip
    figure.add_scatter(
        x=front["benign_ratio"], y=front["harmful_ratio"], name="θ<sub>s</sub> of the front",
        mode="markers", marker={"color": LIMIT, "symbol": "star", "size": 13}, hovertemplate=hover,
    )  # fmt: skip
    for method, part in methods.groupby("method", sort=False):
        style = method_style(str(method))
        figure.add_scatter(
            x=part["benign_ratio"], y=part["harmful_ratio"], name=style.label, mode="markers",
            marker={"color": style.color, "symbol": "diamond", "size": 11, "opacity": 0.85},
            hovertemplate=hover + "<br>%{customdata:.2e} of the limit", customdata=part["rir_share"],
        )  # fmt: skip
    drawn = pd.concat([points, methods])
    for update, column, start, ratio, task in (
        (figure.update_xaxes, "benign_ratio", region.start[0], "ii", "P"),
        (figure.update_yaxes, "harmful_ratio", region.start[1], "i", "H"),
    ):
        values = np.r_[drawn[column], start, 1.0]
        logs = np.log10(values[np.isfinite(values) & (values > 0)])
        title = f"({ratio}) = κ(H<sub>{task}</sub>(θ)) / κ(H<sub>{task}</sub>(I))"
        update(**log_axis(title, values), range=[logs.min() - 0.8, logs.max() + 0.8])
    limit = region.limit
    note = (
        f"{subtitle and f'{subtitle}. '}Compact κ of K + εI, ε = {num(limit.ridge or 0)}; RIR<sub>max</sub> "
        f"= {num(limit.value, 4)}. Gray: unreachable by any θ"
    )
    title = "Both ratios of Eq. 15: the Pareto front and the methods"
    return finish(figure, title, note, height=600, legend="")


def pareto_figure(
    benign_covariance: ArrayLike,
    harmful_covariance: ArrayLike,
    extractors: Mapping[str, ArrayLike] | None = None,
    *,
    ridge: float | None = None,
    subtitle: str = "",
) -> Any:
    """Draw which pairs (ii), (i) are possible for two tasks, their Pareto front, and extractors θ by name.

    With a `ridge` ε > 0 both covariances become `K + εI`; without it a front may have no upper end.
    """
    P, H = two_tasks(benign_covariance, harmful_covariance, ridge=ridge)
    region = feasible_region(benign_covariance, harmful_covariance, ridge=ridge)
    family = [extractor_ratios(theta, P, H) for theta in immunizer_family(P, np.linspace(0, 1, 9).tolist())]
    points = pd.DataFrame(family, columns=["benign_ratio", "harmful_ratio"]).assign(kind="family")
    rows = []
    for name, matrix in (extractors or {}).items():
        theta = as_tensor(matrix, f"extractor '{name}'", ndim=2).to(P.values)
        if len(theta) != P.dimension:
            raise InvalidInputError(
                f"extractor '{name}' has shape {tuple(theta.shape)}, but the covariances are {P.dimension} × "
                f"{P.dimension}: θ must be (D, D)."
            )
        rows.append((name, *extractor_ratios(theta, P, H)))
    methods = pd.DataFrame(rows, columns=["method", "benign_ratio", "harmful_ratio"])
    rir = methods["harmful_ratio"] / methods["benign_ratio"]
    measured = methods.assign(rir=rir, rir_share=rir / region.limit.value)
    return front_figure(points, measured, region, subtitle)


#: Columns of a table that a bar chart has room for.
SHOWN_FEATURES = 12


def direction_bars(directions: pd.DataFrame, subtitle: str) -> Any:
    """Draw the inputs that make up the first and the last generalized eigenvector of a pair."""
    parts = _directions(directions)
    ends = {"most harmful": (parts[0], ORANGE), "least harmful": (parts[-1], BLUE)}
    titles = [f"{which}: λ = {num(float(part['eigenvalue'].iloc[0]))}" for which, (part, _) in ends.items()]
    figure = panels(cols=2, horizontal_spacing=0.2, subplot_titles=titles)
    for column, (part, color) in enumerate(ends.values(), start=1):
        order = part["share"].abs().sort_values(ascending=False).index[:SHOWN_FEATURES]
        shown = part.loc[order[::-1]]
        figure.add_bar(
            x=shown["share"], y=shown["feature"], orientation="h", marker_color=color, showlegend=False,
            customdata=shown[["filter", "pattern"]],
            hovertemplate="%{y}: fraction %{x:.3f}<br>filter %{customdata[0]:.3g}, pattern "
            "%{customdata[1]:.3g}<extra></extra>",
            row=1, col=column,
        )  # fmt: skip
    figure.update_xaxes(title_text="fraction of the direction's energy", zeroline=True, zerolinecolor=GREY)
    figure.update_yaxes(tickfont_size=11)
    note = (
        f"{subtitle}. λ: energy in the harmful task over energy in the pre-training task, of x<sup>T</sup>w. "
        f"Largest {SHOWN_FEATURES} columns; the fractions sum "
        "to 1, and correlated columns can have negative ones"
    )
    title = "Columns that determine the theoretical limit"
    return finish(figure, title, note, height=520).update_layout(margin_l=130)


def direction_images(directions: pd.DataFrame, subtitle: str) -> Any:
    """Draw generalized eigenvectors of a pair of digits as images: patterns above, filters below."""
    parts = _directions(directions)
    side = math.isqrt(len(parts[0]))
    figure = panels(
        rows=2, cols=len(parts), horizontal_spacing=0.02, vertical_spacing=0.05,
        subplot_titles=[
            f"λ<sub>{part['index'].iloc[0]}</sub> = {num(part['eigenvalue'].iloc[0])}" for part in parts
        ],
        row_titles=["pattern K<sub>P</sub>w", "filter w"],
    )  # fmt: skip
    for column, part in enumerate(parts, start=1):
        for row, quantity in enumerate(("pattern", "filter"), start=1):
            figure.add_heatmap(
                z=part[quantity].to_numpy().reshape(side, side), colorscale="RdBu", zmid=0, showscale=False,
                hovertemplate="row %{y}, column %{x}: %{z:.3g}<extra></extra>", row=row, col=column,
            )  # fmt: skip
    note = (
        f"{subtitle}. Left: features with the most harmful-task energy relative to pre-training energy; "
        "right: with the least. Blue: positive, red: negative, each image on its own scale"
    )
    finish(figure, "Pixels that determine the theoretical limit", note, height=520)
    figure.update_xaxes(visible=False).update_yaxes(visible=False, autorange="reversed")
    return square(figure).update_layout(margin_r=40)


def _directions(directions: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the directions of a pair, the most harmful first."""
    return [part for _, part in directions.groupby("index", sort=True)]
