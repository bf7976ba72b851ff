"""Figures of the deep attack panel: what the defense buys against each attacker, and curves."""

from typing import Any

import numpy as np
import pandas as pd

from condnum.deep.attacks.attackers import DeepAttacker
from condnum.page.style import (
    DOTTED,
    empty,
    express,
    finish,
    log_axis,
    method_style,
)
from condnum.numbers import num


def _who(attacker: str) -> str:
    """Return an attacker in words."""
    return DeepAttacker.named(attacker).label.replace("D_P", "D<sub>P</sub>")


def _rows(shots: int) -> str:
    """Return examples per class in words."""
    return f"{shots} examples per class" if shots else "all examples"


def _without_steps(title: str, subtitle: str) -> Any:
    """Return what stands in place of a figure of steps where no attacker takes any."""
    note = "No attacker has a curve of steps, as those in closed form take none; see the tables"
    axes = empty().update_xaxes(visible=False).update_yaxes(visible=False)
    return finish(axes, title, f"{subtitle}<br>{note}", height=140)


def protection_figure(factors: pd.DataFrame, subtitle: str, *, fraction: float = 0.8) -> Any:
    """Draw each attacker's factor of steps beside its range of A against A, and its protection score.

    Attackers that are solved have no factor. A triangle is a lower bound: the attack on θ_I misses the goal
    within its budget.
    """
    heading = "How much the defense slows each attacker"
    table = factors[np.isclose(factors["fraction"], fraction) & factors["examples_budget"].notna()]
    if not len(table):
        return _without_steps(heading, subtitle)
    net = table["backbone"] + ": " + table["method"].map(lambda name: method_style(name).label)
    table = table.assign(
        label=table["attacker"].map(_who),
        examples=table["shots"].map(_rows),
        bound=np.where(table["reached_theta_i"] < table["attacks"], "at least", "measured"),
        steps=[
            f"{num(a)} on θ₀, {num(b)} on θ<sub>I</sub>, {num(c)} from scratch"
            for a, b, c in table[["needs_theta_0", "needs_theta_i", "needs_scratch"]].to_numpy()
        ],
    )
    kinds = {"factor": "times as many steps", "protection": "protection score"}
    points = pd.concat(
        table.assign(
            panel=net + "<br>" + words, value=table[name], minus=table[name] - table[f"{name}_low"],
            plus=(table[f"{name}_high"] - table[name]).replace(np.inf, 0),
        ) for name, words in kinds.items()
    )  # fmt: skip
    labels, nets = list(dict.fromkeys(table["label"])), list(dict.fromkeys(net))
    shots = sorted(table["shots"].unique(), key=lambda count: (count == 0, count))
    order = {
        "panel": [f"{name}<br>{words}" for name in nets for words in kinds.values()],
        "label": labels,
        "examples": [_rows(count) for count in shots],
    }
    inner = (34 * len(labels) + 115) * len(nets)
    figure = express(
        "scatter", points, x="value", y="label", color="examples", symbol="bound", error_x="plus",
        error_x_minus="minus", facet_col="panel", facet_col_wrap=2, hover_data=["steps"],
        category_orders=order, symbol_map={"measured": "circle", "at least": "triangle-right"},
        facet_row_spacing=115 / inner if len(nets) > 1 else 0,
    ).update_traces(marker_size=9, orientation="h")  # fmt: skip
    for row, name in enumerate(reversed(nets), start=1):  # plotly express counts rows from below
        own = table[net == name]
        figure.add_bar(
            y=own["label"], base=1 / own["noise"], x=own["noise"] - 1 / own["noise"], orientation="h",
            width=0.9, marker_color="#DDDDDD", name="A against A", showlegend=row == 1, legendgroup="noise",
            hoverinfo="skip", zorder=-1, row=row, col=1,
        )  # fmt: skip
    figure.update_xaxes(matches=None, title_text="", showticklabels=True)
    figure.update_yaxes(title_text="", tickvals=labels, ticktext=labels)
    for row, name in enumerate(reversed(nets), start=1):
        own = table[net == name]
        ends = np.r_[own["factor_low"], own["factor_high"], own["noise"], 1 / own["noise"]]
        figure.update_xaxes(**log_axis("", ends), row=row, col=1)
    figure.update_xaxes(range=[-0.5, 1.5], tickvals=[0, 0.5, 1], col=2)
    for value, column in ((1, 1), (0, 2), (1, 2)):
        figure.add_vline(x=value, line=DOTTED, row="all", col=column)
    goal = f"Steps to {100 * fraction:g} % of the way from chance to the best attacker's accuracy on θ₀"
    bars = "bars: 95 % t-intervals; gray: A against A; ▶ at least so many; no mark: the goal is missed on θ₀"
    note = f"{subtitle}<br>{goal}<br>{bars}"
    finish(figure, heading, note, height=240 + inner, legend="")
    return figure.update_layout(legend_title_text="attacker's examples", scattermode="group")
