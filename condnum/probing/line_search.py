"""Linear probing by gradient descent with exact line search (Eq. 16, Fig. 1), in the eigenbasis.

For the quadratic `½ wᵀHw − bᵀw` the error obeys `e ← (I − αH)e`, `α = gᵀg/(gᵀHg)`, `g = He`. In the
eigenbasis of H that is `α = Σσ_i²e_i² / Σσ_i³e_i²`, `e_i ← (1 − ασ_i)e_i`: O(k) a step and no pass
over the data. Only the squares `c_i = e_i²` matter, so any number of outputs that share one step
size costs the same.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import ArrayLike, FloatArray, as_tensor, storage_eps
from condnum.errors import InvalidInputError, check_integer
from condnum.theory.spectra import CovarianceRange, checked_rtol, default_rtol

#: Squared errors below this share are set to zero now and then: subnormal numbers, which they would become,
#: make every step several times as slow.
NEGLIGIBLE_SQUARE, FLUSH_INTERVAL = 1e-250, 16


@dataclass(frozen=True)
class ProbeCurve:
    """Convergence of one probe, or of a batch of probes, at the recorded steps."""

    steps: NDArray[np.int64]  # (T,) recorded steps, from 0
    norm_ratio: FloatArray  # (..., T) ‖w_t − w*‖² / ‖w_0 − w*‖² (Eq. 16)
    excess_loss: FloatArray  # (..., T) (L_t − L*) / (L_0 − L*)
    stopped_at: NDArray[np.int64]  # (...) step at which the gradient fell below round-off, −1 if never
    condition: FloatArray  # (...) compact κ of the Hessian
    rank: NDArray[np.int64]  # (...) k, the directions that the probe sees


def log_spaced_steps(steps: int, count: int = 400) -> NDArray[np.int64]:
    """Return at most `count + 1` recorded steps: 0, then log-spaced up to and including `steps`."""
    steps, count = check_integer("steps", steps, 1), check_integer("count", count, 2)
    return np.unique(np.r_[0, np.round(np.geomspace(1, steps, count)).astype(np.int64)])


def linear_probe(
    theta: ArrayLike,
    covariance: ArrayLike,
    moment: ArrayLike,
    *,
    steps: int = 20_000,
    record: ArrayLike | None = None,
    rtol: float | None = None,
) -> ProbeCurve:
    """Probe features `Xθ` by gradient descent with exact line search, for a whole batch at once.

    The probe minimizes `‖Xθw − y‖²` from `w₀ = 0`; `w*` is the solution of least norm, so that the ratio can
    reach 0. A probe stops when its gradient is below the round-off of a data-space implementation,
    `‖g‖ ≤ eps·σ₁·‖w*‖`; the curve is flat from there.

    Args:
        theta: `(..., D, D_hid)` extractors.
        covariance: `(..., D, D)` data covariance `K = XᵀX` of the probed task; broadcasts.
        moment: `Xᵀy`; its number of axes says what it holds, never their lengths. Let n be the larger number
            of batch axes of `theta` and `covariance`. One axis: `(D,)`, for all; n + 1 axes: `(..., D)`;
            n + 2 or more: `(..., D, m)`, for m outputs. Batch axes of length 1 broadcast.
        steps: Gradient steps.
        record: Increasing steps at which to record; default: every one up to 2000 steps, else
            `log_spaced_steps`.
        rtol: Relative rank tolerance of K, in [0, 1); default `D·eps` of its stored dtype.

    Returns:
        The curves, with the batch's shape in front.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, `steps` < 1, bad `record` or `rtol`, or
            nothing to converge to.
        RankError: A covariance is zero.

    Examples:
        Two directions with κ = 3, errors in the worst ratio: the loss contracts by `((κ−1)/(κ+1))²`.

        >>> import numpy as np
        >>> curve = linear_probe(np.eye(2), np.diag([3.0, 1.0]), np.array([1.0, 1.0]), steps=2)
        >>> np.round(curve.excess_loss, 12).tolist()
        [1.0, 0.25, 0.0625]
    """
    T = as_tensor(theta, "theta", minimum_ndim=2).detach()
    K = as_tensor(covariance, "covariance", minimum_ndim=2).detach().to(T.device)
    b = as_tensor(moment, "moment", minimum_ndim=1).detach().to(T.device)
    T, K, b = _broadcast(T, K, b)
    rtol = checked_rtol(rtol, default_rtol(T.shape[-2], storage_eps(covariance)))
    recorded = _steps_to_record(record, check_integer("steps", steps, 1))
    batch = T.shape[:-2]
    members = zip(*(x.reshape(-1, *x.shape[-2:]) for x in (T, K, b)), strict=True)
    modes = [_modes(at_unit_size(t), at_unit_size(k), at_unit_size(m), rtol) for t, k, m in members]
    curves = eigenbasis_probe(modes, recorded)
    shaped = {
        name: of.reshape((*batch, *of.shape[1:])) for name, of in vars(curves).items() if name != "steps"
    }
    return ProbeCurve(steps=recorded, **shaped)


#: A probe in the eigenbasis of its Hessian: σ descending, (k,); the squared errors at the start, (k,); and
#: the larger of ‖w*‖² and ‖w₀‖², the scale of round-off.
ProbeModes: TypeAlias = tuple[FloatArray, FloatArray, float]


def eigenbasis_probe(modes: Sequence[ProbeModes], record: NDArray[np.int64]) -> ProbeCurve:
    """Run probes whose Hessians are diagonalized already, together, and record them at these steps."""
    spectra, errors, reach = zip(*modes, strict=True)
    sigma, squares = np.zeros((2, len(modes), max(map(len, spectra))))  # padded to one width
    for row, (values, error) in enumerate(zip(spectra, errors, strict=True)):
        sigma[row, : len(values)] = values / values[0]
        squares[row, : len(values)] = error
    # ‖g‖² = σ₁² Σ(σ_i/σ₁)² c_i is round-off below (eps σ₁)² max(‖w*‖, ‖w₀‖)².
    floor = np.finfo(np.float64).eps ** 2 * np.array(reach)
    ratio, excess, stopped = _record_probes(sigma, squares, floor, record)
    kappas, ranks = [values[0] / values[-1] for values in spectra], [*map(len, spectra)]
    return ProbeCurve(record, ratio, excess, stopped, np.array(kappas), np.array(ranks))


def _broadcast(T: Tensor, K: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Return extractors, covariances and moments with the batch's axes and two of their own."""
    D, axes, given = T.shape[-2], max(T.ndim, K.ndim) - 2, tuple(b.shape)
    if b.ndim in (1, axes + 1):
        b = b.unsqueeze(-1)
    fits = K.shape[-2:] == (D, D) and b.shape[-2] == D and (len(given) == 1 or len(given) > axes)
    try:
        batch = torch.broadcast_shapes(T.shape[:-2], K.shape[:-2], b.shape[:-2])
    except RuntimeError:
        fits = False
    if not fits:
        raise InvalidInputError(
            f"theta {tuple(T.shape)}, covariance {tuple(K.shape)} and moment {given} do not fit: they must "
            "be (..., D, D_hid), (..., D, D) and (D,), (..., D) or (..., D, m). Here (...) stands for "
            f"{axes} batch axes, which must broadcast; a moment of several outputs needs all of them."
        )
    return tuple(x.expand(*batch, *x.shape[-2:]) for x in (T, K, b))


