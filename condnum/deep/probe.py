"""Linear probing of features (Fig. 3): test accuracy per epoch of an attacker who tunes the learning rate.

A larger κ slows gradient descent at the best learning rate of each model; one rate for all would let a mere
change of scale of the features pass for immunization.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import as_tensor
from condnum.deep.images import hold_out_rows
from condnum.deep.regularizers import smaller_gram
from condnum.errors import InvalidInputError, check_integer

Rows: TypeAlias = "NDArray[Any] | Tensor"

#: Learning rates in units of 1/L, L the bound of `smoothness`: blind to the scale of the features.
#: Softmax regression stays stable well beyond 2/L, as its curvature falls while it fits.
_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Inverse strengths of the ℓ₂ penalty of the convex probe, two decades apart.
_PENALTIES = (1e-3, 1e-1, 1e1, 1e3)
#: Most iterations of L-BFGS.
_ITERATIONS = 1000
#: Logits held at a time (rows × rates × classes), 64 MiB as float32.
_LOGITS = 1 << 24


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
    heldout_accuracies: tuple[float, ...]  # of each C that was tried
    iterations: int  # of L-BFGS in the final fit
    converged: bool  # False: stopped early, so the true accuracy may be higher


def probe_accuracy(
    features_train: Rows,
    y_train: Rows,
    features_test: Rows,
    y_test: Rows,
    *,
    epochs: int = 50,
    seed: int = 0,
) -> ProbeAccuracy:
    """Probe features by softmax regression and report test accuracy after each epoch (Fig. 3).

    Full-batch gradient descent from zero weights, one step per epoch. A fifth of each class of the
    **training** rows is held out; the learning rate with the best held-out accuracy after the last epoch
    (then the lowest held-out loss) is run again on all training rows.

    Args:
        features_train: `(N, D)` features of D_H's training images.
        y_train: `(N,)` labels, integers from 0.
        features_test: `(M, D)`.
        y_test: `(M,)`.
        epochs: Passes over the training rows; 50 in the paper.
        seed: Of the held-out part.

    Returns:
        The curve of the chosen learning rate.

    Raises:
        InvalidInputError: Bad shapes, labels or epochs, or one class only.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> y = np.arange(200) % 2
        >>> X = generator.normal(size=(200, 5)) + 3 * y[:, None]
        >>> float(probe_accuracy(X[:150], y[:150], X[150:], y[150:], epochs=20).test_accuracy[-1])
        1.0
    """
    check_integer("epochs", epochs, 1)
    X, y, Z, z = _probe_data(features_train, y_train, features_test, y_test)
    classes, bound = int(y.max()) + 1, smoothness(X)
    rates = np.array(_MULTIPLES) / bound
    fit, held = _held_out(y, seed)
    accuracy, loss = softmax_descents([(X[fit], y[fit]), (X[held], y[held])], classes, rates, epochs)
    score = np.nan_to_num(accuracy[-1, 1], nan=-1.0)  # NaN: it diverges
    best = min(range(len(rates)), key=lambda k: (-score[k], loss[-1, 1, k]))
    accuracy, _ = softmax_descents([(X, y), (Z, z)], classes, rates[[best]], epochs)
    rate, at_edge = float(rates[best]), best in (0, len(rates) - 1)
    return ProbeAccuracy(accuracy[:, 1, 0], rate, rate * bound, at_edge)


def convex_probe(
    features_train: Rows, y_train: Rows, features_test: Rows, y_test: Rows, *, seed: int = 0
) -> ConvexProbe:
    """Solve the probe on standardized features by L-BFGS, as an informed attacker would.

    The penalty is chosen on a fifth of each class of the training rows, then all of them are fitted.

    Args:
        features_train: `(N, D)`.
        y_train: `(N,)` labels, integers from 0.
        features_test: `(M, D)`.
        y_test: `(M,)`.
        seed: Of the held-out part.

    Returns:
        Test accuracy, the chosen penalty, and whether the solver converged.

    Raises:
        InvalidInputError: Bad shapes, labels out of range, or one class only.

    Examples:
        >>> y = np.arange(60) % 3
        >>> X = np.eye(3)[y]
        >>> convex_probe(X, y, X, y).test_accuracy
        1.0
    """
    rows, labels, test_rows, test_labels = _probe_data(features_train, y_train, features_test, y_test)
    X, Z = (part.numpy() for part in standardized(rows, test_rows))
    y, z = labels.numpy(), test_labels.numpy()
    inside, held = (part.numpy() for part in _held_out(labels, seed))
    scores = []
    for C in _PENALTIES:
        scores.append(float(logistic_head(X[inside], y[inside], C).score(X[held], y[held])))
    penalty = _PENALTIES[int(np.argmax(scores))]
    model = logistic_head(X, y, penalty)
    iterations = int(np.max(model.n_iter_))
    return ConvexProbe(
        test_accuracy=float(model.score(Z, z)),
        penalty=penalty,
        heldout_accuracies=tuple(scores),
        iterations=iterations,
        converged=iterations < _ITERATIONS,
    )


def _probe_data(
    features_train: Rows, y_train: Rows, features_test: Rows, y_test: Rows
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features `(N, D)` and `(M, D)` as float32, each with its labels."""
    found: list[Tensor] = []
    for name, rows, labels in (("train", features_train, y_train), ("test", features_test, y_test)):
        X = as_tensor(rows, f"features_{name}", ndim=2).detach().float()
        own = np.asarray(labels)
        if own.shape != (len(X),) or own.dtype.kind not in "iu":
            raise InvalidInputError(
                f"y_{name} must hold one integer for each of the {len(X)} rows, got {own.shape} {own.dtype}."
            )
        found += [X, torch.from_numpy(own.astype(np.int64))]
    X, y, Z, z = found
    if X.shape[1] != Z.shape[1]:
        raise InvalidInputError(f"features_train has {X.shape[1]} columns and features_test {Z.shape[1]}.")
    known = torch.unique(y)
    if known[0] < 0 or len(known) < 2:
        raise InvalidInputError(
            f"y_train holds the classes {known.tolist()}; a probe needs two or more, counted from 0."
        )
    foreign = z[~torch.isin(z, known)]
    if len(foreign):
        raise InvalidInputError(
            f"y_test holds {len(foreign)} label(s) that y_train does not hold, the first is "
            f"{int(foreign[0])}; use the same classes."
        )
    return X, y, Z, z


