r"""One feature space as an attacker meets it: losses of a whole grid of candidates, optimum, spectrum.

Losses are relative to start and optimum:

.. math:: e(W) = \frac{L(W) - L^*}{L_0 - L^*}, \qquad L_0 = L(0), \quad L^* = \inf_W L(W)

Weights are `(B, k, m)`: B candidates, k features, m outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, log_softmax, softmax

from condnum.arrays import FloatArray
from condnum.errors import RankError
from condnum.probing.tasks import TaskKind
from condnum.theory.spectra import default_rtol

#: A squared slope of the loss below this fraction of what it could be is round-off of features in float64.
NOTHING = 1e-14


def predict(features: FloatArray, weights: FloatArray) -> FloatArray:
    """Return `FW` of all candidates by one matrix product."""
    B, k, m = weights.shape
    return (features @ weights.transpose(1, 0, 2).reshape(k, B * m)).reshape(-1, B, m)


def pull_back(features: FloatArray, residual: FloatArray) -> FloatArray:
    """Return `Fᵀr` of all candidates: `(N, k)` and `(N, B, m)` give `(B, k, m)`."""
    N, B, m = residual.shape
    return (features.T @ residual.reshape(N, B * m)).reshape(-1, B, m).transpose(1, 0, 2)


@dataclass(frozen=True, eq=False)
class SquaredObjective:
    r"""Mean squared error `‖FW − Y‖²/N` through its Hessian: `L − L* = ⟨W − W*, H(W − W*)⟩`, `H = FᵀF/N`.

    The difference `W − W*` is formed first, so that a small excess loss has no cancellation.
    """

    features: FloatArray  # (N, k)
    targets: FloatArray  # (N, m)
    solution: FloatArray  # (k, m), W*
    optimum: float  # L*

    @property
    def outputs(self) -> int:
        """Number of outputs m."""
        return self.targets.shape[1]

    @cached_property
    def start_loss(self) -> float:
        """`‖Y‖²/N`."""
        return float((self.targets**2).sum()) / len(self.targets)

    @cached_property
    def hessian(self) -> FloatArray:
        """`FᵀF/N`, `(k, k)`; half of the Hessian of L."""
        return self.features.T @ self.features / len(self.features)

    @cached_property
    def smoothness(self) -> float:
        """`2σ₁(H)`."""
        return 2 * float(np.linalg.eigvalsh(self.hessian)[-1])

    def evaluate(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return relative excess loss `(B,)` and `2H(W − W*)` `(B, k, m)`."""
        error = weights - self.solution
        product = predict(self.hessian, error).transpose(1, 0, 2)
        return (error * product).sum(axis=(1, 2)) / (self.start_loss - self.optimum), 2 * product

    def batch_gradient(self, weights: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return `2Fᵀ(FW − Y)/n` of the rows `index`."""
        F = self.features[index]
        return 2 / len(index) * pull_back(F, predict(F, weights) - self.targets[index][:, None])


@dataclass(frozen=True, eq=False)
class LogisticObjective:
    """Mean cross-entropy in nats: logistic with one output for two classes, softmax for more."""

    features: FloatArray  # (N, k)
    labels: NDArray[np.int64]  # (N,) in 0 … C − 1
    classes: int  # C
    optimum: float = 0.0  # L*, the infimum; 0 where the classes can be separated

    @property
    def outputs(self) -> int:
        """1 for two classes, C for more."""
        return 1 if self.classes == 2 else self.classes

    @property
    def start_loss(self) -> float:
        """`ln C`."""
        return float(np.log(self.classes))

    @cached_property
    def smoothness(self) -> float:
        """`σ₁(FᵀF/N)/4` for two classes, `/2` for more (Böhning 1992)."""
        F = self.features
        gram = F.T @ F if F.shape[1] <= F.shape[0] else F @ F.T
        return float(np.linalg.eigvalsh(gram)[-1]) / len(F) / (4 if self.classes == 2 else 2)

    def evaluate(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return relative excess loss `(B,)` and the gradient `(B, k, m)`."""
        loss, residual = cross_entropy(predict(self.features, weights), self.labels)
        excess = (loss - self.optimum) / (self.start_loss - self.optimum)
        return excess, pull_back(self.features, residual) / len(self.labels)

    def batch_gradient(self, weights: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return the gradient of the mean loss of the rows `index`."""
        rows = replace(self, features=self.features[index], labels=self.labels[index])
        return rows.evaluate(weights)[1]


Objective = SquaredObjective | LogisticObjective


def cross_entropy(logits: FloatArray, labels: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return the mean cross-entropy of each candidate and its derivative by the logits, times N."""
    if logits.shape[2] == 1:
        signed = np.where(labels == 1, -1.0, 1.0)[:, None, None]
        return np.logaddexp(0, signed * logits).mean(axis=(0, 2)), signed * expit(signed * logits)
    logs, at = log_softmax(logits, axis=2), np.arange(len(labels))
    residual = np.exp(logs)
    residual[at, :, labels] -= 1
    return -logs[at, :, labels].mean(axis=0), residual


@dataclass(frozen=True, eq=False)
class ConvexOptimum:
    """Optimum of a convex loss with the evidence that it is one."""

    loss: float  # L*, an upper bound that is `error` at most above the infimum, to second order
    error: float  # half the squared Newton decrement
    iterations: int
    converged: bool  # error ≤ tolerance·ln C
    logits: FloatArray | None = field(default=None, repr=False)  # (N, m) at the optimum


def logistic_optimum(
    basis: FloatArray,
    labels: NDArray[np.int64],
    classes: int,
    *,
    start: FloatArray | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 60,
) -> ConvexOptimum:
    """Minimize the mean cross-entropy over all linear functions of the features, by Newton's method.

    Where classes can be separated it ends at `tolerance·ln C`, far below any ε in use.
    """
    N, r = basis.shape
    m, enough = 1 if classes == 2 else classes, tolerance * np.log(classes)

    def losses(W: FloatArray) -> tuple[float, FloatArray]:
        loss, residual = cross_entropy(predict(basis, W[None]), labels)
        return float(loss[0]), residual[:, 0, :]

    W = np.zeros((r, m)) if start is None else basis.T @ start / N
    loss, residual = losses(W)
    error, iterations = np.inf, 0
    while iterations < max_iterations:
        iterations += 1
        gradient = basis.T @ residual / N
        direction = _newton_direction(basis, basis @ W, gradient)
        error = 0.5 * abs(float((gradient * direction).sum()))
        if min(error, loss) <= enough:
            break
        length = 1.0
        while length > 1e-8:
            trial, next_residual = losses(W + length * direction)
            if trial <= loss - 1e-4 * length * 2 * error:
                break
            length /= 2
        else:
            break  # round-off: no descent is left
        W, loss, residual = W + length * direction, trial, next_residual
    return ConvexOptimum(loss, error, iterations, bool(min(error, loss) <= enough), basis @ W)


def _newton_direction(basis: FloatArray, logits: FloatArray, gradient: FloatArray) -> FloatArray:
    """Solve `∇²L d = −g` by conjugate gradients, with a ridge of round-off size for flat directions."""
    N, (r, m), ridge = len(basis), gradient.shape, 1e-10
    p = expit(logits) if m == 1 else softmax(logits, axis=1)

    def product(vector: FloatArray) -> FloatArray:
        Z = basis @ vector.reshape(r, m)
        Z = p * (1 - p) * Z if m == 1 else p * (Z - (p * Z).sum(axis=1, keepdims=True))
        return (basis.T @ Z / N).ravel() + ridge * vector

    operator = LinearOperator((r * m, r * m), matvec=product, dtype=np.float64)
    direction, _ = cg(operator, -gradient.ravel(), rtol=1e-2, maxiter=400)
    return direction.reshape(r, m)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the probe's Hessian above its numerical rank, and where the excess loss lies."""

    sigma: FloatArray  # (r,) descending, of FᵀF/N
    left: FloatArray  # (N, r) u_i
    right: FloatArray  # (k, r) v_i
    shares: FloatArray  # (r,) p_i, sum 1; of squared loss on the targets, or on ±1 labels of a classification

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

    features: FloatArray  # (N, k)
    targets: NDArray[Any]  # (N, m) float64 or labels (N,) int64
    kind: TaskKind
    test: FloatArray | None = None  # (M, k)
    test_targets: NDArray[Any] | None = None
    reference: ProbeSpace | None = None  # a space of much the same range, whose optimum starts the search

    @cached_property
    def classes(self) -> int:
        """Number of classes C."""
        return max(2, int(self.targets.max()) + 1)

    @cached_property
    def regression_targets(self) -> FloatArray:
        """`(N, m)`: the targets, or the labels as ±1 (one column a class for more than two)."""
        if self.kind == "regression":
            return np.asarray(self.targets, dtype=np.float64)
        if self.classes == 2:
            return 2.0 * self.targets[:, None] - 1.0
        return 2.0 * np.eye(self.classes)[self.targets] - 1.0

    @cached_property
    def spectrum(self) -> Spectrum:
        """Eigenvalues above `k·eps·σ₁`, as everywhere in this library, and the shares p_i."""
        U, s, right = np.linalg.svd(self.features, full_matrices=False)
        if not s[0] > 0:
            raise RankError("the features have rank 0: all entries are zero, so there is nothing to probe.")
        sigma = s**2 / len(self.features)
        kept = sigma > default_rtol(self.features.shape[1]) * sigma[0]
        energy = ((U[:, kept].T @ self.regression_targets) ** 2).sum(axis=1)
        shares = energy / (energy.sum() or 1.0)
        return Spectrum(sigma[kept], U[:, kept], right[kept].T, shares)

    @cached_property
    def nothing_left(self) -> bool:
        """Whether zero weights are optimal: the convex loss is flat there, up to round-off."""
        if self.kind == "regression":
            slope = self.regression_targets
        else:
            outputs = 1 if self.classes == 2 else self.classes
            slope = cross_entropy(np.zeros((len(self.features), 1, outputs)), self.targets)[1][:, 0]
        explained = self.spectrum.left.T @ slope
        return bool((explained**2).sum() <= NOTHING * (slope**2).sum())

    @cached_property
    def solution(self) -> FloatArray:
        """Minimum-norm least-squares solution `(k, m)` over the spectrum."""
        S = self.spectrum
        scale = np.sqrt(S.sigma * len(self.features))
        return S.right @ ((S.left.T @ self.regression_targets) / scale[:, None])

    @cached_property
    def convex_optimum(self) -> ConvexOptimum:
        """L* of this space, with its evidence; of squared loss in closed form."""
        if self.kind == "regression":
            Y, U = self.regression_targets, self.spectrum.left
            return ConvexOptimum(float(((Y - U @ (U.T @ Y)) ** 2).sum()) / len(Y), 0.0, 0, True)
        basis = self.spectrum.left * np.sqrt(len(self.features))
        start = None if self.reference is None else self.reference.convex_optimum.logits
        return logistic_optimum(basis, self.targets, self.classes, start=start)

    @cached_property
    def objective(self) -> Objective:
        """The training loss."""
        optimum = self.convex_optimum.loss
        if self.kind == "regression":
            return SquaredObjective(self.features, self.regression_targets, self.solution, optimum)
        return LogisticObjective(self.features, self.targets, self.classes, optimum)

    def evaluate(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return loss and accuracy on the held-out rows, or on the training rows if there are none."""
        F, y = self.features, self.targets
        if self.test is not None and self.test_targets is not None:
            F, y = self.test, self.test_targets
        predicted = predict(F, weights)
        if self.kind == "regression":
            return ((predicted - y[:, None]) ** 2).sum(axis=2).mean(axis=0), np.full(len(weights), np.nan)
        loss, _ = cross_entropy(predicted, y)
        chosen = predicted[:, :, 0] > 0 if self.classes == 2 else predicted.argmax(axis=2)
        return loss, (chosen == y[:, None]).mean(axis=0)

    @cached_property
    def standardized(self) -> ProbeSpace:
        """Columns standardized as by scikit-learn, and an intercept: L* may be lower."""
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(self.features)

        def change(F: FloatArray) -> FloatArray:
            return np.c_[scaler.transform(F), np.ones(len(F))]

        features, test = change(self.features), None if self.test is None else change(self.test)
        return replace(self, features=features, test=test, reference=self)

    @cached_property
    def whitened(self) -> ProbeSpace:
        """`F·V·diag(σ^{-1/2})`, all eigenvalues 1; the optimum is that of F."""
        S = self.spectrum
        gain = S.right / np.sqrt(S.sigma)
        features, test = S.left * np.sqrt(len(S.left)), None if self.test is None else self.test @ gain
        copy = replace(self, features=features, test=test)
        identity = Spectrum(np.ones(S.rank), S.left, np.eye(S.rank), S.shares)
        copy.__dict__["spectrum"] = identity  # known: no second decomposition
        copy.__dict__["convex_optimum"] = self.convex_optimum
        return copy
