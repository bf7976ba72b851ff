"""Spectra at the ground of everything: covariance, Hessian, singular values, condition numbers.

A condition number needs a stated convention (compact or ridge) and a stated rank; see
`condition_number`. κ(XᵀX) is read from the singular values of X, which keep what forming XᵀX would lose.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal, Self, cast, get_args

import numpy as np
import torch
from torch import Tensor

from condnum.arrays import Array, ArrayLike, as_tensor, extractor_matrix, like, same_columns, storage_eps
from condnum.errors import InvalidInputError, RankError, check_known

Convention = Literal["compact", "ridge"]
MatrixKind = Literal["matrix", "features"]

#: Round-off of float64.
EPS = 2.0**-52

#: The absolute floor of the published linear experiments, kept as the comparable ridge.
PUBLISHED_RIDGE = 1e-6


@dataclass(frozen=True)
class ConditionNumber:
    """A condition number with the evidence for it.

    For a batch every field but `dimension` and `convention` is an array of the batch's shape,
    of the caller's kind (NumPy or torch).
    """

    value: Any  # κ, () or (batch...)
    sigma_max: Any  # σ₁, before the ridge is added
    sigma_min: Any  # compact: σ_k, the smallest kept; ridge: σ_D, 0 when rank-deficient
    rank: Any  # number of σ > rtol·σ₁
    dimension: int  # number of singular values that the matrix could have
    convention: Convention


def covariance(features: ArrayLike) -> Array:
    """Return the data covariance `K = XᵀX`, uncentered and unnormalized as in the paper (Eq. 9).

    Args:
        features: `(..., N, D)` inputs, one row per sample.

    Returns:
        `(..., D, D)`, symmetric, of the caller's kind, float64.

    Raises:
        InvalidInputError: Not at least two-dimensional, empty, non-finite, or too large to be squared.

    Examples:
        >>> covariance([[1.0, 0.0], [1.0, 2.0]])
        array([[2., 2.],
               [2., 4.]])
    """
    X = as_tensor(features, "features", minimum_ndim=2)
    return like(features)(_checked_gram(X.mT @ X, X))


def _checked_gram(gram: Tensor, features: Tensor) -> Tensor:
    """Return products of features, or raise if they leave float64."""
    if not bool(torch.isfinite(gram).all()):
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
        theta: `(..., D, D_hid)` linear feature extractor; features are `Xθ`.
        covariance: `(..., D, D)` data covariance `K = XᵀX`.

    Returns:
        `(..., D_hid, D_hid)`, symmetric, of the kind of `theta`, float64.

    Raises:
        InvalidInputError: The shapes do not fit, entries are non-finite, `covariance` is not a covariance, or
            H would leave float64.

    Examples:
        >>> hessian([[1.0, 1.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 3.0]])
        array([[2., 2.],
               [2., 5.]])
    """
    theta = extractor_matrix(theta)
    T = as_tensor(theta, "theta", minimum_ndim=2)
    K = as_covariance(covariance, "covariance", ndim=None).to(T.device)
    if storage_eps(covariance) > EPS:
        values, vectors = torch.linalg.eigh(K)
        least = default_rtol(K.shape[-1], storage_eps(covariance)) * values[..., -1:]
        K = (vectors * torch.where(values > least, values, 0.0).unsqueeze(-2)) @ vectors.mT
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
            "theta must be (..., D, D_hid) and covariance (..., D, D)."
        ) from error


