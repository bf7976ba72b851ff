"""Figures of the attack panel: curves, factors attackers × extractors, and where the excess loss lies."""

from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import GREY, add_line, empty, finish, log_axis, panels
from condnum.probing import AttackReport

#: Excess losses below this are not drawn: the panel stops at its smallest ε.
_FLOOR = 1e-5

#: Okabe–Ito without the yellow, which is too light for lines; the dash is the second code.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_DASHES = ("solid", "dash")

#: ColorBrewer's PuOr, safe for the common kinds of colour blindness: purple is slowed, orange helped.
_SCALE = "PuOr"


def attack_curves_figure(report: AttackReport, subtitle: str) -> Any:
    """Draw the relative excess loss of every attacker against its steps, one panel an extractor."""
    return _curves(
        report,
        subtitle,
        "excess",
        "(L<sub>t</sub> − L*) / (L<sub>0</sub> − L*)",
        "Excess loss of each attacker at its best hyper-parameters",
    )


def attack_accuracy_figure(report: AttackReport, subtitle: str) -> Any:
    """Draw accuracy (of a regression: mean squared error) on the evaluation rows against the steps."""
    rows = "held-out rows" if report.held_out else "training rows"
    if report.kind == "regression":
        name, axis = "evaluation_loss", f"mean squared error, {rows}"
    else:
        name, axis = "accuracy", f"accuracy, {rows}"
    return _curves(report, subtitle, name, axis, "What the attackers gain against their steps")


