"""The experiment on erasure: who sees which rows, what is stopped and at which price, and own data."""

import numpy as np
import pytest

from condnum import erasure
from condnum.data.pairs import load_labeled_pair
from condnum.errors import InvalidInputError
from condnum.figures.erasure import attack_steps_figure
from condnum.probing.heads import head_scores, relearned_score
from condnum.report.erasure import degree_table, paired_table
from condnum.studies.erasure import (
    ErasureStudy,
    Sample,
    Split,
    attacked,
    chance,
    chance_of,
    first_attackable,
    linear_score,
    nonlinear_score,
)


@pytest.fixture(scope="module")
def finished():
    return ErasureStudy(data=("wine", "diabetes"), seeds=2).run(jobs=1)


def test_nobody_is_scored_on_rows_that_somebody_trained_on():
    pair = load_labeled_pair("digits-8x8")
    split, same, other = (Split.drawn(pair, seed, 600) for seed in (0, 0, 1))
    rows = [{row.tobytes() for row in part[0]} for part in (split.defender, split.attacker, split.judge)]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 600
    assert not {row.tobytes() for row in split.train[0]} & {row.tobytes() for row in split.test[0]}
    np.testing.assert_array_equal(split.judge[0], same.judge[0])
    assert not np.array_equal(split.judge[0], other.judge[0])


def test_erasure_leaves_nothing_on_the_rows_that_made_it_and_the_path_only_slows(finished):
    for (pair, _), table in finished.tables["results"].groupby(["pair", "seed"]):
        at = table.set_index("extractor")
        erased, raw = at.loc["erase"], at.loc["raw"]
        ones = ["rir", "harmful_linear_kept", "benign_linear_kept", "harmful_factor"]
        np.testing.assert_allclose(raw[ones].astype(float), 1, rtol=1e-9)
        if pair == "diabetes":
            assert erased["harmful_own"] < 0.1 < raw["harmful_own"]  # round-off fits 1 of 73 rows by chance
        else:  # the most frequent class
            y = load_labeled_pair("wine").y_H
            assert erased["harmful_own"] < raw["harmful_own"] - 0.4
            assert erased["harmful_own"] <= np.bincount(y.astype(int)).max() / len(y) + 0.15
        assert np.isinf(erased["harmful_steps"])
        assert np.isfinite(erased["benign_steps"])
        path = table[table["family"] == "path"].query("value > 0").sort_values("value")
        assert np.isfinite(path["harmful_steps"]).all()
        assert path["harmful_steps"].is_monotonic_decreasing
        steps = path.set_index("value")["harmful_steps"]
        assert steps[0.001] / steps[0.01] == pytest.approx(100, rel=0.1)  # 1/s²
        assert (path["harmful_own"] > erased["harmful_own"] + 0.2).all()  # slowed, not stopped


def test_the_price_in_closed_form_is_the_measured_rise_of_the_loss(finished):
    table = finished.tables["results"].dropna(subset="price")
    assert {*table["family"]} == {"control", "rank", "erase"}
    share = table["price"] / table["benign_loss"]  # R² of the raw fit, whatever was erased
    for _, ratios in share.groupby([table["pair"], table["seed"]]):
        np.testing.assert_allclose(ratios, ratios.iloc[0], rtol=1e-6)


def test_the_control_loses_less_than_what_erasure_takes(finished):
    summary = finished.tables["summary"].set_index(["pair", "extractor"])["harmful_linear_kept"]
    for pair in ("wine", "diabetes"):
        assert summary[pair, "shuffled targets"] > summary[pair, "erase"] + 0.3


