"""Settings, the one loop that descends the parts of a gradient together (Eq. 11), and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, reduce
from numbers import Real
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from condnum.arrays import as_tensor, own_state
from condnum.errors import CondnumError, InvalidInputError, check_flag, check_integer, check_known
from condnum.methods.method import Method, Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.probing.probe import ProbeSteps, seen_steps
from condnum.theory.kappa import Immunization, Seen
from condnum.theory.limits import fraction_of_limit
from condnum.theory.linalg import SMALL, gram, matmul
from condnum.theory.regularizers import ill_of_spectrum, r_ill_of_norm, well_of_spectrum
from condnum.theory.task import Features

#: κ above which R_well and R_ill by ‖H‖_F lose no more than four digits to cancellation.
_NOT_FLAT = 1.0 + 1e-2

Settings = TypeVar("Settings")
StopReason = Literal["steps", "cancelled", "diverged", "closed_form"]


# Settings
@dataclass(frozen=True)
class DescentSettings:
    """How a method descends. Defaults: Adam, balanced λ. `immunize` checks the values."""

    steps: int = 1000  # full batch: a step is an epoch
    record_every: int | None = None  # steps between history rows; None: about 200 in all; 0: no history
    optimizer: Literal["adam", "gd"] = "adam"  # Adam (0.9, 0.999, 1e-8) or plain gradient descent
    learning_rate: float = 0.1  # η at step 0
    schedule: Literal["constant", "cosine"] = "cosine"  # cosine: η falls to 0 at the last step
    weights: Literal["balanced", "fixed"] = "balanced"  # where the weights of the parts come from
    ratio: float = 5.0  # balanced: λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0
    loss_weight: float = 1.0  # weight of the supervised loss
    lambda_benign: float = 100.0  # fixed: λ_P (Table 4, house prices)
    lambda_harmful: float = 1e7  # fixed: λ_H (likewise)
    convention: Literal["compact", "ridge"] = "compact"  # of `opt_kappa`: the released code has `ridge`
    inner_steps: int = 1  # of `imma`: steps of the simulated attacker on θ
    inner_rate: float = 0.01  # of `imma`: their size


#: Settings of `ours` that were searched on the paper's data, by name. On other data they may fail.
PRESETS = {
    "house-prices": DescentSettings(learning_rate=0.3, ratio=60.0, loss_weight=0.1, steps=12_000),
    "mnist": DescentSettings(learning_rate=2.5e-3, ratio=1.0, loss_weight=1e-3, steps=120, record_every=0),
    "digits-8x8": DescentSettings(
        learning_rate=0.03, ratio=20.0, loss_weight=0.1, steps=300, record_every=30
    ),
    "diabetes": DescentSettings(learning_rate=0.1, ratio=5.0, loss_weight=0.1, steps=2000),
}


def overridden(settings: Settings, **values: Any) -> Settings:
    """Return a copy of a dataclass of settings with some of them changed."""
    if isinstance(settings, type) or not is_dataclass(settings):
        raise InvalidInputError(f"settings must be a dataclass such as DescentSettings(), got {settings!r}.")
    for name in values:
        check_known("setting", name, [one.name for one in fields(settings)])
    return replace(settings, **values)  # type: ignore[type-var]


def checked(settings: Settings) -> Settings:
    """Return a copy with each value read by the type of its field, or say what is wrong with it."""
    kinds = get_type_hints(type(settings))
    return overridden(settings, **{name: _read(name, kinds[name], of) for name, of in vars(settings).items()})


def _read(name: str, kind: Any, value: Any) -> Any:
    """Return the value of a setting as the type of its field has it: NumPy's numbers are as good."""
    kinds = (kind, *get_args(kind))
    if value is None and type(None) in kinds:
        return None
    if get_origin(kind) is Literal:
        check_known(name, value, get_args(kind))
    elif float in kinds:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        if not 0 <= number < math.inf or (number == 0 and name == "learning_rate"):
            wanted = "positive number" if name == "learning_rate" else "number of at least 0"
            raise InvalidInputError(f"{name} must be a {wanted}, got {value!r}.")
        return number
    elif kind is bool:
        return check_flag(name, value)
    elif int in kinds:
        return check_integer(name, value, 0 if name == "record_every" else 1)
    return value


