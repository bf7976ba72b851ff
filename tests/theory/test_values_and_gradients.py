"""R_well, R_ill and their gradients: fractions by hand, autograd, finite differences."""

import dataclasses

import numpy as np
import pytest
import torch

from condnum.errors import CondnumError, InvalidInputError, RankError
from condnum.theory.regularizers import (
    ill_gradient_from_pair,
    r_ill,
    r_ill_from_pair,
    r_ill_gradient,
    r_ill_theta_gradient,
    r_well,
    r_well_from_pair,
    r_well_gradient,
    r_well_theta_gradient,
    well_gradient_from_pair,
)

# A hand-derived fraction and its float64 evaluation differ by a few units in the last place.
HAND = {"rtol": 1e-14, "atol": 1e-15}
# Central differences with step h: truncation h², round-off eps/h; h = 1e-6 leaves about 1e-9 of
# values and third derivatives of order 10.
STEP = 1e-6
DIFFERENCE = {"rtol": 1e-6, "atol": 1e-7}

WELL_CASES = [
    pytest.param(np.diag([3.0, 1.0]), 2.0, np.diag([1.5, -0.5]), id="diagonal-2"),
    pytest.param(np.diag([3.0, 2, 1]), 13 / 6, np.diag([2.0, -2 / 3, -1 / 3]), id="diagonal-3"),
    pytest.param(np.diag([2.0, 1, 0]), 7 / 6, np.diag([4 / 3, -1 / 3, 0]), id="rank-deficient"),
    pytest.param(np.diag([-3.0, 1.0]), 2.0, np.diag([-1.5, -0.5]), id="indefinite"),
    pytest.param(
        np.array([[0, 2.0, 0], [1, 0, 0]]), 3 / 4, np.array([[0, 1.0, 0], [-0.5, 0, 0]]), id="rectangular"
    ),
    # Eigenpairs 3: (1,1)/√2 and 1: (1,-1)/√2.
    pytest.param(np.array([[2.0, 1], [1, 2]]), 2.0, np.array([[0.5, 1.0], [1.0, 0.5]]), id="full-2x2"),
    pytest.param(np.array([[5.0]]), 0.0, np.array([[0.0]]), id="scalar"),
]
ILL_CASES = [
    pytest.param(np.diag([3.0, 1.0]), 1 / 2, np.diag([-3 / 8, 1 / 8]), id="diagonal-2"),
    pytest.param(np.diag([3.0, 2, 1]), 6 / 11, np.diag([-36.0, -24, 24]) / 121, id="diagonal-3"),
    # k = 2, not 3: ρ = 5/4 − 1/2.
    pytest.param(np.diag([2.0, 1, 0]), 4 / 3, np.diag([-1.0, 0.5, 0]) * 16 / 9, id="rank-deficient"),
    pytest.param(np.diag([3.0, -1.0]), 1 / 2, np.diag([-3 / 8, -1 / 8]), id="indefinite"),
    pytest.param(
        np.array([[0, 2.0, 0], [1, 0, 0]]),
        4 / 3,
        np.array([[0, -1.0, 0], [0.5, 0, 0]]) * 16 / 9,
        id="rectangular",
    ),
    pytest.param(
        np.array([[2.0, 1], [1, 2]]), 1 / 2, np.array([[-0.125, -0.25], [-0.25, -0.125]]), id="full"
    ),
]


@pytest.mark.parametrize(("matrix", "value", "gradient"), WELL_CASES)
def test_well_by_hand(matrix, value, gradient):
    result = r_well_gradient(matrix)
    assert type(r_well(matrix)) is float
    np.testing.assert_allclose(r_well(matrix), value, **HAND)
    np.testing.assert_allclose(result.value, value, **HAND)
    np.testing.assert_allclose(result.gradient, gradient, **HAND)
    assert result.differentiable is True


@pytest.mark.parametrize(("matrix", "value", "gradient"), ILL_CASES)
def test_ill_by_hand(matrix, value, gradient):
    result = r_ill_gradient(matrix)
    assert type(r_ill(matrix)) is float
    np.testing.assert_allclose(r_ill(matrix), value, **HAND)
    np.testing.assert_allclose(result.value, value, **HAND)
    np.testing.assert_allclose(result.gradient, gradient, **HAND)
    assert result.differentiable is True


