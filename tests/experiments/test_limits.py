"""The experiment on limits, on the embedded data: each extractor on K + εI against the limit of that."""

import numpy as np
import pytest
import torch

from condnum import ImmunizationProblem, immunize, relative_immunization_ratio, rir_limit
from condnum.data import load_diabetes_tasks
from condnum.errors import CondnumError
from condnum.experiments import frame, limits
from condnum.experiments.linear import chosen_settings
from condnum.methods import METHODS

OPTIONS = {"data": "embedded", "methods": "", "seeds": 1, "steps": 40, "pairs": "", "full": True}


def run(**options):
    return frame.run(limits, jobs=1, quiet=True, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def table():
    return run(methods="ours,identity,max_rir,pareto,initial", seeds=2)


@pytest.fixture(scope="module")
def digits():
    return run(data="digits", methods="imma,pareto", steps=4, pairs="4-7,9-0")


class Whitened:
    """θ = (K_P + εI)^{-1/2}, the closed form for the ε of the experiment."""

    name, seeded = "whitened", False

    def initial(self, problem, generator):
        K = problem.benign.covariance
        values, Q = torch.linalg.eigh(K)
        return {"theta": Q @ torch.diag((values + limits.RIDGE * values.mean()) ** -0.5) @ Q.mT}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "svhn"}, "unknown data set 'svhn'"),
        ({"pairs": "4-7"}, "pairs '4-7' are pairs of digits, but embedded is a single pair"),
        ({"data": "digits", "pairs": "4-4"}, "two different digits"),
        ({"steps": -1}, "steps must be an integer ≥ 0, got -1"),
    ],
    ids=str,
)
def test_refused_at_the_door(options, words):
    with pytest.raises(CondnumError, match=words):
        limits.cells(**{**OPTIONS, **options})


def test_a_row_is_the_direct_measurement(table):
    problem = ImmunizationProblem.from_pair(load_diabetes_tasks(features="published"))
    K_P, K_H = (task.covariance.numpy() for task in (problem.benign, problem.harmful))
    theta = immunize(problem, "ours", seed=1, settings=chosen_settings("embedded", "ours", 40)).theta
    row = table.rows.query("method == 'ours' and seed == 1").iloc[0]
    assert row["limit_ridge"] == pytest.approx(limits.RIDGE * np.trace(K_P) / len(K_P))
    added = row["limit_ridge"] * np.eye(len(K_P))
    direct = relative_immunization_ratio(theta, K_P + added, K_H + added)
    assert row["rir"] == pytest.approx(direct.rir, rel=1e-6)
    assert row["benign_ratio"] == pytest.approx(direct.benign_ratio, rel=1e-6)
    limit = rir_limit(K_P, K_H, ridge=row["limit_ridge"]).value
    assert row["rir_limit"] == pytest.approx(limit, rel=1e-6)
    assert row["rir_share"] == pytest.approx(direct.rir / limit, rel=1e-6)


@pytest.mark.parametrize(("data", "pairs"), [("embedded", ""), ("digits", "4-7,9-0")])
def test_no_method_exceeds_the_limit_and_the_closed_form_for_epsilon_attains_it(data, pairs):
    try:
        found = run(data=data, pairs=pairs, methods=(Whitened(), "ours", "max_rir", "pareto"), steps=4)
    finally:
        METHODS.pop("whitened", None)
    assert (found.rows["rir_share"] < 1 + 1e-6).all()
    assert found.rows.query("method == 'whitened'")["rir_share"].to_numpy() == pytest.approx(1, rel=1e-6)
    assert "whitened reaches 100 % of it" in found.sentence


def test_pairs_of_digits_are_kept_apart(digits):
    known = digits.table.groupby("pair")[["rir_limit", "limit_without"]].first()
    assert list(known.index) == ["4-7", "9-0"]
    assert known["rir_limit"].nunique() == 2
    # 0 lights no pixel that 9 lacks, so that this limit is finite without ε.
    assert np.isinf(known["limit_without"]).tolist() == [True, False]
    default = limits.cells(**{**OPTIONS, "data": "digits", "methods": "ours"})
    assert ",".join(cell["pair"] for cell in default) == limits.PAIRS


def test_a_fraction_is_the_geometric_mean_over_seeds(table):
    shares = table.rows.query("method == 'initial'")["rir_share"]
    row = table.table.set_index("method").loc["initial"]
    assert row["of"] == 2
    assert row["rir_share"] == pytest.approx(np.sqrt(shares.prod()))


def test_the_figure_has_every_extractor_below_the_line_with_its_verdict(digits):
    figure = limits.figure(digits)
    for trace, (_, own) in zip(figure.data, digits.rows.groupby("method", sort=False), strict=True):
        assert list(trace.y) == list(own["rir_share"])
        assert [symbol == "diamond" for symbol in trace.marker.symbol] == own["success"].tolist()
    assert max(max(trace.y) for trace in figure.data) <= 1 + 1e-6


@pytest.mark.parametrize("method", ["identity", "erase"])
def test_one_method_with_one_seed_has_a_page(method):
    found = run(methods=method)
    assert found.sentence.startswith("No invertible θ has a larger RIR than the theoretical limit, 3.904")
    assert ("reaches" in found.sentence) == (method == "identity")  # of erasure there is no fraction
    assert "nan" not in found.sentence
    assert len(limits.figure(found).data) == (method == "identity")
