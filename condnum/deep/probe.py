"""Linear probing of features (Fig. 3): test accuracy per epoch of an attacker who tunes the learning rate.

A larger κ slows gradient descent at the best learning rate of each model; one rate for all would let a mere
change of scale of the features pass for immunization.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.data.task_pair import standardize
from condnum.deep.features import ImageFeatures
from condnum.deep.images import hold_out_rows
from condnum.deep.regularizers import smaller_gram
from condnum.probing.quadratic import descent_filter
from condnum.theory.spectra import default_rtol

#: Learning rates in units of 1/L, L the bound of `smoothness`: blind to the scale of the features.
#: Softmax regression stays stable well beyond 2/L, as its curvature falls while it fits.
_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Inverse strengths of the ℓ₂ penalty of the convex probe, two decades apart.
_PENALTIES = (1e-3, 1e-1, 1e1, 1e3)
#: Most iterations of L-BFGS.
_ITERATIONS = 1000
#: Steps after which `descent_path` scores a head, log-spaced, and the goal of `path_slowdown`: a fraction of
#: the best R² along θ₀'s path.
DESCENT_STEPS = np.geomspace(1.0, 1e6, 121)
DESCENT_GOAL = 0.8


@dataclass(frozen=True, eq=False)
class ProbeAccuracy:
    """Gradient descent of a probe at its best learning rate."""

    test_accuracy: NDArray[np.float64]  # (epochs + 1,) 0 to 1, from before the first step
    learning_rate: float
    multiple: float  # the same in units of 1/L
    at_edge: bool  # it is the smallest or the largest that was tried


@dataclass(frozen=True)
class ConvexProbe:
    """Optimum of the probe, with the evidence that it is one."""

    test_accuracy: float  # 0 to 1
    penalty: float  # scikit-learn's C, the inverse strength, chosen on held-out rows
    iterations: int  # of L-BFGS in the final fit
    converged: bool  # False: stopped early, so the true accuracy may be higher


def probe_accuracy(
    train: ImageFeatures, test: ImageFeatures, *, epochs: int = 50, seed: int = 0
) -> ProbeAccuracy:
    """Probe features by softmax regression: one step of full-batch gradient descent from zero per epoch.

    The rate is chosen on a fifth of each class of the training rows, by accuracy after the last epoch and
    then by loss, and run again on all of them.
    """
    X, Z = (torch.from_numpy(np.array(of.values, np.float32)) for of in (train, test))
    y, z = (torch.from_numpy(of.labels.copy()) for of in (train, test))
    bound = smoothness(X)
    fit, held = hold_out_rows(train.labels, [seed, 0])
    ends = []
    for multiple in _MULTIPLES:
        accuracy, loss = _softmax_descent((X[fit], y[fit]), (X[held], y[held]), multiple / bound, epochs)
        ends.append((-accuracy[-1], loss) if math.isfinite(loss) else (1.0, math.inf))  # it diverges
    best = ends.index(min(ends))
    rate = _MULTIPLES[best] / bound
    accuracy, _ = _softmax_descent((X, y), (Z, z), rate, epochs)
    return ProbeAccuracy(accuracy, rate, _MULTIPLES[best], best in (0, len(ends) - 1))


def _softmax_descent(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], rate: float, epochs: int
) -> tuple[NDArray[np.float64], float]:
    """Return test accuracy `(epochs + 1,)` of a head that starts from zero, and its test loss in the end.

    A test image of a class that no training image has is missed, and does not count in the loss.
    """
    X, y = train
    head = nn.Linear(X.shape[1], int(y.max()) + 1)
    known = test[1] < head.out_features
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    stepper, accuracies = torch.optim.SGD(head.parameters(), lr=rate), []
    for epoch in range(epochs + 1):
        with torch.no_grad():
            logits = head(test[0])
        accuracies.append(float((logits.argmax(dim=1) == test[1]).double().mean()))
        if epoch < epochs:
            stepper.zero_grad()
            nn.functional.cross_entropy(head(X), y).backward()
            stepper.step()
    return np.array(accuracies), float(nn.functional.cross_entropy(logits[known], test[1][known]))


def descent_path(train: ImageFeatures, held: ImageFeatures) -> NDArray[np.float64]:
    r"""Return R² `(T,)` on held-out rows of a linear head after each of `DESCENT_STEPS` of gradient descent.

    Full-batch descent from zero on the squared error of one-hot targets Z, with intercept and step 1/σ₁. With
    the Hessian :math:`\tilde X^\top\tilde X = V\Sigma V^\top` of centered features, step t has the weights

    .. math:: W_t = V\,\frac{1 - (1 - \Sigma/\sigma_1)^t}{\Sigma}\,V^\top\tilde X^\top Z,

    so that no step is taken: the speed of each singular direction and what the labels hold of it decide.

    Examples:
        >>> X = np.array([[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]])  # the weak feature tells the label
        >>> rows = ImageFeatures(X, np.array([0, 1, 0, 1]), np.arange(4), ())
        >>> descent_path(rows, rows)[[0, -1]].round(4)  # 1 − (1 − 0.01)² at the first step
        array([0.0199, 1.    ])
    """
    X, Y = (np.asarray(of.values, np.float64) for of in (train, held))
    classes = np.eye(int(max(train.labels.max(), held.labels.max())) + 1)
    mean, base = X.mean(axis=0), classes[train.labels].mean(axis=0)
    sigma, V = np.linalg.eigh((X - mean).T @ (X - mean))
    used = sigma > default_rtol(len(sigma)) * sigma[-1]
    sigma, V = sigma[used], V[:, used]
    read, wanted = (Y - mean) @ V, V.T @ (X - mean).T @ (classes[train.labels] - base) / sigma[:, None]
    target = classes[held.labels] - base
    scores = []
    for step in DESCENT_STEPS:
        fitted = read @ ((1 - descent_filter(sigma / sigma[-1], step))[:, None] * wanted)
        scores.append(1 - ((target - fitted) ** 2).sum() / (target**2).sum())
    return np.array(scores)


def path_slowdown(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Return how many times the steps of θ₀'s head the one of θ needs to `DESCENT_GOAL` of θ₀'s best R².

    Both are of `descent_path`. A path that misses the goal counts as `DESCENT_STEPS[-1]` steps, so that the
    factor is a lower bound; it is 1 where θ₀'s own head learns nothing.

    Examples:
        >>> slow = np.linspace(0.0, 1.0, len(DESCENT_STEPS))
        >>> path_slowdown(slow, slow), round(path_slowdown(slow, slow / 2), 1)
        (1.0, 15.8)
    """
    best = float(before.max())
    if best <= 0:
        return 1.0
    steps = []
    for scores in (before, after):
        over = np.flatnonzero(scores >= DESCENT_GOAL * best)
        steps.append(DESCENT_STEPS[over[0] if len(over) else -1])
    return float(steps[1] / steps[0])


