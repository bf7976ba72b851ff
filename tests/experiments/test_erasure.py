"""The experiment on erasure: who sees which rows, what is stopped, at which price, and what is not known."""

import numpy as np
import pandas as pd
import pytest

from condnum import erasure as erased_by
from condnum.errors import CondnumError
from condnum.experiments import erasure, frame
from condnum.page.tables import GAP, written
from condnum.probing.heads import Sample, chance, linear_score, nonlinear_score


@pytest.fixture(scope="module")
def finished():
    return frame.run(erasure, data="wine,diabetes", seeds=2, rows=0, full=True, jobs=1, quiet=True)


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
    by = erasure.eraser(of.defender, 0, erased)
    P, Z = of.train.centered
    fits = [
        np.linalg.norm(Z - F @ np.linalg.lstsq(F, Z, rcond=1e-10)[0]) ** 2 / np.linalg.norm(Z) ** 2
        for F in (P, P @ by.theta)
    ]
    row = erasure.compute(pair=name, seed=0, rows=0, erased=erased)
    assert row["price"] == pytest.approx(fits[1] - fits[0], rel=1e-6)


def test_attackers_keep_less_than_where_shuffled_targets_were_erased(finished):
    kept = finished.table.set_index(["data", "erased"])["kept_linear_mean"]
    for pair in ("wine", "diabetes"):
        assert kept[pair, erasure.CONTROL] > kept[pair, erasure.ERASED] + 0.3
    assert kept["wine", erasure.SQUARES_CONTROL] > kept["wine", erasure.SQUARES] + 0.3
    assert ("diabetes", erasure.SQUARES) not in kept.index  # its targets are numbers


def rows_with(**scores):
    """Two splits of a pair on which raw features score 0.9 above a chance of 0.1 or of nothing."""
    base = {"pair": "a", "rows": 0, "chance_harmful": 0.0, "chance_benign": 0.1, "price": 0.0}
    raw = dict.fromkeys(erasure.SCORES, 0.9)
    lines = [base | raw | {"seed": seed, "erased": erasure.RAW} for seed in (0, 1)]
    for seed in (0, 1):
        own = {name: of[seed] for name, of in scores.items()}
        lines.append(base | raw | own | {"seed": seed, "erased": erasure.ERASED})
    return pd.DataFrame(lines)


def test_fractions_are_of_the_margin_and_those_that_vary_as_much_as_the_scale_are_not_known():
    rows = rows_with(linear=(0.45, 0.36), kernel=(0.9, 0.0), benign=(0.05, 0.0), quadratic=(0.9, 0.9))
    (line,) = erasure.table(rows).to_dict("records")
    assert (line["kept_linear_mean"], line["kept_linear_std"]) == pytest.approx((0.45, 0.1 / 2**0.5))
    assert line["kept_benign_mean"] == 0  # below chance
    assert np.isnan([line["kept_kernel_mean"], line["kept_kernel_std"]]).all()
    text = written(erasure.table(rows)).iloc[0]
    assert text["kept kernel"] == "—"
    assert text["kept linear"] == f"45{GAP}±{GAP}7.1{GAP}%"
    assert "A kernel head keeps a fraction that is not known" in erasure.sentence(erasure.table(rows))
    little = rows.assign(linear=0.04)  # raw features hardly allow anything
    assert np.isnan(erasure.table(little)["kept_linear_mean"]).all()


def test_the_sentence_gives_a_median_with_its_range_by_data_sets(finished):
    kept = finished.table.query("erased == 'targets'").set_index("data")["kept_linear_mean"] * 100
    low, high = kept.idxmin(), kept.idxmax()
    assert f"(median; {kept[low]:.0f} % on {low}, {kept[high]:.0f} % on {high})" in finished.sentence.replace(
        GAP, " "
    )
    one = finished.rows[finished.rows["pair"] == "wine"]
    assert "median" not in erasure.sentence(erasure.table(one))


@pytest.mark.parametrize("lost", [erasure.RAW, erasure.ERASED, erasure.CONTROL])
def test_cells_that_failed_leave_a_page(finished, lost):
    kept = finished.rows[finished.rows["erased"] != lost]
    left = frame.Run(erasure, "erasure", kept, [], finished.failures, finished.record)
    assert "nan" not in left.sentence
    assert ("not known" in left.sentence) == (lost in (erasure.RAW, erasure.ERASED, erasure.CONTROL))
    assert len(erasure.figure(left).data) == 4


def test_the_figure_has_the_numbers_of_the_table(finished):
    harmful, _, control, benign = erasure.figure(finished).data
    for trace, erased, name in (
        (harmful, erasure.ERASED, "linear"),
        (control, erasure.CONTROL, "linear"),
        (benign, erasure.ERASED, "benign"),
    ):
        own = finished.table[finished.table["erased"] == erased]
        np.testing.assert_allclose(trace.x, 100 * own[f"kept_{name}_mean"])
        assert [*trace.customdata] == [*own["data"]]


def test_heads_against_known_answers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    bits = (X[:, 0] * X[:, 1] > 0).astype(float)  # no linear part
    linear = (X[:, 2] > 0).astype(float)
    train, test = slice(0, 200), slice(200, 300)
    for y, low, high in ((bits, 0, 0.65), (linear, 0.93, 1)):
        assert low <= linear_score(Sample(X[train], y[train], True), Sample(X[test], y[test], True)) <= high
    samples = Sample(X[train], bits[train], True), Sample(X[test], bits[test], True)
    assert nonlinear_score(*samples, degree=1) < 0.65
    assert min(nonlinear_score(*samples, degree=2), nonlinear_score(*samples)) > 0.75
    assert chance(Sample(X[:3], np.array([0.0, 1, 1]), True)) == pytest.approx(2 / 3)
    assert chance(Sample(X, X[:, 1], False)) == 0
    own = Sample(X[train], linear[train], True)
    gone = own._replace(X=erased_by(*own[:2], kind="classification").features(own.X))
    assert linear_score(gone, gone) < 0.6


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data": "wines"}, "unknown pair of tasks 'wines'; did you mean 'wine'"),
        ({"rows": 20}, "rows must be 0 .all. or at least 30, got 20"),
        ({"seeds": 0}, "seeds must be an integer ≥ 1, got 0"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(values, words):
    with pytest.raises(CondnumError, match=words):
        erasure.cells(**{"data": "wine", "seeds": 1, "rows": 0, "full": True} | values)
