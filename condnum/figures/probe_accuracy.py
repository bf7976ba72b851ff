"""Fig. 3: test accuracy of a linear probe on D_H against its epochs, one panel a backbone."""

from __future__ import annotations

from typing import Any

import pandas as pd

from condnum.errors import InvalidInputError
from condnum.figures.style import (
    GREY,
    MethodStyle,
    add_band,
    add_line,
    finish,
    log_axis,
    method_style,
    panels,
)

#: θ₀ is no immunized model: drawn unlike any of them.
_START = MethodStyle("θ<sub>0</sub> (not immunized)", "#666666", "dash")


def probe_accuracy_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw Fig. 3: gradient descent at its best learning rate, and the optimum of the same probe.

    Args:
        curves: Of `deep_tables.curves_table`.
        subtitle: The data sets.

    Returns:
        A plotly figure, a panel per backbone: mean over seeds, band from the least to the largest; the
        dotted level in the same colour is what a convex solver reaches on the same features.

    Raises:
        InvalidInputError: The table has no probe curves.
        MissingExtraError: Plotly is missing.
    """
    table = curves[curves["quantity"] == "probe_accuracy"]
    if table.empty:
        raise InvalidInputError("the curves hold no 'probe_accuracy'; pass the curves of a deep-net run.")
    figure, columns = _panels(table, shared_y=False)
    for backbone, column in columns.items():
        for name in dict.fromkeys(table["method"]):
            rows = table[(table["backbone"] == backbone) & (table["method"] == name)]
            if rows.empty:
                continue
            style = net_style(str(name))
            wide = 100 * rows.pivot_table(index="x", columns="seed", values="value")
            add_band(
                figure, wide, style, geometric=False, legendgroup=str(name), showlegend=column == 1,
                hovertemplate="epoch %{x}: %{y:.1f} %", row=1, col=column,
            )  # fmt: skip
            optimum = curves[
                (curves["quantity"] == "convex_accuracy")
                & (curves["backbone"] == backbone)
                & (curves["method"] == name)
            ]["value"]
            if len(optimum):
                level = 100 * float(optimum.mean())
                add_line(
                    figure, f"{style.label}, convex", [wide.index.min(), wide.index.max()], [level, level],
                    style.color, "dot", width=1.6, legendgroup=name, showlegend=False,
                    hovertemplate=f"convex solver: {level:.1f} %<extra>{style.label}</extra>", row=1,
                    col=column,
                )  # fmt: skip
    add_line(figure, "convex solver (level)", [None], [None], GREY, "dot", width=1.6, hoverinfo="skip")
    figure.update_xaxes(title_text="epoch of the probe (one full-batch step)")
    figure.update_yaxes(title_text="test accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{subtitle}. Line: mean over seeds; band: least to largest; dotted: optimum of the same probe"
    return finish(figure, "Linear probing of D<sub>H</sub> (Fig. 3)", note)


def ratio_history_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw RIR_θ0 while the methods train, and what was reported of θ_I.

    Args:
        curves: Of `deep_tables.curves_table`.
        subtitle: The data sets.

    Returns:
        A plotly figure, a panel per backbone: geometric mean over seeds, band from the least to the largest;
        dotted: on held-out images; a dot and a diamond with the span over draws: of the θ that was
        kept, on training and on test images.

    Raises:
        InvalidInputError: The table has no histories.
        MissingExtraError: Plotly is missing.
    """
    table = curves[(curves["quantity"] == "rir") & (curves["value"] > 0)]
    if table.empty:
        raise InvalidInputError("the curves hold no 'rir'; pass the curves of a deep-net run.")
    figure, columns = _panels(table, shared_y=True)
    for backbone, column in columns.items():
        for name in dict.fromkeys(table["method"]):
            own = curves[
                (curves["backbone"] == backbone) & (curves["method"] == name) & (curves["value"] > 0)
            ]
            style = net_style(str(name))
            for quantity, dash, images in (("rir", style.dash, "training"), ("held_rir", "dot", "held-out")):
                rows = own[own["quantity"] == quantity]
                if rows.empty:
                    continue
                wide = rows.pivot_table(index="x", columns="seed", values="value")
                add_band(
                    figure, wide, style._replace(dash=dash), legendgroup=str(name),
                    showlegend=quantity == "rir" and column == 1,
                    hovertemplate=f"step %{{x}}, {images} images: %{{y:.3g}}", row=1, col=column,
                )  # fmt: skip
            for quantity, symbol in (("kept_rir", "circle"), ("kept_test_rir", "diamond")):
                _add_kept(figure, own[own["quantity"] == quantity], style, symbol, str(name), column)
        figure.add_hline(y=1, line_color=GREY, line_width=1, row=1, col=column)
    grey = {"color": GREY, "width": 1.6}
    for label, kind in (
        ("held-out images", {"mode": "lines", "line": grey | {"dash": "dot"}}),
        (
            "θ<sub>I</sub>, training images",
            {"mode": "markers", "marker": {"symbol": "circle", "color": GREY}},
        ),
        (
            "θ<sub>I</sub>, test images",
            {"mode": "markers", "marker": {"symbol": "diamond", "color": GREY}},
        ),
    ):
        figure.add_scatter(x=[None], y=[None], name=label, hoverinfo="skip", **kind)
    figure.update_xaxes(title_text="step of the immunization")
    shown = curves[curves["quantity"].isin(["rir", "held_rir", "kept_rir", "kept_test_rir"])]["value"]
    figure.update_yaxes(**log_axis("", shown[shown > 0]))
    figure.update_yaxes(title_text="RIR<sub>θ0</sub>, compact", col=1)
    note = f"{subtitle}. Line: geometric mean, band: range over seeds; bars: draws of the groups"
    return finish(figure, "RIR<sub>θ0</sub> while the methods train", note)


def net_style(name: str) -> MethodStyle:
    """Return how a method is drawn here; `initial` is θ₀.

    Examples:
        >>> net_style("initial").dash, net_style("ours").color
        ('dash', '#0072B2')
    """
    return _START if name == "initial" else method_style(name)


def _add_kept(
    figure: Any, rows: pd.DataFrame, style: MethodStyle, symbol: str, group: str, column: int
) -> None:
    """Add RIR of each seed's θ_I, with the least and the largest over draws of the groups."""
    for _, of_seed in rows.groupby("seed"):
        value, low, high = of_seed["value"]
        figure.add_scatter(
            x=of_seed["x"].iloc[:1], y=[value], mode="markers", legendgroup=group, showlegend=False,
            marker={"color": style.color, "symbol": symbol, "size": 9, "line_width": 1},
            error_y={"array": [high - value], "arrayminus": [value - low], "color": style.color},
            hovertemplate=f"{'test' if symbol == 'diamond' else 'training'} images: %{{y:.3g}}"
            f" ({low:.3g} to {high:.3g} over draws)<extra>{style.label}</extra>",
            row=1, col=column,
        )  # fmt: skip


def _panels(table: pd.DataFrame, *, shared_y: bool) -> tuple[Any, dict[str, int]]:
    """Return an empty figure with a panel per backbone, and the panels' columns."""
    names = [str(name) for name in dict.fromkeys(table["backbone"])]
    figure = panels(cols=len(names), shared_yaxes=shared_y, subplot_titles=names, horizontal_spacing=0.07)
    return figure, {name: column for column, name in enumerate(names, start=1)}
