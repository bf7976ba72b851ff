r"""R_well, which lowers a condition number (Eq. 3), R_ill, which raises one (Eq. 12), and their steps.

The preconditioner of Theorem 4.3 cancels, :math:`K^{-1}\nabla_\theta R = 2\theta\nabla_HR(H(\theta))`: K may
be singular. `well_step` and `ill_step` take such a step in θ, `well_spectrum_step` and `ill_spectrum_step`
tell where it takes the spectrum, and the bounds below which κ moves as wanted are those of the theorem,
corrected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from condnum.arrays import Array, ArrayLike, as_tensor, door, rank_eps
from condnum.errors import CondnumError, InvalidInputError, RankError, check_integer, check_known
from condnum.numbers import short_repr
from condnum.theory.kappa import checked_rtol, hessian
from condnum.theory.linalg import is_symmetric, symmetric_part
from condnum.theory.task import rank_tolerance

StepBound = Literal["corrected", "published"]


@dataclass(frozen=True)
class RegularizerGradient:
    """Value and closed-form gradient of a regularizer, and whether it is differentiable."""

    value: Any  # R
    gradient: Any  # the shape of the matrix that it is taken in
    rank: Any  # k, the number of σ > rtol·σ₁, or the rank that was asked for
    multiplicity: Any  # how many singular values equal the extreme one; the subgradient averages over them

    __repr__ = short_repr

    @property
    def differentiable(self) -> Any:
        """Whether the extreme singular value is unique; if not, `gradient` is a subgradient."""
        return self.multiplicity == 1


@door
def r_well(S: ArrayLike, *, dimension: int | None = None) -> Any:
    r"""Value of the κ-minimizing regularizer (Eq. 3).

    .. math:: R_{well}(S) = \tfrac12\sigma_1^2 - \frac{1}{2p}\|S\|_F^2

    It is zero iff all p singular values are equal, and bounds log κ:
    :math:`\kappa \le \exp(p\,\sigma_p^{-2}R_{well})` at full rank (Theorem A.1).

    Args:
        S: `(p_r, p_c)`; a symmetric matrix takes `eigh`, another the SVD.
        dimension: p; default `min(p_r, p_c)`. Larger when S is a smaller dual matrix with the same
            non-zero spectrum.

    Returns:
        A float for a NumPy matrix, else a tensor `()`. A tensor that requires grad gets the
        closed form as its backward: that of `r_well(hessian(theta, K))` in θ is Theorem 4.2,
        :math:`2K\theta\,\nabla_HR(H(\theta))`.

    Raises:
        InvalidInputError: Not two-dimensional, non-finite entries, `dimension` below p.
        RankError: The matrix is zero.

    Examples:
        >>> import numpy as np
        >>> r_well(np.diag([3.0, 1.0]))  # 9/2 - 10/4
        2.0
    """
    M = as_tensor(S, "S", ndim=2)
    return _differentiable(M, well_gradient(M.detach(), dimension=dimension, eps=rank_eps(S)))


@door
def r_well_gradient(
    S: ArrayLike, *, dimension: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_well in S (Theorem A.1 (3)).

    .. math:: \nabla R_{well}(S) = \sigma_1u_1v_1^\top - \frac1p S

    Where :math:`\sigma_1` is repeated m times the answer is the centre of the subdifferential,
    :math:`\frac{\sigma_1}{m}\sum_{i\le m}u_iv_i^\top - \frac1pS`, with `differentiable=False`.

    Args:
        S: As in `r_well`.
        dimension: As in `r_well`.
        rtol: Singular values within `rtol·σ₁` count as equal, those below as zero; default
            `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        Value, gradient `(p_r, p_c)`, and whether it is one.

    Raises:
        InvalidInputError: As `r_well`, or bad `rtol`.
        RankError: The matrix is zero.

    Examples:
        >>> import numpy as np
        >>> r_well_gradient(np.diag([3.0, 1.0])).gradient
        array([[ 1.5,  0. ],
               [ 0. , -0.5]])
        >>> r_well_gradient(np.diag([3.0, 3.0, 0.0])).differentiable
        False
    """
    M = as_tensor(S, "S", ndim=2).detach()
    return _in_numbers(well_gradient(M, dimension=dimension, rtol=rtol, eps=rank_eps(S)))


