"""The experiment on attackers on the embedded data, and its configuration."""

import numpy as np
import pandas as pd
import pytest

from condnum.errors import CondnumError
from condnum.report import tables as attack_tables
from condnum.studies import attackers as attack_study
from condnum.studies.attackers import AttackConfig

ATTACKERS = ("gd", "cg", "whiten", "closed_form")


@pytest.fixture(scope="module")
def study():
    config = AttackConfig("house-prices", "embedded", attackers=ATTACKERS, epochs=60, steps=3000)
    return attack_study.run(config)


def test_tables_of_the_diabetes_pair(study, tmp_path):
    assert list(study.report.extractors["extractor"]) == ["raw", "initial", "ours", "optimal", "front"]
    assert len(study.report.steps) == 5 * len(ATTACKERS) * 3
    assert "diabetes" in study.title
    names = study.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    again = pd.read_csv(tmp_path / "results.csv")
    np.testing.assert_allclose(again["steps"], study.report.steps["steps"])


def test_rir_stands_beside_the_factors(study):
    table = attack_tables.extractor_table(study.report, study.immunization)
    assert list(table["extractor"]) == ["raw", "initial", "ours", "optimal", "front"]
    assert "RIR ((i), (ii)), compact" in table
    assert table.iloc[0, -1] == "—"
    choices = attack_tables.choice_table(study.report)
    assert len(choices) == 20
    predicted = attack_tables.prediction_table(study.report)
    assert set(predicted["attacker"]) == {"Gradient descent", "Conjugate gradients", "Whiten + GD"}


def test_a_digit_is_told_from_the_rest_with_rows_held_out():
    config = AttackConfig(
        "digits:4-9", attackers=("lbfgs", "whiten"), epochs=5, rows=60, methods=("initial",)
    )
    found = attack_study.run(config)
    assert found.task.X.shape == (96, 64)
    assert found.task.X_test.shape == (24, 64)
    assert found.report.kind == "classification"
    assert found.report.budget.headline == pytest.approx(0.1)
    assert attack_tables.prediction_table(found.report).empty
    curves = found.report.curves.dropna(subset="accuracy")
    assert curves["accuracy"].max() > 0.7  # 24 balanced rows: chance is 0.5


def test_squared_loss_on_labels_is_a_regression():
    config = AttackConfig("digits:4-9", loss="squared", rows=20)
    task = attack_study.attack_task(config, attack_study.load(config))
    assert task.kind == "regression"
    assert config.budget.headline == pytest.approx(0.01)
    assert set(np.unique(task.y)) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "mnst:4-9"}, "did you mean 'mnist:4-9'"),
        ({"data": "digits:4-4"}, "two different digits"),
        ({"data": "digits"}, "no pair of digits"),
        ({"data": "house-prices:4-9"}, "leave out the colon"),
        ({"data": "mnist:4-9", "source": "embedded"}, "not embedded"),
        ({"methods": ("our",)}, "did you mean 'ours'"),
        ({"attackers": ("adm",)}, "did you mean 'adam'"),
        ({"loss": "hinge"}, "unknown loss"),
        ({"loss": "logistic"}, "house prices are a regression"),
        ({"rows": 1}, "rows must be an integer of at least 4"),
        ({"steps": 0}, "steps must be"),
        ({"seed": -1}, "seed must be"),
    ],
    ids=str,
)
def test_bad_configurations_are_named(options, words):
    with pytest.raises(CondnumError, match=words):
        AttackConfig(**options)
