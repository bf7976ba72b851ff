"""Figures of the experiment on limits: they draw the tables' numbers, and refuse empty ones."""

import numpy as np
import pandas as pd
import pytest

from condnum.errors import InvalidInputError
from condnum.figures import limits as figures
from condnum.figures import limits as limit_directions
from condnum.theory.pareto import feasible_region

NAMES = {"dataset": "toy", "pretrain_task": "digit 4", "harmful_task": "digit 7"}
REGION = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]), ridge=0.1)


def by_name(figure, start):
    return next(trace for trace in figure.data if str(trace.name).startswith(start))


def test_ceilings_and_what_attains_them():
    table = pd.DataFrame(
        {
            **NAMES,
            "ridge_share": [1e-3, 1.0],
            "ridge": [1, 1e3],
            "rir_ceiling": [100.0, 2.0],
            "optimal_rir": [99.0, 2.0],
        }
    )
    figure = figures.ceilings_figure(table, "toy data")
    line, stars = figure.data
    assert line.name == "4 → 7"
    np.testing.assert_array_equal(line.y, [100.0, 2.0])
    np.testing.assert_array_equal(stars.y, [99.0, 2.0])
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert "toy data" in figure.layout.title.text
    assert "mean eigenvalues" in figure.layout.xaxis.title.text


def test_shares_are_geometric_means_with_a_band():
    table = pd.DataFrame(
        {**NAMES, "method": "ours", "seed": [0, 1, 0, 1], "ridge_share": [1.0, 1.0, 10.0, 10.0],
         "rir_share": [1e-4, 1e-2, 0.1, np.nan]}
    )  # fmt: skip
    figure = figures.shares_figure(table, "toy data")
    np.testing.assert_allclose(by_name(figure, "Ours").y, [1e-3, 0.1])
    np.testing.assert_allclose(by_name(figure, "Ours").customdata, [[1e-4, 1e-2], [0.1, 0.1]])
    assert len(figure.data) == 2


def test_front_shows_region_points_and_methods():
    points = pd.DataFrame(
        {
            **NAMES,
            "kind": ["family", "family", "front"],
            "pretrain_ratio": [1.0, 0.1, 0.1],
            "harmful_ratio": [1.0, 5, 9],
        }
    )
    methods = pd.DataFrame(
        {**NAMES, "method": ["ours", "identity"], "pretrain_ratio": [0.5, 1.0], "harmful_ratio": [3.0, 1.0],
         "rir": [6.0, 1.0], "rir_share": [0.1, 0.01]}
    )  # fmt: skip
    figure = figures.front_figure(points, methods, REGION, "4 → 7; toy")
    names = [str(trace.name) for trace in figure.data]
    assert [name for name in names if name.startswith(("immunized", "no θ", "Pareto"))] == names[:3]
    ray = by_name(figure, "Pareto")
    np.testing.assert_allclose(ray.y / ray.x, REGION.ceiling.value)
    assert ray.x[0] == pytest.approx(REGION.start[0])
    assert by_name(figure, "Ours").x == (0.5,)
    assert by_name(figure, "Identity").marker.color != "#000000"  # unreadable on dark pages
    low, high = figure.layout.xaxis.range
    assert low < np.log10(REGION.start[0]) < high
    with pytest.raises(InvalidInputError, match="no points of this pair"):
        figures.front_figure(points[:0], methods, REGION, "")


def directions(count, indices=(1, 9)):
    generator = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            {**NAMES, "index": index, "eigenvalue": 10.0 / index, "feature": [f"f{j}" for j in range(count)],
             "filter": generator.normal(size=count), "pattern": 1.0, "share": np.linspace(-0.3, 0.5, count)}
        )
        for index in indices
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def test_bars_show_the_largest_shares_of_both_ends():
    figure = limit_directions.direction_bars(directions(30), "toy")
    first, last = figure.data
    assert len(first.x) == limit_directions.SHOWN_FEATURES == len(last.x)
    assert first.y[-1] == "f29"  # the largest, drawn on top
    assert np.abs(first.x).min() >= 0.2
    assert any("λ = 10" in note.text for note in figure.layout.annotations)


def test_images_show_patterns_above_filters():
    table = directions(16, (1, 2, 9))
    figure = limit_directions.direction_images(table, "toy")
    assert len(figure.data) == 2 * 3
    np.testing.assert_array_equal(figure.data[0].z, np.ones((4, 4)))
    np.testing.assert_array_equal(np.ravel(figure.data[1].z), table["filter"][:16])
    with pytest.raises(InvalidInputError, match="15 features are no square image"):
        limit_directions.direction_images(directions(15), "toy")


@pytest.mark.parametrize("draw", [limit_directions.direction_bars, limit_directions.direction_images])
def test_empty_directions(draw):
    with pytest.raises(InvalidInputError, match="no directions of this pair"):
        draw(directions(4)[:0], "toy")
