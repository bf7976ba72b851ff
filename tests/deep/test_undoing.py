"""What undoing a defense costs, on attacks with known curves."""

import numpy as np
import pandas as pd
import pytest

from condnum.deep.attacks.attack import DeepAttackRun
from condnum.deep.attacks.attackers import DeepBudget
from condnum.deep.attacks.report import AGAIN, AttackKey, DeepAttackReport
from condnum.figures.deep_attacks import undoing_figure
from condnum.report.deep import undoing_table

STEPS = np.array([0, 1, 4, 16])


def run_of(accuracy, steps=STEPS):
    trials = pd.DataFrame({"trial": [1]})
    return DeepAttackRun(trials, 1.0, False, "", np.array(steps), np.array(accuracy), 0.9, 100, 1.0)


@pytest.fixture
def report():
    """Goal 0.2 + 0.9·(1 − 0.2) = 0.92: all weights reach it after 4 steps on θ_I, a head never."""
    curves = {
        "theta_0": {"head-sgd": [0.2, 0.95, 1.0, 1.0], "all-adamw": [0.2, 0.3, 0.5, 0.9]},
        AGAIN: {"head-sgd": [0.2, 0.93, 1.0, 1.0]},
        "ours": {"head-sgd": [0.2, 0.4, 0.6, 0.8], "all-adamw": [0.2, 0.3, 0.96, 0.97]},
        "scratch": {"head-sgd": [0.2, 0.3, 0.3, 0.3], "all-adamw": [0.2, 0.2, 0.4, 0.6]},
    }
    runs = {
        AttackKey("net", net, attacker, 0, seed): run_of([curve, curve])
        for net, of in curves.items()
        for attacker, curve in of.items()
        for seed in (0, 1)
    }
    solved = {"theta_0": 0.9, "ours": 0.5, "scratch": 0.4}
    runs |= {
        AttackKey("net", net, "logistic", 0, s): run_of([[a]], [37])
        for net, a in solved.items()
        for s in (0, 1)
    }
    return DeepAttackReport(runs, DeepBudget(steps=16, batch_size=10), 0.2)


def test_the_best_attacker_after_so_many_steps_and_what_is_solved_takes_none(report):
    table = report.undoing().set_index(["net", "step"])
    assert table["goal"].tolist() == pytest.approx([0.92] * len(table))
    of = table.loc["ours"]
    assert of.index.tolist() == [0, 1, 4, 16]
    assert of["attacker"].tolist() == ["logistic", "head-sgd", "all-adamw", "all-adamw"]
    assert of["accuracy"].tolist() == pytest.approx([0.5, 0.4, 0.96, 0.97])
    assert of["examples"].tolist() == [3700, 100, 40, 160]  # a head sees all 100 rows, others a batch of 10
    assert of["reached"].tolist() == [False, False, True, True]
    assert table.loc[AGAIN].index.tolist() == [1, 4, 16]  # nothing is drawn where a head is solved for
    assert not table.loc["scratch", "reached"].any()


def test_table_and_figure_say_when_each_net_is_undone(report):
    table = undoing_table(report.undoing())
    after = dict(zip(table["net"], table["training reaches the goal after"], strict=True))
    assert [text.partition("<")[0] for text in after.values()] == [
        "1 step, 100 examples seen", "1 step, 100 examples seen", "4 steps, 40 examples seen",
        "not within the budget",
    ]  # fmt: skip
    figure = undoing_figure(report.undoing(), "data")
    lines = {t.name: t for t in figure.data if t.mode == "lines"}
    solved = {t.name: list(t.y) for t in figure.data if t.mode == "markers" and len(t.x)}
    assert solved == {"θ₀": [90], "θ<sub>I</sub>: Ours (Algorithm 1)": [50], "from scratch": [40]}
    assert list(lines["θ<sub>I</sub>: Ours (Algorithm 1)"].y) == pytest.approx([40, 96, 97])
