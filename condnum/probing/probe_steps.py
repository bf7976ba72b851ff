r"""What the actual probe meets: its steps to a goal, in closed form from spectrum and coefficients.

κ bounds gradient descent over all targets; an attack has one. See `condnum.probing.quadratic`.
"""

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

from condnum.arrays import door
from condnum.errors import InvalidInputError, check_integer
from condnum.probing.quadratic import Modes, line_search_filters
from condnum.probing.tasks import probed
from condnum.theory.kappa import descent_steps
from condnum.theory.slowdown import LOST_FACTOR as LOST_FACTOR
from condnum.theory.slowdown import slowdown_sentence, slowdown_words
from condnum.theory.task import Features


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
    search = line_search_filters(modes.sigma[None], modes.energy[None])
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
