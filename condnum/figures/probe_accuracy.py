"""Fig. 3: test accuracy of a linear probe on D_H against its epochs, one panel per backbone."""

from typing import Any

import pandas as pd

from condnum.figures.curves import only
from condnum.page.style import (
    GREY,
    MethodStyle,
    add_line,
    finish,
    lines_by_method,
    log_axis,
    method_style,
    panels,
)

#: Of the θ that was kept, the mark of its RIR, and on which images.
_KEPT = {"kept_rir": ("circle", "training"), "kept_test_rir": ("diamond", "test")}


def _style(method: str) -> MethodStyle:
    """Return a method's style; θ₀ is not an immunized model, and drawn unlike any of them."""
    start = MethodStyle("θ<sub>0</sub> (not immunized)", "#666666", "dash")
    return start if method == "initial" else method_style(method)


def _of_backbones(curves: pd.DataFrame, quantity: str, *, shared_y: bool) -> tuple[Any, pd.DataFrame]:
    """Return a figure with a panel per backbone, and the curves of the methods that have the quantity."""
    table = only(curves, quantity)
    names = list(dict.fromkeys(table["backbone"]))
    figure = panels(cols=len(names), shared_yaxes=shared_y, subplot_titles=names, horizontal_spacing=0.07)
    own = curves.merge(table[["backbone", "method"]].drop_duplicates())
    return figure, own.assign(backbone=pd.Categorical(own["backbone"], names))


def probe_accuracy_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw Fig. 3: gradient descent at its best learning rate, and the optimum of the same probe.

    A panel per backbone: mean over seeds, band from the least to the largest; the dotted level in the same
    color is what a convex solver reaches on the same features.
    """
    figure, table = _of_backbones(curves, "probe_accuracy", shared_y=False)
    names = list(table["backbone"].cat.categories)
    table["value"] *= 100
    gd = only(table, "probe_accuracy")
    lines_by_method(
        figure, gd, "x", "value", panel="backbone", columns=len(names), style=_style, geometric=False,
        hovertemplate="epoch %{x}: %{y:.1f} %",
    )  # fmt: skip
    optima = table[table["quantity"] == "convex_accuracy"]
    for (backbone, method), own in optima.groupby(["backbone", "method"], sort=False, observed=True):
        style, level, column = _style(method), float(own["value"].mean()), names.index(backbone) + 1
        epochs = gd.loc[(gd["backbone"] == backbone) & (gd["method"] == method), "x"]
        add_line(
            figure, f"{style.label}, convex", [epochs.min(), epochs.max()], [level, level], style.color,
            "dot", width=1.6, hovertemplate=f"convex solver: {level:.1f} %", legendgroup=method,
            showlegend=False, row=1, col=column,
        )  # fmt: skip
    figure.update_xaxes(title_text="epoch")
    figure.update_yaxes(title_text="test accuracy on D<sub>H</sub> (%)", col=1)
    note = f"{subtitle}. Line: mean over seeds; band: least to largest; dotted: optimum of the same probe"
    return finish(figure, "Linear probing of D<sub>H</sub> (Fig. 3)", note)


def ratio_history_figure(curves: pd.DataFrame, subtitle: str) -> Any:
    """Draw RIR_θ0 while the methods train, and what was reported of θ_I.

    A panel per backbone: geometric mean over seeds, band from the least to the largest; dotted: on held-out
    images; a dot and a diamond with the span over draws: of the θ that was kept, on training and on test
    images.
    """
    shown = ["rir", "held_rir", *_KEPT]
    figure, table = _of_backbones(
        curves[curves["quantity"].isin(shown) & (curves["value"] > 0)], "rir", shared_y=True
    )
    names = list(table["backbone"].cat.categories)
    look: dict[str, Any] = {"panel": "backbone", "columns": len(names)}
    training, held = (table[table["quantity"] == name] for name in ("rir", "held_rir"))
    hover = "step %{x}, training images: %{y:.3g}"
    lines_by_method(figure, training, "x", "value", style=_style, hovertemplate=hover, **look)
    if len(held):
        lines_by_method(
            figure, held, "x", "value", style=lambda name: _style(name)._replace(dash="dot"), listed=False,
            hovertemplate="step %{x}, held-out images: %{y:.3g}", **look,
        )  # fmt: skip
    kept = table[table["quantity"].isin([*_KEPT])]
    by = ["backbone", "method", "quantity", "seed"]
    for (backbone, method, quantity, _), own in kept.groupby(by, sort=False, observed=True):
        color, (symbol, images), (value, low, high) = _style(method).color, _KEPT[quantity], own["value"]
        figure.add_scatter(
            x=own["x"].iloc[:1], y=[value], mode="markers",
            marker={"color": color, "symbol": symbol, "size": 9},
            error_y={"array": [high - value], "arrayminus": [value - low], "color": color},
            hovertemplate=f"{images} images: %{{y:.3g}} ({low:.3g} to {high:.3g} over draws)",
            legendgroup=method, showlegend=False, row=1, col=names.index(backbone) + 1,
        )  # fmt: skip
    figure.add_hline(y=1, line_color=GREY, line_width=1)
    figure.update_xaxes(title_text="step of the immunization")
    figure.update_yaxes(**log_axis("", table["value"])).update_yaxes(
        title_text="RIR<sub>θ0</sub>, compact", col=1
    )
    note = (
        f"{subtitle}. Line: geometric mean, band: range over seeds; dotted: held-out images; dot and "
        "diamond: θ<sub>I</sub> on training and test images, bars: draws of the groups"
    )
    return finish(figure, "RIR<sub>θ0</sub> while the methods train", note)
