"""The experiments on attackers and on erasure: factors are the panel's, nobody is scored on rows it knows."""

import numpy as np
import pandas as pd
import pytest

from condnum.experiments import attackers, erasure, house_prices
from condnum.page.tables import GAP, written
from condnum.probing import AttackBudget, attack_panel
from condnum.probing.heads import chance, linear_score
from condnum.probing.panel import judging_rows

from .conftest import SMALL, finished, run


def test_factors_are_those_of_the_panel_on_extractors_of_the_linear_experiment():
    at = {"data": "embedded", "features": "published", "rows": 0, "device": "cpu"}
    theta = house_prices.compute(method="ours", seed=1, steps=20, **at)[1]["theta"]
    X, y, others = attackers.rows_of("embedded", 0)
    report = attack_panel(
        X, y, {"ours": theta}, held_out=others, kind="regression", attackers=["gd", "cg", "whiten"],
        budget=AttackBudget(5000, 100, seed=1),
    )  # fmt: skip
    factors = report.at(report.factors, 0.01).set_index("label")
    table = finished(attackers).table
    table = table[table["measure"] == attackers.STEPS].set_index("attacker")
    assert table["ours"].to_dict() == pytest.approx(factors["factor"].to_dict(), rel=1e-9)
    assert table["ours_least"].to_dict() == (factors["bound"] == "at least").to_dict()


def test_a_head_that_is_solved_for_is_scored_on_rows_that_it_lacks():
    X, y, (G, z) = attackers.rows_of("embedded", 0)
    assert not {row.tobytes() for row in X} & {row.tobytes() for row in G}
    row = finished(attackers).table.set_index("attacker").loc["Closed form"]
    assert row["measure"] == attackers.LOSS
    A, B = (np.c_[of, np.ones(len(of))] for of in (X, G))
    squares = (B @ np.linalg.lstsq(A, y, rcond=None)[0] - z) ** 2
    judged = judging_rows(len(z), SMALL[attackers]["seed"])
    assert row["raw"] == pytest.approx(squares[judged].mean(), rel=1e-6)


def test_a_budget_that_does_not_suffice_gives_a_lower_bound():
    short = run(attackers, attack_steps=40, methods="ours", attackers="gd,whiten")
    row = short.table.set_index("attacker").loc["Gradient descent"]
    assert row["ours_least"]
    assert row["ours"] == pytest.approx(40 / row["raw"])
    assert written(short.table)["Ours (Algorithm 1)".replace(" ", GAP)].iloc[1].startswith(f">{GAP}")
    assert "gradient descent needs at least" in short.sentence
    marks = short.experiment.figure(short).data[0].marker.symbol
    assert sorted(marks) == ["circle", "triangle-right-open"]


def test_erasure_is_out_of_reach_for_everybody_and_raw_features_slow_nobody():
    erased = run(attackers, methods="erase,identity", attackers="gd,cg,lbfgs", attack_steps=500)
    steps = erased.table[erased.table["measure"] == attackers.STEPS]
    assert np.isposinf(steps["erase"]).all()
    assert steps["identity"].tolist() == pytest.approx([1] * len(steps))
    assert "gradient descent never reaches it" in erased.sentence
    assert erased.experiment.figure(erased).layout.xaxis.ticktext[-1] == "∞"


# Erasure.


def test_nobody_is_scored_on_rows_that_somebody_trained_on():
    of, other = (erasure.split("digits-8x8", seed, 600) for seed in (0, 1))
    rows = [{row.tobytes() for row in part.X} for part in (of.defender, of.attacker, of.judge)]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 600
    assert not {row.tobytes() for row in of.train.X} & {row.tobytes() for row in of.test.X}
    assert not np.array_equal(of.judge.X, other.judge.X)


