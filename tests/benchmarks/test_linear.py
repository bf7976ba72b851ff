"""Steps, probes, erasure and κ, each beside what one would write first, in one run and on one thread."""

from time import process_time

import numpy as np
import pytest
import scipy.linalg
import torch

from condnum import Eraser, Immunizer, Task, condition_number, erasure, load_house_prices
from condnum.machine import limited_threads
from condnum.methods import get_method, immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import linear_probe
from condnum.theory.task import rank_tolerance


def digit_like(seed):
    """Rows of the number, size and rank of an MNIST digit's."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(6000, 550, generator=generator, dtype=torch.float64)
    return Task.of(X @ torch.randn(550, 784, generator=generator, dtype=torch.float64))


def prepared_step(problem, well=1e-3, ill=1e-3, rate=1e-4):
    """One step of Algorithm 1, ready to be called again and again."""
    method = get_method("ours")
    theta = method.initial(problem, torch.Generator().manual_seed(0))["theta"]
    optimizer = torch.optim.Adam([theta], lr=rate)

    def step():
        parts = method.gradients(problem, {"theta": theta}, method.defaults).of_theta(theta)
        theta.grad = well * parts["well"] + ill * parts["ill"]
        optimizer.step()

    return step


def straightforward(theta, problem, optimizer):
    """The step that the paper describes: autograd through the whole spectra, then two solves."""
    terms = []
    D = problem.dimension
    for task, rank, sign in ((problem.benign, D, "well"), (problem.harmful, problem.harmful.rank, "ill")):
        leaf, K = theta.detach().requires_grad_(), task.covariance
        sigma = torch.linalg.eigvalsh(leaf.mT @ K @ leaf)
        mean = (sigma**2).sum() / (2 * rank)
        value = sigma[-1] ** 2 / 2 - mean if sign == "well" else 1 / (mean - sigma[-rank] ** 2 / 2)
        (gradient,) = torch.autograd.grad(value, leaf)
        terms.append(torch.linalg.solve(K + 1e-6 * torch.eye(D, dtype=K.dtype), gradient))
    theta.grad = terms[0] / terms[0].norm() + terms[1] / terms[1].norm()
    optimizer.step()


@pytest.mark.parametrize(("data", "steps"), [("house-prices", 400), ("784 pixels", 12)])
def test_a_step_of_algorithm_1(data, steps, seconds):
    """Steps of the whole descent, with optimizer and checks, beside the step as the paper writes it."""
    if data == "house-prices":
        problem = ImmunizationProblem.from_pair(load_house_prices())
    else:
        problem = ImmunizationProblem(digit_like(4), digit_like(7))
    D = problem.dimension
    theta = get_method("ours").initial(problem, torch.Generator().manual_seed(0))["theta"].clone()
    naive, square = torch.optim.Adam([theta], lr=1e-3), torch.randn(D, D, dtype=torch.float64)
    with limited_threads(1):  # as the sweep computes

        def descend(count):
            immunize(problem, "ours", steps=count, record_every=0)

        start = seconds(lambda: descend(1))
        ours = (seconds(lambda: descend(steps + 1), 3) - start) / steps
        gemm = seconds(lambda: square @ square)
        reference = seconds(lambda: straightforward(theta, problem, naive), 3)
    print(
        f"\nstep at D = {D}: {ours * 1e3:.2f} ms = {ours / gemm:.1f} products of two such matrices; "
        f"{reference / ours:.1f} times as fast as the straightforward step"
    )


def plain_loop(Z, y, optimum, steps):
    """Exact line search as one would write it first: residual, gradient and `Zg` pass over the rows."""
    w = np.zeros(Z.shape[1])
    start, ratios = np.sum((w - optimum) ** 2), np.empty(steps + 1)
    for step in range(steps + 1):
        ratios[step] = np.sum((w - optimum) ** 2) / start
        gradient = Z.T @ (Z @ w - y)
        image = Z @ gradient
        w = w - (gradient @ gradient) / (image @ image) * gradient
    return ratios


def test_the_probes_of_figure_1(seconds):
    """A probe in the eigenbasis, set-up included, and a loop over the rows."""
    steps, looped, rng = 20_000, 2000, np.random.default_rng(0)
    X = rng.normal(size=(309, 79)) * np.geomspace(1, 0.03, 79)  # of the house prices' shape
    y = X @ rng.normal(size=79) + rng.normal(size=309)
    theta = np.eye(79) + rng.normal(size=(79, 79)) / 80
    Z = X @ theta
    optimum = np.linalg.lstsq(Z, y, rcond=1e-10)[0]
    ours = seconds(lambda: linear_probe(theta, Task.of(X, y), steps=steps), 1)
    loop = seconds(lambda: plain_loop(Z, y, optimum, looped), 1) * steps / looped
    print(f"\na probe of {steps:,} steps: {loop / ours:.1f} times as fast as a loop over the rows")
    curve = linear_probe(theta, Task.of(X, y), steps=200)
    found = plain_loop(Z, y, optimum, 200)[curve.steps]
    np.testing.assert_allclose(found, curve.norm_ratio, atol=1e-5)  # the loop's round-off grows with κ


#: Columns of features; `make bench-short` takes the small ones.
COLUMNS = [64, 256, *(pytest.param(D, marks=pytest.mark.slow) for D in (784, 1280, 2048))]


@pytest.mark.parametrize("dead", [0, 0.03])
@pytest.mark.parametrize("columns", COLUMNS)
def test_pareto_beside_one_generalized_eigh(columns, dead, seconds):
    """Features of a ReLU layer, with columns that are zero in both tasks or without."""
    rng = np.random.default_rng(0)
    weights, used = rng.normal(size=(columns // 4, columns)), np.arange(columns) >= dead * columns
    tasks = [
        (np.maximum(Z @ weights / columns**0.5 * 2, 0) + 0.05 * rng.normal(size=(len(Z), columns))) * used
        for Z in (rng.normal(size=(2 * columns + 300 * i, columns // 4)) + i for i in range(2))
    ]
    P, H = (X.T @ X for X in tasks)
    floor = 1e-6 * np.trace(P) / columns * np.eye(columns)
    with limited_threads(1):
        ours = seconds(lambda: Immunizer("pareto").fit(*tasks), 1, process_time)
        peer = seconds(lambda: scipy.linalg.eigh(H, P + floor), 1, process_time)
    print(f"\nD = {columns}, {dead:.0%} dead columns: pareto takes {ours / peer:.1f} times one eigh (SciPy)")


@pytest.mark.parametrize("columns", COLUMNS)
def test_erasure_beside_leace(columns, seconds):
    peer = pytest.importorskip("concept_erasure")
    rng = np.random.default_rng(0)
    X, y = torch.tensor(rng.normal(size=(5_000, columns))), torch.tensor(rng.integers(0, 5, 5_000))
    X -= X.mean(dim=0)
    Z = torch.nn.functional.one_hot(y).double()
    options = {"shrinkage": False, "affine": False, "constrain_cov_trace": False, "svd_tol": 1e-9}
    with limited_threads(1):
        ours = seconds(lambda: Eraser().fit(X, y), 1, process_time)
        theirs = seconds(lambda: peer.LeaceFitter.fit(X, Z, **options).eraser, 1, process_time)
    print(f"\nD = {columns}: Eraser takes {ours / theirs:.2f} times as long as LeaceFitter (concept-erasure)")
    fitted = peer.LeaceFitter.fit(X, Z, **options).eraser.P.T
    found = erasure(X, y, kind="classification").theta
    torch.testing.assert_close(found, fitted, atol=1e-8, rtol=0)


def test_kappa_through_the_gram_matrix(seconds):
    N, D = 100, 768
    X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))  # float32, as features are
    rtol = rank_tolerance(D, 2.0**-23) ** 2  # of eigenvalues

    def straight():
        """κ of the Hessian as Eq. 18 writes it."""
        Z = X.double()
        sigma = torch.linalg.eigvalsh(Z.mT @ Z)
        return sigma[-1] / sigma[sigma > rtol * sigma[-1]][0]

    with limited_threads(1):
        ours = seconds(lambda: condition_number(X, kind="features"))
        ratio = seconds(straight) / ours
    print(f"\nκ of {N}×{D} features: {ratio:.0f} times as fast as the eigenvalues of a {D}×{D} matrix")
    assert condition_number(X, kind="features").value == pytest.approx(float(straight()), rel=1e-9)
