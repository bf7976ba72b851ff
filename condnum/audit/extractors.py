"""The extractors of an audit: θ from a file, named, and what each is measured against."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.ceiling import optimal_immunizer
from condnum.covariance_range import CovarianceRange
from condnum.data.feature_stream import array_stream, open_feature_stream
from condnum.errors import InvalidInputError, RankError
from condnum.pareto import front_immunizer

#: The features as they are, θ = I.
RAW = "raw"
#: The closed form θ* = K_P^{-1/2}: not the auditor's, but a yardstick.
OPTIMAL = "optimal"
#: The closed form at (ii) just below 1: the same.
FRONT = "front"

#: How each is called in tables.
LABELS = {
    RAW: "features as they are",
    "theta": "θ",
    "theta_0": "θ₀",
    "theta_i": "θ_I",
    OPTIMAL: "θ* (closed form)",
    FRONT: "front (closed form)",
}

#: A matrix, or where to find one.
ThetaLike = str | os.PathLike[str] | NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """An extractor and its yardstick: κ after over κ before."""

    extractor: str
    baseline: str

    @property
    def label(self) -> str:
        """Both in words; the raw features go without saying.

        Examples:
            >>> Comparison("theta_i", "theta_0").label, Comparison("theta", "raw").label
            ('θ_I against θ₀', 'θ')
        """
        own = LABELS[self.extractor]
        return own if self.baseline == RAW else f"{own} against {LABELS[self.baseline]}"


def read_theta(value: ThetaLike, dimension: int, *, name: str = "theta") -> NDArray[np.float64]:
    """Read a linear feature extractor and check that it fits.

    Examples:
        >>> read_theta(np.eye(2, dtype=np.float32), 2).dtype
        dtype('float64')
    """
    if isinstance(value, str | os.PathLike):
        stream = open_feature_stream(value)
    else:
        stream = array_stream(np.asarray(value), name=name)
    with np.errstate(all="ignore"):  # numbers beyond float64 become infinite, which is refused below
        blocks = [np.asarray(block, dtype=np.float64) for block in stream.blocks()]
    if not blocks:
        raise InvalidInputError(f"{name} ({stream.source}) has no rows; it is cut off, or was never filled.")
    theta = np.concatenate(blocks)
    if not np.isfinite(theta).all():
        raise InvalidInputError(
            f"{name} ({stream.source}) has NaN or infinite entries; it cannot be measured."
        )
    if len(theta) != dimension:
        hint = "; it looks transposed: save θ.T" if theta.shape[1] == dimension else ""
        raise InvalidInputError(
            f"{name} has shape {theta.shape}, but the features have D = {dimension} columns: θ must be "
            f"(D, D_hid), the features of an attacker are Xθ{hint}."
        )
    if not theta.any():
        raise RankError(f"{name} is the zero matrix: it extracts nothing and has no condition number.")
    return theta


def read_extractors(
    theta: ThetaLike | None, theta_0: ThetaLike | None, theta_i: ThetaLike | None, dimension: int
) -> dict[str, NDArray[np.float64]]:
    """Read the extractors that were given."""
    pair = (theta_0 is not None, theta_i is not None)
    if theta is not None and any(pair):
        raise InvalidInputError("theta excludes theta_0 and theta_i; give either one extractor or the pair.")
    if any(pair) and not all(pair):
        missing, given = ("theta_i", "theta_0") if pair[0] else ("theta_0", "theta_i")
        raise InvalidInputError(
            f"{given} was given without {missing}: the pair is compared; a single extractor is called theta."
        )
    given_values = {"theta": theta, "theta_0": theta_0, "theta_i": theta_i}
    return {
        name: read_theta(value, dimension, name=name)
        for name, value in given_values.items()
        if value is not None
    }


def with_yardsticks(
    extractors: Mapping[str, NDArray[np.float64]],
    K_P: NDArray[np.float64],
    K_H: NDArray[np.float64],
    *,
    rtol: float,
) -> dict[str, NDArray[np.float64] | None]:
    """Put the features as they are in front, and the two closed forms behind."""
    optimal = np.asarray(optimal_immunizer(K_P, K_H, rtol=rtol))
    P, H = (CovarianceRange.of(torch.as_tensor(K), rtol=rtol) for K in (K_P, K_H))
    return {RAW: None, **extractors, OPTIMAL: optimal, FRONT: np.asarray(front_immunizer(P, H))}


def comparisons(names: Mapping[str, Any]) -> list[Comparison]:
    """List what is compared with what.

    Examples:
        >>> [c.label for c in comparisons({"raw": 0, "theta": 1, "optimal": 2})]
        ['θ', 'θ* (closed form)']
    """
    pair = [Comparison("theta_i", "theta_0")] if "theta_i" in names else []
    order = [name for name in ("theta_i", "theta_0", "theta", OPTIMAL, FRONT) if name in names]
    return pair + [Comparison(name, RAW) for name in order]
