r"""R_well and R_ill of a symmetric positive semi-definite H from one extreme eigenpair.

Only :math:`(\sigma_1, v_1)` or :math:`(\sigma_k, v_k)` and :math:`\|H\|_F` enter, so an optimiser
that tracks the pair needs no eigendecomposition. These functions run once a step: they take
torch tensors of any float dtype, validate nothing and never wait for the device. Eigenpairs must
be those of a unique extreme value; `well.py` and `ill.py` handle the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor


def r_well_from_pair(hessian: Tensor, sigma_1: Tensor, dimension: int) -> Tensor:
    r"""Return :math:`\tfrac12\sigma_1^2 - \|H\|_F^2/(2p)` (Eq. 3).

    Args:
        hessian: `(..., D, D)` symmetric positive semi-definite H.
        sigma_1: `(...)` its largest eigenvalue.
        dimension: p, the dimension D of the full Hessian.

    Returns:
        `(...)`.

    Examples:
        >>> r_well_from_pair(torch.diag(torch.tensor([3.0, 1.0])), torch.tensor(3.0), 2)
        tensor(2.)
    """
    return sigma_1.square() / 2 - squared_norm(hessian) / (2 * dimension)


def r_ill_from_pair(hessian: Tensor, sigma_k: Tensor, rank: int | Tensor) -> Tensor:
    r"""Return :math:`1/(\|H\|_F^2/(2k) - \tfrac12\sigma_k^2)` (Eq. 12).

    Args:
        hessian: `(..., D, D)` symmetric positive semi-definite H.
        sigma_k: `(...)` its smallest non-zero eigenvalue.
        rank: k, one for all or `(...)`.

    Returns:
        `(...)`.

    Examples:
        >>> r_ill_from_pair(torch.diag(torch.tensor([3.0, 1.0])), torch.tensor(1.0), 2)
        tensor(0.5000)
    """
    return (squared_norm(hessian) / (2 * rank) - sigma_k.square() / 2).reciprocal()


def well_gradient_from_pair(hessian: Tensor, sigma_1: Tensor, v_1: Tensor, dimension: int) -> Tensor:
    r"""Return :math:`\nabla_H R_{well} = \sigma_1v_1v_1^\top - H/p` (Theorem A.1 (3)).

    Args:
        hessian: `(..., D, D)` symmetric positive semi-definite H.
        sigma_1: `(...)` its largest eigenvalue.
        v_1: `(..., D)` unit eigenvector.
        dimension: p, the dimension D of the full Hessian.

    Returns:
        `(..., D, D)`.

    Examples:
        >>> H = torch.diag(torch.tensor([3.0, 1.0]))
        >>> well_gradient_from_pair(H, torch.tensor(3.0), torch.tensor([1.0, 0.0]), 2)
        tensor([[ 1.5000,  0.0000],
                [ 0.0000, -0.5000]])
    """
    scaled = sigma_1.unsqueeze(-1) * v_1
    return (hessian / -dimension).addcmul_(scaled.unsqueeze(-1), v_1.unsqueeze(-2))


def ill_gradient_from_pair(
    hessian: Tensor, sigma_k: Tensor, v_k: Tensor, rank: int | Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return R_ill and :math:`\nabla_H R_{ill} = (\sigma_kv_kv_k^\top - H/k)\,R_{ill}^2` (Eq. 13).

    Args:
        hessian: `(..., D, D)` symmetric positive semi-definite H.
        sigma_k: `(...)` its smallest non-zero eigenvalue.
        v_k: `(..., D)` unit eigenvector.
        rank: k, one for all or `(...)`.

    Returns:
        `(...)` and `(..., D, D)`: the value comes for free.

    Examples:
        >>> H = torch.diag(torch.tensor([3.0, 1.0]))
        >>> ill_gradient_from_pair(H, torch.tensor(1.0), torch.tensor([0.0, 1.0]), 2)
        (tensor(0.5000), tensor([[-0.3750,  0.0000],
                [ 0.0000,  0.1250]]))
    """
    value = r_ill_from_pair(hessian, sigma_k, rank)
    square = value.square()
    scaled = (square * sigma_k).unsqueeze(-1) * v_k
    G = hessian * (square / -rank)[..., None, None]
    return value, G.addcmul_(scaled.unsqueeze(-1), v_k.unsqueeze(-2))


def squared_norm(matrix: Tensor) -> Tensor:
    """Return `‖A‖_F²` of every matrix of a batch."""
    return torch.linalg.vector_norm(matrix, dim=(-2, -1)).square()
