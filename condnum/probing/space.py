r"""One feature space as an attacker meets it: loss of a whole grid of candidates, optimum, spectrum.

Losses are relative to start and optimum:

.. math:: e(W) = \frac{L(W) - L^*}{L_0 - L^*}, \qquad L_0 = L(0), \quad L^* = \inf_W L(W)

Weights are `(B, k, m)`: B candidates, k features, m outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from condnum.arrays import FloatArray, TargetKind
from condnum.errors import RankError
from condnum.probing.quadratic import Modes
from condnum.probing.tasks import signed_labels
from condnum.theory.extremes import singular_triples
from condnum.theory.spectra import solver_rtol

#: A squared slope of the loss below this fraction of what it could be is round-off of features in float64.
_FLAT = 1e-14

#: Largest slope and most iterations with which scikit-learn's L-BFGS ends on whitened features, and its C:
#: the penalty is far below float64's round-off of the loss.
_SLOPE, _ITERATIONS, _NO_PENALTY = 1e-9, 1000, 1e10


def predict(features: FloatArray, weights: FloatArray) -> FloatArray:
    """Return `FW` `(N, B, m)` of all candidates by one matrix product."""
    B, k, m = weights.shape
    return (features @ weights.transpose(1, 0, 2).reshape(k, B * m)).reshape(-1, B, m)


def squared_error(predicted: FloatArray, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean squared error `(B,)` of predictions `(N, B, m)` and N times its derivative by them."""
    residual = predicted - targets[:, None]
    return (residual**2).sum(axis=2).mean(axis=0), 2 * residual


