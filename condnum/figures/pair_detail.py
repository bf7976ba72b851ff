"""What lies behind one cell of the heatmap: the two mean digits, norm ratios and spectra of one pair."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from condnum.errors import InvalidInputError
from condnum.figures.curves import norm_ratio_figure, task_spectra_figure
from condnum.figures.style import TASK_TITLES, finish, panels


@dataclass(frozen=True)
class PairDetail:
    """What is drawn of one ordered pair of digits."""

    pretrain_digit: int
    harmful_digit: int
    curves: pd.DataFrame  # of `measure.extractor_curves`: norm_ratio and spectrum
    mean_pretrain: ArrayLike  # (side, side) or (side²,), the mean image of D_P
    mean_harmful: ArrayLike  # (side, side) or (side²,), the mean image of D_H
    subtitle: str  # the data set


class PairFigures(NamedTuple):
    """The figures of one pair, in reading order."""

    digits: Any
    norm_ratio: Any
    spectra: Any


def pair_detail_figures(detail: PairDetail) -> PairFigures:
    """Draw one pair: what the tasks look like, how fast probes converge on them, and why."""
    titles = {
        TASK_TITLES["pretrain"]: f"{TASK_TITLES['pretrain']}: digit {detail.pretrain_digit}",
        TASK_TITLES["harmful"]: f"{TASK_TITLES['harmful']}: digit {detail.harmful_digit}",
    }
    curves = [draw(detail.curves, detail.subtitle) for draw in (norm_ratio_figure, task_spectra_figure)]
    for figure in curves:
        figure.for_each_annotation(lambda note: note.update(text=titles.get(note.text, note.text)))
    images = [_image(detail.mean_pretrain, "mean_pretrain"), _image(detail.mean_harmful, "mean_harmful")]
    figure = panels(cols=2, subplot_titles=list(titles.values()), horizontal_spacing=0.06)
    for column, image in enumerate(images, start=1):
        figure.add_heatmap(
            z=image, coloraxis="coloraxis", row=1, col=column,
            hovertemplate="row %{y}, column %{x}: %{z:.3g}<extra></extra>",
        )  # fmt: skip
    finish(figure, "Mean image of each task", detail.subtitle, height=380)
    frame = {"constrain": "domain", "mirror": True, "showticklabels": False, "ticks": "", "showgrid": False}
    figure.update_xaxes(zeroline=False, **frame)
    figure.update_yaxes(zeroline=False, autorange="reversed", **frame)
    for column in (1, 2):
        panel = figure.get_subplot(1, column)
        panel.yaxis.scaleanchor = panel.yaxis.anchor
    ink = [[0, "#FFFFFF"], [1, "#000000"]]  # on paper, so that a digit reads as it was written
    scale = {"colorscale": ink, "cmin": np.min(images), "cmax": np.max(images)}
    figure.update_layout(coloraxis=scale | {"colorbar_title_text": "mean pixel"}, margin_b=20)
    return PairFigures(figure, *curves)


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
