"""The figures of an audit: spectra, how κ moves with its conventions, attackers."""

from typing import Any

import numpy as np

from condnum.auditing import words
from condnum.auditing.layers import LayerAudit
from condnum.auditing.result import Audit
from condnum.figures.style import BLUE, NEUTRAL, ORANGE, PURPLE, add_line, empty, finish, log_axis, panels
from condnum.report.tables import number

#: Color and dash of each extractor, a second code beside color; those that were given take turns.
_LOOK = {
    "raw": (NEUTRAL, "dot"),
    "max_rir": (ORANGE, "dashdot"),
    "pareto": (PURPLE, "longdash"),
    "erase": (NEUTRAL, "dash"),
}
_GIVEN = [(BLUE, "solid"), (BLUE, "dot"), (BLUE, "longdash"), (BLUE, "dashdot")]


def _look(found: Audit, name: str) -> tuple[str, str, str]:
    """Return color, dash and label of an extractor."""
    given = list(found.given)
    color, dash = _LOOK.get(name) or _GIVEN[given.index(name) % len(_GIVEN)]
    return color, dash, words.label(name)


def audited_spectra_figure(found: Audit) -> Any:
    """Draw the spectra of both tasks' features with the rank tolerance and ε."""
    titles = ("D<sub>P</sub>, pre-training task", "D<sub>H</sub>, harmful task")
    figure = panels(rows=1, cols=2, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.06)
    drawn = []
    for column, task in enumerate((found.pretrain, found.harmful), start=1):
        place: dict[str, Any] = {"row": 1, "col": column, "showlegend": column == 1}
        sigma = np.array(task.spectrum)
        floor = max(found.rtol * sigma[0] / 1e3, 1e-300)
        shown = np.maximum(sigma, floor)
        drawn.append(shown)
        figure.add_scatter(
            x=np.arange(1, len(sigma) + 1), y=shown, mode="markers", name="eigenvalues of K",
            legendgroup="K", marker={"color": BLUE if column == 1 else ORANGE, "size": 6}, customdata=sigma,
            hovertemplate="σ<sub>%{x}</sub> = %{customdata:.3e}", **place,
        )  # fmt: skip
        for name, level, dash, color in (
            ("rank tolerance", found.rtol * sigma[0], "dash", PURPLE),
            ("ridge ε", found.epsilon, "dot", NEUTRAL),
        ):
            if level >= floor:
                drawn.append(np.array([level]))
                ends = [0.5, len(sigma) + 0.5]
                style: dict[str, Any] = {"legendgroup": name, "width": 2, "hovertemplate": "%{y:.2e}"}
                add_line(figure, name, ends, [level, level], color, dash, **style, **place)
    figure.update_xaxes(title_text="index i")
    figure.update_yaxes(**log_axis("", np.concatenate(drawn)))
    figure.update_yaxes(title_text="eigenvalue σ<sub>i</sub> of K = XᵀX", col=1)
    note = f"{_data(found)}. Eigenvalues below the tolerance count as zero and lie on the floor"
    return _legend(finish(figure, "Spectra of the features", note))


def sensitivity_figure(found: Audit) -> Any:
    """Draw RIR against the rank tolerance (compact) and against ε (ridge), with the ceiling."""
    titles = ("compact: against the rank tolerance", "ridge, unit scale: against ε")
    figure = panels(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.11)
    left, right = found.rtol_sweep, found.epsilon_sweep
    for name in left["extractor"].unique():
        color, dash, label = _look(found, name)
        for column, (table, x) in enumerate(((left, "rtol"), (right, "epsilon")), start=1):
            rows = table[table["extractor"] == name]
            figure.add_scatter(
                x=rows[x], y=rows["rir"], mode="lines+markers", name=label, legendgroup=name,
                showlegend=column == 1, line={"color": color, "dash": dash, "width": 2.5},
                hovertemplate="%{x:.1e}: RIR %{y:.3g}", row=1, col=column,
            )  # fmt: skip
    bound = left.drop_duplicates("rtol")
    bound = bound[np.isfinite(bound["rir_ceiling"])]
    add_line(
        figure, "ceiling, where finite", bound["rtol"], bound["rir_ceiling"], PURPLE, width=5, opacity=0.5,
        hovertemplate="%{x:.1e}: at most %{y:.3g}", row=1, col=1,
    )  # fmt: skip
    for column, own, title, values in (
        (1, found.rtol, "rank tolerance, relative to σ₁", left["rtol"]),
        (2, found.epsilon, "ridge ε (units of K)", right["epsilon"]),
    ):
        figure.add_vline(x=own, line_color=NEUTRAL, line_dash="dot", row=1, col=column)
        figure.add_hline(y=1, line_color=NEUTRAL, line_width=1, row=1, col=column)
        decades = float(np.log10(values.max() / values.min()))  # half a figure's width: five labels at most
        axis = {**log_axis(title, values), "dtick": max(1, int(np.ceil(decades / 5))), "tickangle": 0}
        figure.update_xaxes(**axis, row=1, col=column)
    ceilings = np.concatenate([left["rir"], bound["rir_ceiling"]])
    figure.update_yaxes(**log_axis("RIR against raw features", ceilings), row=1, col=1)
    figure.update_yaxes(**log_axis("", right["rir"]), row=1, col=2)
    note = (
        f"{_data(found)}. Dotted: this audit's value. A verdict that changes here depends on the convention"
    )
    return _legend(finish(figure, "How RIR depends on the rank tolerance and on ε", note))


