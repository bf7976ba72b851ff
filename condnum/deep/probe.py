"""Linear probing of features (Fig. 3): test accuracy per epoch of an attacker who tunes the learning rate.

A larger κ slows gradient descent at the best learning rate of each model; one rate for all would let a mere
change of scale of the features pass for immunization.
"""

import itertools
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.data.task_pair import standardize
from condnum.deep.backbone import Backbone
from condnum.deep.features import ImageFeatures
from condnum.deep.images import hold_out_rows, minibatches
from condnum.errors import InvalidInputError
from condnum.theory.features import smaller_gram
from condnum.theory.slowdown import descent_filter
from condnum.theory.task import rank_tolerance

#: Rows of a step of the probe; fewer where there are fewer.
BATCH = 100
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
    """SGD of a probe at its best learning rate."""

    test_accuracy: NDArray[np.float64]  # (epochs + 1,) 0 to 1, from before the first step
    again: NDArray[np.float64]  # the same with the rows in another order: A against A
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
    """Probe features by softmax regression from zero, by SGD in batches of `BATCH` rows.

    The rate is chosen on a fifth of each class of the training rows, by accuracy after the last epoch and
    then by loss, and run again on all of them. The seed is that of the order.
    """
    X, Z = (torch.from_numpy(np.array(of.values, np.float32)) for of in (train, test))
    y, z = (torch.from_numpy(of.labels.copy()) for of in (train, test))
    bound = smoothness(X)
    fit, held = hold_out_rows(train.labels, [seed, 0])
    ends: dict[int, tuple[float, float]] = {}

    def best_of(places: Iterable[int]) -> int:
        """Try some rates; return the place of the best so far."""
        for k in set(places) - set(ends):
            accuracy, loss = _sgd((X[fit], y[fit]), (X[held], y[held]), _MULTIPLES[k] / bound, epochs, seed)
            ends[k] = (-accuracy[-1], loss) if math.isfinite(loss) else (1.0, math.inf)  # it diverges
        return min(ends, key=lambda k: (*ends[k], k))

    last = len(_MULTIPLES) - 1
    best = best_of(range(1, last, 2))  # every other rate, then the neighbors of the best
    best = best_of((best - 1, best + 1))
    rate = _MULTIPLES[best] / bound
    accuracy, again = (_sgd((X, y), (Z, z), rate, epochs, one)[0] for one in (seed, seed + 1))
    return ProbeAccuracy(accuracy, again, rate, _MULTIPLES[best], best in (0, last))


def _sgd(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], rate: float, epochs: int, seed: int
) -> tuple[NDArray[np.float64], float]:
    """Return test accuracy `(epochs + 1,)` of a head that starts from zero, and its test loss in the end.

    A test image of a class that no training image has is missed, and does not count in the loss.
    """
    (X, y), rows = train, torch.arange(len(train[1])).numpy()
    W, bias = X.new_zeros(int(y.max()) + 1, X.shape[1]), X.new_zeros(int(y.max()) + 1)
    targets, known, accuracies = nn.functional.one_hot(y, len(W)).to(X), test[1] < len(W), []
    for epoch, batches in itertools.islice(minibatches(rows, BATCH, [seed, 3]), epochs + 1):
        logits = torch.addmm(bias, test[0], W.mT)
        accuracies.append(float((logits.argmax(dim=1) == test[1]).double().mean()))
        for batch in map(torch.from_numpy, batches if epoch < epochs else ()):
            slope = torch.softmax(torch.addmm(bias, X[batch], W.mT), dim=1) - targets[batch]
            W -= rate / len(batch) * slope.mT @ X[batch]
            bias -= rate / len(batch) * slope.sum(dim=0)
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
    used = sigma > rank_tolerance(len(sigma)) * sigma[-1]
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
    """Solve the probe on standardized features by L-BFGS, as an informed attacker would."""
    model, penalty = _solved(train, seed)
    iterations = int(np.max(model.n_iter_))
    Z = standardize(np.asarray(test.values, float), reference=np.asarray(train.values, float))
    return ConvexProbe(float(model.score(Z, test.labels)), penalty, iterations, iterations < _ITERATIONS)


def fit_head(backbone: Backbone, features: ImageFeatures, *, seed: int = 0) -> None:
    """Give a backbone the head of the convex probe: θ₀'s, where its weights have none for D_P."""
    head = backbone.head
    if not isinstance(head, nn.Linear):
        raise InvalidInputError(
            f"the head of {backbone.name} is a {type(head).__name__}, not a linear layer, which logistic "
            "regression could fit; give --finetune-benign EPOCHS."
        )
    model, _ = _solved(features, seed)
    X = np.asarray(features.values, float)
    W, bias, spread = model.coef_, model.intercept_, X.std(axis=0)
    if len(W) == 1:  # of two classes
        W, bias = np.vstack([-W, W]) / 2, np.r_[-bias, bias] / 2
    W = np.divide(W, spread, out=np.zeros_like(W), where=spread > 0)
    with torch.no_grad():
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        head.weight[model.classes_] = torch.as_tensor(W).to(head.weight)
        head.bias[model.classes_] = torch.as_tensor(bias - W @ X.mean(axis=0)).to(head.bias)


def _solved(train: ImageFeatures, seed: int) -> tuple[Any, float]:
    """Return the convex probe on standardized rows, and its penalty.

    The penalty is chosen on a fifth of each class, then all rows are fitted.
    """
    X, y = standardize(np.asarray(train.values, float)), train.labels
    fit, held = hold_out_rows(y, [seed, 0])
    scores = [logistic_head(X[fit], y[fit], C).score(X[held], y[held]) for C in _PENALTIES]
    penalty = _PENALTIES[int(np.argmax(scores))]
    return logistic_head(X, y, penalty), penalty


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
