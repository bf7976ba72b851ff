"""The study of attackers on the embedded data; its extractors are those of the other studies."""

import pytest

from condnum.page import linear as attack_tables
from condnum.studies.attackers import Attackers, attack_task
from condnum.studies.digits import DigitPairs

PANEL = ("gd", "cg", "whiten", "closed_form")


def test_ours_is_that_of_the_digit_study():
    """Both train on the same sample of the loss: the same settings and seed are the same θ."""
    short = {"attackers": ("gd",), "rows": 20, "attack_steps": 50}
    study = Attackers("digits:4-9", methods=("ours",), steps=8, seed=1, **short)
    digits = DigitPairs("digits", methods=("ours",), seeds=2, steps=8, pairs=((4, 9),))
    attacked = study.run(jobs=1).tables["immunization"].set_index("convention")
    measured = digits.run(jobs=1).tables["results"]
    pairs = measured.query("seed == 1 and theta_scale == 'unit'").set_index("convention")
    for convention in ("compact", "ridge"):
        assert attacked.loc[convention, "rir"] == pytest.approx(pairs.loc[convention, "rir"], rel=1e-6)


def test_a_digit_is_told_from_the_rest_with_rows_held_out():
    study = Attackers("digits:4-9", attackers=("lbfgs", "cg"), steps=5, rows=60, methods=("initial",))
    found = study.run(jobs=1)
    report = study.report(found.data, found.cells)
    assert report.budget.reported_epsilon == pytest.approx(0.01)
    assert attack_tables.prediction_table(report)["attacker"].unique().tolist() == ["Conjugate gradients"]
    assert found.tables["curves"]["accuracy"].max() > 0.7  # 24 balanced rows: chance is 0.5
    assert len(attack_task(study, study.pair(found.data))["held_out"][0]) == 24
    fewest = attack_task(Attackers("digits:4-9", rows=4), study.pair(study.load()))
    assert len(fewest["held_out"][0]) == 2