def as_covariance(value: ArrayLike, name: str, *, ndim: int | None = 2, rtol: float = 0.0) -> Tensor:
    """Return a covariance `(..., D, D)`, exactly symmetric, or raise where it is none beyond round-off."""
    K = as_tensor(value, name, ndim=ndim, minimum_ndim=2)
    D = K.shape[-1]
    if K.shape[-2] != D:
        raise InvalidInputError(f"{name} must be square, got shape {tuple(K.shape)}.")
    eps = storage_eps(value)
    slack = max(4 * rtol, 4 * default_rtol(D, eps), 2 * math.sqrt(D) * eps, 1e-8)
    variances = K.detach().diagonal(dim1=-2, dim2=-1)
    allowed = slack * variances.abs().amax(dim=-1)
    gap = (K - K.mT).detach().abs().amax(dim=(-2, -1))
    if bool((gap > allowed).any()):
        raise InvalidInputError(
            f"{name} must be symmetric, got |K - Kᵀ| up to {float(gap.max()):.3g}; pass a covariance XᵀX."
        )
    K = symmetric_part(K)
    shift = torch.diag_embed((allowed + torch.finfo(K.dtype).tiny)[..., None].expand_as(variances))
    if bool((torch.linalg.cholesky_ex(K.detach() + shift).info > 0).any()):
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
    """Tell whether every matrix is symmetric up to the round-off of a product of three D×D factors."""
    if matrix.shape[-1] != matrix.shape[-2]:
        return False
    scale = matrix.abs().amax(dim=(-2, -1))
    gap = (matrix - matrix.mT).abs().amax(dim=(-2, -1))
    return bool((gap <= 4 * default_rtol(matrix.shape[-1], eps) * scale).all())


def singular_values(matrix: Tensor, *, kind: MatrixKind = "matrix", eps: float = EPS) -> Tensor:
    """Return the singular values, descending, by the cheapest exact route."""
    check_known("matrix kind", kind, get_args(MatrixKind))
    if kind == "features":
        return _checked_gram(graded_singular_values(matrix).square(), matrix)
    if is_symmetric(matrix, eps):
        values = torch.linalg.eigvalsh(symmetric_part(matrix)).abs()
        return values.sort(dim=-1, descending=True).values
    return torch.linalg.svdvals(matrix)


def hessian_spectrum(theta: Tensor, factor: Tensor) -> Tensor:
    """Return the non-zero spectrum of `H(θ) = θᵀBᵀBθ` without forming H.

    Its round-off, `eps·‖K‖‖θ‖²`, could pass for a smallest eigenvalue after immunization.
    """
    return graded_singular_values((factor @ theta).mT) ** 2


def graded_singular_values(matrix: Tensor) -> Tensor:
    """Return σ of `(..., n, m)`, descending, each relative to itself where only the columns' units differ.

    A QR decomposition of the columns from the longest to the shortest keeps the short ones apart (Higham,
    *Accuracy and Stability of Numerical Algorithms*, ch. 19); a plain SVD has the round-off of σ₁ in all.
    """
    order = matrix.abs().amax(dim=-2, keepdim=True).argsort(dim=-1, descending=True)
    return torch.linalg.svdvals(torch.linalg.qr(matrix.take_along_dim(order, dim=-1), mode="r").R)


def storage_noise(dimension: int, eps: float) -> float:
    """Return the round-off in the singular values of a stored well-conditioned θ, relative to θ's own.

    One eps for storing its entries, and √D times a few of the float type that it was computed in.
    """
    return eps + 4 * math.sqrt(dimension) * min(eps, 2.0**-23)


def as_extractor(theta: ArrayLike, name: str = "theta") -> tuple[Tensor, int]:
    """Return θ `(D, D_hid)` and its rank, without directions that its stored precision takes for none.

    A projection that was saved as float32 has singular values of 1e-8 where it had zeros. They are found
    where all rows and columns have equal length, as round-off is relative to each entry.
    """
    theta = extractor_matrix(theta, name)
    T = as_tensor(theta, name, ndim=2).detach()
    equal, lengths = T, []
    for axis in (1, 0):
        length = equal.abs().amax(dim=axis, keepdim=True)
        lengths.append(length)
        equal = equal / torch.where(length > 0, length, 1)
    noise = storage_noise(max(T.shape), storage_eps(theta))
    sigma = torch.linalg.svdvals(equal)
    rank = int((sigma > noise * sigma[0]).sum())
    if 0 < rank < min(T.shape):
        U, sigma, V = torch.linalg.svd(equal, full_matrices=False)
        T = lengths[0] * ((U[:, :rank] * sigma[:rank]) @ V[:rank]) * lengths[1]
    return T, rank


def features_seen(theta: Tensor, vectors: Tensor) -> int:
    """Return how many features of θ `(D, D_hid)` reach a subspace with an orthonormal basis `(D, r)`."""
    length = theta.abs().amax(dim=0)
    sigma = torch.linalg.svdvals(vectors.mT @ (theta / torch.where(length > 0, length, 1)))
    return int((sigma > storage_noise(max(theta.shape), EPS) * sigma[0].clamp_min(1)).sum())


