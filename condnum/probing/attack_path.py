r"""An attacker's K steps of gradient descent on a squared loss: what they gain, and bounds on all later ones.

With the step η the update map is affine, :math:`w \mapsto (I - ηH)w + ηc`, so that the k-th gradient is
:math:`(I - ηH)^k g_0` and the gain of K steps a polynomial of degree 2K − 1 in H:

.. math:: L(0) - L(w_K) = \tfrac12 c^\top\frac{I - (I - ηH)^{2K}}{H}\,c = \sum_i p_i\,(1 - (1 - ησ_i)^{2K})

with the energies p_i of `condnum.probing.quadratic`. Three facts follow for 0 < η ≤ 1/σ₁.

1. *The gain never exceeds its first-order prediction* :math:`Kη\|g_0\|^2 = 2Kη\sum_i σ_i p_i`, because
   :math:`1 - (1 - x)^{2K} \le 2Kx`. For given energies the difference falls in each x; over both, it is
   smallest where all energy lies at σ₁, and one step of size 1/σ₁ learns all. That is what a trap looks for.
2. *A bound on all later gain*, for a contraction factor :math:`q = \|I - ηH\|` on range(H): the later updates
   are a geometric series, :math:`\|w_\infty - w_K\| \le B = η\|g_K\|/(1 - q)`, and by smoothness
   :math:`L(w_K) - L(w_\infty) \le \|g_K\|B + \tfrac{σ_1}2B^2`, at least 2 + κ times the left side.
3. *A factor that is seen along the path is no such q*: :math:`\hat q = \|u_{K+1}\|/\|u_K\|`, with the updates
   :math:`u_K = -ηg_K`, never exceeds q and grows with K (Cauchy–Schwarz). With it the formula is an estimate.

As every invertible θ keeps the sum of all p_i, no bound on the gain over all steps can be less on θ than what
raw inputs allow: a valid one says nothing against an attacker who waits, or who solves. Invertible is meant
as a solver in float64 sees it (`solver_rtol`): no singular value of Xθ below 10⁻¹³ of the largest.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from condnum.arrays import ArrayLike, FloatArray
from condnum.errors import InvalidInputError
from condnum.probing.quadratic import Modes, descent_filter
from condnum.probing.tasks import probed_task
from condnum.theory.covariances import CovarianceRange


@dataclass(frozen=True)
class AttackPath:
    """Gains of gradient descent from zero weights after K steps, as fractions of what raw features allow."""

    steps: FloatArray  # (T,) K
    gain: FloatArray  # (T,) (L(w_0) − L(w_K)) / (L(0) − L*), L* on raw features
    expected: FloatArray  # (T,) Kη‖g_0‖², the first-order prediction
    bound: FloatArray  # (T,) of the gain over all steps, by `contraction`
    estimate: FloatArray  # (T,) the same formula by `observed_contraction`: no bound
    observed_contraction: FloatArray  # (T,) ‖u_(K+1)‖/‖u_K‖; 0 where nothing is left to learn
    contraction: float  # max |1 − ησ_i|
    limit: float  # gain of infinitely many steps, or of an attacker who solves
    condition: float  # κ(H), NaN where nothing is left


def attack_path(
    theta: Any,
    covariance: ArrayLike | CovarianceRange | None = None,
    moment: ArrayLike | None = None,
    *,
    features: ArrayLike | None = None,
    targets: Any = None,
    steps: ArrayLike,
    rate: float = 1.0,
    rtol: float | None = None,
) -> AttackPath:
    r"""Return gains and bounds of gradient descent with a constant step, in closed form.

    Args:
        theta: `(D, D_hid)` extractor, linear layer or linear extractor; None: raw inputs.
        covariance: `(D, D)` covariance `K = XᵀX` of the attacked task, or its range.
        moment: `(D,)` or `(D, m)`, `XᵀY`.
        features: `(N, D)` rows X, in place of `covariance` and with `targets`.
        targets: `(N,)` or `(N, m)` numbers, or labels, as for `probe_steps`.
        steps: `(T,)` numbers K ≥ 0 of steps; `inf` is one.
        rate: ησ₁, in (0, 1].
        rtol: Relative rank tolerance of K, as for `probe_steps`.

    Returns:
        The gains, as fractions of what raw features allow.

    Raises:
        InvalidInputError: Shapes do not fit, `rate` or `steps` is out of range, the moment is zero.

    Examples:
        Two directions of equal energy, κ = 4:

        >>> path = attack_path(None, np.diag([4.0, 1.0]), [2.0, 1.0], steps=[0, 1, np.inf])
        >>> path.gain.round(3).tolist(), path.limit, path.contraction
        ([0.0, 0.719, 1.0], 1.0, 0.75)
        >>> bool((path.bound >= path.limit).all())
        True
    """
    T, K, b = probed_task(theta, covariance, moment, features, targets, rtol)
    if T.ndim != 2:
        raise InvalidInputError(f"theta must have 2 dimension(s), got shape {tuple(T.shape)}.")
    counts = np.atleast_1d(np.asarray(steps, dtype=float))
    if counts.ndim != 1 or not len(counts) or not (counts >= 0).all():
        raise InvalidInputError(f"steps must be a list of numbers of at least 0, got {steps!r}.")
    if not 0 < rate <= 1:
        raise InvalidInputError(f"rate must be in (0, 1], in units of 1/σ₁, got {rate!r}.")
    if not Modes.of(None, K, b).fit > 0:
        raise InvalidInputError("the moment XᵀY is zero: no probe learns anything; check the targets.")
    modes = Modes.of(None if theta is None else T, K, b)
    return path_of_modes(modes, counts, rate)


def attack_gain(sigma: FloatArray, energy: FloatArray, steps: FloatArray) -> FloatArray:
    """Return the gain `(T,)` of K steps of size 1/σ₁ on modes `σ_i/σ₁` with energies p_i, `(k,)` each.

    Examples:
        >>> attack_gain(np.array([1.0, 0.25]), np.array([0.5, 0.5]), np.array([0.0, 1.0])).round(3)
        array([0.   , 0.719])
    """
    return np.asarray((1 - _left(sigma, steps)) @ energy)


def _left(x: FloatArray, steps: FloatArray) -> FloatArray:
    """Return the fractions `(T, k)` of the energies that are left after K steps."""
    return np.stack([descent_filter(x, count) if count else np.ones_like(x) for count in steps]) ** 2


def path_of_modes(modes: Modes, steps: FloatArray, rate: float = 1.0) -> AttackPath:
    """Return `attack_path` of modes whose largest eigenvalue is 1."""
    sigma, p = modes.sigma, modes.energy
    x = rate * sigma
    left = _left(x, steps)
    gain, slope = (1 - left) @ p, 2 * left @ (sigma * p)  # ‖g_K‖²
    after = 2 * left @ (sigma * p * (1 - x) ** 2)
    seen = np.sqrt(np.divide(after, slope, out=np.zeros_like(slope), where=slope > 0))
    least = float(x[-1]) if len(x) else 1.0  # 1 − q itself: above κ = 2⁵³, 1 − x would be 1

    def bound(gap: Any) -> FloatArray:
        """Return `gain + ‖g‖B + B²/2`, `B = η‖g‖/gap`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            B = np.where(slope > 0, rate * np.sqrt(slope) / gap, 0.0)
        return np.asarray(gain + np.sqrt(slope) * B + B**2 / 2)

    with np.errstate(invalid="ignore"):
        expected = np.where(steps > 0, 2 * steps * rate * float(sigma @ p), 0.0)
    bounds = bound(least), bound(1 - seen)
    return AttackPath(steps, gain, expected, *bounds, seen, 1 - least, modes.fit, modes.condition)
