"""Figures say what the table says: values by hand, every panel labelled, nothing drawn that is not there."""

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError
from condnum.figures.style import log_axis, method_style, translucent


def long(method, seed, task, quantity, x, value):
    return pd.DataFrame(
        {"method": method, "seed": seed, "task": task, "quantity": quantity, "x": x, "value": value}
    )


@pytest.fixture
def curves():
    parts = []
    for task in ("pretrain", "harmful"):
        for seed, factor in ((0, 1.0), (1, 100.0)):
            parts.append(
                long("ours", seed, task, "norm_ratio", [0.0, 1, 10], [1.0, 1e-2 * factor, 1e-4 * factor])
            )
            parts.append(long("ours", seed, task, "spectrum", [1.0, 2.0], [8.0 * factor, 2.0 * factor]))
            parts.append(long("ours", seed, task, "kappa", [0.0, 1, 50], [9.0, 4.0 * factor, 2.0]))
        parts.append(long("identity", 0, task, "norm_ratio", [0.0, 1, 10], [1.0, 0.5, 0.0]))
        parts.append(long("identity", 0, task, "kappa", [0.0], [7.0]))
        parts.append(long("identity", 0, task, "spectrum", [1.0, 2.0], [7.0, 1.0]))
    return pd.concat(parts, ignore_index=True)


def line(figure, label, panel="x"):
    (trace,) = [t for t in figure.data if t.name == label and t.xaxis == panel]
    return np.asarray(trace.x, dtype=float), np.asarray(trace.y, dtype=float)


def test_norm_ratio_draws_the_geometric_mean_over_seeds(curves):
    figure = plots.norm_ratio_figure(curves, "toy")
    x, y = line(figure, "Ours (Algorithm 1)")
    np.testing.assert_array_equal(x, [1, 10])  # step 0 has no place on a logarithmic axis
    np.testing.assert_allclose(y, [1e-1, 1e-3])
    x, y = line(figure, "Identity (θ = I)", "x2")
    np.testing.assert_allclose(y, [0.5, 1e-32])  # zero is drawn at the floor of round-off


def test_band_runs_from_least_to_largest(curves):
    figure = plots.norm_ratio_figure(curves, "toy")
    (band,) = [t for t in figure.data if t.fill == "toself" and t.xaxis == "x"]
    np.testing.assert_allclose(band.y, [1e-2, 1e-4, 1e-2, 1])


def test_hidden_methods_stay_in_the_legend(curves):
    figure = plots.norm_ratio_figure(curves, "toy", hidden=["identity"])
    assert {t.visible for t in figure.data if t.legendgroup == "identity"} == {"legendonly"}
    assert {t.visible for t in figure.data if t.legendgroup == "ours"} == {True}


def test_one_legend_entry_a_method(curves):
    figure = plots.spectra_figure(curves, "toy")
    shown = [t.name for t in figure.data if t.showlegend]
    assert sorted(shown) == sorted(set(shown)) == ["Identity (θ = I)", "Ours (Algorithm 1)"]


def test_history_runs_the_level_of_the_identity_across(curves):
    figure = plots.history_figure(curves, "toy")
    x, y = line(figure, "Identity (θ = I)")
    np.testing.assert_array_equal(x, [1, 50])
    np.testing.assert_allclose(y, [7, 7])
    x, y = line(figure, "Ours (Algorithm 1)")
    np.testing.assert_allclose(y, [40, 2])  # √(4 · 400)


def test_ceiling_shows_shares():
    sweep = pd.DataFrame(
        {
            "method": ["ceiling", "ours", "ours", "ceiling", "ours", "ours"],
            "seed": [-1, 0, 1, -1, 0, 1],
            "ridge": [1.0, 1.0, 1.0, 10.0, 10.0, 10.0],
            "rir": [100.0, 4.0, 9.0, 10.0, 5.0, 5.0],
        }
    )
    figure = plots.ceiling_figure(sweep, "toy")
    (trace,) = [t for t in figure.data if t.name == "Ours (Algorithm 1)"]
    np.testing.assert_allclose(trace.y, [6, 5])
    np.testing.assert_allclose(trace.customdata, [0.06, 0.5])


@pytest.mark.parametrize(
    "draw", [plots.norm_ratio_figure, plots.spectra_figure, plots.history_figure], ids=lambda f: f.__name__
)
def test_every_figure_has_title_data_set_and_axis_titles(draw, curves):
    figure = draw(curves, "house-prices: 309 rows")
    assert "house-prices: 309 rows" in figure.layout.title.text
    for axis in (*figure.select_xaxes(), next(iter(figure.select_yaxes()))):
        assert axis.title.text


@pytest.mark.parametrize("draw", [plots.norm_ratio_figure, plots.spectra_figure, plots.history_figure])
def test_a_table_without_the_quantity_is_refused(draw, curves):
    with pytest.raises(InvalidInputError, match="they hold: loss"):
        draw(curves.assign(quantity="loss"), "toy")


def test_log_axis_labels_whole_decades():
    assert log_axis("", [1, 1e3])["dtick"] == 1
    assert log_axis("", [1e-32, 1])["dtick"] == 4
    assert log_axis("", [0.0, np.nan])["dtick"] == 1


def test_styles():
    colors = {method_style(name).color for name in ("ours", "opt_kappa", "imma", "r_ill_only", "identity")}
    assert len(colors) == 5
    assert method_style("of a user").label == "of a user"
    assert translucent("#0072B2", 0.5) == "rgba(0,114,178,0.5)"
