"""Second moments in one pass: exact, whatever the file; groups that resample like rows."""

from dataclasses import replace

import numpy as np
import pytest

from condnum.audit.intervals import resampled_covariance
from condnum.audit.moments import FEWEST_GROUPS, group_count, second_moments
from condnum.data import feature_stream
from condnum.data.feature_stream import array_stream, open_feature_stream
from condnum.errors import DataFormatError, InvalidInputError


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
    moments = second_moments(array_stream(X), groups=groups, threads=threads)
    np.testing.assert_allclose(moments.covariance, X.T @ X, rtol=1e-13)
    assert moments.rows == 101
    np.testing.assert_array_equal(moments.kept, X)


def test_parts_of_a_file_add_up_to_the_same_groups(small_blocks, tmp_path):
    X = matrix()
    np.save(tmp_path / "X.npy", X)
    stream = open_feature_stream(tmp_path / "X.npy")
    whole = second_moments(stream, groups=8, seed=3)
    parts = second_moments(stream, groups=8, seed=3, last=2) + second_moments(
        stream, groups=8, seed=3, first=2
    )
    np.testing.assert_allclose(parts.groups, whole.groups, rtol=1e-12, atol=1e-12)


def test_float32_is_summed_in_float64():
    # 1 + 2^-20 squared needs 40 bits: a float32 sum of 30 000 of them is off in the fourth digit.
    X = np.full((30_000, 1), 1 + 2.0**-20, dtype=np.float32)
    moments = second_moments(array_stream(X), kept_bytes=0)
    exact = 30_000 * float(X[0, 0]) ** 2
    assert moments.covariance[0, 0] == pytest.approx(exact, rel=1e-13)
    assert moments.kept is None


def test_resampling_groups_has_the_spread_of_resampling_rows_even_if_rows_are_sorted():
    """Var K* = (1 − 1/M) Σ x⁴, as for rows; groups of neighbouring rows would give 26 times as much."""
    X = np.repeat([1.0, 3.0], 2000)[:, None]  # sorted: neighbours are alike
    found = []
    for seed in range(30):
        moments = second_moments(array_stream(X), groups=64, seed=seed, kept_bytes=0)
        generator = np.random.default_rng(1000 + seed)
        draws = [resampled_covariance(moments, generator)[0, 0] for _ in range(200)]
        found.append(np.var(draws))
    assert np.mean(found) == pytest.approx((1 - 1 / 64) * (X**4).sum(), rel=0.1)


def test_rows_of_small_data_are_resampled_one_by_one():
    moments = second_moments(array_stream(np.eye(4)), groups=64)
    drawn = resampled_covariance(moments, np.random.default_rng(1))
    assert np.trace(drawn) == pytest.approx(4)
    assert set(np.round(np.diagonal(drawn), 9)) <= {0, 1, 2, 3, 4}


class TestRefused:
    def test_overflow(self):
        with pytest.raises(DataFormatError, match="squares overflow float64"):
            second_moments(array_stream(np.full((3, 2), 1e200)))

    def test_no_groups(self):
        with pytest.raises(InvalidInputError, match="groups must be at least 1, got 0"):
            second_moments(array_stream(matrix()), groups=0)


def test_an_error_in_the_reader_reaches_the_caller():
    def broken(first, size, order):
        yield np.ones((1, 1))
        raise DataFormatError("cut off")

    stream = replace(array_stream(np.ones((3, 1))), read=broken)
    with pytest.raises(DataFormatError, match="cut off"):
        second_moments(stream)


def test_groups_fit_into_memory_or_there_are_none():
    for D in (64, 512, 1500, 2000, 5000):
        M = group_count(D)
        assert M == 1 or (M >= FEWEST_GROUPS and 8 * M * D**2 <= 384 << 20)
