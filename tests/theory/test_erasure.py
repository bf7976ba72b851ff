"""Linear erasure: nothing left for a probe, the identity of the path, the price, its peer, odd input."""

import numpy as np
import pytest
import torch
from covariances import STRUCTURES, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.covariance import oas
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.theory.erasure import erasure, erasure_price

DRAWS = settings(max_examples=40)
SEEDS, SIZES, KINDS = st.integers(0, 10**6), st.integers(2, 10), st.sampled_from(STRUCTURES)


def task(seed, kind, dimension, classes=3):
    """Structured rows with labels that every class has."""
    rng = np.random.default_rng(seed)
    X = structured_rows(rng, kind, dimension)
    y = np.arange(len(X)) % min(classes, len(X))
    return X, rng.permutation(y)


def one_hot(y):
    Z = np.eye(y.max() + 1)[y]
    return Z - Z.mean(axis=0)


@DRAWS
@given(SEEDS, KINDS, SIZES, st.booleans())
def test_nothing_is_left_on_the_eraser_s_rows(seed, kind, dimension, shrunk):
    X, y = task(seed, kind, dimension)
    Z = one_hot(y)
    assume(np.linalg.norm(X.T @ Z) > 1e-8 * np.linalg.norm(X) * np.linalg.norm(Z))
    found = erasure(X, y, kind="classification", shrinkage=None if shrunk else 0.0)
    # The largest entry of θ is what amplifies the round-off of XᵀZ.
    size = np.linalg.norm(X) * np.linalg.norm(Z) * max(1, np.abs(found.theta).max())
    assert np.abs(found.theta.T @ X.T @ Z).max() <= 1e-11 * size
    assert found.fit_removed == pytest.approx(1, abs=1e-9)


@DRAWS
@given(SEEDS, KINDS, SIZES, st.floats(0, 1))
def test_the_harmful_hessian_along_the_path(seed, kind, dimension, strength):
    X, y = task(seed, kind, dimension)
    X -= X.mean(axis=0)
    N, K, G = len(X), X.T @ X, X.T @ one_hot(y)
    values, vectors = np.linalg.eigh(K / N)
    kept = values > 1e-12 * values[-1]
    V, root = vectors[:, kept], np.sqrt(values[kept])
    U, sizes, _ = np.linalg.svd((V / root) @ (V.T @ G), full_matrices=False)
    assume(sizes[0] > 1e-6)
    assume(not ((sizes < 1e-6 * sizes[0]) & (sizes > 1e-14 * sizes[0])).any())  # no rank in between
    half = (V * root) @ (V.T @ U[:, sizes > 1e-10 * sizes[0]])  # W⁻¹U
    theta = erasure(X, y, strength=strength, shrinkage=0.0, floor=0).theta
    expected = K - (1 - (1 - strength) ** 2) * N * half @ half.T
    np.testing.assert_allclose(theta.T @ K @ theta, expected, atol=1e-9 * np.linalg.norm(K))


@DRAWS
@given(SEEDS, KINDS, SIZES, st.sampled_from([0.0, 0.5, 1.0]))
def test_the_price_is_that_of_least_squares_for_every_erasing_theta(seed, kind, dimension, shrinkage):
    X, y = task(seed, kind, dimension)
    assume(np.linalg.norm(X.T @ one_hot(y)) > 1e-8 * np.linalg.norm(X))
    found = erasure(X, y, kind="classification", shrinkage=shrinkage)
    rng = np.random.default_rng(seed + 1)
    X_P, Y = rng.normal(size=(40, dimension)), rng.normal(size=(40, 2))

    def loss(features):
        U, s, _ = np.linalg.svd(features, full_matrices=False)
        U = U[:, s > 1e-9 * np.linalg.norm(X_P)]  # all may be erased
        return np.square(Y - U @ (U.T @ Y)).sum() / len(Y)

    rise = loss(X_P @ found.theta) - loss(X_P)
    assert erasure_price(X_P, Y, found.directions) == pytest.approx(rise, rel=1e-6, abs=1e-9)


def test_the_price_where_the_benign_task_is_free_to_move():
    # K_P is zero along the second axis: β moves there so that (1, 1)ᵀβ = 0 costs nothing.
    X_P = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert erasure_price(X_P, [1.0, 2.0], [[1.0], [1.0]]) == 0
    assert erasure_price(X_P, [1.0, 2.0], [[1.0], [0.0]]) == pytest.approx(2.5)  # all of the fit