@door
def r_ill(S: ArrayLike, *, rank: int | None = None, rtol: float | None = None) -> Any:
    r"""Value of the κ-maximizing regularizer (Eq. 12).

    .. math:: R_{ill}(S) = \frac{1}{\frac{1}{2k}\|S\|_F^2 - \frac12\sigma_k^2}, \quad k = \mathrm{rank}(S)

    It bounds :math:`1/\log\kappa \le \sigma_1^2R_{ill}` (Theorem 4.1 (2)). Theorem 4.1 (1), that it vanishes
    iff κ = ∞, is false: at `(1, ½, σ→0)` κ → ∞ and `R_ill → 4.8`. It is `inf` where all k values are equal.

    Args:
        S: `(p_r, p_c)`; a symmetric matrix takes `eigh`, another the SVD.
        rank: k, the values beyond it being round-off; default the number of singular values above `rtol·σ₁`.
        rtol: Relative tolerance of rank and equality; default `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        As `r_well`; the backward is that at fixed k.

    Raises:
        InvalidInputError: Not two-dimensional, non-finite entries, bad `rank` or `rtol`.
        RankError: The matrix is zero; or a backward is asked of an infinite value.

    Examples:
        >>> import numpy as np
        >>> r_ill(np.diag([3.0, 1.0]))  # 1/(10/4 - 1/2)
        0.5
        >>> r_ill(np.diag([3.0, 0.0]))
        inf
    """
    M = as_tensor(S, "S", ndim=2)
    return _differentiable(M, ill_gradient(M.detach(), rank=rank, rtol=rtol, eps=rank_eps(S)))


