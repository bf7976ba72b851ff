"""The digit-pair experiment on the embedded digits: cells, tables, resume, bad input."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from condnum import relative_immunization_ratio
from condnum.data import load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.studies import digit_pairs
from condnum.studies import digit_pairs as digit_config
from condnum.studies.digit_cells import compute_cell, digit_problem, immunize_cell
from condnum.studies.measure import RESULT_COLUMNS
from condnum.studies.store import cells_folder
from condnum.theory.spectra import PUBLISHED_RIDGE, covariance

CONFIG = digit_config.DigitPairsConfig(
    methods=("ours", "imma", "optimal"), seeds=2, epochs=5, pairs=((4, 7), (9, 0))
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return digit_pairs.run(CONFIG, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def reference():
    return digit_pairs.load(CONFIG)[1]


def test_a_row_per_cell_and_measure(run):
    assert list(run.table.columns[: len(RESULT_COLUMNS)]) == RESULT_COLUMNS
    assert len(run.table) == 2 * (2 * 2 + 1) * 3  # pairs × (2 that draw × 2 seeds + 1) × measures
    assert run.failures.empty
    assert set(zip(run.table["pretrain_digit"], run.table["harmful_digit"], strict=True)) == {(4, 7), (9, 0)}


def test_covariances_are_those_of_the_digits_cut_to_the_smaller_class(reference):
    digits = load_small_digits()
    problem = digit_problem(reference, 4, 7, loss_rows=100, labels="one_vs_rest")
    count = min(digits.counts[4], digits.counts[7])
    X = np.array(digits.pixels(np.flatnonzero(digits.labels == 4)[:count]))
    np.testing.assert_allclose(problem.pretrain.covariance, covariance(X), rtol=1e-12, atol=1e-9)
    B = problem.pretrain.factor
    torch.testing.assert_close(B.mT @ B, problem.pretrain.covariance, rtol=1e-9, atol=1e-9)
    assert problem.pretrain.supervised_rows.shape == (100, 64)
    assert float(problem.pretrain.targets.mean()) == pytest.approx(0.5)


def test_published_labels_have_one_class(reference):
    problem = digit_problem(reference, 4, 7, loss_rows=50, labels="published")
    assert set(problem.pretrain.targets.flatten().tolist()) == {0.0}
    assert set(problem.harmful.targets.flatten().tolist()) == {1.0}


def test_table_equals_the_direct_measurement_of_the_same_theta(run, reference):
    plan = next(p for p in digit_pairs.plans(CONFIG, reference) if p.payload["method"] == "ours")
    problem, result = immunize_cell(plan)
    chosen = run.table[
        (run.table["method"] == "ours")
        & (run.table["seed"] == 0)
        & (run.table["pretrain_digit"] == plan.payload["pretrain"])
    ].set_index(["convention", "gauge"])
    for convention, gauge in (("compact", "unit"), ("ridge", "unit"), ("ridge", "as_trained")):
        direct = relative_immunization_ratio(
            result.theta,
            problem.pretrain.covariance,
            problem.harmful.covariance,
            convention=convention,
            gauge=gauge,
        )
        row = chosen.loc[convention, gauge]
        assert row["rir"] == pytest.approx(direct.rir, rel=1e-6)
        assert row["harmful_ratio"] == pytest.approx(direct.harmful_ratio, rel=1e-6)
        assert row["rank_pretrain"] == direct.pretrain_after.rank


def test_summary_is_the_mean_over_pairs_then_over_seeds(run):
    summary = run.summary.set_index(["method", "convention", "gauge"])
    rows = run.table[
        (run.table["method"] == "ours")
        & (run.table["convention"] == "ridge")
        & (run.table["gauge"] == "unit")
    ]
    per_seed = rows.groupby("seed")["rir"].mean()
    entry = summary.loc["ours", "ridge", "unit"]
    assert entry["rir_mean"] == pytest.approx(per_seed.mean())
    assert entry["rir_std"] == pytest.approx(per_seed.std(ddof=1))
    assert entry["pairs"] == 2
    assert pd.isna(entry["published_rir"])  # Table 2 is of MNIST


def test_a_finished_sweep_is_not_computed_again_and_more_seeds_reuse_it(tmp_path):
    small = dataclasses.replace(CONFIG, methods=("imma",), pairs=((4, 7),), seeds=1)
    first = digit_pairs.run(small, tmp_path)
    again = digit_pairs.run(small, tmp_path)
    more = digit_pairs.run(dataclasses.replace(small, seeds=2), tmp_path)
    assert (first.computed, first.reused) == (1, 0)
    assert (again.computed, again.reused) == (0, 1)
    assert (more.computed, more.reused) == (1, 1)
    pd.testing.assert_frame_equal(first.table, again.table)


def test_without_a_folder_nothing_is_left_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small = dataclasses.replace(CONFIG, methods=("imma",), seeds=1)
    found = digit_pairs.run(small, cells_folder(""))
    assert list(tmp_path.iterdir()) == []
    kept = run.table[(run.table["method"] == "imma") & (run.table["seed"] == 0)]
    assert found.table["rir"].tolist() == pytest.approx(kept["rir"].tolist())
    assert cells_folder("out") == Path("out/cells")


def test_two_processes_equal_one(tmp_path):
    config = dataclasses.replace(CONFIG, methods=("imma", "optimal"), seeds=1)
    one = digit_pairs.run(config, tmp_path / "one")
    two = digit_pairs.run(dataclasses.replace(config, jobs=2), tmp_path / "two")
    columns = ["method", "pretrain_digit", "convention", "gauge", "rir", "success"]
    pd.testing.assert_frame_equal(one.table[columns], two.table[columns])


def test_a_cell_keeps_its_spectra(reference):
    plan = digit_pairs.plans(CONFIG, reference)[0]
    row, arrays = compute_cell(plan)
    assert {"pretrain_before", "pretrain_after", "harmful_before", "harmful_after"} <= set(arrays)
    for name in ("pretrain_before", "harmful_after"):
        assert (np.diff(arrays[name]) <= 1e-9).all()
    assert row["dimension"] == 64
    assert row["squared_norm"] > 0


def test_sensitivity_has_three_tolerances(run):
    assert run.sensitivity["rtol"].nunique() == 3
    ranks = run.sensitivity.groupby("rtol")["rank_pretrain"].mean()
    assert ranks.iloc[0] >= ranks.iloc[-1]  # a looser tolerance keeps no more


def test_the_ridge_axis_repeats_the_table_at_the_published_ridge(run):
    keys = ["method", "seed", "pretrain_digit", "harmful_digit"]
    table = run.table[(run.table["convention"] == "ridge") & (run.table["gauge"] == "unit")]
    ridged = run.ridged[run.ridged["ridge"] == PUBLISHED_RIDGE]
    both = table.merge(ridged, on=keys, suffixes=("", "_again"), validate="one_to_one")
    assert len(both) == len(table)
    for name in ("rir", "rir_ceiling", "harmful_ratio"):
        np.testing.assert_allclose(both[f"{name}_again"], both[name], rtol=1e-12)
    assert (run.ridged["rir"] <= run.ridged["rir_ceiling"] * (1 + 1e-9)).all()


def test_the_ridge_sweep_averages_logarithms_over_pairs(run):
    sweep = run.ridge_sweep
    ridges = run.ridged["ridge"].nunique()
    assert len(sweep) == ridges * (1 + 2 * 2 + 1)  # ceiling, two methods × two seeds, the closed form
    row = sweep[(sweep["method"] == "ours") & (sweep["seed"] == 1) & sweep["ridge"].between(0.5, 2)]
    chosen = (
        (run.ridged["method"] == "ours") & (run.ridged["seed"] == 1) & run.ridged["ridge"].between(0.5, 2)
    )
    assert float(row["rir"].iloc[0]) == pytest.approx(float(np.sqrt(run.ridged[chosen]["rir"].prod())))


def test_the_closed_form_runs_by_default_and_once_a_pair(reference):
    config = digit_config.DigitPairsConfig(pairs=((4, 7),), seeds=3)
    methods = [plan.payload["method"] for plan in digit_pairs.plans(config, reference)]
    assert methods.count("optimal") == 1
    assert methods.count("ours") == 3


def test_save(run, tmp_path):
    names = ["results.csv", "summary.csv", "rtol_sensitivity.csv", "ridge_sensitivity.csv"]
    assert run.save(tmp_path) == names
    assert len(pd.read_csv(tmp_path / "results.csv")) == len(run.table)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"pairs": ((4, 4),)}, InvalidInputError, "two different digits"),
        ({"pairs": ((4, 11),)}, InvalidInputError, "from 0 to 9"),
        ({"methods": ("our",)}, UnknownNameError, "did you mean 'ours'"),
        ({"epochs": 0}, InvalidInputError, "epochs must be an integer of at least 1"),
        ({"seeds": 0}, InvalidInputError, "seeds must be"),
        ({"jobs": 0}, InvalidInputError, "jobs must be"),
        ({"dataset": "svhn"}, UnknownNameError, "digit data set"),
        ({"labels": "none"}, UnknownNameError, "labels"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_configurations(change, error, text):
    with pytest.raises(error, match=text):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.parametrize("word", ["4", "4-", "47", "a-b", "4-7-1"])
def test_bad_pairs(word):
    with pytest.raises(InvalidInputError, match="no pair of digits"):
        digit_config.DigitPairsConfig.from_parameters(
            dataset="digits", data="auto", methods="", seeds=1, epochs=1, pairs=word,
            labels="one_vs_rest", jobs=1, scheduler="",
        )  # fmt: skip
