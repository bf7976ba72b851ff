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

#: θ₀ is not an immunized model: drawn unlike any of them.
_START = MethodStyle("θ<sub>0</sub> (not immunized)", "#666666", "dash")

#: RIR of the θ that was kept: its mark, and on which images.
_KEPT = {"kept_rir": ("circle", "training"), "kept_test_rir": ("diamond", "test")}


def probe_accuracy_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw Fig. 3: gradient descent at its best learning rate, and the optimum of the same probe.

    A panel per backbone: mean over seeds, band from the least to the largest; the dotted level in the same
    color is what a convex solver reaches on the same features.
    """
    figure, parts = _panels(curves, "probe_accuracy", shared_y=False)
    for style, own, place in parts:
        wide = 100 * only(own, "probe_accuracy").pivot_table(index="x", columns="seed", values="value")
        add_band(figure, wide, style, geometric=False, hovertemplate="epoch %{x}: %{y:.1f} %", **place)
        optimum = own[own["quantity"] == "convex_accuracy"]["value"]
        if len(optimum):
            level = 100 * float(optimum.mean())
            add_line(
                figure, f"{style.label}, convex", [wide.index.min(), wide.index.max()], [level, level],
                style.color, "dot", width=1.6, hovertemplate=f"convex solver: {level:.1f} %",
                **place | {"showlegend": False},
            )  # fmt: skip
    figure.update_xaxes(title_text="epoch (one full-batch step)")
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
    figure, parts = _panels(curves, "rir", shared_y=True)
    for style, own, place in parts:
        later = place | {"showlegend": False}
        for quantity, dash, at, images in (
            ("rir", style.dash, place, "training"), ("held_rir", "dot", later, "held-out")
        ):  # fmt: skip
            rows = own[own["quantity"] == quantity]
            if len(rows):
                wide = rows.pivot_table(index="x", columns="seed", values="value")
                hover = f"step %{{x}}, {images} images: %{{y:.3g}}"
                add_band(figure, wide, style._replace(dash=dash), hovertemplate=hover, **at)
        for quantity, (symbol, images) in _KEPT.items():
            for _, of_seed in own[own["quantity"] == quantity].groupby("seed"):
                value, low, high = of_seed["value"]
                figure.add_scatter(
                    x=of_seed["x"].iloc[:1], y=[value], mode="markers",
                    marker={"color": style.color, "symbol": symbol, "size": 9},
                    error_y={"array": [high - value], "arrayminus": [value - low], "color": style.color},
                    hovertemplate=f"{images} images: %{{y:.3g}} ({low:.3g} to {high:.3g} over draws)",
                    **later,
                )  # fmt: skip
    figure.add_hline(y=1, line_color=GREY, line_width=1)
    figure.update_xaxes(title_text="step of the immunization")
    figure.update_yaxes(**log_axis("", curves["value"]))
    figure.update_yaxes(title_text="RIR<sub>θ0</sub>, compact", col=1)
    note = (
        f"{subtitle}. Line: geometric mean, band: range over seeds; dotted: held-out images; dot and "
        "diamond: θ<sub>I</sub> on training and test images, bars: draws of the groups"
    )
    return finish(figure, "RIR<sub>θ0</sub> while the methods train", note)


def _panels(
    curves: pd.DataFrame, quantity: str, *, shared_y: bool
) -> tuple[Any, list[tuple[MethodStyle, pd.DataFrame, dict[str, Any]]]]:
    """Return a figure with a panel per backbone; of each panel and method its style, rows and place."""
    table = only(curves, quantity)
    names = list(dict.fromkeys(table["backbone"]))
    figure = panels(cols=len(names), shared_yaxes=shared_y, subplot_titles=names, horizontal_spacing=0.07)
    parts = []
    for column, backbone in enumerate(names, start=1):
        for method in dict.fromkeys(table["method"]):
            own = curves[(curves["backbone"] == backbone) & (curves["method"] == method)]
            place = {"row": 1, "col": column, "legendgroup": method, "showlegend": column == 1}
            if quantity in set(own["quantity"]):
                parts.append((_START if method == "initial" else method_style(method), own, place))
    return figure, parts
