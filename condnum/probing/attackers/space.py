r"""One feature space as an attacker meets it: loss, optimum, and the spectrum of its Hessian.

With `F = UΣVᵀ` and `H = FᵀF/N`, `σ_i = Σ_i²/N` and the start `w₀ = 0`, gradient methods on the squared
loss multiply the error along `v_i` by a polynomial `q_t(σ_i)` with `q_0 = 1`, so that

.. math:: \frac{L_t - L^*}{L_0 - L^*} = \sum_i p_i\, q_t(\sigma_i)^2, \qquad
          p_i = \frac{\|u_i^\top Y\|^2}{\sum_j \|u_j^\top Y\|^2}:

`p_i` is the share of the excess loss that lies along the i-th eigenvector.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, RankError
from condnum.probing.attackers.convex_optimum import ConvexOptimum, logistic_optimum
from condnum.probing.attackers.feature_set import Kind
from condnum.probing.attackers.objectives import (
    Array,
    LogisticObjective,
    Objective,
    SquaredObjective,
    cross_entropy,
    predict,
)
from condnum.spectra import default_rtol


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the probe's Hessian above its numerical rank, and where the excess loss lies."""

    sigma: Array  # (r,) descending, of FᵀF/N
    left: Array  # (N, r) u_i
    right: Array  # (k, r) v_i
    shares: Array  # (r,) p_i, sum 1; of squared loss on the targets, or on ±1 labels of a classification

    @property
    def condition(self) -> float:
        """Compact κ = σ₁/σ_r."""
        return float(self.sigma[0] / self.sigma[-1])

    @property
    def rank(self) -> int:
        """Number of eigenvalues r."""
        return len(self.sigma)