def at_unit_size(values: Tensor) -> Tensor:
    """Divide by a power of two: that is exact, no curve sees it, and squares stay in range."""
    return values / math.ldexp(1, math.frexp(float(values.abs().max()))[1] - 1)


def _steps_to_record(record: ArrayLike | None, steps: int) -> NDArray[np.int64]:
    """Return the steps to record, validated."""
    if record is None:
        return np.arange(steps + 1) if steps <= 2000 else log_spaced_steps(steps)
    wanted = as_tensor(record, "record", ndim=1).detach().cpu().numpy()
    if (wanted != np.round(wanted)).any() or (np.diff(wanted) <= 0).any():
        raise InvalidInputError("record must be a non-empty increasing list of integer steps.")
    if wanted[0] < 0 or wanted[-1] > steps:
        raise InvalidInputError(f"record runs from {wanted[0]:g} to {wanted[-1]:g}, outside 0..{steps}.")
    return wanted.astype(np.int64)


def _modes(T: Tensor, K: Tensor, b: Tensor, rtol: float) -> ProbeModes:
    """Diagonalize one probe: with `K = BᵀB` and `Bθ = UΣVᵀ`, `σ = Σ²` and `Vᵀw* = Σ⁻¹Uᵀc`, `Bᵀc = Xᵀy`."""
    B = CovarianceRange.of(K, rtol=rtol).factor
    target = (B @ b) / B.square().sum(dim=1, keepdim=True)  # rows of B are orthogonal: c = (BBᵀ)⁻¹Bb
    U, root, _ = torch.linalg.svd(B @ T, full_matrices=False)
    kept = root**2 > default_rtol(T.shape[1]) * root[0] ** 2
    squares = ((U[:, kept].mT @ target) / root[kept, None]).square().sum(dim=1)
    if float(squares.sum()) <= 0:
        raise InvalidInputError(
            "the probe starts at its optimum (Xᵀy is zero on the "
            "range of Xθ): there is nothing to learn; check the targets."
        )
    return (root[kept] ** 2).cpu().numpy(), squares.cpu().numpy(), float(squares.sum())