def convex_probe(train: ImageFeatures, test: ImageFeatures, *, seed: int = 0) -> ConvexProbe:
    """Solve the probe on standardized features by L-BFGS, as an informed attacker would.

    The penalty is chosen on a fifth of each class of the training rows, then all of them are fitted.
    """
    X, Z = (standardize(np.asarray(of.values, float), reference=np.asarray(train.values, float))
            for of in (train, test))  # fmt: skip
    y = train.labels
    fit, held = hold_out_rows(y, [seed, 0])
    scores = [logistic_head(X[fit], y[fit], C).score(X[held], y[held]) for C in _PENALTIES]
    penalty = _PENALTIES[int(np.argmax(scores))]
    model = logistic_head(X, y, penalty)
    iterations = int(np.max(model.n_iter_))
    return ConvexProbe(float(model.score(Z, test.labels)), penalty, iterations, iterations < _ITERATIONS)


def logistic_head(X: Any, y: Any, C: float) -> Any:
    """Fit scikit-learn's `LogisticRegression`; `n_iter_` tells whether it converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=C, max_iter=_ITERATIONS).fit(X, y)


def smoothness(X: Tensor) -> float:
    """Return Böhning's bound on the curvature of the loss, `½·λ_max(X̄ᵀX̄/N)` with a bias column.

    Examples:
        >>> smoothness(torch.tensor([[1.0], [-1.0]]))
        0.5
    """
    extended = torch.cat([X.double(), X.new_ones(len(X), 1).double()], dim=1)
    return 0.5 * float(torch.linalg.eigvalsh(smaller_gram(extended))[-1]) / len(X)
