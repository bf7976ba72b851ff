"""`immunize_batch`: the sibling of `immunize` for many problems at once, on a GPU or a CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from condnum.errors import InvalidInputError
from condnum.methods.batched_tasks import BatchedMethod, BatchMemory, ProblemBatch, measure
from condnum.methods.descent import make_optimizer, part_weights
from condnum.methods.method import (
    ClosedFormMethod,
    DescentMethod,
    History,
    ImmunizationResult,
    Parameters,
    StopReason,
)
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.registry import get_method, immunize
from condnum.methods.settings import DescentSettings

# The loop of `condnum.methods.descent` for a batch: a problem that stops keeps its θ, the others go on.


def descend_batch(
    problems: Sequence[ImmunizationProblem],
    method: DescentMethod[Any],
    settings: DescentSettings,
    *,
    seeds: Sequence[int],
    device: torch.device,
) -> list[ImmunizationResult]:
    """Run a descent method on many problems at once, each from the random start of its seed."""
    started = time.perf_counter()

    def start(problem: ImmunizationProblem, seed: int) -> Parameters:
        drawn = method.initial(problem, torch.Generator().manual_seed(seed))
        return {name: tensor.to(device) for name, tensor in drawn.items()}

    with ThreadPoolExecutor() as pool:  # draws happen on the CPU, one core each
        starts = list(pool.map(start, problems, seeds))
    shapes = sorted({str({name: tuple(tensor.shape) for name, tensor in one.items()}) for one in starts})
    if len(shapes) > 1:
        raise InvalidInputError(
            f"the problems of a batch must have parameters of the same shapes, got {' and '.join(shapes)}."
        )
    parameters = {name: torch.stack([one[name] for one in starts]) for name in starts[0]}
    del starts
    run = _BatchRun(ProblemBatch.of(problems, device), method, settings, parameters)
    run.loop()
    counts = {name: values.tolist() for name, values in run.memory.counts.items()}
    histories = run.histories()
    share = (time.perf_counter() - started) / len(problems)
    return [
        ImmunizationResult(
            theta=run.parameters["theta"][index],
            omega=run.parameters["omega"][index] if "omega" in run.parameters else None,
            method=method.name,
            seed=seed,
            settings=settings,
            history=histories[index],
            part_weights={part: float(values[index]) for part, values in run.weights.items()},
            steps=run.steps[index],
            seconds=share,
            converged=run.reasons[index] == "tolerance",
            counts={name: values[index] for name, values in counts.items()},
            stop_reason=run.reasons[index],
        )
        for index, seed in enumerate(seeds)
    ]


class _BatchRun:
    """The state of a batch."""

    def __init__(
        self,
        problems: ProblemBatch,
        method: DescentMethod[Any],
        settings: DescentSettings,
        parameters: Parameters,
    ) -> None:
        assert isinstance(method, BatchedMethod)  # the caller has looked
        self.problems = problems
        self.method = method
        self.settings = settings
        self.parameters = parameters
        self.step = 0
        self.weights: dict[str, Tensor] = {}
        self.reasons: list[StopReason] = ["steps"] * problems.size
        self.steps = [settings.steps] * problems.size
        self.active = torch.ones(problems.size, dtype=torch.bool, device=parameters["theta"].device)
        self.memory = BatchMemory(self.active)
        self._safe = {name: torch.empty_like(tensor) for name, tensor in parameters.items()}
        self._norms: dict[str, Tensor] = {}
        self._rows: list[list[dict[str, float]]] = [[] for _ in range(problems.size)]
        self._optimizer = make_optimizer(settings.optimizer, parameters)

    def loop(self) -> None:
        """Step until nothing is active; leave the last finite parameters of each problem behind."""
        first_norm = None
        for step in range(self.settings.steps):
            self.step = step
            for name, tensor in self.parameters.items():
                self._safe[name].copy_(tensor)
            directions = self._directions()
            norm = torch.linalg.vector_norm(directions["theta"], dim=(1, 2))
            self._stop(~torch.isfinite(norm), "diverged")
            if step in self.settings.recorded_steps:
                self._record(dict.fromkeys(self.active.nonzero()[:, 0].tolist(), step))
            if first_norm is None:
                first_norm = norm
            elif self.settings.tolerance > 0:
                self._stop(norm < self.settings.tolerance * first_norm, "tolerance")
            self._optimizer.step(directions, self.settings.rate(step))
            self._keep_finite()
            if not bool(self.active.any()):
                break

    def histories(self) -> list[History]:
        """Close each history with the final θ and return them; empty where none is wanted."""
        if self.settings.record_every == 0:
            return [History({}) for _ in self._rows]
        ends = enumerate(zip(self._rows, self.steps, strict=True))
        self._record({index: end for index, (rows, end) in ends if not rows or rows[-1]["step"] != end})
        return [
            History({name: np.array([row[name] for row in rows]) for name in rows[0]}) for rows in self._rows
        ]

    def _directions(self) -> dict[str, Tensor]:
        """Return the gradients of each parameter; those of θ are the weighted sums of their parts."""
        self.memory.active = self.active
        theta = self.parameters["theta"]
        gradients = self.method.batched_gradients(self.problems, self.parameters, self.settings, self.memory)
        if not self.weights or self.step in self.settings.recorded_steps:
            norms = gradients.norms(theta, self.memory)
            before = self._norms or norms
            self._norms = {part: torch.where(self.active, norms[part], before[part]) for part in norms}
        if not self.weights:
            self.weights = self._part_weights()
        return {"theta": gradients.weighted_sum(theta, self.weights, self.memory)} | gradients.others

    def _part_weights(self) -> dict[str, Tensor]:
        """Return each problem's own weights of the parts."""
        columns = {part: values.tolist() for part, values in self._norms.items()}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        chosen = [part_weights(row, self.settings) for row in rows]
        like = self.parameters["theta"]
        return {part: like.new_tensor([weights[part] for weights in chosen]) for part in columns}

    def _stop(self, which: Tensor, reason: StopReason) -> None:
        """Let problems stop where they are."""
        which = which & self.active
        for index in which.nonzero()[:, 0].tolist():
            self.reasons[index] = reason
            self.steps[index] = self.step
        self.active = self.active & ~which

    def _keep_finite(self) -> None:
        """Take back the step of the problems that have stopped, or whose parameters it made infinite."""
        finite = self.active
        for tensor in self.parameters.values():
            finite = finite & torch.isfinite(torch.linalg.vector_norm(tensor, ord=torch.inf, dim=(1, 2)))
        if not bool(finite.all()):
            for name, tensor in self.parameters.items():
                tensor.copy_(torch.where(finite[:, None, None], tensor, self._safe[name]))
            self._stop(~finite, "diverged")

    def _record(self, steps: dict[int, int]) -> None:
        """Append a row to the histories of some problems, each under its number of steps."""
        if not steps:
            return
        values = measure(self.problems, self.parameters["theta"], self.parameters.get("omega"))
        values |= {f"norm_{part}": norms.tolist() for part, norms in self._norms.items()}
        for index, step in steps.items():
            row = {name: column[index] for name, column in values.items()}
            self._rows[index].append({"step": float(step)} | row)


