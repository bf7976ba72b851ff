r"""One feature space as an attacker meets it: loss of a whole grid of candidates, optimum, spectrum.

Losses are relative to start and optimum:

.. math:: e(W) = \frac{L(W) - L^*}{L_0 - L^*}, \qquad L_0 = L(0), \quad L^* = \inf_W L(W)

Weights are `(B, k, m)`: B candidates, k features, m outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.arrays import FloatArray
from condnum.errors import RankError
from condnum.probing.quadratic import Modes
from condnum.theory.linalg import singular_triples
from condnum.theory.task import rank_tolerance

#: A squared slope of the loss below this fraction of what it could be is round-off of features in float64.
_FLAT = 1e-14


def predict(features: FloatArray, weights: FloatArray) -> FloatArray:
    """Return `FW` `(N, B, m)` of all candidates by one matrix product."""
    B, k, m = weights.shape
    return (features @ weights.transpose(1, 0, 2).reshape(k, B * m)).reshape(-1, B, m)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the probe's Hessian above its numerical rank, and where the excess loss lies."""

    sigma: FloatArray  # (r,) descending, of FᵀF/N
    left: FloatArray  # (N, r) u_i
    right: FloatArray  # (k, r) v_i
    energy: FloatArray  # (r,) p_i, sum 1

    @property
    def modes(self) -> Modes:
        """The loss in its eigenbasis."""
        return Modes(self.sigma / self.sigma[0], self.energy)

    @property
    def table(self) -> pd.DataFrame:
        """A row per eigenvalue, from the largest."""
        index = np.arange(1, len(self.sigma) + 1)
        return pd.DataFrame({"index": index, "sigma": self.sigma, "share": self.energy})


@dataclass(frozen=True, eq=False)
class ProbeSpace:
    """Features and targets of one probe, scaled as the panel scales them, and the squared loss on them."""

    features: FloatArray  # (N, k)
    targets: FloatArray  # (N, m)
    test: FloatArray | None = None  # (M, k)
    test_targets: FloatArray | None = None  # (M, m)
    decode: tuple[NDArray[np.int64], FloatArray] | None = None  # labels of scored rows, (m, C) to classes
    choosing: int = 0  # so many of the first scored rows choose step and candidate; 0: those that judge

    @property
    def outputs(self) -> int:
        """Number of outputs m."""
        return self.targets.shape[1]

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
        kept = s > rank_tolerance(max(512, *self.features.shape)) * s[0]
        energy = ((U[:, kept].T @ self.targets) ** 2).sum(axis=1)
        sigma = s[kept] ** 2 / len(self.features)
        return Spectrum(sigma, U[:, kept], right[kept].T, energy / (energy.sum() or 1.0))

    @cached_property
    def start_loss(self) -> float:
        """L₀, of zero weights: `‖Y‖²/N`."""
        return float((self.targets**2).sum()) / len(self.targets)

    @cached_property
    def nothing_to_learn(self) -> bool:
        """Whether zero weights are optimal: the loss is flat there, up to round-off."""
        reached = self.spectrum.left.T @ self.targets
        return bool((reached**2).sum() <= _FLAT * (self.targets**2).sum())

    @cached_property
    def solution(self) -> FloatArray:
        """Minimum-norm least-squares solution `(k, m)` over the spectrum."""
        S = self.spectrum
        scale = np.sqrt(S.sigma * len(self.features))
        return S.right @ ((S.left.T @ self.targets) / scale[:, None])

    @cached_property
    def optimum(self) -> float:
        """L* of this space, in closed form."""
        U, Y = self.spectrum.left, self.targets
        return float(((Y - U @ (U.T @ Y)) ** 2).sum()) / len(Y)

    @property
    def smoothness(self) -> float:
        """The largest curvature, `2σ₁` of FᵀF/N."""
        return 2 * float(self.spectrum.sigma[0])

    @cached_property
    def _hessian(self) -> FloatArray:
        """`FᵀF/N`."""
        return self.features.T @ self.features / len(self.features)

    def evaluate(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return relative excess loss `(B,)` and gradient `(B, k, m)`.

        Both are of W − W*, so that a small excess loss has no cancellation.
        """
        error = weights - self.solution
        product = predict(self._hessian, error).transpose(1, 0, 2)
        return (error * product).sum(axis=(1, 2)) / (self.start_loss - self.optimum), 2 * product

    def batch_gradient(self, weights: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return the gradient of the mean loss of the rows `index`."""
        F = self.features[index]
        residual = predict(F, weights) - self.targets[index, None]
        N, B, m = residual.shape
        return (F.T @ residual.reshape(N, B * m)).reshape(-1, B, m).transpose(1, 0, 2) * (2 / N)

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

    def _scored(self, predicted: FloatArray, y: FloatArray, rows: slice) -> tuple[FloatArray, FloatArray]:
        """Return loss and accuracy of predictions on some of the scored rows."""
        predicted, y = predicted[rows], y[rows]
        loss = ((predicted - y[:, None]) ** 2).sum(axis=2).mean(axis=0)
        if self.decode is None:
            return loss, np.full(predicted.shape[1], np.nan)
        labels, classes = self.decode
        return loss, ((predicted @ classes).argmax(axis=2) == labels[rows, None]).mean(axis=0)

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
