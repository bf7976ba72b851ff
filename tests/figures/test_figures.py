"""Figures say what their tables say: kept as drawn in `figures.txt`.

`CONDNUM_GOLDEN=record pytest tests/figures/test_figures.py` writes `figures.txt` anew.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError
from condnum.figures import attack_panel, limits
from condnum.figures.probe_accuracy import probe_accuracy_figure, ratio_history_figure
from condnum.figures.stability import claim_label, stability_map
from condnum.figures.style import log_axis, method_style, translucent
from condnum.figures.waterfall import waterfall_figure
from condnum.probing import AttackBudget
from condnum.probing import attack_panel as attacked
from condnum.theory.pareto import feasible_region

HERE = Path(__file__).resolve().parent
AS_DRAWN = HERE / "figures.txt"


def golden(name):
    return pd.read_csv(HERE.parent / "golden" / f"{name}.csv")


def trace(figure, name, panel="x"):
    """The first trace in a panel whose name starts so."""
    return next(t for t in figure.data if str(t.name).startswith(name) and (t.xaxis or "x") == panel)


def as_drawn(figure):
    """What a figure shows: title, axes, notes, and of each trace its look and its first and last values."""
    yield f"= {figure.layout.title.text}"
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        span = "" if axis.range is None else " {:.4g} … {:.4g}".format(*axis.range)
        parts = (axis.plotly_name, axis.type, axis.title.text, "square" if axis.scaleanchor else "")
        yield " ".join(filter(None, parts)) + span
    yield from (f"note {note.text}" for note in figure.layout.annotations)
    for drawn in figure.data:
        parts = [drawn.type, drawn.xaxis or "x", drawn.name or "", "listed" * (drawn.showlegend is not False)]
        for key in ("x", "y", "z", "base", "text"):
            found = getattr(drawn, key, None)
            values = np.ravel(np.asarray([] if found is None else found, dtype=object))
            if drawn.type == "heatmap":  # its cells without a value are not drawn
                values = values[pd.notna(values) & (values != "")]
            words = [f"{v:.4g}" if isinstance(v, int | float | np.number) else str(v) for v in values]
            shown = words if len(words) < 6 else [*words[:3], f"… {len(words)} …", *words[-2:]]
            parts += [f"{key}: {', '.join(shown)}"] * bool(words)
        yield " | ".join(part for part in parts if part)


# Curves of linear probes.


@pytest.fixture
def curves():
    rows = []

    tasks = ("pretrain", "harmful")

    def add(method, seed, quantity, x, value):
        points = [*zip(x, value, strict=True)]
        rows.extend((method, seed, task, quantity, *point) for task in tasks for point in points)

    for seed, factor in ((0, 1.0), (1, 100.0)):
        add("ours", seed, "norm_ratio", [0.0, 1, 10], [1.0, 1e-2 * factor, 1e-4 * factor])
        add("ours", seed, "spectrum", [1.0, 2.0], [8.0 * factor, 2.0 * factor])
        add("ours", seed, "kappa", [0.0, 1, 50], [9.0, 4.0 * factor, 2.0])
    add("identity", 0, "norm_ratio", [0.0, 1, 10], [1.0, 0.5, 0.0])
    add("identity", 0, "kappa", [0.0], [7.0])
    add("identity", 0, "spectrum", [1.0, 2.0], [7.0, 1.0])
    return pd.DataFrame(rows, columns=["method", "seed", "task", "quantity", "x", "value"])


def drawn_figures(curves, net_curves, report):
    """Every figure, of golden tables where there are some."""
    for draw in (plots.norm_ratio_figure, plots.task_spectra_figure, plots.history_figure):
        yield draw(curves, "toy data")
    sweep = pd.DataFrame(
        {
            "method": ["ceiling", "ours", "ours"] * 2,
            "seed": [-1, 0, 1] * 2,
            "ridge": [1.0] * 3 + [10.0] * 3,
            "rir": [100.0, 4.0, 9.0, 10.0, 5.0, 5.0],
        }
    )
    yield plots.ceiling_figure(sweep, "toy data")
    digits = golden("digits/results")
    yield plots.pair_heatmaps(digits, "toy data")
    three = pd.concat(digits[digits["method"] == name] for name in ("ours", "max_rir", "imma"))
    yield plots.pair_heatmaps(three, "toy data", convention="compact")
    ridged, points = golden("limits/ridged"), golden("limits/points")
    yield limits.ceilings_figure(golden("limits/ceilings"), "toy data")
    yield limits.shares_figure(ridged, "toy data")
    region = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]), ridge=0.1)
    chosen = ridged[ridged["ridge_share"].between(9e-4, 2e-3)]
    yield limits.front_figure(points, chosen, region, "4 → 7; toy data")
    yield limits.direction_bars(golden("limits/directions"), "toy data")
    yield limits.direction_images(golden("limits/directions"), "toy data")
    yield probe_accuracy_figure(net_curves, "toy data")
    yield ratio_history_figure(net_curves, "toy data")
    yield waterfall_figure(golden("reproduction-audit/waterfall"), "toy data", epochs=10)
    claims = golden("stability/claims")
    labels = {row.claim: claim_label(row.claim, row.method) for row in claims.itertuples()}
    yield stability_map(golden("stability/by_axis"), labels, "toy data")
    yield attack_panel.attack_curves_figure(report, "toy data")
    yield attack_panel.attack_accuracy_figure(report, "toy data")
    yield attack_panel.attack_factor_heatmap(report, "toy data")
    yield attack_panel.attack_shares_figure(report, "toy data")


def test_every_figure_is_drawn_as_it_was_kept(curves, net_curves, report):
    lines = [line for figure in drawn_figures(curves, net_curves, report) for line in as_drawn(figure)]
    if os.environ.get("CONDNUM_GOLDEN") == "record":
        AS_DRAWN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == AS_DRAWN.read_text(encoding="utf-8").splitlines()


def test_the_region_is_drawn_as_far_as_any_method_lies():
    region = feasible_region(np.diag([1e6, 1.0]), np.diag([2.0, 1.0]), ridge=1e-3)
    far = pd.DataFrame({"method": "pareto", "pretrain_ratio": [1e9], "harmful_ratio": [1e12], "rir": [1e3]})
    figure = limits.front_figure(golden("limits/points"), far.assign(rir_share=0.1), region, "toy data")
    for name in ("unreachable", "Pareto front: RIR = RIR<sub>max</sub>"):
        assert np.log10(max(trace(figure, name).x)) > figure.layout.xaxis.range[1]


def test_styles():
    colors = {method_style(name).color for name in ("ours", "opt_kappa", "imma", "r_ill_only", "identity")}
    assert len(colors) == 5
    assert method_style("of a user").label == "of a user"
    assert translucent("#0072B2", 0.5) == "rgba(0,114,178,0.5)"
    assert [log_axis("", v)["dtick"] for v in ([1, 1e3], [1e-32, 1], [0.0, np.nan])] == [1, 4, 1]


def test_extractors_are_drawn_beside_the_front():
    K_P, K_H = np.diag([100.0, 1.0]), np.diag([2.0, 1.0])
    figure = plots.pareto_figure(K_P, K_H, {"max_rir": np.diag([0.1, 1.0])}, subtitle="toy")
    assert (trace(figure, "Maximum RIR").x[0], trace(figure, "Maximum RIR").y[0]) == pytest.approx((0.01, 25))
    assert figure.layout.title.text.count("toy. ") == 1
    with pytest.raises(InvalidInputError, match=r"extractor 'a' has shape \(3, 3\)"):
        plots.pareto_figure(K_P, K_H, {"a": np.eye(3)})


def test_tables_without_what_is_drawn_are_refused(curves, net_curves):
    region = feasible_region(np.eye(2), np.eye(2), ridge=0.1)
    directions, waterfall = golden("limits/directions"), golden("reproduction-audit/waterfall")
    none, seven = curves.assign(quantity="loss"), directions.groupby("index").head(7)
    for match, draw, *arguments in (
        ("no 'norm_ratio'; they hold: loss", plots.norm_ratio_figure, none),
        ("no points for this pair", limits.front_figure, none[:0], none, region),
        ("no directions for this pair", limits.direction_bars, directions[:0]),
        ("7 features do not form a square image", limits.direction_images, seven),
        ("no 'probe_accuracy'", probe_accuracy_figure, none),
        ("no 'rir'", ratio_history_figure, none),
    ):
        with pytest.raises(InvalidInputError, match=match):
            draw(*arguments, "")
    with pytest.raises(InvalidInputError, match=r"starts at 20 epochs; choose one of \[10\]"):
        waterfall_figure(waterfall, "", epochs=20)


# Attackers.


@pytest.fixture(scope="module")
def report():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 4))
    y = X @ np.ones(4) + generator.normal(size=50)
    thetas = {"raw": None, "ill": np.diag([1, 1, 0.1, 1e-3])}
    names = ["gd", "adam", "whiten", "closed_form"]
    return attacked(
        X, y, thetas, title="toy", attackers=names, budget=AttackBudget(steps=300, dense_steps=60)
    )


def test_factors_that_nobody_measured_are_not_drawn():
    X, few = np.diag([1.0, 0.01, 0.001]), AttackBudget(steps=1, dense_steps=1)
    unknown = attacked(X, np.ones(3), {"raw": None, "a": np.eye(3)}, attackers=["gd"], budget=few)
    assert np.isnan(attack_panel.attack_factor_heatmap(unknown, "toy").data[0].z).all()


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


def test_figure_1_leaves_out_erasure_whose_probe_has_nothing_to_learn(curves):
    erased = curves[curves["method"] == curves["method"].iloc[0]].assign(method="erase")
    figure = plots.norm_ratio_figure(pd.concat([curves, erased]), "toy data")
    assert "Erasure" not in {trace.name for trace in figure.data}
    assert "Erase is omitted" in figure.layout.title.text
