"""Details of a pair: the images that were given, and the curves' figures under the digits' names."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError


@pytest.fixture
def detail():
    parts = []
    for task, factor in (("pretrain", 1.0), ("harmful", 3.0)):
        for quantity, x, value in (
            ("norm_ratio", [0.0, 1, 10], [1.0, 0.5, 0.1]),
            ("spectrum", [1.0, 2.0], [8.0, 2.0]),
        ):
            frame = {"method": "ours", "seed": 0, "task": task, "quantity": quantity, "x": x}
            parts.append(pd.DataFrame(frame | {"value": factor * np.array(value)}))
    image = np.arange(64.0).reshape(8, 8)
    return plots.PairDetail(3, 8, pd.concat(parts), image, 2 * image.ravel(), "toy: 12 rows")


def test_three_figures_name_both_digits_and_the_data(detail):
    for figure in plots.pair_detail_figures(detail):
        titles = {annotation.text for annotation in figure.layout.annotations}
        assert titles >= {
            "D<sub>P</sub>, pre-training task: digit 3",
            "D<sub>H</sub>, harmful task: digit 8",
        }
        assert "toy: 12 rows" in figure.layout.title.text


def test_curves_are_those_of_the_figures_of_curves(detail):
    drawn = plots.pair_detail_figures(detail)
    for ours, theirs in (
        (drawn.spectra, plots.spectra_figure(detail.curves, "")),
        (drawn.norm_ratio, plots.norm_ratio_figure(detail.curves, "")),
    ):
        assert len(ours.data) == len(theirs.data) == 2
        for a, b in zip(ours.data, theirs.data, strict=True):
            np.testing.assert_array_equal(np.asarray(a.y), np.asarray(b.y))


def test_digits_share_one_scale_and_stand_upright(detail):
    figure = plots.pair_detail_figures(detail).digits
    left, right = figure.data
    np.testing.assert_array_equal(left.z, detail.mean_pretrain)
    np.testing.assert_array_equal(right.z, 2 * np.asarray(detail.mean_pretrain))
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 126)
    assert {left.coloraxis, right.coloraxis} == {"coloraxis"}
    assert [axis.autorange for axis in figure.select_yaxes()] == ["reversed"] * 2
    assert [axis.scaleanchor for axis in figure.select_yaxes()] == ["x", "x2"]


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (np.ones((8, 7)), r"mean_harmful must be a square image.*\(8, 7\)"),
        (np.ones(65), r"got shape \(65,\)"),
        (np.ones((2, 2, 4)), "square image"),
        (np.empty(0), "square image"),
        (np.full((8, 8), np.nan), "mean_harmful has pixels that are not finite"),
    ],
    ids=["oblong", "no square", "three axes", "empty", "nan"],
)
def test_what_is_no_image_is_refused(image, match, detail):
    with pytest.raises(InvalidInputError, match=match):
        plots.pair_detail_figures(replace(detail, mean_harmful=image))
