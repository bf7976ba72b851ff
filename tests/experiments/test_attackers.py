"""The experiment on attackers: factors are those of the panel, heads are scored on rows that they lack."""

import numpy as np
import pytest

from condnum.errors import CondnumError
from condnum.experiments import attackers, frame, house_prices
from condnum.page.tables import GAP, written
from condnum.probing import AttackBudget, attack_panel
from condnum.probing.panel import judging_rows

DEFAULTS = {
    "data": "embedded", "methods": "initial,ours", "attackers": "gd,cg,whiten,closed_form", "seed": 1,
    "steps": 20, "rows": 0, "attack_steps": 5000, "dense_attack_steps": 100, "full": True,
}  # fmt: skip


def run(**given):
    return frame.run(attackers, jobs=1, quiet=True, **DEFAULTS | given)


@pytest.fixture(scope="module")
def finished():
    return run()


def test_factors_are_those_of_the_panel_on_extractors_of_the_linear_experiment(finished):
    at = {"data": "embedded", "features": "published", "rows": 0, "device": "cpu"}
    _, kept = house_prices.compute(method="ours", seed=1, steps=20, **at)
    made = next(
        i for i, row in finished.rows.iterrows() if row["method"] == "ours" and "theta" in finished.arrays[i]
    )
    np.testing.assert_allclose(finished.arrays[made]["theta"], kept["theta"], rtol=1e-9)
    X, y, others = attackers.rows_of("embedded", 0)
    report = attack_panel(
        X, y, {"ours": kept["theta"]}, held_out=others, kind="regression", attackers=["gd", "cg", "whiten"],
        budget=AttackBudget(5000, 100, seed=1),
    )  # fmt: skip
    factors = report.at(report.factors, 0.01).set_index("label")
    table = finished.table[finished.table["measure"] == attackers.STEPS].set_index("attacker")
    assert table["ours"].to_dict() == pytest.approx(factors["factor"].to_dict(), rel=1e-9)
    assert table["ours_least"].to_dict() == (factors["bound"] == "at least").to_dict()


def test_a_head_that_is_solved_for_is_scored_on_rows_that_it_lacks(finished):
    X, y, (G, z) = attackers.rows_of("embedded", 0)
    assert not {row.tobytes() for row in X} & {row.tobytes() for row in G}
    row = finished.table.set_index("attacker").loc["Closed form"]
    assert row["measure"] == attackers.LOSS
    A, B = (np.c_[of, np.ones(len(of))] for of in (X, G))
    squares = (B @ np.linalg.lstsq(A, y, rcond=None)[0] - z) ** 2
    assert row["raw"] == pytest.approx(squares[judging_rows(len(z), DEFAULTS["seed"])].mean(), rel=1e-6)
    assert "The best head that is solved for has squared loss" in finished.sentence


def test_digits_are_held_out_in_balance():
    for rows, held in ((60, 24), (4, 2)):
        X, y, (G, z) = attackers.rows_of("digits:4-9", rows)
        assert (len(X) + len(G), len(G)) == (2 * rows, held)
        assert (y.mean(), z.mean()) == (0.5, 0.5)


def test_a_budget_that_does_not_suffice_gives_a_lower_bound():
    short = run(attack_steps=40, methods="ours", attackers="gd,whiten")
    row = short.table.set_index("attacker").loc["Gradient descent"]
    assert row["ours_least"]
    assert row["ours"] == pytest.approx(40 / row["raw"])
    assert written(short.table)["Ours (Algorithm 1)".replace(" ", GAP)].iloc[1].startswith(f">{GAP}")
    assert "gradient descent needs at least" in short.sentence
    assert short.sentence.count("Whiten + GD, needs 1× the steps") == 1
    marks = short.experiment.figure(short).data[0].marker.symbol
    assert sorted(marks) == ["circle", "triangle-right-open"]


def test_erasure_puts_the_target_out_of_reach_for_everybody():
    erased = run(methods="erase", attackers="gd,cg")
    steps = erased.table[erased.table["measure"] == attackers.STEPS]
    assert np.isposinf(steps["erase"]).all()
    assert "gradient descent never reaches it" in erased.sentence
    assert erased.experiment.figure(erased).layout.xaxis.ticktext[-1] == "∞"


def test_on_raw_features_nobody_is_slowed_and_one_control_makes_a_page():
    same = run(methods="identity", attackers="gd,cg,whiten,lbfgs", attack_steps=500)
    assert same.table["identity"].tolist() == pytest.approx([1] * (1 + 4))  # RIR, and every attacker
    assert "on features of Identity (θ = I), gradient descent needs 1× the steps" in same.sentence
    assert len(same.experiment.figure(same).data) == 1


@pytest.mark.parametrize(
    "lost", [{"method": "raw"}, {"method": "ours", "attacker": "gd"}, {"attacker": "cg"}]
)
def test_cells_that_failed_leave_a_page(finished, lost):
    rows = finished.rows
    kept = rows[~np.logical_and.reduce([rows[name] == of for name, of in lost.items()])]
    left = frame.Run(attackers, "attackers", kept, [], finished.failures, finished.record)
    assert len(written(left.table)) == len(left.table)
    assert "nan" not in left.sentence
    attackers.figure(left)
    if lost == {"method": "raw"}:
        assert "no attacker has a known factor" in left.sentence


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data": "mnst:4-9"}, "did you mean 'mnist:4-9'"),
        ({"data": "house-prices:4-9"}, "house-prices:4-9.* tables take none"),
        ({"data": "digits"}, "digits need a pair"),
        ({"data": "digits:4-4"}, "two different digits"),
        ({"attackers": "gdd"}, "unknown attacker 'gdd'; did you mean 'gd'"),
        ({"rows": 3}, "rows must be 0 .all. or at least 4, got 3"),
        ({"attack_steps": -1}, "attack_steps must be an integer ≥ 0, got -1"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(values, words):
    with pytest.raises(CondnumError, match=words):
        attackers.cells(**DEFAULTS | values)
