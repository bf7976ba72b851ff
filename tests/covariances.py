"""Random covariances of a stated rank and condition number, for the tests of theory and methods."""

import numpy as np


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def covariance_of(rng, dimension, rank, kappa, scale=1.0):
    """A covariance of that rank in random directions, its values log-spaced from `scale` to `scale/kappa`."""
    values = np.zeros(dimension)
    values[:rank] = scale * np.geomspace(1, 1 / kappa, rank)
    Q = orthogonal(rng, dimension)
    return (Q * values) @ Q.T
