"""The answer of every gradient function: the gradient with the evidence it rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from condnum.arrays import ArrayLike, like


@dataclass(frozen=True)
class RegularizerGradient:
    """Value and closed-form gradient of a regularizer, and whether it is one.

    For one matrix every field but `gradient` is a Python scalar; for a batch it is an array of
    the batch's shape. Arrays are float64 and of the caller's kind (NumPy or torch).
    """

    value: Any  # R, () or (batch...)
    gradient: Any  # the shape of the matrix (or of θ) that it is taken in
    differentiable: Any  # False: the extreme singular value is repeated, `gradient` is a subgradient
    gap: Any  # well: (σ₁−σ₂)/σ₁; ill: (σ_{k−1}−σ_k)/σ₁; inf without a neighbour
    sigma: Any  # the extreme singular value: well σ₁, ill σ_k
    rank: Any  # k, the number of σ > rtol·σ₁, or the rank that was asked for
    multiplicity: Any  # how many singular values the subgradient averages over; 1 if differentiable


def hand_back(result: RegularizerGradient, reference: ArrayLike) -> RegularizerGradient:
    """Turn a result of tensors into the caller's kind, with Python scalars for one matrix."""
    convert = like(reference)

    def evidence(tensor: Tensor) -> Any:
        return tensor.item() if tensor.ndim == 0 else convert(tensor)

    return replace(
        result,
        value=evidence(result.value),
        gradient=convert(result.gradient),
        differentiable=evidence(result.differentiable),
        gap=evidence(result.gap),
        sigma=evidence(result.sigma),
        rank=evidence(result.rank),
        multiplicity=evidence(result.multiplicity),
    )