def exact_line_search(
    sigma: FloatArray, squares: FloatArray, floor: FloatArray
) -> Iterator[tuple[FloatArray, FloatArray, NDArray[np.bool_]]]:
    """Yield before each step the squared errors `c`, the factors `1 − ασ` of the errors, and who still moves.

    `sigma` and `squares` are `(B, k)`, padded with 0. A probe stops where `‖g‖² = Σσ²c` falls to its floor
    `(B,)`. All probes step together, in arrays that the next step overwrites.
    """
    c, square, cube, factor = squares.copy(), sigma**2, sigma**3, np.empty_like(sigma)
    for step in count():
        gradient, curvature = np.einsum("bk,bk->b", square, c), np.einsum("bk,bk->b", cube, c)
        active = gradient > floor
        alpha = np.divide(gradient, curvature, out=np.zeros_like(gradient), where=active)
        np.multiply(sigma, alpha[:, None], out=factor)
        np.subtract(1, factor, out=factor)
        yield c, factor, active
        c *= np.square(factor, out=factor)
        if step % FLUSH_INTERVAL == 0:
            c[c < NEGLIGIBLE_SQUARE] = 0


def _record_probes(
    sigma: FloatArray, squares: FloatArray, floor: FloatArray, recorded: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Return norm ratio and relative excess loss at the recorded steps, and where each probe stopped."""
    scale = squares.sum(axis=1)
    start = squares / scale[:, None]
    norm, loss = start.sum(axis=1), np.einsum("bk,bk->b", sigma, start)  # the first is 1 up to round-off
    ratio, excess = np.empty((2, len(sigma), len(recorded)))
    stopped, column = np.full(len(sigma), -1), 0
    for step, (c, _, active) in enumerate(exact_line_search(sigma, start, floor / scale)):
        stopped[~active & (stopped < 0)] = step
        if step == recorded[column]:
            ratio[:, column], excess[:, column] = c.sum(axis=1) / norm, np.einsum("bk,bk->b", sigma, c) / loss
            column += 1
        if column == len(recorded) or not active.any():
            break
    ratio[:, column:] = (c.sum(axis=1) / norm)[:, None]
    excess[:, column:] = (np.einsum("bk,bk->b", sigma, c) / loss)[:, None]
    return ratio, excess, stopped