def test_results_carry_their_evidence_and_are_frozen():
    well, ill = r_well_gradient(np.diag([4.0, 3, 1, 0])), r_ill_gradient(np.diag([4.0, 3, 1, 0]))
    assert (well.sigma, well.gap, well.rank, well.multiplicity) == (4.0, 0.25, 3, 1)
    assert (ill.sigma, ill.gap, ill.rank, ill.multiplicity) == (1.0, 0.5, 3, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        well.value = 0.0


def test_dimension_counts_the_zeros_that_a_dual_matrix_leaves_out():
    # 2x2 dual of a 4x4 Hessian with the same non-zero spectrum: ½·9 − 10/8.
    assert r_well(np.diag([3.0, 1.0]), dimension=4) == pytest.approx(13 / 4)
    assert r_well(np.diag([3.0, 1, 0, 0])) == pytest.approx(13 / 4)
    gradient = r_well_gradient(np.diag([3.0, 1.0]), dimension=4).gradient
    np.testing.assert_allclose(gradient, np.diag([9 / 4, -1 / 4]), **HAND)


@pytest.mark.parametrize("sigma", [1e-2, 1e-4, 1e-8])
def test_theorem_41_1_is_false_r_ill_stays_at_4_8_while_kappa_diverges(sigma):
    # ρ = (1 + ¼ + σ²)/6 − σ²/2 → 5/24.
    assert r_ill(np.diag([1.0, 0.5, sigma])) == pytest.approx(4.8, rel=10 * sigma**2 + 1e-14)


class TestRepeatedExtremes:
    def test_well_takes_the_centre_of_the_subdifferential(self):
        result = r_well_gradient(np.diag([2.0, 2, 1]))
        np.testing.assert_allclose(result.gradient, np.diag([1.0, 1, -1]) / 3, **HAND)
        assert (result.differentiable, result.multiplicity, result.gap) == (False, 2, 0.0)

    def test_ill_takes_the_centre_of_the_subdifferential(self):
        result = r_ill_gradient(np.diag([2.0, 1, 1]))  # ρ = 1/2
        np.testing.assert_allclose(result.gradient, np.diag([-8.0, 2, 2]) / 3, **HAND)
        assert (result.differentiable, result.multiplicity, result.gap) == (False, 2, 0.0)

    @pytest.mark.parametrize("function", [r_well_gradient, r_ill_gradient])
    def test_the_choice_does_not_depend_on_the_basis(self, function):
        rng = np.random.default_rng(0)
        spectrum = np.diag([3.0, 3, 2, 1, 1])
        expected = function(spectrum).gradient
        for _ in range(5):
            Q, _ = np.linalg.qr(rng.normal(size=(5, 5)))
            P, _ = np.linalg.qr(rng.normal(size=(5, 5)))
            symmetric = function(Q @ spectrum @ Q.T, rtol=1e-12)
            general = function(Q @ spectrum @ P.T, rtol=1e-12)
            assert not symmetric.differentiable
            assert not general.differentiable
            np.testing.assert_allclose(symmetric.gradient, Q @ expected @ Q.T, atol=1e-12)
            np.testing.assert_allclose(general.gradient, Q @ expected @ P.T, atol=1e-12)

    def test_the_well_answer_is_a_subgradient(self):
        # ½σ₁² is convex: it lies above every supporting plane, here G + S/p.
        rng = np.random.default_rng(1)
        S = np.diag([2.0, 2, 1])
        G = r_well_gradient(S).gradient + S / 3
        for _ in range(200):
            delta = rng.normal(size=(3, 3))
            rise = (np.linalg.norm(S + delta, 2) ** 2 - 4) / 2
            assert rise >= np.sum(G * delta) - 1e-12

    def test_small_values_are_equal_within_the_round_off_of_the_largest(self):
        # 1e-17 apart: relative to themselves 1e-7, yet no eigensolver could tell at σ₁ = 1.
        result = r_ill_gradient(np.diag([1.0, 1e-10, 1e-10 - 1e-17]))
        assert (result.rank, result.multiplicity) == (3, 2)


class TestInfiniteIll:
    @pytest.mark.parametrize(
        "matrix",
        [
            np.diag([3.0, 0, 0]),
            2 * np.eye(3),
            np.array([[7.0]]),
            np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0],
        ],
        ids=["rank-1", "flat", "scalar", "orthogonal"],
    )
    def test_value_is_infinite_and_gradient_raises(self, matrix):
        assert r_ill(matrix) == np.inf
        with pytest.raises(RankError, match="infinite and has no gradient"):
            r_ill_gradient(matrix)

    def test_backward_raises(self):
        S = torch.diag(torch.tensor([3.0, 0.0])).requires_grad_()
        value = r_ill(S)
        assert value.item() == np.inf
        with pytest.raises(RankError, match="infinite and has no gradient"):
            value.backward()


