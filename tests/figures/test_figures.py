"""Figures say what their tables say."""

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError
from condnum.figures import limits
from condnum.figures.probe_accuracy import probe_accuracy_figure, ratio_history_figure
from condnum.page.style import method_style
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
