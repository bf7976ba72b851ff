"""Linear probing of features (Fig. 3): test accuracy per epoch of an attacker who tunes the learning rate.

A larger κ slows gradient descent, so a probe of an immunized model should gain accuracy later. That is
a claim about the best learning rate of each model: one rate for all would let a mere change of scale
of the features pass for immunization. The rate is chosen on a held-out part of the training set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.deep.probe_data import Preprocessing, ProbeData, Rows, probe_data
from condnum.deep.softmax_descent import DescentCurves, Optimizer, descend, smoothness
from condnum.errors import InvalidInputError, UnknownNameError

Criterion = Literal["final", "mean"]

#: Default learning rates in units of 1/L, L the bound of `smoothness`: half a decade apart. The same
#: multiples for every model make the grid blind to the scale of its features. Softmax regression
#: stays stable well beyond 2/L, as its curvature falls while it fits.
MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


@dataclass(frozen=True, eq=False)
class ProbeAccuracy:
    """Curves of a probe, with all learning rates that were tried.

    `curves` has one row for each seed, role, learning rate and epoch: `seed`, `role` ("grid": fitted on
    the training rows that are not held out; "best": the chosen rate, fitted on all of them),
    `learning_rate`, `multiple` (in units of 1/L), `epoch` (0 is the start), `train_loss`,
    `heldout_accuracy` (NaN for "best"), `test_accuracy` (NaN from where the rate diverges).
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

    For each seed a fifth of each class of the **training** rows is held out; all learning rates are
    fitted on the rest in one vectorised run; the best one by `criterion` is fitted anew on all training
    rows. The test rows choose nothing. Ties go to the smaller held-out loss, then to the smaller rate.

    Args:
        features_train: `(N, D)` features of D_H's training images.
        y_train: `(N,)` labels, integers from 0.
        features_test: `(M, D)`.
        y_test: `(M,)`.
        epochs: Passes over the training rows; 50 in the paper.
        optimizer: `gd`, one full-batch step an epoch, or `sgd`; both from zero weights, without momentum.
        learning_rates: Rates to try; default `MULTIPLES` of 1/L of these features.
        criterion: `final`: highest held-out accuracy after the last epoch; `mean`: highest on average over
            the epochs, the rate of an attacker in a hurry.
        seeds: Of the held-out part and of the order of `sgd`.
        batch_size: Of `sgd`.
        preprocessing: `none`, the attacker of the paper, or `standardise`, an informed one.
        device: Where to compute.

    Returns:
        Curves of all rates, and the chosen ones.

    Raises:
        InvalidInputError: Bad shapes, labels out of range, one class only, bad options, or every learning
            rate diverges.
        DeviceError: No such device.
        UnknownNameError: Unknown optimizer, criterion or preprocessing.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> y = np.arange(200) % 2
        >>> X = generator.normal(size=(200, 5)) + 3 * y[:, None]
        >>> probe_accuracy(X[:150], y[:150], X[150:], y[150:], epochs=20).final_accuracy
        1.0
    """
    _check_options(optimizer, criterion, epochs, batch_size, seeds)
    data = probe_data(
        features_train,
        y_train,
        features_test,
        y_test,
        preprocessing=preprocessing,
        device=resolve_device(device),
    )
    curvature = smoothness(data.X_train)
    rates = np.array(MULTIPLES) / curvature if learning_rates is None else _grid(learning_rates)
    options: dict[str, Any] = {"epochs": epochs, "optimizer": optimizer, "batch_size": batch_size}
    tables, chosen = [], []
    for seed in seeds:
        grid, best = _one_seed(data, rates, criterion, seed, options)
        tables += [grid, best]
        chosen.append(float(best["learning_rate"].iloc[0]))
    curves = pd.concat(tables, ignore_index=True)
    curves.insert(3, "multiple", curves["learning_rate"] * curvature)
    return ProbeAccuracy(
        curves=curves,
        learning_rates=tuple(chosen),
        at_edge=len(rates) > 1 and any(rate in (rates[0], rates[-1]) for rate in chosen),
        optimizer=optimizer,
        criterion=criterion,
        epochs=epochs,
        classes=data.classes,
        smoothness=curvature,
    )


def _one_seed(
    data: ProbeData, rates: np.ndarray, criterion: Criterion, seed: int, options: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the curves of all rates on the rows that are not held out, and of the best one on all rows."""
    fit, held = data.split(seed)
    X, y, test = data.X_train, data.y_train, (data.X_test, data.y_test)
    sets = [(X[held], y[held]), test]
    tried = descend(X[fit], y[fit], data.classes, torch.from_numpy(rates), sets, seed=seed, **options)
    best = _choose(tried, rates, criterion)
    again = descend(
        X, y, data.classes, torch.from_numpy(rates[best : best + 1]), [test], seed=seed, **options
    )
    heldout, accuracy = tried.accuracies[:, 0], tried.accuracies[:, 1]
    missing = np.full_like(again.train_loss, np.nan)
    return (
        _table(seed, "grid", rates, tried.train_loss, heldout, accuracy),
        _table(seed, "best", rates[best : best + 1], again.train_loss, missing, again.accuracies[:, 0]),
    )


def _choose(tried: DescentCurves, rates: np.ndarray, criterion: Criterion) -> int:
    """Return the position of the best rate by held-out accuracy, then held-out loss, then size."""
    accuracy, loss = tried.accuracies[:, 0], tried.losses[:, 0]
    score = accuracy[-1] if criterion == "final" else accuracy[1:].mean(axis=0)  # NaN if it diverges
    usable = np.flatnonzero(np.isfinite(score))
    if not usable.size:
        raise InvalidInputError(
            f"every learning rate diverges ({', '.join(f'{rate:.3g}' for rate in rates)}); give smaller ones."
        )
    return int(min(usable, key=lambda k: (-score[k], loss[-1, k], rates[k])))


def _table(
    seed: int, role: str, rates: np.ndarray, loss: np.ndarray, heldout: np.ndarray, test: np.ndarray
) -> pd.DataFrame:
    """Return `(epochs + 1, rates)` arrays as tidy rows, epochs running fastest."""
    epochs = len(loss)
    return pd.DataFrame(
        {
            "seed": seed,
            "role": role,
            "learning_rate": np.repeat(rates, epochs),
            "epoch": np.tile(np.arange(epochs), len(rates)),
            "train_loss": loss.T.reshape(-1),
            "heldout_accuracy": heldout.T.reshape(-1),
            "test_accuracy": test.T.reshape(-1),
        }
    )


def _grid(learning_rates: Sequence[float]) -> np.ndarray:
    """Return the caller's rates, ascending."""
    rates = np.unique(np.asarray(learning_rates, dtype=np.float64))
    if rates.ndim != 1 or not rates.size or not np.isfinite(rates).all() or rates[0] <= 0:
        raise InvalidInputError(f"learning_rates must be positive and finite, got {list(learning_rates)}.")
    return rates


def _check_options(
    optimizer: str, criterion: str, epochs: int, batch_size: int, seeds: Sequence[int]
) -> None:
    """Refuse bad options."""
    if optimizer not in get_args(Optimizer):
        raise UnknownNameError("optimizer", optimizer, get_args(Optimizer))
    if criterion not in get_args(Criterion):
        raise UnknownNameError("criterion", criterion, get_args(Criterion))
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidInputError(f"{name} must be a positive integer, got {value!r}.")
    if not seeds or len(set(seeds)) != len(seeds) or any(seed < 0 for seed in seeds):
        raise InvalidInputError(f"seeds must be different integers of at least 0, got {list(seeds)}.")
