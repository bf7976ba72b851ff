"""Figures say what their tables say: values by hand, every axis named, empty tables refused."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError
from condnum.figures import attack_panel, limits
from condnum.figures.probe_accuracy import net_style, probe_accuracy_figure, ratio_history_figure
from condnum.figures.style import log_axis, method_style, translucent
from condnum.figures.waterfall import alone_figure, waterfall_figure
from condnum.probing import AttackBudget, AttackTask
from condnum.probing import attack_panel as attacked
from condnum.theory.pareto import feasible_region

OURS = "Ours (Algorithm 1)"
IDENTITY = "Identity (θ = I)"
PAIR = {"dataset": "toy", "pretrain_task": "digit 4", "harmful_task": "digit 7"}
REGION = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]), ridge=0.1)


def trace(figure, name, panel="x"):
    """The first trace in a panel whose name starts so."""
    return next(t for t in figure.data if str(t.name).startswith(name) and (t.xaxis or "x") == panel)


def notes(figure):
    return [note.text for note in figure.layout.annotations]


# Curves of linear probes.


@pytest.fixture
def curves():
    rows = []

    tasks = ("pretrain", "harmful")

    def add(method, seed, quantity, x, value):
        rows.extend(
            (method, seed, task, quantity, *point) for task in tasks for point in zip(x, value, strict=True)
        )

    for seed, factor in ((0, 1.0), (1, 100.0)):
        add("ours", seed, "norm_ratio", [0.0, 1, 10], [1.0, 1e-2 * factor, 1e-4 * factor])
        add("ours", seed, "spectrum", [1.0, 2.0], [8.0 * factor, 2.0 * factor])
        add("ours", seed, "kappa", [0.0, 1, 50], [9.0, 4.0 * factor, 2.0])
    add("identity", 0, "norm_ratio", [0.0, 1, 10], [1.0, 0.5, 0.0])
    add("identity", 0, "kappa", [0.0], [7.0])
    add("identity", 0, "spectrum", [1.0, 2.0], [7.0, 1.0])
    return pd.DataFrame(rows, columns=["method", "seed", "task", "quantity", "x", "value"])


def test_norm_ratios_are_geometric_means_with_a_band(curves):
    figure = plots.norm_ratio_figure(curves, "toy", hidden=["identity"])
    np.testing.assert_array_equal(trace(figure, OURS).x, [1, 10])  # step 0 has no place on a log axis
    np.testing.assert_allclose(trace(figure, OURS).y, [1e-1, 1e-3])
    np.testing.assert_allclose(trace(figure, IDENTITY, "x2").y, [0.5, 1e-32])  # the floor of round-off
    (band,) = [t for t in figure.data if t.fill == "toself" and t.xaxis == "x"]
    np.testing.assert_allclose(band.y, [1e-2, 1e-4, 1e-2, 1])
    assert {t.visible for t in figure.data if t.legendgroup == "identity"} == {"legendonly"}
    assert {t.visible for t in figure.data if t.legendgroup == "ours"} == {True}


def test_history_runs_the_level_of_the_identity_across(curves):
    figure = plots.history_figure(curves, "toy")
    np.testing.assert_array_equal(trace(figure, IDENTITY).x, [1, 50])
    np.testing.assert_allclose(trace(figure, IDENTITY).y, [7, 7])
    np.testing.assert_allclose(trace(figure, OURS).y, [40, 2])  # √(4 · 400)


@pytest.mark.parametrize("draw", [plots.norm_ratio_figure, plots.spectra_figure, plots.history_figure])
def test_curves_name_their_data_and_axes_and_each_method_once(draw, curves):
    figure = draw(curves, "house-prices: 309 rows")
    assert "house-prices: 309 rows" in figure.layout.title.text
    for axis in (*figure.select_xaxes(), next(iter(figure.select_yaxes()))):
        assert axis.title.text
    assert sorted(t.name for t in figure.data if t.showlegend) == [IDENTITY, OURS]
    with pytest.raises(InvalidInputError, match="they hold: loss"):
        draw(curves.assign(quantity="loss"), "toy")


def test_ceiling_shows_shares():
    sweep = pd.DataFrame(
        {
            "method": ["ceiling", "ours", "ours"] * 2,
            "seed": [-1, 0, 1] * 2,
            "ridge": [1.0] * 3 + [10.0] * 3,
            "rir": [100.0, 4.0, 9.0, 10.0, 5.0, 5.0],
        }
    )
    line = trace(plots.ceiling_figure(sweep, "toy"), OURS)
    np.testing.assert_allclose(line.y, [6, 5])
    np.testing.assert_allclose(line.customdata, [0.06, 0.5])


def test_styles():
    colors = {method_style(name).color for name in ("ours", "opt_kappa", "imma", "r_ill_only", "identity")}
    assert len(colors) == 5
    assert method_style("of a user").label == "of a user"
    assert translucent("#0072B2", 0.5) == "rgba(0,114,178,0.5)"
    assert [log_axis("", v)["dtick"] for v in ([1, 1e3], [1e-32, 1], [0.0, np.nan])] == [1, 4, 1]


# One pair of digits.


@pytest.fixture
def detail(curves):
    image = np.arange(64.0).reshape(8, 8)
    return plots.PairDetail(3, 8, curves, image, 2 * image.ravel(), "toy: 12 rows")


def test_three_figures_of_a_pair(detail):
    drawn = plots.pair_detail_figures(detail)
    for figure in drawn:
        titles = {"D<sub>P</sub>, pre-training task: digit 3", "D<sub>H</sub>, harmful task: digit 8"}
        assert titles <= set(notes(figure))
        assert "toy: 12 rows" in figure.layout.title.text
    assert drawn.spectra.data == plots.spectra_figure(detail.curves, "").data
    left, right = drawn.digits.data
    np.testing.assert_array_equal(left.z, detail.mean_pretrain)
    np.testing.assert_array_equal(right.z, 2 * np.asarray(detail.mean_pretrain))
    assert (drawn.digits.layout.coloraxis.cmin, drawn.digits.layout.coloraxis.cmax) == (0, 126)
    assert [axis.autorange for axis in drawn.digits.select_yaxes()] == ["reversed"] * 2  # upright
    assert [axis.scaleanchor for axis in drawn.digits.select_yaxes()] == ["x", "x2"]


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (np.ones((8, 7)), r"mean_harmful must be a square image.*\(8, 7\)"),
        (np.ones(65), r"got shape \(65,\)"),
        (np.empty(0), "square image"),
        (np.full((8, 8), np.nan), "mean_harmful has pixels that are not finite"),
    ],
    ids=["oblong", "no square", "empty", "nan"],
)
def test_what_is_no_image_is_refused(image, match, detail):
    with pytest.raises(InvalidInputError, match=match):
        plots.pair_detail_figures(replace(detail, mean_harmful=image))


# Attackers.


@pytest.fixture(scope="module")
def report():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 4))
    task = AttackTask(X, X @ np.ones(4) + generator.normal(size=50), name="toy")
    thetas = {"raw": None, "ill": np.diag([1, 1, 0.1, 1e-3])}
    names = ["gd", "adam", "whiten", "closed_form"]
    return attacked(thetas, task, attackers=names, budget=AttackBudget(steps=300, dense_steps=60))


def test_attack_curves_have_a_panel_an_extractor_and_a_line_an_attacker(report):
    figure = attack_panel.attack_curves_figure(report, "toy data")
    assert notes(figure) == ["raw", "ill"]
    assert [t.name for t in figure.data if t.showlegend] == list(dict.fromkeys(report.steps["label"]))
    known = report.curves[(report.curves["attacker"] == "gd") & (report.curves["extractor"] == "raw")]
    drawn = trace(figure, "Gradient descent")
    np.testing.assert_allclose(drawn.y, known["excess"][known["step"] > 0].clip(lower=1e-5))
    assert "toy data" in figure.layout.title.text
    assert len({(t.line.color, t.line.dash) for t in figure.data}) == 4


def test_attack_heatmap_shows_factors_and_the_worst_case(report):
    heat = attack_panel.attack_factor_heatmap(report, "toy data").data[1]
    shown = dict(zip(heat.y, heat.customdata[:, 0], strict=True))
    table = report.factor_table().set_index("attacker")["ill"]
    assert {label: shown[label] for label in table.index} == table.to_dict()
    assert shown["<b>worst case: least factor</b>"] == f"<b>{report.worst_case('ill')['factor']:.3g}</b>"
    assert {label: heat.z[i][0] for i, label in enumerate(heat.y)}["Whiten + GD"] == 0  # log10 of 1
    task, few = AttackTask(np.diag([1.0, 0.01, 0.001]), np.ones(3)), AttackBudget(steps=1, dense_steps=1)
    unknown = attacked({"raw": None, "a": np.eye(3)}, task, attackers=["gd"], budget=few)
    figure = attack_panel.attack_factor_heatmap(unknown, "toy")
    assert all(value is None for row in figure.data[1].z for value in row)
    assert "—" in notes(figure)


def test_attack_accuracy_names_the_rows_and_shares_reach_one(report):
    figure = attack_panel.attack_accuracy_figure(report, "toy")
    assert "training rows" in figure.layout.yaxis.title.text
    figure = attack_panel.attack_shares_figure(report, "toy")
    assert [t.name for t in figure.data] == ["raw", "ill"]
    for line in figure.data:
        assert line.y[-1] == pytest.approx(1)
        assert (np.diff(line.x) >= 0).all()


# Limits.


def test_ceilings_and_what_attains_them():
    values = {"ridge_share": [1e-3, 1.0], "ridge": [1, 1e3], "rir_ceiling": [100.0, 2.0]}
    table = pd.DataFrame({**PAIR, **values, "optimal_rir": [99.0, 2.0]})
    figure = limits.ceilings_figure(table, "toy data")
    line, stars = figure.data
    assert line.name == "4 → 7"
    np.testing.assert_array_equal(line.y, [100.0, 2.0])
    np.testing.assert_array_equal(stars.y, [99.0, 2.0])
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert "toy data" in figure.layout.title.text
    assert "mean eigenvalues" in figure.layout.xaxis.title.text


def test_shares_are_geometric_means_with_a_band():
    values = {"ridge_share": [1.0, 1.0, 10.0, 10.0], "rir_share": [1e-4, 1e-2, 0.1, np.nan]}
    table = pd.DataFrame({**PAIR, "method": "ours", "seed": [0, 1, 0, 1], **values})
    line = trace(limits.shares_figure(table, "toy data"), "Ours")
    np.testing.assert_allclose(line.y, [1e-3, 0.1])
    np.testing.assert_allclose(line.customdata, [[1e-4, 1e-2], [0.1, 0.1]])


def test_the_front_lies_at_the_ceiling():
    kinds = ["family", "family", "front", "random", "climbed"]
    ratios = {"pretrain_ratio": [1.0, 0.1, 0.2, 0.9, 1], "harmful_ratio": [1.0, 2.0, 3.0, 0.5, 1.5]}
    points = pd.DataFrame({"kind": kinds, **ratios})
    ratios = {"pretrain_ratio": [0.5, 1.0], "harmful_ratio": [3.0, 1.0], "rir": [6.0, 1.0]}
    methods = pd.DataFrame({"method": ["ours", "identity"], **ratios, "rir_share": [0.1, 0.01]})
    figure = limits.front_figure(points, methods, REGION, "4 → 7; toy")
    assert [t.name.split()[0] for t in figure.data[:3]] == ["immunized:", "no", "Pareto"]
    ray = trace(figure, "Pareto")
    np.testing.assert_allclose(ray.y / ray.x, REGION.ceiling.value)
    assert ray.x[0] == pytest.approx(REGION.start[0])
    assert trace(figure, "Ours").x == (0.5,)
    assert trace(figure, "Identity").marker.color != "#000000"  # unreadable on dark pages
    low, high = figure.layout.xaxis.range
    assert low < np.log10(REGION.start[0]) < high
    with pytest.raises(InvalidInputError, match="no points of this pair"):
        limits.front_figure(points[:0], methods, REGION, "")


def directions(count, indices=(1, 9)):
    share, filters = np.linspace(-0.3, 0.5, count), np.random.default_rng(0).normal(size=count)
    own = {"filter": filters, "pattern": 1.0, "share": share, "feature": [f"f{j}" for j in range(count)]}
    frames = [pd.DataFrame({**PAIR, "index": i, "eigenvalue": 10.0 / i, **own}) for i in indices]
    return pd.concat(frames, ignore_index=True)


def test_directions_as_bars_and_as_images():
    figure = limits.direction_bars(directions(30), "toy")
    first, last = figure.data
    assert len(first.x) == limits.SHOWN_FEATURES == len(last.x)
    assert first.y[-1] == "f29"  # the largest, drawn on top
    assert np.abs(first.x).min() >= 0.2
    assert any("λ = 10" in note for note in notes(figure))
    table = directions(16, (1, 2, 9))
    figure = limits.direction_images(table, "toy")
    assert len(figure.data) == 2 * 3
    np.testing.assert_array_equal(figure.data[0].z, np.ones((4, 4)))  # patterns above filters
    np.testing.assert_array_equal(np.ravel(figure.data[1].z), table["filter"][:16])
    with pytest.raises(InvalidInputError, match="15 features are no square image"):
        limits.direction_images(directions(15), "toy")
    for draw in (limits.direction_bars, limits.direction_images):
        with pytest.raises(InvalidInputError, match="no directions of this pair"):
            draw(directions(4)[:0], "toy")


# Deep nets.


@pytest.fixture
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


def test_a_curve_a_band_and_a_level_for_each_method_and_backbone(net_curves):
    figure = probe_accuracy_figure(net_curves, "some data")
    np.testing.assert_allclose(trace(figure, OURS).y, [20, 30, 51])
    band = next(t for t in figure.data if t.fill == "toself" and t.legendgroup == "ours")
    np.testing.assert_allclose(band.y, [20, 30, 50, 52, 30, 20])
    levels = [t for t in figure.data if t.line.dash == "dot" and t.name == f"{OURS}, convex"]
    np.testing.assert_allclose([t.y for t in levels], [[95, 95], [95, 95]])
    assert "some data" in figure.layout.title.text
    assert "epoch" in figure.layout.xaxis.title.text
    assert figure.layout.yaxis.title.text.endswith("(%)")
    assert notes(figure) == ["net_a", "net_b"]
    assert net_style("initial").dash == "dash"
    assert net_style("initial").color != net_style("ours").color


def test_history_of_rir_and_what_was_kept(net_curves):
    figure = ratio_history_figure(net_curves, "some data")
    np.testing.assert_allclose(trace(figure, OURS).y, [4, 200])
    assert figure.layout.yaxis.type == figure.layout.yaxis2.type == "log"
    kept = next(t for t in figure.data if t.error_y.array is not None)
    assert (kept.y, kept.error_y.array, kept.error_y.arrayminus) == ((5,), (2,), (1,))
    for draw, missing in ((probe_accuracy_figure, "probe_accuracy"), (ratio_history_figure, "rir")):
        with pytest.raises(InvalidInputError, match=f"no '{missing}'"):
            draw(net_curves[net_curves["quantity"] == "loss"], "")


# Waterfalls.

TITLES = {"rows": "rows used", "bias": "the bias"}


@pytest.fixture
def waterfall():
    rows = []
    for convention, levels in (("ridge", [0.2, 1.2, 0.9]), ("compact", [-1.0, -0.5, 3.0])):
        for index, (switch, level) in enumerate(zip(("released", "rows", "bias"), levels, strict=True)):
            row = {"path": "cumulative", "start_epochs": 10, "index": index, "switch": switch}
            rows.append(row | {"convention": convention, "log10_rir": level, "log10_rir_std": 0.1})
            if index:
                rows.append(rows[-1] | {"path": "alone", "log10_rir": level - 0.3, "log10_rir_std": np.nan})
    return pd.DataFrame(rows)


def bars(figure, axis):
    """The bars of a panel: {row: (from, to, kind)}."""
    return {
        name: (round(base, 9), round(base + change, 9), t.name)
        for t in figure.data
        if t.type == "bar" and t.xaxis == axis
        for name, base, change in zip(t.y, t.base, t.x, strict=True)
    }


def test_each_bar_starts_where_the_one_before_ended(waterfall):
    figure = waterfall_figure(waterfall, "some data", epochs=10, titles=TITLES)
    assert "some data" in figure.layout.title.text
    assert bars(figure, "x") == {
        "released, 10 epochs": (0, 0.2, "RIR itself"),
        "+ rows used": (0.2, 1.2, "RIR rises"),
        "+ the bias": (1.2, 0.9, "RIR falls"),
        "corrected": (0, 0.9, "RIR itself"),
    }
    assert bars(figure, "x2")["+ the bias"] == (-0.5, 3.0, "RIR rises")
    order = ["corrected", "+ the bias", "+ rows used", "released, 10 epochs"]  # from the bottom
    assert list(figure.layout.yaxis.categoryarray) == order
    rise, fall = trace(figure, "RIR rises"), trace(figure, "RIR falls")
    assert (list(rise.text), list(rise.error_x.array)) == (["× 10"], [0.1])
    assert list(trace(figure, "RIR rises", "x2").text) == ["× 3.2", "× 3,200"]
    assert fall.marker.pattern.shape == "/"  # not by colour alone
    assert fall.marker.color != rise.marker.color
    low, high = figure.layout.xaxis2.range
    assert low < -1.1
    assert high > 3.1
    assert dict(zip(figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext, strict=True))[1.0] == "10"
    assert figure.layout.xaxis2.ticktext[0] == "10<sup>−2</sup>"


def test_alone_every_bar_starts_at_the_release(waterfall):
    figure = alone_figure(waterfall, "some data", epochs=10, titles=TITLES)
    assert bars(figure, "x") == {
        "released": (0, 0.2, "RIR itself"),
        "rows used": (0.2, 0.9, "RIR rises"),
        "the bias": (0.2, 0.6, "RIR rises"),
    }
    for draw in (waterfall_figure, alone_figure):
        with pytest.raises(InvalidInputError, match=r"from 100 epochs; it has epochs \[10\]"):
            draw(waterfall, "", epochs=100, titles=TITLES)
