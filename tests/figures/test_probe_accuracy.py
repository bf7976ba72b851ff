"""Fig. 3 and the history of RIR_θ0: every curve, its level, its labels."""

import numpy as np
import pandas as pd
import pytest

from condnum.errors import InvalidInputError
from condnum.figures.probe_accuracy import net_style, probe_accuracy_figure, ratio_history_figure


def frame(backbone, method, seed, quantity, x, value):
    table = pd.DataFrame({"x": np.asarray(x, float), "value": np.asarray(value, float)})
    return table.assign(backbone=backbone, method=method, seed=seed, quantity=quantity)


@pytest.fixture
def curves():
    parts = []
    for backbone in ("net_a", "net_b"):
        for method, top in (("initial", 0.9), ("ours", 0.5)):
            for seed in (0, 1):
                parts.append(
                    frame(backbone, method, seed, "probe_accuracy", [0, 1, 2], [0.2, 0.3, top + 0.02 * seed])
                )
                parts.append(frame(backbone, method, seed, "convex_accuracy", [0], [0.95]))
                if method == "ours":
                    parts.append(frame(backbone, method, seed, "rir", [10, 20], [4.0, 100.0 + 300 * seed]))
    return pd.concat(parts, ignore_index=True)


def test_a_curve_a_band_and_a_level_for_each_method_and_backbone(curves):
    figure = probe_accuracy_figure(curves, "some data")
    named = [trace for trace in figure.data if trace.name == "Ours (Algorithm 1)"]
    assert [trace.xaxis for trace in named] == ["x", "x2"]
    np.testing.assert_allclose(named[0].y, [20, 30, 51])
    band = next(trace for trace in figure.data if trace.fill == "toself" and trace.legendgroup == "ours")
    np.testing.assert_allclose(band.y, [20, 30, 50, 52, 30, 20])
    levels = [t for t in figure.data if t.line.dash == "dot" and t.name == "Ours (Algorithm 1), convex"]
    np.testing.assert_allclose([trace.y for trace in levels], [[95, 95], [95, 95]])


def test_says_what_it_shows(curves):
    figure = probe_accuracy_figure(curves, "some data")
    assert "some data" in figure.layout.title.text
    assert "epoch" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text.endswith("(%)")
    assert [note.text for note in figure.layout.annotations] == ["net_a", "net_b"]


def test_history_is_a_geometric_mean_on_a_logarithmic_axis(curves):
    figure = ratio_history_figure(curves, "some data")
    line = next(trace for trace in figure.data if trace.name == "Ours (Algorithm 1)")
    np.testing.assert_allclose(line.y, [4, 200])
    assert figure.layout.yaxis.type == figure.layout.yaxis2.type == "log"


def test_theta_0_looks_like_no_method(curves):
    assert net_style("initial").dash == "dash"
    assert net_style("initial").color != net_style("ours").color


@pytest.mark.parametrize(
    ("draw", "message"),
    [(probe_accuracy_figure, "no 'probe_accuracy'"), (ratio_history_figure, "no 'rir'")],
    ids=["probe", "history"],
)
def test_without_curves(curves, draw, message):
    with pytest.raises(InvalidInputError, match=message):
        draw(curves[curves["quantity"] == "loss"], "")
