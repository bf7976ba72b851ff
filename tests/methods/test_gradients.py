"""The gradients of every method, alone and in batches, against autograd and finite differences."""

import pytest
import torch

from condnum.methods import ImmaSettings, get_method
from condnum.methods.baselines import bilevel_gradient
from condnum.methods.descent import LARGE, make_optimizer
from condnum.methods.method import SMALL, Memory
from condnum.methods.problem import ImmunizationProblem, LinearTask, LogisticLoss, ProblemBatch, SquaredLoss
from condnum.theory.spectra import covariance_factor


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def task(dimension, rank, seed, decay=0.95):
    """Rows, targets and a covariance with eigenvalues decay^0 … decay^(rank − 1)."""
    Q, _ = torch.linalg.qr(draw(dimension, dimension, seed=seed))
    factor = decay ** (torch.arange(rank, dtype=torch.float64)[:, None] / 2) * Q[:, :rank].mT
    K = factor.mT @ factor
    X = draw(rank + 5, dimension, seed=seed + 1)
    y = (draw(rank + 5, 1, seed=seed + 2) > 0).double()
    return LinearTask(K, None, y, "mse", X, covariance_factor(K, rtol=1e-13))


#: One small problem (`eigh`), one large one (Lanczos), and several of different ranks.
SHAPES = {
    "small": (9, [(9, 7)]),
    "large": (SMALL + 12, [(120, 110)]),
    "batch": (SMALL + 12, [(120, 110), (140, 130)]),
}


def setting(shape):
    D, ranks = SHAPES[shape]
    problems = [
        ImmunizationProblem(task(D, p, 10 * i), task(D, h, 10 * i + 5)) for i, (p, h) in enumerate(ranks)
    ]
    theta = torch.eye(D, dtype=torch.float64) + 0.02 * draw(len(problems), D, D, seed=99)
    memory = Memory(torch.ones(len(problems), dtype=torch.bool))
    return problems, ProblemBatch.of(problems, torch.device("cpu")), theta, memory


def gradients_of(method, problems, batch, parameters, settings, memory):
    """As the loop asks for them: one small problem by `gradients`, what is larger in factor form."""
    if parameters["theta"].shape[1] > SMALL:
        return method.batched_gradients(batch, parameters, settings, memory)
    alone = {name: value[0] for name, value in parameters.items()}
    return method.gradients(problems[0], alone, settings, memory).as_batch()


def whole(gradients, theta, part, memory):
    """One part of θ's gradient, evaluated."""
    kinds = ("theta_parts", "hessian_parts", "outer_parts")
    alone = {kind: {k: v for k, v in getattr(gradients, kind).items() if k == part} for kind in kinds}
    return type(gradients)(**alone).weighted_sum(theta, {part: theta.new_ones(len(theta))}, memory)


def r_well(H, rank):
    sigma = torch.linalg.eigvalsh(H)
    return sigma[-1] ** 2 / 2 - (sigma**2).sum() / (2 * len(sigma))


