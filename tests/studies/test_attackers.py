"""The study of attackers on the embedded data; its extractors are those of the other studies."""

import numpy as np
import pytest

from condnum.errors import CondnumError
from condnum.report import tables as attack_tables
from condnum.studies.attackers import Attackers, attack_task
from condnum.studies.digit_pairs import DigitPairs

PANEL = ("gd", "cg", "whiten", "closed_form")


def test_ours_is_that_of_the_digit_study():
    """Both train on the same sample of the loss: the same settings and seed are the same θ, bit by bit."""
    study = Attackers("digits:4-9", attackers=("gd",), methods=("ours",), epochs=8, seed=1, rows=20, steps=50)
    digits = DigitPairs("digits", methods=("ours",), seeds=2, epochs=8, pairs=((4, 9),))
    data, (cell,) = digits.load(), [c for c in digits.cells(digits.load()) if c["seed"] == 1]
    theta = study.theta(study.load(), "ours")
    assert theta.equal(digits.immunize(data, cell).theta)
    attacked = study.run(jobs=1).tables["immunization"].set_index("convention")
    measured = digits.run(jobs=1).tables["results"]
    pairs = measured.query("seed == 1 and theta_scale == 'unit'").set_index("convention")
    for convention in ("compact", "ridge"):
        assert attacked.loc[convention, "rir"] == pytest.approx(pairs.loc[convention, "rir"], rel=1e-6)


def test_a_digit_is_told_from_the_rest_with_rows_held_out():
    study = Attackers("digits:4-9", attackers=("lbfgs", "whiten"), epochs=5, rows=60, methods=("initial",))
    found = study.run(jobs=1)
    report = study.report(found.data, found.cells)
    assert (report.kind, report.held_out) == ("classification", True)
    assert report.budget.headline == pytest.approx(0.1)
    assert attack_tables.prediction_table(report).empty
    assert found.tables["curves"]["accuracy"].max() > 0.7  # 24 balanced rows: chance is 0.5
    assert found.provenance_table.set_index("what")["value"]["held-out rows"] == "24"
    study = Attackers("digits:4-9", loss="squared", rows=20)  # on labels: a regression
    task = attack_task(study, study.load().pair)
    assert (task.kind, study.budget.headline) == ("regression", 0.01)
    assert set(np.unique(task.y)) == {-1.0, 1.0}
    assert len(attack_task(Attackers("digits:4-9", rows=4), study.load().pair).X_test) == 2  # the fewest rows


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "mnst:4-9"}, "did you mean 'mnist:4-9'"),
        ({"data": "digits"}, "come with a pair"),
        ({"data": "house-prices:4-9"}, "tables without one"),
        ({"data": "mnist:4-9", "source": "embedded"}, "not embedded"),
        ({"attackers": ("adm",)}, "did you mean 'adam'"),
        ({"loss": "logistic"}, "house prices are a regression"),
        ({"rows": 1}, "rows must be an integer of at least 4"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(options, words):
    with pytest.raises(CondnumError, match=words):
        Attackers(**options)