@pytest.mark.parametrize("name", ["wine", "digits-8x8"])
def test_on_the_rows_that_made_it_erasure_leaves_a_linear_head_the_most_frequent_class(name):
    own = erasure.split(name, 0, 0).defender
    by = erasure.eraser(own, 0, erasure.ERASED)
    left = own._replace(X=by.features(own.X))
    assert linear_score(left, left) <= chance(own) + 0.05 < linear_score(own, own) - 0.3
    wrong = erasure.eraser(own, 0, erasure.CONTROL)
    assert wrong.left.shape == by.left.shape  # as many directions


@pytest.mark.parametrize("name", ["wine", "diabetes"])
@pytest.mark.parametrize("erased", [erasure.ERASED, erasure.CONTROL])
def test_the_price_in_closed_form_is_the_measured_rise_of_the_loss(name, erased):
    of = erasure.split(name, 0, 0)
    P, Z = of.train.centered
    theta = erasure.eraser(of.defender, 0, erased).theta
    fits = [
        np.linalg.norm(Z - F @ np.linalg.lstsq(F, Z, rcond=1e-10)[0]) ** 2 / np.linalg.norm(Z) ** 2
        for F in (P, P @ theta)
    ]
    row = erasure.compute(pair=name, seed=0, rows=0, erased=erased)
    assert row["price"] == pytest.approx(fits[1] - fits[0], rel=1e-6)


def test_attackers_keep_less_than_where_shuffled_targets_were_erased_and_the_page_says_how_much():
    found = finished(erasure)
    kept = found.table.set_index(["data", "erased"])["kept_linear_mean"]
    for pair in ("wine", "diabetes"):
        assert kept[pair, erasure.CONTROL] > kept[pair, erasure.ERASED] + 0.3
    assert kept["wine", erasure.SQUARES_CONTROL] > kept["wine", erasure.SQUARES] + 0.3
    assert ("diabetes", erasure.SQUARES) not in kept.index  # its targets are numbers
    own = 100 * kept.xs(erasure.ERASED, level="erased")
    low, high = own.idxmin(), own.idxmax()
    said = f"(median; {own[low]:.0f} % on {low}, {own[high]:.0f} % on {high})"
    assert said in found.sentence.replace(GAP, " ")
    drawn = erasure.figure(found).data[0]
    assert dict(zip(drawn.customdata, drawn.x, strict=True)) == pytest.approx(own.to_dict())


def rows_with(**scores):
    """Two splits of a pair on which raw features score 0.9 above a chance of 0.1 or of nothing."""
    base = {"pair": "a", "rows": 0, "chance_harmful": 0.0, "chance_benign": 0.1, "price": 0.0}
    base |= dict.fromkeys(erasure.SCORES, 0.9)
    lines = [base | {"seed": seed, "erased": erasure.RAW} for seed in (0, 1)]
    for seed in (0, 1):
        own = {name: of[seed] for name, of in scores.items()}
        lines.append(base | own | {"seed": seed, "erased": erasure.ERASED})
    return pd.DataFrame(lines)


def test_fractions_are_of_the_margin_and_those_that_vary_as_much_as_the_scale_are_not_known():
    rows = rows_with(linear=(0.45, 0.36), kernel=(0.9, 0.0), benign=(0.05, 0.0), quadratic=(0.9, 0.9))
    (line,) = erasure.table(rows).to_dict("records")
    assert (line["kept_linear_mean"], line["kept_linear_std"]) == pytest.approx((0.45, 0.1 / 2**0.5))
    assert line["kept_benign_mean"] == 0  # below chance
    assert np.isnan([line["kept_kernel_mean"], line["kept_kernel_std"]]).all()
    assert written(erasure.table(rows)).iloc[0]["kept linear"] == f"45{GAP}±{GAP}7.1{GAP}%"
    assert "A kernel head keeps a fraction that is not known" in erasure.sentence(erasure.table(rows))
    little = rows.assign(linear=0.04)  # raw features hardly allow anything
    assert np.isnan(erasure.table(little)["kept_linear_mean"]).all()
