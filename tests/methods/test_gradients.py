"""The gradients of every method against autograd and finite differences."""

import pytest
import torch
from problems import decaying_task, draw, labeled_task

from condnum.methods import DescentSettings, ImmunizationProblem, baselines, get_method
from condnum.methods.baselines import bilevel_gradient
from condnum.methods.problem import LogisticLoss, SquaredLoss
from condnum.theory.linalg import SMALL
from condnum.theory.task import Task

#: (D, ranks of P and H): a small problem (`eigh`), and a large one (Lanczos).
SHAPES = {"small": (9, 9, 7), "large": (SMALL + 12, 120, 110)}


def gradients_of(shape, method, **overrides):
    """A problem, θ and ω, the method's gradient by part, and those of the other parameters."""
    D, *ranks = SHAPES[shape]
    tasks = [decaying_task(D, rank, 5 * i) for i, rank in enumerate(ranks)]
    losses = [SquaredLoss.of(Task.of(*labeled_task(D, 5 * i), kind="regression")) for i in range(2)]
    problem = ImmunizationProblem(*tasks, losses)
    theta = torch.eye(D, dtype=torch.float64) + 0.02 * draw(D, D, seed=99)
    parameters = {"theta": theta, "omega": draw(D, 1, seed=7)}
    method = get_method(method)
    found = method.gradients(problem, parameters, DescentSettings(**overrides))
    return problem, theta, parameters["omega"], found.of_theta(theta), found.others


def r_well(H, rank):
    sigma = torch.linalg.eigvalsh(H)
    return sigma[-1] ** 2 / 2 - (sigma**2).sum() / (2 * len(sigma))


def r_ill(H, rank):
    sigma = torch.linalg.eigvalsh(H)[-rank:]
    return 1 / ((sigma**2).sum() / (2 * rank) - sigma[0] ** 2 / 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_algorithm_1_descends_the_preconditioned_gradients(shape):
    """K·direction = ∇_θR, where autograd goes through the whole spectrum of H; K⁻¹ is never formed."""
    problem, theta, omega, parts, others = gradients_of(shape, "ours")
    for part, own, value in (("well", problem.benign, r_well), ("ill", problem.harmful, r_ill)):
        leaf = theta.clone().requires_grad_()
        value(leaf.mT @ own.covariance @ leaf, own.rank).backward()
        error = (own.covariance @ parts[part] - leaf.grad).norm() / leaf.grad.norm()
        assert float(error) <= 1e-8, part
    leaf, head = theta.clone().requires_grad_(), omega.clone().requires_grad_()
    problem.losses[0].value(leaf @ head).backward()
    torch.testing.assert_close(parts["supervised"], leaf.grad)
    torch.testing.assert_close(others["omega"], head.grad)


@pytest.mark.parametrize("convention", ["compact", "ridge"])
@pytest.mark.parametrize("shape", SHAPES)
def test_opt_kappa_descends_the_condition_numbers(shape, convention, monkeypatch):
    monkeypatch.setattr(baselines, "PUBLISHED_RIDGE", 0.1)
    problem, theta, _, parts, _ = gradients_of(shape, "opt_kappa", convention=convention)
    for part, own, sign in (("benign", problem.benign, 1), ("harmful", problem.harmful, -1)):
        leaf = theta.clone().requires_grad_()
        sigma = torch.linalg.svdvals(own.root @ leaf) ** 2
        kappa = sigma[0] / sigma[-1]
        if convention == "ridge":
            kappa = (sigma[0] + 0.1) / (0.1 + (sigma[-1] if own.rank == len(leaf) else 0))
        (sign * kappa).backward()
        error = (parts[f"kappa_{part}"] - leaf.grad).norm() / leaf.grad.norm()
        assert float(error) <= 1e-7, part


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["mse", "bce"])
def test_imma_equals_finite_differences_through_the_inner_steps(kind, steps):
    def loss(seed):
        X, Y = draw(8, 3, seed=seed), torch.sigmoid(draw(8, 1, seed=seed + 1))
        if kind == "bce":
            return LogisticLoss(X, Y)
        return SquaredLoss(X.mT @ X, X.mT @ Y, float((Y**2).sum()), 8)

    harmful, benign = loss(0), loss(10)
    parameters = {"theta": draw(3, 2, seed=2), "omega": draw(2, 1, seed=3), "w": draw(2, 1, seed=4)}
    before = {name: value.clone() for name, value in parameters.items()}

    def outer(theta):
        for _ in range(steps):
            theta = theta - 0.2 * harmful.derivative(theta @ parameters["w"]) @ parameters["w"].mT
        return benign.value(theta @ parameters["omega"]) - harmful.value(theta @ parameters["w"])

    settings = DescentSettings(inner_steps=steps, inner_rate=0.2)
    found = bilevel_gradient(harmful, benign, parameters, settings)
    for index in ((0, 0), (1, 1), (2, 0)):
        delta = torch.zeros(3, 2, dtype=torch.float64)
        delta[index] = 1e-6
        theta = parameters["theta"]
        slope = float(outer(theta + delta) - outer(theta - delta)) / 2e-6
        assert float(found[index]) == pytest.approx(slope, rel=1e-6, abs=1e-7)
    assert all(torch.equal(parameters[name], before[name]) for name in before)
