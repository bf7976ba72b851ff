"""Small random problems, listed once."""

import numpy as np
import pytest

from condnum.methods import ImmunizationProblem

#: What is special about a problem, by name.
KINDS = {
    "numbers": {},
    "logits": {"loss": "bce"},
    "classes": {"classes": True},
    "singular": {"rank": 4},
    "two-outputs": {"outputs": 2},
    "no-targets": {"targets": False},
}


def random_problem(
    D=6, rows=20, *, seed=0, targets=True, outputs=1, loss="mse", rank=None, classes=False, order="abc"
):
    """Gaussian data with columns scaled 1 … ¼; `rank` cuts both tasks to their first directions."""
    rng, parts = np.random.default_rng(seed), []
    for _ in range(2):
        X = rng.normal(size=(rows, D)) * np.geomspace(1, 0.25, D)
        if rank is not None:
            Q = np.linalg.qr(rng.normal(size=(D, rank)))[0]
            X = X @ Q @ Q.T
        y = X @ rng.normal(size=(D, outputs)) + 0.1 * rng.normal(size=(rows, outputs))
        if classes:
            y = np.array([*order])[np.digitize(y[:, 0], [-0.5, 0.5])]
        parts += [X, (y > 0).astype(float) if loss == "bce" else y]
    if not targets:
        return ImmunizationProblem.from_data(parts[0], None, parts[2])
    return ImmunizationProblem.from_data(*parts, loss=loss)


@pytest.fixture
def make_problem():
    return random_problem
