"""Figures say what their tables say."""

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError
from condnum.figures import attack_panel, limits
from condnum.page.style import method_style
from condnum.probing import AttackBudget
from condnum.probing import attack_panel as attacked
from condnum.theory.limits import feasible_region


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
def report():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 4))
    y = X @ np.ones(4) + generator.normal(size=50)
    names, budget = ["gd", "adam", "whiten", "closed_form"], AttackBudget(steps=300, dense_steps=60)
    thetas = {"raw": None, "ill": np.diag([1, 1, 0.1, 1e-3])}
    return attacked(X, y, thetas, attackers=names, budget=budget)


def test_a_line_is_the_geometric_mean_over_seeds_and_a_band_reaches_from_least_to_largest(curves):
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


def test_the_region_is_drawn_as_far_as_any_method_lies():
    region = feasible_region(np.diag([1e6, 1.0]), np.diag([2.0, 1.0]), ridge=1e-3)
    points = pd.DataFrame({"kind": ["family", "pareto"], "benign_ratio": 0.9, "harmful_ratio": 0.9})
    far = pd.DataFrame({"method": "pareto", "benign_ratio": [1e9], "harmful_ratio": [1e12], "rir": [1e3]})
    figure = limits.front_figure(points, far.assign(rir_share=0.1), region, "toy data")
    for name in ("unreachable", "Pareto front: RIR = RIR<sub>max</sub>"):
        assert np.log10(max(trace(figure, name).x)) > figure.layout.xaxis.range[1]


def test_extractors_are_drawn_beside_the_front():
    K_P, K_H = np.diag([100.0, 1.0]), np.diag([2.0, 1.0])
    figure = plots.pareto_figure(K_P, K_H, {"max_rir": np.diag([0.1, 1.0])}, subtitle="toy")
    assert (trace(figure, "Maximum RIR").x[0], trace(figure, "Maximum RIR").y[0]) == pytest.approx((0.01, 25))
    assert figure.layout.title.text.count("toy. ") == 1
    with pytest.raises(InvalidInputError, match=r"extractor 'a' has shape \(3, 3\)"):
        plots.pareto_figure(K_P, K_H, {"a": np.eye(3)})


def test_figure_1_leaves_out_erasure_whose_probe_has_nothing_to_learn(curves):
    erased = curves[curves["method"] == "ours"].assign(method="erase")
    figure = plots.norm_ratio_figure(pd.concat([curves, erased]), "toy data")
    assert "Erasure" not in {trace.name for trace in figure.data}
    assert "Erase is omitted" in figure.layout.title.text