def fit_lost(theta: Tensor, task: "CovarianceRange", moment: Tensor) -> float:
    """Return how much of the best squared fit of targets Y, `‖XX⁺Y‖²`, no linear probe of `Xθ` reaches.

    `moment` is `XᵀY` `(D, m)`. Where θ keeps the rank of K, nothing is lost.
    """
    U = kept_directions(theta, task)
    if U.shape[1] == task.rank:
        return 0.0
    fit = task.whitener.mT @ moment
    return float((fit - U @ (U.mT @ fit)).square().sum())


def kept_directions(theta: Tensor, task: "CovarianceRange") -> Tensor:
    """Return an orthonormal basis of the image of `Bθ`, `(r, k)` with `K = BᵀB`: what `Xθ` keeps of X."""
    U, s, _ = torch.linalg.svd(task.factor @ theta, full_matrices=False)
    return U[:, s > default_rtol(max(theta.shape)) * s[0]]


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


def squared_rtol(dimension: int, eps: float) -> float:
    """Return the rank tolerance of `K = XᵀX`: that of the stored features, squared (Weyl), and that of K."""
    return max(default_rtol(dimension, eps) ** 2, default_rtol(dimension))


def features_rtol(features: ArrayLike) -> float:
    """Return the rank tolerance of `XᵀX` for features `(N, D)`: `squared_rtol`, unless units hide a column.

    Where a column is so short in its units that K's tolerance takes it for zero, the rank is that of the
    columns at equal length, and the tolerance lies below the smallest eigenvalue of so many.
    """
    X = as_tensor(features, "features", ndim=2).detach()
    rtol = squared_rtol(X.shape[1], storage_eps(features))
    sizes = X.abs().amax(dim=0)
    if not bool(((sizes > 0) & (sizes.square() <= math.sqrt(rtol) * sizes.max().square())).any()):
        return rtol  # units that close hide nothing
    equal = singular_values(X / torch.where(sizes > 0, sizes, 1), kind="features")
    squares = singular_values(X, kind="features")
    return min(rtol, float(squares[int((equal > rtol * equal[0]).sum()) - 1] / squares[0]) / 2)


def condition_number(
    matrix: ArrayLike,
    *,
    convention: Convention = "compact",
    rtol: float | None = None,
    ridge: float = PUBLISHED_RIDGE,
    kind: MatrixKind = "matrix",
) -> ConditionNumber:
    r"""Condition number of a matrix or a batch of matrices, in a stated convention.

    * `compact` (Eq. 1, Moore–Penrose): :math:`\kappa = \sigma_1/\sigma_k` over the numerical
      rank `k`, the number of singular values above `rtol·σ₁`.
    * `ridge`: :math:`\kappa_\varepsilon = (\sigma_1+\varepsilon)/(\sigma_D+\varepsilon)` with
      :math:`\sigma_D = 0` when rank-deficient, as for an attacker with weight decay ε.

    Args:
        matrix: `(..., p_r, p_c)`.
        convention: `compact` or `ridge`.
        rtol: Relative rank tolerance of the matrix, or of `XᵀX`; default `max(p_r, p_c)·eps` of the stored
            dtype, for `features` `(D·eps)²`, or what keeps every column of one matrix (`features_rtol`).
        ridge: ε > 0 of the ridge convention, in units of the singular values.
        kind: `matrix`, or `features`: κ of the probe's Hessian `XᵀX` of the feature matrix `X`, by the
            singular values of X.

    Returns:
        The condition number with `sigma_max`, `sigma_min`, `rank` and `dimension`.

    Raises:
        InvalidInputError: Fewer than two dimensions, non-finite entries, bad `rtol` or `ridge`.
        RankError: A matrix of the batch is zero, so that κ is undefined.
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
    M = as_tensor(matrix, "matrix", minimum_ndim=2).detach()
    eps = storage_eps(matrix)
    dimension = M.shape[-1] if kind == "features" else min(M.shape[-2:])
    sigma = singular_values(M, kind=kind, eps=eps)
    default = default_rtol(max(M.shape[-2:]), eps)
    if kind == "features":
        default = default_rtol(dimension, eps) ** 2
        default = min(default, features_rtol(matrix)) if M.ndim == 2 else default
    rtol = checked_rtol(rtol, default)
    value, sigma_max, sigma_min, rank = condition_from_spectrum(
        sigma, convention=convention, rtol=rtol, ridge=ridge, dimension=dimension
    )
    convert = (lambda t: t.item()) if M.ndim == 2 else like(matrix)
    return ConditionNumber(
        convert(value), convert(sigma_max), convert(sigma_min), convert(rank), dimension, convention
    )


def condition_from_spectrum(
    sigma: Tensor, *, convention: Convention, rtol: float, ridge: float, dimension: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `(κ, σ_max, σ_min, rank)` of descending singular values `(..., n)`."""
    check_known("convention", convention, ("compact", "ridge"))
    rtol = checked_rtol(rtol, 0.0)
    sigma_max = sigma[..., 0]
    rank = (sigma > rtol * sigma_max.unsqueeze(-1)).sum(dim=-1)
    if bool((rank == 0).any()):
        raise RankError(
            "a matrix has rank 0 (all singular values are zero): its condition number is undefined; "
            "check that the features are not all constant zero."
        )
    if convention == "compact":
        sigma_min = torch.gather(sigma, -1, (rank - 1).unsqueeze(-1)).squeeze(-1)
        return sigma_max / sigma_min, sigma_max, sigma_min, rank
    if not (ridge > 0 and ridge < float("inf")):
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
    full = rank == dimension
    sigma_min = torch.where(full, sigma[..., -1], torch.zeros_like(sigma_max))
    return (sigma_max + ridge) / (sigma_min + ridge), sigma_max, sigma_min, rank


