"""Fig. 3: test accuracy of a linear probe on D_H against its epochs, one panel a backbone."""

from typing import Any

import pandas as pd

from condnum.figures.curves import only
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

#: RIR of the θ that was kept: its mark, and on which images.
_KEPT = {"kept_rir": ("circle", "training"), "kept_test_rir": ("diamond", "test")}


def probe_accuracy_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw Fig. 3: gradient descent at its best learning rate, and the optimum of the same probe.

    A panel per backbone: mean over seeds, band from the least to the largest; the dotted level in the same
    color is what a convex solver reaches on the same features.
    """
    figure, panels_of = _panels(curves, "probe_accuracy", shared_y=False)
    for column, name, style, own in panels_of:
        probed = own[own["quantity"] == "probe_accuracy"]
        if probed.empty:
            continue
        wide = 100 * probed.pivot_table(index="x", columns="seed", values="value")
        add_band(
            figure, wide, style, geometric=False, legendgroup=name, showlegend=column == 1,
            hovertemplate="epoch %{x}: %{y:.1f} %", row=1, col=column,
        )  # fmt: skip
        optimum = own[own["quantity"] == "convex_accuracy"]["value"]
        if len(optimum):
            level = 100 * float(optimum.mean())
            add_line(
                figure, f"{style.label}, convex", [wide.index.min(), wide.index.max()], [level, level],
                style.color, "dot", width=1.6, legendgroup=name, showlegend=False,
                hovertemplate=f"convex solver: {level:.1f} %<extra>{style.label}</extra>", row=1, col=column,
            )  # fmt: skip
    add_line(figure, "convex solver (level)", [None], [None], GREY, "dot", width=1.6, hoverinfo="skip")
    figure.update_xaxes(title_text="epoch of the probe (one full-batch step)")
    figure.update_yaxes(title_text="test accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{subtitle}. Line: mean over seeds; band: least to largest; dotted: optimum of the same probe"
    return finish(figure, "Linear probing of D<sub>H</sub> (Fig. 3)", note)


def ratio_history_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw RIR_θ0 while the methods train, and what was reported of θ_I.

    A panel per backbone: geometric mean over seeds, band from the least to the largest; dotted: on held-out
    images; a dot and a diamond with the span over draws: of the θ that was kept, on training and on test
    images.
    """
    shown = ["rir", "held_rir", "kept_rir", "kept_test_rir"]
    curves = curves[curves["quantity"].isin(shown) & (curves["value"] > 0)]
    figure, panels_of = _panels(curves, "rir", shared_y=True)
    for column, name, style, own in panels_of:
        for quantity, dash, images in (("rir", style.dash, "training"), ("held_rir", "dot", "held-out")):
            rows = own[own["quantity"] == quantity]
            if rows.empty:
                continue
            add_band(
                figure, rows.pivot_table(index="x", columns="seed", values="value"),
                style._replace(dash=dash), legendgroup=name, showlegend=quantity == "rir" and column == 1,
                hovertemplate=f"step %{{x}}, {images} images: %{{y:.3g}}", row=1, col=column,
            )  # fmt: skip
        for quantity, (symbol, images) in _KEPT.items():
            for _, of_seed in own[own["quantity"] == quantity].groupby("seed"):
                value, low, high = of_seed["value"]
                figure.add_scatter(
                    x=of_seed["x"].iloc[:1], y=[value], mode="markers", legendgroup=name, showlegend=False,
                    marker={"color": style.color, "symbol": symbol, "size": 9, "line_width": 1},
                    error_y={"array": [high - value], "arrayminus": [value - low], "color": style.color},
                    hovertemplate=f"{images} images: %{{y:.3g}}"
                    f" ({low:.3g} to {high:.3g} over draws)<extra>{style.label}</extra>",
                    row=1, col=column,
                )  # fmt: skip
    figure.add_hline(y=1, line_color=GREY, line_width=1)
    add_line(figure, "held-out images", [None], [None], GREY, "dot", width=1.6, hoverinfo="skip")
    for symbol, images in _KEPT.values():
        marker = {"symbol": symbol, "color": GREY}
        figure.add_scatter(
            x=[None], y=[None], name=f"θ<sub>I</sub>, {images} images", hoverinfo="skip", mode="markers",
            marker=marker,
        )  # fmt: skip
    figure.update_xaxes(title_text="step of the immunization")
    figure.update_yaxes(**log_axis("", curves["value"]))
    figure.update_yaxes(title_text="RIR<sub>θ0</sub>, compact", col=1)
    note = f"{subtitle}. Line: geometric mean, band: range over seeds; bars: draws of the groups"
    return finish(figure, "RIR<sub>θ0</sub> while the methods train", note)


def _panels(
    curves: pd.DataFrame, quantity: str, *, shared_y: bool
) -> tuple[Any, list[tuple[int, str, MethodStyle, pd.DataFrame]]]:
    """Return an empty figure with a panel per backbone, and for each panel and method its column and rows."""
    table = only(curves, quantity)
    names = [str(name) for name in dict.fromkeys(table["backbone"])]
    figure = panels(cols=len(names), shared_yaxes=shared_y, subplot_titles=names, horizontal_spacing=0.07)
    return figure, [
        (
            column,
            str(method),
            _START if method == "initial" else method_style(str(method)),
            rows[rows["method"] == method],
        )
        for column, backbone in enumerate(names, start=1)
        for rows in [curves[curves["backbone"] == backbone]]
        for method in dict.fromkeys(table["method"])
    ]
