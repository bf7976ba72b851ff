"""Linear probing of features (Fig. 3): test accuracy per epoch of an attacker who tunes the learning rate.

A larger κ slows gradient descent at the best learning rate of each model; one rate for all would let a mere
change of scale of the features pass for immunization.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import as_tensor, resolve_device
from condnum.deep.images import hold_out_rows
from condnum.deep.regularizers import smaller_gram
from condnum.errors import InvalidInputError, check_integer, check_known

Rows: TypeAlias = "NDArray[Any] | Tensor"
Preprocessing = Literal["none", "standardise"]
Optimizer = Literal["gd", "sgd"]
Criterion = Literal["final", "mean"]

#: Default learning rates in units of 1/L, L the bound of `smoothness`: blind to the scale of the features.
#: Softmax regression stays stable well beyond 2/L, as its curvature falls while it fits.
MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Inverse strengths of the ℓ₂ penalty of the convex probe, two decades apart.
PENALTIES = (1e-3, 1e-1, 1e1, 1e3)

#: Share of each class of the training rows on which the learning rate is chosen.
HELD_OUT = 0.2
#: Logits held at a time (rows × rates × classes), 64 MiB as float32.
_LOGITS = 1 << 24


@dataclass(frozen=True, eq=False)
class ProbeAccuracy:
    """Curves of a probe, one row for each seed, role, learning rate and epoch.

    `curves` has `seed`, `role` ("grid": fitted on the rows that are not held out; "best": the chosen rate, on
    all of them), `learning_rate`, `multiple` (in units of 1/L), `epoch` (0 is the start), `train_loss`,
    `heldout_accuracy` (NaN for "best") and `test_accuracy` (NaN from where the rate diverges).
    """

    curves: pd.DataFrame
    learning_rates: tuple[float, ...]  # the chosen rate of each seed
    at_edge: bool  # a chosen rate is the first or the last of the grid: widen it
    optimizer: Optimizer
    criterion: Criterion
    epochs: int
    classes: int  # C
    smoothness: float  # L of the training rows

    @property
    def best_curve(self) -> pd.DataFrame:
        """Test accuracy of the chosen rates: `epoch`, `mean` and `std` (over seeds; NaN for one)."""
        best = self.curves[self.curves["role"] == "best"]
        return best.groupby("epoch")["test_accuracy"].agg(["mean", "std"]).reset_index()

    @property
    def final_accuracy(self) -> float:
        """Test accuracy after the last epoch, mean over seeds, 0 to 1."""
        return float(self.best_curve["mean"].iloc[-1])


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


def probe_accuracy(
    features_train: Rows,
    y_train: Rows,
    features_test: Rows,
    y_test: Rows,
    *,
    epochs: int = 50,
    optimizer: Optimizer = "gd",
    learning_rates: Sequence[float] | None = None,
    criterion: Criterion = "final",
    seeds: Sequence[int] = (0,),
    batch_size: int = 128,
    preprocessing: Preprocessing = "none",
    device: str | torch.device = "cpu",
) -> ProbeAccuracy:
    """Probe features by softmax regression and report test accuracy after each epoch (Fig. 3).

    For each seed a fifth of each class of the **training** rows is held out; of all learning rates, fitted
    on the rest, the best by `criterion` (then by held-out loss) is fitted anew on all training rows.

    Args:
        features_train: `(N, D)` features of D_H's training images.
        y_train: `(N,)` labels, integers from 0.
        features_test: `(M, D)`.
        y_test: `(M,)`.
        epochs: Passes over the training rows; 50 in the paper.
        optimizer: `gd`, one full-batch step an epoch, or `sgd`; both from zero weights, without momentum.
        learning_rates: Rates to try; default `MULTIPLES` of 1/L of these features.
        criterion: `final`: held-out accuracy after the last epoch; `mean`: over all epochs, in a hurry.
        seeds: Of the held-out part and of the order of `sgd`.
        batch_size: Of `sgd`.
        preprocessing: `none`, the attacker of the paper, or `standardise`, an informed one.
        device: Where to compute.

    Returns:
        Curves of all rates, and the chosen ones.

    Raises:
        InvalidInputError: Bad shapes, labels or options, one class only, or every learning rate diverges.
        DeviceError: No such device.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> y = np.arange(200) % 2
        >>> X = generator.normal(size=(200, 5)) + 3 * y[:, None]
        >>> probe_accuracy(X[:150], y[:150], X[150:], y[150:], epochs=20).final_accuracy
        1.0
    """
    check_known("optimizer", optimizer, get_args(Optimizer))
    check_known("criterion", criterion, get_args(Criterion))
    check_integer("epochs", epochs, 1)
    check_integer("batch_size", batch_size, 1)
    if not seeds or len(set(seeds)) != len(seeds) or any(seed < 0 for seed in seeds):
        raise InvalidInputError(f"seeds must be different integers of at least 0, got {list(seeds)}.")
    known = _probe_data(features_train, y_train, features_test, y_test, preprocessing)
    X, y, *test = (part.to(resolve_device(device)) for part in known)
    classes, curvature = int(y.max()) + 1, smoothness(X)
    given = np.array(MULTIPLES) / curvature if learning_rates is None else learning_rates
    rates = np.unique(np.asarray(given, float))
    if not rates.size or not np.isfinite(rates).all() or rates[0] <= 0:
        raise InvalidInputError(f"learning_rates must be positive and finite, got {list(rates)}.")
    options: dict[str, Any] = {"epochs": epochs, "optimizer": optimizer, "batch_size": batch_size}
    tables, chosen = [], []
    for seed in seeds:
        fit, held = _held_out(y, seed)
        sets = [(X[fit], y[fit]), (X[held], y[held]), (test[0], test[1])]
        accuracy, loss = descend(sets, classes, torch.from_numpy(rates), seed=seed, **options)
        score = accuracy[-1, 1] if criterion == "final" else accuracy[1:, 1].mean(axis=0)
        usable = np.flatnonzero(np.isfinite(score))  # the others diverge
        if not usable.size:
            tried = ", ".join(f"{rate:.3g}" for rate in rates)
            raise InvalidInputError(f"every learning rate diverges ({tried}); give smaller ones.")
        best = min(usable, key=lambda k: (-score[k], loss[-1, 1, k], rates[k]))
        once = rates[best : best + 1]
        again = descend([(X, y), sets[2]], classes, torch.from_numpy(once), seed=seed, **options)
        missing = np.full((epochs + 1, 1), np.nan)
        for role, of, train_loss, heldout, final in (
            ("grid", rates, loss[:, 0], accuracy[:, 1], accuracy[:, 2]),
            ("best", once, again[1][:, 0], missing, again[0][:, 1]),
        ):
            columns = {
                "seed": seed,
                "role": role,
                "learning_rate": np.repeat(of, epochs + 1),
                "multiple": np.repeat(of, epochs + 1) * curvature,
                "epoch": np.tile(np.arange(epochs + 1), len(of)),
                "train_loss": train_loss.T.reshape(-1),
                "heldout_accuracy": heldout.T.reshape(-1),
                "test_accuracy": final.T.reshape(-1),
            }
            tables.append(pd.DataFrame(columns))
        chosen.append(float(rates[best]))
    return ProbeAccuracy(
        curves=pd.concat(tables, ignore_index=True),
        learning_rates=tuple(chosen),
        at_edge=len(rates) > 1 and any(rate in (rates[0], rates[-1]) for rate in chosen),
        optimizer=optimizer,
        criterion=criterion,
        epochs=epochs,
        classes=classes,
        smoothness=curvature,
    )


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
        InvalidInputError: Bad shapes, labels out of range, or one class only.

    Examples:
        >>> y = np.arange(60) % 3
        >>> X = np.eye(3)[y]
        >>> convex_probe(X, y, X, y).test_accuracy
        1.0
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    data = _probe_data(features_train, y_train, features_test, y_test, preprocessing)
    X, Z = (part.double().cpu().numpy() for part in data[::2])
    y, z = (part.numpy() for part in data[1::2])

    def fit(C: float, rows: Any) -> LogisticRegression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is a field of the result
            return LogisticRegression(C=C, max_iter=max_iterations).fit(X[rows], y[rows])

    scores: list[float] = []
    if len(penalties) > 1:
        inside, held = (rows.numpy() for rows in _held_out(data[1], seed))
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


def _probe_data(
    features_train: Rows, y_train: Rows, features_test: Rows, y_test: Rows, preprocessing: Preprocessing
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features `(N, D)` and `(M, D)` as float32, standardised if asked for, each with its labels."""
    check_known("preprocessing", preprocessing, get_args(Preprocessing))
    found: list[Tensor] = []
    for name, rows, labels in (("train", features_train, y_train), ("test", features_test, y_test)):
        X = as_tensor(rows, f"features_{name}", ndim=2).detach().float()
        own = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if own.shape != (len(X),) or own.dtype.kind not in "iu":
            raise InvalidInputError(
                f"y_{name} must hold one integer for each of the {len(X)} rows, got {own.shape} {own.dtype}."
            )
        if own.min() < 0:
            raise InvalidInputError(f"y_{name} holds {own.min()}, out of range: labels count from 0.")
        found += [X, torch.from_numpy(own.astype(np.int64))]
    X, y, Z, z = found
    if X.shape[1] != Z.shape[1]:
        raise InvalidInputError(f"features_train has {X.shape[1]} columns and features_test {Z.shape[1]}.")
    known = torch.unique(y)
    if len(known) < 2:
        raise InvalidInputError(f"y_train holds one class only ({int(known[0])}); a probe needs two or more.")
    foreign = z[~torch.isin(z, known)]
    if len(foreign):
        raise InvalidInputError(
            f"y_test holds {len(foreign)} label(s) out of the range of training, the first is "
            f"{int(foreign[0])}, against {int(known[0])} to {int(known[-1])}; use the same classes."
        )
    if preprocessing == "standardise":
        mean, std = X.double().mean(dim=0), X.double().std(dim=0, correction=0)
        varies = std > torch.finfo(torch.float32).eps * X.double().abs().amax(dim=0)
        scale = torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)
        X, Z = (((x.double() - mean) * scale).float() for x in (X, Z))
    return X, y, Z, z


