"""A run of a method: its start, the joint descent of its gradient parts (Eq. 11), history and stop reason."""

import math
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from condnum.arrays import as_tensor
from condnum.errors import CondnumError, InvalidInputError
from condnum.methods.method import Method, Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.result import Callback, ImmunizationResult, Progress, StopReason
from condnum.methods.settings import DescentSettings
from condnum.theory.kappa import Seen
from condnum.theory.linalg import SMALL, gram
from condnum.theory.regularizers import ill_of_spectrum, r_ill_of_norm, well_of_spectrum
from condnum.theory.task import Features

#: κ above which R_well and R_ill by ‖H‖_F lose no more than four digits to cancellation.
_NOT_FLAT = 1.0 + 1e-2


def run_method(
    problem: ImmunizationProblem,
    method: Method,
    settings: Any = None,
    *,
    seed: int,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
) -> ImmunizationResult:
    """Run any method from its start, and do not judge it; no settings: a closed form."""
    if missing := ", ".join(method.missing(problem)):
        raise InvalidInputError(f"method '{method.name}' needs targets, but {missing} are missing.")
    started = time.perf_counter()
    # A method of one's own may draw in float32, or answer with an array.
    parameters = {
        name: as_tensor(value, f"{name} of method '{method.name}'", ndim=2).to(problem.device, copy=True)
        for name, value in method.initial(problem, torch.Generator().manual_seed(seed)).items()
    }
    descent = _Descent(problem, method, settings, seed, parameters)
    steps, text = 0, method.remark
    reason: StopReason = "closed_form"
    seen = None
    if settings is None:
        with suppress(CondnumError):  # one that cannot be measured
            seen = problem.seen(parameters["theta"])
        descent.record(0, seen)
    else:
        with one_thread(problem.device):
            steps, reason = descent.loop(callback, frozenset(callback_steps))
            stopped = "" if reason == "steps" else f"; {reason} after {steps}"
            text += f" It ran {settings.describe([*descent.weights])}{stopped}."
            if settings.record_every != 0:
                descent.record(steps)
    rows = descent.rows
    return ImmunizationResult(
        theta=parameters["theta"].detach(),  # without the gradient that the optimizer read
        omega=parameters["omega"].detach() if "omega" in parameters else None,
        method=method.name,
        seed=seed,
        settings=settings,
        history={name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {},
        steps=steps,
        seconds=time.perf_counter() - started,
        converged=reason == "closed_form",
        stop_reason=reason,
        part_weights=descent.weights,
        seen=seen,
        explanation=text,
    )


class _Descent:
    """Steps against the weighted sum of the gradient's parts; a step that becomes infinite is taken back."""

    def __init__(
        self,
        problem: ImmunizationProblem,
        method: Method,
        settings: DescentSettings,
        seed: int,
        parameters: Parameters,
    ) -> None:
        self.problem, self.method, self.settings, self.seed = problem, method, settings, seed
        self.parameters = parameters
        self.weights: dict[str, float] = {}  # λ of each part
        self.norms: dict[str, float] = {}  # of each part, when it was last recorded
        self.rows: list[dict[str, float]] = []

    def loop(self, callback: Callback | None, watched: frozenset[int]) -> tuple[int, StopReason]:
        """Step until the end or a reason to stop, return both, and leave finite parameters behind."""
        settings, parameters = self.settings, self.parameters
        adam = Adam() if settings.optimizer == "adam" else None
        for step in range(settings.steps):
            recorded = step in settings.recorded_steps
            try:
                directions = self._directions(recorded)
            except torch.linalg.LinAlgError:
                return step, "diverged"
            if recorded:
                self.record(step)
            if callback is not None and (recorded or step in watched):
                row = self.rows[-1] if recorded else {}
                seen = self.method.name, self.seed, step, settings.steps, row, parameters["theta"]
                if callback(Progress(*seen)) is True:
                    return step, "cancelled"
            rate = settings.rate(step)
            moved = {
                name: parameters[name] - rate * (adam.direction(name, slope) if adam else slope)
                for name, slope in directions.items()
            }
            if not all(map(_finite, moved.values())):
                return step, "diverged"
            for name, tensor in moved.items():
                parameters[name].copy_(tensor)
        return settings.steps, "steps"

    def record(self, step: int, seen: Seen | None = None) -> None:
        """Append a row to the history, unless there is one of this step."""
        if not self.rows or self.rows[-1]["step"] != step:
            omega = self.parameters.get("omega")
            measured = measure(self.problem, self.parameters["theta"], omega, seen)
            norms = {f"norm_{part}": norm for part, norm in self.norms.items()}
            self.rows.append({"step": float(step)} | measured | norms)

    def _directions(self, recorded: bool) -> Parameters:
        """Return the gradients of each parameter; that of θ is the weighted sum of its parts."""
        theta = self.parameters["theta"]
        found = self.method.gradients(self.problem, self.parameters, self.settings)
        parts, inner = found.parts, found.preconditioned
        if recorded or not self.weights:
            every = found.of_theta(theta)
            self.norms = {part: float(torch.linalg.matrix_norm(of)) for part, of in every.items()}
        self.weights = self.weights or part_weights(self.norms, self.settings)
        total = torch.zeros_like(theta)
        if inner:  # one product for all of them
            weighed = [self.weights[part] * gradient.to(theta) for part, gradient in inner.items()]
            total.addmm_(theta, reduce(torch.add, weighed), alpha=2)
        for part, gradient in parts.items():
            total.add_(gradient.to(theta), alpha=self.weights[part])
        return {"theta": total} | {name: gradient.to(theta) for name, gradient in found.others.items()}


class Adam:
    """Adam with PyTorch's constants; torch.optim would load torch's compiler, seconds in each process."""

    def __init__(self) -> None:
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}
        self._counts: dict[str, int] = {}

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        """Return the direction of a parameter's next step, to be multiplied by the learning rate."""
        if name not in self._moments:
            self._moments[name] = torch.zeros_like(gradient), torch.zeros_like(gradient)
            self._counts[name] = 0
        mean, square = self._moments[name]
        self._counts[name] += 1
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        near_1, near_2 = (1 - decay ** self._counts[name] for decay in (0.9, 0.999))
        return (mean / near_1).div_((square / near_2).sqrt_().add_(1e-8))


