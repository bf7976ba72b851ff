r"""R_well and R_ill of a feature matrix, through the smaller of its two Gram matrices.

The Hessian of the linear probe on features is :math:`\tilde H = \tilde X^\top\tilde X`, `(D, D)` (Eq. 18).
It has the non-zero spectrum of :math:`\tilde X\tilde X^\top`, `(N, N)`, and the regularizers depend on
nothing but the spectrum: so they are taken of the smaller one, and

.. math:: \nabla_{\tilde X}R = 2\tilde X\,\nabla_{\tilde H}R = 2\,(\nabla_{\tilde X\tilde X^\top}R)\,\tilde X

follows by the chain rule. Spectra are float64 whatever the features are, inside autocast too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.arrays import as_tensor
from condnum.deep.preconditioned_identity import smaller_gram
from condnum.errors import InvalidInputError
from condnum.regularizers import r_ill, r_well
from condnum.spectra import default_rtol


def feature_r_well(features: Tensor, *, dimension: int | None = None) -> Tensor:
    r"""R_well of the probe's Hessian (Eq. 3): what lowers κ on the pre-training task.

    .. math:: R_{well}(\tilde H) = \tfrac12\sigma_1^2 - \frac{1}{2p}\|\tilde H\|_F^2

    Args:
        features: `(N, D)` X̃ of any float dtype.
        dimension: p; default D, the dimension of the Hessian. With N < D its other D − N values are zero, so
            that R_well cannot vanish: `dimension=N` asks for a flat non-zero spectrum only.

    Returns:
        `()` float64, differentiable once.

    Raises:
        InvalidInputError: Not `(N, D)`, non-finite entries, or `dimension` below `min(N, D)`.
        RankError: The features are all zero.

    Examples:
        >>> X = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> feature_r_well(X, dimension=2), feature_r_well(X)  # 81/2 - 82/4, 81/2 - 82/6
        (tensor(20., dtype=torch.float64), tensor(26.8333, dtype=torch.float64))
    """
    X = as_tensor(features, "features", ndim=2)
    value: Tensor = r_well(smaller_gram(X), dimension=X.shape[1] if dimension is None else dimension)
    return value


def feature_r_ill(features: Tensor, *, rank: int | None = None, rtol: float | None = None) -> Tensor:
    r"""R_ill of the probe's Hessian (Eq. 12): what raises κ on the harmful task.

    .. math:: R_{ill}(\tilde H) = \frac{1}{\frac{1}{2k}\|\tilde H\|_F^2 - \frac12\sigma_k^2},
       \quad k = \mathrm{rank}(\tilde X)

    Args:
        features: `(N, D)` X̃ of any float dtype.
        rank: k; default the number of singular values of H̃ above `rtol·σ₁`.
        rtol: Relative tolerance of the rank, of H̃; default `feature_rtol`.

    Returns:
        `()` float64, differentiable once at fixed k; infinite at a flat spectrum, rank 1 included.

    Raises:
        InvalidInputError: Not `(N, D)`, non-finite entries, bad `rank` or `rtol`.
        RankError: The features are all zero; or a backward is asked of an infinite value.

    Examples:
        >>> feature_r_ill(torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))  # 1/(82/4 - 1/2)
        tensor(0.0500, dtype=torch.float64)
    """
    X = as_tensor(features, "features", ndim=2)
    tolerance = feature_rtol(features) if rtol is None else rtol
    value: Tensor = r_ill(smaller_gram(X), rank=rank, rtol=tolerance)
    return value


def feature_rtol(features: Tensor) -> float:
    r"""Return the relative rank tolerance of `H̃ = X̃ᵀX̃` that its features' round-off asks for.

    The rank of H̃ is that of X̃, whose singular values are exact to `max(N, D)·eps·s₁` (NumPy's and MATLAB's
    rule). Those of H̃ are their squares, so the tolerance is squared too; it is never below the
    round-off of the float64 Gram matrix, `min(N, D)·2⁻⁵²`. Taking `D·eps(float32)` of H̃ itself would call
    every κ above 1e4 at D = 768 a lack of rank.

    Half-precision features count as float32: by their own round-off hardly any direction would be left.

    Args:
        features: `(N, D)` of any float dtype.

    Returns:
        The tolerance, relative to σ₁(H̃).

    Raises:
        InvalidInputError: Not two-dimensional or not of a float dtype.

    Examples:
        >>> X = torch.zeros(100, 768)
        >>> f"{feature_rtol(X):.1e}", f"{feature_rtol(X.double()):.1e}"
        ('8.4e-09', '2.2e-14')
    """
    if features.ndim != 2 or not features.is_floating_point():
        raise InvalidInputError(
            f"features must be (N, D) of a float dtype, got {tuple(features.shape)} of {features.dtype}."
        )
    eps = min(torch.finfo(features.dtype).eps, torch.finfo(torch.float32).eps)
    return max(default_rtol(max(features.shape), eps) ** 2, default_rtol(min(features.shape)))
