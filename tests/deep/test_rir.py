"""Eq. 17: known answers, the dense definition, both conventions, warnings, and bad input."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import (
    Features,
    evaluation_transform,
    extract_features,
    open_images,
    rir_from_features,
    rir_theta0,
)
from condnum.errors import InvalidInputError, RankError, UnknownNameError


def with_spectrum(sigma, rows, seed=0):
    """Features whose Hessian `XᵀX` has this spectrum in every group that is all of the rows."""
    generator = np.random.default_rng(seed)
    Q = np.linalg.qr(generator.normal(size=(rows, len(sigma))))[0]
    V = np.linalg.qr(generator.normal(size=(len(sigma), len(sigma))))[0]
    return Q * np.sqrt(sigma) @ V.T


def dense_kappa(X, ridge=None):
    """Condition number of the full D×D Hessian by its own definition."""
    sigma = np.linalg.eigvalsh(X.T @ X)[::-1]
    if ridge is not None:
        return (sigma[0] + ridge) / (max(sigma[-1], 0) * (len(X) >= X.shape[1]) + ridge)
    return sigma[0] / sigma[min(X.shape) - 1]


def features(X, precision="float32", indices=None):
    """Features that know in which precision, and of which images, they were computed."""
    order = np.arange(len(X)) if indices is None else indices
    return Features(X.astype(np.float32), np.zeros(len(X), int), order, ("a", "b"), precision=precision)


def test_four_spectra_chosen_by_hand():
    # κ: D_P 8 → 4, D_H 10 → 60, so (i) = 6, (ii) = 1/2, RIR = 12.
    spectra = ([8.0, 2.0, 1.0], [4.0, 3.0, 1.0], [20.0, 5.0, 2.0], [30.0, 7.0, 0.5])
    X = [with_spectrum(sigma, 40, seed) for seed, sigma in enumerate(spectra)]
    result = rir_from_features(*X, groups=1, group_size=40)
    assert (result.harmful_ratio, result.pretrain_ratio, result.rir) == pytest.approx((6, 0.5, 12))
    assert result.compact.kappas[:, 0] == pytest.approx([8, 4, 10, 60])
    assert result.compact.ranks.tolist() == [[3]] * 4
    assert result.compact.success
    assert np.isnan(result.compact.rir_std)
    assert result.warnings == ()


def test_each_group_equals_the_dense_hessian_and_the_mean_is_of_ratios():
    generator = np.random.default_rng(1)
    sizes = ((60, 9), (60, 2), (80, 1), (80, 7))
    X = [generator.normal(size=(n, 30)) * np.geomspace(1, s, 30) for n, s in sizes]
    result = rir_from_features(*X, groups=3, group_size=20, seed=5)
    drawn = [np.random.default_rng([5, k]).permutation(n)[:60].reshape(3, 20) for k, n in ((0, 60), (1, 80))]
    kappas = np.array([[dense_kappa(x[g]) for g in drawn[k // 2]] for k, x in enumerate(X)])
    found = result.compact
    assert found.kappas == pytest.approx(kappas, rel=1e-8)
    harmful, pretrain = kappas[3] / kappas[2], kappas[1] / kappas[0]
    assert found.rir == pytest.approx((harmful / pretrain).mean())
    for name, values in (
        ("rir", harmful / pretrain),
        ("harmful_ratio", harmful),
        ("pretrain_ratio", pretrain),
    ):
        assert getattr(found, f"{name}_std") == pytest.approx(values.std(ddof=1))


def test_ridge_with_fewer_samples_than_features_sees_a_zero_eigenvalue():
    generator = np.random.default_rng(2)
    X = generator.normal(size=(4, 20, 50)) * np.array([1, 2, 1, 3])[:, None, None]
    result = rir_from_features(*X, groups=1, group_size=20, ridge=0.1, gauge="as_trained")
    assert result.ridge.kappas[:, 0] == pytest.approx([dense_kappa(x, ridge=0.1) for x in X])
    assert result.ridge.sigma_min.max() == 0
    assert result.compact.ranks.tolist() == [[20]] * 4
    assert any("N = 20 samples of D = 50" in sentence for sentence in result.warnings)


def test_scale_of_the_features_is_a_gauge():
    X = np.random.default_rng(3).normal(size=(4, 40, 60))
    grown = (X[0], 7 * X[1], X[2], 7 * X[3])
    plain, scaled = (rir_from_features(*x, groups=2, group_size=20) for x in (X, grown))
    assert scaled.rir == pytest.approx(plain.rir)
    assert scaled.harmful_ratio == pytest.approx(plain.harmful_ratio)
    assert scaled.ridge.harmful_ratio == pytest.approx(plain.ridge.harmful_ratio)
    trained = rir_from_features(*grown, groups=2, group_size=20, gauge="as_trained")
    assert trained.ridge.harmful_ratio > 40  # it grows with the square of the scale
    assert trained.ridge.rir == pytest.approx(plain.ridge.rir, rel=1e-6)


def test_float32_keeps_a_large_condition_number_and_mixed_precision_is_warned_of():
    # κ(H) = 1e6 is κ(X) = 1e3: well within float32, and a tolerance of D·eps on H would cut it.
    X = with_spectrum(np.geomspace(1e6, 1, 30), 100).astype(np.float32)
    full = rir_from_features(X, X, X, X, groups=1, group_size=100)
    assert full.compact.kappas[0, 0] == pytest.approx(1e6, rel=1e-2)
    assert full.compact.ranks[0, 0] == 30
    assert not full.warnings
    half = rir_from_features(*[features(X, "bfloat16")] * 4, groups=1, group_size=100)
    assert "in 4 of 4 spectra" in half.warnings[0]
    assert "mixed precision" in half.warnings[0]


def test_overlapping_groups_and_a_change_of_rank_are_warned_of():
    X = np.random.default_rng(0).normal(size=(50, 3))
    many = np.random.default_rng(0).normal(size=(500, 3))
    (warning,) = rir_from_features(X, X, many, many, groups=10, group_size=20).warnings
    assert warning.startswith("D_P has too few images for groups without overlap")
    collapsed = X.copy()
    collapsed[:, 2] = collapsed[:, 1]
    result = rir_from_features(X, X, X, collapsed, groups=1, group_size=50)
    assert any("rank differs between θ₀ and θ_I in 1 of 1" in sentence for sentence in result.warnings)


X = np.random.default_rng(0).normal(size=(150, 4))
BROKEN = np.where(np.arange(4) == 0, np.nan, X)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            (X, X, X[:99], X[:99]),
            {},
            InvalidInputError,
            r"D_H has 99 image\(s\), fewer than one group of 100",
        ),
        ((X, X[1:], X, X), {}, InvalidInputError, "150 rows on D_P and θ_I 149"),
        (
            (X, X, features(X), features(X, indices=np.arange(150)[::-1])),
            {},
            InvalidInputError,
            "different images",
        ),
        ((X, X, X[:, :3], X), {}, InvalidInputError, "use one model for both"),
        ((X[0], X, X, X), {}, InvalidInputError, r"array \(N, D\)"),
        ((X, X, X, BROKEN), {}, InvalidInputError, "features of D_H hold NaN"),
        ((X, X, X, 0 * X), {}, RankError, "rank 0"),
        ((X, X, X, X), {"groups": 0}, InvalidInputError, "groups must be an integer of at least 1"),
        ((X, X, X, X), {"group_size": True}, InvalidInputError, "group_size must be an integer"),
        ((X, X, X, X), {"ridge": 0.0}, InvalidInputError, "ridge"),
        ((X, X, X, X), {"gauge": "mine"}, UnknownNameError, "gauge"),
    ],
)
def test_bad_input(arguments, options, error, message):
    with pytest.raises(error, match=message):
        rir_from_features(*arguments, **options)


def test_a_linear_net_on_digits_is_eq_17_of_its_features(tmp_path):
    tasks = open_images("digits-8x8:0-4"), open_images("digits-8x8:5-9")
    transform = evaluation_transform(input_size=8, crop_pct=1.0)
    theta_0 = nn.Sequential(nn.Flatten(), nn.Linear(192, 12))
    theta_I = copy.deepcopy(theta_0)
    with torch.no_grad():
        theta_0[1].weight.copy_(torch.randn(12, 192, generator=torch.Generator().manual_seed(0)) / 14)
        theta_I[1].weight.copy_(theta_0[1].weight)
        theta_I[1].weight[0] *= 10
    options = {"groups": 4, "group_size": 50}
    result = rir_theta0(theta_0, theta_I, *tasks, transform=transform, cache=tmp_path, **options)
    # Only 220 images of each task are run: 4·50 and a tenth in reserve.
    stored = [np.load(p, mmap_mode="r").shape for p in tmp_path.glob("*.npy") if ".rows" not in p.name]
    assert stored == [(220, 12)] * 4
    assert (result.compact.kappas[1] > 2 * result.compact.kappas[0]).all()
    found = []
    for stream, data in enumerate(tasks):
        drawn = np.sort(np.random.default_rng([0, stream, 1]).permutation(len(data))[:220])
        found += [extract_features(theta, data.take(drawn), transform) for theta in (theta_0, theta_I)]
    direct = rir_from_features(*found, **options)
    assert result.compact.kappas == pytest.approx(direct.compact.kappas, rel=1e-4)
    assert result.rir == pytest.approx(direct.rir, rel=1e-4)


def test_a_model_against_itself_is_refused():
    data, model = open_images("digits-8x8:0-4"), nn.Linear(2, 2)
    for other in (model, nn.Sequential(model)):
        with pytest.raises(InvalidInputError, match=r"share trainable parameters.*keep a copy"):
            rir_theta0(model, other, data, data)
