"""One step of Algorithm 1 at D = 784, against the straightforward one and in units of one GEMM."""

import statistics
import time

import numpy as np
import pytest
import torch

from condnum.machine import limited_threads
from condnum.methods.algorithm1 import Ours
from condnum.methods.descent import make_optimizer
from condnum.methods.method import Memory
from condnum.methods.problem import ImmunizationProblem, LinearTask, ProblemBatch
from condnum.theory.extremes import gram
from condnum.theory.spectra import covariance_factor

D = 784


def digit_like(seed, real):
    """A covariance of the size and rank of an MNIST digit's: the digit itself where the data are."""
    if real is not None:
        X = torch.as_tensor(np.array(real.pixels(np.flatnonzero(real.labels == seed))))
    else:
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(6000, 550, generator=generator, dtype=torch.float64) @ torch.randn(
            550, D, generator=generator, dtype=torch.float64
        )
    K = gram(X)
    return LinearTask(K, known_factor=covariance_factor(K))


def straightforward(theta, K_P, K_H, k, optimizer):
    """The step that the paper describes: autograd through the whole spectra, then two solves."""
    terms = []
    for K, rank, sign in ((K_P, D, "well"), (K_H, k, "ill")):
        leaf = theta.detach().requires_grad_()
        sigma = torch.linalg.eigvalsh(leaf.mT @ K @ leaf)
        mean = (sigma**2).sum() / (2 * rank)
        value = sigma[-1] ** 2 / 2 - mean if sign == "well" else 1 / (mean - sigma[-rank] ** 2 / 2)
        (gradient,) = torch.autograd.grad(value, leaf)
        terms.append(torch.linalg.solve(K + 1e-6 * torch.eye(D, dtype=K.dtype), gradient))
    theta.grad = terms[0] / terms[0].norm() + terms[1] / terms[1].norm()
    optimizer.step()


def median_seconds(call, rounds):
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def test_step_speed(benchmark):
    if benchmark.disabled:
        pytest.skip("a benchmark; run it with make bench")
    try:
        from condnum.data import load_mnist_images

        real = load_mnist_images("local")
    except FileNotFoundError:
        real = None
    problem = ImmunizationProblem(digit_like(4, real), digit_like(7, real))
    batch = ProblemBatch.of([problem], problem.device)
    method, memory = Ours(), Memory(torch.ones(1, dtype=torch.bool))
    weights = {"well": torch.tensor([1e-6]).double(), "ill": torch.tensor([1e6]).double()}
    with limited_threads(1):  # as the sweep computes; both sides and the GEMM alike
        parameters = method.initial(problem, torch.Generator().manual_seed(0))
        theta = parameters["theta"] = parameters["theta"][None]
        optimizer = make_optimizer("adam", parameters)

        def step():
            gradients = method.batched_gradients(batch, parameters, method.defaults, memory)
            total = gradients.weighted_sum(theta, weights, memory)
            optimizer.step({"theta": total}, 1e-3)

        other = theta[0].clone()
        naive = torch.optim.Adam([other], lr=1e-3)
        K_P, K_H, k = problem.pretrain.covariance, problem.harmful.covariance, problem.harmful.rank
        square = torch.randn(D, D, dtype=torch.float64)
        gemm = median_seconds(lambda: square @ square, 20)
        reference = median_seconds(lambda: straightforward(other, K_P, K_H, k, naive), 5)
        benchmark.pedantic(step, rounds=15, warmup_rounds=2)
    ours = benchmark.stats.stats.median
    print(
        f"\none step at D = {D} on {'MNIST 4 against 7' if real else 'random data'}, one thread: "
        f"{ours * 1e3:.1f} ms = {ours / gemm:.2f} GEMM of {gemm * 1e3:.1f} ms; straightforward "
        f"{reference * 1e3:.0f} ms; {reference / ours:.1f} times as fast; {memory.counts}"
    )
    assert reference / ours >= 2
