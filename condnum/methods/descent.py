"""The loop that all descent methods share: weigh, step, record, stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam

from condnum.methods.method import (
    DescentMethod,
    Gradients,
    History,
    ImmunizationResult,
    Memory,
    Monitor,
    Parameters,
    Progress,
    StopReason,
    few_threads,
)
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings

# One optimizer step on named parameters: plain gradient descent, or Adam through torch's functional form.


#: Above this dimension one fused pass over θ is worth its different rounding.
LARGE = 128


class Optimizer(Protocol):
    """Changes parameters in place."""

    def step(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        """Take one step against the gradients, by parameter name."""


class GradientDescent:
    """`x ← x − ηg`."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self._parameters = parameters

    def step(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        """Take one step against the gradients, by parameter name."""
        for name, gradient in gradients.items():
            self._parameters[name].add_(gradient, alpha=-learning_rate)


class Adam:
    """Adam with (0.9, 0.999, 1e-8) (Kingma & Ba, 2015).

    `torch.optim.Adam` runs the same function, but loads torch's compiler first: 5 s a process.
    """

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self._parameters = parameters
        self._mean = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
        self._square = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
        self._fused = max(tensor.shape[-2] for tensor in parameters.values()) > LARGE
        # The fused form counts its steps where the parameters live, the other one on the CPU.
        self._steps = {
            name: torch.zeros((), device=tensor.device if self._fused else "cpu")
            for name, tensor in parameters.items()
        }

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        """Take one step against the gradients, by parameter name."""
        names = list(gradients)
        adam(
            [self._parameters[name] for name in names],
            [gradients[name] for name in names],
            [self._mean[name] for name in names],
            [self._square[name] for name in names],
            [],
            [self._steps[name] for name in names],
            fused=self._fused or None,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def make_optimizer(name: Literal["adam", "gd"], parameters: dict[str, Tensor]) -> Optimizer:
    """Return the optimizer of that name on these parameters.

    Examples:
        >>> x = {"x": torch.tensor([1.0])}
        >>> make_optimizer("gd", x).step({"x": torch.tensor([2.0])}, 0.25)
        >>> x["x"]
        tensor([0.5000])
    """
    return Adam(parameters) if name == "adam" else GradientDescent(parameters)


#: Told of each recorded step; returning True asks the run to stop there.
Callback = Callable[[Progress], bool | None]


def descend(
    problem: ImmunizationProblem,
    method: DescentMethod,
    settings: DescentSettings,
    *,
    seed: int,
    callback: Callback | None = None,
) -> ImmunizationResult:
    """Run a descent method from its random start."""
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    parameters = method.initial(problem, generator)
    run = _Run(problem, method, settings, parameters, seed, callback)
    with few_threads(problem):
        reason = run.loop(generator)
        history = run.history()
    return ImmunizationResult(
        theta=run.parameters["theta"].detach().clone(),
        omega=run.parameters["omega"].detach().clone() if "omega" in run.parameters else None,
        method=method.name,
        seed=seed,
        settings=settings,
        history=history,
        part_weights=run.weights,
        steps=run.step,
        seconds=time.perf_counter() - started,
        converged=reason == "tolerance",
        counts=dict(run.memory.counts),
        stop_reason=reason,
    )


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


def _part_norms(gradients: Gradients, theta: Tensor) -> dict[str, float]:
    """Return the Frobenius norm of each part's direction."""
    norms = {}
    for part, gradient in gradients.hessian_parts.items():
        on_hessian = gradient.add_to(torch.empty_like(gradient.hessian), 2.0, fresh=True)
        norms[part] = float((theta @ on_hessian).norm())
    for part, outer in gradients.outer_parts.items():
        norms[part] = float((outer.left @ outer.right.mT).norm())
    return norms | {part: float(value.norm()) for part, value in gradients.theta_parts.items()}


def _weighted_sum(gradients: Gradients, theta: Tensor, weights: dict[str, float], memory: Memory) -> Tensor:
    """Return the weighted sum of all parts; Hessian parts share one product with θ."""
    direct = [weights[part] * value for part, value in gradients.theta_parts.items()]
    if not gradients.hessian_parts and not gradients.outer_parts:
        return torch.stack(direct).sum(dim=0)
    total = memory.buffer("total", theta, *theta.shape)
    if gradients.hessian_parts:
        torch.mm(theta, _hessian_sum(gradients, theta, weights, memory), out=total)
    else:
        total.zero_()
    for part, outer in gradients.outer_parts.items():
        outer.add_to(total, weights[part])
    for value in direct:
        total += value
    return total


def _hessian_sum(gradients: Gradients, theta: Tensor, weights: dict[str, float], memory: Memory) -> Tensor:
    """Return the weighted sum of all `2∇_H R`, `(D_hid, D_hid)`."""
    inner = memory.buffer("hessian_sum", theta, theta.shape[1], theta.shape[1])
    for index, (part, gradient) in enumerate(gradients.hessian_parts.items()):
        gradient.add_to(inner, 2 * weights[part], fresh=index == 0)
    return inner


def _is_finite(tensor: Tensor) -> bool:
    """Tell whether all entries are finite, in one pass."""
    return all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor))


