"""The experiment on limits, on the embedded data: its cells and its tables."""

import dataclasses

import numpy as np
import pytest

from condnum import ImmunizationProblem, immunize, relative_immunization_ratio, rir_limit
from condnum.data import load_diabetes_tasks
from condnum.studies.limits import (
    CHOSEN_SHARE,
    DEFAULT_PAIRS,
    Limits,
    limits_region,
    of_tasks,
    task_pairs,
)

HOUSE = Limits("embedded", ("ours", "identity", "max_rir"), 2, 40)
DIGITS = Limits("digits", methods=("imma",), seeds=1, steps=4, pairs=((4, 7), (9, 0)))


@pytest.fixture(scope="module")
def house():
    return HOUSE.run(jobs=1)


@pytest.fixture(scope="module")
def digits():
    return DIGITS.run(jobs=1)


def test_ridged_rows_are_the_direct_measurement(house):
    pair = load_diabetes_tasks(features="published")
    problem = ImmunizationProblem.from_pair(pair)
    K_P, K_H = (task.covariance.numpy() for task in (problem.benign, problem.harmful))
    result = immunize(problem, "ours", seed=1, **dataclasses.asdict(HOUSE.base.settings("ours")))
    for row in house.tables["ridged"].query("method == 'ours' and seed == 1").itertuples():
        assert row.ridge == pytest.approx(row.ridge_share * np.trace(K_P) / len(K_P))
        if row.ridge_share < 1e-5:
            continue  # the direct way adds ε to K, where it drowns in the round-off of a singular one
        added = row.ridge * np.eye(len(K_P))
        direct = relative_immunization_ratio(result.theta, K_P + added, K_H + added)
        assert row.rir == pytest.approx(direct.rir, rel=1e-5)
        assert row.benign_ratio == pytest.approx(direct.benign_ratio, rel=1e-5)
        assert row.rir_limit == pytest.approx(rir_limit(K_P, K_H, ridge=row.ridge).value, rel=1e-6)
        assert row.rir_share == pytest.approx(row.rir / row.rir_limit)


def test_digit_pairs_are_kept_apart(digits):
    assert task_pairs(digits) == [("digit 4", "digit 7"), ("digit 9", "digit 0")]
    # 0 lights no pixel that 9 lacks, so that one compact limit is finite.
    assert (digits.tables["null_spaces"]["harmful_only"] > 0).tolist() == [True, False]
    for tasks in task_pairs(digits):
        part = of_tasks(digits.tables["limits"], tasks)
        chosen = part[part["ridge_share"] == CHOSEN_SHARE].iloc[0]
        region = limits_region(digits.tables["limits"], digits.tables["null_spaces"], tasks)
        assert region.limit.value == chosen["rir_limit"]
    study = Limits("digits", methods=("ours",), seeds=1)
    parts = [cell["part"] for cell in study.cells(study.load())]
    assert [parts.count(part) for part in ("method", "pair")] == [len(DEFAULT_PAIRS)] * 2