def recorded_steps(settings: DescentSettings) -> frozenset[int]:
    """Return the steps with a row in the history: about 200, half of them log-spaced, or every so many."""
    steps, every = settings.steps, settings.record_every
    if every is not None:
        return frozenset([*range(0, steps, every), steps] if every else ())
    spaced = np.r_[np.geomspace(1, steps, 100), np.linspace(0, steps, 101)]
    return frozenset(map(int, spaced.round()))


def rate(settings: DescentSettings, step: int) -> float:
    """Return η of a step: constant, or multiplied by `(1 + cos(π·step/steps))/2`."""
    if settings.schedule == "constant":
        return settings.learning_rate
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * step / settings.steps))


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


# Result
@dataclass(frozen=True)
class Progress:
    """What a callback receives at each recorded or watched step."""

    method: str
    seed: int
    step: int
    steps: int
    record: dict[str, float]  # the history's row; empty at a step that is watched only
    theta: Tensor  # (D, D_hid) after so many steps; the run goes on with it: copy what is to be kept


#: Told of each recorded or watched step; returning True asks the run to stop there.
Callback = Callable[[Progress], bool | None]


@dataclass(frozen=True, repr=False)
class ImmunizationResult:
    """An immunized extractor, how it was obtained, and what it is worth, which is measured when asked for."""

    problem: ImmunizationProblem
    theta: Tensor  # (D, D_hid)
    omega: Tensor | None  # (D_hid, m) benign probe, None without supervised loss
    method: str
    seed: int
    settings: Any  # what ran; None for controls and closed forms
    # One row per recorded step from θ₀ to the result, `(T,)` each: step, loss, r_well, r_ill, kappa_benign,
    # kappa_harmful and what the method adds; empty if unwanted.
    history: dict[str, NDArray[np.float64]]
    steps: int  # steps taken
    seconds: float
    stop_reason: StopReason
    part_weights: dict[str, float] = field(default_factory=dict)  # λ of each gradient part
    known: Seen | None = None  # what a closed form's history was read from

    @property
    def converged(self) -> bool:
        """True only if the answer is in closed form."""
        return self.stop_reason == "closed_form"

    @cached_property
    @own_state()
    def seen(self) -> Seen:
        """Both tasks through θ, which verdicts are read from; raises where θ cannot be measured."""
        return self.known or self.problem.seen(self.theta)

    @cached_property
    @own_state()
    def verdict(self) -> Immunization | None:
        """Definition 3.1 of θ, compact convention; None where θ cannot be measured."""
        with suppress(CondnumError):
            return self.seen.immunization()
        return None

    @property
    def limit(self) -> float:
        """The theoretical limit of RIR."""
        return self.problem.limit.value

    @property
    def benign_probe(self) -> ProbeSteps | None:
        """Steps of the benign probe of the actual targets; None where there is nothing to learn."""
        return self._steps(0)

    @property
    def harmful_probe(self) -> ProbeSteps | None:
        """Steps of the harmful probe, likewise."""
        return self._steps(1)

    @own_state()
    def _steps(self, place: int) -> ProbeSteps | None:
        seen = None if self.verdict is None else self.seen.probes[place]
        return None if seen is None else seen_steps(seen)

    @property
    def explanation(self) -> str:
        """The verdict in words, beside the limit and the ridge convention."""
        if self.verdict is None:
            return "θ cannot be measured: it is zero, or has entries that are not finite."
        ridge = self.seen.immunization("ridge")
        text = f"{self.verdict!r} Ridge convention (ε = 1e-6): {ridge.verdict}, {ridge.ratios}."
        if math.isinf(self.limit):
            return f"{text} RIR has no theoretical limit: the harmful task has directions of its own."
        fraction = fraction_of_limit(self.verdict.rir, self.limit)
        return f"{text} RIR is {fraction:.1%} of the theoretical limit {self.limit:.4g}."

    def __repr__(self) -> str:
        """Return what was run, and the verdict."""
        shape = " × ".join(map(str, self.theta.shape))
        heading = f"{self.method}, seed {self.seed}: θ {shape}, {self.steps} steps ({self.stop_reason})"
        return f"{heading}\n{self.explanation}"