def _curves(report: AttackReport, subtitle: str, column: str, axis: str, title: str) -> Any:
    """Draw one column of the curves, a panel an extractor and a line an attacker."""
    names = list(report.extractors["extractor"])
    columns = min(2, len(names))
    count = -(-len(names) // columns)
    figure = panels(
        rows=count, cols=columns, subplot_titles=names, shared_yaxes=True, shared_xaxes=True,
        horizontal_spacing=0.04, vertical_spacing=0.09 if count > 1 else 0,
    )  # fmt: skip
    log = column == "excess"
    curves = report.curves.dropna(subset=column).query("step > 0")
    shown = curves[column].clip(lower=_FLOOR) if log else curves[column]
    for index, (attacker, of_attacker) in enumerate(
        curves.assign(shown=shown).groupby("attacker", sort=False)
    ):
        look = (_COLORS[index % len(_COLORS)], _DASHES[index // len(_COLORS) % 2])
        for place, name in enumerate(names):
            table = of_attacker[of_attacker["extractor"] == name]
            add_line(
                figure, of_attacker["label"].iloc[0], table["step"], table["shown"], *look, width=2,
                mode="lines+markers" if len(table) < 4 else "lines", legendgroup=attacker,
                showlegend=place == 0, hovertemplate="step %{x:,.0f}: %{y:.3g}",
                row=place // columns + 1, col=place % columns + 1,
            )  # fmt: skip
    if log:
        for epsilon in report.budget.epsilons:
            figure.add_hline(y=epsilon, line={"color": GREY, "dash": "dot", "width": 1})
        low, high = min(report.budget.epsilons) / 3, 10**0.1
    elif column == "evaluation_loss":  # momentum may overshoot by orders of magnitude
        low, high = 0.8 * shown.min(), 2 * report.steps["start_loss"].max()
    if column != "accuracy":
        figure.update_yaxes(**log_axis("", shown.clip(upper=high)), range=[np.log10(low), np.log10(high)])
    figure.update_xaxes(**log_axis("", report.curves["step"]))
    figure.update_xaxes(title_text="step of the attacker", row=count)
    figure.update_yaxes(title_text=axis, col=1, title_standoff=4)
    note = f"{subtitle}<br>Start: zero weights" + ("; dotted: targets ε" if log else "")
    finish(figure, title, note, height=160 + 300 * count)
    return figure.update_layout(legend_title_text="attacker (click to toggle)")


def attack_factor_heatmap(report: AttackReport, subtitle: str, *, epsilon: float | None = None) -> Any:
    """Draw the immunization factor of each attacker on each extractor, and the worst case."""
    chosen = report.budget.headline if epsilon is None else epsilon
    table = report.at(report.factors, chosen)
    factors = report.factor_table(epsilon=chosen).set_index("attacker")
    values = table.pivot(index="label", columns="extractor", values="factor")
    values = values.reindex(index=factors.index, columns=factors.columns)
    worst, words = values.min(axis=0), []
    for name in factors.columns:
        known = table[(table["extractor"] == name)].dropna(subset="factor")
        exact = len(known) and report.worst_case(name, epsilon=chosen)["bound"] == "exact"
        words.append(("" if exact else ">") + f"{worst[name]:.3g}" if len(known) else "—")
    rows = ["<b>worst case: least factor</b>", *reversed(list(factors.index))]
    grid = np.vstack([worst.to_numpy(), values.to_numpy()[::-1]])
    shown = np.vstack([np.array([f"<b>{word}</b>" for word in words]), factors.to_numpy()[::-1]])
    log = np.log10(grid)
    limit = max(1.0, float(np.nanmax(np.abs(log)))) if np.isfinite(log).any() else 1.0
    figure, none = empty(), np.array(None)
    ticks = np.arange(-np.floor(limit), np.floor(limit) + 1)
    look = {
        "x": list(factors.columns), "y": rows, "xgap": 2, "ygap": 2, "text": shown, "texttemplate": "%{text}",
        "textfont": {"size": 13},
    }  # fmt: skip
    figure.add_heatmap(
        z=np.where(np.isfinite(log), none, 1.0), colorscale=[[0, "#BDBDBD"], [1, "#BDBDBD"]], showscale=False,
        hoverinfo="skip", **look,
    )  # fmt: skip
    figure.add_heatmap(
        z=np.where(np.isfinite(log), log, none), colorscale=_SCALE, zmid=0, zmin=-limit, zmax=limit, **look,
        hovertemplate="%{y} on %{x}: factor %{text}<extra></extra>",
        colorbar={"title": {"text": "factor"}, "tickvals": ticks, "ticktext": [f"{10**t:g}" for t in ticks]},
    )  # fmt: skip
    figure.update_xaxes(title_text="extractor", side="bottom", showgrid=False)
    figure.update_yaxes(showgrid=False, ticks="")
    note = f"{subtitle}<br>Steps to ε = {100 * chosen:g} % over those on {report.baseline}; >: not finished"
    finish(figure, "Immunization factor of each attacker", note, height=210 + 30 * len(rows))
    return figure.update_layout(margin_l=190)


def attack_shares_figure(report: AttackReport, subtitle: str) -> Any:
    """Draw where the excess loss of zero weights lies: its share in eigenvalues up to each size."""
    figure = empty()
    drawn = []
    for index, (name, rows) in enumerate(report.spectra.groupby("extractor", sort=False)):
        relative = rows["sigma"].to_numpy()[::-1] / rows["sigma"].max()
        tail = np.cumsum(rows["share"].to_numpy()[::-1])
        drawn.append(pd.Series(relative))
        add_line(
            figure, str(name), relative, tail, _COLORS[index % len(_COLORS)], _DASHES[index % 2], width=2.2,
            line_shape="hv",
            hovertemplate="%{y:.3g} of the excess loss lies at or below %{x:.2g} σ<sub>1</sub>",
        )  # fmt: skip
    for epsilon in report.budget.epsilons:
        figure.add_hline(y=epsilon, line={"color": GREY, "dash": "dot", "width": 1})
    figure.update_xaxes(**log_axis("σ<sub>i</sub> / σ<sub>1</sub> of the probe's Hessian", pd.concat(drawn)))
    figure.update_yaxes(**log_axis("share of the excess loss at or below", np.array([1e-5, 1.0])))
    figure.update_yaxes(range=[-5, 0.1])
    loss = "squared loss" if report.kind == "regression" else "squared loss on the labels ±1"
    note = f"{subtitle}<br>Excess {loss} of zero weights; dotted: targets ε"
    finish(figure, "Where the excess loss lies in the spectrum", note, height=480)
    return figure.update_layout(legend_title_text="extractor (click to toggle)")