def _finite(tensor: Tensor) -> bool:
    """Tell whether all entries are finite."""
    return math.isfinite(float(torch.linalg.vector_norm(tensor, math.inf)))


@contextmanager
def one_thread(device: torch.device) -> Generator[None]:
    """Compute in one thread on every machine: a long descent amplifies how sums are rounded."""
    before, on_cpu = torch.get_num_threads(), device.type == "cpu"
    with threadpool_limits(limits=1 if on_cpu else None):
        torch.set_num_threads(1 if on_cpu else before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def part_weights(norms: dict[str, float], settings: DescentSettings) -> dict[str, float]:
    """Return the weight of each gradient part: λ balanced at step 0, or fixed.

    Examples:
        >>> part_weights({"well": 4.0, "ill": 0.5}, DescentSettings(ratio=3.0))
        {'well': 0.25, 'ill': 6.0}
    """
    chosen = {"supervised": settings.loss_weight}
    if settings.weights == "fixed":
        chosen |= {"well": settings.lambda_benign, "ill": settings.lambda_harmful}
    else:
        wanted = dict.fromkeys(("well", "kappa_benign"), 1.0)
        wanted |= dict.fromkeys(("ill", "kappa_harmful"), settings.ratio)
        chosen |= {part: wanted[part] / norms[part] for part in wanted if norms.get(part, 0.0) > 0}
    return {part: chosen.get(part, 1.0) for part in norms}


def measure(
    problem: ImmunizationProblem, theta: Tensor, omega: Tensor | None, seen: Seen | None = None
) -> dict[str, float]:
    """Return what histories record: loss, both regularizers, and compact κ's over rank(K), so continuous.

    What is `seen` through θ, where that is known, is not computed again.
    """
    loss, found, size = problem.losses[0], dict[str, float](), 1.0 if seen is None else seen.size**2
    for name, task in (("benign", problem.benign), ("harmful", problem.harmful)):
        if seen is None and not _finite(task.root @ theta):
            found |= {f"r_{name}": math.nan, f"kappa_{name}": math.inf}
            continue
        of, D = Features.of(task, theta) if seen is None else getattr(seen, name), theta.shape[1]
        k, (top, low, rank) = min(of.image.shape), of.ends
        found[f"kappa_{name}"] = kappa = (top / low) ** 2
        if k > SMALL and rank == k and kappa > _NOT_FLAT:
            first, last = (size * of.image.new_tensor(end**2) for end in (top, low))
            norm = size * torch.linalg.matrix_norm(gram(of.image.mT))
            well = (first.square() - norm.square() / D) / 2
            value = well if name == "benign" else r_ill_of_norm(norm, last, k)
        else:  # without the cancellation of the norm
            sigma = size * of.sigma.square()
            found[f"kappa_{name}"] = float(sigma[0] / sigma[-1])
            value = (well_of_spectrum(sigma, D) if name == "benign" else ill_of_spectrum(sigma, k)).value
        found[f"r_{name}"] = float(value)
    return {
        "loss": math.nan if loss is None or omega is None else float(loss.value(theta @ omega)),
        "r_well": found["r_benign"],
        "r_ill": found["r_harmful"],
        "kappa_benign": found["kappa_benign"],
        "kappa_harmful": found["kappa_harmful"],
    }
