"""Values that must not move: published numbers, closed forms of the bundled data, counter-examples."""

import pytest

from condnum import ImmunizationProblem, condition_number, immunize, relative_immunization_ratio, rir_limit
from condnum.data import digit_pair, load_diabetes_tasks, load_house_prices, load_small_digits
from condnum.experiments.published import published

#: Of bundled pairs: D, rank and compact κ of K_P, the same of K_H, the limit of RIR.
BUNDLED = {
    "house prices": (79, 74, 229.424095826, 76, 208.741439155, float("inf")),
    "diabetes": (8, 8, 469.814621164, 8, 360.188848044, 4.186631366886),
    "digits 4 and 7": (64, 54, 774237.143982, 50, 532694.439735, float("inf")),
}


@pytest.fixture(scope="module")
def problems():
    digits = digit_pair(load_small_digits(), 4, 7)
    pairs = load_house_prices(features="published"), load_diabetes_tasks(), digits
    return dict(zip(BUNDLED, map(ImmunizationProblem.from_pair, pairs), strict=True))


def test_published_ratios_of_ours():
    assert [published(table)["ours"]["rir_mean"] for table in (1, 2)] == [356.2, 70.04]
    nets = [published(3, backbone, "cars")["ours"]["rir_mean"] for backbone in ("resnet18", "vit")]
    assert nets == [3.467, 34.517]


@pytest.mark.parametrize("name", BUNDLED)
def test_ranks_condition_numbers_and_limits(problems, name):
    """Of the rows, and of their covariances."""
    tasks = problems[name].benign, problems[name].harmful
    for own in (tasks, [task.covariance for task in tasks]):
        P, H = map(condition_number, own)
        found = (P.dimension, P.rank, P.value, H.rank, H.value, rir_limit(*own).value)
        assert found == pytest.approx(BUNDLED[name], rel=1e-7)


@pytest.mark.parametrize("name", BUNDLED)
def test_pareto_meets_definition_3_1_in_both_conventions(problems, name):
    problem = problems[name]
    theta = immunize(problem, "pareto").theta
    least = {"house prices": 478_000, "diabetes": 4.1865, "digits 4 and 7": 43.4}  # of the ridge convention
    for convention in ("compact", "ridge"):
        measured = relative_immunization_ratio(theta, problem.benign, problem.harmful, convention=convention)
        assert measured.success
        assert measured.rir > least[name]


def test_the_limit_is_reached(problems):
    tasks = problems["diabetes"].benign, problems["diabetes"].harmful
    measured = relative_immunization_ratio(immunize(problems["diabetes"], "max_rir").theta, *tasks)
    assert measured.rir == pytest.approx(BUNDLED["diabetes"][-1], rel=1e-9)
