"""How the singular vectors of both tasks and of an extractor lie to each other (Proposition 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.audit.hessian_spectra import Extractors
from condnum.errors import RankError
from condnum.singular_alignment import alignment

#: Rows and columns of the map of overlaps; more directions are averaged in blocks.
MAP_SIZE = 64

_COLUMNS = ["extractor", "task", "misalignment", "predicted_kappa", "kappa", "majorised", "ostrowski_holds",
            "u_unique"]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Directions:
    """Overlaps of the tasks' eigenvectors, and Eq. 10 beside the truth for every extractor."""

    overlaps: NDArray[np.float64]  # (m, m) |q_Piᵀq_Hj|², each row's sum 1; blocks summed if D > MAP_SIZE
    dimension: int  # D
    table: pd.DataFrame  # a row per extractor × task


def directions(
    K_P: NDArray[np.float64], K_H: NDArray[np.float64], extractors: Extractors, *, rtol: float
) -> Directions:
    """Measure the overlaps of both tasks, and how far Eq. 10 is from the spectrum of each extractor.

    Examples:
        >>> found = directions(np.diag([3.0, 1.0]), np.diag([1.0, 3.0]), {"theta": np.eye(2)}, rtol=1e-15)
        >>> found.table["task"].tolist()
        ['pretrain', 'harmful']
    """
    D = len(K_P)
    rows = []
    for name, theta in extractors.items():
        if theta is None:
            continue
        for task, K in (("pretrain", K_P), ("harmful", K_H)):
            try:
                found = alignment(theta, K, rtol=rtol)
            except RankError:  # θ leaves this task nothing
                continue
            rows.append((name, task, found.misalignment, found.predicted_condition, found.true_condition,
                         found.majorised, found.ostrowski_holds, found.u_unique))  # fmt: skip
    return Directions(overlap_map(K_P, K_H), D, pd.DataFrame(rows, columns=_COLUMNS))


def overlap_map(K_P: NDArray[np.float64], K_H: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the overlaps :math:`|q_{P,i}^\top q_{H,j}|^2` of both tasks' eigenvectors (Proposition 3.2).

    Examples:
        >>> overlap_map(np.diag([3.0, 1.0]), np.diag([1.0, 3.0])).round(12).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    # Q_P as the U of an invertible θ: adding to the diagonal keeps eigenvectors and their order.
    frame = K_P + np.trace(K_P) / len(K_P) * np.eye(len(K_P))
    return block_sums(np.asarray(alignment(frame, K_H).overlaps))


def block_sums(overlaps: NDArray[np.float64], size: int = MAP_SIZE) -> NDArray[np.float64]:
    """Average rows and sum columns of a doubly stochastic matrix over at most `size` blocks.

    Examples:
        >>> block_sums(np.eye(4), 2)
        array([[1., 0.],
               [0., 1.]])
    """
    D = len(overlaps)
    if size >= D:
        return overlaps
    edges: Sequence[int] = np.linspace(0, D, size + 1).astype(int).tolist()
    summed = np.add.reduceat(np.add.reduceat(overlaps, edges[:-1], axis=0), edges[:-1], axis=1)
    return np.asarray(summed / np.diff(edges)[:, None], dtype=np.float64)