def cross_entropy(logits: FloatArray, labels: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return the mean cross-entropy `(B,)` in nats of logits `(N, B, m)` and N times its derivative by them.

    One output is the logit of label 1; C outputs are those of a softmax.
    """
    if logits.shape[2] == 1:
        signed = np.where(labels == 1, -1.0, 1.0)[:, None, None]
        return np.logaddexp(0, signed * logits).mean(axis=(0, 2)), signed * expit(signed * logits)
    logs, at = log_softmax(logits, axis=2), np.arange(len(labels))
    residual = np.exp(logs)
    residual[at, :, labels] -= 1
    return -logs[at, :, labels].mean(axis=0), residual


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the probe's Hessian above its numerical rank, and where the excess loss lies."""

    sigma: FloatArray  # (r,) descending, of FᵀF/N
    left: FloatArray  # (N, r) u_i
    right: FloatArray  # (k, r) v_i
    energy: FloatArray  # (r,) p_i, sum 1; of squared loss on the targets, or on ±1 labels of a classification

    @property
    def modes(self) -> Modes:
        """The squared loss in its eigenbasis."""
        return Modes(self.sigma / self.sigma[0], self.energy)

    @property
    def table(self) -> pd.DataFrame:
        """A row per eigenvalue, from the largest."""
        index = np.arange(1, len(self.sigma) + 1)
        return pd.DataFrame({"index": index, "sigma": self.sigma, "share": self.energy})


@dataclass(frozen=True, eq=False)
class ProbeSpace:
    """Features and targets of one probe, scaled as the panel scales them, and the training loss on them."""

    features: FloatArray  # (N, k)
    targets: NDArray[Any]  # (N, m) float64 or labels (N,) int64
    kind: TargetKind  # regression: mean squared error; classification: mean cross-entropy
    test: FloatArray | None = None  # (M, k)
    test_targets: NDArray[Any] | None = None
    decode: tuple[NDArray[np.int64], FloatArray] | None = None  # labels of scored rows, (m, C) to classes
    choosing: int = 0  # so many of the first scored rows choose step and candidate; 0: those that judge

    @cached_property
    def classes(self) -> int:
        """Number of classes C."""
        return max(2, int(self.targets.max()) + 1)

    @property
    def outputs(self) -> int:
        """Number of outputs m: of a classification 1 for two classes, C for more."""
        if self.kind == "regression":
            return self.targets.shape[1]
        return 1 if self.classes == 2 else self.classes

    @property
    def loss(self) -> Callable[[FloatArray, Any], tuple[FloatArray, FloatArray]]:
        """The loss of predictions, with its derivative."""
        return squared_error if self.kind == "regression" else cross_entropy

    @cached_property
    def squared_targets(self) -> FloatArray:
        """`(N, m)`: the targets, or the labels as ±1 (one column per class for more than two)."""
        return self.targets if self.kind == "regression" else signed_labels(self.targets, self.classes)

    @cached_property
    def _triples(self) -> tuple[FloatArray, ...]:
        """All singular values of F `(r,)` but exact zeros, with their vectors `(N, r)` and `(r, k)`."""
        U, s, right = (part.numpy() for part in singular_triples(torch.from_numpy(self.features)))
        if not s[0] > 0:
            raise RankError("the features have rank 0: all entries are zero, so there is nothing to probe.")
        return U[:, s > 0], s[s > 0], right[s > 0]

    @cached_property
    def spectrum(self) -> Spectrum:
        """Eigenvalues and energies p_i of what a solver reads in F (`solver_rtol`)."""
        U, s, right = self._triples
        kept = s > solver_rtol(self.features.shape) * s[0]
        energy = ((U[:, kept].T @ self.squared_targets) ** 2).sum(axis=1)
        sigma = s[kept] ** 2 / len(self.features)
        return Spectrum(sigma, U[:, kept], right[kept].T, energy / (energy.sum() or 1.0))

    @cached_property
    def start_loss(self) -> float:
        """L₀, of zero weights: `‖Y‖²/N`, or `ln C`."""
        return float(self.loss(np.zeros((len(self.features), 1, self.outputs)), self.targets)[0][0])

    @cached_property
    def nothing_to_learn(self) -> bool:
        """Whether zero weights are optimal: the convex loss is flat there, up to round-off."""
        slope = self.loss(np.zeros((len(self.features), 1, self.outputs)), self.targets)[1][:, 0]
        reached = self.spectrum.left.T @ slope
        return bool((reached**2).sum() <= _FLAT * (slope**2).sum())

    @cached_property
    def solution(self) -> FloatArray:
        """Minimum-norm least-squares solution `(k, m)` over the spectrum."""
        S = self.spectrum
        scale = np.sqrt(S.sigma * len(self.features))
        return S.right @ ((S.left.T @ self.squared_targets) / scale[:, None])

    @cached_property
    def optimum(self) -> float:
        """L* of this space: of squared loss in closed form, of a classification by scikit-learn's L-BFGS.

        On whitened features it takes some 20 steps; scikit-learn warns where it does not converge. Where
        classes can be separated, L* is 0 and the loss ends below 1e-8.
        """
        U = self.spectrum.left
        if self.kind == "regression":
            Y = self.squared_targets
            return float(((Y - U @ (U.T @ Y)) ** 2).sum()) / len(Y)
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=_NO_PENALTY, fit_intercept=False, tol=_SLOPE, max_iter=_ITERATIONS)
        basis = U * np.sqrt(len(U))
        model.fit(basis, self.targets)
        loss, _ = cross_entropy(predict(basis, model.coef_.T[None]), self.targets)
        return float(loss[0])

    @property
    def smoothness(self) -> float:
        """Bound on the curvature: `2σ₁` of FᵀF/N; of cross-entropy `σ₁/4`; `σ₁/2` for C > 2 (Böhning)."""
        top = float(self.spectrum.sigma[0])
        return 2 * top if self.kind == "regression" else top / (4 if self.classes == 2 else 2)

    @cached_property
    def _hessian(self) -> FloatArray:
        """`FᵀF/N`."""
        return self.features.T @ self.features / len(self.features)

    @cached_property
    def _single(self) -> tuple[Any, ...]:
        """Features, Hessian and moment `(k, m)` of the squared loss in float32."""
        moment = self.features.T @ self.squared_targets / len(self.features)
        return tuple(of.astype(np.float32) for of in (self.features, self._hessian, moment))

    def evaluate(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return relative excess loss `(B,)` and gradient `(B, k, m)`, in the type of the weights."""
        learnable, single = self.start_loss - self.optimum, weights.dtype == np.float32
        if self.kind == "regression" and single:  # W* may be too large for float32
            _, H, moment = self._single
            slope = predict(H, weights).transpose(1, 0, 2) - moment
            return 1 + (weights * (slope - moment)).sum(axis=(1, 2)) / learnable, 2 * slope
        if self.kind == "regression":  # from W − W*, so that a small excess loss has no cancellation
            error = weights - self.solution
            product = predict(self._hessian, error).transpose(1, 0, 2)
            return (error * product).sum(axis=(1, 2)) / learnable, 2 * product
        loss, gradient = self._of_rows(weights, slice(None))
        return (loss - self.optimum) / learnable, gradient

    def batch_gradient(self, weights: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return the gradient of the mean loss of the rows `index`."""
        return self._of_rows(weights, index)[1]

    def _of_rows(self, weights: FloatArray, index: Any) -> tuple[FloatArray, FloatArray]:
        """Return mean loss and gradient on rows."""
        F = (self._single[0] if weights.dtype == np.float32 else self.features)[index]
        loss, residual = self.loss(predict(F, weights), self.targets[index])
        N, B, m = residual.shape
        pulled = (F.T @ residual.reshape(N, B * m).astype(F.dtype, copy=False)).reshape(-1, B, m)
        return loss, pulled.transpose(1, 0, 2) / N

    def score(self, weights: FloatArray) -> tuple[FloatArray, ...]:
        """Return loss and accuracy `(B,)` on the held-out rows that judge, and on those that choose.

        The training rows do both where there are no others.
        """
        F, y = self.features, self.targets
        if self.test is not None and self.test_targets is not None:
            F, y = self.test, self.test_targets
        predicted = predict(F, weights)
        judging, choosing = slice(self.choosing, None), slice(self.choosing or None)
        return *self._scored(predicted, y, judging), *self._scored(predicted, y, choosing)

    def _scored(self, predicted: FloatArray, y: Any, rows: slice) -> tuple[FloatArray, FloatArray]:
        """Return loss and accuracy of predictions on some of the scored rows."""
        predicted, y = predicted[rows], y[rows]
        loss, _ = self.loss(predicted, y)
        if self.decode is not None:
            labels, classes = self.decode
            return loss, ((predicted @ classes).argmax(axis=2) == labels[rows, None]).mean(axis=0)
        if self.kind == "regression":
            return loss, np.full(predicted.shape[1], np.nan)
        chosen = predicted[:, :, 0] > 0 if self.classes == 2 else predicted.argmax(axis=2)
        return loss, (chosen == y[:, None]).mean(axis=0)

    @cached_property
    def standardized(self) -> ProbeSpace:
        """Columns standardized as by scikit-learn, and an intercept: L* may be lower."""
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(self.features)

        def change(F: FloatArray) -> FloatArray:
            return np.c_[scaler.transform(F), np.ones(len(F))]

        return replace(
            self, features=change(self.features), test=None if self.test is None else change(self.test)
        )

    @cached_property
    def whitened(self) -> ProbeSpace:
        """`F·V·diag(σ^{-1/2})`, all eigenvalues 1; the optimum is that of F."""
        S = self.spectrum
        test = None if self.test is None else self.test @ (S.right / np.sqrt(S.sigma))
        space = replace(self, features=S.left * np.sqrt(len(S.left)), test=test)
        ones = np.ones_like(S.sigma)
        space.__dict__["spectrum"] = Spectrum(ones, S.left, np.diag(ones), S.energy)
        return space

    @cached_property
    def unfiltered(self) -> ProbeSpace:
        """`[1, F·V·diag(s⁻¹)·√N]` by every singular value s, those of round-off among them, largest first.

        Both kinds of rows are projected alike, or the last columns would be the round-off of two algorithms.
        """
        _, s, right = self._triples
        back = right.T * (math.sqrt(len(self.features)) / s)

        def change(F: FloatArray) -> FloatArray:
            return np.c_[np.ones(len(F)), F @ back]

        return replace(
            self, features=change(self.features), test=None if self.test is None else change(self.test)
        )
