"""Whether an extractor was made from the rows it is audited on: it then leaves less than chance does."""

import numpy as np

from condnum.arrays import FloatArray
from condnum.theory.task import rank_tolerance

#: Features that know nothing of these rows' labels correlate as little with them this seldom.
SELDOM = 1e-6


def made_from(features: FloatArray, inputs: FloatArray, targets: FloatArray) -> bool:
    """Return whether features `(N, k)` of inputs `(N, D)` correlate less with targets `(N, m)` than chance.

    A θ made from other rows leaves at least what sampling leaves. Inputs that tell nothing either, such as
    those of a balanced design, are no sign of θ.
    """
    return least_correlation(features, targets) < SELDOM <= least_correlation(inputs, targets)


def least_correlation(features: FloatArray, targets: FloatArray) -> float:
    r"""Return how likely features that know nothing of the targets correlate as little with them.

    With orthonormal bases U and Q of centered features and targets, :math:`T = ‖U^\top Q‖^2` (Pillai's trace)
    is compared to that of rows with random signs (the wild bootstrap), whose moments are those of
    :math:`M = UU^\top ∘ QQ^\top` (Satterthwaite's χ²). No variance has to be the same for all rows.
    """
    from scipy.stats import chi2

    U, Q = _basis(features), _basis(targets)
    M = (U @ U.T) * (Q @ Q.T)
    mean = np.trace(M)
    spread = (M**2).sum() - (np.diagonal(M) ** 2).sum()
    if not spread > 0:
        return 1.0
    freedom = mean**2 / spread
    return float(chi2.cdf(freedom * ((U.T @ Q) ** 2).sum() / mean, freedom))


def _basis(rows: FloatArray) -> FloatArray:
    """Return an orthonormal basis `(N, r)` of the centered columns that a solver reads."""
    centered = rows - rows.mean(axis=0)
    U, s, _ = np.linalg.svd(centered, full_matrices=False)
    return np.asarray(U[:, s > max(rank_tolerance(max(512, *rows.shape)) * s[0], 1e-14 * np.abs(rows).max())])
