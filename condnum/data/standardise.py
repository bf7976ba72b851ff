"""Label encoding and standardisation of tables: the two steps that every tabular loader shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.task_arrays import FloatArray


def label_encode(values: NDArray[Any]) -> FloatArray:
    """Number the categories 0, 1, … in sorted order, as scikit-learn's `LabelEncoder` does.

    Examples:
        >>> label_encode(np.array(["b", "a", "b", "0"]))
        array([2., 1., 2., 0.])
    """
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.float64)


def standardise(values: FloatArray, *, reference: FloatArray | None = None) -> FloatArray:
    r"""Subtract the mean and divide by the population standard deviation, column by column.

    :math:`\tilde x_{nd} = (x_{nd} - \mu_d)/s_d` with
    :math:`s_d^2 = \frac1N\sum_n (x_{nd} - \mu_d)^2`. A column that is constant in the
    reference rows becomes exactly zero: its mean in floating point may differ from the constant
    by round-off, which the division would blow up to order 1.

    Examples:
        >>> standardise(np.array([[1.0, 0.1], [3.0, 0.1]]))
        array([[-1.,  0.],
               [ 1.,  0.]])
    """
    base = values if reference is None else reference
    constant = (base == base[:1]).all(axis=0)
    deviation = np.where(constant, 1.0, base.std(axis=0))
    return np.where(constant, 0.0, (values - base.mean(axis=0)) / deviation)