def r_ill(H, rank):
    sigma = torch.linalg.eigvalsh(H)[-rank:]
    return 1 / ((sigma**2).sum() / (2 * rank) - sigma[0] ** 2 / 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_algorithm_1_descends_the_preconditioned_gradients(shape):
    """K·direction = ∇_θR, where autograd goes through the whole spectrum of H; K⁻¹ is never formed."""
    problems, batch, theta, memory = setting(shape)
    omega = draw(len(problems), theta.shape[1], 1, seed=7)
    method = get_method("ours")
    parameters = {"theta": theta, "omega": omega}
    found = gradients_of(method, problems, batch, parameters, method.defaults, memory)
    for i, problem in enumerate(problems):
        for part, own, value in (("well", problem.pretrain, r_well), ("ill", problem.harmful, r_ill)):
            leaf = theta[i].clone().requires_grad_()
            value(leaf.mT @ own.covariance @ leaf, own.rank).backward()
            direction = whole(found, theta, part, memory)[i]
            error = (own.covariance @ direction - leaf.grad).norm() / leaf.grad.norm()
            assert float(error) <= 1e-8, part
        leaf, head = theta[i].clone().requires_grad_(), omega[i].clone().requires_grad_()
        problem.pretrain.supervised.value(leaf @ head).backward()
        torch.testing.assert_close(whole(found, theta, "supervised", memory)[i], leaf.grad)
        torch.testing.assert_close(found.others["omega"][i], head.grad)
    assert ("lanczos_steps" in memory.counts) == (shape != "small")


@pytest.mark.parametrize("convention", ["compact", "ridge"])
@pytest.mark.parametrize("objective", ["difference", "log"])
@pytest.mark.parametrize("shape", SHAPES)
def test_opt_kappa_descends_the_condition_numbers(shape, convention, objective):
    problems, batch, theta, memory = setting(shape)
    method = get_method("opt_kappa")
    settings = method.defaults.with_overrides(convention=convention, objective=objective, ridge=0.1)
    found = gradients_of(method, problems, batch, {"theta": theta}, settings, memory)
    for i, problem in enumerate(problems):
        for part, own, sign in (("pretrain", problem.pretrain, 1), ("harmful", problem.harmful, -1)):
            leaf = theta[i].clone().requires_grad_()
            sigma = torch.linalg.svdvals(own.factor @ leaf) ** 2
            kappa = sigma[0] / sigma[-1]
            if convention == "ridge":
                kappa = (sigma[0] + 0.1) / (0.1 + (sigma[-1] if own.rank == len(leaf) else 0))
            (sign * (kappa.log() if objective == "log" else kappa)).backward()
            error = (whole(found, theta, f"kappa_{part}", memory)[i] - leaf.grad).norm() / leaf.grad.norm()
            assert float(error) <= 1e-7, part
    if shape == "batch":  # in the ridge convention only a full rank needs σ_D
        expected = [2, 2] if convention == "compact" else [0, 1]
        assert memory.counts["smallest_pair_solves"].tolist() == expected


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["mse", "bce"])
def test_imma_equals_finite_differences_through_the_inner_steps(kind, steps):
    def loss(seed):
        X, Y = draw(8, 3, seed=seed), torch.sigmoid(draw(8, 1, seed=seed + 1))
        return (
            LogisticLoss(X, Y, 8)
            if kind == "bce"
            else SquaredLoss(X.mT @ X, X.mT @ Y, float((Y**2).sum()), 8)
        )

    harmful, pretrain = loss(0), loss(10)
    parameters = {"theta": draw(3, 2, seed=2), "omega": draw(2, 1, seed=3), "w": draw(2, 1, seed=4)}
    before = {name: value.clone() for name, value in parameters.items()}

    def outer(theta):
        for _ in range(steps):
            theta = theta - 0.2 * harmful.derivative(theta @ parameters["w"]) @ parameters["w"].mT
        return pretrain.value(theta @ parameters["omega"]) - harmful.value(theta @ parameters["w"])

    settings = ImmaSettings(inner_steps=steps, inner_rate=0.2)
    found = bilevel_gradient(harmful, pretrain, parameters, settings)
    for index in ((0, 0), (1, 1), (2, 0)):
        delta = torch.zeros(3, 2, dtype=torch.float64)
        delta[index] = 1e-6
        theta = parameters["theta"]
        slope = float(outer(theta + delta) - outer(theta - delta)) / 2e-6
        assert float(found[index]) == pytest.approx(slope, rel=1e-6, abs=1e-7)
    assert all(torch.equal(parameters[name], before[name]) for name in before)


@pytest.mark.parametrize("rows", [3, LARGE + 1])
@pytest.mark.parametrize(("name", "peer"), [("adam", torch.optim.Adam), ("gd", torch.optim.SGD)])
def test_the_optimizers_step_as_those_of_torch(name, peer, rows):
    theta, omega = draw(rows, 4), draw(rows, 1, seed=1)
    ours = {"theta": theta.clone(), "omega": omega.clone()}
    theirs = [theta.clone(), omega.clone()]
    optimizer, other = make_optimizer(name, ours), peer(theirs, lr=0.1)
    for step in range(5):
        other.param_groups[0]["lr"] = rate = 0.1 / (step + 1)
        gradients = {key: 2 * value + step for key, value in ours.items()}
        for tensor, gradient in zip(theirs, gradients.values(), strict=True):
            tensor.grad = gradient.clone()
        optimizer.step(gradients, rate)
        other.step()
    torch.testing.assert_close(list(ours.values()), theirs, rtol=1e-12, atol=1e-12)


def test_a_process_that_descends_does_not_load_the_compiler():
    import subprocess
    import sys

    code = (
        "import sys; from condnum import ImmunizationProblem, immunize; import numpy as np;"
        "X = np.eye(3); y = np.ones(3);"
        "immunize(ImmunizationProblem.from_data(X, y, X, y), 'ours', steps=2);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
