r"""What the actual probe meets: its steps to a goal, in closed form from spectrum and coefficients.

κ bounds gradient descent over all targets; an attack has one. With :math:`H = VΣV^\top` and the target's
coefficients :math:`a_i^2 = (u_i^\top Y)^2`, t steps of length η leave the excess loss
:math:`\sum_i a_i^2 (1 - ησ_i)^{2t}`; exact line search follows `condnum.probing.line_search`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from condnum.arrays import ArrayLike, FloatArray, as_tensor
from condnum.errors import InvalidInputError, check_integer
from condnum.probing.line_search import at_unit_size, exact_line_search
from condnum.probing.recurrences import first_step
from condnum.theory.spectra import CovarianceRange, default_rtol

#: The benign task counts as lost where its own probe needs more than this many times the steps on raw inputs.
LOST_FACTOR = 10.0


@dataclass(frozen=True)
class ProbeSteps:
    """Steps of one probe to within ε of the loss that raw features allow; `inf` where it is out of reach."""

    raw: float  # on raw inputs, with the step 1/σ₁
    fixed: float  # with the step 1/σ₁
    exact: float  # with exact line search; NaN: more than `budget`
    condition: float  # κ of the probe's Hessian, NaN where nothing is left
    fit: float  # fraction of the raw features' best squared fit that these features allow
    budget: int

    @property
    def slowdown(self) -> float:
        """How many times as many steps the features take as raw inputs."""
        return self.fixed / self.raw

    def __str__(self) -> str:
        """Return the slowdown with both numbers of steps."""
        raw, fixed = (f"{n:,.0f}" if n < 1e6 else f"{n:.3g}" for n in (self.raw, self.fixed))
        if math.isinf(self.fixed):
            return f"never gets there (raw inputs: {raw} steps)"
        return f"takes {self.slowdown:.3g} times as many steps as on raw inputs ({raw} → {fixed})"


def probe_steps(
    theta: ArrayLike,
    covariance: ArrayLike | CovarianceRange,
    moment: ArrayLike,
    *,
    epsilon: float = 0.01,
    budget: int = 20_000,
    rtol: float | None = None,
) -> ProbeSteps:
    r"""Count the steps that gradient descent on a squared loss needs for the actual target.

    The probe starts at zero. Its goal is the loss :math:`L^* + ε(L_0 - L^*)` with L* the optimum on raw
    inputs, the same for every θ. An invertible θ keeps L*; one that erases the target puts the goal out of
    reach.

    Args:
        theta: `(D, D_hid)` extractor.
        covariance: `(D, D)` covariance `K = XᵀX` of the task, or its range.
        moment: `(D,)` or `(D, m)`, `XᵀY`.
        epsilon: ε in (0, 1).
        budget: Maximum number of exact line searches, which are iterated; fixed steps are not.
        rtol: Relative rank tolerance of K; default `D·eps` of its stored dtype.

    Returns:
        Both numbers of steps with κ and the reachable fraction of the fit.

    Raises:
        InvalidInputError: Shapes do not fit, ε or `budget` is out of range, or raw inputs have no fit either.

    Examples:
        The target lies in the strong direction: κ is 10⁴, and one step is enough.

        >>> found = probe_steps(np.eye(2), np.diag([1e4, 1.0]), [1e4, 0.0])
        >>> found.raw, found.fixed, found.exact, round(found.condition)
        (1.0, 1.0, 1.0, 10000)
        >>> probe_steps(np.diag([0.0, 1.0]), np.diag([1e4, 1.0]), [1e4, 0.0]).fixed
        inf
    """
    T = as_tensor(theta, "theta", ndim=2).detach()
    K = CovarianceRange.of(covariance, rtol=rtol)
    b = as_tensor(moment, "moment", minimum_ndim=1).detach()
    b = b[:, None] if b.ndim == 1 else b
    if not len(T) == K.dimension == len(b) or b.ndim != 2:
        raise InvalidInputError(
            f"theta {tuple(T.shape)}, a covariance of {K.dimension} inputs and moment {tuple(b.shape)} do "
            "not fit: they must be (D, D_hid), (D, D) and (D,) or (D, m)."
        )
    if not 0 < epsilon < 1:
        raise InvalidInputError(f"epsilon must lie between 0 and 1, got {epsilon!r}.")
    budget = check_integer("budget", budget, 1)
    target = (K.vectors.mT @ at_unit_size(b)) / (K.values / K.values[0]).sqrt()[
        :, None
    ]  # Y in an orthonormal basis of range(X)
    best = float(target.square().sum())
    if not best > 0:
        raise InvalidInputError("the moment XᵀY is zero: no probe learns anything; check the targets.")
    U, roots, _ = torch.linalg.svd(K.factor / K.values[0].sqrt() @ at_unit_size(T), full_matrices=False)
    kept = roots > math.sqrt(default_rtol(max(T.shape))) * roots[0]
    sigma = (roots[kept].square() / roots[0].square()).numpy() if float(roots[0]) > 0 else np.zeros(0)
    energy = (U[:, kept].mT @ target).square().sum(dim=1).numpy() / best if len(sigma) else np.zeros(0)
    fit = float(energy.sum())
    goal = fit - (1 - epsilon)
    condition = float(1 / sigma[-1]) if len(sigma) else math.nan
    own = target.square().sum(dim=1).numpy() / best
    raw = _fixed_steps((K.values / K.values[0]).numpy(), own, epsilon)
    if goal <= 0:
        return ProbeSteps(raw, math.inf, math.inf, condition, fit, budget)
    fixed, exact = _fixed_steps(sigma, energy, goal), math.nan
    search = exact_line_search(sigma[None], (energy / sigma)[None], np.zeros(1))
    for step, (squares, _, _) in zip(range(budget + 1), search, strict=False):
        if float(sigma @ squares[0]) <= goal:
            exact = float(step)
            break
    return ProbeSteps(raw, fixed, exact, condition, fit, budget)


def _fixed_steps(sigma: FloatArray, energy: FloatArray, goal: float) -> float:
    """Return from which step 1/σ₁ on the excess loss is at most the goal; σ in units of σ₁."""
    with np.errstate(divide="ignore"):
        decay = 2 * np.log1p(-sigma)  # −∞ for σ₁
    return first_step(lambda steps: float(energy @ np.exp(steps * decay)), goal)


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


def slowdown_verdict(met: bool, benign: ProbeSteps | None, harmful: ProbeSteps | None) -> str:
    """Say how slow both tasks' own probes become, and what a verdict by condition numbers leaves out.

    Examples:
        >>> probe = probe_steps(np.diag([5000**-0.5, 1.0]), np.diag([100.0, 1.0]), [1.0, 0.0])
        >>> print(slowdown_verdict(True, probe, None))
        Gradient descent on the actual targets, to 1 % of the excess loss: the benign probe takes 114 times as
        many steps as on raw inputs (1 → 114). The definition is met, but the benign task is lost (more than
        10 times as many steps).
    """
    probes = {"benign": benign, "harmful": harmful}
    known = [f"the {name} probe {probe}" for name, probe in probes.items() if probe]
    if not known:
        return ""
    text = f"Gradient descent on the actual targets, to 1 % of the excess loss: {', '.join(known)}."
    if benign and benign.slowdown > LOST_FACTOR:
        met_but = "The definition is met, but the" if met else "The"
        text += f" {met_but} benign task is lost (more than {LOST_FACTOR:g} times as many steps)."
    if harmful and harmful.slowdown <= 1:
        text += " The harmful task is not slowed."
    return text
