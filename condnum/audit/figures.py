"""The figures of an audit: spectra, how κ moves with its conventions, overlaps, attackers."""

from __future__ import annotations

from typing import Any

import numpy as np

from condnum.audit.measures import LABELS, RAW
from condnum.audit.result import Audit
from condnum.errors import require
from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, finish, log_axis, overlap_map

#: Colour and dash of each extractor; the dash is a second code beside colour.
_LOOK = {
    "raw": (NEUTRAL, "dot"),
    "theta": (BLUE, "solid"),
    "theta_0": (GREEN, "dash"),
    "theta_i": (BLUE, "solid"),
    "optimal": (ORANGE, "dashdot"),
    "front": (PURPLE, "longdash"),
}
_HTML = {"theta_0": "θ<sub>0</sub>", "theta_i": "θ<sub>I</sub>"}


def spectra_figure(found: Audit) -> Any:
    """Draw the spectra of both tasks' features with the rank tolerance and ε."""
    figure = _two(("D<sub>P</sub>, pre-training task", "D<sub>H</sub>, harmful task"))
    drawn = []
    for column, task in enumerate((found.pretrain, found.harmful), start=1):
        sigma = np.array(task.spectrum)
        floor = max(found.rtol * sigma[0] / 1e3, 1e-300)
        values = np.maximum(sigma, floor)
        drawn.append(values)
        index = np.arange(1, len(sigma) + 1)
        figure.add_scatter(
            x=index, y=values, mode="markers", name="eigenvalues of K", showlegend=column == 1,
            legendgroup="K", marker={"color": BLUE if column == 1 else ORANGE, "size": 6}, customdata=sigma,
            hovertemplate="σ<sub>%{x}</sub> = %{customdata:.3e}", row=1, col=column,
        )  # fmt: skip
        for name, level, dash, color in (
            ("rank tolerance", found.rtol * sigma[0], "dash", PURPLE),
            ("ridge ε", found.ridge, "dot", NEUTRAL),
        ):
            if level < floor:
                continue
            figure.add_scatter(
                x=[0.5, len(sigma) + 0.5], y=[level, level], mode="lines", name=name, legendgroup=name,
                showlegend=column == 1, line={"color": color, "dash": dash, "width": 2},
                hovertemplate="%{y:.2e}", row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(title_text="index i")
    figure.update_yaxes(**log_axis("", np.concatenate(drawn)))
    figure.update_yaxes(title_text="eigenvalue σ<sub>i</sub> of K = XᵀX", col=1)
    note = f"{_rows(found)}. What is below the tolerance counts as zero and lies on the floor"
    return _legend(finish(figure, "Spectra of the features", note))


def sensitivity_figure(found: Audit) -> Any:
    """Draw RIR against the rank tolerance (compact) and against ε (ridge), with the ceiling."""
    figure = _two(("compact: against the rank tolerance", "ridge, unit scale: against ε"), shared_y=False)
    left, right = found.rtol_sweep, found.ridge_sweep
    for pair in found.compared:
        if pair.baseline != RAW:
            continue
        color, dash = _LOOK[pair.extractor]
        label = _HTML.get(pair.extractor, LABELS[pair.extractor])
        for column, (table, x) in enumerate(((left, "rtol"), (right, "ridge")), start=1):
            rows = table[(table["extractor"] == pair.extractor) & (table["baseline"] == RAW)]
            figure.add_scatter(
                x=rows[x], y=rows["rir"], mode="lines+markers", name=label, legendgroup=pair.extractor,
                showlegend=column == 1, line={"color": color, "dash": dash, "width": 2.5},
                hovertemplate="%{x:.1e}: RIR %{y:.3g}", row=1, col=column,
            )  # fmt: skip
    bound = left[left["baseline"] == RAW].drop_duplicates("rtol")
    bound = bound[np.isfinite(bound["rir_ceiling"])]
    figure.add_scatter(
        x=bound["rtol"], y=bound["rir_ceiling"], mode="lines", name="ceiling, where finite",
        line={"color": PURPLE, "width": 5}, opacity=0.5, hovertemplate="%{x:.1e}: at most %{y:.3g}",
        row=1, col=1,
    )  # fmt: skip
    for column, value in ((1, found.rtol), (2, found.ridge)):
        figure.add_vline(x=value, line_color=NEUTRAL, line_dash="dot", row=1, col=column)
        figure.add_hline(y=1, line_color=NEUTRAL, line_width=1, row=1, col=column)
    for column, title, values in (
        (1, "rank tolerance, relative to σ₁", left["rtol"]), (2, "ridge ε (units of K)", right["ridge"]),
    ):  # fmt: skip
        decades = float(np.log10(values.max() / values.min()))  # half a figure's width: five labels at most
        axis = {**log_axis(title, values), "dtick": max(1, int(np.ceil(decades / 5))), "tickangle": 0}
        figure.update_xaxes(**axis, row=1, col=column)
    ceilings = np.concatenate([left["rir"], bound["rir_ceiling"]])
    figure.update_yaxes(**log_axis("RIR against raw features", ceilings), row=1, col=1)
    figure.update_yaxes(**log_axis("", right["rir"]), row=1, col=2)
    note = f"{_rows(found)}. Dotted: what this audit uses; a verdict that moves here is one on conventions"
    return _legend(finish(figure, "How RIR depends on the rank tolerance and on ε", note))


def overlap_figure(found: Audit) -> Any:
    """Draw how the eigenvectors of both tasks lie to each other."""
    go = require("plotly.graph_objects", "viz")
    overlaps, D = found.overlaps, found.pretrain.dimension
    figure = go.Figure()
    figure.add_heatmap(
        **overlap_map(
            overlaps, D, x=0, xanchor="left", y=1.02, yanchor="bottom", lenmode="pixels", len=230, ypad=0
        )
    )
    figure.update_xaxes(title_text="direction j of D<sub>H</sub>", constrain="domain", constraintoward="left")
    figure.update_yaxes(
        title_text="direction i of D<sub>P</sub>", autorange="reversed", scaleanchor="x", constrain="domain",
        constraintoward="top",
    )  # fmt: skip
    blocks = "" if len(overlaps) == D else f", {D} directions in {len(overlaps)} blocks"
    note = f"|q<sub>P,i</sub>ᵀq<sub>H,j</sub>|²{blocks}; bright diagonal: shared directions"
    return finish(figure, "Overlaps of the tasks' directions", note, height=560).update_layout(margin_t=130)


def attack_figure(found: Audit) -> Any:
    """Draw the immunization factor of every attacker, for every extractor that was attacked."""
    go = require("plotly.graph_objects", "viz")
    report = found.attack.report
    table = None if report is None else report.at(report.factors, None).dropna(subset="factor")
    if report is None or table is None or table.empty:
        return None
    figure = go.Figure()
    for name in dict.fromkeys(table["extractor"]):
        rows = table[table["extractor"] == name]
        color, _ = _LOOK[str(name)]
        symbols = ["circle" if bound == "exact" else "triangle-right-open" for bound in rows["bound"]]
        figure.add_scatter(
            x=rows["factor"], y=rows["label"], mode="markers", name=_HTML.get(str(name), LABELS[str(name)]),
            marker={"color": color, "size": 11, "symbol": symbols, "line": {"width": 2, "color": color}},
            customdata=rows[["baseline_steps", "steps"]],
            hovertemplate="factor %{x:.3g} (%{customdata[0]:.0f} → %{customdata[1]:.0f} steps)",
        )  # fmt: skip
    figure.add_vline(x=1, line_color=NEUTRAL, line_width=2)
    figure.update_xaxes(**log_axis("factor (1: not slowed)", table["factor"]), tickangle=0)
    if table["factor"].max() < 20 * table["factor"].min():  # powers of ten would be one tick
        figure.update_xaxes(tickvals=[m * 10.0**k for k in range(-6, 9) for m in (1, 2, 5)], minor=None)
    figure.update_yaxes(autorange="reversed")
    note = f"steps with it / without, to {100 * report.budget.headline:g} % excess loss; ▷: at least"
    shown = 180 + 30 * table["label"].nunique()
    return _legend(finish(figure, "How much slower attackers become", note, height=shown))


def _two(titles: tuple[str, str], *, shared_y: bool = True) -> Any:
    """Return two empty panels."""
    subplots = require("plotly.subplots", "viz")
    return subplots.make_subplots(
        rows=1, cols=2, subplot_titles=titles, shared_yaxes=shared_y,
        horizontal_spacing=0.06 if shared_y else 0.11,
    )  # fmt: skip


def _legend(figure: Any) -> Any:
    """Put the legend below the panels and their titles."""
    figure.update_layout(
        legend={
            "orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom", "title_text": "",
        },
        margin_b=120,
    )  # fmt: skip
    return figure


def _rows(found: Audit) -> str:
    """Name the data."""
    P, H = found.pretrain, found.harmful
    return f"D<sub>P</sub>: {P.rows:,d} rows, D<sub>H</sub>: {H.rows:,d} rows, {P.dimension:,d} columns"
