"""κ of 100 samples × 768 features through the 100×100 Gram matrix, against a 768×768 `eigvalsh`."""

import statistics
import time

import pytest
import torch

from condnum.deep.regularizers import feature_rtol
from condnum.machine import limited_threads
from condnum.theory.spectra import condition_number

N, D = 100, 768


def median_seconds(call, rounds):
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def test_kappa_through_the_gram_matrix(benchmark):
    if benchmark.disabled:
        pytest.skip("a benchmark; run it with make bench")
    X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))  # float32, as features are
    rtol = feature_rtol(X)

    def straightforward():
        """κ of the Hessian as Eq. 18 writes it."""
        Z = X.double()
        sigma = torch.linalg.eigvalsh(Z.mT @ Z)
        return sigma[-1] / sigma[sigma > rtol * sigma[-1]][0]

    with limited_threads(1):
        reference = median_seconds(straightforward, 7)
        kappa = benchmark.pedantic(
            lambda: condition_number(X, kind="features", rtol=rtol), rounds=30, warmup_rounds=3
        )
        expected = float(straightforward())
    ours = benchmark.stats.stats.median
    print(
        f"\nκ of {N}×{D} features, one thread: {ours * 1e3:.2f} ms through the {N}×{N} Gram matrix, "
        f"{reference * 1e3:.1f} ms through a {D}×{D} eigvalsh: {reference / ours:.0f} times as fast"
    )
    assert kappa.rank == N
    assert kappa.value == pytest.approx(expected, rel=1e-9)
    assert reference / ours >= 20
