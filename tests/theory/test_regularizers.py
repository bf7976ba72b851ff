"""R_well, R_ill and their gradients: by hand, autograd, finite differences, Theorems 4.1 and A.1."""

import numpy as np
import pytest
import torch
from covariances import orthogonal
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import CondnumError, InvalidInputError, RankError
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient

# A hand-derived fraction and its float64 evaluation differ by a few units in the last place.
HAND = {"rtol": 1e-14, "atol": 1e-15}
FULL = np.array([[2.0, 1], [1, 2]])  # eigenpairs 3: (1,1)/√2 and 1: (1,-1)/√2
WIDE = np.array([[0, 2.0, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("matrix", "well", "well_gradient", "ill", "ill_gradient"),
    [
        (
            np.diag([3.0, 2, 1]),
            13 / 6,
            np.diag([2.0, -2 / 3, -1 / 3]),
            6 / 11,
            np.diag([-36.0, -24, 24]) / 121,
        ),
        # k = 2, not 3: ρ = 5/4 − 1/2.
        (np.diag([2.0, 1, 0]), 7 / 6, np.diag([4.0, -1, 0]) / 3, 4 / 3, np.diag([-1.0, 0.5, 0]) * 16 / 9),
        (np.diag([-3.0, 1.0]), 2.0, np.diag([-1.5, -0.5]), 1 / 2, np.diag([3 / 8, 1 / 8])),
        (
            WIDE,
            3 / 4,
            np.array([[0, 1.0, 0], [-0.5, 0, 0]]),
            4 / 3,
            np.array([[0, -1.0, 0], [0.5, 0, 0]]) * 16 / 9,
        ),
        (FULL, 2.0, np.array([[0.5, 1.0], [1.0, 0.5]]), 1 / 2, np.array([[-1.0, -2], [-2, -1]]) / 8),
    ],
    ids=["diagonal", "rank-deficient", "indefinite", "rectangular", "full"],
)
def test_by_hand(matrix, well, well_gradient, ill, ill_gradient):
    for value, gradient, number, expected in (
        (r_well, r_well_gradient, well, well_gradient),
        (r_ill, r_ill_gradient, ill, ill_gradient),
    ):
        result = gradient(matrix)
        assert type(value(matrix)) is float
        np.testing.assert_allclose([value(matrix), result.value], number, **HAND)
        np.testing.assert_allclose(result.gradient, expected, **HAND)
        assert result.differentiable is True


def test_dimension_counts_the_zeros_that_a_dual_matrix_leaves_out():
    # 2x2 dual of a 4x4 Hessian with the same non-zero spectrum: ½·9 − 10/8.
    assert r_well(np.diag([3.0, 1.0]), dimension=4) == pytest.approx(13 / 4)
    assert r_well(np.diag([3.0, 1, 0, 0])) == pytest.approx(13 / 4)
    gradient = r_well_gradient(np.diag([3.0, 1.0]), dimension=4).gradient
    np.testing.assert_allclose(gradient, np.diag([9 / 4, -1 / 4]), **HAND)


class TestRepeatedExtremes:
    def test_the_centre_of_the_subdifferential(self):
        well, ill = r_well_gradient(np.diag([2.0, 2, 1])), r_ill_gradient(np.diag([2.0, 1, 1]))  # ρ = 1/2
        np.testing.assert_allclose(well.gradient, np.diag([1.0, 1, -1]) / 3, **HAND)
        np.testing.assert_allclose(ill.gradient, np.diag([-8.0, 2, 2]) / 3, **HAND)
        for result in (well, ill):
            assert (result.differentiable, result.multiplicity) == (False, 2)

    @pytest.mark.parametrize("function", [r_well_gradient, r_ill_gradient])
    def test_the_choice_does_not_depend_on_the_basis(self, function):
        rng = np.random.default_rng(0)
        spectrum = np.diag([3.0, 3, 2, 1, 1])
        expected = function(spectrum).gradient
        for _ in range(5):
            Q, P = orthogonal(rng, 5), orthogonal(rng, 5)
            for right in (Q, P):  # symmetric, general
                found = function(Q @ spectrum @ right.T, rtol=1e-12)
                assert not found.differentiable
                np.testing.assert_allclose(found.gradient, Q @ expected @ right.T, atol=1e-12)


@pytest.mark.parametrize(
    "matrix",
    [np.diag([3.0, 0, 0]), 2 * np.eye(3), np.array([[7.0]]), orthogonal(np.random.default_rng(0), 6)],
    ids=["rank-1", "flat", "scalar", "orthogonal"],
)
def test_an_infinite_r_ill_has_no_gradient(matrix):
    assert r_ill(matrix) == np.inf
    with pytest.raises(RankError, match="infinite and has no gradient"):
        r_ill_gradient(matrix)
    with pytest.raises(RankError, match="infinite and has no gradient"):
        r_ill(torch.from_numpy(matrix).requires_grad_()).backward()


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (r_well, {"dimension": 2}, "≥ 3, got 2"),
        (r_ill, {"rank": 4}, "between 1 and 3, got 4"),
        (r_ill, {"rtol": -0.1}, r"rtol must lie in \[0, 1\)"),
    ],
)
def test_options_that_are_refused(function, options, message):
    with pytest.raises(InvalidInputError, match=message):
        function(np.diag([3.0, 2, 1]), **options)


