"""Notebook 1: where float64 ends, or how exactly a probe of condition κ can be solved at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.probing.line_search import log_spaced_steps
from condnum.teaching.quadratic import spectrum

PRECISIONS = ("float32", "float64")


@dataclass(frozen=True)
class Plateau:
    """Exact line search in one floating-point format, run until it no longer improves."""

    precision: str
    kappa: float
    steps: NDArray[np.int64]  # (T,)
    norm_ratio: NDArray[np.float64]  # (T,) ‖w_t − w*‖² / ‖w_0 − w*‖² (Eq. 16)
    round_off: float  # (κ·eps)²


def plateau(kappa: float, precision: str = "float64", *, dimension: int = 8, seed: int = 0) -> Plateau:
    r"""Run exact line search on :math:`Hw = b` in a chosen precision until it stops improving.

    `H` is dense, a random rotation of a geometric spectrum with :math:`σ_1 = 1`; the start is the worst
    one. Storing `b` rounds it by `eps` of its size already, and :math:`H^{-1}` turns that into an error
    of up to `κ·eps` in `w`: the norm ratio levels off at or below about :math:`(κ\,\mathrm{eps})^2`, whatever
    the number of steps.

    Args:
        kappa: κ > 1.
        precision: `float32` or `float64`.
        dimension: D ≥ 2.
        seed: Of the rotation.

    Returns:
        The curve at log-spaced steps, and the level of round-off.

    Raises:
        InvalidInputError: κ is not above 1, or D < 2.
        UnknownNameError: Another precision.

    Examples:
        >>> run = plateau(100.0, "float32")
        >>> bool(run.norm_ratio[-1] < run.round_off < 1e-4 * run.norm_ratio[0])
        True
    """
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    if not kappa > 1:
        raise InvalidInputError(f"kappa must be above 1, got {kappa}: at κ = 1 one step arrives.")
    sigma = spectrum("geometric", dimension, kappa)
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    ends = np.zeros(dimension)
    ends[[0, -1]] = 1 / sigma[[0, -1]]
    solution = (Q @ ends) / np.linalg.norm(ends)
    H = (Q * sigma) @ Q.T
    round_off = float(kappa * np.finfo(precision).eps) ** 2
    # Kantorovich's rate per step would take log(round_off)/log(rate) steps; half as many again show it.
    rate = ((kappa - 1) / (kappa + 1)) ** 2
    recorded = log_spaced_steps(10 + math.ceil(1.5 * math.log(round_off) / math.log(rate)), 300)
    norm_ratio = _descend(H.astype(precision), (H @ solution).astype(precision), solution, recorded)
    return Plateau(precision, kappa, recorded, norm_ratio, round_off)


def _descend(
    H: NDArray[np.floating],
    b: NDArray[np.floating],
    solution: NDArray[np.float64],
    recorded: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the norm ratio at the recorded steps, computed as a data-space program would, from w₀ = 0."""
    w = np.zeros_like(b)
    ratio = np.empty(len(recorded))
    column = 0
    for step in range(recorded[-1] + 1):
        if step == recorded[column]:
            ratio[column] = ((w - solution) ** 2).sum()
            column += 1
        g = H @ w - b
        curvature = g @ (H @ g)
        if curvature > 0:
            w = w - (g @ g) / curvature * g
    return ratio / ratio[0]
