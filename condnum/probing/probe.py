r"""What the actual probe meets: curves of Figure 1, and its steps to a goal, from spectrum and coefficients.

κ bounds gradient descent over all targets; an attack has one. See `condnum.probing.filters`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import ArrayLike, FloatArray, as_tensor, door
from condnum.errors import InvalidInputError, check_integer
from condnum.numbers import short_repr
from condnum.probing.filters import Modes, line_search
from condnum.theory.kappa import descent_steps
from condnum.theory.slowdown import slowdown_sentence, slowdown_words
from condnum.theory.task import Features, Task


def probed(task: Any, name: str) -> Task:
    """Return the task of a probe, with an intercept for classes; it must have targets to learn."""
    if not isinstance(task, Task):
        raise InvalidInputError(
            f"{name} must be a Task with targets, got {type(task).__name__}; give Task.of(X, y), or "
            "Task.of_covariance(K, moment)."
        )
    own = task.probe
    if not own.learnable:
        lacks = "targets without a linear part (XᵀY is zero)" if own.outputs else "no targets"
        raise InvalidInputError(f"{name} has {lacks}: there is nothing to learn; check the targets.")
    return own


@dataclass(frozen=True)
class ProbeCurve:
    """Convergence of one probe, or of several with an axis in front, at the recorded steps."""

    steps: NDArray[np.int64]  # (T,) recorded steps, from 0
    norm_ratio: FloatArray  # (..., T) ‖w_t − w*‖² / ‖w_0 − w*‖² (Eq. 16)
    excess_loss: FloatArray  # (..., T) (L_t − L*) / (L_0 − L*)
    stopped_at: NDArray[np.int64]  # (...) step at which the gradient fell below round-off, −1 if never
    condition: FloatArray  # (...) compact κ of the Hessian
    rank: NDArray[np.int64]  # (...) k, the directions that the probe sees

    __repr__ = short_repr


def log_spaced(steps: int, count: int = 400) -> NDArray[np.int64]:
    """Return at most `count + 1` recorded steps: 0, then log-spaced up to and including `steps`."""
    steps, count = check_integer("steps", steps, 1), check_integer("count", count, 2)
    return np.unique(np.r_[0, np.round(np.geomspace(1, steps, count)).astype(np.int64)])


@door
def linear_probe(
    theta: Any, task: Any, *, steps: int = 20_000, record: ArrayLike | None = None
) -> ProbeCurve:
    """Probe features `Xθ` by gradient descent with exact line search.

    The probe minimizes `‖Xθw − y‖²` from `w₀ = 0`; `w*` is the solution of least norm. It stops where its
    gradient is round-off, `‖g‖ ≤ eps·σ₁·‖w*‖`; the curve is flat from there.

    Args:
        theta: `(D, D_hid)` extractor, linear layer, `Immunizer` or other linear extractor; None: raw inputs.
        task: A `Task` with targets: `Task.of(X, y)`, or `Task.of_covariance(K, moment)`. Its probe has an
            intercept for classes and none for numbers, unless it is `centered()`.
        steps: Gradient steps.
        record: Increasing steps at which to record; default: every one up to 2000 steps, else
            `log_spaced`.

    Returns:
        The curves.

    Raises:
        InvalidInputError: Shapes do not fit, `steps` < 1, bad `record`, or nothing to learn.

    Examples:
        Two directions with κ = 3, errors in the worst ratio: the loss contracts by `((κ−1)/(κ+1))²`.

        >>> import numpy as np
        >>> from condnum import Task
        >>> task = Task.of_covariance(np.diag([3.0, 1.0]), [1.0, 1.0])
        >>> curve = linear_probe(np.eye(2), task, steps=2)
        >>> np.round(curve.excess_loss, 12).tolist()
        [1.0, 0.25, 0.0625]
    """
    own = probed(task, "task")
    recorded = steps_to_record(record, check_integer("steps", steps, 1))
    modes = Modes.of(own.raw if theta is None else own.through(theta))
    if not modes.fit > 0:
        raise InvalidInputError(
            "the probe starts at its optimum (Xᵀy is zero on the range of Xθ): there is nothing to learn; "
            "check the targets."
        )
    curves = {name: of for name, of in vars(probe_curves([modes], recorded)).items() if name != "steps"}
    return ProbeCurve(recorded, **{name: of[0] for name, of in curves.items()})


def steps_to_record(record: ArrayLike | None, steps: int) -> NDArray[np.int64]:
    """Return the steps to record, validated."""
    if record is None:
        return np.arange(steps + 1) if steps <= 2000 else log_spaced(steps)
    wanted = as_tensor(record, "record", ndim=1).detach().cpu().numpy()
    if (wanted != np.round(wanted)).any() or (np.diff(wanted) <= 0).any():
        raise InvalidInputError("record must be a non-empty increasing list of integer steps.")
    if wanted[0] < 0 or wanted[-1] > steps:
        raise InvalidInputError(f"record runs from {wanted[0]:g} to {wanted[-1]:g}, outside 0..{steps}.")
    return wanted.astype(np.int64)


def probe_curves(modes: Sequence[Modes], record: NDArray[np.int64]) -> ProbeCurve:
    """Run probes that are diagonalized already, together, and record them at these steps."""
    ranks = np.array([len(of.sigma) for of in modes])
    sigma, energy, squares = np.zeros((3, len(modes), ranks.max()))  # padded to one width
    for row, of in enumerate(modes):
        sigma[row, : len(of.sigma)], energy[row, : len(of.sigma)] = of.sigma, of.energy
        squares[row, : len(of.sigma)] = of.energy / of.sigma  # (v_iᵀw*)²
    # ‖g‖² = σ₁² Σ(σ_i/σ₁)² c_i is round-off below (eps σ₁)² ‖w*‖².
    floor = np.finfo(np.float64).eps ** 2 * squares.sum(axis=1)
    norms: list[FloatArray] = []
    losses: list[FloatArray] = []
    stopped = np.full(len(modes), -1)
    for step, (q, moving) in enumerate(line_search(sigma, energy, floor)):
        stopped[~moving & (stopped < 0)] = step
        if step == record[len(norms)] or not moving.any():
            kept = q * q
            norms.append(np.einsum("bk,bk->b", squares, kept))
            losses.append(np.einsum("bk,bk->b", energy, kept))
        if len(norms) == len(record) or not moving.any():
            break
    ratio, excess = (
        np.stack(found + found[-1:] * (len(record) - len(found)), axis=1)
        / np.einsum("bk,bk->b", start, np.ones_like(start))[:, None]  # in the same order: exactly 1 at step 0
        for found, start in ((norms, squares), (losses, energy))
    )
    return ProbeCurve(record, ratio, excess, stopped, np.array([of.condition for of in modes]), ranks)


@dataclass(frozen=True)
class ProbeSteps:
    """Steps of one probe to within ε of the loss that raw features allow.

    `inf` where the features do not allow it, and where gradient descent takes more than 2⁵⁰ steps; `exact` is
    `inf` in the first case alone.
    """

    raw: float  # on raw inputs, with the step 1/σ₁
    fixed: float  # with the step 1/σ₁
    exact: float  # with exact line search; NaN: more than the budget
    condition: float  # κ of the probe's Hessian, NaN where nothing is left
    fit: float  # fraction of the raw features' best squared fit that these features allow

    @property
    def slowdown(self) -> float:
        """How many times as many steps the features take as raw inputs."""
        return self.fixed / self.raw

    def __str__(self) -> str:
        """Return the slowdown with both numbers of steps."""
        raw, fixed = (f"{n:,.0f}" if n < 1e6 else f"{n:.3g}" for n in (self.raw, self.fixed))
        if math.isinf(self.fixed):
            what = "never gets there" if math.isinf(self.exact) else "takes more than 2⁵⁰ steps"
            return f"{what} (raw inputs: {raw} steps)"
        return f"{slowdown_words(self.slowdown)} ({raw} → {fixed})"


@door
def probe_steps(theta: Any, task: Any, *, epsilon: float = 0.01, budget: int = 20_000) -> ProbeSteps:
    r"""Count the steps that gradient descent on a squared loss needs for the actual target.

    The probe starts at zero. Its goal is the loss :math:`L^* + ε(L_0 - L^*)` with L* the optimum on raw
    inputs, the same for every θ. An invertible θ keeps L*; one that erases the target puts the goal out of
    reach.

    Args:
        theta: `(D, D_hid)` extractor, linear layer, `Immunizer` or other linear extractor; None: raw inputs.
        task: A `Task` with targets: `Task.of(X, y)`, or `Task.of_covariance(K, moment)`. Its probe has an
            intercept for classes and none for numbers, unless it is `centered()`.
        epsilon: ε in (0, 1).
        budget: Maximum number of exact line searches, which are iterated; fixed steps are not.

    Returns:
        Both numbers of steps with κ and the reachable fraction of the fit.

    Raises:
        InvalidInputError: Shapes do not fit, ε or `budget` is out of range, or raw inputs have no fit either.

    Examples:
        The target lies in the strong direction: κ is 10⁴, and one step is enough.

        >>> import numpy as np
        >>> from condnum import Task
        >>> task = Task.of_covariance(np.diag([1e4, 1.0]), [1e4, 0.0])
        >>> found = probe_steps(np.eye(2), task)
        >>> found.raw, found.fixed, found.exact, round(found.condition)
        (1.0, 1.0, 1.0, 10000)
        >>> probe_steps(np.diag([0.0, 1.0]), task).fixed
        inf
    """
    if not 0 < epsilon < 1:
        raise InvalidInputError(f"epsilon must lie between 0 and 1, got {epsilon!r}.")
    budget = check_integer("budget", budget, 1)
    own = probed(task, "task")
    return seen_steps(own.raw if theta is None else own.through(theta), epsilon, budget)


def seen_steps(seen: Features, epsilon: float = 0.01, budget: int = 1) -> ProbeSteps:
    """Return `probe_steps` of features."""
    modes = Modes.of(seen)
    on_raw, goal = descent_steps(seen.task.raw, epsilon), modes.fit - (1 - epsilon)
    if goal <= 0:
        return ProbeSteps(on_raw, math.inf, math.inf, modes.condition, modes.fit)
    search = line_search(modes.sigma[None], modes.energy[None])
    first = islice(search, budget + 1)
    exact = next((float(t) for t, (q, _) in enumerate(first) if modes.energy @ q[0] ** 2 <= goal), math.nan)
    return ProbeSteps(on_raw, descent_steps(seen, epsilon), exact, modes.condition, modes.fit)


def slowdown_verdict(met: bool, benign: ProbeSteps | None, harmful: ProbeSteps | None) -> str:
    """Return `slowdown_sentence` with the steps behind both factors; empty where neither is known.

    Examples:
        >>> import numpy as np
        >>> from condnum import Task
        >>> task = Task.of_covariance(np.diag([100.0, 1.0]), [1.0, 0.0])
        >>> probe = probe_steps(np.diag([5000**-0.5, 1.0]), task)
        >>> print(slowdown_verdict(True, probe, None))
        Gradient descent on the actual targets, to 1 % of the excess loss: the benign probe takes 114 times as
        many steps as on raw inputs (1 → 114). The definition is met, but the benign task is lost (more than
        10 times as many steps). How many steps the harmful probe takes is not known without targets to learn.
    """
    probes = {"benign": benign, "harmful": harmful}
    words = {name: str(of) for name, of in probes.items() if of}
    factors = [None if of is None else of.slowdown for of in probes.values()]
    return slowdown_sentence(met, *factors, words=words) if words else ""