@pytest.mark.parametrize("unit", [1.0, 1e-6])
def test_it_equals_leace(unit):
    peer = pytest.importorskip("concept_erasure")
    X, y = load_digits(return_X_y=True)
    units = np.where(np.arange(64) % 2, unit, 1.0)
    Z = torch.nn.functional.one_hot(torch.tensor(y)).double()
    theirs = peer.LeaceFitter.fit(
        torch.tensor(X), Z, shrinkage=False, affine=False, constrain_cov_trace=False, svd_tol=1e-9
    )
    theta = erasure(X * units, y, shrinkage=0.0, floor=0).theta * units[:, None] / units
    np.testing.assert_allclose(theta, theirs.eraser.P.T.numpy(), atol=1e-8)


def digits_5_to_9():
    X, y = load_digits(return_X_y=True)
    return X[y >= 5], y[y >= 5] - 5


def variants():
    """Structured inputs of which something could be left in round-off."""
    (X, y), rng = digits_5_to_9(), np.random.default_rng(0)
    bits, noise = (y == 2)[:, None] * 1.0, rng.normal(size=(len(y), 3))
    turned = np.linalg.qr(rng.normal(size=(128, 128)))[0]
    yield "never-lit pixels", X, y
    yield "duplicated and rotated", np.c_[X, X] @ turned, y
    yield "float32, dependent", (X @ turned[:64, :64]).astype(np.float32), y
    yield "pixels in other units", X * 10.0 ** rng.choice([-12, 0, 12], 64), y
    yield "rows of large mean", X + 1e6, y
    yield "label twice, and off", np.c_[bits + 1000, bits, noise, np.full(len(y), 0.1)], y == 2
    yield "label by a sum", np.c_[noise, bits - noise.sum(axis=1, keepdims=True)], y == 2
    yield "label in a difference", np.c_[noise, noise[:, :1] + 1e-9 * bits], y == 2
    yield "one-hot labels", np.c_[np.eye(5)[y], np.eye(5)[y] * 1e-3, noise], y
    yield "few rows", X[:90], y[:90]


@pytest.mark.parametrize(("X", "y"), [pytest.param(X, y, id=name) for name, X, y in variants()])
def test_no_linear_attacker_reads_from_the_eraser_s_rows(X, y):
    found = erasure(X, y)
    F, most = X.astype(float) @ found.theta, np.unique(y, return_counts=True)[1].max() / len(y)
    spread = StandardScaler().fit_transform(F)
    U, s, _ = np.linalg.svd(spread, full_matrices=False)
    white = U[:, s > 1e-7 * s[0]] * np.sqrt(len(U))
    for features in (F, spread, white):
        model = LogisticRegression(max_iter=300).fit(features, y)
        assert model.score(features, y) <= most + 4.5 / len(y)
    assert found.fit_removed == pytest.approx(1)


def test_what_rows_do_not_determine_stays_as_it_is():
    X, y = digits_5_to_9()
    dark = ~X.any(axis=0)
    theta = erasure(X, y).theta
    np.testing.assert_array_equal(theta[dark], np.eye(64)[dark])
    np.testing.assert_array_equal(theta[:, dark], np.eye(64)[:, dark])


@pytest.mark.parametrize("intercept", [True, False])
def test_targets_of_a_regression(intercept):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(50, 4)) + 1, rng.normal(size=(50, 2)) + 3
    theta = erasure(torch.tensor(X), torch.tensor(Y), intercept=intercept).theta
    assert isinstance(theta, torch.Tensor)
    Z = Y - Y.mean(axis=0) if intercept else Y
    assert np.abs(theta.numpy().T @ X.T @ Z).max() < 1e-10


def test_partial_rank_removes_the_best_part_of_the_fit():
    X, y = task(3, "gaussian", 6, classes=5)
    X -= X.mean(axis=0)
    removed = [erasure(X, y, rank=k, shrinkage=0.0).fit_removed for k in (1, 2, 3, 4)]
    assert removed == sorted(removed)
    assert removed[-1] == pytest.approx(1)
    left = X @ erasure(X, y, rank=1, shrinkage=0.0).theta
    Z = one_hot(y)
    fit = [np.square(F @ np.linalg.lstsq(F, Z, rcond=1e-9)[0]).sum() for F in (left, X)]
    assert 1 - fit[0] / fit[1] == pytest.approx(removed[0])


