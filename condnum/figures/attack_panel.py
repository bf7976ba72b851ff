"""Figures of the attack panel: curves, factors attackers × extractors, and where the excess loss lies."""

from typing import Any

import numpy as np
import pandas as pd

from condnum.page.style import DOTTED, empty, express, finish, log_axis, method_style
from condnum.numbers import num
from condnum.probing import AttackReport
from condnum.probing.panel import factor_text

#: Excess losses below this are not drawn: the panel stops at its smallest ε.
_FLOOR = 1e-5

#: ColorBrewer's PuOr, safe for the common kinds of color blindness: purple is slowed, orange helped.
_SCALE = "PuOr"


def attack_curves_figure(report: AttackReport, subtitle: str) -> Any:
    """Draw the relative excess loss of every attacker against its steps, one panel per extractor."""
    axis = "(L<sub>t</sub> − L*) / (L<sub>0</sub> − L*)"
    title = "Excess loss of each attacker at its best hyper-parameters"
    return _curves(report, subtitle, "excess", axis, title)


def attack_accuracy_figure(report: AttackReport, subtitle: str) -> Any:
    """Draw accuracy (of numbers: mean squared error) on the rows that judge against the steps."""
    shown = ("accuracy", "accuracy, held-out rows")
    if report.curves["accuracy"].isna().all():
        shown = ("loss", "mean squared error, held-out rows")
    return _curves(report, subtitle, *shown, "Progress of the attackers")


def _curves(report: AttackReport, subtitle: str, column: str, axis: str, title: str) -> Any:
    """Draw one column of the curves, a panel per extractor and a line per attacker."""
    panels, log = len(report.extractors), column == "excess"
    curves = report.curves.dropna(subset=column).query("step > 0")
    shown = curves[column].clip(lower=_FLOOR) if log else curves[column]
    figure = express(
        "line", curves.assign(shown=shown), x="step", y="shown", color="label", line_dash="label",
        facet_col="extractor", facet_col_wrap=min(2, panels), facet_col_spacing=0.04,
    ).update_traces(hovertemplate="step %{x:,.0f}: %{y:.3g}")  # fmt: skip
    if log:
        for epsilon in report.budget.epsilons:
            figure.add_hline(y=epsilon, line=DOTTED)
        low, high = min(report.budget.epsilons) / 3, 10**0.1
    elif column == "loss":  # momentum may overshoot by orders of magnitude
        low, high = 0.8 * shown.min(), 2 * report.extractors["start_loss"].max()
    if column != "accuracy":
        figure.update_yaxes(**log_axis("", shown.clip(upper=high)), range=[np.log10(low), np.log10(high)])
    figure.for_each_trace(lambda trace: trace.update(mode="lines+markers") if len(trace.x) < 4 else None)
    figure.update_xaxes(**log_axis("", curves["step"]), showticklabels=True)
    figure.update_xaxes(title_text="step of the attacker", row=1)  # plotly express counts rows from below
    figure.update_yaxes(title_text=axis, col=1)
    note = f"{subtitle}<br>Start: zero weights" + ("; dotted: targets ε" if log else "")
    finish(figure, title, note, height=160 + 300 * -(-panels // 2), legend="attacker")
    return figure.update_layout(legend_x=1.06)  # the last tick hangs over the panel's edge


def attack_factor_heatmap(report: AttackReport, subtitle: str) -> Any:
    """Draw the immunization factor of each attacker on each extractor, and the worst case."""
    chosen = report.budget.reported_epsilon
    return factor_heatmap(report.at(report.factors, chosen), chosen, report.baseline, subtitle)


def factor_heatmap(table: pd.DataFrame, epsilon: float, baseline: str, subtitle: str = "") -> Any:
    """Draw the factors of one target ε."""
    shown = factor_text(table, dict.fromkeys(table["extractor"])).set_index("attacker")
    values = table.pivot(index="label", columns="extractor", values="factor")
    values = values.reindex(index=shown.index, columns=shown.columns)
    row = "<b>worst case: least factor</b>"
    for name in shown.columns[values.notna().any()]:
        least = table.loc[table.loc[table["extractor"] == name, "factor"].idxmin()]
        sign = "" if least["bound"] == "exact" else ">"
        shown.loc[row, name] = f"<b>{sign}{num(values[name].min())}</b>"
    values.loc[row] = values.min()
    log = np.log10(values)
    finite = log.abs().to_numpy()[np.isfinite(log)]
    limit = max(1.0, finite.max(initial=0.0))
    log = log.clip(upper=limit)  # what is out of reach has the darkest color
    ticks = np.arange(-np.floor(limit), np.floor(limit) + 1)
    figure = empty()
    figure.add_heatmap(
        x=[*values.columns], y=[*values.index], z=log, zmid=0, zmin=-limit, zmax=limit, colorscale=_SCALE,
        text=shown.reindex(values.index), texttemplate="%{text}", textfont={"size": 13}, xgap=2, ygap=2,
        hovertemplate="%{y} on %{x}: factor %{text}<extra></extra>", hoverongaps=False,
        colorbar={"title": {"text": "factor"}, "tickvals": ticks, "ticktext": [f"{10**t:g}" for t in ticks]},
    )  # fmt: skip
    labels = [method_style(name).label.partition(" (")[0] for name in values.columns]
    figure.update_xaxes(title_text="extractor", showgrid=False, tickvals=[*values.columns], ticktext=labels)
    figure.update_yaxes(showgrid=False, ticks="", range=[len(values) - 0.5, -0.5], dtick=1)
    note = (
        f"{subtitle}<br>Steps to ε = {100 * epsilon:g} % over those on {baseline}; >: not finished, "
        "∞: out of reach"
    )
    finish(figure, "Immunization factor of each attacker", note, height=210 + 30 * len(values))
    return figure.update_layout(margin_l=190)


def attack_shares_figure(report: AttackReport, subtitle: str) -> Any:
    """Draw where the excess loss of zero weights lies: its share in eigenvalues up to each size."""
    ascending = report.spectra.iloc[::-1]
    of_each = ascending.groupby("extractor", sort=False)
    size = "σ<sub>i</sub> / σ<sub>1</sub> of the probe's Hessian"
    tail = "fraction of the excess loss at or below"
    relative = ascending["sigma"] / of_each["sigma"].transform("max")
    points = ascending.assign(**{size: relative, tail: of_each["share"].cumsum()})
    order = {"extractor": [*report.extractors["extractor"]]}
    styles = {name: method_style("identity" if name == "raw" else name) for name in order["extractor"]}
    look: dict[str, Any] = {"color": "extractor", "line_dash": "extractor", "line_shape": "hv"}
    look |= {"color_discrete_map": {name: style.color for name, style in styles.items()}}
    look |= {"line_dash_map": {name: style.dash for name, style in styles.items()}}
    figure = express("line", points, x=size, y=tail, category_orders=order, **look)
    for number, trace in enumerate(figure.data):
        trace.line.width = max(1.5, 5 - 0.6 * number)  # a line shows beside one that covers it
    for epsilon in report.budget.epsilons:
        figure.add_hline(y=epsilon, line=DOTTED)
    figure.update_xaxes(**log_axis(size, relative))
    figure.update_yaxes(**log_axis(tail, [1e-5, 1.0]), range=[-5, 0.1])
    note = f"{subtitle}<br>Excess squared loss of zero weights; dotted: targets ε"
    title = "Where the excess loss lies in the spectrum"
    return finish(figure, title, note, height=480, legend="extractor")