class _Run:
    """The state of one descent."""

    def __init__(
        self,
        problem: ImmunizationProblem,
        method: DescentMethod,
        settings: DescentSettings,
        parameters: Parameters,
        seed: int,
        callback: Callback | None,
    ) -> None:
        self.problem = problem
        self.method = method
        self.settings = settings
        self.parameters = parameters
        self.seed = seed
        self.callback = callback
        self.step = 0
        self.weights: dict[str, float] = {}
        self.memory = Memory()
        self._rows: list[dict[str, float]] = []
        self._norms: dict[str, float] = {}
        self._first_norm = math.nan
        self._optimizer = make_optimizer(settings.optimizer, parameters)

    def loop(self, generator: torch.Generator) -> StopReason:
        """Step until something says stop; leave the last finite parameters behind."""
        for _ in range(self.settings.steps):
            safe = {name: tensor.clone() for name, tensor in self.parameters.items()}
            try:
                directions = self._gradient(generator)
                norm = float(directions["theta"].norm())
            except torch.linalg.LinAlgError:
                norm = math.nan
            if not math.isfinite(norm):
                return "diverged"
            if self.step in self.settings.recorded_steps and self._record():
                return "cancelled"
            if self.step == 0:
                self._first_norm = norm
            elif norm < self.settings.tolerance * self._first_norm:
                return "tolerance"
            self._optimizer.step(directions, self.settings.rate(self.step))
            if not all(_is_finite(tensor) for tensor in self.parameters.values()):
                for name, tensor in safe.items():
                    self.parameters[name].copy_(tensor)
                return "diverged"
            self.step += 1
        return "steps"

    def history(self) -> History:
        """Close the history with the final θ and return it; empty where none is wanted."""
        if self.settings.record_every == 0:
            return History({})
        if not self._rows or self._rows[-1]["step"] != self.step:
            self._rows.append(self._row())
        return History({name: np.array([row[name] for row in self._rows]) for name in self._rows[0]})

    def _gradient(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the gradient of each parameter; that of θ is the weighted sum of its parts."""
        size = self.settings.batch_size
        problem = self.problem if size is None else self.problem.sample(size, generator)
        gradients = self.method.gradients(problem, self.parameters, self.settings, self.memory)
        theta = self.parameters["theta"]
        if not self.weights or self.step in self.settings.recorded_steps:
            self._norms = _part_norms(gradients, theta)
        if not self.weights:
            self.weights = part_weights(self._norms, self.settings)
        total = _weighted_sum(gradients, theta, self.weights, self.memory)
        return {"theta": total} | gradients.others

    @cached_property
    def _monitor(self) -> Monitor:
        """What measures a row of the history; a run without history needs none."""
        return Monitor(self.problem)

    def _row(self) -> dict[str, float]:
        """Measure θ as it is now."""
        values = self._monitor(self.parameters["theta"], self.parameters.get("omega"))
        norms = {f"norm_{part}": value for part, value in self._norms.items()}
        return {"step": float(self.step)} | values | norms

    def _record(self) -> bool:
        """Append a row to the history and tell the callback; True if it asks to stop."""
        self._rows.append(self._row())
        if self.callback is None:
            return False
        progress = Progress(self.method.name, self.seed, self.step, self.settings.steps, self._rows[-1])
        return self.callback(progress) is True