def test_shrinkage_of_few_rows_is_scikit_learn_s():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 10)) @ rng.normal(size=(10, 10))
    found = erasure(X, np.arange(25) % 2)
    assert found.shrinkage == pytest.approx(oas(StandardScaler().fit_transform(X), assume_centered=True)[1])
    assert erasure(rng.normal(size=(100, 10)), np.arange(100) % 2).shrinkage == 0


def test_one_is_the_orthogonal_projector_of_columns_of_one_length():
    X, y = task(5, "gaussian", 5)
    found = erasure(StandardScaler().fit_transform(X), y, shrinkage=1.0)
    Q = found.directions
    np.testing.assert_allclose(found.theta, np.eye(5) - Q @ Q.T, atol=1e-12)


@pytest.mark.parametrize("shrinkage", [None, 0.5])
def test_covariances_give_what_their_rows_give(shrinkage):
    X, y = task(3, "gaussian", 6, classes=4)
    F, Z = X - X.mean(axis=0), one_hot(y)
    found = erasure(covariance=F.T @ F, moment=F.T @ Z, rows=len(X), shrinkage=shrinkage)
    right = erasure(X, y, shrinkage=shrinkage, floor=0)
    np.testing.assert_allclose(found.theta, right.theta, atol=1e-10)
    assert found.fit_removed == pytest.approx(right.fit_removed)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([[1.0], [2.0]], [1, 1]), InvalidInputError, "all 2 labels are of one class, 1"),
        (([[1.0], [1.0], [0.0]], [0.5, -0.5, 0.0]), InvalidInputError, "no linear part"),
        (([[1.0], [2.0]], [0, 1], {"kind": "both"}), UnknownNameError, "both"),
        (([[1.0], [2.0]], [0, 1], {"strength": 1.5}), InvalidInputError, r"strength must lie in \[0, 1\]"),
        (([[1.0], [2.0]], [0, 1], {"shrinkage": "auto"}), InvalidInputError, "shrinkage .* got 'auto'"),
        (([[1.0], [2.0]], None, {"covariance": [[1.0]]}), InvalidInputError, "give harmful_features and"),
        ((None, None, {"covariance": [[1.0]], "moment": [1.0, 1.0]}), InvalidInputError, "moment .* not fit"),
        (([[1.0], [2.0]], [0, 1], {"rank": 2}), InvalidInputError, "rank must be at most 1"),
    ],
)
def test_refused(arguments, error, match):
    *given, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(error, match=match):
        erasure(*given, **options)


@pytest.mark.parametrize("G", [[[0, 0], [1, 1]], [[0, 0], [1, -2]], [[0, 0, 0], [0, 1e-9, 1e9]]], ids=str)
def test_a_price_asks_for_the_span_of_the_directions(G):
    assert erasure_price(np.eye(2), [3, 1], G) == pytest.approx(0.5)
    assert erasure_price(np.eye(2), [3, 1], [[0.0], [0.0]]) == 0
    assert erasure_price(np.eye(2), [3, 1], [[1, 0, 1], [0, 1, 1]]) == pytest.approx(5)


@pytest.mark.parametrize("unit", [1.0, 1e3])
def test_a_floor_removes_what_few_rows_excite_and_would_undo_the_erasure(unit):
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 400)
    X = np.c_[rng.normal(size=(400, 4)) + 2 * y[:, None], np.zeros(400)]
    X[0, 4] = 3.0 * unit  # a rare pixel: one row of the defender's
    defender, attacker, fresh = slice(0, 150), slice(150, 300), slice(300, 400)

    def accuracy(theta):
        F, Z = X[attacker] @ theta, 2.0 * y[attacker] - 1
        W = np.linalg.lstsq(np.c_[F, np.ones(150)], Z, rcond=1e-10)[0]
        return ((np.c_[X[fresh] @ theta, np.ones(100)] @ W > 0) == y[fresh]).mean()

    plain = erasure(X[defender], y[defender], floor=0)
    floored = erasure(X[defender], y[defender])
    assert accuracy(np.eye(5)) > 0.8
    assert accuracy(plain.theta) == accuracy(np.eye(5))  # the pixel is free to these rows
    assert accuracy(floored.theta) < 0.7
    assert (plain.directions.shape, floored.directions.shape) == ((5, 1), (5, 2))
    assert plain.rank == floored.rank == 1
    np.testing.assert_allclose(floored.theta.T @ floored.directions, 0, atol=1e-12 * unit)
    with pytest.raises(InvalidInputError, match=r"floor must lie in \[0, 1\], got -1"):
        erasure(X, y, floor=-1)
