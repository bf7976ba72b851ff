"""Eq. 17: known answers, the dense definition, both conventions, warnings, and bad input."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import evaluation_transform, extract_features, open_images, rir_from_features, rir_theta0
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


class TestKnownAnswers:
    def test_four_spectra_chosen_by_hand(self):
        # κ: D_P 8 → 4, D_H 10 → 60, so (i) = 6, (ii) = 1/2, RIR = 12.
        spectra = ([8.0, 2.0, 1.0], [4.0, 3.0, 1.0], [20.0, 5.0, 2.0], [30.0, 7.0, 0.5])
        X = [with_spectrum(sigma, 40, seed) for seed, sigma in enumerate(spectra)]
        result = rir_from_features(*X, groups=1, group_size=40)
        assert result.harmful_ratio == pytest.approx(6)
        assert result.pretrain_ratio == pytest.approx(0.5)
        assert result.rir == pytest.approx(12)
        assert result.compact.kappas[:, 0] == pytest.approx([8, 4, 10, 60])
        assert result.compact.ranks.tolist() == [[3]] * 4
        assert result.compact.success
        assert np.isnan(result.compact.rir_std)
        assert result.warnings == ()

    def test_each_group_equals_the_dense_hessian_and_the_mean_is_of_ratios(self):
        generator = np.random.default_rng(1)
        X = [
            generator.normal(size=(n, 30)) * np.geomspace(1, s, 30)
            for n, s in ((60, 9), (60, 2), (80, 1), (80, 7))
        ]
        result = rir_from_features(*X, groups=3, group_size=20, seed=5)
        rows_P = np.random.default_rng([5, 0]).permutation(60)[:60].reshape(3, 20)
        rows_H = np.random.default_rng([5, 1]).permutation(80)[:60].reshape(3, 20)
        kappas = np.array(
            [
                [dense_kappa(x[g]) for g in rows]
                for x, rows in zip(X, (rows_P, rows_P, rows_H, rows_H), strict=True)
            ]
        )
        assert result.compact.kappas == pytest.approx(kappas, rel=1e-8)
        harmful, pretrain = kappas[3] / kappas[2], kappas[1] / kappas[0]
        assert result.rir == pytest.approx((harmful / pretrain).mean())
        assert result.compact.rir_std == pytest.approx((harmful / pretrain).std(ddof=1))
        assert result.compact.harmful_ratio_std == pytest.approx(harmful.std(ddof=1))
        assert result.compact.pretrain_ratio_std == pytest.approx(pretrain.std(ddof=1))


class TestConventions:
    def test_ridge_with_fewer_samples_than_features_sees_a_zero_eigenvalue(self):
        generator = np.random.default_rng(2)
        X = generator.normal(size=(4, 20, 50)) * np.array([1, 2, 1, 3])[:, None, None]
        result = rir_from_features(*X, groups=1, group_size=20, ridge=0.1, gauge="as_trained")
        expected = [dense_kappa(x, ridge=0.1) for x in X]
        assert result.ridge.kappas[:, 0] == pytest.approx(expected)
        assert result.ridge.sigma_min.max() == 0
        assert result.compact.ranks.tolist() == [[20]] * 4
        assert any("N = 20 samples of D = 50" in sentence for sentence in result.warnings)

    def test_scale_of_the_features_is_a_gauge(self):
        X = np.random.default_rng(3).normal(size=(4, 40, 60))
        plain = rir_from_features(*X, groups=2, group_size=20)
        grown = rir_from_features(X[0], 7 * X[1], X[2], 7 * X[3], groups=2, group_size=20)
        assert grown.rir == pytest.approx(plain.rir)
        assert grown.harmful_ratio == pytest.approx(plain.harmful_ratio)
        assert grown.ridge.harmful_ratio == pytest.approx(plain.ridge.harmful_ratio)
        trained = rir_from_features(
            X[0], 7 * X[1], X[2], 7 * X[3], groups=2, group_size=20, gauge="as_trained"
        )
        assert trained.ridge.harmful_ratio == pytest.approx(49 * trained.ridge.harmful_ratio / 49)
        assert trained.ridge.harmful_ratio > 40  # and grows with the square of the scale
        assert trained.ridge.rir == pytest.approx(plain.ridge.rir, rel=1e-6)

    def test_float32_features_keep_a_large_condition_number(self):
        # κ(H) = 1e6 is κ(X) = 1e3: well within float32, and a tolerance of D·eps on H would cut it.
        X = with_spectrum(np.geomspace(1e6, 1, 30), 100).astype(np.float32)
        result = rir_from_features(X, X, X, X, groups=1, group_size=100)
        assert result.compact.kappas[0, 0] == pytest.approx(1e6, rel=1e-2)
        assert result.compact.ranks[0, 0] == 30


class TestWarnings:
    def test_overlap(self):
        X = np.random.default_rng(0).normal(size=(50, 3))
        many = np.random.default_rng(0).normal(size=(500, 3))
        result = rir_from_features(X, X, many, many, groups=10, group_size=20)
        assert len(result.warnings) == 1
        assert result.warnings[0].startswith("D_P has too few images for groups without overlap")

    def test_round_off_of_mixed_precision(self):
        X = with_spectrum(np.geomspace(1e9, 1, 20), 60).astype(np.float32)
        full = rir_from_features(X, X, X, X, groups=1, group_size=60)
        half = rir_from_features(
            *[_features(X, "bfloat16") for _ in range(4)],
            groups=1,
            group_size=60,
        )
        assert not full.warnings
        assert "in 4 of 4 spectra" in half.warnings[0]
        assert "mixed precision" in half.warnings[0]

    def test_rank_change(self):
        X = with_spectrum([4.0, 2.0, 1.0], 30)
        collapsed = X.copy()
        collapsed[:, 2] = collapsed[:, 1]
        result = rir_from_features(X, X, X, collapsed, groups=1, group_size=30)
        assert any("rank differs between θ₀ and θ_I in 1 of 1" in sentence for sentence in result.warnings)


class TestBadInput:
    X = np.random.default_rng(0).normal(size=(150, 4))

    def test_fewer_images_than_a_group(self):
        with pytest.raises(InvalidInputError, match=r"D_H has 99 image\(s\), fewer than one group of 100"):
            rir_from_features(self.X, self.X, self.X[:99], self.X[:99])

    def test_rows_that_do_not_correspond(self):
        with pytest.raises(InvalidInputError, match="150 rows on D_P and θ_I 149"):
            rir_from_features(self.X, self.X[1:], self.X, self.X)
        shuffled = _features(self.X, indices=np.arange(150)[::-1])
        with pytest.raises(InvalidInputError, match="different images"):
            rir_from_features(self.X, self.X, _features(self.X), shuffled)
        with pytest.raises(InvalidInputError, match="one number of features"):
            rir_from_features(self.X, self.X, self.X[:, :3], self.X)
        with pytest.raises(InvalidInputError, match=r"array \(N, D\)"):
            rir_from_features(self.X[0], self.X, self.X, self.X)

    def test_values(self):
        broken = self.X.copy()
        broken[:, 0] = np.nan
        with pytest.raises(InvalidInputError, match="features of D_H hold NaN"):
            rir_from_features(self.X, self.X, self.X, broken)
        with pytest.raises(RankError, match="rank 0"):
            rir_from_features(self.X, self.X, self.X, 0 * self.X)

    @pytest.mark.parametrize("options", [{"groups": 0}, {"group_size": 1}, {"groups": True}, {"ridge": 0.0}])
    def test_options(self, options):
        with pytest.raises(InvalidInputError):
            rir_from_features(self.X, self.X, self.X, self.X, **options)
        with pytest.raises(UnknownNameError, match="gauge"):
            rir_from_features(self.X, self.X, self.X, self.X, gauge="mine")


class TestModels:
    def test_a_linear_net_on_digits_is_eq_17_of_its_features(self, tmp_path):
        D_P, D_H = open_images("digits-8x8:0-4"), open_images("digits-8x8:5-9")
        transform = evaluation_transform(input_size=8, crop_pct=1.0)
        generator = torch.Generator().manual_seed(0)
        theta_0 = nn.Sequential(nn.Flatten(), nn.Linear(192, 12))
        with torch.no_grad():
            theta_0[1].weight.copy_(torch.randn(12, 192, generator=generator) / 14)
        theta_I = copy.deepcopy(theta_0)
        with torch.no_grad():
            theta_I[1].weight[0] *= 10
        result = rir_theta0(
            theta_0, theta_I, D_P, D_H, groups=4, group_size=50, transform=transform, cache=tmp_path
        )
        # Only 220 images of each task are run: 4·50 and a tenth in reserve.
        stored = [np.load(p, mmap_mode="r").shape for p in tmp_path.glob("*.npy") if ".rows" not in p.name]
        assert stored == [(220, 12)] * 4
        assert result.dimension == 12
        assert (result.compact.kappas[1] > 2 * result.compact.kappas[0]).all()
        direct = rir_from_features(
            *[
                extract_features(theta, _sample(data, 220, stream), transform)
                for stream, data in enumerate((D_P, D_H))
                for theta in (theta_0, theta_I)
            ],
            groups=4,
            group_size=50,
        )
        assert result.compact.kappas == pytest.approx(direct.compact.kappas, rel=1e-4)
        assert result.rir == pytest.approx(direct.rir, rel=1e-4)

    def test_a_model_against_itself_is_refused(self):
        data = open_images("digits-8x8:0-4")
        model = nn.Linear(2, 2)
        with pytest.raises(InvalidInputError, match="with itself; keep a copy"):
            rir_theta0(model, model, data, data)
        with pytest.raises(InvalidInputError, match="share trainable parameters"):
            rir_theta0(model, nn.Sequential(model), data, data)


def _sample(data, count, stream):
    """The images that `rir_theta0` draws for a task."""
    return data.take(np.sort(np.random.default_rng([0, stream, 1]).permutation(len(data))[:count]))


def _features(X, precision="float32", indices=None):
    """Features that know in which precision, and of which images, they were computed."""
    from condnum.deep import Features

    order = np.arange(len(X)) if indices is None else indices
    return Features(X.astype(np.float32), np.zeros(len(X), int), order, ("a", "b"), precision=precision)
