"""Eq. 17: known answers, the dense definition, averages and conventions; SGRC, RFD, the path of a head."""

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import ImageFeatures, open_images, rfd, rir_from_features, rir_theta0, sgrc
from condnum.deep.measure import DESCENT_STEPS, descent_path, path_slowdown
from condnum.errors import CondnumError
from condnum.theory.kappa import Clauses


@pytest.fixture
def drawn():
    return np.random.default_rng(0)


def dense_kappa(K, rank, ridge=None):
    """Condition number of a full D×D Hessian by its own definition."""
    sigma = np.linalg.eigvalsh(K)[::-1]
    if ridge is not None:
        return (sigma[0] + ridge) / (sigma[-1] * (rank == len(K)) + ridge)
    return sigma[0] / sigma[rank - 1]


def features(X, labels=None, indices=None):
    """Features that know of which images they are."""
    y = np.zeros(len(X), int) if labels is None else labels
    return ImageFeatures(X.astype(np.float32), y, np.arange(len(X)) if indices is None else indices)


@pytest.mark.parametrize(("N", "D"), [(20, 50), (40, 12)], ids=["wide", "tall"])
def test_groups_and_averages_are_those_of_the_dense_hessian(N, D, drawn):
    rows, spreads = (4 * N, 4 * N, 3 * N, 3 * N), (9, 2, 1, 7)
    X = [drawn.normal(size=(n, D)) * np.geomspace(1, s, D) for n, s in zip(rows, spreads, strict=True)]
    options = {"groups": 3, "group_size": N, "seed": 5, "ridge": 0.1}
    result = rir_from_features(*X, **options)
    orders = [np.random.default_rng([5, stream]).permutation(rows[2 * stream]) for stream in (0, 1)]
    chosen = [order[: 3 * N].reshape(3, N) for order in orders]
    K = [np.stack([x[g].T @ x[g] for g in chosen[k // 2]]) for k, x in enumerate(X)]
    # features of each model have mean square 1 over the groups of both tasks, which the ridge alone would see
    squares = [np.mean(x[chosen[k // 2]] ** 2) for k, x in enumerate(X)]
    scales = [(squares[k] + squares[k + 2]) / 2 for k in (0, 1)] * 2
    scaled = [of / scale for of, scale in zip(K, scales, strict=True)]
    for ridge, each, averaged in (
        (None, result.compact, result.averaged),
        (0.1, result.ridge, result.averaged_ridge),
    ):
        kappas = np.array([[dense_kappa(one, min(N, D), ridge) for one in of] for of in scaled])
        assert each.kappas == pytest.approx(kappas, rel=1e-8)
        assert each.ranks.tolist() == [[min(N, D)] * 3] * 4
        harmful, benign = kappas[3] / kappas[2], kappas[1] / kappas[0]
        ratios = {"harmful_ratio": harmful, "benign_ratio": benign, "rir": harmful / benign}
        for name, values in ratios.items():
            assert getattr(each, name) == pytest.approx(values.mean())
            assert getattr(each, f"{name}_std") == pytest.approx(values.std(ddof=1))
        mean = [dense_kappa(of.mean(axis=0), min(3 * N, D), ridge) for of in scaled]
        assert averaged.kappas[:, 0] == pytest.approx(mean, rel=1e-8)
        assert averaged.rir == pytest.approx(mean[3] / mean[2] / (mean[1] / mean[0]))
    assert result.rir == result.compact.rir
    assert any(f"N = {N} samples of D = {D}" in sentence for sentence in result.warnings) == (N < D)
    grown = rir_from_features(X[0], 7 * X[1], X[2], 7 * X[3], **options)
    for name in ("compact", "ridge", "averaged", "averaged_ridge"):
        assert getattr(grown, name).kappas == pytest.approx(getattr(result, name).kappas)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_rotation_decides_clauses_as_it_does_everywhere(kind, drawn):
    """A half turn of two axes, which no kind rounds; tensors with gradients, and those of NumPy."""
    P, H = (torch.tensor(drawn.normal(size=(60, 4)), dtype=kind, requires_grad=True) for _ in range(2))
    turned = [torch.cat([-of[:, 2:], of[:, :2]], 1) for of in (P, H)]
    measured = rir_from_features(P, turned[0], H, turned[1], group_size=60)
    for found in (measured.compact, measured.ridge, measured.averaged, measured.averaged_ridge):
        assert found.clauses == Clauses(False, True, None)
        assert (found.clauses.met, found.success) == (False, False)


X = np.random.default_rng(0).normal(size=(150, 4))


def test_other_images_or_too_few_are_refused():
    for H, message in (
        ((X[:99], X[:99]), r"D_H has 99 image\(s\).*lower group_size \(--group-size\)"),
        ((features(X), features(X, indices=np.arange(150)[::-1])), "different images"),
        ((X[:, :3], X), "use the same model for both"),
    ):
        with pytest.raises(CondnumError, match=message):
            rir_from_features(X, X, *H)


def test_models_on_images_are_measured_by_their_features_and_one_against_itself_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(CondnumError, match=r"share trainable parameters.*keep a copy"):
        rir_theta0(model, nn.Sequential(model), *2 * [open_images("digits-8x8:0-4")])
    rows, turned = torch.tensor(X).view(150, 4, 1, 1), nn.Linear(4, 3).double()
    (images, labels), options = (rows, torch.arange(150) % 2), {"groups": 1, "group_size": 150}
    found = rir_theta0(
        nn.Flatten(), nn.Sequential(nn.Flatten(), turned), (images, labels), (2 * images, labels), **options
    )
    Z = [(turned(s * rows.flatten(1))).detach() for s in (1, 2)]
    assert found.rir == pytest.approx(rir_from_features(X, Z[0], 2 * X, Z[1], **options).rir, rel=1e-3)


def test_sgrc_and_rfd_of_known_curves():
    """What A against A gives is 0; a net that is learned faster has the sign of it."""
    curve = np.array([0.2, 0.5, 0.8])
    assert (sgrc(curve, curve).tolist(), rfd(curve, curve), rfd(curve, curve, signed=True)) == ([0] * 3, 0, 0)
    assert sgrc(0.8, 0.6) == pytest.approx(25)
    for after, sign in ((curve * [0.9, 0.8, 1.0], 1), (curve * [1.1, 1.2, 1.0], -1)):
        assert rfd(curve, after) == pytest.approx(10)
        assert rfd(curve, after, signed=True) == pytest.approx(sign * 10)
    assert rfd(curve, curve * [0.9, 1.1, 1.0], signed=True) == pytest.approx(0)


@pytest.fixture(scope="module")
def digits():
    """8×8 digits as features: training and held-out rows."""
    data = [open_images("digits-8x8:0-9", split) for split in ("train", "test")]
    rows = [np.stack([np.asarray(of.image(i).convert("L")).ravel() / 255 for i in range(300)]) for of in data]
    return [features(x, of.labels[:300]) for x, of in zip(rows, data, strict=True)]


def test_the_path_of_a_head_is_that_of_gradient_descent(digits):
    """Steps that are taken, at 1/σ₁ on the squared error of centered one-hot targets."""
    train, held = digits
    A, B = (of.values - train.values.astype(float).mean(0) for of in digits)
    target, wanted = (np.eye(10)[of.labels] - np.eye(10)[train.labels].mean(0) for of in digits)
    W, rate, last = np.zeros((64, 10)), 1 / np.linalg.norm(A, 2) ** 2, 100
    for _ in range(last):
        W -= rate * A.T @ (A @ W - target)
    taken = 1 - ((wanted - B @ W) ** 2).sum() / (wanted**2).sum()
    assert descent_path(train, held)[np.isclose(DESCENT_STEPS, last)] == pytest.approx(taken, abs=1e-6)
    some = features(train.values[train.labels < 9], train.labels[train.labels < 9])
    assert np.isfinite(descent_path(some, held)).all()  # a class that training lacks
    assert not descent_path(features(0 * train.values, train.labels), held).any()  # blind: it learns nothing


def test_a_defense_that_shrinks_what_separates_the_classes_slows_the_head_and_a_scale_does_not(digits, drawn):
    """The directions that count have eigenvalues s² times smaller: 1/s² times the steps."""
    noise = [np.c_[drawn.normal(size=(300, 10)), np.eye(10)[of.labels] / 3] for of in digits]

    def path(scale, strength):
        rows = [scale * of * np.r_[np.ones(10), np.full(10, strength)] for of in noise]
        return descent_path(*(features(x, of.labels) for x, of in zip(rows, digits, strict=True)))

    plain = path(1.0, 1.0)
    assert path_slowdown(plain, path(2.0**-10, 1.0)) == 1
    assert path_slowdown(plain, path(1.0, 0.1)) == pytest.approx(100, rel=0.2)
    assert path_slowdown(plain, path(1.0, 0.0)) > 5e3  # the goal is not reached: a lower bound
    assert path_slowdown(0 * plain, plain) == 1  # θ₀'s own head learns nothing
