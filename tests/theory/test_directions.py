"""Generalised eigenvectors against SciPy, and what their shares mean."""

import numpy as np
import pytest
from scipy.linalg import eigh

from condnum.theory.ceiling import pencil_directions


def pair(seed=0, dimension=6):
    generator = np.random.default_rng(seed)
    return [X.T @ X for X in generator.normal(size=(2, dimension + 4, dimension))]


@pytest.mark.parametrize("ridge", [None, 0.7])
def test_against_scipy(ridge):
    K_P, K_H = pair()
    found = pencil_directions(K_P, K_H, ridge=ridge)
    added = (ridge or 0.0) * np.eye(6)
    values, W = eigh(K_H + added, K_P + added)
    np.testing.assert_allclose(found.values, values[::-1], rtol=1e-9)
    np.testing.assert_allclose(found.filters.abs(), np.abs(W[:, ::-1]), atol=1e-8)
    np.testing.assert_allclose(found.patterns, (K_P + added) @ found.filters.numpy(), atol=1e-8)
    # One pattern for both tasks, up to λ.
    np.testing.assert_allclose(
        found.patterns * found.values, (K_H + added) @ found.filters.numpy(), atol=1e-7
    )


def test_shares_sum_to_one_and_do_not_see_units():
    K_P, K_H = pair(2)
    units = np.diag([1.0, 1000.0, 0.01, 3.0, 1.0, 7.0])
    plain = pencil_directions(K_P, K_H)
    scaled = pencil_directions(units @ K_P @ units, units @ K_H @ units)
    np.testing.assert_allclose(plain.shares.sum(dim=0), np.ones(6), rtol=1e-9)
    np.testing.assert_allclose(scaled.shares, plain.shares, atol=1e-6)  # κ of the units is 1e10


def test_on_singular_tasks_the_range_alone_counts():
    found = pencil_directions(np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 9.0]))
    np.testing.assert_allclose(found.values, [3.0, 0.5])
    np.testing.assert_allclose(found.filters[2], 0, atol=1e-12)
