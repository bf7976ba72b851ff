"""Notebook 5's analysis: against hand-derived values and the library's dense references."""

import math

import numpy as np
import pytest
import scipy.linalg

from condnum.audit.measures import MAP_SIZE
from condnum.errors import DataNotFoundError, InvalidInputError, RankError, UnknownNameError
from condnum.lessons.own_data import own_data
from condnum.probing import linear_probe


@pytest.fixture
def files(tmp_path):
    def write(P, H):
        paths = {}
        for name, X in (("pretrain", P), ("harmful", H)):
            paths[name] = str(tmp_path / f"{name}.npy")
            np.save(paths[name], X)
        return paths

    return write


def test_numbers_by_hand(files):
    # K_P = diag(100, 1), K_H = diag(2, 1): the pencil has 2/100 and 1, so RIR_max = 50·100/2.
    paths = files(np.diag([10.0, 1.0]), np.diag([math.sqrt(2), 1.0]))
    result = own_data(**paths, ridge=1.0)
    assert result.pretrain.compact.value == pytest.approx(100)
    assert result.harmful.compact.value == pytest.approx(2)
    assert result.pretrain.ridge.value == pytest.approx(101 / 2)
    assert result.ceiling == pytest.approx(2500)
    assert (result.harmful_ratio, result.pretrain_ratio) == (pytest.approx(25), pytest.approx(0.01))
    assert result.misalignment == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(result.overlaps, np.eye(2), atol=1e-12)
    assert result.title == "pretrain.npy and harmful.npy"
    assert result.warnings == ()


def test_against_dense_references(files):
    rng = np.random.default_rng(3)
    P, H = rng.normal(size=(40, 6)) * np.geomspace(1, 0.1, 6), rng.normal(size=(30, 6))
    result = own_data(**files(P, H), goal=0.01)
    K_P, K_H = P.T @ P, H.T @ H
    pencil = scipy.linalg.eigh(K_H, K_P, eigvals_only=True)
    expected = pencil[-1] / pencil[0] * np.linalg.cond(K_P) / np.linalg.cond(K_H)
    assert result.ceiling == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(result.harmful.sigma, np.linalg.eigvalsh(K_H)[::-1], rtol=1e-9)
    Q_P, Q_H = (np.linalg.eigh(K)[1][:, ::-1] for K in (K_P, K_H))
    np.testing.assert_allclose(result.overlaps, (Q_P.T @ Q_H) ** 2, atol=1e-9)
    w = np.random.default_rng(0).normal(size=6)
    curve = linear_probe(np.eye(6), K_H, K_H @ w, steps=1000)  # every step recorded
    assert result.costs[2] == int(np.argmax(curve.norm_ratio <= 0.01)) > 1
    assert result.costs[1] == 1  # κ(H_P(θ*)) = 1


def test_null_spaces_make_the_ceiling_infinite_and_are_told(files):
    result = own_data(**files(np.diag([2.0, 1.0, 0.0]), np.diag([1.0, 2.0, 3.0])))
    assert (result.pretrain.compact.rank, result.harmful_only, result.ceiling) == (2, 1, math.inf)
    assert math.isfinite(result.ridge_limit)
    text = " ".join(result.warnings)
    assert "K_P has rank 2 of 3" in text
    assert "X_H excites 1 direction" in text
    assert "column(s) of zeros (x2)" in text


def test_near_tolerance_ranks_are_told_and_follow_the_tolerance(files):
    paths = files(np.diag([1.0, 1.0, 1e-7]), np.eye(3))  # σ₃ of K_P is 1e-14, D·eps = 6.7e-16
    result = own_data(**paths)
    assert (result.pretrain.compact.rank, result.pretrain.near, result.harmful.near) == (3, 1, 0)
    assert any("decided by round-off" in note for note in result.warnings)
    looser = own_data(**paths, tolerance=1e3)
    assert (looser.pretrain.compact.rank, looser.pretrain.compact.value) == (2, pytest.approx(1))


def test_float32_files_get_the_tolerance_of_float32(files):
    X = np.diag([1.0, 1e-2, 1e-4])  # σ₃ of K is 1e-8, below 3·eps of float32
    assert own_data(**files(X, np.eye(3))).pretrain.compact.rank == 3
    assert own_data(**files(X.astype(np.float32), np.eye(3))).pretrain.compact.rank == 2


def test_standardised_columns_have_no_units(files):
    rng = np.random.default_rng(1)
    P, H = rng.normal(size=(50, 3)), rng.normal(size=(50, 3))
    units = np.array([1.0, 1000.0, 0.01])
    plain = own_data(**files(P, H), standardise=True).pretrain.compact.value
    scaled = own_data(**files(P * units, H * units), standardise=True).pretrain.compact.value
    assert scaled == pytest.approx(plain)
    assert own_data(**files(P * units, H * units)).pretrain.compact.value > 1e6 * plain


def test_a_file_written_again_is_read_again(files):
    first = own_data(**files(np.diag([3.0, 1.0]), np.eye(2)))
    second = own_data(**files(np.diag([5.0, 1.0]) @ np.eye(2)[::-1], np.eye(2)))
    assert first.pretrain.compact.value == pytest.approx(9)
    assert second.pretrain.compact.value == pytest.approx(25)


def test_wide_features_are_shown_in_blocks(files):
    rng = np.random.default_rng(5)
    result = own_data(**files(rng.normal(size=(90, 100)), rng.normal(size=(200, 100))), steps=1000)
    assert result.overlaps.shape == (MAP_SIZE, MAP_SIZE)
    np.testing.assert_allclose(result.overlaps.sum(axis=1), 1)  # shares of whole row blocks
    assert result.pretrain.sigma.shape == (100,)
    assert any("(90 < 100)" in note for note in result.warnings)


def test_a_probe_that_does_not_arrive():
    assert own_data(example="digits", goal=1e-6).costs == (-1, 1, -1, -1)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"pretrain": "x.npy"}, InvalidInputError, "X_H is still missing"),
        ({"harmful": "x.npy"}, InvalidInputError, "X_P is still missing"),
        ({"pretrain": "x.npy", "harmful": "x.npy"}, DataNotFoundError, "No such file"),
        ({"example": "mnist"}, UnknownNameError, "did you mean|diabetes, digits"),
        ({"drop": "height"}, UnknownNameError, "unknown column to leave out"),
        ({"goal": 1.0}, InvalidInputError, "goal must lie between"),
        ({"tolerance": 0.0}, InvalidInputError, "tolerance must be positive"),
        ({"tolerance": 1e15}, InvalidInputError, "above everything"),
        ({"ridge": -1.0}, InvalidInputError, "ridge must be positive"),
    ],
)
def test_bad_settings(settings, error, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        own_data(**settings)


def test_zeros_strangers_and_very_wide_features(files):
    with pytest.raises(RankError, match="K_P has rank 0"):
        own_data(**files(np.zeros((4, 2)), np.eye(2)))
    with pytest.raises(RankError, match="share no direction"):
        own_data(**files(np.diag([1.0, 0.0]), np.diag([0.0, 1.0])))
    with pytest.raises(InvalidInputError, match="above the limit of 2,048"):
        own_data(**files(np.ones((3, 2049)), np.ones((3, 2049))))
