"""What lies behind one cell of the heatmap: the two mean digits, norm ratios and spectra of one pair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from condnum.errors import InvalidInputError, require
from condnum.figures.curves import norm_ratio_figure, spectra_figure
from condnum.figures.style import TASK_TITLES, finish

#: Ink on paper, so that a digit reads as it was written.
INK_SCALE = [[0, "#FFFFFF"], [1, "#000000"]]


@dataclass(frozen=True)
class PairDetail:
    """What is drawn of one ordered pair of digits."""

    pretrain_digit: int
    harmful_digit: int
    curves: pd.DataFrame  # of `experiments.measure.curves_table`: norm_ratio and spectrum
    mean_pretrain: ArrayLike  # (side, side) or (side²,), the mean image of D_P
    mean_harmful: ArrayLike  # (side, side) or (side²,), the mean image of D_H
    subtitle: str  # the data set


class PairFigures(NamedTuple):
    """The figures of one pair, in reading order."""

    digits: Any
    norm_ratio: Any
    spectra: Any


def pair_detail_figures(detail: PairDetail) -> PairFigures:
    """Draw one pair: what the tasks look like, how fast probes converge on them, and why.

    Args:
        detail: The pair.

    Returns:
        Three plotly figures.

    Raises:
        InvalidInputError: An image is not square, or the curves lack a quantity.
        MissingExtraError: Plotly is missing.
    """
    titles = _titles(detail)
    digits = mean_digits_figure(
        detail.mean_pretrain, detail.mean_harmful, (titles["pretrain"], titles["harmful"]), detail.subtitle
    )
    return PairFigures(digits, pair_norm_ratio_figure(detail), pair_spectra_figure(detail))


def pair_norm_ratio_figure(detail: PairDetail) -> Any:
    """Draw the norm ratios (Fig. 1) of one pair of digits.

    Args:
        detail: The pair.

    Returns:
        A plotly figure, as of `norm_ratio_figure`.

    Raises:
        InvalidInputError: The curves have no norm ratios.
        MissingExtraError: Plotly is missing.
    """
    return _named(norm_ratio_figure(detail.curves, detail.subtitle), detail)


def pair_spectra_figure(detail: PairDetail) -> Any:
    """Draw the spectra of both Hessians of one pair of digits.

    Args:
        detail: The pair.

    Returns:
        A plotly figure, as of `spectra_figure`.

    Raises:
        InvalidInputError: The curves have no spectra.
        MissingExtraError: Plotly is missing.
    """
    return _named(spectra_figure(detail.curves, detail.subtitle), detail)


def mean_digits_figure(
    mean_pretrain: ArrayLike, mean_harmful: ArrayLike, titles: tuple[str, str], subtitle: str = ""
) -> Any:
    """Draw the mean images of the two tasks in one scale of grey.

    Args:
        mean_pretrain: `(side, side)` or `(side²,)`; 8×8 and 28×28 are usual.
        mean_harmful: Likewise.
        titles: Of the two panels.
        subtitle: The data set.

    Returns:
        A plotly figure.

    Raises:
        InvalidInputError: An image is not square or not finite.
        MissingExtraError: Plotly is missing.

    Examples:
        >>> figure = mean_digits_figure([[0, 1], [2, 3]], [0, 4, 0, 4], ("P", "H"))
        >>> figure.layout.coloraxis.cmax, figure.data[1].z.tolist()
        (4.0, [[0.0, 4.0], [0.0, 4.0]])
    """
    images = [_image(mean_pretrain, "mean_pretrain"), _image(mean_harmful, "mean_harmful")]
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.06)
    for column, image in enumerate(images, start=1):
        figure.add_heatmap(
            z=image, coloraxis="coloraxis", row=1, col=column,
            hovertemplate="row %{y}, column %{x}: %{z:.3g}<extra></extra>",
        )  # fmt: skip
    title = {"text": "mean pixel"}
    low, high = min(float(image.min()) for image in images), max(float(image.max()) for image in images)
    finish(figure, "Mean image of each task", subtitle or "one scale of grey for both", height=380)
    frame = {"constrain": "domain", "mirror": True, "showticklabels": False, "ticks": "", "showgrid": False}
    figure.update_xaxes(zeroline=False, **frame)
    figure.update_yaxes(zeroline=False, autorange="reversed", **frame)
    for column in (1, 2):
        panel = figure.get_subplot(1, column)
        panel.yaxis.scaleanchor = panel.yaxis.anchor
    figure.update_layout(
        coloraxis={"colorscale": INK_SCALE, "cmin": low, "cmax": high, "colorbar": {"title": title}},
        margin={"b": 20},
    )
    return figure


def _image(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return a square image."""
    image = np.asarray(values, dtype=np.float64)
    side = math.isqrt(image.size)
    if image.shape not in ((side, side), (side * side,)) or side == 0:
        raise InvalidInputError(
            f"{name} must be a square image, (side, side) or (side²,), got shape {image.shape}."
        )
    if not np.isfinite(image).all():
        raise InvalidInputError(f"{name} has pixels that are not finite.")
    return image.reshape(side, side)


def _titles(detail: PairDetail) -> dict[str, str]:
    """Return the panels' titles by task, with the digits."""
    return {
        "pretrain": f"{TASK_TITLES['pretrain']}: digit {detail.pretrain_digit}",
        "harmful": f"{TASK_TITLES['harmful']}: digit {detail.harmful_digit}",
    }


def _named(figure: Any, detail: PairDetail) -> Any:
    """Put the digits into the titles of the two panels."""
    titles = _titles(detail)
    for annotation in figure.layout.annotations:
        for task, text in TASK_TITLES.items():
            if annotation.text == text:
                annotation.text = titles[task]
    return figure