def attack_figure(found: Audit) -> Any:
    """Draw the immunization factor of every attacker, for every extractor that was attacked."""
    report = found.attack.report
    if report is None:
        return None
    table, figure = report.at(report.factors, None), empty()
    table = table[np.isfinite(table["factor"])]  # what is out of reach stands in the table
    if table.empty:
        return None
    for name, rows in table.groupby("extractor", sort=False):
        color, _, label = _look(found, str(name))
        symbols = np.where(rows["bound"] == "exact", "circle", "triangle-right-open")
        figure.add_scatter(
            x=rows["factor"], y=rows["label"], mode="markers", name=label,
            marker={"color": color, "size": 11, "symbol": symbols, "line": {"width": 2, "color": color}},
            customdata=rows[["baseline_steps", "steps"]],
            hovertemplate="factor %{x:.3g} (%{customdata[0]:.0f} → %{customdata[1]:.0f} steps)",
        )  # fmt: skip
    figure.add_vline(x=1, line_color=NEUTRAL, line_width=2)
    figure.update_xaxes(**log_axis("factor (1: not slowed)", table["factor"]), tickangle=0)
    if table["factor"].max() < 20 * table["factor"].min():  # powers of ten would be one tick
        figure.update_xaxes(
            tickvals=[m * 10.0**k for k in range(-6, 9) for m in (1, 2, 5)], minor=None, tickfont_size=13
        )
    figure.update_yaxes(autorange="reversed")
    epsilon = report.budget.reported_epsilon
    note = f"steps on it / on raw features, to {100 * epsilon:g} % excess loss; ▷: at least"
    shown = 180 + 30 * table["label"].nunique()
    names = " and ".join(words.label(name) for name in table["extractor"].unique())
    return _legend(finish(figure, f"How much {names} slows attackers", note, height=shown))


def depth_figure(found: LayerAudit) -> Any:
    """Draw what is possible behind each layer along the depth; the table has κ's and ranks."""
    table, figure = found.table, empty()
    x, ceiling = table["layer"].to_list(), table["ceiling_compact"].to_numpy(dtype=float)
    known = table[["ceiling_compact", "limit_rir", "rir"]].replace(np.inf, np.nan).to_numpy(dtype=float)
    top = 3 * float(np.nanmax([found.target, *known.ravel()]))  # where an infinite ceiling is drawn
    for layer, *ends in table[["layer", "rir", "limit_rir"]].fillna({"rir": 1.0}).itertuples(index=False):
        add_line(figure, "", [layer] * 2, ends, NEUTRAL, width=2, showlegend=False, hoverinfo="skip")
    none = np.where(table["limit_rir"].isna(), 1.0, np.nan)
    for name, values, color, symbol in (
        ("compact: no invertible θ exceeds (△: ∞)", ceiling, PURPLE,
         np.where(ceiling > top, "triangle-up-open", "diamond-open")),
        ("ridge: no square θ exceeds", table["limit_rir"], NEUTRAL, "triangle-down"),
        ("ridge: a closed form reaches", table["rir"], BLUE, "circle"),
        ("ridge: none has (i) > 1 and (ii) ≤ 1", none, ORANGE, "x"),
    ):  # fmt: skip
        if np.isnan(values).all():
            continue
        figure.add_scatter(
            x=x, y=np.minimum(values, top), mode="markers", name=name, customdata=values,
            marker={"color": color, "size": 10, "symbol": symbol},
            hovertemplate="%{x}: RIR %{customdata:.3g}",
        )  # fmt: skip
    figure.add_hline(y=found.target, line_color=NEUTRAL, line_dash="dash")
    note = f"D<sub>P</sub>: {found.rows_pretrain:,d} rows, D<sub>H</sub>: {found.rows_harmful:,d} rows"
    if found.cheapest is not None:
        note += f". Shaded: {found.cheapest}, the cheapest"
        at = x.index(found.cheapest)
        figure.add_vrect(x0=at - 0.4, x1=at + 0.4, fillcolor=BLUE, opacity=0.12, line_width=0)
    figure.update_xaxes(tickangle=-60, type="category")
    title = f"RIR of a linear extractor (dashed: {number(found.target)})"
    figure.update_yaxes(**log_axis(title, [*known.ravel(), top, 1.0]))
    finish(figure, "What a linear extractor can reach behind each layer", note, height=560, width=60)
    return _legend(figure).update_layout(margin_b=210)


def _legend(figure: Any) -> Any:
    """Put the legend below the panels and their titles."""
    place = {"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"}
    return figure.update_layout(legend={**place, "title_text": ""}, margin_b=120)


def _data(found: Audit) -> str:
    """Name the data."""
    P, H = found.pretrain, found.harmful
    return f"D<sub>P</sub>: {P.rows:,d} rows, D<sub>H</sub>: {H.rows:,d} rows, {P.dimension:,d} columns"
