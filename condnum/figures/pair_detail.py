"""What lies behind one cell of the heatmap: the two mean digits, norm ratios and spectra of one pair."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from condnum.figures.curves import norm_ratio_figure, task_spectra_figure
from condnum.figures.style import TASK_TITLES, finish, panels, square


@dataclass(frozen=True)
class PairDetail:
    """What is drawn of one ordered pair of digits."""

    pretrain_digit: int
    harmful_digit: int
    curves: pd.DataFrame  # of `measure.extractor_curves`: norm_ratio and spectrum
    mean_pretrain: ArrayLike  # (side, side), the mean image of D_P
    mean_harmful: ArrayLike  # (side, side), the mean image of D_H
    subtitle: str  # the data set


def pair_detail_figures(detail: PairDetail) -> list[Any]:
    """Draw one pair: what the tasks look like, how fast probes converge on them, and why."""
    titles = [
        f"{TASK_TITLES[task]}: digit {digit}"
        for task, digit in (("pretrain", detail.pretrain_digit), ("harmful", detail.harmful_digit))
    ]
    images = np.stack([detail.mean_pretrain, detail.mean_harmful])
    figure = panels(cols=2, subplot_titles=titles, horizontal_spacing=0.06)
    for column, image in enumerate(images, start=1):
        figure.add_heatmap(
            z=image, coloraxis="coloraxis", row=1, col=column,
            hovertemplate="row %{y}, column %{x}: %{z:.3g}<extra></extra>",
        )  # fmt: skip
    finish(figure, "Mean image of each task", detail.subtitle, height=380)
    figure.update_xaxes(visible=False).update_yaxes(visible=False, autorange="reversed")
    square(figure).update_layout(
        coloraxis={"colorscale": [[0, "#FFFFFF"], [1, "#000000"]], "colorbar_title_text": "mean pixel"},
        margin_b=20,
    )
    return [
        figure,
        *(draw(detail.curves, detail.subtitle) for draw in (norm_ratio_figure, task_spectra_figure)),
    ]