@pytest.mark.parametrize("function", [r_well, r_ill, r_well_gradient, r_ill_gradient])
class TestErrors:
    def test_zero_matrix(self, function):
        with pytest.raises(RankError, match="rank 0"):
            function(np.zeros((2, 3)))

    def test_vector(self, function):
        with pytest.raises(InvalidInputError, match=r"S must have at least 2 dimension"):
            function(np.ones(3))

    def test_nan(self, function):
        with pytest.raises(InvalidInputError, match=r"first at index \(0, 1\)"):
            function(np.array([[1.0, np.nan], [0.0, 1.0]]))


@pytest.mark.parametrize("dimension", [1, 2.5, 0])
def test_bad_dimension(dimension):
    with pytest.raises(InvalidInputError, match=f"at least 2.*got {dimension}"):
        r_well(np.eye(2), dimension=dimension)


@pytest.mark.parametrize("rank", [0, 4, 1.5])
def test_bad_rank(rank):
    with pytest.raises(InvalidInputError, match=f"between 1 and 3, got {rank}"):
        r_ill(np.diag([3.0, 2, 1]), rank=rank)


@pytest.mark.parametrize("rtol", [-0.1, 1.0, float("nan")])
def test_bad_rtol(rtol):
    with pytest.raises(InvalidInputError, match=r"rtol must lie in \[0, 1\)"):
        r_ill(np.diag([3.0, 2, 1]), rtol=rtol)


# --- gradients against other gradients ----------------------------------------------------------


def central_differences(function, point):
    point = np.asarray(point, dtype=float)
    gradient = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        step = np.zeros_like(point)
        step[index] = STEP
        gradient[index] = (function(point + step) - function(point - step)) / (2 * STEP)
    return gradient


def low_rank_psd(dimension, rank, seed=3):
    X = np.random.default_rng(seed).normal(size=(rank, dimension))
    return X.T @ X


MATRICES = [
    pytest.param(np.random.default_rng(0).normal(size=(4, 4)), None, id="square"),
    pytest.param(np.random.default_rng(1).normal(size=(5, 3)), None, id="tall"),
    pytest.param(np.random.default_rng(2).normal(size=(3, 5)), None, id="wide"),
    pytest.param(low_rank_psd(4, 6), None, id="psd"),
    # At fixed k: a general perturbation raises the rank, and with it the default k.
    pytest.param(low_rank_psd(4, 2), 2, id="psd-rank-2"),
]


@pytest.mark.parametrize(("matrix", "rank"), MATRICES)
class TestAgainstOtherGradients:
    def test_finite_differences(self, matrix, rank):
        np.testing.assert_allclose(
            r_well_gradient(matrix).gradient, central_differences(r_well, matrix), **DIFFERENCE
        )
        np.testing.assert_allclose(
            r_ill_gradient(matrix, rank=rank).gradient,
            central_differences(lambda S: r_ill(S, rank=rank), matrix),
            **DIFFERENCE,
        )

    def test_gradcheck_of_the_autograd_function(self, matrix, rank):
        S = torch.from_numpy(matrix).requires_grad_()
        assert torch.autograd.gradcheck(r_well, (S,))
        assert torch.autograd.gradcheck(lambda A: r_ill(A, rank=rank), (S,))


THETAS = [
    pytest.param((4, 4), 6, id="square"),
    pytest.param((5, 3), 8, id="reducing"),
    pytest.param((4, 4), 3, id="singular-K"),
    pytest.param((3, 5), 6, id="expanding"),
]


@pytest.mark.parametrize(("shape", "samples"), THETAS)
class TestThetaGradients:
    def problem(self, shape, samples):
        rng = np.random.default_rng(7)
        X = rng.normal(size=(samples, shape[0]))
        return rng.normal(size=shape), X.T @ X, min(*shape, samples)

    def test_finite_differences(self, shape, samples):
        theta, K, rank = self.problem(shape, samples)
        well = central_differences(lambda t: r_well(t.T @ K @ t), theta)
        ill = central_differences(lambda t: r_ill(t.T @ K @ t, rank=rank), theta)
        scale = np.abs(well).max()
        np.testing.assert_allclose(r_well_theta_gradient(theta, K).gradient, well, atol=1e-7 * scale)
        scale = np.abs(ill).max()
        result = r_ill_theta_gradient(theta, K, rank=rank)
        np.testing.assert_allclose(result.gradient, ill, atol=1e-6 * scale)
        assert result.rank == rank


