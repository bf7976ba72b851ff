"""Losses and optima against autograd, torch's optimizers and SciPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from condnum.probing import AttackBudget
from condnum.probing.attackers import StochasticDescent, descend_grid
from condnum.probing.race import AttackProblem, Race, zero_weights
from condnum.probing.space import ProbeSpace


@pytest.fixture
def space():
    generator = np.random.default_rng(3)
    X = generator.normal(size=(60, 4)) * [2.0, 1.0, 0.5, 0.3]
    return ProbeSpace(X, X @ generator.normal(size=(4, 2)) + generator.normal(size=(60, 2)))


def test_the_optimum_is_that_of_a_solver_who_reads_small_directions(space):
    """Singular values of 1e-9 are far above round-off of the features, if not above that of their squares."""
    small = replace(space, features=space.features * [1.0, 1.0, 1.0, 1e-9])
    assert small.optimum == pytest.approx(space.optimum, rel=1e-6)
    rows = small.features
    solved = rows @ np.linalg.lstsq(rows, space.targets)[0]
    assert ((space.targets - solved) ** 2).sum() / len(rows) == pytest.approx(small.optimum, rel=1e-6)
    gone = replace(space, features=space.features * [1.0, 1.0, 1.0, 1e-17])
    assert gone.optimum > space.optimum * 1.001


def torch_loss(space, W):
    """The mean loss by torch, of weights (k, m)."""
    features, targets = torch.from_numpy(space.features), torch.from_numpy(space.targets)
    return ((features @ W - targets) ** 2).sum() / len(targets)


def relative(space, loss):
    return (loss - space.optimum) / (space.start_loss - space.optimum)


def test_gradient_and_loss_of_many_candidates_match_autograd(space):
    W = np.random.default_rng(0).normal(size=(3, *zero_weights(space, 1).shape[1:]))
    excess, G = space.evaluate(W)
    for b in range(3):
        w = torch.from_numpy(W[b]).requires_grad_()
        loss = torch_loss(space, w)
        loss.backward()
        assert excess[b] == pytest.approx(relative(space, loss.item()), rel=1e-9)
        np.testing.assert_allclose(G[b], w.grad.numpy(), rtol=1e-9, atol=1e-12)
    rows = np.arange(len(space.features))
    np.testing.assert_allclose(space.batch_gradient(W, rows), G, rtol=1e-9, atol=1e-12)


def test_the_optimum_is_scipys_and_smoothness_is_the_largest_curvature(space):
    zero = zero_weights(space, 1)[0]

    def loss(w):
        return torch_loss(space, w.reshape(zero.shape))

    assert space.evaluate(zero[None])[0].tolist() == pytest.approx([1])
    found = minimize(lambda w: float(loss(torch.from_numpy(w))), zero.ravel(), tol=1e-12)
    assert space.optimum == pytest.approx(found.fun, abs=1e-7)
    H = torch.autograd.functional.hessian(loss, torch.from_numpy(zero.ravel()))
    assert float(torch.linalg.eigvalsh(H)[-1]) == pytest.approx(space.smoothness)


def losses_by_torch(space, parameters, optimizer, steps):
    """Relative excess losses of an optimizer of torch; two parameters are the factors of the weights."""
    values = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        loss = torch_loss(space, parameters[0] if len(parameters) == 1 else parameters[0] @ parameters[1])
        loss.backward()
        values.append(relative(space, loss.item()))
        optimizer.step()
    return values


def far(steps):
    return AttackBudget(dense_steps=steps, epsilons=(1e-9,), reported_epsilon=1e-9)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("layers", [1, 2])
def test_each_candidate_of_a_grid_descends_as_it_would_alone(space, kind, layers):
    own = {"momentum": 0.9, "nesterov": True} if kind is torch.optim.SGD else {}
    options, race = [{"lr": 0.01}, {"lr": 0.05, **own}], Race(space, ["a", "b"], far(8))
    start = [zero_weights(space, 1)[0]]
    if layers == 2:
        U = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 3)))[0]
        start = [U, np.zeros((3, space.outputs))]
    descend_grid(space, race, kind, options, start)
    for trace, alone in zip(race.traces(), options, strict=True):
        parameters = [torch.tensor(layer, requires_grad=True) for layer in start]
        losses = losses_by_torch(space, parameters, kind(parameters, **alone), 8)
        np.testing.assert_allclose(trace.excess, losses, rtol=1e-6)


def test_sgd_takes_each_row_once_an_epoch_and_is_seeded(space, monkeypatch):
    budget, seen = AttackBudget(40, batch_size=20, epsilons=(1e-9,), reported_epsilon=1e-9, seed=4), []
    really = ProbeSpace.batch_gradient
    monkeypatch.setattr(
        ProbeSpace, "batch_gradient", lambda own, W, at: seen.append(at) or really(own, W, at)
    )
    run, again = (StochasticDescent().run(AttackProblem(space, space, None), budget) for _ in range(2))
    assert sorted(np.concatenate(seen[:3])) == list(range(60))
    assert run.batch_fraction == pytest.approx(1 / 3)
    np.testing.assert_array_equal(run.traces[3].excess, again.traces[3].excess)


def test_whitened_and_standardized_spaces(space):
    white = space.whitened
    np.testing.assert_allclose(white.features.T @ white.features / 60, np.eye(4), atol=1e-12)
    assert white.optimum == pytest.approx(space.optimum)
    standard = space.standardized.features
    np.testing.assert_allclose(standard[:, :4].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(standard[:, :4].std(axis=0), 1)
    assert (standard[:, 4] == 1).all()
    assert space.standardized.optimum <= space.optimum + 1e-12