def descends_in_batches(method: str, settings: DescentSettings | None = None) -> bool:
    """Tell whether a method has a batched form that can do what the settings ask for.

    Args:
        method: Registry name.
        settings: Of the method; None for its defaults.

    Returns:
        False for closed forms, for methods that declare no batched gradients, for mini-batches and `auto`.

    Examples:
        >>> descends_in_batches("ours"), descends_in_batches("ours", DescentSettings())
        (False, True)
        >>> descends_in_batches("optimal")
        False
    """
    chosen = get_method(method)
    if isinstance(chosen, ClosedFormMethod) or not isinstance(chosen, BatchedMethod):
        return False
    chosen_settings = chosen.defaults if settings is None else settings
    return chosen_settings.batch_size is None and not chosen_settings.auto


def immunize_batch(
    problems: Sequence[ImmunizationProblem],
    method: str = "ours",
    *,
    seeds: Sequence[int],
    settings: DescentSettings | None = None,
    device: str | torch.device | None = None,
) -> list[ImmunizationResult]:
    """Immunize many problems of one dimension at once; one by one where the method knows no batches.

    Args:
        problems: Ranks and rows may differ; dimensions, kinds of loss and numbers of targets may not.
        method: A registered method.
        seeds: One a problem.
        settings: The same for all; default those of the method.
        device: Where to descend; default where the first problem is. Only θ and the batch's copy of the
            data need to be there: the problems may stay on the CPU.

    Returns:
        What `immunize` returns for each problem and seed, up to round-off; θ and ω are views of the
        batch's tensors. A problem that diverges keeps its last finite θ and does not touch the others.

    Raises:
        InvalidInputError: The problems do not fit together, settings are of another method, or the
            method needs targets that are missing.
        UnknownNameError: Unknown method.

    Examples:
        >>> problem = ImmunizationProblem.from_covariances([[9.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]])
        >>> results = immunize_batch([problem, problem], seeds=[0, 1], settings=DescentSettings(steps=20))
        >>> [(result.seed, result.stop_reason) for result in results]
        [(0, 'steps'), (1, 'steps')]
    """
    if len(problems) != len(seeds) or not problems:
        raise InvalidInputError(f"a batch needs one seed a problem, got {len(problems)} and {len(seeds)}.")
    chosen = get_method(method)
    if isinstance(chosen, ClosedFormMethod) or not descends_in_batches(method, settings):
        return [
            immunize(problem, method, seed=seed, settings=settings)
            for problem, seed in zip(problems, seeds, strict=True)
        ]
    base = chosen.defaults if settings is None else settings
    if not isinstance(base, type(chosen.defaults)):
        raise InvalidInputError(
            f"method '{method}' takes {type(chosen.defaults).__name__}, got {type(base).__name__}."
        )
    where = problems[0].device if device is None else torch.device(device)
    return descend_batch(problems, chosen, base, seeds=seeds, device=where)