def test_backward_multiplies_by_the_upstream_gradient():
    S = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)).requires_grad_()
    (5 * r_well(S) + 16 * r_ill(S)).backward()
    # 5·diag(3/2, −1/2) + 16·diag(−3/8, 1/8)
    torch.testing.assert_close(S.grad, torch.diag(torch.tensor([1.5, -0.5], dtype=torch.float64)))


def test_second_derivatives_are_refused_not_wrong():
    S = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)).requires_grad_()
    for regularizer in (r_well, r_ill):
        (G,) = torch.autograd.grad(regularizer(S), S, create_graph=True)
        torch.testing.assert_close(G, torch.autograd.grad(regularizer(S), S)[0])
        with pytest.raises(CondnumError, match="first derivative only"):
            (G.sum() + S.sum()).backward()


def test_backward_is_finite_where_svd_autograd_is_not():
    # Null singular values are repeated: the derivative of the SVD's vectors is NaN, ours is not.
    X = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    T = torch.eye(5, dtype=torch.float64, requires_grad=True)
    r_ill(T.mT @ (X.mT @ X) @ T, rank=2).backward()
    assert torch.isfinite(T.grad).all()
    assert T.grad.abs().max() > 0


# --- kinds, dtypes, batches ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "general"])
def test_a_batch_is_its_matrices(kind, symmetric):
    rng = np.random.default_rng(5)
    stack = rng.normal(size=(2, 3, 4, 4))
    stack = stack @ np.swapaxes(stack, -1, -2) if symmetric else stack[..., :3]
    given = stack if kind == "numpy" else torch.from_numpy(stack)
    for value, gradient in ((r_well, r_well_gradient), (r_ill, r_ill_gradient)):
        values, result = value(given), gradient(given)
        assert type(values) is type(given)
        assert type(result.gradient) is type(given)
        assert tuple(values.shape) == (2, 3)
        assert tuple(result.differentiable.shape) == (2, 3)
        for index in np.ndindex(2, 3):
            single = gradient(stack[index])
            assert float(values[index]) == pytest.approx(single.value, rel=1e-12)
            np.testing.assert_allclose(result.gradient[index], single.gradient, rtol=1e-9, atol=1e-12)
            assert int(result.rank[index]) == single.rank


def test_a_batch_of_different_ranks_and_multiplicities():
    spectra = torch.tensor([[3.0, 2, 1], [2, 1, 0], [2, 1, 1]], dtype=torch.float64)
    result = r_ill_gradient(torch.diag_embed(spectra))
    assert result.rank.tolist() == [3, 2, 3]
    assert result.differentiable.tolist() == [True, True, False]
    assert result.value.tolist() == pytest.approx([6 / 11, 4 / 3, 2])


def test_float32_is_computed_in_float64_and_its_gradient_comes_back_in_float32():
    matrix = low_rank_psd(6, 9).astype(np.float32)
    S = torch.from_numpy(matrix).requires_grad_()
    value = r_well(S)
    value.backward()
    assert value.dtype is torch.float64
    assert S.grad.dtype is torch.float32
    reference = r_well_gradient(matrix.astype(np.float64))
    assert value.item() == pytest.approx(reference.value, rel=1e-12)
    # The one rounding is that of the answer to float32.
    np.testing.assert_allclose(S.grad, reference.gradient, rtol=1e-6, atol=1e-6)


# --- from one eigenpair ----------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_the_pair_functions_equal_the_public_ones(dtype, tolerance, batch):
    X = torch.randn(*batch, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    H = X.mT @ X  # 6x6 of rank 4
    values, vectors = torch.linalg.eigh(H)
    h, top, low = H.to(dtype), (values[..., -1], vectors[..., -1]), (values[..., 2], vectors[..., 2])
    sigma_1, v_1, sigma_k, v_k = (part.to(dtype) for part in (*top, *low))
    well, ill = r_well_gradient(H), r_ill_gradient(H)
    before = h.clone()

    def close(actual, expected):
        assert actual.dtype is dtype
        expected = torch.as_tensor(expected, dtype=torch.float64)
        assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()

    close(r_well_from_pair(h, sigma_1, 6), well.value)
    close(well_gradient_from_pair(h, sigma_1, v_1, 6), well.gradient)
    value, gradient = ill_gradient_from_pair(h, sigma_k, v_k, 4)
    close(value, ill.value)
    close(gradient, ill.gradient)
    close(r_ill_from_pair(h, sigma_k, 4), ill.value)
    ranks = torch.full(batch, 4)
    close(ill_gradient_from_pair(h, sigma_k, v_k, ranks)[1], ill.gradient)
    assert torch.equal(h, before)
