"""Figures of the attack panel say what the tables say."""

import numpy as np
import pytest

from condnum.figures.attack_panel import (
    attack_accuracy_figure,
    attack_curves_figure,
    attack_factor_heatmap,
    attack_shares_figure,
)
from condnum.probing import AttackBudget, AttackTask, attack_panel

NAMES = ["gd", "adam", "whiten", "closed_form"]


@pytest.fixture(scope="module")
def report():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 4))
    task = AttackTask(X, X @ np.ones(4) + generator.normal(size=50), name="toy")
    budget = AttackBudget(steps=300, dense_steps=60)
    return attack_panel(
        {"raw": None, "ill": np.diag([1, 1, 0.1, 1e-3])}, task, attackers=NAMES, budget=budget
    )


def test_curves_have_a_panel_an_extractor_and_a_line_an_attacker(report):
    figure = attack_curves_figure(report, "toy data")
    assert [a.text for a in figure.layout.annotations] == ["raw", "ill"]
    assert [t.name for t in figure.data if t.showlegend] == list(dict.fromkeys(report.steps["label"]))
    drawn = next(t for t in figure.data if t.name == "Gradient descent")
    known = report.curves[(report.curves["attacker"] == "gd") & (report.curves["extractor"] == "raw")]
    np.testing.assert_allclose(drawn.y, known["excess"][known["step"] > 0].clip(lower=1e-5))
    assert "toy data" in figure.layout.title.text
    looks = {(t.line.color, t.line.dash) for t in figure.data}
    assert len(looks) == len(NAMES)


def test_heatmap_shows_factors_and_the_worst_case(report):
    figure = attack_factor_heatmap(report, "toy data")
    heat = figure.data[1]
    shown = dict(zip(heat.y, heat.customdata[:, 0], strict=True))
    table = report.factor_table().set_index("attacker")["ill"]
    assert {label: shown[label] for label in table.index} == table.to_dict()
    assert shown["<b>worst case: least factor</b>"] == f"<b>{report.worst_case('ill')['factor']:.3g}</b>"
    value = {label: heat.z[i][0] for i, label in enumerate(heat.y)}
    assert value["Whiten + GD"] == 0  # log10 of the factor 1


def test_an_unknown_factor_is_grey(report):
    few = AttackBudget(steps=1, dense_steps=1)
    X = np.diag([1.0, 0.01, 0.001])
    found = attack_panel(
        {"raw": None, "a": np.eye(3)}, AttackTask(X, np.ones(3)), attackers=["gd"], budget=few
    )
    figure = attack_factor_heatmap(found, "toy")
    assert all(value is None for row in figure.data[1].z for value in row)
    assert "—" in {a.text for a in figure.layout.annotations}


def test_accuracy_figure_names_the_rows_and_shares_reach_one(report):
    assert "training rows" in attack_accuracy_figure(report, "toy").layout.yaxis.title.text
    figure = attack_shares_figure(report, "toy")
    assert [t.name for t in figure.data] == ["raw", "ill"]
    for trace in figure.data:
        assert trace.y[-1] == pytest.approx(1)
        assert (np.diff(trace.x) >= 0).all()
