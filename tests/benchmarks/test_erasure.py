"""Erasure beside its authors' package: the same θ, and the ratio of their times."""

import time

import numpy as np
import pytest
import torch

from condnum import erasure

peer = pytest.importorskip("concept_erasure")


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(5_000, 64), (5_000, 784)])
def test_erasure_beside_leace(benchmark, rows, columns):
    rng = np.random.default_rng(0)
    X, y = torch.tensor(rng.normal(size=(rows, columns))), torch.tensor(rng.integers(0, 5, rows))
    X -= X.mean(dim=0)
    Z = torch.nn.functional.one_hot(y).double()
    options = {"shrinkage": False, "affine": False, "constrain_cov_trace": False, "svd_tol": 1e-9}
    ours = benchmark.pedantic(lambda: erasure(X, y, kind="classification", shrinkage=0.0), rounds=5)
    theirs = []
    for _ in range(5):
        started = time.perf_counter()
        fitted = peer.LeaceFitter.fit(X, Z, **options).eraser.P.T
        theirs.append(time.perf_counter() - started)
    ratio = benchmark.stats.stats.median / np.median(theirs)
    print(f"\nD = {columns}: erasure takes {ratio:.2f} times as long as concept-erasure")
    torch.testing.assert_close(ours.theta, fitted, atol=1e-8, rtol=0)
    assert ratio < 20
