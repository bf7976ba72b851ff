"""The loop that all descent methods share, for one problem or many: weigh, step, record, stop."""

import time
from collections.abc import Collection, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from condnum.errors import InvalidInputError
from condnum.methods.batch import ProblemBatch, measure
from condnum.methods.method import DescentMethod, Gradients, Memory, Parameters, few_threads
from condnum.methods.problem import SMALL, ImmunizationProblem
from condnum.methods.result import Callback, History, ImmunizationResult, Progress, StopReason
from condnum.methods.settings import DescentSettings


def descend(
    problem: ImmunizationProblem,
    method: DescentMethod,
    settings: DescentSettings,
    *,
    seed: int,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
) -> ImmunizationResult:
    """Run a descent method from its random start."""
    told: dict[str, Any] = {"callback": callback, "callback_steps": callback_steps}
    with few_threads(problem):
        return descend_batch([problem], method, settings, seeds=[seed], device=problem.device, **told)[0]


def descend_batch(
    problems: Sequence[ImmunizationProblem],
    method: DescentMethod,
    settings: DescentSettings,
    *,
    seeds: Sequence[int],
    device: torch.device,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
) -> list[ImmunizationResult]:
    """Run a descent method on many problems at once, each from the random start of its seed."""
    started = time.perf_counter()
    run = _Descent(problems, method, settings, seeds, device, callback, callback_steps)
    run.loop()
    counts = {name: values.tolist() for name, values in run.memory.counts.items()}
    omega = run.parameters.get("omega")
    histories = run.histories()
    share = (time.perf_counter() - started) / len(problems)
    return [
        ImmunizationResult(
            theta=run.parameters["theta"][index],
            omega=None if omega is None else omega[index],
            method=method.name,
            seed=seed,
            settings=settings,
            history=histories[index],
            part_weights={part: float(values[index]) for part, values in run.weights.items()},
            steps=run.steps[index],
            seconds=share,
            converged=False,
            counts={name: values[index] for name, values in counts.items()},
            stop_reason=run.reasons[index],
        )
        for index, seed in enumerate(seeds)
    ]


class _Descent:
    """The state of a descent: a problem that stops keeps its θ, the others go on."""

    def __init__(
        self,
        problems: Sequence[ImmunizationProblem],
        method: DescentMethod,
        settings: DescentSettings,
        seeds: Sequence[int],
        device: torch.device,
        callback: Callback | None,
        callback_steps: Collection[int],
    ) -> None:
        self.problems, self.seeds, self.device = problems, seeds, device
        self.settings, self.callback = settings, callback
        self.told = settings.recorded_steps | frozenset(callback_steps)  # steps of which the callback is told
        self.method = method
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        drawn = [method.initial(*start) for start in zip(problems, self.generators, strict=True)]
        shapes = {str({name: tuple(tensor.shape) for name, tensor in one.items()}) for one in drawn}
        if len(shapes) > 1:
            raise InvalidInputError(
                "the problems of a batch must have parameters of the same shapes, got "
                f"{' and '.join(sorted(shapes))}."
            )
        # A method of one's own may draw in float32.
        self.parameters = {
            name: torch.stack([one[name].to(device, torch.float64) for one in drawn]) for name in drawn[0]
        }
        self.batch = ProblemBatch.of(problems, device)
        self.step = 0
        self.weights: dict[str, Tensor] = {}
        self.reasons: list[StopReason] = ["steps"] * len(problems)
        self.steps = [settings.steps] * len(problems)
        self.memory = Memory(torch.ones(len(problems), dtype=torch.bool, device=device))
        self._safe = {name: torch.empty_like(tensor) for name, tensor in self.parameters.items()}
        self._norms: dict[str, Tensor] = {}
        self._rows: list[list[dict[str, float]]] = [[] for _ in problems]
        self._optimizer = DescentOptimizer(settings.optimizer, self.parameters)

    def loop(self) -> None:
        """Step until nothing is active; leave the last finite parameters of each problem behind."""
        for step in range(self.settings.steps):
            self.step = step
            for name, tensor in self.parameters.items():
                self._safe[name].copy_(tensor)
            try:
                directions = self._directions()
            except torch.linalg.LinAlgError:
                self._stop(self.memory.active, "diverged")
                break
            norm = torch.linalg.vector_norm(directions["theta"], dim=(1, 2))
            self._stop(~torch.isfinite(norm), "diverged")
            if self.step in self.told:
                self._record()
            self._optimizer.step(directions, self.settings.rate(self.step))
            self._keep_finite()
            if not bool(self.memory.active.any()):
                break

    def histories(self) -> list[History]:
        """Close each history with the final θ and return them; empty where none is wanted."""
        if self.settings.record_every != 0:
            ends = enumerate(zip(self._rows, self.steps, strict=True))
            self._measure({index: end for index, (rows, end) in ends if not rows or rows[-1]["step"] != end})
        return [History.of(rows) for rows in self._rows]

    def _gradients(self) -> Gradients:
        """Return the gradients of the method at the parameters, on the full problems or on mini-batches."""
        size, problems = self.settings.batch_size, self.problems
        if size is not None:
            problems = [one.sample(size, draw) for one, draw in zip(problems, self.generators, strict=True)]
        if self.method.batched:
            batch = self.batch if size is None else ProblemBatch.of(problems, self.device)
            return self.method.gradients(batch, self.parameters, self.settings, self.memory)
        (problem,) = problems  # what knows no batches is descended one by one
        alone = {name: tensor[0] for name, tensor in self.parameters.items()}
        found: Any = self.method.gradients(problem, alone, self.settings, self.memory)
        parts, others = (
            {name: x[None].double() for name, x in kind.items()} for kind in (found.parts, found.others)
        )
        return Gradients(parts, others)

    def _directions(self) -> dict[str, Tensor]:
        """Return the gradients of each parameter; those of θ are the weighted sums of their parts."""
        theta, gradients = self.parameters["theta"], self._gradients()
        if not self.weights or self.step in self.settings.recorded_steps:
            norms, before = gradients.norms(theta, self.memory), self._norms
            active = self.memory.active
            self._norms = {part: torch.where(active, norms[part], before.get(part, 0.0)) for part in norms}
        if not self.weights:
            chosen = [
                part_weights(
                    {part: float(norms[index]) for part, norms in self._norms.items()}, self.settings
                )
                for index in range(len(self.problems))
            ]
            self.weights = {
                part: theta.new_tensor([weights[part] for weights in chosen]) for part in self._norms
            }
        return {"theta": gradients.weighted_sum(theta, self.weights, self.memory)} | gradients.others

    def _stop(self, which: Tensor, reason: StopReason) -> None:
        """Let problems stop where they are."""
        which = which & self.memory.active
        for index in which.nonzero()[:, 0].tolist():
            self.reasons[index], self.steps[index] = reason, self.step
        self.memory.active = self.memory.active & ~which

    def _keep_finite(self) -> None:
        """Take back the step of the problems that have stopped, or whose parameters it made infinite."""
        sizes = [torch.linalg.vector_norm(x, ord=torch.inf, dim=(1, 2)) for x in self.parameters.values()]
        finite = self.memory.active & torch.isfinite(torch.stack(sizes)).all(dim=0)
        if not bool(finite.all()):
            for name, tensor in self.parameters.items():
                tensor.copy_(torch.where(finite[:, None, None], tensor, self._safe[name]))
            self._stop(~finite, "diverged")

    def _record(self) -> None:
        """Append a row to the histories of the problems that still descend, and tell the callback."""
        active = self.memory.active.nonzero()[:, 0].tolist()
        measured = self.step in self.settings.recorded_steps
        if measured:
            self._measure(dict.fromkeys(active, self.step))
        for index in active if self.callback else ():
            row, theta = self._rows[index][-1] if measured else {}, self.parameters["theta"][index]
            at = self.method.name, self.seeds[index], self.step, self.settings.steps
            progress = Progress(*at, row, theta)
            if self.callback is not None and self.callback(progress) is True:
                self._stop(torch.arange(len(self.problems), device=self.device) == index, "cancelled")

    def _measure(self, steps: dict[int, int]) -> None:
        """Append a row to the histories of some problems, each under its number of steps."""
        if not steps:
            return
        values = measure(self.batch, self.parameters["theta"], self.parameters.get("omega"))
        values |= {f"norm_{part}": norms.tolist() for part, norms in self._norms.items()}
        for index, step in steps.items():
            row = {name: column[index] for name, column in values.items()}
            self._rows[index].append({"step": float(step)} | row)