def _held_out(y: Tensor, seed: int) -> list[Tensor]:
    """Return `(fit, held_out)` positions of training rows; a class of one row stays in `fit`."""
    parts = hold_out_rows(y.numpy(), [seed, 0])
    if not parts[1].size:
        raise InvalidInputError("no class has two training rows, of which one could be held out; add rows.")
    return [torch.from_numpy(rows) for rows in parts]


def standardized(X: Tensor, *others: Tensor) -> list[Tensor]:
    """Return features in float64, centered and at unit deviation by the first set's rows.

    A column that is constant up to the round-off of float32 becomes zero.
    """
    X = X.double()
    mean, std = X.mean(dim=0), X.std(dim=0, correction=0)
    varies = std > torch.finfo(torch.float32).eps * X.abs().amax(dim=0)
    scale = torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)
    return [(part.double() - mean) * scale for part in (X, *others)]


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


def softmax_descents(
    sets: Sequence[tuple[Tensor, Tensor]], classes: int, learning_rates: NDArray[np.float64], epochs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a softmax regression to the first set by gradient descent from zero, at each learning rate.

    Accuracy and mean loss of each set come back, `(epochs + 1, sets, rates)`; NaN from where a rate diverges.
    """
    X, y = sets[0]
    step = torch.from_numpy(learning_rates).to(X).repeat_interleave(classes)
    W, b = X.new_zeros(X.shape[1], len(step)), X.new_zeros(len(step))
    records = [_record(W, b, sets, classes)]
    for _ in range(epochs):
        G_W, g_b = torch.zeros_like(W), torch.zeros_like(b)
        for rows, own, logits in _parts(W, b, X, y, classes):
            residual = torch.softmax(logits, dim=-1)
            residual[torch.arange(len(rows)), :, own] -= 1
            flat = residual.view(len(rows), -1)
            G_W += rows.mT @ flat
            g_b += flat.sum(dim=0)
        W -= step * (G_W / len(y))
        b -= step * (g_b / len(y))
        records.append(_record(W, b, sets, classes))
    accuracies, losses = np.stack(records, axis=1)
    return accuracies, losses


def _parts(
    W: Tensor, b: Tensor, X: Tensor, y: Tensor, classes: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield rows and labels in parts whose logits `(n, rates, classes)` fit into memory, with these."""
    size = max(1, _LOGITS // W.shape[1])
    for rows, labels in zip(X.split(size), y.split(size), strict=True):
        yield rows, labels, torch.addmm(b, rows, W).view(len(rows), -1, classes)


def _record(W: Tensor, b: Tensor, sets: Sequence[tuple[Tensor, Tensor]], classes: int) -> NDArray[np.float64]:
    """Return accuracy and mean loss of each set and rate, `(2, sets, rates)`; NaN where weights overflow."""
    alive = (torch.isfinite(W).all(dim=0) & torch.isfinite(b)).view(-1, classes).all(dim=1)
    found = []
    for X, y in sets:
        correct, loss = torch.zeros(2, len(alive), dtype=torch.float64)
        for rows, labels, logits in _parts(W, b, X, y, classes):
            log_p = torch.log_softmax(logits, dim=-1)
            correct += (log_p.argmax(dim=-1) == labels[:, None]).sum(dim=0)
            loss -= log_p[torch.arange(len(rows)), :, labels].sum(dim=0, dtype=torch.float64)
        values = torch.stack([correct, loss]) / len(X)
        found.append(torch.where(alive & torch.isfinite(loss), values, torch.nan).numpy())
    return np.stack(found, axis=1)
