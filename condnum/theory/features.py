"""R_well and R_ill of the Hessian H̃ = X̃ᵀX̃ of a linear probe on features (Eq. 18).

They depend on nothing but its spectrum, and are taken of the smaller of X̃ᵀX̃ and X̃X̃ᵀ, in float64 whatever
the features are, inside autocast too.
"""

import torch
from torch import Tensor

from condnum.arrays import as_tensor, rank_eps
from condnum.errors import RankError
from condnum.theory.regularizers import r_ill, r_well
from condnum.theory.task import rank_tolerance

#: ε relative to σ₁(X̃ᵀX̃): small, but round-off (eps·σ₁/ε = 2e-10) stays out of the result.
RELATIVE_RIDGE = 1e-6


def precondition_gradient(features: Tensor, *, ridge: float = RELATIVE_RIDGE) -> Tensor:
    r"""Return features `(N, D)` as they are, but precondition their gradient: the dummy layer of Sec. 4.4.

    .. math:: G \mapsto G\,(\tilde X^\top\tilde X + \varepsilon I)^{-1}
       = \tfrac1\varepsilon\big(G - G\tilde X^\top(\tilde X\tilde X^\top + \varepsilon I)^{-1}\tilde X\big)

    The second form (Woodbury) serves where N < D. `ridge` is ε relative to σ₁; the result is float64, so that
    gradients are preconditioned before they are rounded.

    Examples:
        >>> X = torch.eye(2, requires_grad=True)
        >>> precondition_gradient(X, ridge=1.0).sum().backward()
        >>> X.grad
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    values = as_tensor(features, "features", ndim=2)
    X = values.detach()
    S = smaller_gram(X)
    epsilon = ridge * torch.linalg.eigvalsh(S)[-1]
    if not bool(epsilon > 0):
        raise RankError("the features are all zero, without a covariance.")
    factor = torch.linalg.cholesky(S + epsilon * torch.eye(len(S), dtype=S.dtype, device=S.device))

    def precondition(G: Tensor) -> Tensor:
        if len(X) >= X.shape[1]:
            return torch.cholesky_solve(G.mT, factor).mT
        return (G - torch.cholesky_solve(X @ G.mT, factor).mT @ X) / epsilon

    values = values.view_as(values)
    if values.requires_grad:
        values.register_hook(precondition)
    return values


def smaller_gram(samples: Tensor) -> Tensor:
    """Return `X̃X̃ᵀ` where N < D, else `X̃ᵀX̃`: the same non-zero spectrum, `(n, n)` with `n = min(N, D)`."""
    return samples @ samples.mT if samples.shape[0] < samples.shape[1] else samples.mT @ samples


def feature_r_well(features: Tensor) -> Tensor:
    """Return R_well of the probe's Hessian (Eq. 3); with N < D it cannot vanish."""
    X = as_tensor(features, "features", ndim=2)
    value: Tensor = r_well(smaller_gram(X), dimension=X.shape[1])
    return value


def feature_r_ill(features: Tensor, *, rtol: float | None = None) -> Tensor:
    """Return R_ill of the probe's Hessian (Eq. 12) at its rank by `rtol`; infinite at a flat spectrum."""
    tolerance = feature_rtol(features) if rtol is None else rtol
    value: Tensor = r_ill(smaller_gram(as_tensor(features, "features", ndim=2)), rtol=tolerance)
    return value


def feature_rtol(features: Tensor) -> float:
    """Return the rank tolerance of `X̃ᵀX̃`, relative to σ₁, that the features' own round-off asks for."""
    D = features.shape[1]
    return max(rank_tolerance(D, rank_eps(features)) ** 2, rank_tolerance(D))
