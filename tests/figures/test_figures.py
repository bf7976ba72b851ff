"""Figures say what their tables say."""

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.figures import attack_panel
from condnum.figures.probe_accuracy import probe_accuracy_figure, ratio_history_figure
from condnum.page.style import method_style
from condnum.probing import AttackBudget
from condnum.probing import attack_panel as attacked


def trace(figure, name, panel="x"):
    """The first trace in a panel whose name starts so."""
    return next(t for t in figure.data if str(t.name).startswith(name) and (t.xaxis or "x") == panel)


@pytest.fixture(scope="module")
def curves():
    rows = []

    def add(method, seed, quantity, x, value):
        points = [*zip(x, value, strict=True)]
        rows.extend((method, seed, t, quantity, *of) for t in ("benign", "harmful") for of in points)

    for seed, factor in ((0, 1.0), (1, 100.0)):
        add("ours", seed, "norm_ratio", [0.0, 1, 10], [1.0, 1e-2 * factor, 1e-4 * factor])
        add("ours", seed, "spectrum", [1.0, 2.0], [8.0 * factor, 2.0 * factor])
        add("ours", seed, "kappa", [0.0, 1, 50], [9.0, 4.0 * factor, 2.0])
    add("identity", 0, "norm_ratio", [0.0, 1, 10], [1.0, 0.5, 0.0])
    add("identity", 0, "kappa", [0.0], [7.0])
    add("identity", 0, "spectrum", [1.0, 2.0], [7.0, 1.0])
    return pd.DataFrame(rows, columns=["method", "seed", "task", "quantity", "x", "value"])


@pytest.fixture(scope="module")
def net_curves():
    points = {"probe_accuracy": [(0, 0.2), (1, 0.3)], "convex_accuracy": [(0, 0.95)]}
    rows = []
    for backbone in ("net_a", "net_b"):
        for method, top in (("initial", 0.9), ("ours", 0.5)):
            for seed in (0, 1):
                own = {**points, "probe_accuracy": [*points["probe_accuracy"], (2, top + 0.02 * seed)]}
                if method == "ours":
                    own["rir"] = [(10, 4.0), (20, 100.0 + 300 * seed)]
                    own["kept_rir"] = [(20, 5.0), (20, 4.0), (20, 7.0)]
                rows += [(backbone, method, seed, q, x, v) for q, pairs in own.items() for x, v in pairs]
    return pd.DataFrame(rows, columns=["backbone", "method", "seed", "quantity", "x", "value"])


def test_a_line_is_the_geometric_mean_over_seeds_and_a_band_reaches_from_least_to_largest(curves, net_curves):
    figure = plots.norm_ratio_figure(curves, "toy data")
    assert figure.layout.title.text.partition("<br><sup>")[2].startswith("toy data. ")
    listed = [t.name for t in figure.data if t.name and t.showlegend is not False]
    assert listed == ["Ours (Algorithm 1)", "Identity (θ = I)"]  # each once, for both panels
    line = trace(figure, "Ours")
    assert [*line.x] == [1, 10]  # on a logarithmic axis, without the start
    np.testing.assert_allclose(line.y, [1e-1, 1e-3])
    np.testing.assert_allclose(line.customdata, [[1e-2, 1], [1e-4, 1e-2]])
    band = next(t for t in figure.data if t.fill == "toself")
    np.testing.assert_allclose(band.y, [1e-2, 1e-4, 1e-2, 1])
    assert trace(figure, "Identity", "x2").y[-1] == pytest.approx(1e-32)  # zero
    assert (line.line.color, line.line.dash) == method_style("ours")[1:]
    mean = trace(probe_accuracy_figure(net_curves, "toy data"), "θ<sub>0</sub> (not")
    np.testing.assert_allclose(mean.y, [20, 30, 91])


def test_marks_of_a_net_show_the_span_over_draws_and_the_level_of_a_solver(net_curves):
    mark = next(t for t in ratio_history_figure(net_curves, "toy data").data if t.mode == "markers")
    assert (mark.x[0], mark.y[0]) == (20, 5)
    assert (mark.error_y.array[0], mark.error_y.arrayminus[0]) == (2, 1)
    drawn = probe_accuracy_figure(net_curves, "toy data").data
    level = next(t for t in drawn if str(t.name).endswith("convex"))
    assert [*level.y] == pytest.approx([95, 95])


def test_factors_are_numbers_or_lower_bounds(report):
    heat = attack_panel.attack_factor_heatmap(report, "toy data").data[0]
    worst = report.worst_case("ill")["factor"]
    assert 10 ** heat.z[-1][0] == pytest.approx(worst)
    shown = dict(zip(heat.y, np.ravel(heat.text), strict=True))
    assert shown["Whiten + GD"] == "1"
    few = AttackBudget(steps=1, dense_steps=1)
    thetas = {"raw": None, "a": np.eye(3)}
    unknown = attacked(np.diag([1.0, 0.01, 0.001]), np.arange(3.0), thetas, attackers=["gd"], budget=few)
    assert np.isnan(attack_panel.attack_factor_heatmap(unknown, "toy").data[0].z).all()


def test_figure_1_leaves_out_erasure_whose_probe_has_nothing_to_learn(curves):
    erased = curves[curves["method"] == "ours"].assign(method="erase")
    figure = plots.norm_ratio_figure(pd.concat([curves, erased]), "toy data")
    assert "Erasure" not in {trace.name for trace in figure.data}
    assert "Erase is omitted" in figure.layout.title.text