def part_weights(norms: dict[str, float], settings: DescentSettings) -> dict[str, float]:
    """Return the weight of each gradient part: λ balanced at step 0, or fixed.

    Examples:
        >>> part_weights({"well": 4.0, "ill": 0.5}, DescentSettings(ratio=3.0))
        {'well': 0.25, 'ill': 6.0}
    """
    chosen = {"supervised": settings.loss_weight}
    if settings.weights == "fixed":
        chosen |= {"well": settings.lambda_pretrain, "ill": settings.lambda_harmful}
    else:
        wanted = {"well": 1.0, "kappa_pretrain": 1.0, "ill": settings.ratio, "kappa_harmful": settings.ratio}
        chosen |= {part: wanted[part] / norms[part] for part in wanted if norms.get(part, 0.0) > 0}
    return {part: chosen.get(part, 1.0) for part in norms}


class DescentOptimizer:
    """Plain gradient descent `x ← x − ηg`, or Adam with (0.9, 0.999, 1e-8) (Kingma & Ba, 2015), in place.

    `torch.optim.Adam` runs the same function, but loads torch's compiler first: 5 s a process.
    """

    def __init__(self, name: Literal["adam", "gd"], parameters: Parameters) -> None:
        self._name, self._parameters = name, parameters
        # One fused pass over a large θ is worth its different rounding. It counts its steps where the
        # parameters live, the other form on the CPU.
        self._fused = max(tensor.shape[-2] for tensor in parameters.values()) > SMALL
        self._state = {
            name: (
                torch.zeros_like(tensor),  # means of the gradients
                torch.zeros_like(tensor),  # means of their squares
                torch.zeros((), device=tensor.device if self._fused else "cpu"),  # steps
            )
            for name, tensor in parameters.items()
        }

    @torch.no_grad()
    def step(self, gradients: Parameters, learning_rate: float) -> None:
        """Take one step against the gradients."""
        if self._name == "gd":
            for name, gradient in gradients.items():
                self._parameters[name].add_(gradient, alpha=-learning_rate)
            return
        means, squares, steps = (list(kind) for kind in zip(*map(self._state.get, gradients), strict=True))
        adam(
            [self._parameters[name] for name in gradients],
            list(gradients.values()),
            means,
            squares,
            [],
            steps,
            fused=self._fused or None,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
