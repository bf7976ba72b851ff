r"""What the actual probe meets: its steps to a goal, in closed form from spectrum and coefficients.

κ bounds gradient descent over all targets; an attack has one. See `condnum.probing.quadratic`.
"""

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike
from condnum.errors import InvalidInputError, check_integer
from condnum.probing.quadratic import Modes, descent_filter, first_step, line_search_filters
from condnum.probing.tasks import probed_task
from condnum.theory.covariances import CovarianceRange
from condnum.theory.immunization import Immunization
from condnum.theory.slowdown import LOST_FACTOR as LOST_FACTOR
from condnum.theory.slowdown import slowdown_sentence, slowdown_words


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


def probe_steps(
    theta: Any,
    covariance: ArrayLike | CovarianceRange | None = None,
    moment: ArrayLike | None = None,
    *,
    features: ArrayLike | None = None,
    targets: Any = None,
    epsilon: float = 0.01,
    budget: int = 20_000,
    rtol: float | None = None,
) -> ProbeSteps:
    r"""Count the steps that gradient descent on a squared loss needs for the actual target.

    The probe starts at zero. Its goal is the loss :math:`L^* + ε(L_0 - L^*)` with L* the optimum on raw
    inputs, the same for every θ. An invertible θ keeps L*; one that erases the target puts the goal out of
    reach.

    Args:
        theta: `(D, D_hid)` extractor, linear layer, `Immunizer` or other linear extractor; None: raw inputs.
        covariance: `(D, D)` covariance `K = XᵀX` of the task, or its range.
        moment: `(D,)` or `(D, m)`, `XᵀY`.
        features: `(N, D)` rows X of the task, in place of `covariance` and with `targets`.
        targets: `(N,)` or `(N, m)` numbers, or `(N,)` labels, which become ±1 (a column per class beyond
            two).
        epsilon: ε in (0, 1).
        budget: Maximum number of exact line searches, which are iterated; fixed steps are not.
        rtol: Relative rank tolerance of K; default `D·eps` of its stored dtype, for `features` as in
            `condition_number`.

    Returns:
        Both numbers of steps with κ and the reachable fraction of the fit.

    Raises:
        InvalidInputError: Shapes do not fit, ε or `budget` is out of range, raw inputs have no fit either, or
            neither or both forms of the task are given.

    Examples:
        The target lies in the strong direction: κ is 10⁴, and one step is enough.

        >>> import numpy as np
        >>> found = probe_steps(np.eye(2), np.diag([1e4, 1.0]), [1e4, 0.0])
        >>> found.raw, found.fixed, found.exact, round(found.condition)
        (1.0, 1.0, 1.0, 10000)
        >>> probe_steps(np.diag([0.0, 1.0]), np.diag([1e4, 1.0]), [1e4, 0.0]).fixed
        inf
    """
    T, K, b = probed_task(theta, covariance, moment, features, targets, rtol)
    if T.ndim != 2:
        raise InvalidInputError(f"theta must have 2 dimension(s), got shape {tuple(T.shape)}.")
    if not 0 < epsilon < 1:
        raise InvalidInputError(f"epsilon must lie between 0 and 1, got {epsilon!r}.")
    budget = check_integer("budget", budget, 1)
    raw, own = (Modes.of(of, K, b) for of in (None, T))
    if not raw.fit > 0:
        raise InvalidInputError("the moment XᵀY is zero: no probe learns anything; check the targets.")
    on_raw, goal = _fixed_steps(raw, epsilon), own.fit - (1 - epsilon)
    if goal <= 0:
        return ProbeSteps(on_raw, math.inf, math.inf, own.condition, own.fit)
    search = line_search_filters(own.sigma[None], own.energy[None])
    first = islice(search, budget + 1)
    exact = next((float(t) for t, (q, _) in enumerate(first) if own.energy @ q[0] ** 2 <= goal), math.nan)
    return ProbeSteps(on_raw, _fixed_steps(own, goal), exact, own.condition, own.fit)


def _fixed_steps(modes: Modes, goal: float) -> float:
    """Return from which step 1/σ₁ on the excess loss is at most the goal."""
    return first_step(lambda steps: float(modes.energy @ descent_filter(modes.sigma, steps) ** 2), goal)


#: `‖XᵀY‖` counts as round-off below this fraction of `‖X‖‖Y‖`; a target along a direction that is kept in
#: the rank of X has more.
_NOTHING = 1e-10


def target_probe(
    theta: ArrayLike, task: CovarianceRange, moment: Tensor | None, energy: float
) -> ProbeSteps | None:
    """Return `probe_steps` of a task's own targets, `‖Y‖² = energy`; None where there is nothing to learn."""
    if moment is None:
        return None
    seen = float(torch.linalg.vector_norm(task.vectors.mT @ moment))
    if seen <= _NOTHING * math.sqrt(float(task.values.sum()) * energy):
        return None
    return probe_steps(theta, task, moment, budget=1)


def with_slowdowns(
    verdict: Immunization, benign: ProbeSteps | None, harmful: ProbeSteps | None
) -> Immunization:
    """Return a verdict by condition numbers with how slow both tasks' own probes become."""
    factors = [None if of is None else of.slowdown for of in (benign, harmful)]
    return replace(verdict, benign_slowdown=factors[0], harmful_slowdown=factors[1])


def slowdown_verdict(met: bool, benign: ProbeSteps | None, harmful: ProbeSteps | None) -> str:
    """Return `slowdown_sentence` with the steps behind both factors; empty where neither is known.

    Examples:
        >>> import numpy as np
        >>> probe = probe_steps(np.diag([5000**-0.5, 1.0]), np.diag([100.0, 1.0]), [1.0, 0.0])
        >>> print(slowdown_verdict(True, probe, None))
        Gradient descent on the actual targets, to 1 % of the excess loss: the benign probe takes 114 times as
        many steps as on raw inputs (1 → 114). The definition is met, but the benign task is lost (more than
        10 times as many steps). How many steps the harmful probe takes is not known without targets to learn.
    """
    probes = {"benign": benign, "harmful": harmful}
    words = {name: str(of) for name, of in probes.items() if of}
    factors = [None if of is None else of.slowdown for of in probes.values()]
    return slowdown_sentence(met, *factors, words=words) if words else ""
