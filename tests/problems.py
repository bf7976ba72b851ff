"""Rows that an attacker has, of each kind that the room must bear; used by all tests of it."""

import numpy as np

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
