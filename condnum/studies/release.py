"""One cell of the reproduction audit: switches and a seed → the spectra of what the release trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.data import TaskPair, load_house_prices
from condnum.data.task_pair import standardize
from condnum.methods import ImmunizationResult
from condnum.methods.algorithm1 import Ours
from condnum.methods.descent import run_method
from condnum.methods.method import Gradients, Method, Parameters
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.methods.settings import DescentSettings
from condnum.studies.frame import Cell, CellResult
from condnum.studies.measure import SPECTRA
from condnum.theory.extremes import gram
from condnum.theory.regularizers import r_ill_of_norm, rank_one_gradient
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol, hessian_spectrum, symmetric_part

#: Rows of a mini-batch of the release.
_BATCH = 64

#: Rows of each task on which the release trains on house prices; the 100 after them are its validation set.
FIRST_ROWS = 200

#: ε of the regularized solve of the release, in units of the mini-batch's XᵀX.
SOLVE_RIDGE = 1.0


@dataclass(frozen=True)
class ProtocolSwitches:
    """Every switch, in the order of the waterfall: first word the release, last the corrected protocol."""

    encoders: Literal["per_domain", "union"] = "per_domain"
    normalise: Literal["domain", "table", "kept"] = "domain"
    rows: Literal["first", "all"] = "first"
    bias: Literal["with", "without"] = "with"
    preconditioner_side: Literal["output", "input"] = "output"
    kappa_floor: Literal["absolute", "rank"] = "absolute"
    covariance: Literal["minibatch", "full"] = "minibatch"
    weights: Literal["fixed", "balanced"] = "fixed"
    step_size: Literal["constant", "cosine"] = "constant"
    epochs: int | None = 10  # None: the corrected protocol's number of updates

    @property
    def is_algorithm_1(self) -> bool:
        """Whether the gradients are those of Algorithm 1 on K itself, whatever data and steps are."""
        return {"bias", "preconditioner_side", "kappa_floor", "covariance"} <= set(self.turned())

    def turn(self, name: str) -> ProtocolSwitches:
        """Return a copy with one switch at its corrected position."""
        return replace(self, **{name: CORRECTED[name]})

    def turned(self) -> tuple[str, ...]:
        """Return the names of the switches at their corrected position, in their order."""
        return tuple(name for name in SWITCHES if getattr(self, name) == CORRECTED[name])


#: Position of each switch in the corrected protocol, in the order in which they are turned.
CORRECTED: dict[str, Any] = {
    name: get_args(hint)[-1] for name, hint in get_type_hints(ProtocolSwitches).items()
} | {"epochs": None}

SWITCHES = tuple(CORRECTED)

#: Table 4 and the release's configuration; Adam.
_RELEASED = DescentSettings(
    learning_rate=5e-3, schedule="constant", weights="fixed", lambda_pretrain=100.0, lambda_harmful=1e7,
    record_every=0,
)  # fmt: skip


def descent_settings(switches: ProtocolSwitches, pair: TaskPair, ours: DescentSettings) -> DescentSettings:
    """Return how a setting of the switches descends; `ours` is the corrected protocol."""
    chosen = _RELEASED
    if switches.weights == "balanced":
        chosen = chosen.with_overrides(weights="balanced", ratio=ours.ratio, loss_weight=ours.loss_weight)
    if switches.step_size == "cosine":
        chosen = replace(chosen, learning_rate=ours.learning_rate, schedule=ours.schedule)
    if switches.epochs is None:
        return replace(chosen, steps=ours.steps)
    # The updates are those of the release's loaders, so that `rows` and `covariance` leave the budget alone.
    rows = min(FIRST_ROWS, max(pair.rows_pretrain, pair.rows_harmful))
    return replace(chosen, steps=switches.epochs * max(1, rows // _BATCH))


class SwitchedTasks(NamedTuple):
    """The tasks that are trained on, and the raw inputs that RIR compares with."""

    problem: ImmunizationProblem  # inputs (N, D), or (N, D + 1) with a constant column for the bias
    inputs: ImmunizationProblem  # (N, D), without it


@lru_cache(32)
def switched_tasks(pair: TaskPair, encoders: str, normalise: str, rows: str, bias: str) -> SwitchedTasks:
    """Build the tasks of a setting, once per process for all settings that share them."""
    if pair.name == "house-prices":
        when = "before_split" if normalise == "table" else "per_task"
        pair = _house_prices(pair.provenance.location, encoders, when)
    if rows == "first":
        pair = first_rows(pair, standardize_again=normalise == "kept")
    inputs = ImmunizationProblem.from_pair(pair)
    return SwitchedTasks(inputs if bias == "without" else with_constant_input(inputs), inputs)


@lru_cache(8)
def _house_prices(file: str, encoders: Any, normalise: Any) -> TaskPair:
    """Load the table in another way."""
    return load_house_prices(file, features="published", encoders=encoders, normalise=normalise)


def first_rows(pair: TaskPair, *, standardize_again: bool) -> TaskPair:
    """Cut a pair to the first 200 rows of each task, as the release does."""

    def cut(values: NDArray[np.float64]) -> NDArray[np.float64]:
        kept = values[:FIRST_ROWS].copy()
        return standardize(kept) if standardize_again else kept

    return replace(pair, X_P=cut(pair.X_P), y_P=cut(pair.y_P), X_H=cut(pair.X_H), y_H=cut(pair.y_H))


def with_constant_input(problem: ImmunizationProblem) -> ImmunizationProblem:
    """Append a constant input 1 to every row, so that a bias is one more row of θ."""
    tasks = []
    for task in (problem.pretrain, problem.harmful):
        X = torch.nn.functional.pad(_features(task), (0, 1), value=1.0)
        tasks.append(LinearTask(gram(X), X, task.targets, task.loss))
    return ImmunizationProblem(*tasks)


def _features(task: LinearTask) -> Tensor:
    """Return the rows of a task, which those of this study always have."""
    assert task.features is not None
    return task.features


def paired_batches(
    problem: ImmunizationProblem, size: int, generator: torch.Generator
) -> Iterator[ImmunizationProblem]:
    """Yield pairs of mini-batches: tasks of equally many rows are shuffled together, others one by one."""
    P, H = problem.pretrain, problem.harmful
    assert P.targets is not None  # all data sets of the audit have targets
    counts = [len(_features(P)), len(_features(H))]
    while True:
        orders = {count: torch.randperm(count, generator=generator) for count in dict.fromkeys(counts)}
        batches = [orders[count][: max(size, count - count % size)].split(size) for count in counts]
        for index in range(max(map(len, batches))):
            rows, harmful = (parts[index % len(parts)] for parts in batches)
            X, X_H = _features(P)[rows], _features(H)[harmful]
            pretrain = LinearTask(X.mT @ X, X, P.targets[rows], P.loss)
            yield ImmunizationProblem(pretrain, LinearTask(X_H.mT @ X_H, X_H, loss=H.loss))


class SwitchedAlgorithm1(Method):
    """Algorithm 1 with the release's choices where a switch is not turned; one object serves one run."""

    name = "released"
    label = "Algorithm 1 as released"
    summary = "descends the loss, R<sub>well</sub> and R<sub>ill</sub> with the release's choices"
    parts = ("well", "ill", "supervised")

    def __init__(self, switches: ProtocolSwitches) -> None:
        self.switches = switches

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and ω₀ of the registered method; with a bias those of the release, `nn.Linear`'s."""
        self._batches = paired_batches(problem, _BATCH, generator)
        if self.switches.bias == "without":
            return Ours().initial(problem, generator)
        D = problem.dimension - 1
        theta = torch.rand((D + 1, D), generator=generator, dtype=torch.float64)
        omega = torch.randn((D, 1), generator=generator, dtype=torch.float64)
        return {"theta": (2 * theta - 1) * (1 / math.sqrt(D)), "omega": omega}

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the parts of θ's gradient on all rows or on a mini-batch, and the head's gradient."""
        problem = next(self._batches) if self.switches.covariance == "minibatch" else problem
        theta, omega, loss = parameters["theta"], parameters["omega"], problem.pretrain.supervised
        assert loss is not None  # all data sets of the audit have targets
        slope = loss.derivative(theta @ omega)
        parts = {
            "well": self.direction(problem.pretrain, theta, "well"),
            "ill": self.direction(problem.harmful, theta, "ill"),
            "supervised": slope @ omega.mT,
        }
        return Gradients(parts, {"omega": theta.mT @ slope})

    def direction(self, task: LinearTask, theta: Tensor, part: Literal["well", "ill"]) -> Tensor:
        r"""Return the preconditioned gradient of one regularizer in θ.

        With :math:`G = \nabla_S R(S)`, `S` the Gram matrix of the features: on the input side
        :math:`K^{-1}\nabla_\theta R = 2\theta G`; on the output side
        :math:`\nabla_\theta R\,(K + \varepsilon I)^{-1}`, which is `K⁻¹` times the gradient of `W = θᵀ`.
        """
        K, D = task.covariance, theta.shape[1]
        S = symmetric_part(theta.mT @ K @ theta)
        values, vectors = torch.linalg.eigh(S)
        if part == "well":
            G = rank_one_gradient(S, values[-1], vectors[:, -1], D)
        else:
            sigma, v, k = self._smallest(task, values, vectors)
            r_ill = r_ill_of_norm(torch.linalg.matrix_norm(S), sigma, k)
            G = r_ill.square() * rank_one_gradient(S, sigma, v, k)
        if self.switches.preconditioner_side == "input":
            return 2 * theta @ G
        gradient = 2 * K @ (theta @ G)
        # A(K + εI)⁻¹ for the weight's rows; the bias is not preconditioned.
        solved = torch.linalg.cholesky(K[:D, :D] + SOLVE_RIDGE * torch.eye(D, dtype=K.dtype))
        A = torch.cholesky_solve(gradient[:D].mT, solved).mT
        return torch.cat([A, gradient[D:]])

    def _smallest(self, task: LinearTask, values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return σ_k, v_k and k of R_ill."""
        D = len(values)
        few = len(_features(task)) < len(task.covariance)  # a mini-batch: its eigenvalues are counted
        least = default_rtol(len(task.covariance)) * values[-1]
        rank = min(int((values > least).sum()) if few else task.rank, D)
        if self.switches.kappa_floor == "rank":
            return values[-rank], vectors[:, -rank], rank
        if rank == D:
            return values[0].clamp_min(0) + PUBLISHED_RIDGE, vectors[:, 0], D
        # Any null vector: its part of the gradient is of the size of the floor, or zero, and is left out.
        return values.new_tensor(PUBLISHED_RIDGE), values.new_zeros(D), D


