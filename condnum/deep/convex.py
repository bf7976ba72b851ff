"""The attacker's upper line: a linear probe solved to its optimum, which conditioning hardly slows.

κ bounds plain gradient descent. A quasi-Newton solver on standardised features reaches the optimum of
the same convex problem, so its accuracy is what immunization leaves to an informed attacker.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from condnum.deep.probe_data import Preprocessing, Rows, probe_data
from condnum.errors import InvalidInputError

#: Inverse strengths of the ℓ₂ penalty, two decades apart.
PENALTIES = (1e-3, 1e-1, 1e1, 1e3)


@dataclass(frozen=True)
class ConvexProbe:
    """Optimum of the probe, with the evidence that it is one."""

    test_accuracy: float  # 0 to 1
    train_accuracy: float
    penalty: float  # scikit-learn's C, the inverse strength, chosen on held-out rows
    heldout_accuracies: tuple[float, ...]  # of each C that was tried
    iterations: int  # of L-BFGS in the final fit
    converged: bool  # False: stopped at `max_iterations`, so the true line may lie higher
    preprocessing: Preprocessing


def convex_probe(
    features_train: Rows,
    y_train: Rows,
    features_test: Rows,
    y_test: Rows,
    *,
    penalties: Sequence[float] = PENALTIES,
    preprocessing: Preprocessing = "standardise",
    max_iterations: int = 1000,
    seed: int = 0,
) -> ConvexProbe:
    """Solve the probe with scikit-learn's `LogisticRegression` (L-BFGS), as an informed attacker would.

    The penalty is chosen on a fifth of each class of the training rows, then all of them are fitted.

    Args:
        features_train: `(N, D)`.
        y_train: `(N,)` labels, integers from 0.
        features_test: `(M, D)`.
        y_test: `(M,)`.
        penalties: Values of C to try; with one, nothing is held out.
        preprocessing: `standardise` or `none`.
        max_iterations: Of L-BFGS.
        seed: Of the held-out part.

    Returns:
        Accuracies, the chosen penalty, and whether the solver converged.

    Raises:
        InvalidInputError: Bad shapes, labels out of range, one class only, bad penalties or iterations.
        UnknownNameError: Unknown preprocessing.

    Examples:
        >>> y = np.arange(60) % 3
        >>> X = np.eye(3)[y]
        >>> convex_probe(X, y, X, y).test_accuracy
        1.0
    """
    from sklearn.linear_model import LogisticRegression

    if not penalties or min(penalties) <= 0 or not np.isfinite(penalties).all():
        raise InvalidInputError(f"penalties must be positive and finite, got {list(penalties)}.")
    if isinstance(max_iterations, bool) or max_iterations < 1:
        raise InvalidInputError(f"max_iterations must be a positive integer, got {max_iterations!r}.")
    data = probe_data(
        features_train,
        y_train,
        features_test,
        y_test,
        preprocessing=preprocessing,
        device=torch.device("cpu"),
    )
    X, y = data.X_train.double().numpy(), data.y_train.numpy()
    Z, z = data.X_test.double().numpy(), data.y_test.numpy()

    def fit(C: float, rows: np.ndarray | slice) -> LogisticRegression:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is a field of the result
            return LogisticRegression(C=C, max_iter=max_iterations).fit(X[rows], y[rows])

    scores: list[float] = []
    if len(penalties) > 1:
        inside, held = (part.numpy() for part in data.split(seed))
        scores = [float(fit(C, inside).score(X[held], y[held])) for C in penalties]
    C = penalties[int(np.argmax(scores))] if scores else penalties[0]
    model = fit(C, slice(None))
    iterations = int(np.max(model.n_iter_))
    return ConvexProbe(
        test_accuracy=float(model.score(Z, z)),
        train_accuracy=float(model.score(X, y)),
        penalty=float(C),
        heldout_accuracies=tuple(scores),
        iterations=iterations,
        converged=iterations < max_iterations,
        preprocessing=preprocessing,
    )
