"""Gradients of Algorithm 1 as a setting of the switches has them, for the library's own loop.

The bias is one more row of θ, for an input that is always 1: features are `Xθ + b = [X 1]·[θ; b]`, `(N, D)`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from condnum.deep.preconditioned_identity import apply_inverse_covariance
from condnum.experiments.released.switches import ProtocolSwitches
from condnum.methods.algorithm1 import Ours, supervised_gradients
from condnum.methods.method import Gradients, Memory, Parameters
from condnum.methods.settings import DescentSettings
from condnum.problem import ImmunizationProblem
from condnum.regularizers.pairs import ill_gradient_from_pair, well_gradient_from_pair
from condnum.spectra import PUBLISHED_RIDGE, default_rtol, symmetric_part
from condnum.tasks import LinearTask

Part = Literal["well", "ill"]


class SwitchedAlgorithm1:
    """Algorithm 1 with the release's choices where a switch is not turned; a `DescentMethod`."""

    name = "released"
    label = "Algorithm 1 as released"
    summary = "descends the loss, R<sub>well</sub> and R<sub>ill</sub> with the release's choices"
    parts: tuple[str, ...] = ("well", "ill", "supervised")
    defaults = DescentSettings()

    def __init__(
        self, switches: ProtocolSwitches, *, image_side: int | None, ridges: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """Keep the setting."""
        self.switches = switches
        self.ridges: dict[Part, float] = {"well": ridges[0], "ill": ridges[1]}
        self._side = image_side if switches.regularizer_dimension == "image_side" else None

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and ω₀ of the registered method for the seed; with a bias, those of the release.

        There θ₀ and the bias are uniform in ±1/√D, as `nn.Linear` has them, and ω₀ is standard normal.
        """
        if self.switches.bias == "without":
            return Ours().initial(problem, generator)
        dimension = problem.dimension - 1
        bound = 1 / math.sqrt(dimension)
        theta, bias = (
            (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * bound
            for shape in ((dimension, dimension), (1, dimension))
        )
        omega = torch.randn((dimension, 1), generator=generator, dtype=torch.float64)
        return {"theta": torch.cat([theta, bias]), "omega": omega}

    def gradients(
        self,
        problem: ImmunizationProblem,
        parameters: Parameters,
        settings: DescentSettings,
        memory: Memory,
    ) -> Gradients:
        """Return the parts of θ's gradient on all rows or on a mini-batch, and the head's gradient."""
        if self.switches.is_algorithm_1:
            return Ours().gradients(problem, parameters, settings, memory)
        theta, omega = parameters["theta"], parameters["omega"]
        parts = {
            "well": self.direction(problem.pretrain, theta, "well"),
            "ill": self.direction(problem.harmful, theta, "ill"),
        }
        supervised, on_omega = supervised_gradients(problem.pretrain, theta, omega)
        return Gradients(parts | {"supervised": supervised}, {"omega": on_omega})

    def direction(self, task: LinearTask, theta: Tensor, part: Part) -> Tensor:
        r"""Return the preconditioned gradient of one regularizer in θ.

        With :math:`G = \nabla_S R(S)`, `S` the Gram matrix of the features: on the input side
        :math:`K^{-1}\nabla_\theta R = 2\theta G`; on the output side
        :math:`\nabla_\theta R\,(K + \varepsilon I)^{-1}`, which is `K⁻¹` times the gradient of `W = θᵀ`.
        """
        features = _features(task, theta)
        S = symmetric_part(theta.mT @ task.covariance @ theta) if features is None else features.mT @ features
        values, vectors = _eigenpairs(S, features)
        p = self._side or theta.shape[1]
        if part == "well":
            G = well_gradient_from_pair(S, values[-1], vectors(-1), p)
        else:
            G = ill_gradient_from_pair(S, *self._smallest(task, values, vectors, theta.shape[1]))[1]
        if self.switches.preconditioner_side == "input":
            return 2 * theta @ G
        if features is None or task.features is None:
            unconditioned = 2 * task.covariance @ (theta @ G)
        else:
            unconditioned = 2 * task.features.mT @ (features @ G)
        dimension = theta.shape[1]
        weight = _solve_output_side(unconditioned[:dimension], task, self.ridges[part])
        return torch.cat([weight, unconditioned[dimension:]])

    def _smallest(
        self, task: LinearTask, values: Tensor, vectors: _Vectors, dimension: int
    ) -> tuple[Tensor, Tensor, int]:
        """Return σ_k, v_k and k of R_ill."""
        rank = min(_rank(task, values), dimension)
        if self.switches.kappa_floor == "rank":
            return values[-rank], vectors(-rank), self._side or rank
        k = self._side or dimension
        if rank == dimension:
            return values[0].clamp_min(0) + PUBLISHED_RIDGE, vectors(0), k
        # Any null vector: its part of the gradient is of the size of the floor, or zero, and is left out.
        null = values.new_zeros(dimension)
        return values.new_tensor(PUBLISHED_RIDGE), null, k


class _Vectors:
    """Eigenvectors of S by their place in the ascending spectrum, from S itself or from its dual."""

    def __init__(self, vectors: Tensor, features: Tensor | None, values: Tensor) -> None:
        self._vectors, self._features, self._values = vectors, features, values

    def __call__(self, index: int) -> Tensor:
        """Return one unit eigenvector of S, `(D,)`."""
        if self._features is None:
            return self._vectors[:, index]
        return (self._features.mT @ self._vectors[:, index]) / self._values[index].sqrt()


def _eigenpairs(S: Tensor, features: Tensor | None) -> tuple[Tensor, _Vectors]:
    """Return eigenvalues of S, ascending (with few features only the n that can be non-zero), and vectors."""
    values, vectors = torch.linalg.eigh(S if features is None else symmetric_part(features @ features.mT))
    return values, _Vectors(vectors, features, values)


def _features(task: LinearTask, theta: Tensor) -> Tensor | None:
    """Return `Xθ` where its rows are fewer than its columns, so that the dual matrix is the smaller."""
    if task.features is None or len(task.features) >= theta.shape[1]:
        return None
    return task.features @ theta


def _rank(task: LinearTask, values: Tensor) -> int:
    """Return the rank of S: that of K for all rows, the number of non-zero eigenvalues for a few."""
    if task.features is None or len(task.features) >= len(task.covariance):
        return task.rank
    tolerance = default_rtol(len(task.covariance)) * values[-1]
    return int((values > tolerance).sum())


def _solve_output_side(gradient: Tensor, task: LinearTask, ridge: float) -> Tensor:
    """Return `A(K + εI)⁻¹` for `A` `(D, D)`, K without the constant input."""
    dimension = gradient.shape[1]
    if task.features is not None and len(task.features) < dimension:
        X = task.features[:, :dimension]
        factor = torch.linalg.cholesky(X @ X.mT + ridge * torch.eye(len(X), dtype=X.dtype))
        return apply_inverse_covariance(gradient, X, factor, gradient.new_tensor(ridge))
    K = task.covariance[:dimension, :dimension]
    factor = torch.linalg.cholesky(K + ridge * torch.eye(dimension, dtype=K.dtype))
    return torch.cholesky_solve(gradient.mT, factor).mT