def train_cell(pair: TaskPair, cell: Cell) -> tuple[SwitchedTasks, ImmunizationResult]:
    """Run the descent of a cell."""
    switches = ProtocolSwitches(**cell["switches"])
    tasks = switched_tasks(pair, switches.encoders, switches.normalise, switches.rows, switches.bias)
    method = Ours() if switches.is_algorithm_1 else SwitchedAlgorithm1(switches)
    return tasks, run_method(tasks.problem, method, DescentSettings(**cell.settings), seed=cell["seed"])


def compute_cell(pair: TaskPair, cell: Cell) -> CellResult:
    """Train one extractor and keep the spectra of its features' Gram matrices, and of the raw inputs'."""
    tasks, result = train_cell(pair, cell)
    inputs, seen = tasks.inputs, tasks.problem
    identity = torch.eye(inputs.dimension, dtype=result.theta.dtype)
    measured = (
        (identity, inputs.pretrain),
        (result.theta, seen.pretrain),
        (identity, inputs.harmful),
        (result.theta, seen.harmful),
    )
    spectra = [hessian_spectrum(theta, task.factor).numpy() for theta, task in measured]
    row: dict[str, Any] = {
        "seed": result.seed,
        "updates": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        "dimension": inputs.dimension,
        "rows_pretrain": len(_features(inputs.pretrain)),
        "rows_harmful": len(_features(inputs.harmful)),
    }
    return CellResult(row, dict(zip(SPECTRA, spectra, strict=True)))
