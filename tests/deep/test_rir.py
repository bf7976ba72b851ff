"""Eq. 17: known answers, the dense definition, both conventions, warnings, and bad input."""

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import ImageFeatures, open_images, rir_from_features, rir_theta0
from condnum.errors import InvalidInputError, RankError
from condnum.theory.kappa import Clauses


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


def features(X, indices=None):
    """Features that know of which images they are."""
    order = np.arange(len(X)) if indices is None else indices
    return ImageFeatures(X.astype(np.float32), np.zeros(len(X), int), order, ("a", "b"))


@pytest.mark.parametrize(("N", "D"), [(20, 50), (40, 12)], ids=["wide", "tall"])
def test_each_group_is_that_of_the_dense_hessian_and_the_mean_is_of_ratios(N, D):
    generator, rows = np.random.default_rng(1), (4 * N, 4 * N, 3 * N, 3 * N)
    spreads = (9, 2, 1, 7)
    X = [generator.normal(size=(n, D)) * np.geomspace(1, s, D) for n, s in zip(rows, spreads, strict=True)]
    options = {"groups": 3, "group_size": N, "seed": 5, "ridge": 0.1}
    result = rir_from_features(*X, **options)
    orders = [np.random.default_rng([5, stream]).permutation(rows[2 * stream]) for stream in (0, 1)]
    drawn = [order[: 3 * N].reshape(3, N) for order in orders]
    # features of each model have mean square 1 over the groups of both tasks, which the ridge alone would see
    squares = [np.mean(x[drawn[k // 2]] ** 2) for k, x in enumerate(X)]
    scales = [(squares[k] + squares[k + 2]) / 2 for k in (0, 1)] * 2
    for found, ridge in ((result.compact, None), (result.ridge, 0.1)):
        kappas = np.array(
            [[dense_kappa(x[g] / np.sqrt(scales[k]), ridge) for g in drawn[k // 2]] for k, x in enumerate(X)]
        )
        assert found.kappas == pytest.approx(kappas, rel=1e-8)
        assert found.ranks.tolist() == [[min(N, D)] * 3] * 4
        harmful, benign = kappas[3] / kappas[2], kappas[1] / kappas[0]
        ratios = {"harmful_ratio": harmful, "benign_ratio": benign, "rir": harmful / benign}
        for name, values in ratios.items():
            assert getattr(found, name) == pytest.approx(values.mean())
            assert getattr(found, f"{name}_std") == pytest.approx(values.std(ddof=1))
    assert result.rir == result.compact.rir
    assert any(f"N = {N} samples of D = {D}" in sentence for sentence in result.warnings) == (N < D)
    grown = rir_from_features(X[0], 7 * X[1], X[2], 7 * X[3], **options)
    assert grown.compact.kappas == pytest.approx(result.compact.kappas)
    assert grown.ridge.kappas == pytest.approx(result.ridge.kappas)


def test_float32_keeps_a_large_condition_number():
    # κ(H) = 1e6 is κ(X) = 1e3: well within float32, and a tolerance of D·eps on H would cut it.
    X = with_spectrum(np.geomspace(1e6, 1, 30), 100).astype(np.float32)
    full = rir_from_features(X, X, X, X, groups=1, group_size=100)
    assert full.compact.kappas[0, 0] == pytest.approx(1e6, rel=1e-2)
    assert full.compact.ranks[0, 0] == 30
    assert not full.warnings


def test_overlapping_groups_and_a_change_of_rank_are_warned_of():
    X = np.random.default_rng(0).normal(size=(50, 3))
    many = np.random.default_rng(0).normal(size=(500, 3))
    (warning,) = rir_from_features(X, X, many, many, groups=10, group_size=20).warnings
    assert warning.startswith("D_P has too few images for groups without overlap")
    collapsed = X.copy()
    collapsed[:, 2] = collapsed[:, 1]
    result = rir_from_features(X, X, X, collapsed, groups=1, group_size=50)
    assert any("rank differs between θ₀ and θ_I in 1 of 1" in sentence for sentence in result.warnings)


@pytest.mark.parametrize(
    ("counts", "groups", "known"),
    [
        ((24, 24), 1, set()),
        ((24, 90), 20, {"harmful_ratio", "rir"}),
        ((90, 24), 20, {"benign_ratio", "rir"}),
    ],
)
def test_groups_that_are_the_same_images_have_no_spread(counts, groups, known):
    """20 groups of the same 24 images were reported as ± 5e-13, the round-off of their order."""
    generator = np.random.default_rng(0)
    pairs = [(generator.normal(size=(n, 6)), generator.normal(size=(n, 6))) for n in counts]
    first, other = (rir_from_features(*pairs[0], *pairs[1], group_size=24, seed=seed) for seed in (0, 1))
    assert first.groups == first.compact.kappas.shape[1] == groups
    for found in (first.compact, first.ridge):
        ratios = ("harmful_ratio", "benign_ratio", "rir")
        assert {name for name in ratios if np.isfinite(getattr(found, f"{name}_std"))} == known
    assert "24 images, so there is no spread" in " ".join(first.warnings)
    assert (first.rir == other.rir) == (groups == 1)  # one group, whatever the draw


X = np.random.default_rng(0).normal(size=(150, 4))
BROKEN = np.where(np.arange(4) == 0, np.nan, X)
BACKWARDS = np.arange(150)[::-1]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            (X, X, X[:99], X[:99]),
            {},
            InvalidInputError,
            r"D_H has 99 image\(s\), fewer.*lower group_size \(--group-size\)",
        ),
        ((X, X[1:], X, X), {}, InvalidInputError, "150 rows on D_P and θ_I has 149"),
        ((X, X, features(X), features(X, indices=BACKWARDS)), {}, InvalidInputError, "different images"),
        ((X, X, X[:, :3], X), {}, InvalidInputError, "use the same model for both"),
        ((X[0], X, X, X), {}, InvalidInputError, r"must be \(N, D\)"),
        ((X, X, X, BROKEN), {}, InvalidInputError, "features of D_H hold NaN"),
        ((X, X, X, 0 * X), {}, RankError, "rank 0"),
    ],
)
def test_bad_input(arguments, options, error, message):
    with pytest.raises(error, match=message):
        rir_from_features(*arguments, **options)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_with_gradients_are_measured(kind):
    X = torch.tensor(np.random.default_rng(0).normal(size=(60, 3)), dtype=kind, requires_grad=True)
    scale = torch.tensor([1.0, 0.5, 2.0], dtype=kind)
    found = rir_from_features(X, X, X, X * scale, groups=1, group_size=60)
    plain = X.detach().double().numpy()
    right = rir_from_features(plain, plain, plain, plain * scale.double().numpy(), groups=1, group_size=60)
    assert found.rir == pytest.approx(right.rir, rel=1e-12)
    with pytest.raises(InvalidInputError, match=r"real numbers, got shape .* and type <U1"):
        rir_from_features(X, X, X, np.full((60, 3), "a"), groups=1, group_size=60)


def test_a_model_against_itself_is_refused():
    data, model = open_images("digits-8x8:0-4"), nn.Linear(2, 2)
    for other in (model, nn.Sequential(model)):
        with pytest.raises(InvalidInputError, match=r"share trainable parameters.*keep a copy"):
            rir_theta0(model, other, data, data)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_rotation_decides_clauses_as_it_does_everywhere(kind):
    generator = np.random.default_rng(2)
    Q = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    P, H = (generator.normal(size=(60, 4)).astype(kind) for _ in range(2))
    measured = rir_from_features(P, (P @ Q).astype(kind), H, (H @ Q).astype(kind), group_size=60)
    for found in (measured.compact, measured.ridge):
        assert found.clauses == Clauses(False, True, None)
        assert (found.clauses.met, found.success) == (False, False)