# The loop
def run(
    problem: ImmunizationProblem,
    method: Method,
    settings: Any,
    *,
    seed: int,
    callback: Callback | None = None,
    callback_steps: Collection[int] = (),
) -> ImmunizationResult:
    """Run any method from its start; no settings: a closed form."""
    known = dict(zip(("benign", "harmful"), problem.losses, strict=True))
    if missing := ", ".join(f"y_{task}" for task in getattr(method, "needs", ()) if known[task] is None):
        raise InvalidInputError(f"method '{method.name}' needs targets, but {missing} are missing.")
    if settings is not None and not hasattr(method, "gradients"):
        raise InvalidInputError(
            f"method '{method.name}' has defaults, so that it descends, but no gradients(problem, "
            "parameters, settings): define them, or leave out defaults."
        )
    started = time.perf_counter()
    # A method of one's own may draw in float32, or answer with an array.
    parameters = {
        name: as_tensor(value, f"{name} of method '{method.name}'", ndim=2).to(problem.device, copy=True)
        for name, value in method.initial(problem, torch.Generator().manual_seed(seed)).items()
    }
    if "theta" not in parameters:
        raise InvalidInputError(
            f"initial(…) of method '{method.name}' returns {[*parameters]}: it must return {{'theta': θ}}."
        )
    reason: StopReason = "closed_form"
    steps, weights, seen = 0, dict[str, float](), None
    if settings is None:
        with suppress(CondnumError):  # one that cannot be measured
            seen = problem.seen(parameters["theta"])
        rows = [{"step": 0.0} | measure(problem, parameters["theta"], None, seen)]
    else:
        descent = Descent(problem, method, settings, seed, parameters, callback, frozenset(callback_steps))
        with one_thread(problem.device):
            steps, reason = descent.run()
        parameters, weights, rows = descent.parameters, descent.weights, descent.rows
    return ImmunizationResult(
        problem=problem,
        theta=parameters["theta"].clone(),
        omega=parameters["omega"].clone() if "omega" in parameters else None,
        method=method.name,
        seed=seed,
        settings=settings,
        history={name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {},
        steps=steps,
        seconds=time.perf_counter() - started,
        stop_reason=reason,
        part_weights=weights,
        known=seen,
    )


class Descent:
    """Steps against the weighted sum of the gradient's parts; a step that becomes infinite is taken back."""

    def __init__(
        self,
        problem: ImmunizationProblem,
        method: Any,
        settings: Any,
        seed: int,
        start: Parameters,
        callback: Callback | None,
        watched: frozenset[int],
    ) -> None:
        self.problem, self.method, self.seed, self.callback = problem, method, seed, callback
        names = [one.name for one in fields(DescentSettings)]
        # What settings of another class do not say is as in `DescentSettings`.
        own = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        self.loop = checked(DescentSettings(**own))
        self.settings = overridden(settings, **{name: getattr(self.loop, name) for name in own})
        self.recorded = recorded_steps(self.loop)
        self.watched = watched if callback else frozenset[int]()
        self.flat = torch.cat([value.flatten() for value in start.values()])
        self.parameters, first = dict[str, Tensor](), 0  # views of `flat`
        for name, value in start.items():
            self.parameters[name] = self.flat[first : first + value.numel()].view(value.shape)
            first += value.numel()
        self.weights: dict[str, float] = {}  # λ of each part
        self.norms: dict[str, float] = {}  # of each part, when it was last recorded
        self.rows: list[dict[str, float]] = []
        self.shown = -1  # the step that the callback saw last

    def run(self) -> tuple[int, StopReason]:
        """Step until the end or a reason to stop, record the last step, and return both."""
        steps, adam = self.loop.steps, Adam(self.flat) if self.loop.optimizer == "adam" else None
        reason: StopReason = "steps"
        for step in range(steps):
            try:
                gradient = self._gradient(recorded=step in self.recorded)
            except torch.linalg.LinAlgError:
                reason = "diverged"
                break
            if self._shown(step):
                reason = "cancelled"
                break
            direction = adam.direction(gradient) if adam else gradient
            moved = self.flat - rate(self.loop, step) * direction
            if not _finite(moved):
                reason = "diverged"
                break
            self.flat.copy_(moved)
        else:
            step = steps
        self._shown(step, last=True)
        return step, reason

    def _shown(self, step: int, *, last: bool = False) -> bool:
        """Record the step if it is to be, tell the callback, and return whether that cancels the run."""
        recorded = (step in self.recorded or (last and bool(self.recorded))) and not (
            self.rows and self.rows[-1]["step"] == step
        )
        if recorded:
            theta, omega = self.parameters["theta"], self.parameters.get("omega")
            norms = {f"norm_{part}": norm for part, norm in self.norms.items()}
            self.rows.append({"step": float(step)} | measure(self.problem, theta, omega) | norms)
        if self.callback is None or not (recorded or (step in self.watched and self.shown != step)):
            return False
        self.shown = step
        row = self.rows[-1] if recorded else {}
        seen = self.method.name, self.seed, step, self.loop.steps, row, self.parameters["theta"]
        return self.callback(Progress(*seen)) is True

    def _gradient(self, *, recorded: bool) -> Tensor:
        """Return the gradient of all parameters; that of θ is the weighted sum of its parts."""
        theta = self.parameters["theta"]
        found = self.method.gradients(self.problem, self.parameters, self.settings)
        if recorded or not self.weights:
            every = found.of_theta(theta)
            self.norms = {part: float(torch.linalg.matrix_norm(of)) for part, of in every.items()}
        self.weights = self.weights or part_weights(self.norms, self.loop)
        if found.preconditioned:  # one product for all of them
            weighed = [self.weights[part] * of.to(theta) for part, of in found.preconditioned.items()]
            total = matmul(theta, reduce(torch.add, weighed)).mul_(2)
        else:
            total = torch.zeros_like(theta)
        for part, gradient in found.parts.items():
            total.add_(gradient.to(theta), alpha=self.weights[part])
        whole = {"theta": total} | found.others
        return torch.cat(
            [whole[name].to(theta).flatten() if name in whole else torch.zeros_like(of).flatten()
             for name, of in self.parameters.items()]
        )  # fmt: skip


class Adam:
    """Adam with PyTorch's constants; torch.optim would load torch's compiler, seconds in each process."""

    def __init__(self, like: Tensor) -> None:
        self._mean, self._square, self._count = torch.zeros_like(like), torch.zeros_like(like), 0

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the direction of the next step, to be multiplied by the learning rate."""
        self._count += 1
        self._mean.lerp_(gradient, 0.1)
        self._square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        near_1, near_2 = (1 - decay**self._count for decay in (0.9, 0.999))
        return (self._mean / near_1).div_((self._square / near_2).sqrt_().add_(1e-8))


def _finite(tensor: Tensor) -> bool:
    """Tell whether all entries are finite: mostly their squares are, which takes a fifth of the time."""
    flat = tensor.flatten()
    return math.isfinite(float(flat @ flat)) or math.isfinite(float(torch.linalg.vector_norm(flat, math.inf)))


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
        k = min(of.image.shape)
        kappa = (of.ends[0] / of.ends[1]) ** 2 if k > SMALL else 1.0
        if k > SMALL and of.ends[2] == k and kappa > _NOT_FLAT:
            first, last = (size * of.image.new_tensor(end**2) for end in of.ends[:2])
            norm = size * torch.linalg.matrix_norm(gram(of.image.mT))
            well = (first.square() - norm.square() / D) / 2
            value = well if name == "benign" else r_ill_of_norm(norm, last, k)
        else:  # without the cancellation of the norm
            sigma = size * of.sigma.square()
            kappa = float(sigma[0] / sigma[-1])
            value = (well_of_spectrum(sigma, D) if name == "benign" else ill_of_spectrum(sigma, k)).value
        found |= {f"r_{name}": float(value), f"kappa_{name}": kappa}
    return {
        "loss": math.nan if loss is None or omega is None else float(loss.value(theta @ omega)),
        "r_well": found["r_benign"],
        "r_ill": found["r_harmful"],
        "kappa_benign": found["kappa_benign"],
        "kappa_harmful": found["kappa_harmful"],
    }