def _held_out(y: Tensor, seed: int) -> list[Tensor]:
    """Return `(fit, held_out)` positions of training rows; a class of one row stays in `fit`."""
    parts = hold_out_rows(y.cpu().numpy(), HELD_OUT, [seed, 0])
    if not parts[1].size:
        raise InvalidInputError("no class has two training rows, of which one could be held out; add rows.")
    return [torch.from_numpy(rows).to(y.device) for rows in parts]


def smoothness(X: Tensor) -> float:
    """Return Böhning's bound on the curvature of the loss, `½·λ_max(X̄ᵀX̄/N)` with a bias column.

    Examples:
        >>> smoothness(torch.tensor([[1.0], [-1.0]]))
        0.5
    """
    extended = torch.cat([X.double(), X.new_ones(len(X), 1).double()], dim=1)
    return 0.5 * float(torch.linalg.eigvalsh(smaller_gram(extended))[-1]) / len(X)


def descend(
    sets: Sequence[tuple[Tensor, Tensor]],
    classes: int,
    learning_rates: Tensor,
    *,
    epochs: int,
    optimizer: Optimizer,
    batch_size: int,
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a softmax regression to the first set from zero weights at each learning rate.

    Accuracy and mean loss of each set come back, `(epochs + 1, sets, rates)`; NaN from where a rate diverges.
    """
    X, y = sets[0]
    step = learning_rates.to(X).repeat_interleave(classes)
    W, b = X.new_zeros(X.shape[1], len(step)), X.new_zeros(len(step))
    generator = torch.Generator().manual_seed(seed)
    records = [_record(W, b, sets, classes)]
    for _ in range(epochs):
        batches: Sequence[Any] = (slice(None),)
        if optimizer == "sgd":
            batches = torch.randperm(len(X), generator=generator).to(X.device).split(batch_size)
        for batch in batches:
            count = len(y[batch])
            G_W, g_b = torch.zeros_like(W), torch.zeros_like(b)
            for rows, own, logits in _parts(W, b, X[batch], y[batch], classes):
                residual = torch.softmax(logits, dim=-1)
                residual[torch.arange(len(rows), device=X.device), :, own] -= 1
                flat = residual.view(len(rows), -1)
                G_W += rows.mT @ flat
                g_b += flat.sum(dim=0)
            W -= step * (G_W / count)
            b -= step * (g_b / count)
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
        correct, loss = torch.zeros(2, len(alive), dtype=torch.float64, device=X.device)
        for rows, labels, logits in _parts(W, b, X, y, classes):
            log_p = torch.log_softmax(logits, dim=-1)
            correct += (log_p.argmax(dim=-1) == labels[:, None]).sum(dim=0)
            loss -= log_p[torch.arange(len(rows), device=X.device), :, labels].sum(dim=0, dtype=torch.float64)
        values = torch.stack([correct, loss]) / len(X)
        found.append(torch.where(alive & torch.isfinite(loss), values, torch.nan).cpu().numpy())
    return np.stack(found, axis=1)
