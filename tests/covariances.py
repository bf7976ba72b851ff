"""Random matrices, covariances of a stated rank and condition number, and tasks with them."""

import numpy as np
import torch

from condnum.theory.kappa import hessian
from condnum.theory.task import Task


def draw(*shape, seed=0):
    """Standard normal numbers, as a tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def covariance_of(rng, dimension, rank, kappa, scale=1.0):
    """A covariance of that rank in random directions, its values log-spaced from `scale` to `scale/kappa`."""
    values = np.zeros(dimension)
    values[:rank] = scale * np.geomspace(1, 1 / kappa, rank)
    Q = orthogonal(rng, dimension)
    return (Q * values) @ Q.T


def decaying_task(dimension, rank, seed):
    """A task whose covariance has the eigenvalues 1, 0.95, 0.95², …"""
    Q, _ = torch.linalg.qr(draw(dimension, dimension, seed=seed))
    return Task.of(0.95 ** (torch.arange(rank, dtype=torch.float64)[:, None] / 2) * Q[:, :rank].mT)


def labeled_task(dimension, seed, *, rows=25):
    """Random rows with labels 0 and 1 as numbers, a task beside `decaying_task` for its loss."""
    y = (draw(rows, 1, seed=seed + 2) > 0).double()
    return draw(rows, dimension, seed=seed + 1), y


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


#: What a caller may pass for an array.
ODD_ARRAYS = {
    "as it is": lambda a: a,
    "requires_grad": lambda a: torch.tensor(a, requires_grad=True),
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "integers": lambda a: a.astype(int),
    "longdouble": lambda a: a.astype(np.longdouble),
    "reversed": lambda a: a[::-1],
    "sparse": lambda a: torch.tensor(a).to_sparse(),
    "csr": lambda a: torch.tensor(a).to_sparse_csr() if a.ndim == 2 else torch.tensor(a).to_sparse(),
    "complex": lambda a: a + 0j,
    "nan": lambda a: np.where(a > 0, np.nan, a),
    "least": lambda a: a * 5e-324,
    "largest": lambda a: a * 1e307,
    "zero": lambda a: 0 * a,
    "empty": lambda a: a[:0],
    "short": lambda a: a[:-1],
    "extra axis": lambda a: a[None],
    "list": lambda a: a.tolist(),
    "ragged": lambda a: [[1.0], [1.0, 2.0]],
    "objects": lambda a: a.astype(object),
    "text": lambda a: "abc",
    "nothing": lambda a: None,
    "number": lambda a: 1.0,
}
