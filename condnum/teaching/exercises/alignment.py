"""Exercise 4: Proposition 3.2 fails."""

from __future__ import annotations

from typing import Any

import numpy as np

from condnum.singular_alignment import alignment
from condnum.teaching.exercises.verdict import AnswerError, check, covariance_like, matrix

#: How far the prediction must be off.
FACTOR = 10.0


@check
def check_underestimate(theta: Any, K: Any) -> str:
    """Exercise 4: θ and K, 2×2, for which Eq. 10 underestimates κ(H) at least tenfold.

    Args:
        theta: `(2, 2)`, invertible, with two different singular values.
        K: `(2, 2)`, positive definite.

    Returns:
        A verdict.

    Raises:
        AnswerError: Eq. 10 is not single-valued, exact, or not far enough off; turned into the verdict.
    """
    T, K = matrix(theta, (2, 2), "θ"), covariance_like(K, 2, "K")
    if np.linalg.matrix_rank(T) < 2 or np.linalg.matrix_rank(K) < 2:
        raise AnswerError("θ and K must be invertible: otherwise two different subspaces are compared.")
    result = alignment(T, K)
    if not result.u_unique:
        raise AnswerError(
            "both singular values of θ are equal, so U is any rotation and Eq. 10 has no single value; "
            "make them differ a little."
        )
    if result.misalignment < 1e-9:
        raise AnswerError("U diagonalises K here, so Eq. 10 is exact; turn K's eigenvectors against U.")
    factor = 1 / result.condition_ratio
    if factor < FACTOR:
        raise AnswerError(
            f"Eq. 10 predicts {result.predicted_condition:.3g}, the truth is {result.true_condition:.3g}: "
            f"a factor of {factor:.3g} only. A nearly singular K with 45° between U and Q goes further."
        )
    return (
        f"Eq. 10 predicts κ = {result.predicted_condition:.3g}, the truth is {result.true_condition:.3g}. "
        "The diagonal of ΣUᵀKUΣ is majorised by its eigenvalues, so the error has this sign always."
    )