# How many problems fit on a device at once.


#: Share of the free memory that a batch may take; the rest is for what the libraries allocate.
_SHARE = 0.8
#: Matrices of the size of θ that a descent holds: θ, its copy, gradient, two moments of Adam, two
#: Hessians, their sum, and as many again for what lives inside a step (IMMA's graph, norms).
_SQUARES = 16
#: Budget on a CPU, where nobody says what is free: as a sweep's workers take.
_CPU_BYTES = 2 * 2**30


def problem_bytes(problem: ImmunizationProblem) -> int:
    """Estimate the memory that one more problem takes in a batch.

    Examples:
        >>> problem_bytes(ImmunizationProblem.from_covariances([[2.0]], [[1.0]]))
        456
    """
    D = problem.dimension
    numbers = _SQUARES * D**2 + 32 * D  # and the basis of Lanczos
    for task in (problem.pretrain, problem.harmful):
        r = task.rank
        rows = 0 if task.supervised_rows is None else task.supervised_rows.shape[0]
        numbers += 2 * r * D + rows * D
    numbers += 4 * r**2 + r * D  # the inverse of the harmful task's dual Gram matrix
    return 8 * numbers


def free_bytes(device: torch.device) -> int:
    """Return the memory that a batch may take on a device."""
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_SHARE * (free + reusable))


def batch_size(problem: ImmunizationProblem, device: torch.device, memory_bytes: int | None = None) -> int:
    """Return how many problems like this one fit on a device at once.

    Examples:
        >>> problem = ImmunizationProblem.from_covariances([[2.0]], [[1.0]])
        >>> batch_size(problem, torch.device("cpu"), memory_bytes=1000)
        2
    """
    available = free_bytes(device) if memory_bytes is None else memory_bytes
    return max(1, available // problem_bytes(problem))
