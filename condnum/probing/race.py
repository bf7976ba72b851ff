r"""What attackers meet and how they race: the squared loss on features, and candidates side by side.

All have an intercept, so that inputs and targets are centered, and one goal: of the loss that a linear probe
on the raw inputs can have, L*, and that without features, L₀, the excess

.. math:: e(W) = \frac{L(W) - L^*}{L_0 - L^*}

is to fall to ε. Weights are `(B, d, m)`: B candidates of a grid, d features, m outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.arrays import FloatArray
from condnum.errors import InvalidInputError, check_integer
from condnum.probing.filters import Modes
from condnum.probing.probe import log_spaced
from condnum.theory.linalg import singular_triples
from condnum.theory.task import Features

#: An excess loss above this counts as diverged.
_DIVERGED = 1e6
#: A fit below this fraction of what raw inputs allow is round-off: zero weights are optimal.
_FLAT = 1e-14
#: Columns of targets that attackers learn who pass over them in each step; more classes are mixed at random.
MOST_OUTPUTS = 16


@dataclass(frozen=True)
class AttackBudget:
    """How much an attacker may spend, and what counts as arrived."""

    steps: int = 20_000
    dense_steps: int = 3_000  # of attackers who pass over the data in each step
    epsilons: tuple[float, ...] = (0.1, 0.01, 0.001)
    reported_epsilon: float = 0.01  # the one of `epsilons` that sentences and tables are about
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"steps": 1, "dense_steps": 1, "batch_size": 1, "seed": 0}.items():
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least))
        if not all(0 < epsilon < 1 for epsilon in self.epsilons):
            raise InvalidInputError(f"epsilons must lie between 0 and 1, got {self.epsilons}.")
        if self.reported_epsilon not in self.epsilons:
            raise InvalidInputError(
                f"reported_epsilon {self.reported_epsilon} must be one of the epsilons {self.epsilons}."
            )


@dataclass(frozen=True, eq=False)
class Rows:
    """Features of an extractor, centered by those that train, and targets; some rows choose, others judge."""

    train: FloatArray  # (N, d)
    targets: FloatArray  # (N, m), centered
    held_out: FloatArray  # (M, d); M may be 0
    held_targets: FloatArray  # (M, m), less the mean of `targets`
    mean: FloatArray  # (m,) of the targets
    labels: NDArray[np.int64] | None  # (M,) classes of held-out rows; None: numbers
    judges: NDArray[np.bool_]  # (M,) the others choose step and candidate


@dataclass(frozen=True, eq=False)
class AttackProblem:
    """The squared loss on one extractor's features, as every attacker meets it.

    Features and targets have unit mean square, as the scale of θ is free. `matrix` and `along` have the
    products of features and targets over all rows, divided by their number.
    """

    matrix: FloatArray  # (k, d), k the rank of the features: diag(√σ)Vᵀ
    along: FloatArray  # (k, m) targets along the features
    best: FloatArray  # (r, m) targets along the raw inputs: what can be learned
    rows: Rows | None  # None: a task without its rows
    scale: tuple[float, float]  # what a feature and a target of the rows are divided by
    theta: FloatArray | None = None  # (D, d) features = inputs·θ; None: there is no matrix
    inputs: AttackProblem | None = None  # of the raw inputs
    classes: bool = False  # whether the targets are one-hot columns
    change: FloatArray | None = None  # (d₀, d) from the rows' features to these
    mixture: FloatArray | None = None  # (m₀, m) orthonormal: from the rows' targets to these

    @classmethod
    def of(cls, seen: Features, best: torch.Tensor, rows: Rows | None, count: int, **others: Any) -> Any:
        """Diagonalize what a probe sees through θ, and bring it to unit scale."""
        k, used = seen.rank, seen.image.any(dim=0)  # columns that are never used stay zero
        U, s, right = singular_triples(seen.image)
        U, s, right = U[:, :k], s[:k], right[:k] * used
        size = float(torch.linalg.vector_norm(s)) / math.sqrt(count * seen.dimension) or 1.0
        unit = math.sqrt(seen.task.energy / (count * seen.task.outputs))
        matrix = (s[:, None] * right / (size * count**0.5)).cpu().numpy()
        along, most = ((of / (unit * count**0.5)).cpu().numpy() for of in (U.mT @ seen.task.along, best))
        return cls(matrix, along, most, rows, (size, unit), **others)

    @property
    def shape(self) -> tuple[int, int]:
        """Features d and outputs m."""
        return self.matrix.shape[1], self.along.shape[1]

    @cached_property
    def fit(self) -> float:
        """L₀ − L*: what raw inputs allow to be learned."""
        return float((self.best**2).sum())

    @cached_property
    def lost(self) -> float:
        """Fraction of that which these features do not allow; negative: they allow more."""
        return 1 - float((self.along**2).sum()) / self.fit

    @property
    def flat(self) -> bool:
        """Whether zero weights are optimal: nothing is left to learn, up to round-off."""
        return bool((self.along**2).sum() <= _FLAT * self.fit)

    @cached_property
    def sigma(self) -> FloatArray:
        """Eigenvalues of the Hessian `(k,)`, descending, above its numerical rank."""
        return np.asarray((self.matrix**2).sum(axis=1))

    @cached_property
    def modes(self) -> Modes:
        """The loss in its eigenbasis."""
        return Modes(self.sigma / self.sigma[:1], (self.along**2).sum(axis=1) / self.fit)

    @cached_property
    def hessian(self) -> FloatArray:
        """`(d, d)`, half of that of the loss."""
        return self.matrix.T @ self.matrix

    @cached_property
    def solution(self) -> FloatArray:
        """The weights of least norm `(d, m)` with the least loss."""
        return self.matrix.T @ (self.along / self.sigma[:, None])

    def evaluate(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the excess loss `(B,)` and the gradient of the loss `(B, d, m)`.

        Both are of W − W*, so that a small excess loss has no cancellation.
        """
        error = weights - self.solution
        product = _predict(self.hessian, error).transpose(1, 0, 2)
        return self.lost + (error * product).sum(axis=(1, 2)) / self.fit, 2 * product

    def batch_gradient(self, weights: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return the gradient of the mean loss of the training rows `index`."""
        assert self.rows is not None
        size, unit = self.scale
        F, Y = self.rows.train[index] / size, self.rows.targets[index] / unit
        residual = _predict(F, weights) - (Y if self.mixture is None else Y @ self.mixture)[:, None]
        N, B, m = residual.shape
        return (F.T @ residual.reshape(N, B * m)).reshape(-1, B, m).transpose(1, 0, 2) * (2 / N)

    def score(self, weights: FloatArray) -> FloatArray:
        """Return `(4, B)`: loss and accuracy on the rows that judge, and on those that choose."""
        if self.rows is None or not len(self.rows.held_out):
            return np.full((4, len(weights)), np.nan)
        return self._scored(self._held_out, weights)

    def score_filter(self, q: FloatArray) -> FloatArray:
        """Return `score` `(4,)` of the weights that a filter `(k,)` leaves."""
        if self.rows is None or not len(self.rows.held_out):
            return np.full(4, np.nan)
        return self._scored(self._held_out_modes, (1 - q)[None, :, None] * self.along)[:, 0]

    @cached_property
    def _held_out(self) -> FloatArray:
        """Held-out rows as the problem's features `(M, d)`, for predictions in the units of the targets."""
        assert self.rows is not None
        F, (size, unit) = self.rows.held_out, self.scale
        return (F if self.change is None else F @ self.change) * (unit / size)

    @cached_property
    def _held_out_modes(self) -> FloatArray:
        """The same in the eigenbasis `(M, k)`, where a filter costs least."""
        return self._held_out @ (self.matrix.T / self.sigma)

    def _scored(self, held_out: FloatArray, weights: FloatArray) -> FloatArray:
        assert self.rows is not None
        predicted = _predict(held_out, weights)
        return held_out_scores(predicted if self.mixture is None else predicted @ self.mixture.T, self.rows)

    def standardized(self) -> AttackProblem:
        """Divide each feature by its deviation, as scikit-learn's `StandardScaler` does."""
        deviation = np.sqrt((self.matrix**2).sum(axis=0))
        back = np.diag(1 / np.where(deviation > 0, deviation, 1))
        U, s, right = np.linalg.svd(self.matrix @ back, full_matrices=False)
        matrix = s[:, None] * right * (deviation > 0)
        return replace(self, matrix=matrix, along=U.T @ self.along, change=back)

    def whitened(self) -> AttackProblem:
        """Change to coordinates in which all eigenvalues are 1."""
        back = self.matrix.T / self.sigma
        return replace(self, matrix=np.eye(len(self.sigma)), change=back)

    def narrow(self, seed: int) -> AttackProblem:
        """Return the problem with at most `MOST_OUTPUTS` targets: random mixtures, the same for all θ."""
        m = self.shape[1]
        if m <= MOST_OUTPUTS:
            return self
        Q = np.linalg.qr(np.random.default_rng([seed, m]).normal(size=(m, MOST_OUTPUTS)))[0]
        if self.rows is not None:  # whatever the order of the classes
            Q = Q[np.argsort(np.argsort(np.abs(self.rows.targets).argmax(axis=0), kind="stable"))]
        mixed = {"along": self.along @ Q, "best": self.best @ Q, "mixture": Q}
        return replace(self, **mixed, inputs=self.inputs and self.inputs.narrow(seed))


def _predict(features: FloatArray, weights: FloatArray) -> FloatArray:
    """Return `FW` `(N, B, m)` of all candidates by one matrix product."""
    B, d, m = weights.shape
    return (features @ weights.transpose(1, 0, 2).reshape(d, B * m)).reshape(-1, B, m)


def held_out_scores(predicted: FloatArray, rows: Rows) -> FloatArray:
    """Score predictions `(M, B, m)` of centered targets: see `AttackProblem.score`."""
    loss = ((predicted - rows.held_targets[:, None]) ** 2).sum(axis=2)
    right = np.full(loss.shape, np.nan)
    if rows.labels is not None:
        right = ((predicted + rows.mean).argmax(axis=2) == rows.labels[:, None]).astype(float)
    parts = [of[chosen].mean(axis=0) for chosen in (rows.judges, ~rows.judges) for of in (loss, right)]
    return np.stack(parts)


class Race:
    """Records candidates of an attacker that take their steps together, until one is at the last target."""

    def __init__(
        self, problem: AttackProblem, choices: Sequence[str], budget: AttackBudget, last: int | None = None
    ) -> None:
        self.problem, self.choices, self.budget = problem, list(choices), budget
        self.last = budget.dense_steps if last is None else last
        self._due = {*log_spaced(self.last, 60).tolist()}
        self.steps: list[int] = []
        self.excess: list[FloatArray] = []  # (B,) each; NaN where one diverges
        self.scored: list[int] = []
        self.scores: list[FloatArray] = []  # (4, B) each

    def observe(
        self, excess: FloatArray, weights: Callable[[], FloatArray] | None, step: int | None = None
    ) -> bool:
        """Record the excess losses after a step, one after the last by default; False: the race is over."""
        step = len(self.steps) if step is None else step
        excess = np.where(excess < _DIVERGED, excess, np.nan)
        arrived = bool((excess <= min(self.budget.epsilons)).any())
        done = arrived or bool(np.isnan(excess).all()) or step >= self.last
        self.steps.append(step)
        self.excess.append(excess)
        if step in self._due or done:
            self.scored.append(step)
            if weights is not None:
                self.scores.append(self.problem.score(weights()))
        return not done

    def follow(self, steps: Iterable[FloatArray]) -> Race:
        """Observe the filters `(B, k)` of a method; only the best candidate is scored."""
        problem, kept = self.problem, list[FloatArray]()
        for q in steps:
            racing = self.observe(problem.lost + (q * q) @ problem.modes.energy, None)
            if self.scored[-1] == self.steps[-1]:
                kept.append(q.copy())
            if not racing:
                break
        b, _ = self.first(self.budget.reported_epsilon)
        for q in kept:
            scores = np.full((4, len(self.choices)), np.nan)
            scores[:, b] = problem.score_filter(q[b])
            self.scores.append(scores)
        return self

    def first(self, epsilon: float) -> tuple[int, int | None]:
        """Return the candidate that is first at ε, with its step; if none is, the nearest and None."""
        excess = np.array(self.excess)
        arrived = excess <= epsilon
        if arrived.any():
            row = int(arrived.any(axis=1).argmax())
            return int(arrived[row].argmax()), self.steps[row]
        return int(np.where(np.isnan(excess), np.inf, excess).min(axis=0).argmin()), None