@door
def r_ill_gradient(
    S: ArrayLike, *, rank: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_ill in S at fixed rank k (Eq. 13).

    .. math:: \nabla R_{ill}(S) = \Big(\sigma_ku_kv_k^\top - \frac1kS\Big)R_{ill}(S)^2

    Where :math:`\sigma_k` is repeated m times the answer is the centre of Clarke's subdifferential,
    :math:`\frac1m\sum_iu_iv_i^\top` over the cluster in place of :math:`u_kv_k^\top`, with
    `differentiable=False`.

    Args:
        S: `(p_r, p_c)`.
        rank: As in `r_ill`.
        rtol: As in `r_ill`.

    Returns:
        Value, gradient `(p_r, p_c)`, and whether it is one.

    Raises:
        RankError: R_ill is infinite; else as `r_ill`.

    Examples:
        >>> import numpy as np
        >>> r_ill_gradient(np.diag([3.0, 1.0])).gradient
        array([[-0.375,  0.   ],
               [ 0.   ,  0.125]])
    """
    M = as_tensor(S, "S", ndim=2).detach()
    result = ill_gradient(M, rank=rank, rtol=rtol, eps=rank_eps(S))
    reject_infinite(result.value)
    return _in_numbers(result)


class _WithGradient(torch.autograd.Function):
    """A value with a gradient in closed form: that of `svd` or `eigh` is NaN where singular values meet."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return `value` and keep `gradient`."""
        ctx.save_for_backward(value, gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Return `upstream · gradient`, once."""
        value, gradient = ctx.saved_tensors
        reject_infinite(value)
        if torch.is_grad_enabled():  # create_graph=True; second derivatives would come out without this term
            raise CondnumError(
                "r_well and r_ill have a closed-form first derivative only; for second derivatives write the "
                "regularizer with torch.linalg.svdvals, or detach this term."
            )
        return upstream * gradient, None, None


def _differentiable(matrix: Tensor, result: RegularizerGradient) -> Any:
    """Return the value, with the closed form as its backward where that is wanted."""
    if matrix.requires_grad and torch.is_grad_enabled():
        return _WithGradient.apply(matrix, result.value, result.gradient)
    return result.value


def _in_numbers(result: RegularizerGradient) -> RegularizerGradient:
    """Turn all but the gradient into Python scalars."""
    numbers = {name: value.item() for name, value in vars(result).items() if name != "gradient"}
    return RegularizerGradient(gradient=result.gradient, **numbers)


def well_gradient(
    matrix: Tensor, *, dimension: int | None = None, rtol: float | None = None, eps: float
) -> RegularizerGradient:
    """Return value and gradient of R_well as tensors, from one decomposition of a detached matrix."""
    p = resolve_dimension(dimension, min(matrix.shape))
    tolerance = checked_rtol(rtol, rank_tolerance(max(matrix.shape), eps))
    U, sigma, V = _decompose(matrix, eps)
    rank, found = resolve_rank(sigma, None, tolerance), well_of_spectrum(sigma, p, tolerance)
    return RegularizerGradient(found.value, (U * found.slopes) @ V.mT, rank, found.multiplicity)


def ill_gradient(matrix: Tensor, *, rank: int | None, rtol: float | None, eps: float) -> RegularizerGradient:
    """Return value and gradient of R_ill as `well_gradient`; the gradient at an infinite value is NaN."""
    tolerance = checked_rtol(rtol, rank_tolerance(max(matrix.shape), eps))
    U, sigma, V = _decompose(matrix, eps)
    k = resolve_rank(sigma, rank, tolerance)
    found = ill_of_spectrum(sigma, k, tolerance)
    return RegularizerGradient(found.value, (U * found.slopes) @ V.mT, k, found.multiplicity)


@dataclass(frozen=True)
class SpectralRegularizer:
    """A regularizer of a descending spectrum `(n,)`; its gradient in a matrix is `U diag(slopes) Vᵀ`."""

    value: Tensor  # ()
    slopes: Tensor  # (n,)
    multiplicity: Tensor  # () of σ₁ or σ_k, whose equals share its slope


def well_of_spectrum(sigma: Tensor, dimension: int, rtol: float | None = None) -> SpectralRegularizer:
    """Return R_well, with the slopes `σ₁[i = 1] − σ_i/p`; zeros beyond the spectrum count to p."""
    n, top = len(sigma), sigma[0]
    equal = (top - sigma) <= checked_rtol(rtol, rank_tolerance(n)) * top
    count = equal.sum()
    # A sum of differences of squares: non-negative, and exactly zero at a flat spectrum.
    differences = ((top - sigma) * (top + sigma)).sum()
    value = (differences + (dimension - n) * top.square()) / (2 * dimension)
    return SpectralRegularizer(value, (equal.to(sigma) / count - 1 / dimension) * sigma, count)


def ill_of_spectrum(
    sigma: Tensor, rank: int | Tensor | None = None, rtol: float | None = None
) -> SpectralRegularizer:
    """Return R_ill, with the slopes `(σ_k[i = k] − σ_i/k)·R_ill²`, without Eq. 12's cancellation.

    The rank k is by default that of all values. R_ill is inf where all k values are equal.
    """
    n = len(sigma)
    k = n if rank is None else int(rank)
    kept, low = torch.arange(n, device=sigma.device) < k, sigma[k - 1]
    equal = kept & ((sigma - low) <= checked_rtol(rtol, rank_tolerance(n)) * sigma[0])
    count = equal.sum()
    rho = torch.where(kept, (sigma - low) * (sigma + low), sigma.square()).sum() / (2 * k)
    value = rho.new_tensor(torch.inf) if int(count) == k else rho.reciprocal()
    slopes = (equal.to(sigma) / count - 1 / k) * sigma * value.square()
    return SpectralRegularizer(value, slopes, count)


def rank_one_gradient(H: Tensor, sigma: float, vector: Tensor, count: int) -> Tensor:
    """Return `σvvᵀ − H/p`: ∇R_well(H) with σ₁ and p = D, and ∇R_ill(H)/R_ill² with σ_k and p = k."""
    return (-1 / count * H).addr_(sigma * vector, vector)


def r_ill_of_norm(norm: Tensor, sigma: Tensor, rank: int) -> Tensor:
    """Return R_ill from ‖H‖_F and σ_k alone, whose difference cancels where the spectrum is nearly flat."""
    return 1 / (norm.square() / (2 * rank) - sigma.square() / 2)


def reject_infinite(value: Tensor) -> None:
    """Raise if R_ill is infinite."""
    if bool(torch.isinf(value)):
        raise RankError(
            "R_ill is infinite and has no gradient: the non-zero singular values of a matrix are all "
            "equal (always the case at rank 1), so κ = 1; start from a theta whose Hessian has distinct "
            "singular values, or pass a smaller rtol."
        )


def _decompose(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return `U, σ, V` with `S = U diag(σ) Vᵀ`, σ descending; `eigh` where S is symmetric."""
    if not is_symmetric(matrix, eps):
        U, sigma, V = torch.linalg.svd(matrix, full_matrices=False)
        return U, sigma, V.mT
    values, vectors = torch.linalg.eigh(symmetric_part(matrix))
    order = values.abs().argsort(descending=True)
    values, V = values[order], vectors[:, order]
    # A negative eigenvalue is a positive singular value with u = −v.
    return V * torch.where(values < 0, -1.0, 1.0).to(V.dtype), values.abs(), V


def resolve_dimension(dimension: int | None, minimum: int) -> int:
    """Return p, checked."""
    name = "dimension, the number of singular values,"
    return minimum if dimension is None else check_integer(name, dimension, minimum)


def resolve_rank(sigma: Tensor, rank: int | None, rtol: float) -> Tensor:
    """Return the numerical rank of a spectrum, or the one that was asked for."""
    if not bool(sigma[0]):
        raise RankError(
            "a matrix has rank 0 (all singular values are zero): its condition number is undefined; check "
            "that theta and the features are not zero."
        )
    if not 0 < float(sigma[0].square()) * len(sigma) < math.inf:
        raise InvalidInputError(
            f"singular values go up to {float(sigma[0]):.3g}, and the largest square overflows float64: "
            "R_well and R_ill depend on the scale, so divide the matrix by its largest singular value first."
        )
    if rank is None:
        return (sigma > rtol * sigma[0]).sum()
    n, rank = len(sigma), check_integer("rank", rank, 1)
    if rank > n:
        raise InvalidInputError(f"rank must be between 1 and {n}, got {rank}.")
    return torch.tensor(rank, device=sigma.device)


@door
def well_step_bound(
    sigma: ArrayLike, *, dimension: int | None = None, bound: StepBound = "corrected"
) -> float:
    r"""Return the step size below which `well_step` lowers κ (Theorem 4.3 (1)), of a spectrum `(k,)`.

    The smaller of :math:`(1-\sqrt{\sigma_k/\sigma_1})/(2(1-\frac1D)\sigma_1)`, published as
    :math:`1/((1-\frac1D)\sigma_1)`, and :math:`\frac D{2\sigma_2}(\sqrt{\sigma_1/\sigma_2}-1)`.
    """
    s = _as_spectrum(sigma, bound, minimum=2)
    D = resolve_dimension(dimension, len(s))
    if well_of_spectrum(s, D).multiplicity > 1:
        raise InvalidInputError(
            f"the largest singular value is repeated (σ₁ = σ₂ in {s.tolist()}): Theorem 4.3 (1) requires a "
            "unique one, and its bound is 0."
        )
    s1, s2, sk = s[0], s[1], s[-1]
    # 1 − √(σ_k/σ₁) and √(σ₁/σ₂) − 1 without cancellation.
    room = (s1 - sk) / s1 / (1 + (sk / s1).sqrt()) / 2 if bound == "corrected" else torch.ones_like(s1)
    first = room / ((1 - 1 / D) * s1)
    second = (s1 - s2) / s2 / ((s1 / s2).sqrt() + 1) * D / (2 * s2)
    return float(torch.minimum(first, second))


@door
def ill_step_bound(sigma: ArrayLike, *, bound: StepBound = "corrected") -> float:
    r"""Return the step size below which `ill_step` raises κ (Theorem 4.3 (2)), of a spectrum `(k,)`.

    With ρ = 1/R_ill: :math:`\rho^2/(\sigma_k(1-2/k))`, `inf` for k = 2, where every step raises κ. Published:
    :math:`\rho^2/(1-2\sigma_k/k)` as it is, negative where σ_k > k/2, `inf` at σ_k = k/2.
    """
    s = _as_spectrum(sigma, bound, minimum=2)
    found = ill_of_spectrum(s)
    if found.multiplicity > 1:
        raise InvalidInputError(
            f"the smallest singular value is repeated (σ_k = σ_(k−1) in {s.tolist()}): Theorem 4.3 (2) "
            "requires a unique one, and its bound is undefined."
        )
    k, sigma_k = len(s), s[-1]
    denominator = sigma_k * (1 - 2 / k) if bound == "corrected" else 1 - 2 * sigma_k / k
    return float(found.value.reciprocal().square() / denominator)


def _as_spectrum(sigma: ArrayLike, bound: StepBound = "corrected", *, minimum: int = 1) -> Tensor:
    """Return a detached float64 spectrum `(k,)`, checked."""
    check_known("bound", bound, ("corrected", "published"))
    s = as_tensor(sigma, "sigma", ndim=1).detach()
    if bool((s <= 0).any()):
        raise InvalidInputError(
            f"sigma must be positive, got {float(s.min())}; pass the non-zero spectrum only."
        )
    if bool((s[1:] > s[:-1]).any()):
        raise InvalidInputError(f"sigma must be descending, got {s.tolist()}; sort it.")
    if len(s) < minimum:
        raise RankError(f"sigma must hold at least {minimum} values, got {len(s)}: κ = 1 at rank 1.")
    return s


def _step_size(eta: float) -> float:
    """Return the step size, checked."""
    if not 0 <= float(eta) < math.inf:
        raise InvalidInputError(f"eta must be finite and non-negative, got {eta}.")
    return float(eta)


def _stepped(theta: ArrayLike, K: ArrayLike, eta: float, gradient: Callable[..., RegularizerGradient]) -> Any:
    """Return `θ − 2ηθ∇_HR(H(θ))`, of the kind of θ."""
    step, T = 2 * _step_size(eta), as_tensor(theta, "theta", ndim=2).detach()
    H: Tensor = hessian(T, as_tensor(K, "K", ndim=2).detach().to(T.device))  # type: ignore[assignment]
    found = gradient(H, eps=max(rank_eps(theta), rank_eps(K)))
    reject_infinite(found.value)
    return T - step * (T @ found.gradient)


@door
def well_step(theta: ArrayLike, K: ArrayLike, eta: float, *, rtol: float | None = None) -> Any:
    r"""One step that lowers κ(H(θ)) for η below `well_step_bound` (Theorem 4.3 (1)).

    .. math:: \theta' = \theta - \eta K^{-1}\nabla_\theta R_{well}
        = \theta - 2\eta\,\theta\,\nabla_HR_{well}(H(\theta))

    At a repeated σ₁ it follows the averaged subgradient of `r_well_gradient`.

    Args:
        theta: `(D, D_hid)` linear feature extractor.
        K: `(D, D)` data covariance, singular or not.
        eta: η ≥ 0.
        rtol: Singular values of H within `rtol·σ₁` count as equal.

    Returns:
        θ′ `(D, D_hid)`, of kind and dtype of `theta`; the argument is not changed.

    Raises:
        InvalidInputError: The shapes do not fit, non-finite entries, bad `eta` or `rtol`.
        RankError: The Hessian is zero.

    Examples:
        >>> import numpy as np
        >>> well_step(np.eye(2), np.diag([4.0, 1.0]), 0.1)
        array([[0.6, 0. ],
               [0. , 1.1]])
    """
    return _stepped(theta, K, eta, partial(well_gradient, rtol=rtol))


@door
def ill_step(
    theta: ArrayLike, K: ArrayLike, eta: float, *, rank: int | None = None, rtol: float | None = None
) -> Any:
    r"""One step that raises κ(H(θ)) for η below `ill_step_bound` (Theorem 4.3 (2)).

    .. math:: \theta' = \theta - 2\eta\,\theta\,\nabla_HR_{ill}(H(\theta))

    Near :math:`\eta = \rho^2/(2(1-1/k)\sigma_k)`, :math:`\rho = 1/R_{ill}`, σ_k is annihilated: the numerical
    rank of H falls by one, and compact κ with it. Compare ranks before and after.

    Args:
        theta: `(D, D_hid)` linear feature extractor.
        K: `(D, D)` data covariance, singular or not.
        eta: η ≥ 0.
        rank: k of the Hessian; default its numerical rank.
        rtol: Relative tolerance of rank and equality.

    Returns:
        θ′, as `well_step`.

    Raises:
        InvalidInputError: As `well_step`, or bad `rank`.
        RankError: The Hessian is zero, or R_ill is infinite.

    Examples:
        >>> import numpy as np
        >>> ill_step(np.eye(2), np.diag([3.0, 1.0]), 1.0)
        array([[1.75, 0.  ],
               [0.  , 0.75]])
    """
    return _stepped(theta, K, eta, partial(ill_gradient, rank=rank, rtol=rtol))


@door
def well_spectrum_step(sigma: ArrayLike, eta: float, dimension: int | None = None) -> Array:
    r"""Return where `well_step` takes each σ_i of `(k,)`; the result may be out of order.

    :math:`\sigma_1(1-2\eta(1-\frac1D)\sigma_1)^2` and :math:`\sigma_i(1+\frac{2\eta}D\sigma_i)^2`; of σ₁ that
    is repeated m times, each moves with 1/m in the place of 1.

    Examples:
        >>> well_spectrum_step([4.0, 1.0], 0.25, 2)
        array([0.    , 1.5625])
    """
    s = _as_spectrum(sigma)
    D = resolve_dimension(dimension, len(s))
    return _moved(s, eta, well_of_spectrum(s, D).slopes)


@door
def ill_spectrum_step(sigma: ArrayLike, eta: float) -> Array:
    r"""Return where `ill_step` takes each σ_i of `(k,)`, with ρ = 1/R_ill; 0 if it is annihilated.

    :math:`\sigma_k(1-\frac{2\eta}{\rho^2}(1-\frac1k)\sigma_k)^2` and
    :math:`\sigma_i(1+\frac{2\eta}{k\rho^2}\sigma_i)^2`.

    Examples:
        >>> ill_spectrum_step([3.0, 1.0], 1.0)  # ρ = 2
        array([9.1875, 0.5625])
    """
    s = _as_spectrum(sigma, minimum=2)
    found = ill_of_spectrum(s)
    reject_infinite(found.value)
    return _moved(s, eta, found.slopes)


def _moved(sigma: Tensor, eta: float, slopes: Tensor) -> Tensor:
    """Return where a preconditioned step takes the spectrum of H: `σ_i(1 − 2ηg_i)²`."""
    return sigma * (1 - 2 * _step_size(eta) * slopes).square()
