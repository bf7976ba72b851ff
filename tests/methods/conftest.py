"""Small random problems, with and without targets."""

import numpy as np
import pytest

from condnum.methods.problem import ImmunizationProblem


def random_problem(D=6, rows=20, *, seed=0, targets=True, outputs=1, loss="mse", rank=None):
    """Gaussian data with columns scaled 1 … ¼; `rank` cuts both tasks to their first directions."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(2):
        X = rng.normal(size=(rows, D)) * np.geomspace(1, 0.25, D)
        if rank is not None:
            Q = np.linalg.qr(rng.normal(size=(D, rank)))[0]
            X = X @ Q @ Q.T
        y = X @ rng.normal(size=(D, outputs)) + 0.1 * rng.normal(size=(rows, outputs))
        parts += [X, (y > 0).astype(float) if loss == "bce" else y]
    if not targets:
        return ImmunizationProblem.from_data(parts[0], None, parts[2])
    return ImmunizationProblem.from_data(*parts, loss=loss)


@pytest.fixture
def make_problem():
    return random_problem
