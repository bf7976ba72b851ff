"""How one step of Algorithm 1 grows with the dimension: a fitted exponent, beside that of one GEMM."""

import statistics
import time

import numpy as np
import pytest
import torch

from condnum.machine import limited_threads
from condnum.methods.algorithm1 import Ours
from condnum.methods.descent import make_optimizer
from condnum.methods.method import SMALL, Memory
from condnum.methods.problem import ImmunizationProblem, LinearTask, ProblemBatch
from condnum.theory.extremes import gram
from condnum.theory.spectra import covariance_factor

DIMENSIONS = (64, 128, 256, 512, 784)


def image_like(D, seed):
    """A covariance whose spectrum falls as an image's does, with rank 3D/4."""
    generator = torch.Generator().manual_seed(seed)
    rank = 3 * D // 4
    Q, _ = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))
    factor = torch.arange(1, rank + 1, dtype=torch.float64)[:, None] ** -1.0 * Q[:, :rank].mT
    K = gram(factor)
    return LinearTask(K, known_factor=covariance_factor(K))


def median_seconds(call, budget=0.6):
    """Median over as many calls as fit the budget, at least seven."""
    call()
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 7:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def prepared_step(problem):
    """One step of Algorithm 1 on a problem, ready to be called again and again; and what it counts."""
    batch = ProblemBatch.of([problem], problem.device)
    method, memory = Ours(), Memory(torch.ones(1, dtype=torch.bool))
    theta = method.initial(problem, torch.Generator().manual_seed(0))["theta"][None]
    parameters = {"theta": theta}
    weights = dict.fromkeys(("well", "ill"), theta.new_tensor([1e-3]))
    optimizer = make_optimizer("adam", parameters)

    def step():
        if problem.dimension <= SMALL:  # as the loop does for one problem
            alone = {"theta": theta[0]}
            gradients = method.gradients(problem, alone, method.defaults, memory).as_batch()
        else:
            gradients = method.batched_gradients(batch, parameters, method.defaults, memory)
        total = gradients.weighted_sum(theta, weights, memory)
        optimizer.step({"theta": total}, 1e-4)

    return step, memory


def test_step_scaling(benchmark):
    if benchmark.disabled:
        pytest.skip("a benchmark; run it with make bench")
    steps, gemms = [], []
    with limited_threads(1):
        for D in DIMENSIONS:
            step, memory = prepared_step(ImmunizationProblem(image_like(D, 1), image_like(D, 2)))
            square = torch.randn(D, D, dtype=torch.float64)
            gemms.append(median_seconds(lambda square=square: square @ square))
            steps.append(median_seconds(step))
        benchmark.pedantic(step, rounds=5)  # the largest, for the table
    large = [i for i, D in enumerate(DIMENSIONS) if D > 128]  # one code path

    def exponent(times, chosen):
        return np.polyfit(np.log([DIMENSIONS[i] for i in chosen]), np.log([times[i] for i in chosen]), 1)[0]

    print("\n   D   step (ms)   GEMM (ms)   step/GEMM")
    for D, step_seconds, gemm in zip(DIMENSIONS, steps, gemms, strict=True):
        print(f"{D:4d} {step_seconds * 1e3:11.2f} {gemm * 1e3:11.3f} {step_seconds / gemm:11.1f}")
    everything = range(len(DIMENSIONS))
    print(
        f"fitted exponent: step {exponent(steps, everything):.2f}, GEMM {exponent(gemms, everything):.2f} "
        f"over all; step {exponent(steps, large):.2f}, GEMM {exponent(gemms, large):.2f} over D > 128 "
        f"(one thread; fall-backs at D = {DIMENSIONS[-1]}: {int(memory.counts['eigh_fallbacks'].sum())})"
    )
    assert exponent(steps, large) < 3.3
