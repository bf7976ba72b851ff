"""Quadratic erasure: nothing left for degree 2, the largest dimension, invertible maps, maps per class."""

import numpy as np
import pandas as pd
import pytest
import torch
from covariances import STRUCTURES, orthogonal, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import PolynomialFeatures

from condnum import Eraser, erasure
from condnum.errors import InvalidInputError, RankError

#: Two classes whose covariances are diag(4, 1) and diag(1, 4) about the same mean.
CROSS = np.array([[2, 1], [-2, 1], [2, -1], [-2, -1], [1, 2], [-1, 2], [1, -2], [-1, -2.0]])
CROSS_Y = ["wide"] * 4 + ["tall"] * 4


def fit_of(X, y, degree):
    """R² of the best polynomial head of a degree, by least squares on one-hot labels."""
    Z = np.asarray(y)[:, None] == np.unique(y)
    F = PolynomialFeatures(degree, include_bias=False).fit_transform((X - X.mean(axis=0)) / np.abs(X).max())
    U, s, _ = np.linalg.svd(F - F.mean(axis=0), full_matrices=False)
    return (
        np.square(U[:, s > 1e-9 * s[0]].T @ (Z - Z.mean(axis=0))).sum() / np.square(Z - Z.mean(axis=0)).sum()
    )


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(STRUCTURES), st.integers(2, 9), st.sampled_from([2, 3]))
def test_nothing_of_degree_2_is_left_on_the_eraser_s_rows(seed, kind, dimension, classes):
    rng = np.random.default_rng(seed)
    X, y = structured_rows(rng, kind, dimension), rng.integers(classes, size=60)
    try:
        theta = erasure(X, y, degree=2).theta
    except InvalidInputError:  # nothing to erase, or nothing left
        assume(False)
    F, Z = (X - X.mean(axis=0)) @ theta, np.eye(classes)[y] - np.bincount(y, minlength=classes) / 60
    size = np.linalg.norm(X) * max(1, np.abs(theta).max())  # θ amplifies round-off
    assert np.abs(F.T @ Z).max() <= 1e-10 * size
    assert max(np.abs((F * z[:, None]).T @ F).max() for z in Z.T) <= 1e-10 * size**2


def test_two_classes_keep_the_largest_subspace_and_one_direction_of_a_cross():
    found = erasure(CROSS, CROSS_Y, degree=2)  # no linear part: the means are equal
    F = CROSS @ found.theta
    assert np.linalg.matrix_rank(found.theta) == 1
    np.testing.assert_allclose(np.var(F[:4], axis=0), np.var(F[4:], axis=0))
    for plus, minus, zero in ((3, 2, 0), (1, 4, 0), (2, 1, 2)):
        # N rows ±c·e of each class: the form is diagonal, with eigenvalues of these signs
        n, sides = plus + minus + zero, np.repeat([2.0, 0.5, 1.0], [plus, minus, zero])
        X = np.concatenate([np.diag(sides), -np.diag(sides), np.eye(n), -np.eye(n)])
        theta = erasure(X, np.repeat(["a", "b"], 2 * n), degree=2).theta
        assert np.linalg.matrix_rank(theta, 1e-8) == zero + min(plus, minus)


def test_no_invertible_map_erases_and_degree_1_leaves_degree_2():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    X = rng.normal(size=(300, 4)) * np.where(y, 2.0, 1.0)[:, None] + y[:, None]
    whole = fit_of(X, y, 2)
    for theta in (
        -np.eye(4),
        orthogonal(rng, 4) * [1, 2, 3, 4],
        erasure(X, y, strength=0.99, degree=1).theta,
    ):
        assert fit_of(X @ theta, y, 2) == pytest.approx(whole, abs=1e-6)
    first = fit_of(X @ erasure(X, y).left, y, 2)
    assert whole > first > 0.2  # every direction tells the classes apart: no pair of signs
    with pytest.raises(
        RankError,
        match=r"degree 2 leaves none of 4 directions .* rank, such as 2, fewer classes, or a lower degree",
    ):
        erasure(X, y, degree=2)


def test_a_rank_takes_means_first_and_then_those_in_which_classes_differ_most():
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 200)
    X = (
        rng.normal(size=(600, 6)) * np.array([[3, 1, 1, 1, 1, 1], [1, 2, 1, 1, 1, 1], [1] * 6])[y]
        + np.eye(6)[y + 3]
    )
    known = [fit_of(X @ erasure(X, y, degree=2, rank=k).left, y, 2) for k in (2, 3, 4)]
    linear = erasure(X, y).theta
    np.testing.assert_allclose(erasure(X, y, degree=2, rank=2).theta, linear, atol=1e-10)
    assert 1 > known[0] > known[1] + 0.05 > known[2] + 0.05
    assert known[2] < 0.07  # by chance alone, where 0.16 was left


@pytest.mark.parametrize("kind", ["frame", "tensor"])
def test_an_eraser_of_degree_2_for_text_labels_in_the_callers_kind(kind, tmp_path):
    rng = np.random.default_rng(2)
    scales = np.where(np.arange(6) < 3, 2.0, 0.5)
    X = np.r_[rng.normal(size=(200, 6)) * scales, rng.normal(size=(200, 6)) / scales].astype(np.float32)
    y = ["wide"] * 200 + ["narrow"] * 200
    given_ = pd.DataFrame(X).add_prefix("x") if kind == "frame" else torch.tensor(X)
    eraser = Eraser(degree=2).fit(given_, y)
    features = eraser.transform(given_)
    assert type(features) is type(given_)
    F = np.asarray(features)
    # Without the mean's direction, signs (3, 3) become (2, 3) or (3, 2), by interlacing.
    assert (F.dtype, np.linalg.matrix_rank(eraser.theta_, 1e-4)) == (np.float32, 2)
    np.testing.assert_allclose(np.cov(F[:200].T), np.cov(F[200:].T), atol=1e-4)
    eraser.save(tmp_path / "eraser.safetensors")
    assert Eraser.load(tmp_path / "eraser.safetensors").degree == 2


def test_what_degree_2_refuses():
    with pytest.raises(InvalidInputError, match=r"degree must be 1 .* or 2 .*, got 3"):
        erasure(CROSS, CROSS_Y, degree=3)
    with pytest.raises(InvalidInputError, match="degree 2 needs rows, which a covariance does not have"):
        erasure(covariance=np.eye(2), moment=[1, 0], degree=2)
    with pytest.raises(InvalidInputError, match=r"degree=2 needs all rows.*; use fit\(X, y\)"):
        Eraser(degree=2).partial_fit(CROSS, CROSS_Y)
