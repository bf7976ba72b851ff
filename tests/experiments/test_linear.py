"""The linear experiments: rows against direct measurements, figures, the published tables beside them."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from condnum import ImmunizationProblem, immunize, relative_immunization_ratio, rir_limit
from condnum.data import load_diabetes_tasks, load_small_digits
from condnum.experiments import house_prices, limits, linear, mnist
from condnum.methods import METHODS
from condnum.probing import linear_probe
from condnum.theory.limits import ridge_convention_limit

from .conftest import finished, run

#: κ of the diabetes tasks is 500, before and after so few steps: eps·κ·D, with a margin of 1,000.
CLOSE = 1e-9


@pytest.fixture(scope="module")
def problem():
    return house_prices.tasks("embedded", "published", 0, "cpu")


def test_a_row_is_the_measure_of_its_cell(problem):
    K, found = (problem.benign, problem.harmful), finished(house_prices)
    for name, (convention, scale) in linear.CONVENTIONS.items():
        for (_, row), kept in zip(found.rows.iterrows(), found.arrays, strict=True):
            theta = torch.from_numpy(kept["theta"])
            features = theta[:, theta.any(dim=0)]  # columns of zeros are none
            expected = relative_immunization_ratio(features, *K, convention=convention, theta_scale=scale)
            assert row[f"{name}_rir"] == pytest.approx(expected.rir, rel=CLOSE)
            assert row[f"{name}_success"] is expected.success
            kappa = np.inf if row["method"] == "erase" else np.linalg.cond(theta)
            assert row["theta_condition"] == pytest.approx(kappa, rel=CLOSE)
            norm = None if scale == "unit" else float((theta**2).sum())
            limit = ridge_convention_limit(*K, squared_norm=norm)
            limit = rir_limit(*K).value if convention == "compact" else limit
            assert row[f"{name}_limit"] == pytest.approx(limit, rel=CLOSE)
            assert row[f"{name}_rir"] <= limit * (1 + CLOSE)


def test_figure_1_has_the_norm_ratios_of_both_probes_but_of_erasure(problem):
    found, drawn = finished(house_prices), {}
    for trace in house_prices.figure(found).data:
        if trace.fill is None:
            drawn[trace.name, trace.xaxis] = np.asarray(trace.x), np.asarray(trace.y)
    assert len(drawn) == 2 * (len(set(found.rows["method"])) - 1)
    place = found.rows.index[found.rows["method"] == "max_rir"][0]
    for axis, task in (("x", problem.benign), ("x2", problem.harmful)):
        steps, values = drawn["Maximum RIR (K<sub>P</sub><sup>−1/2</sup>)", axis]
        expected = linear_probe(found.arrays[place]["theta"], task, steps=50).norm_ratio
        at = steps <= 50
        wanted = np.maximum(expected[steps[at].astype(int)], house_prices.FLOOR)
        np.testing.assert_allclose(np.log(values[at]), np.log(wanted), atol=0.1)  # of the mean over one seed


def test_published_tables_stand_beside_the_data_of_the_paper_alone():
    rows = finished(house_prices).rows
    table = linear.table_of(rows, 1).set_index("method")
    assert table.at["ours", "published_rir_mean"] == pytest.approx(356.2)
    assert linear.table_of(rows, 0)["published_rir_mean"].isna().all()
    digits = finished(mnist)
    assert digits.table["published_rir_mean"].isna().all()
    said = mnist.sentence(mnist.table(digits.rows.assign(data="mnist"))).replace("\N{NO-BREAK SPACE}", " ")
    assert "Table 2 has 70.04 ± 3.28 after 30 epochs" in said


class Half:
    """θ = I/2, any object with a name and a start."""

    name, seeded = "half-identity", False

    def initial(self, problem, generator):
        return {"theta": torch.eye(problem.dimension).double() / 2}


def test_a_method_of_ones_own_is_an_object(monkeypatch):
    monkeypatch.setitem(METHODS, Half.name, None)  # takes away what the experiment puts there
    monkeypatch.delitem(METHODS, Half.name)
    found = run(house_prices, methods=[Half(), "algorithm1"], seeds=1).rows.set_index("method")
    assert list(found.index) == ["half-identity", "ours"]
    for name in linear.CONVENTIONS:
        assert found.loc["half-identity", f"{name}_rir"] == pytest.approx(1)


# Pairs of digits.


def test_a_row_is_the_measure_of_covariances_of_equally_many_images():
    digits = load_small_digits()
    X = [digits.pixels(np.flatnonzero(digits.labels == digit)) for digit in (9, 0)]
    K_P, K_H = (rows[: min(map(len, X))].T @ rows[: min(map(len, X))] for rows in X)
    theta = immunize(ImmunizationProblem.from_covariances(K_P, K_H), "max_rir").theta
    row = finished(mnist).rows.query("method == 'max_rir' and benign == 9").iloc[0]
    expected = relative_immunization_ratio(theta, K_P, K_H, convention="ridge")
    assert row["ridge_rir"] == pytest.approx(expected.rir, rel=1e-6)
    assert row["ridge_benign_ratio"] == pytest.approx(expected.benign_ratio, rel=1e-6)


def test_a_digit_against_the_rest_is_one_balanced_task_and_published_labels_are_constants():
    (P, _), (_, H) = (mnist.tasks("digits", *pair, "one_vs_rest", "cpu").losses for pair in ((4, 9), (9, 4)))
    assert P.targets.equal(H.targets)
    assert P.features.equal(H.features)
    assert P.targets.unique(return_counts=True)[1].diff() == 0
    losses = mnist.tasks("digits", 4, 9, "published", "cpu").losses
    assert [set(loss.targets.ravel().tolist()) for loss in losses] == [{0.0}, {1.0}]


def test_sentence_table_and_figure_count_the_same_runs():
    found = finished(mnist)
    counts = (found.rows["ridge_success"] == 1).groupby(found.rows["method"], sort=False).agg(["sum", "size"])
    assert list(found.table["immunized_ridge"]) == list(counts["sum"])
    assert f"immunizes {counts['sum']['ours']} of {counts['size']['ours']} runs" in found.sentence
    heads = mnist.figure(found).layout.yaxis.ticktext
    assert [head.partition("<br>")[2] for head in heads] == [f"{k} of {n} runs" for k, n in counts.to_numpy()]


def rows_of(*cells):
    """Rows of a run, from method, seed, digits of both tasks, RIR and verdict; (ii) is 2."""
    names = ["method", "seed", "benign", "harmful", "ridge_rir", "ridge_success"]
    rows = pd.DataFrame(cells, columns=names).assign(data="digits", ridge_benign_ratio=2.0)
    return SimpleNamespace(rows=rows.assign(ridge_harmful_ratio=2 * rows["ridge_rir"]))


def test_a_cell_of_figure_2_is_the_mean_of_ln_rir_crossed_unless_all_seeds_succeed(monkeypatch):
    cells = [("ours", 0, 3, 8, math.e**2, True), ("ours", 1, 3, 8, math.e**4, True)]
    cells += [("ours", 0, 0, 1, math.e**-1, True), ("ours", 1, 0, 1, math.e**-1, None)]
    cells += [("imma", 0, 3, 8, math.e**-5, False)]
    (few,) = mnist.figure(rows_of(*cells)).data
    assert list(few.x) == ["3 → 8", "0 → 1"]
    assert few.z[0] == pytest.approx([3, -1])  # (2 + 4) / 2
    assert few.text.tolist() == [["3.0", "−1.0<sup>✕</sup>"], ["−5.0<sup>✕</sup>", ""]]
    assert np.isnan(few.z[1, 1])  # a cell that failed
    monkeypatch.setattr(mnist, "FEW", 1)  # a panel per method, with rows for benign digits
    ours, imma = mnist.figure(rows_of(*cells)).data
    assert (ours.z[3, 8], ours.z[0, 1], imma.z[3, 8]) == pytest.approx((3, -1, -5))
    assert set(np.ravel(imma.text)) == {"", "−5.0<sup>✕</sup>"}


# Limits.


def test_a_row_of_limits_is_the_direct_measurement():
    problem = ImmunizationProblem.from_pair(load_diabetes_tasks(features="published"))
    K_P, K_H = (task.covariance.numpy() for task in (problem.benign, problem.harmful))
    theta = immunize(problem, "ours", seed=1, settings=linear.chosen_settings("embedded", "ours", 40)).theta
    row = finished(limits).rows.query("method == 'ours' and seed == 1").iloc[0]
    assert row["limit_ridge"] == pytest.approx(limits.RIDGE * np.trace(K_P) / len(K_P))
    added = row["limit_ridge"] * np.eye(len(K_P))
    direct = relative_immunization_ratio(theta, K_P + added, K_H + added)
    limit = rir_limit(K_P, K_H, ridge=row["limit_ridge"]).value
    expected = direct.rir, direct.benign_ratio, limit, direct.rir / limit
    found = row[["rir", "benign_ratio", "rir_limit", "rir_share"]].tolist()
    assert found == pytest.approx(expected, rel=1e-6)


class Whitened:
    """θ = (K_P + εI)^{-1/2}, the closed form for the ε of the experiment."""

    name, seeded = "whitened", False

    def initial(self, problem, generator):
        values, Q = torch.linalg.eigh(problem.benign.covariance)
        return {"theta": Q @ torch.diag((values + limits.RIDGE * values.mean()) ** -0.5) @ Q.mT}


@pytest.mark.parametrize(("data", "pairs"), [("embedded", ""), ("digits", "4-7,9-0")])
def test_no_method_exceeds_the_limit_and_the_closed_form_for_epsilon_attains_it(data, pairs):
    methods = (Whitened(), "ours", "max_rir", "pareto")
    try:
        found = run(limits, data=data, pairs=pairs, methods=methods, steps=4, seeds=1)
    finally:
        METHODS.pop("whitened", None)
    assert (found.rows["rir_share"] < 1 + 1e-6).all()
    assert found.rows.query("method == 'whitened'")["rir_share"].to_numpy() == pytest.approx(1, rel=1e-6)
    assert "whitened reaches 100 % of it" in found.sentence
    figure = limits.figure(found)
    for trace, (_, own) in zip(figure.data, found.rows.groupby("method", sort=False), strict=True):
        assert list(trace.y) == list(own["rir_share"])
    if pairs:
        known = found.table.groupby("pair")["limit_without"].first()
        # 0 lights no pixel that 9 lacks, so that this limit is finite without ε.
        assert np.isinf(known[["4-7", "9-0"]]).tolist() == [True, False]
