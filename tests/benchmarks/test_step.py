"""One step of Algorithm 1: against the straightforward one, and in units of one GEMM."""

import statistics
import time

import torch

from condnum.machine import limited_threads
from condnum.methods.algorithm1 import Ours
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.theory.extremes import gram


def median_seconds(call, budget=0.6):
    """Median over as many calls as fit the budget, at least seven."""
    call()
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 7:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def prepared_step(problem, well=1e-3, ill=1e-3, rate=1e-4):
    """One step of Algorithm 1, ready to be called again and again."""
    method = Ours()
    theta = method.initial(problem, torch.Generator().manual_seed(0))["theta"]
    optimizer = torch.optim.Adam([theta], lr=rate)

    def step():
        parts = method.gradients(problem, {"theta": theta}, method.defaults).parts
        theta.grad = well * parts["well"] + ill * parts["ill"]
        optimizer.step()

    return step


def digit_like(seed):
    """A covariance of the size and rank of an MNIST digit's."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(6000, 550, generator=generator, dtype=torch.float64)
    return LinearTask(gram(X @ torch.randn(550, 784, generator=generator, dtype=torch.float64)))


def straightforward(theta, problem, optimizer):
    """The step that the paper describes: autograd through the whole spectra, then two solves."""
    terms = []
    D = problem.dimension
    for task, rank, sign in ((problem.pretrain, D, "well"), (problem.harmful, problem.harmful.rank, "ill")):
        leaf, K = theta.detach().requires_grad_(), task.covariance
        sigma = torch.linalg.eigvalsh(leaf.mT @ K @ leaf)
        mean = (sigma**2).sum() / (2 * rank)
        value = sigma[-1] ** 2 / 2 - mean if sign == "well" else 1 / (mean - sigma[-rank] ** 2 / 2)
        (gradient,) = torch.autograd.grad(value, leaf)
        terms.append(torch.linalg.solve(K + 1e-6 * torch.eye(D, dtype=K.dtype), gradient))
    theta.grad = terms[0] / terms[0].norm() + terms[1] / terms[1].norm()
    optimizer.step()


def test_step_speed(benchmark):
    problem = ImmunizationProblem(digit_like(4), digit_like(7))
    with limited_threads(1):  # as the sweep computes; both sides and the GEMM alike
        step = prepared_step(problem, well=1e-6, ill=1e6, rate=1e-3)
        other = Ours().initial(problem, torch.Generator().manual_seed(0))["theta"].clone()
        naive = torch.optim.Adam([other], lr=1e-3)
        square = torch.randn(784, 784, dtype=torch.float64)
        gemm = median_seconds(lambda: square @ square)
        reference = median_seconds(lambda: straightforward(other, problem, naive))
        benchmark.pedantic(step, rounds=15, warmup_rounds=2)
    ours = benchmark.stats.stats.median
    print(
        f"\none step at D = 784, one thread: "
        f"{ours * 1e3:.1f} ms = {ours / gemm:.2f} GEMM of {gemm * 1e3:.1f} ms; straightforward "
        f"{reference * 1e3:.0f} ms; {reference / ours:.1f} times as fast"
    )
    assert reference / ours >= 2