@dataclass(frozen=True, eq=False)
class ProbeSpace:
    """Features and targets of one probe, scaled as the panel scales them."""

    features: Array  # (N, k)
    targets: NDArray[Any]  # (N, m) float64 or labels (N,) int64
    kind: Kind
    test: Array | None = None  # (M, k)
    test_targets: NDArray[Any] | None = None
    setup_seconds: float = 0.0  # spent on the change of coordinates
    reference: ProbeSpace | None = None  # a space of much the same range, whose optimum starts the search

    @cached_property
    def classes(self) -> int:
        """Number of classes C."""
        return max(2, int(self.targets.max()) + 1)

    @cached_property
    def regression_targets(self) -> Array:
        """`(N, m)`: the targets, or the labels as ±1 (one column a class for more than two)."""
        if self.kind == "regression":
            return np.asarray(self.targets, dtype=np.float64)
        if self.classes == 2:
            return 2.0 * self.targets[:, None] - 1.0
        return 2.0 * np.eye(self.classes)[self.targets] - 1.0

    @cached_property
    def spectrum(self) -> Spectrum:
        """Eigenvalues above `k·eps·σ₁`, as everywhere in this library, and the shares p_i."""
        started = time.perf_counter()
        U, s, right = np.linalg.svd(self.features, full_matrices=False)
        self.__dict__["spectrum_seconds"] = time.perf_counter() - started
        if not s[0] > 0:
            raise RankError("the features have rank 0: all are zero; there is nothing to probe.")
        sigma = s**2 / len(self.features)
        kept = sigma > default_rtol(self.features.shape[1]) * sigma[0]
        energy = ((U[:, kept].T @ self.regression_targets) ** 2).sum(axis=1)
        if not energy.sum() > 0:
            raise InvalidInputError(
                "the targets are orthogonal to all features: no probe can learn them; check the targets."
            )
        return Spectrum(sigma[kept], U[:, kept], right[kept].T, energy / energy.sum())

    @cached_property
    def solution(self) -> Array:
        """Minimum-norm least-squares solution `(k, m)` over the spectrum."""
        S = self.spectrum
        scale = np.sqrt(S.sigma * len(self.features))
        return S.right @ ((S.left.T @ self.regression_targets) / scale[:, None])

    @cached_property
    def convex_optimum(self) -> ConvexOptimum:
        """L* of this space, with its evidence; of squared loss in closed form."""
        if self.kind == "regression":
            Y = self.regression_targets
            U = self.spectrum.left
            residual = Y - U @ (U.T @ Y)
            return ConvexOptimum(float((residual**2).sum()) / len(Y), 0.0, 0, True)
        basis = self.spectrum.left * np.sqrt(len(self.features))
        start = None if self.reference is None else self.reference.convex_optimum.logits
        labels = np.asarray(self.targets, dtype=np.int64)
        return logistic_optimum(basis, labels, self.classes, start=start)

    @cached_property
    def objective(self) -> Objective:
        """The training loss."""
        if self.kind == "regression":
            Y = self.regression_targets
            return SquaredObjective(self.features, Y, self.solution, self.convex_optimum.loss)
        labels = np.asarray(self.targets, dtype=np.int64)
        return LogisticObjective(self.features, labels, self.classes, self.convex_optimum.loss)

    @cached_property
    def seconds_per_pass(self) -> float:
        """Measured seconds of one gradient on all rows: two products with F; median of five."""
        w = np.ones((self.features.shape[1], self.objective.outputs))
        taken = []
        for _ in range(5):
            started = time.perf_counter()
            self.features.T @ (self.features @ w)
            taken.append(time.perf_counter() - started)
        return float(np.median(taken))

    def evaluate(self, weights: Array) -> tuple[Array, Array]:
        """Return loss and accuracy on the held-out rows, or on the training rows if there are none."""
        held = self.test is not None and self.test_targets is not None
        F, y = (self.test, self.test_targets) if held else (self.features, self.targets)
        assert F is not None  # both come together
        assert y is not None
        predicted = predict(F, weights)
        if self.kind == "regression":
            return ((predicted - y[:, None]) ** 2).sum(axis=2).mean(axis=0), np.full(len(weights), np.nan)
        labels = np.asarray(y, dtype=np.int64)
        loss, _ = cross_entropy(predicted, labels)
        chosen = predicted[:, :, 0] > 0 if self.classes == 2 else predicted.argmax(axis=2)
        return loss, (chosen == labels[:, None]).mean(axis=0)

    @cached_property
    def standardised(self) -> ProbeSpace:
        """Columns centred and divided by their standard deviation, with a column of ones: an intercept.

        The space grows by the constant function, so that its optimum may be lower. A column that is constant
        up to round-off is dropped to zero.
        """
        started = time.perf_counter()
        mean, deviation = self.features.mean(axis=0), self.features.std(axis=0)
        size = np.sqrt((self.features**2).mean(axis=0))
        flat = deviation <= 1e-12 * np.maximum(size, np.finfo(np.float64).tiny)
        gain = np.where(flat, 0.0, 1 / np.where(flat, 1.0, deviation))

        def change(F: Array) -> Array:
            return np.c_[(F - mean) * gain, np.ones(len(F))]

        features, test = change(self.features), None if self.test is None else change(self.test)
        seconds = time.perf_counter() - started
        return replace(self, features=features, test=test, setup_seconds=seconds, reference=self)

    @cached_property
    def whitened(self) -> ProbeSpace:
        """`F·V·diag(σ^{-1/2})`, all eigenvalues 1; the optimum is that of F."""
        S = self.spectrum
        gain = S.right / np.sqrt(S.sigma)
        features, test = S.left * np.sqrt(len(S.left)), None if self.test is None else self.test @ gain
        seconds = float(self.__dict__.get("spectrum_seconds", 0.0))
        copy = replace(self, features=features, test=test, setup_seconds=seconds)
        identity = Spectrum(np.ones(S.rank), S.left, np.eye(S.rank), S.shares)
        copy.__dict__["spectrum"] = identity  # known: no second decomposition
        copy.__dict__["convex_optimum"] = self.convex_optimum
        return copy
