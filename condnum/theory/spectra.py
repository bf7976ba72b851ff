"""Covariance, Hessian, singular values, condition numbers and the tolerances of ranks.

A condition number needs a stated convention (compact or ridge) and a stated rank; see
`condition_number`. κ(XᵀX) is read from the singular values of X, which keep what forming XᵀX would lose.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor

from condnum.arrays import (
    Array,
    ArrayLike,
    all_finite,
    as_tensor,
    extractor_matrix,
    like,
    named_columns,
    storage_eps,
)
from condnum.errors import InvalidInputError, RankError, check_known
from condnum.theory.extremes import SMALL, singular_triples, triangle_ends

Convention = Literal["compact", "ridge"]
MatrixKind = Literal["matrix", "features"]

#: Round-off of float64.
EPS = 2.0**-52

#: The absolute floor of the published linear experiments, kept as the comparable ridge.
PUBLISHED_RIDGE = 1e-6


@dataclass(frozen=True)
class ConditionNumber:
    """A condition number with the evidence for it."""

    value: float  # κ
    sigma_max: float  # σ₁, before the ridge is added
    sigma_min: float  # compact: σ_k, the smallest kept; ridge: σ_D, 0 when rank-deficient
    rank: int  # number of σ > rtol·σ₁
    dimension: int  # number of singular values that the matrix could have
    convention: Convention


def covariance(features: ArrayLike) -> Array:
    """Return the data covariance `K = XᵀX`, uncentered and unnormalized as in the paper (Eq. 9).

    Args:
        features: `(N, D)` inputs, one row per sample.

    Returns:
        `(D, D)`, symmetric, of the caller's kind, float64.

    Raises:
        InvalidInputError: Not two-dimensional, empty, non-finite, or too large to be squared.

    Examples:
        >>> covariance([[1.0, 0.0], [1.0, 2.0]])
        array([[2., 2.],
               [2., 4.]])
    """
    X = as_tensor(features, "features", ndim=2)
    return like(features)(checked_gram(X.mT @ X, X))


def checked_gram(gram: Tensor, features: Tensor) -> Tensor:
    """Return products of features, or raise if they leave float64."""
    if not all_finite(gram):
        raise InvalidInputError(
            f"the features have entries up to {float(features.abs().max()):.3g}, whose squares overflow "
            "float64: divide the inputs of all tasks by the same "
            "number, which does not change condition numbers."
        )
    return gram


def hessian(theta: ArrayLike, covariance: ArrayLike) -> Array:
    """Return the Hessian of the linear probe, `H(θ) = θᵀKθ` (Eq. 9).

    As in the paper, the factor 2 of the squared loss is dropped, which does not change κ. Eigenvalues of K
    below its stored precision count as zero, so a float32 K keeps its rank in a float64 H.

    Args:
        theta: `(D, D_hid)` linear feature extractor; features are `Xθ`.
        covariance: `(D, D)` data covariance `K = XᵀX`.

    Returns:
        `(D_hid, D_hid)`, symmetric, of the kind of `theta`, float64.

    Raises:
        InvalidInputError: The shapes do not fit, entries are non-finite, `covariance` is not a covariance, or
            H would leave float64.

    Examples:
        >>> hessian([[1.0, 1.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 3.0]])
        array([[2., 2.],
               [2., 5.]])
    """
    theta = extractor_matrix(theta, columns=named_columns(covariance))
    T = as_tensor(theta, "theta", ndim=2)
    K = as_covariance(covariance, "covariance").to(T.device)
    if storage_eps(covariance) > EPS:
        values, vectors = torch.linalg.eigh(K)
        least = default_rtol(len(K), storage_eps(covariance)) * values[-1]
        K = (vectors * torch.where(values > least, values, 0.0)) @ vectors.mT
    sizes = [float(part.detach().abs().max()) for part in (T, K)]
    if all(sizes) and not 0 < sizes[0] ** 2 * sizes[1] < math.inf:
        raise InvalidInputError(
            f"H = θᵀKθ leaves float64: the largest entries of theta and covariance are {sizes[0]:.3g} and "
            f"{sizes[1]:.3g}; rescale one of them, which does not change κ."
        )
    try:
        return like(theta)(symmetric_part(T.mT @ K @ T))
    except RuntimeError as error:
        raise InvalidInputError(
            f"theta {tuple(T.shape)} and covariance {tuple(K.shape)} do not fit: "
            "theta must be (D, D_hid) and covariance (D, D)."
        ) from error


def as_covariance(value: ArrayLike, name: str, *, rtol: float = 0.0) -> Tensor:
    """Return a covariance `(D, D)`, exactly symmetric, or raise where it is none beyond round-off."""
    K = as_tensor(value, name, ndim=2)
    D = len(K)
    if K.shape[1] != D:
        raise InvalidInputError(f"{name} must be square, got shape {tuple(K.shape)}.")
    eps = storage_eps(value)
    slack = max(4 * rtol, 4 * default_rtol(D, eps), 2 * math.sqrt(D) * eps, 1e-8)
    variances = K.detach().diagonal()
    allowed = slack * variances.abs().max()
    gap = (K - K.mT).detach().abs().max()
    if bool(gap > allowed):
        raise InvalidInputError(
            f"{name} must be symmetric, got |K - Kᵀ| up to {float(gap):.3g}; pass a covariance XᵀX."
        )
    K = symmetric_part(K)
    shift = torch.diag((allowed + torch.finfo(K.dtype).tiny).expand_as(variances))
    if int(torch.linalg.cholesky_ex(K.detach() + shift).info):
        least = float(torch.linalg.eigvalsh(K.detach()).min())
        raise InvalidInputError(
            f"{name} is not positive semidefinite: its smallest eigenvalue is {least:.3g} against a largest "
            f"variance of {float(variances.max()):.3g}; pass a covariance XᵀX."
        )
    return K


def symmetric_part(matrix: Tensor) -> Tensor:
    """Return `(A + Aᵀ)/2`."""
    return (matrix + matrix.mT) / 2


def is_symmetric(matrix: Tensor, eps: float) -> bool:
    """Tell whether a matrix is symmetric up to the round-off of a product of three D×D factors."""
    if matrix.shape[0] != matrix.shape[1]:
        return False
    gap = (matrix - matrix.mT).abs().max()
    return bool(gap <= 4 * default_rtol(len(matrix), eps) * matrix.abs().max())


def singular_values(matrix: Tensor, *, kind: MatrixKind = "matrix", eps: float = EPS) -> Tensor:
    """Return the singular values, descending, by the cheapest exact route."""
    check_known("matrix kind", kind, get_args(MatrixKind))
    if kind == "features":
        return checked_gram(graded_singular_values(matrix).square(), matrix)
    if is_symmetric(matrix, eps):
        values = torch.linalg.eigvalsh(symmetric_part(matrix)).abs()
        return values.sort(descending=True).values
    return torch.linalg.svdvals(matrix)


def hessian_spectrum(theta: Tensor, factor: Tensor, least: float | None = None) -> Tensor:
    """Return the non-zero spectrum of `H(θ) = θᵀBᵀBθ` without forming H; `least` as in `spectrum_ends`.

    Its round-off, `eps·‖K‖‖θ‖²`, could pass for a smallest eigenvalue after immunization.
    """
    image = (factor @ theta).mT
    return (graded_singular_values(image) if least is None else spectrum_ends(image, math.sqrt(least))) ** 2


def graded_singular_values(matrix: Tensor) -> Tensor:
    """Return σ of `(n, m)`, descending, each relative to itself where only the columns' units differ.

    A QR decomposition of the columns from the longest to the shortest keeps the short ones apart (Higham,
    *Accuracy and Stability of Numerical Algorithms*, ch. 19); a plain SVD has the round-off of σ₁ in all.
    """
    return torch.linalg.svdvals(_graded_triangle(matrix))


def spectrum_ends(matrix: Tensor, least: float) -> Tensor:
    """Return `graded_singular_values`; of a large matrix whose σ all exceed `least·σ₁` σ₁, σ_k, …, σ_k.

    So κ and rank are those of all values, in a third of the time.
    """
    R = _graded_triangle(matrix)
    if len(R) > SMALL:
        top, low = triangle_ends(R)
        if low > least * top:
            return torch.cat([R.new_tensor([top]), R.new_full((len(R) - 1,), low)])
    return torch.linalg.svdvals(R)


def _graded_triangle(matrix: Tensor) -> Tensor:
    """Return a triangle of the smaller size of `(n, m)` with its σ, see `graded_singular_values`."""
    order = matrix.abs().amax(dim=0).argsort(descending=True)
    R = torch.linalg.qr(matrix[:, order], mode="r").R
    return R if R.shape[1] <= R.shape[0] else torch.linalg.qr(R.mT, mode="r").R


def storage_noise(dimension: int, eps: float) -> float:
    """Return the round-off in the singular values of a stored well-conditioned θ, relative to θ's own.

    One eps for storing its entries, and √D times a few of the float type that it was computed in.
    """
    return eps + 4 * math.sqrt(dimension) * min(eps, 2.0**-23)


def as_extractor(theta: ArrayLike, name: str = "theta") -> tuple[Tensor, int]:
    """Return θ `(D, D_hid)` and its rank, without directions that its stored precision takes for none.

    A projection saved as float32 has singular values of 1e-8 where it had zeros; they are found where rows
    and columns have equal length, as round-off is relative to each entry.
    """
    theta = extractor_matrix(theta, name)
    T = as_tensor(theta, name, ndim=2).detach()
    equal, lengths = T, []
    for axis in (1, 0):
        length = equal.abs().amax(dim=axis, keepdim=True)
        lengths.append(length)
        equal = equal / torch.where(length > 0, length, 1)
    noise = storage_noise(max(T.shape), storage_eps(theta))
    if T.shape[0] == T.shape[1]:
        inverse, failed = torch.linalg.inv_ex(equal)
        if not int(failed) and float(equal.norm() * inverse.norm()) * noise < 1:  # σ₁/σ_D is at most that
            return T, len(T)
    sigma = torch.linalg.svdvals(equal)
    rank = int((sigma > noise * sigma[0]).sum())
    if 0 < rank < min(T.shape):
        U, sigma, V = singular_triples(equal)
        T = lengths[0] * ((U[:, :rank] * sigma[:rank]) @ V[:rank]) * lengths[1]
    return T, rank


def features_seen(theta: Tensor, vectors: Tensor) -> int:
    """Return how many features of θ `(D, D_hid)` reach a subspace with an orthonormal basis `(D, r)`."""
    length = theta.abs().amax(dim=0)
    sigma = torch.linalg.svdvals(vectors.mT @ (theta / torch.where(length > 0, length, 1)))
    return int((sigma > storage_noise(max(theta.shape), EPS) * sigma[0].clamp_min(1)).sum())


def checked_rtol(rtol: float | None, default: float) -> float:
    """Return a relative tolerance, by default the given one, or say that it is out of range."""
    if rtol is None:
        return default
    if isinstance(rtol, bool) or not (isinstance(rtol, Real) and 0 <= rtol < 1):
        raise InvalidInputError(f"rtol must lie in [0, 1), got {rtol!r}.")
    return float(rtol)


def default_rtol(dimension: int, eps: float = EPS) -> float:
    """Return the relative rank tolerance `dimension · eps`, as NumPy's and MATLAB's rank do, below 1.

    Half precision counts as float32: by its own round-off hardly any direction would be left.
    """
    return min(dimension * min(eps, 2.0**-23), 0.5)


def solver_rtol(shape: Iterable[int]) -> float:
    """Return the relative size below which singular values of features are round-off to who solves with them.

    As of `numpy.linalg.lstsq`, `max(shape)·eps`, but at least 512 eps: products with few columns carry more.
    """
    return default_rtol(max(512, *shape))


def squared_rtol(dimension: int, eps: float) -> float:
    """Return the rank tolerance of `K = XᵀX`: that of the stored features, squared (Weyl), and that of K."""
    return max(default_rtol(dimension, eps) ** 2, default_rtol(dimension))


def features_rtol(features: ArrayLike) -> float:
    """Return the rank tolerance of `XᵀX` for features `(N, D)`: `squared_rtol`, unless units hide a column.

    Then the rank is that of the columns at equal length, and the tolerance lies below so many eigenvalues.
    """
    X = as_tensor(features, "features", ndim=2).detach()
    rtol = squared_rtol(X.shape[1], storage_eps(features))
    sizes = X.abs().amax(dim=0)
    if not bool(((sizes > 0) & (sizes.square() <= math.sqrt(rtol) * sizes.max().square())).any()):
        return rtol  # units that close hide nothing
    X = X[:, sizes > 0]
    equal = spectrum_ends(X / sizes[sizes > 0], math.sqrt(rtol)).square()
    rank = int((equal > rtol * equal[0]).sum())
    own = spectrum_ends(X, 0.0) if rank == min(X.shape) else graded_singular_values(X)
    return min(rtol, float(checked_gram(own.square(), X)[rank - 1] / own[0].square()) / 2)


def condition_number(
    matrix: ArrayLike,
    *,
    convention: Convention = "compact",
    rtol: float | None = None,
    ridge: float = PUBLISHED_RIDGE,
    kind: MatrixKind = "matrix",
) -> ConditionNumber:
    r"""Condition number of a matrix, in a stated convention.

    * `compact` (Eq. 1, Moore–Penrose): :math:`\kappa = \sigma_1/\sigma_k` over the numerical
      rank `k`, the number of singular values above `rtol·σ₁`.
    * `ridge`: :math:`\kappa_\varepsilon = (\sigma_1+\varepsilon)/(\sigma_D+\varepsilon)` with
      :math:`\sigma_D = 0` when rank-deficient, as for an attacker with weight decay ε.

    Args:
        matrix: `(p_r, p_c)`.
        convention: `compact` or `ridge`.
        rtol: Relative rank tolerance of the matrix, or of `XᵀX`; default `max(p_r, p_c)·eps` of the stored
            dtype, for `features` `(D·eps)²`, or what keeps every column (`features_rtol`).
        ridge: ε > 0 of the ridge convention, in units of the singular values.
        kind: `matrix`, or `features`: κ of the probe's Hessian `XᵀX` of the feature matrix `X`, by the
            singular values of X.

    Returns:
        κ with the evidence.

    Raises:
        InvalidInputError: Not two-dimensional, non-finite entries, bad `rtol` or `ridge`.
        RankError: The matrix is zero, so that κ is undefined.
        UnknownNameError: Unknown convention or kind.

    Examples:
        >>> import numpy as np
        >>> condition_number(np.diag([4.0, 2.0, 0.0])).value
        2.0
        >>> condition_number(np.diag([4.0, 2.0, 0.0]), convention="ridge", ridge=1.0).value
        5.0
        >>> condition_number(np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), kind="features").value
        9.0
    """
    M = as_tensor(matrix, "matrix", ndim=2).detach()
    eps = storage_eps(matrix)
    dimension = M.shape[1] if kind == "features" else min(M.shape)
    sigma = singular_values(M, kind=kind, eps=eps)
    default = default_rtol(max(M.shape), eps)
    if kind == "features":
        default = min(default_rtol(dimension, eps) ** 2, features_rtol(matrix))
    numbers = condition_from_spectrum(
        sigma, convention=convention, rtol=checked_rtol(rtol, default), ridge=ridge, dimension=dimension
    )
    value, sigma_max, sigma_min, rank = (number.item() for number in numbers)
    return ConditionNumber(value, sigma_max, sigma_min, int(rank), dimension, convention)


def condition_from_spectrum(
    sigma: Tensor, *, convention: Convention, rtol: float, ridge: float, dimension: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `(κ, σ_max, σ_min, rank)` of descending singular values `(n,)`, each `()`."""
    check_known("convention", convention, ("compact", "ridge"))
    rtol = checked_rtol(rtol, 0.0)
    sigma_max = sigma[0]
    rank = (sigma > rtol * sigma_max).sum()
    if int(rank) == 0:
        raise RankError(
            "a matrix has rank 0 (all singular values are zero): its condition number is undefined; "
            "check that the features are not all constant zero."
        )
    if convention == "compact":
        sigma_min = sigma[rank - 1]
        return sigma_max / sigma_min, sigma_max, sigma_min, rank
    if not (ridge > 0 and ridge < float("inf")):
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
    sigma_min = sigma[-1] if int(rank) == dimension else torch.zeros_like(sigma_max)
    return (sigma_max + ridge) / (sigma_min + ridge), sigma_max, sigma_min, rank
