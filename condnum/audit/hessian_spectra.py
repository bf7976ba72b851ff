r"""Spectra of both tasks' Hessians at every extractor, from the two covariances alone.

Everything that an audit says of κ is read off these, so that one decomposition of each covariance serves
all conventions, gauges and sweeps, and a bootstrap replicate is measured exactly as the data are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.audit.extractors import RAW
from condnum.covariance_range import CovarianceRange
from condnum.immunization import Gauge, HessianSpectra, unit_gauge
from condnum.spectra import default_rtol, hessian_spectrum

Extractors = Mapping[str, NDArray[np.float64] | None]


def covariance_rtol(dimension: int, stored_eps: float) -> float:
    r"""Return the relative rank tolerance of `K = XᵀX` for features that were stored with a round-off.

    Entries rounded to a relative error of `eps/2` move a singular value of X by at most
    :math:`\|E\|_2 \le \|E\|_F \le \tfrac12 eps\,\|X\|_F \le \tfrac12 eps\sqrt D\,s_1` (Weyl), so that D·eps
    is on the safe side; eigenvalues of K are squares, and so is their tolerance. It is never below the
    round-off of the float64 sum, D·2⁻⁵², the default everywhere else. Compare `feature_rtol` of
    `condnum.deep`.

    Examples:
        >>> f"{covariance_rtol(512, 2.0**-23):.1e}", f"{covariance_rtol(512, 2.0**-52):.1e}"
        ('3.7e-09', '1.1e-13')
    """
    return max(default_rtol(dimension, min(stored_eps, 2.0**-23)) ** 2, default_rtol(dimension))


@dataclass(frozen=True, eq=False)
class TaskSpectra:
    """The two covariances' ranges, and the non-zero spectra of H(θ) for each θ in the unit gauge."""

    range_P: CovarianceRange
    range_H: CovarianceRange
    pretrain: Mapping[str, Tensor]  # extractor -> (k,) descending
    harmful: Mapping[str, Tensor]
    dimensions: Mapping[str, int]  # D, or D_hid
    gains: Mapping[str, float]  # ‖θ‖_F²/D: multiplies a spectrum in the unit gauge to that as trained
    rtol: float

    def of(self, extractor: str, baseline: str, gauge: Gauge = "unit") -> HessianSpectra:
        """Return the four spectra that compare an extractor with its baseline."""
        before, after = (1.0, 1.0) if gauge == "unit" else (self.gains[baseline], self.gains[extractor])
        return HessianSpectra(
            self.pretrain[baseline] * before,
            self.pretrain[extractor] * after,
            self.harmful[baseline] * before,
            self.harmful[extractor] * after,
            self.dimensions[baseline],
            self.dimensions[extractor],
        )


def task_spectra(K_P: Tensor, K_H: Tensor, extractors: Extractors, *, rtol: float) -> TaskSpectra:
    """Decompose both covariances and measure every extractor on them.

    Examples:
        >>> K = torch.diag(torch.tensor([4.0, 1.0, 0.0])).double()
        >>> task_spectra(K, K, {"raw": None, "theta": np.diag([0.5, 1.0, 1.0])}, rtol=1e-12).pretrain["raw"]
        tensor([4., 1.], dtype=torch.float64)
    """
    ranges = CovarianceRange.of(K_P, rtol=rtol, name="K_P"), CovarianceRange.of(K_H, rtol=rtol, name="K_H")
    return spectra_on(*ranges, extractors, rtol=rtol)


def spectra_on(
    range_P: CovarianceRange, range_H: CovarianceRange, extractors: Extractors, *, rtol: float
) -> TaskSpectra:
    """Measure every extractor on ranges that are known."""
    D = range_P.dimension
    pretrain, harmful = {RAW: range_P.values}, {RAW: range_H.values}
    dimensions, gains = {RAW: D}, {RAW: 1.0}
    for name, matrix in extractors.items():
        if matrix is None:
            continue
        theta = torch.from_numpy(matrix)
        gains[name] = float(theta.square().sum()) / D
        unit = unit_gauge(theta)
        pretrain[name] = hessian_spectrum(unit, range_P.factor)
        harmful[name] = hessian_spectrum(unit, range_H.factor)
        dimensions[name] = theta.shape[1]
    return TaskSpectra(range_P, range_H, pretrain, harmful, dimensions, gains, rtol)


def cut(part: CovarianceRange, rtol: float) -> CovarianceRange:
    """Return a range at a coarser rank tolerance."""
    kept = part.values > rtol * part.values[0]
    return CovarianceRange(part.values[kept], part.vectors[:, kept])