def test_attackers_against_known_answers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    bits = (X[:, 0] * X[:, 1] > 0).astype(float)  # no linear part
    linear = (X[:, 2] > 0).astype(float)
    train, test = slice(0, 200), slice(200, 300)
    for y, low, high in ((bits, 0, 0.65), (linear, 0.93, 1)):
        samples = Sample(X[train], y[train], True), Sample(X[test], y[test], True)
        assert low <= linear_score(*samples) <= high
    samples = Sample(X[train], bits[train], True), Sample(X[test], bits[test], True)
    scores = head_scores(*samples)
    assert scores[0] < 0.65 < 0.75 < min(scores[1:])  # quadratic, kernel, neighbors, net
    assert nonlinear_score(*samples, degree=1) < 0.65
    # The second input is the square of the first, which alone is released: a linear head needs it back.
    curve, released = np.c_[X[:, 0], X[:, 0] ** 2], np.diag([1.0, 0.0])
    hidden = [Sample(curve[part], (curve[part, 1] > 0.5).astype(float), True) for part in (train, test)]
    seen = [of._replace(X=of.X @ released) for of in hidden]
    assert linear_score(*seen) < 0.9 < relearned_score(curve[test] @ released, curve[test], *seen)
    few = Sample(X[:27], np.array([0.0, 0, 1] * 9), True), Sample(X[:3], np.array([0.0, 1, 1]), True)
    assert chance(few[1]) == pytest.approx(2 / 3)
    assert chance(Sample(X, X[:, 1], False)) == 0
    own = Sample(X[train], linear[train], True)
    erased = own._replace(X=erasure(*own[:2], kind="classification").features(own.X))
    assert linear_score(erased, erased) < 0.6


def test_pareto_is_slowed_and_erasure_stopped_on_rows_that_the_defender_lacks():
    pair = load_labeled_pair("digits-8x8")
    report = attacked(pair, rows=900)
    at = report.at(report.table, None).set_index(["extractor", "attacker"])
    last, steps = at["accuracy"], at["steps"]
    assert last["raw", "gd"] > 0.9
    assert min(last["raw", "closed_form"], last["pareto", "closed_form"]) > 0.9
    assert max(last["erase", "gd"], last["erase", "closed_form"]) < 0.7
    assert not steps["pareto", "gd"] < 20 * steps["raw", "gd"]  # slowed, or not finished
    figure = attack_steps_figure(report, pair.title(), chance_of(pair))
    assert len(figure.data) == 7
    assert figure.data[-1].y[0] == pytest.approx(0.2, abs=0.02)
    assert first_attackable(ErasureStudy(data=("diabetes", "digits-8x8")).load()).name == "digits-8x8"
    assert first_attackable(ErasureStudy(data=("diabetes",)).load()) is None
    with pytest.raises(InvalidInputError, match="diabetes: the harmful task is a regression"):
        attacked(load_labeled_pair("diabetes"))


def test_each_degree_stops_its_heads_and_the_controls_stop_less(finished):
    table = finished.tables["by_degree"]
    assert {*table["pair"]} == {"wine"}  # the targets of diabetes are numbers
    at = table.set_index(["eraser", "control"]).sort_index()
    own = table[(table["control"] == "") & (table["eraser"] != "raw")]
    assert (own["linear"] < at.loc["raw", ""]["linear"].item() - 0.2).all()
    first, half = at.loc["degree 1", ""], at.loc["degree 2, half", ""]
    control = at.loc["degree 2, half", "shuffled labels"]
    assert half["best"] < first["best"] < at.loc["raw", ""]["best"].item()
    assert half["best"] < control["best"] - 0.15
    text = degree_table(table)
    assert len(text) == len(table)


def test_differences_are_paired_and_named_effects_only_outside_their_interval(finished):
    results, found = finished.tables["results"], finished.tables["paired"]
    row = found.query("pair == 'wine' and extractor == 'erase' and score == 'harmful_linear_kept'").iloc[0]
    wine = results[results["pair"] == "wine"].set_index(["extractor", "seed"])["harmful_linear_kept"]
    gaps = np.array([wine["erase", seed] - wine["shuffled targets", seed] for seed in (0, 1)])
    assert row["difference"] == pytest.approx(gaps.mean())
    assert row["difference_pm"] == pytest.approx(12.706 * np.abs(gaps[0] - gaps[1]) / 2, rel=1e-4)
    words = paired_table(found)["distinguishable"]
    assert [word == "yes" for word in words] == (found["difference"].abs() > found["difference_pm"]).tolist()
