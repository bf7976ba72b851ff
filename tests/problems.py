"""Problems, listed once: rows of each structure, targets, θ, and what callers pass for an array."""

import numpy as np
import torch

from condnum.methods import ImmunizationProblem
from condnum.theory.task import Task

EPS = 2.0**-52


def draw(*shape, seed=0):
    """Standard normal numbers, as a tensor."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def rows_of(kappa, N, D, seed=0):
    """Rows with singular values from 1 to 1/κ in random directions."""
    rng, n = np.random.default_rng(seed), min(N, D)
    U, V = (orthogonal(rng, size)[:, :n] for size in (N, D))
    return (U * np.geomspace(1, 1 / kappa, n)) @ V.T


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


def structures(D):
    """Rows `(N, D)` on which what is right for Gaussian ones can be wrong."""
    rng, half = np.random.default_rng(1), D // 2
    normal, first = rng.normal(size=(60, D)), np.arange(D) < half
    blocks = normal * ((np.arange(60) < 30)[:, None] == first)
    return {
        "Gaussian": normal,
        "uneven columns": rng.normal(size=(60, D)) * np.geomspace(1, 0.03, D),
        "half of the rank": normal[:, :half] @ rng.normal(size=(half, D)),
        "N < D": rng.normal(size=(max(1, D - 2), D)),
        "one-hot and a dead column": np.eye(D)[rng.integers(0, D - 1, 60)],
        "blocks": blocks * np.where(first, 1, 5),
        "repeated eigenvalues": 2 * np.linalg.qr(rng.normal(size=(60, D)))[0],
        "half of the columns": normal * (np.arange(D) % 2 == 0),
        "weak column": rng.normal(size=(60, D)) * np.where(np.arange(D), 1, 1e-4),
        "far from zero": normal + 100,
        "κ near 1e10": rows_of(1e5, 60, D),
        "float32": (normal @ rng.normal(size=(D, D))).astype(np.float32),
    }


ROWS = structures(6)
#: Each of them beside some of the others, and itself.
PAIRS = [(benign, harmful) for i, benign in enumerate(ROWS) for harmful in [*ROWS, *ROWS][i : i + 12 : 2]]
LABELS = np.random.default_rng(2).permutation(np.arange(60) % 3)


def thetas(D=6, seed=0):
    """Extractors of each kind by name; all but the last two are invertible."""
    rng = np.random.default_rng(seed)
    return {
        "Gaussian": rng.normal(size=(D, D)),
        "rotation": orthogonal(rng, D),
        "skewed": np.geomspace(1, 1e-3, D)[:, None] * orthogonal(rng, D),
        "nearly of rank 1": np.outer(*rng.normal(size=(2, D))) + 1e-3 * rng.normal(size=(D, D)),
        "more columns": rng.normal(size=(D, D + 2)),
        "fewer columns": rng.normal(size=(D, max(1, D - 2))),
    }


RNG = np.random.default_rng(7)


def _rows(N, D, rank=None, scale=1.0):
    X = RNG.normal(size=(N, D)) * np.geomspace(1, scale, D)
    if rank is not None:
        Q = np.linalg.qr(RNG.normal(size=(D, rank)))[0]
        X = X @ Q @ Q.T
    return X + RNG.normal(size=D)


def _numbers(X, outputs=1):
    Y = (X - X.mean(axis=0)) @ RNG.normal(size=(X.shape[1], outputs))
    return Y + 0.3 * Y.std() * RNG.normal(size=Y.shape)


def _labels(X, classes):
    names = np.array(["cat", "dog", "owl", "rat"])[:classes]
    return names[_numbers(X, classes).argmax(axis=1)]


def _all():
    for name, X, make in (
        ("numbers", _rows(60, 5, scale=0.2), _numbers),
        ("two outputs", _rows(60, 5), lambda X: _numbers(X, 2)),
        ("two classes", _rows(90, 5), lambda X: _labels(X, 2)),
        ("four classes", _rows(120, 6), lambda X: _labels(X, 4)),
        ("rank 4 of 7", _rows(50, 7, rank=4), _numbers),
        ("N < D", _rows(12, 20), _numbers),
        ("one-hot and a dead column", np.c_[np.eye(5)[RNG.integers(0, 5, 80)], np.full(80, 3.0)], _numbers),
    ):
        yield name, (X, make(X))


#: Name -> rows `(N, D)` and numbers or text.
PROBLEMS = dict(_all())


def turned(D, least=0.05, seed=1):
    """An invertible θ `(D, D)` with singular values from 1 to `least`, aligned with nothing."""
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0]
    return Q @ np.diag(np.geomspace(1, least, D))


def columns(y):
    """Targets `(N, m)`: one-hot columns of labels, numbers as they are."""
    if y.dtype.kind == "U":
        return 1.0 * (y[:, None] == np.unique(y))
    return y.reshape(len(y), -1)


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