@dataclass(frozen=True)
class CovarianceRange:
    """Eigenpairs of a covariance above its numerical rank: what every function of condnum means by K."""

    values: Tensor  # (r,) descending, > 0
    vectors: Tensor  # (D, r), orthonormal columns
    rtol: float = 0.0  # relative tolerance below which an eigenvalue counted as zero; 0 for D·2⁻⁵²

    @classmethod
    def of(
        cls, covariance: "ArrayLike | CovarianceRange", *, rtol: float | None = None, name: str = "covariance"
    ) -> Self:
        """Decompose a covariance; default `rtol`: D·eps of its stored dtype. A range is cut to `rtol`."""
        given = checked_rtol(rtol, 0.0)
        if isinstance(covariance, CovarianceRange):
            if given <= covariance.rtol:
                return cast(Self, covariance)
            kept = covariance.values > given * covariance.values[0]
            return cls(covariance.values[kept], covariance.vectors[:, kept], given)
        K = as_covariance(covariance, name, rtol=given).detach()
        values, vectors = torch.linalg.eigh(K)
        rtol = checked_rtol(rtol, default_rtol(len(K), storage_eps(covariance)))
        vectors = vectors * (K != 0).any(dim=0)[:, None]  # round-off where K has a row of zeros
        kept = values > rtol * values[-1].clamp_min(0)
        if not bool(kept.any()):
            raise RankError(
                f"{name} has rank 0 (no positive eigenvalue): check that the features are not all zero."
            )
        return cls(values[kept].flip(0), vectors[:, kept].flip(1), rtol)

    @classmethod
    def of_features(cls, features: ArrayLike, *, rtol: float | None = None, name: str = "features") -> Self:
        """Decompose `XᵀX` without forming it; default `rtol`: `features_rtol`."""
        X = as_tensor(features, name, ndim=2).detach()
        rtol = features_rtol(features) if rtol is None else checked_rtol(rtol, 0.0)
        order = X.abs().amax(dim=0).argsort(descending=True)  # as in `graded_singular_values`
        _, sigma, rows = torch.linalg.svd(torch.linalg.qr(X[:, order], mode="r").R, full_matrices=False)
        values = _checked_gram(sigma.square(), X)
        kept = values > rtol * values[0]
        if not bool(kept.any()):
            raise RankError(f"{name} are all zero: their covariance has rank 0.")
        return cls(values[kept], torch.empty_like(rows.mT).index_copy_(0, order, rows.mT)[:, kept], rtol)

    def ridged(self, ridge: float) -> Self:
        """Return the range of `K + εI`; what lies below the rank of K counts as exactly zero."""
        if not 0 < ridge < math.inf:
            raise InvalidInputError(f"ridge must be positive and finite, got {ridge}; leave it out for none.")
        null = self.null_basis
        values = torch.cat([self.values + ridge, self.values.new_full((null.shape[1],), ridge)])
        return type(self)(values, torch.cat([self.vectors, null], dim=1), self.rtol)

    def to(self, device: str | torch.device) -> Self:
        """Return the range on a device."""
        if self.values.device == torch.device(device):
            return self
        return replace(self, values=self.values.to(device), vectors=self.vectors.to(device))

    @property
    def tolerance(self) -> float:
        """Relative size below which energy counts as round-off, at least D·2⁻⁵²."""
        return max(self.rtol, default_rtol(self.dimension))

    @property
    def dimension(self) -> int:
        """D, of the space that the covariance lives in."""
        return self.vectors.shape[0]

    @property
    def rank(self) -> int:
        """Number of eigenvalues above the tolerance."""
        return len(self.values)

    @property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)`."""
        return (self.vectors * self.values.sqrt()).mT

    def power(self, exponent: float) -> Tensor:
        """Return `K^s` on range(K), `(D, D)`; with s = −½ it whitens: `K^{-½} K K^{-½}` is the projector."""
        return (self.vectors * self.values**exponent) @ self.vectors.mT

    @property
    def whitener(self) -> Tensor:
        """`W` with `WᵀKW = I`, `(D, r)`: `K^{-½}` in the basis of K's eigenvectors."""
        return self.vectors * self.values.rsqrt()

    @cached_property
    def null_basis(self) -> Tensor:
        """Orthonormal basis of null(K), `(D, D − r)`."""
        return torch.linalg.qr(self.vectors, mode="complete").Q[:, self.rank :]

    @property
    def null_projector(self) -> Tensor:
        """Orthogonal projector on null(K), `(D, D)`."""
        return torch.eye(self.dimension).to(self.vectors) - self.vectors @ self.vectors.mT


def task_ranges(
    pretrain: ArrayLike | CovarianceRange | None,
    harmful: ArrayLike | CovarianceRange | None,
    ridge: float | None = None,
    rtol: float | None = None,
    *,
    pretrain_features: ArrayLike | None = None,
    harmful_features: ArrayLike | None = None,
) -> tuple[CovarianceRange, CovarianceRange]:
    """Return the ranges of two tasks of one input space, by covariances or features, on one device."""
    given = same_columns(
        pretrain_covariance=pretrain,
        harmful_covariance=harmful,
        pretrain_features=pretrain_features,
        harmful_features=harmful_features,
    )
    P, H = (
        _task_range(task, K, X, rtol)
        for task, K, X in zip(("pretrain", "harmful"), given[:2], given[2:], strict=True)
    )
    if P.dimension != H.dimension:
        raise InvalidInputError(
            f"pretrain_covariance {(P.dimension, P.dimension)} and harmful_covariance "
            f"{(H.dimension, H.dimension)} must be of the same shape: both tasks share one input space."
        )
    H = H.to(P.values.device)
    return (P, H) if ridge is None else (P.ridged(ridge), H.ridged(ridge))


def _task_range(task: str, covariance: Any, features: Any, rtol: float | None) -> CovarianceRange:
    """Return the range of a task that is given by its covariance or by its features."""
    if (covariance is None) == (features is None):
        raise InvalidInputError(f"give either {task}_covariance or {task}_features.")
    if features is None:
        known = isinstance(covariance, CovarianceRange)
        shape: tuple[int, ...] = () if known else np.shape(covariance)
        if len(shape) == 2 and shape[0] != shape[1]:
            raise InvalidInputError(
                f"{task}_covariance must be square, got shape {tuple(shape)}; pass rows as {task}_features=."
            )
        return CovarianceRange.of(covariance, rtol=rtol, name=f"{task}_covariance")
    return CovarianceRange.of_features(features, rtol=rtol, name=f"{task}_features")