@pytest.mark.parametrize(
    ("shape", "rank"),
    [((4, 4), None), ((5, 3), None), ((3, 5), None), ((4, 6), "psd"), ((4, 2), 2)],
    ids=["square", "tall", "wide", "psd", "psd-rank-2"],
)
def test_gradients_against_finite_differences(shape, rank):
    # At fixed k: a general perturbation raises the rank, and with it the default k.
    matrix = np.random.default_rng(3).normal(size=shape)
    matrix, rank = (matrix, None) if rank is None else (matrix @ matrix.T, rank if rank == 2 else None)
    S = torch.from_numpy(matrix).requires_grad_()
    assert torch.autograd.gradcheck(r_well, (S,))
    assert torch.autograd.gradcheck(lambda S: r_ill(S, rank=rank), (S,))


@pytest.mark.parametrize("regularizer", [r_well, r_ill])
def test_second_derivatives_are_refused_not_wrong(regularizer):
    S = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)).requires_grad_()
    with pytest.raises(CondnumError, match="first derivative only"):
        torch.autograd.grad(regularizer(S), S, create_graph=True)


@st.composite
def matrices(draw):
    """A spectrum and a (k + extra, k) matrix of it.

    A smallest value and ratios of neighbours of at least 1.01, steps (below) of at least 0.01 of the bound: κ
    moves by at least 1e-5 of itself, nine orders above round-off, so that inequalities are strict.
    """
    ratios = draw(st.lists(st.floats(1.01, 4.0), min_size=1, max_size=5))
    sigma = draw(st.floats(0.05, 20.0)) * np.cumprod([1.0, *ratios])[::-1]
    rng, k = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), len(sigma)
    return sigma, orthogonal(rng, k + draw(st.integers(0, 2)))[:, :k] @ np.diag(sigma) @ orthogonal(rng, k).T


@settings(max_examples=100)
@given(drawn=matrices(), fraction=st.floats(0.01, 0.99), scale=st.floats(0.01, 100))
def test_theorems_41_and_a1(drawn, fraction, scale):
    sigma, S = drawn
    k, kappa = len(sigma), sigma[0] / sigma[-1]
    well, ill = r_well_gradient(S), r_ill_gradient(S)
    # (2), upper bounds. Two close values make both sides equal to second order: 1e-9 for round-off.
    assert 1 / np.log(kappa) <= sigma[0] ** 2 * ill.value * (1 + 1e-9)
    assert np.log(kappa) <= k * well.value / sigma[-1] ** 2 * (1 + 1e-9)
    # (4), a step along the gradient moves κ.
    for result, eta in (
        (ill, fraction * k / (k - 1) / ill.value**2),
        (well, fraction * (kappa - 1) / ((1 - 1 / k) * kappa + 1 / k)),
    ):
        moved = np.linalg.svd(S - eta * result.gradient, compute_uv=False)
        assert (moved[0] > kappa * moved[-1]) == (result is ill)
    # Neither is invariant to scale.
    assert r_well(scale * S) == pytest.approx(scale**2 * well.value, rel=1e-9)
    assert r_ill(scale * S) == pytest.approx(ill.value / scale**2, rel=1e-9)
