"""The gradients of every method, against autograd, finite differences and fractions by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.methods import ImmaSettings, OptKappaSettings
from condnum.methods.algorithm1 import ill_direction, supervised_gradients, well_direction
from condnum.methods.imma import bilevel_gradient
from condnum.methods.opt_kappa import kappa_gradient
from condnum.methods.problem import LinearTask, LogisticLoss, SquaredLoss
from condnum.theory.regularizers import r_ill_theta_gradient, r_well_theta_gradient

SEEDS = st.integers(0, 2**32 - 1)
# Autograd through eigh and the closed form differ by round-off over the gap of the extreme value,
# which is above 1e-3 of σ₁ in these draws.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def task_of(X):
    return LinearTask(X.mT @ X, X)


def difference(function, at, step):
    """Central differences of a scalar function of a matrix."""
    gradient = torch.zeros_like(at)
    for index in np.ndindex(*at.shape):
        delta = torch.zeros_like(at)
        delta[index] = step
        gradient[index] = (float(function(at + delta)) - float(function(at - delta))) / (2 * step)
    return gradient


def r_well(H):
    sigma = torch.linalg.eigvalsh(H)
    return sigma[-1] ** 2 / 2 - (sigma**2).sum() / (2 * len(sigma))


def r_ill(H, k):
    sigma = torch.linalg.eigvalsh(H)[-k:]
    return 1 / ((sigma**2).sum() / (2 * k) - sigma[0] ** 2 / 2)


class TestRegularizerDirections:
    def test_well_by_hand(self):
        # θ = I, H = diag(3, 1): ∇_H R = diag(3/2, −1/2), times 2θ.
        direction = well_direction(
            LinearTask(torch.diag(torch.tensor([3.0, 1.0])).double()), torch.eye(2).double()
        )
        torch.testing.assert_close(direction, torch.diag(torch.tensor([3.0, -1.0])).double())

    def test_ill_by_hand(self):
        # R_ill = 1/2: ∇_H R = diag(−3/8, 1/8), times 2θ.
        direction = ill_direction(
            LinearTask(torch.diag(torch.tensor([3.0, 1.0])).double()), torch.eye(2).double()
        )
        torch.testing.assert_close(direction, torch.diag(torch.tensor([-3.0, 1.0])).double() / 4)

    def test_ill_counts_the_rank_of_the_task(self):
        # diag(3, 1, 0): k = 2, as above, and the null direction stays.
        task = LinearTask(torch.diag(torch.tensor([3.0, 1.0, 0.0])).double())
        expected = torch.diag(torch.tensor([-3.0, 1.0, 0.0])).double() / 4
        torch.testing.assert_close(ill_direction(task, torch.eye(3).double()), expected)

    @pytest.mark.parametrize("columns", [5, 3], ids=["square", "narrow"])
    @pytest.mark.parametrize("direction", ["well", "ill"])
    def test_is_the_preconditioned_autograd_gradient(self, direction, columns):
        task, theta = task_of(draw(12, 5)), draw(5, columns, seed=1).requires_grad_()
        H = theta.mT @ task.covariance @ theta
        (r_well(H) if direction == "well" else r_ill(H, columns)).backward()
        expected = torch.linalg.solve(task.covariance, theta.grad)
        function = well_direction if direction == "well" else ill_direction
        torch.testing.assert_close(function(task, theta.detach()), expected, **CLOSE)

    @pytest.mark.parametrize("direction", ["well", "ill"])
    def test_singular_covariance_times_the_direction_is_the_gradient(self, direction):
        # No K⁻¹ exists, yet K·direction = ∇_θR.
        task, theta = task_of(draw(3, 5)), draw(5, 5, seed=1).requires_grad_()
        H = theta.mT @ task.covariance @ theta
        (r_well(H) if direction == "well" else r_ill(H, 3)).backward()
        function = well_direction if direction == "well" else ill_direction
        torch.testing.assert_close(task.covariance @ function(task, theta.detach()), theta.grad, **CLOSE)

    def test_agrees_with_the_public_regularizers(self):
        task, theta = task_of(draw(12, 5)), draw(5, 5, seed=1)
        for function, public in (
            (well_direction, r_well_theta_gradient),
            (ill_direction, r_ill_theta_gradient),
        ):
            gradient = public(theta, task.covariance).gradient
            torch.testing.assert_close(task.covariance @ function(task, theta), gradient, **CLOSE)

    @settings(max_examples=60, deadline=None)
    @given(seed=SEEDS, D=st.integers(2, 6), share=st.floats(0.01, 0.99))
    def test_theorem_43_a_step_within_the_corrected_bound_lowers_kappa(self, seed, D, share):
        task, theta = task_of(draw(D + 5, D, seed=seed)), draw(D, D, seed=seed + 1)
        sigma = torch.linalg.eigvalsh(theta.mT @ task.covariance @ theta).flip(-1)
        bound = min(
            float((1 - (sigma[-1] / sigma[0]).sqrt()) / (2 * (1 - 1 / D) * sigma[0])),
            float(((sigma[0] / sigma[1]).sqrt() - 1) * D / (2 * sigma[1])),
        )
        moved = theta - share * bound * well_direction(task, theta)
        after = torch.linalg.eigvalsh(moved.mT @ task.covariance @ moved)
        assert float(after[-1] / after[0]) < float(sigma[0] / sigma[-1])


class TestSupervised:
    @pytest.mark.parametrize("loss", ["mse", "bce"])
    def test_equals_autograd(self, loss):
        X, Y = draw(9, 4), torch.sigmoid(draw(9, 2, seed=1))
        task = LinearTask(X.mT @ X, X, Y, loss)
        theta, omega = draw(4, 3, seed=2).requires_grad_(), draw(3, 2, seed=3).requires_grad_()
        task.supervised.value(theta @ omega).backward()
        theta_gradient, omega_gradient = supervised_gradients(task, theta.detach(), omega.detach())
        torch.testing.assert_close(theta_gradient, theta.grad, **CLOSE)
        torch.testing.assert_close(omega_gradient, omega.grad, **CLOSE)

    def test_zero_without_targets(self):
        theta, omega = supervised_gradients(task_of(draw(4, 3)), draw(3, 3), draw(3, 1))
        assert not theta.any()
        assert not omega.any()


class TestOptKappa:
    def test_by_hand(self):
        # κ = 3θ₁²/θ₂² at θ = I: (6, −6); ridge ε = 1: (3θ₁² + 1)/(θ₂² + 1): (3, −2·4/4).
        task = LinearTask(torch.diag(torch.tensor([3.0, 1.0])).double())
        kappa, gradient = kappa_gradient(task, torch.eye(2).double(), OptKappaSettings())
        assert float(kappa) == pytest.approx(3)
        torch.testing.assert_close(gradient, torch.diag(torch.tensor([6.0, -6.0])).double())
        ridge = OptKappaSettings(convention="ridge", ridge=1.0)
        kappa, gradient = kappa_gradient(task, torch.eye(2).double(), ridge)
        assert float(kappa) == pytest.approx(2)
        torch.testing.assert_close(gradient, torch.diag(torch.tensor([3.0, -2.0])).double())

    @pytest.mark.parametrize("convention", ["compact", "ridge"])
    @pytest.mark.parametrize("rows", [12, 3], ids=["full-rank", "singular"])
    @pytest.mark.parametrize("columns", [5, 2], ids=["square", "narrow"])
    def test_equals_finite_differences(self, convention, rows, columns):
        task, theta = task_of(draw(rows, 5)), draw(5, columns, seed=4)
        options = OptKappaSettings(convention=convention, ridge=0.1)
        k = min(rows, 5, columns)

        def kappa(theta):
            sigma = torch.linalg.svdvals(task.features @ theta) ** 2
            if convention == "compact":
                return sigma[0] / sigma[k - 1]
            return (sigma[0] + 0.1) / ((sigma[k - 1] if k == columns else 0.0) + 0.1)

        value, gradient = kappa_gradient(task, theta, options)
        assert float(value) == pytest.approx(float(kappa(theta)), rel=1e-10)
        expected = difference(kappa, theta, 1e-6)
        # Truncation of relative size (h/distance to a singular θ)², far below 1e-6.
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


class TestImma:
    def test_by_hand_in_one_dimension(self):
        # x = 1 in both tasks, y_P = p, y_H = h: θ* = θ − 2r(θw − h)w, and the chain rule by hand.
        p, h, theta, omega, w, rate = 2.0, -1.0, 0.5, 0.7, 1.5, 0.1
        one = torch.ones(1, 1).double()
        losses = [SquaredLoss(one, y * one, y**2, 1) for y in (h, p)]
        parameters = {"theta": theta * one, "omega": omega * one, "w": w * one}
        tuned = theta - 2 * rate * (theta * w - h) * w
        slope = 2 * (tuned * omega - p) * omega - 2 * (tuned * w - h) * w
        gradient = bilevel_gradient(*losses, parameters, ImmaSettings(inner_rate=rate))
        assert float(gradient) == pytest.approx((1 - 2 * rate * w**2) * slope, rel=1e-12)

    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("kind", ["mse", "bce"])
    def test_equals_finite_differences_through_the_inner_steps(self, kind, steps):
        losses = []
        for seed in (0, 10):
            X, Y = draw(8, 3, seed=seed), torch.sigmoid(draw(8, 1, seed=seed + 1))
            losses.append(
                LogisticLoss(X, Y)
                if kind == "bce"
                else SquaredLoss(X.mT @ X, X.mT @ Y, float((Y**2).sum()), 8)
            )
        harmful, pretrain = losses
        parameters = {"theta": draw(3, 2, seed=2), "omega": draw(2, 1, seed=3), "w": draw(2, 1, seed=4)}
        options = ImmaSettings(inner_steps=steps, inner_rate=0.2)

        def outer(theta):
            for _ in range(steps):
                theta = theta - 0.2 * harmful.residual(theta @ parameters["w"])[1] @ parameters["w"].mT
            return pretrain.value(theta @ parameters["omega"]) - harmful.value(theta @ parameters["w"])

        gradient = bilevel_gradient(harmful, pretrain, parameters, options)
        torch.testing.assert_close(
            gradient, difference(outer, parameters["theta"], 1e-6), rtol=1e-6, atol=1e-7
        )

    def test_leaves_the_parameters_alone(self):
        loss = SquaredLoss(torch.eye(2).double(), torch.ones(2, 1).double(), 1.0, 2)
        parameters = {"theta": draw(2, 2), "omega": draw(2, 1, seed=1), "w": draw(2, 1, seed=2)}
        before = {name: value.clone() for name, value in parameters.items()}
        gradient = bilevel_gradient(loss, loss, parameters, ImmaSettings())
        assert not gradient.requires_grad
        for name, value in parameters.items():
            assert torch.equal(value, before[name])
            assert not value.requires_grad
