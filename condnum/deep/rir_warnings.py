"""What a reader of RIR_θ0 has to know about the sample behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

#: σ_k below this multiple of the round-off that the features carry is at the mercy of it.
NOISE_MARGIN = 10.0
#: σ_k below this multiple of the rank tolerance might as well not have counted.
FRAGILE = 10.0


def rir_warnings(
    sigma: Sequence[Tensor],
    sigma_min: NDArray[np.float64],
    dimensions: Sequence[int],
    group_size: int,
    eps: float,
    rtols: Sequence[float],
    overlap: Sequence[str],
) -> list[str]:
    """Return plain sentences about group size, overlap, round-off and rank.

    Round-off `eps` in N×D features of mean square m adds a random matrix whose spectral norm is about
    `eps·√m·(√N + √D)`; a singular value of X̃ near that is not known.
    """
    found = []
    widest = max(dimensions)
    if group_size < widest:
        found.append(
            f"each group has N = {group_size} samples of D = {widest} features: the Hessian's rank is at "
            f"most {group_size}, so κ is that of the sample, not of the task, and the ridge convention sees "
            "σ_D = 0."
        )
    found += [
        f"{task} has too few images for groups without overlap; the spread is too small." for task in overlap
    ]
    uncertain = sum(
        int((np.sqrt(smallest) < NOISE_MARGIN * _noise(s, d, group_size, eps)).sum())
        for s, smallest, d in zip(sigma, sigma_min, dimensions, strict=True)
    )
    if uncertain:
        found.append(
            f"in {uncertain} of {sigma_min.size} spectra the smallest singular value is within "
            f"{NOISE_MARGIN:g} times the round-off of the features (eps = {eps:.1e}): compact κ is not "
            "reliable there; use float32 instead of mixed precision, or the ridge convention."
        )
    near = sum(
        int((smallest < FRAGILE * rtol * s[:, 0].numpy()).sum())
        for s, smallest, rtol in zip(sigma, sigma_min, rtols, strict=True)
    )
    if near:
        found.append(
            f"in {near} of {sigma_min.size} spectra the smallest singular value that counts is within "
            f"{FRAGILE:g} times the rank tolerance, which then decides compact κ: compare the ranks."
        )
    return found


def _noise(sigma: Tensor, dimension: int, group_size: int, eps: float) -> NDArray[np.float64]:
    """Return the spectral norm of the round-off in the features of each group."""
    mean_square = sigma.sum(dim=-1).numpy() / (group_size * dimension)
    return eps * np.sqrt(mean_square) * (math.sqrt(group_size) + math.sqrt(dimension))
