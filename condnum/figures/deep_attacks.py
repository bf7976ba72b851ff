"""Figures of the deep attack panel: what the defense buys against each attacker, curves, trials."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import GREY, add_line, finish, log_axis, method_style, num, panels

#: Colors of few to many examples, light to dark.
_ROWS = ("#9ECAE1", "#4292C6", "#2171B5", "#08306B", "#000000")
_PARTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_NETS = {
    "theta_0": ("θ₀", "#7F7F7F", "dot"),
    "theta_0 again": ("θ₀ again", "#BDBDBD", "dot"),
    "scratch": ("from scratch", "#000000", "dash"),
}


def _look(net: str) -> tuple[str, str, str]:
    """Return label, color and dash of a net."""
    if net in _NETS:
        return _NETS[net]
    style = method_style(net)
    return f"θ<sub>I</sub>: {style.label}", style.color, style.dash


def _rows(shots: int) -> str:
    """Return examples per class in words."""
    return f"{shots} examples per class" if shots else "all examples"


def protection_figure(factors: pd.DataFrame, subtitle: str, *, fraction: float = 0.8) -> Any:
    """Draw each attacker's factor of steps beside its range of A against A, and its protection score.

    Attackers that are solved have no factor. A triangle is a lower bound: the attack on θ_I misses the goal
    within its budget.
    """
    table = factors[np.isclose(factors["fraction"], fraction) & factors["examples_budget"].notna()]
    nets = list(table[["backbone", "method"]].drop_duplicates().itertuples(index=False, name=None))
    titles = list[str]()
    for net, method in nets:
        titles += [f"{net}: {method_style(method).label}<br>times as many steps", "<br>protection score"]
    labels = list(dict.fromkeys(table["label"]))[::-1]
    gap = 95  # between rows: ticks, and titles of three lines
    inner = (34 * len(labels) + 20) * len(nets) + gap * (len(nets) - 1)
    figure = panels(
        rows=len(nets), cols=2, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.04,
        vertical_spacing=gap / inner if len(nets) > 1 else 0, column_widths=[0.6, 0.4],
    )  # fmt: skip
    figure.update_annotations(font_size=12)
    kinds = sorted(table["shots"].unique(), key=lambda shots: (shots == 0, shots))
    for row, (backbone, method) in enumerate(nets, 1):
        own = table[(table["backbone"] == backbone) & (table["method"] == method)]
        for k, shots in enumerate(kinds):
            part = own[own["shots"] == shots]
            y = [
                labels.index(label) + 0.6 * ((len(kinds) - 1) / 2 - k) / len(kinds) for label in part["label"]
            ]
            bound = (part["reached_theta_i"] < part["attacks"]).to_numpy()
            color = _ROWS[max(0, len(_ROWS) - 1 - len(kinds)) + k]
            figure.add_scatter(
                x=np.ravel([[1 / noise, noise, np.nan] for noise in part["noise"]]), y=np.repeat(y, 3),
                mode="lines", line={"color": "#DDDDDD", "width": 12}, name="A against A",
                legendgroup="noise", showlegend=row == 1 and k == 0, hoverinfo="skip", row=row, col=1,
            )  # fmt: skip
            for column, name in enumerate(("factor", "protection"), 1):
                value, low, high = (part[f"{name}{end}"].to_numpy() for end in ("", "_low", "_high"))
                high = np.where(np.isinf(high), value, high)
                figure.add_scatter(
                    x=value, y=y, mode="markers", name=_rows(shots), legendgroup=str(shots),
                    showlegend=row == 1 and column == 1,
                    marker={"color": color, "size": 9, "symbol": np.where(bound, "triangle-right", "circle")},
                    error_x={"array": high - value, "arrayminus": value - low, "symmetric": False,
                             "color": color, "thickness": 1.4, "width": 3},
                    customdata=np.c_[part["label"], part["needs_theta_0"].map(num),
                                     part["needs_theta_i"].map(num), part["needs_scratch"].map(num)],
                    hovertemplate="%{customdata[0]}: %{x:.3g}<br>steps: %{customdata[1]} on θ₀, "
                    "%{customdata[2]} on θ<sub>I</sub>, %{customdata[3]} from scratch"
                    "<extra>%{fullData.name}</extra>",
                    row=row, col=column,
                )  # fmt: skip
        drawn = np.r_[own["factor_low"], own["factor_high"], own["noise"], 1 / own["noise"], 0.8, 2.5]
        drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
        few = {"tickvals": [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8]} if drawn.max() < 64 * drawn.min() else {}
        figure.update_xaxes(**log_axis("", drawn), **few, row=row, col=1)
        for value, column in ((1, 1), (0, 2), (1, 2)):
            figure.add_vline(x=value, line={"color": GREY, "dash": "dot", "width": 1}, row=row, col=column)
    figure.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels, range=[-0.6, len(labels) - 0.4])
    figure.update_xaxes(range=[-0.5, 1.5], tickvals=[0, 0.5, 1], col=2)
    goal = f"Steps to {100 * fraction:g} % of the way from chance to the best attacker's accuracy on θ₀"
    bars = "bars: 95 % t-intervals; gray: A against A; ▶ at least so many; no mark: the goal is missed on θ₀"
    note = f"{subtitle}<br>{goal}<br>{bars}"
    finish(figure, "What the defense buys against each attacker", note, height=240 + inner)
    return figure.update_layout(legend_title_text="attacker's examples")


def net_curves_figure(curves: pd.DataFrame, subtitle: str, *, labels: Any, shots: int = 0) -> Any:
    """Draw D_H's test accuracy against steps, a panel an attacker: θ₀, θ_I and the net from scratch."""
    table = curves[(curves["shots"] == shots) & (curves["step"] > 0)]
    backbones, attackers = (list(dict.fromkeys(table[name])) for name in ("backbone", "attacker"))
    points = table.groupby(["attacker", "net", "backbone", "seed", "repeat"]).size().groupby("attacker").max()
    attackers = [name for name in attackers if points[name] > 1]  # those that are solved have no curve
    columns = min(3, len(attackers))
    places = [(backbone, attacker) for backbone in backbones for attacker in attackers]
    rows = len(backbones) * -(-len(attackers) // columns)
    many = len(backbones) > 1
    titles = [labels[attacker] + f"<br>{backbone}" * many for backbone, attacker in places]
    gap = 90 + 20 * many  # between rows: ticks, and titles of two lines
    inner = 150 * rows + gap * (rows - 1)
    figure = panels(
        rows=rows, cols=columns, subplot_titles=titles, shared_yaxes=True, shared_xaxes=True,
        horizontal_spacing=0.03, vertical_spacing=gap / inner,
    )  # fmt: skip
    for index, (backbone, attacker) in enumerate(places):
        part = table[(table["backbone"] == backbone) & (table["attacker"] == attacker)]
        where = {"row": index // columns + 1, "col": index % columns + 1}
        for net, of in part[part["net"] != "theta_0 again"].groupby("net", sort=False):
            label, color, dash = _look(str(net))
            wide = of.pivot(index="step", columns=["seed", "repeat"], values="accuracy")
            for seed in wide.columns if wide.shape[1] > 1 else ():
                add_line(
                    figure, label, wide.index, 100 * wide[seed], color, dash, width=0.6, opacity=0.5,
                    showlegend=False, legendgroup=net, hoverinfo="skip", **where,
                )  # fmt: skip
            add_line(
                figure, label, wide.index, 100 * wide.mean(axis=1), color, dash, width=2.2, legendgroup=net,
                showlegend=index == 0, hovertemplate="step %{x}: %{y:.1f} %", **where,
            )  # fmt: skip
    figure.update_xaxes(**log_axis("", table["step"]), showticklabels=True)
    figure.update_xaxes(title_text="step of the attacker", row=rows)
    figure.update_yaxes(title_text="accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{subtitle}<br>{_rows(shots)}, the best trial of each; mean over seeds and repeats, thin: each"
    finish(figure, "What attackers gain against their steps", note, height=220 + inner)
    return figure.update_layout(legend_title_text="net (click to toggle)")


def trials_figure(trials: pd.DataFrame, subtitle: str, *, labels: Any, shots: int = 0) -> Any:
    """Draw the accuracy of the best trial so far against the number of trials, mean over seeds."""
    table = trials[trials["shots"] == shots]
    nets = [net for net in dict.fromkeys(table["net"]) if net != "theta_0 again"]
    figure = panels(
        rows=1, cols=len(nets), shared_yaxes=True, horizontal_spacing=0.03,
        subplot_titles=[_look(net)[0] for net in nets],
    )  # fmt: skip
    colors: Sequence[str] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
    for k, (attacker, of) in enumerate(table.groupby("attacker", sort=False)):
        look = colors[k % len(colors)], ("solid", "dash")[k // len(colors) % 2]
        for column, net in enumerate(nets, 1):
            best = 100 * of[of["net"] == net].groupby("trial")["best_so_far"].mean()
            add_line(
                figure, labels[attacker], best.index, best, *look, width=2, mode="lines+markers",
                legendgroup=attacker, showlegend=column == 1, hovertemplate="after %{x}: %{y:.1f} %",
                row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(title_text="trials", dtick=1)
    figure.update_yaxes(title_text="final accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{subtitle}<br>{_rows(shots)}; of the trial that held-out images choose, mean over seeds, nets"
    finish(
        figure, "Did the attackers try enough?", note, height=max(420, 250 + 32 * table["attacker"].nunique())
    )
    return figure.update_layout(legend_title_text="attacker (click to toggle)")


def predicted_figure(predicted: pd.DataFrame, subtitle: str) -> Any:
    """Draw observed steps against those that κ, and the whole spectrum, predict: a point an attack."""
    titles = ("predicted by κ (Eq. 2)", "predicted by the whole spectrum")
    figure = panels(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=titles)
    symbols = {"sgd": "circle", "adamw": "diamond-open", "muon": "cross-open"}
    colors = dict(zip(dict.fromkeys(predicted["part"]), _PARTS, strict=False))
    for (part, optimizer), own in predicted.groupby(["part", "optimizer"], sort=False):
        for column, name in enumerate(("predicted_kappa", "predicted_spectrum"), 1):
            known = own[np.isfinite(own[name])]
            figure.add_scatter(
                x=known[name], y=known["observed"], mode="markers", name=f"{part}, {optimizer}",
                legendgroup=f"{part} {optimizer}", showlegend=column == 1,
                marker={"color": colors.get(part, "#000000"), "symbol": symbols[str(optimizer)], "size": 9},
                customdata=np.c_[known["net"], known["backbone"], known["seed"],
                                 np.where(known["reached"], "", "at least ")],
                hovertemplate="%{customdata[0]}, %{customdata[1]}, seed %{customdata[2]}<br>predicted "
                "%{x:.3g}, took %{customdata[3]}%{y:.3g}",
                row=1, col=column,
            )  # fmt: skip
    for column, name in enumerate(("predicted_kappa", "predicted_spectrum"), 1):
        figure.update_xaxes(**log_axis("predicted steps", predicted[name]), col=column)
    figure.update_yaxes(**log_axis("", predicted["observed"]))
    figure.update_yaxes(title_text="steps of the attack", col=1)
    what = "Attacks with most examples on θ₀, θ<sub>I</sub> and the net from scratch, to the goal at 80 %"
    finish(figure, "Does the curvature predict the attack?", f"{subtitle}<br>{what}", height=460)
    return figure.update_layout(legend_title_text="what is trained, by what")
