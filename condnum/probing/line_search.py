"""Linear probing by gradient descent with exact line search (Eq. 16, Fig. 1), in the eigenbasis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import ArrayLike, FloatArray, as_tensor, door
from condnum.errors import InvalidInputError, check_integer
from condnum.numbers import short_repr
from condnum.probing.quadratic import Modes, line_search_filters
from condnum.probing.tasks import probed


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


def log_spaced_steps(steps: int, count: int = 400) -> NDArray[np.int64]:
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
            `log_spaced_steps`.

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
        return np.arange(steps + 1) if steps <= 2000 else log_spaced_steps(steps)
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
    for step, (q, moving) in enumerate(line_search_filters(sigma, energy, floor)):
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
