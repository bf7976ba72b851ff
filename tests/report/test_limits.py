"""The words of the report on limits follow its numbers."""

import numpy as np
import pandas as pd
import pytest

from condnum.report import limits as tables

NAMES = {"dataset": "toy", "pretrain_task": "digit 4", "harmful_task": "digit 7"}


@pytest.fixture
def summary():
    return pd.DataFrame(
        {**NAMES, "method": ["ours", "imma", "optimal"], "seeds": 2, "ridge": 0.1, "harmful_ratio": 5.0,
         "pretrain_ratio": 0.1, "rir": 50.0, "rir_ceiling": 500.0, "rir_share": [0.1, 0.01, 0.9],
         "rir_share_min": [0.05, 0.01, 0.9], "rir_share_max": [0.2, 0.01, 0.9], "immunized": [2, 0, 2]}
    )  # fmt: skip


@pytest.fixture
def spaces():
    return pd.DataFrame(
        [{**NAMES, "dimension": 9, "rank_pretrain": 5, "rank_harmful": 6, "common": 1, "harmful_only": 3,
          "harmful_energy": 0.25, "intersection": 2, "intersection_energy": 0.125, "pretrain_only": 2,
          "pretrain_energy": 0.5}]
    )  # fmt: skip


def overshoots(worst):
    return pd.DataFrame(
        [{**NAMES, "kind": "random", "points": 90, "overshoot": worst, "largest_share": 1 + worst}]
    )


RACE = pd.DataFrame(
    {**NAMES, "contestant": ["generalised eigenproblem", "Cholesky factor", "Algorithm 1"],
     "steps": [0, 0, 1000], "ridge": 0.1, "seconds": [0.25, 0.0125, 50.0],
     "times_faster": [200.0, 4000.0, 1.0], "rir": [500.0, 500.0, 5.0],
     "rir_ceiling": 500.0, "rir_share": [1.0, 1.0, 0.01], "pretrain_ratio": 0.1, "harmful_ratio": 5.0}
)  # fmt: skip


def test_summary(summary):
    table = tables.summary_table(summary)
    assert table["RIR / ceiling"].tolist() == ["0.1 (0.05 – 0.2)", "0.01", "0.9"]
    assert table["immunized"].tolist() == ["2\u00a0of\u00a02", "0\u00a0of\u00a02", "2\u00a0of\u00a02"]


def test_the_best_trained_method_is_named_not_the_closed_form(summary, spaces):
    words = tables.words(summary, spaces, overshoots(-0.1), RACE[:0])
    assert "Ours\u00a0(Algorithm\u00a01) comes closest, with 0.1 of the ceiling" in words
    assert "race" not in words


def test_null_spaces_in_words(summary, spaces):
    words = tables.words(summary, spaces, overshoots(0.0), RACE)
    assert "1 of 1 pair have no ceiling" in words
    assert "a share of 0.25 of the harmful" in words
    finite = tables.words(summary, spaces.assign(harmful_only=0), overshoots(0.0), RACE)
    assert "every compact ceiling is finite" in finite


@pytest.mark.parametrize(
    ("worst", "said"),
    [(-0.2, "none of 90 extractors lies beyond it"), (1e-9, "round-off"), (0.03, "overshoots it by 3.0e-02")],
)
def test_an_overshoot_is_said(summary, spaces, worst, said):
    assert said in tables.words(summary, spaces, overshoots(worst), RACE)


def test_the_race_in_words(summary, spaces):
    words = tables.words(summary, spaces, overshoots(0.0), RACE)
    assert "took 0.25 s and reached a share of 1 of the ceiling" in words
    assert "1,000 steps of Algorithm 1 took 50 s, 200 times as long, and reached 0.01" in words
    assert tables.race_table(RACE)["steps"].tolist() == ["—", "—", "1,000"]


def test_usual_measures_leave_out_shares_of_infinity():
    results = pd.DataFrame(
        {**NAMES, "method": "ours", "seed": [0, 1], "convention": "compact", "gauge": "unit",
         "harmful_ratio": 2.0, "pretrain_ratio": 1.0, "rir": [1.0, 3.0], "rir_ceiling": np.inf,
         "rir_share": np.nan, "success": [True, False]}
    )  # fmt: skip
    row = tables.measured_table(results, "compact", "unit").iloc[0]
    assert (row["RIR ↑"], row["ceiling"], row["RIR / ceiling"]) == ("2", "∞", "—")
    assert row["immunized"] == "1\u00a0of\u00a02"


def test_null_and_overshoot_tables(spaces):
    assert tables.null_table(spaces)["null(K_P) excited by D_H"].tolist() == ["3"]
    assert tables.overshoot_table(overshoots(-0.5))["worst overshoot"].tolist() == ["0"]
    assert tables.overshoot_table(overshoots(1e-9))["worst overshoot"].tolist() == ["1.0e-09"]
