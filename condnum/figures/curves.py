"""Figures of the tidy curves table: norm ratios (Fig. 1), spectra and condition-number histories.

A row per point has the columns method, seed, task, quantity, x and value.
"""

from typing import Any

import pandas as pd

from condnum.errors import InvalidInputError
from condnum.page.style import (
    TASK_TITLES,
    finish,
    lines_by_method,
    log_axis,
    panels,
)

#: Ratios below this are round-off of float64 and not drawn.
_FLOOR = 1e-32


def norm_ratio_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw Fig. 1: the norm ratio of Eq. 16 against the step, per task and method.

    Erasure is left out: its harmful optimum is zero weights, and a short way there is nothing learned.
    """
    table = only(curves, "norm_ratio")
    omitted = ". Erase is omitted: on these rows its features leave nothing to learn" * bool(
        (table["method"] == "erase").any()
    )
    return _of_both_tasks(
        table.query("method != 'erase'"),
        "Convergence of linear probing (norm ratio, Eq. 16)",
        f"{subtitle}. Line: geometric mean over seeds; band: least to largest{omitted}",
        "step of exact line search",
        "‖w<sub>t</sub> − w*‖² / ‖w<sub>0</sub> − w*‖²",
        steps=True,
    )


def task_spectra_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw the spectra of both Hessians, raw inputs (identity) beside each method."""
    return _of_both_tasks(
        only(curves, "spectrum"),
        "Spectra of the probe's Hessian before and after immunization",
        f"{subtitle}. A flat line is well-conditioned, a steep one ill-conditioned",
        "index i of the singular value",
        "σ<sub>i</sub>(θᵀKθ), ‖θ‖<sub>F</sub> = √D",
        steps=False,
    )


def history_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw both condition numbers along the descent."""
    table = only(curves, "kappa")
    lengths = table.groupby("method")["x"].max()
    identity = table[table["method"] == "identity"]
    ends = pd.concat([identity.assign(x=1.0), identity.assign(x=lengths.max())])
    return _of_both_tasks(
        pd.concat([table[table["method"].isin(lengths.index[lengths > 0])], ends]),
        "Condition numbers during immunization",
        f"{subtitle}. Line: geometric mean over seeds; band: least to largest",
        "step of the descent",
        "κ(θᵀKθ), compact, over rank(K)",
        steps=True,
    )


def _of_both_tasks(table: pd.DataFrame, title: str, note: str, over: str, up: str, *, steps: bool) -> Any:
    """Draw a line and a band per method, a panel per task.

    Steps lie on a logarithmic axis, without the start; indices on a plain one.
    """
    figure = panels(
        cols=2, subplot_titles=[*TASK_TITLES.values()], shared_yaxes=True, horizontal_spacing=0.06
    )
    values = table["value"].clip(lower=_FLOOR)
    drawn = table.assign(value=values, task=pd.Categorical(table["task"], [*TASK_TITLES]))
    lines_by_method(
        figure, drawn[drawn["x"] > 0] if steps else drawn, "x", "value", panel="task", columns=2,
        hovertemplate="%{x:,.0f}: %{y:.3g} (%{customdata[0]:.2g} … %{customdata[1]:.2g})",
    )  # fmt: skip
    figure.update_xaxes(**log_axis(over, table["x"]) if steps else {"title_text": over})
    figure.update_yaxes(**log_axis("", values)).update_yaxes(title_text=up, col=1)
    return finish(figure, title, note, height=500)


def only(curves: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return the rows of one quantity."""
    table = curves[curves["quantity"] == quantity]
    if table.empty:
        known = ", ".join(sorted(set(curves["quantity"])))
        raise InvalidInputError(f"the curves hold no '{quantity}'; they hold: {known or 'nothing'}.")
    return table
