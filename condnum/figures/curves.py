"""Figures of the tidy curves table: norm ratios (Fig. 1), spectra and condition-number histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
from scipy.stats import gmean

from condnum.errors import InvalidInputError
from condnum.figures.style import (
    TASK_TITLES,
    add_band,
    add_line,
    empty,
    finish,
    log_axis,
    method_style,
    panels,
)

#: Ratios below this are round-off of float64 and not drawn.
FLOOR = 1e-32

#: Where a ridge is added: to what, the axis of RIR then, and what bounds it.
_RIDGED = {
    "covariance": ("both covariances", "RIR on K + εI", "ceiling"),
    "condition number": (
        "σ<sub>1</sub> and σ<sub>D</sub>", "RIR, ridge convention, θ at unit scale", "bound"
    ),
}  # fmt: skip


def norm_ratio_figure(curves: pd.DataFrame, subtitle: str, *, hidden: Sequence[str] = ()) -> Any:
    """Draw Fig. 1: the norm ratio of Eq. 16 against the step, per task and method."""
    figure = _two_panels()
    table = _only(curves, "norm_ratio")
    _add_bands(figure, table, hidden, skip_zero=True)
    figure.update_xaxes(**log_axis("step of exact line search", table["x"]))
    vertical = log_axis("", table["value"].clip(lower=FLOOR))
    figure.update_yaxes(**vertical)
    figure.update_yaxes(title_text="‖w<sub>t</sub> − w*‖² / ‖w<sub>0</sub> − w*‖²", col=1)
    _add_scale_switch(figure, vertical["dtick"])
    note = f"{subtitle}. Line: geometric mean over seeds; band: least to largest"
    return finish(figure, "Convergence of linear probing (norm ratio, Eq. 16)", note)


def spectra_figure(curves: pd.DataFrame, subtitle: str, *, hidden: Sequence[str] = ()) -> Any:
    """Draw the spectra of both Hessians, raw inputs (identity) beside each method."""
    figure = _two_panels()
    table = _only(curves, "spectrum")
    _add_bands(figure, table, hidden)
    figure.update_xaxes(title_text="index i of the singular value")
    figure.update_yaxes(**log_axis("", table["value"]))
    figure.update_yaxes(title_text="σ<sub>i</sub>(θᵀKθ), ‖θ‖<sub>F</sub> = √D", col=1)
    note = f"{subtitle}. A flat line is well-conditioned, a steep one ill-conditioned"
    return finish(figure, "Spectra of the probe's Hessian before and after immunization", note)


def history_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw both condition numbers along the descent."""
    table = _only(curves, "kappa")
    lengths = table.groupby("method")["x"].max()
    descents = [name for name in lengths.index if lengths[name] > 0]
    figure = _two_panels()
    identity = table[table["method"] == "identity"]
    ends = pd.concat([identity.assign(x=1.0), identity.assign(x=lengths.max())])
    drawn = pd.concat([table[table["method"].isin(descents)], ends])
    _add_bands(figure, drawn, (), skip_zero=True)
    figure.update_xaxes(**log_axis("step of the descent", drawn["x"]))
    figure.update_yaxes(**log_axis("", drawn["value"]))
    figure.update_yaxes(title_text="κ(θᵀKθ), compact, over rank(K)", col=1)
    note = f"{subtitle}. Line: geometric mean over seeds; band: least to largest"
    return finish(figure, "Condition numbers while the methods descend", note)


def ceiling_figure(
    sweep: pd.DataFrame, subtitle: str, *, ridge: Literal["covariance", "condition number"] = "covariance"
) -> Any:
    """Draw how close each method comes to the RIR ceiling, against the ridge ε."""
    where, measured, bound = _RIDGED[ridge]
    figure = empty()
    ceiling = sweep[sweep["method"] == "ceiling"].sort_values("ridge")
    add_line(
        figure, bound, ceiling["ridge"], ceiling["rir"], "#222222", width=5,
        hovertemplate="ε = %{x:.1e}<br>RIR<sub>max</sub> = %{y:.3g}<extra></extra>",
    )  # fmt: skip
    for name in dict.fromkeys(sweep["method"]):
        if name == "ceiling":
            continue
        style = method_style(str(name))
        mean = sweep[sweep["method"] == name].groupby("ridge")["rir"].agg(gmean)
        share = mean.to_numpy() / ceiling.set_index("ridge").loc[mean.index, "rir"].to_numpy()
        figure.add_scatter(
            x=mean.index, y=mean, name=style.label, mode="lines+markers", customdata=share,
            line={"color": style.color, "dash": style.dash}, marker={"size": 5},
            hovertemplate="ε = %{x:.1e}<br>RIR = %{y:.3g}, %{customdata:.2e} of the ceiling",
        )  # fmt: skip
    figure.add_hline(y=1, line_color="#888", line_width=1)
    figure.update_xaxes(**log_axis(f"ridge ε added to {where} (units of K = XᵀX)", sweep["ridge"]))
    figure.update_yaxes(**log_axis(measured, sweep["rir"]))
    note = f"{subtitle}. Geometric mean over seeds; no extractor can lie above the {bound}"
    return finish(figure, "How much immunization is possible: RIR and its ceiling", note, height=480)


def _two_panels() -> Any:
    """Return an empty figure with one panel a task, pre-training on the left."""
    return panels(cols=2, shared_yaxes=True, horizontal_spacing=0.06, subplot_titles=[*TASK_TITLES.values()])


def _only(curves: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return the rows of one quantity."""
    table = curves[curves["quantity"] == quantity]
    if table.empty:
        known = ", ".join(sorted(set(curves["quantity"])))
        raise InvalidInputError(f"the curves hold no '{quantity}'; they hold: {known or 'nothing'}.")
    return table


def _add_scale_switch(figure: Any, dtick: float) -> None:
    """Add two buttons that switch the vertical axes between logarithmic and linear."""
    axes = ("yaxis", "yaxis2")
    buttons = [
        {
            "label": label,
            "method": "relayout",
            "args": [{f"{axis}.{name}": value for axis in axes for name, value in settings.items()}],
        }
        for label, settings in (
            ("log", {"type": "log", "dtick": dtick, "autorange": True}),
            ("linear", {"type": "linear", "dtick": 0.2, "autorange": True}),
        )
    ]
    menu = {"type": "buttons", "direction": "right", "buttons": buttons, "showactive": True}
    figure.update_layout(updatemenus=[menu | {"x": 1.02, "xanchor": "left", "y": 0.02, "yanchor": "bottom"}])


def _add_bands(figure: Any, table: pd.DataFrame, hidden: Sequence[str], *, skip_zero: bool = False) -> None:
    """Add a line (geometric mean over seeds) and a band (least to largest) per method and task."""
    for name in dict.fromkeys(table["method"]):
        style = method_style(str(name))
        visible: bool | str = "legendonly" if name in hidden else True
        for column, task in enumerate(("pretrain", "harmful"), start=1):
            rows = table[(table["method"] == name) & (table["task"] == task)]
            if skip_zero:
                rows = rows[rows["x"] > 0]
            if rows.empty:
                continue
            wide = rows.pivot_table(index="x", columns="seed", values="value").clip(lower=FLOOR)
            add_band(
                figure, wide, style, legendgroup=name, visible=visible, showlegend=column == 1, row=1,
                col=column, hovertemplate="%{x:,.0f}: %{y:.3g} (%{customdata[0]:.2g} … %{customdata[1]:.2g})",
            )  # fmt: skip
