"""Random covariances of a stated rank and condition number, for the tests of theory and methods."""

import numpy as np
import torch

from condnum.theory.spectra import hessian


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def covariance_of(rng, dimension, rank, kappa, scale=1.0):
    """A covariance of that rank in random directions, its values log-spaced from `scale` to `scale/kappa`."""
    values = np.zeros(dimension)
    values[:rank] = scale * np.geomspace(1, 1 / kappa, rank)
    Q = orthogonal(rng, dimension)
    return (Q * values) @ Q.T


def theta_gradient(regularizer, theta, K, **options):
    """The gradient of a regularizer of H(θ) in θ, by its backward (Theorem 4.2)."""
    leaf = torch.as_tensor(theta).clone().requires_grad_()
    regularizer(hessian(leaf, K), **options).backward()
    return leaf.grad


#: Structured inputs on which a method that is right for Gaussian rows can be wrong.
STRUCTURES = ("gaussian", "blocks", "one-hot", "low-rank", "diagonal", "weak-column", "orthogonal-to-others")


def structured_rows(rng, structure, dimension, rows=60):
    """Rows `(rows, dimension)` whose covariance has a given structure."""
    X = rng.normal(size=(rows, dimension))
    if structure == "blocks":  # each row uses one block of columns
        cuts = np.sort(rng.choice(np.arange(1, dimension), size=min(2, dimension - 1), replace=False))
        blocks = np.split(np.arange(dimension), cuts)
        kept = np.zeros_like(X)
        for row, block in enumerate(rng.integers(len(blocks), size=rows)):
            kept[row, blocks[block]] = X[row, blocks[block]]
        return kept
    if structure == "one-hot":
        return np.eye(dimension)[rng.integers(dimension, size=rows)] * rng.choice([1.0, 3.0])
    if structure == "low-rank":
        rank = int(rng.integers(1, dimension + 1))
        return X[:, :rank] @ rng.normal(size=(rank, dimension))
    if structure == "diagonal":
        return np.diag(10.0 ** rng.uniform(-2, 2, dimension))
    if structure == "weak-column":
        X[:, 0] *= 1e-4
    if structure == "orthogonal-to-others":  # uses a random half of the columns
        X[:, rng.permutation(dimension)[: dimension // 2]] = 0
    return X
