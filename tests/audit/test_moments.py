"""Second moments in one pass: exact, whatever the file and the machines; groups that resample like rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from condnum.audit.intervals import bootstrap, estimates, intervals, resampled_covariance
from condnum.audit.measures import AS_IS, TaskSpectra
from condnum.audit.moments import cluster_moments, second_moments
from condnum.data import feature_stream
from condnum.data.feature_stream import as_stream
from condnum.errors import DataFormatError, InvalidInputError
from condnum.theory.covariances import CovarianceRange


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows, so that small files have many."""
    monkeypatch.setattr(feature_stream, "MAX_BLOCK_ROWS", 16)


def matrix(rows=101, columns=5, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)) * np.arange(1, columns + 1)


@pytest.mark.parametrize("groups", [1, 7, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_are_those_of_all_rows(groups, threads, small_blocks):
    X = matrix()
    moments = second_moments(as_stream(X), groups=groups, threads=threads)
    np.testing.assert_allclose(moments.covariance, X.T @ X, rtol=1e-13)
    assert moments.rows == 101
    np.testing.assert_array_equal(moments.kept, X)


def test_float32_is_summed_in_float64():
    # 1 + 2^-20 squared needs 40 bits: a float32 sum of 30 000 of them is off in the fourth digit.
    X = np.full((30_000, 1), 1 + 2.0**-20, dtype=np.float32)
    moments = second_moments(as_stream(X), kept_bytes=0)
    assert moments.covariance[0, 0] == pytest.approx(30_000 * float(X[0, 0]) ** 2, rel=1e-13)
    assert moments.kept is None


def test_resampling_groups_has_the_spread_of_resampling_rows_even_if_rows_are_sorted():
    """Var K* = (1 − 1/M) Σ x⁴, as for rows; groups of neighbouring rows would give 26 times as much."""
    X = np.repeat([1.0, 3.0], 2000)[:, None]  # sorted: neighbours are alike
    found = []
    for seed in range(30):
        moments = second_moments(as_stream(X), groups=64, seed=seed, kept_bytes=0)
        generator = np.random.default_rng(1000 + seed)
        found.append(np.var([resampled_covariance(moments, generator)[0, 0] for _ in range(200)]))
    assert np.mean(found) == pytest.approx((1 - 1 / 64) * (X**4).sum(), rel=0.1)


def test_rows_of_small_data_are_resampled_one_by_one():
    moments = second_moments(as_stream(np.eye(4)), groups=64)
    drawn = resampled_covariance(moments, np.random.default_rng(1))
    assert np.trace(drawn) == pytest.approx(4)
    assert set(np.round(np.diagonal(drawn), 9)) <= {0, 1, 2, 3, 4}


def resampled(moments, extractors, **options):
    """The intervals of these moments."""
    ranges = (CovarianceRange.of(torch.from_numpy(task.covariance), rtol=1e-14) for task in moments)
    known = estimates(TaskSpectra.of(*ranges, extractors, rtol=1e-14), 1e-6)
    draws = bootstrap(moments, extractors, rtol=1e-14, epsilon=1e-6, **options)
    return intervals(draws, known, "rows").table


def test_intervals_are_the_same_for_any_number_of_threads():
    moments = tuple(second_moments(as_stream(matrix(seed=seed))) for seed in (0, 1))
    extractors = {AS_IS: None, "theta": matrix(5)}
    one, two = (resampled(moments, extractors, threads=t, replicates=20) for t in (1, 2))
    pd.testing.assert_frame_equal(one, two, check_exact=False, rtol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """κ of N(0, diag(4, 1)) is 4; 95 % intervals from 200 rows should hold it most of the time."""
    hits = 0
    for seed in range(40):
        moments = second_moments(as_stream(np.random.default_rng(seed).normal(size=(200, 2)) * [2.0, 1.0]))
        table = resampled((moments, moments), {AS_IS: None}, replicates=50, seed=seed, threads=1)
        row = table[(table["quantity"] == "kappa") & (table["task"] == "pretrain")].iloc[0]
        hits += row["low"] <= 4 <= row["high"]
    # Binomial(40, 0.95) is at least 33 with probability 0.997; percentile intervals are a bit short.
    assert hits >= 32


def test_what_cannot_be_summed_is_refused():
    with pytest.raises(DataFormatError, match="squares overflow float64"):
        second_moments(as_stream(np.full((3, 2), 1e200)))
    with pytest.raises(InvalidInputError, match="cannot be read in parts"):
        cluster_moments(as_stream(np.eye(2)), "tcp://127.0.0.1:1")

    def broken(first, size, order):
        yield np.ones((1, 1))
        raise DataFormatError("cut off")

    with pytest.raises(DataFormatError, match="cut off"):
        second_moments(replace(as_stream(np.ones((3, 1))), read=broken))


@pytest.mark.slow
def test_two_workers_give_the_sums_of_one_machine(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs dask: pip install -e '.[cluster]'")
    np.save(tmp_path / "X.npy", matrix(150_000, 4).astype(np.float32))
    stream = as_stream(tmp_path / "X.npy")
    alone = second_moments(stream, groups=8, seed=5, kept_bytes=0)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
    ) as workers:
        for parts in (2, 3):  # an odd number leaves one part over at the first level of the tree
            spread = cluster_moments(stream, workers.scheduler_address, groups=8, seed=5, parts=parts)
            np.testing.assert_allclose(spread.groups, alone.groups, rtol=1e-10, atol=1e-10)
            assert spread.rows == 150_000
