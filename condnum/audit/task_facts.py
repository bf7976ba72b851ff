"""What an audit says about one task's features before any extractor: size, rank, odd columns, warnings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condnum.audit.moments import SecondMoments
from condnum.data.feature_stream import FeatureStream

#: Columns that agree to this share of their squared length count as equal: seven digits.
SAME = 1e-14
#: An eigenvalue within this factor of the rank tolerance makes the rank a matter of opinion.
NEAR = 100.0


@dataclass(frozen=True, eq=False)
class TaskFacts:
    """One task's features."""

    name: str  # D_P or D_H
    source: str
    rows: int  # N
    dimension: int  # D
    stored_eps: float
    spectrum: NDArray[np.float64]  # (D,) eigenvalues of K, descending; those below 0 by round-off are 0
    rank: int
    near: int  # eigenvalues within a factor `NEAR` of the rank tolerance
    equal_columns: tuple[tuple[str, str], ...]  # pairs (earlier, later), without columns of zeros

    @property
    def warnings(self) -> list[str]:
        """Sentences on what makes the numbers fragile; empty if nothing does."""
        D, notes = self.dimension, []
        if self.rank < D:
            notes.append(
                f"{self.name} has rank {self.rank} of {D}: compact κ leaves {D - self.rank} direction(s) "
                "out, and ridge κ is decided by ε."
            )
        if self.near:
            notes.append(
                f"{self.name}: {self.near} eigenvalue(s) lie within a factor {NEAR:g} of the rank tolerance: "
                "the rank, and with it compact κ, is decided there. See how it moves with the tolerance."
            )
        if self.equal_columns:
            pairs = [f"{first} = {second}" for first, second in self.equal_columns]
            notes.append(
                f"{self.name}: {len(pairs)} column(s) repeat an earlier one to seven digits "
                f"({', '.join(pairs[:5])}{', …' * (len(pairs) > 5)}): each adds a null direction."
            )
        return notes


def task_facts(
    name: str, stream: FeatureStream, moments: SecondMoments, K: NDArray[np.float64], *, rtol: float
) -> TaskFacts:
    """Read what the second moments say about a task's columns and rank.

    Examples:
        >>> from condnum.audit.moments import second_moments
        >>> from condnum.data.feature_stream import array_stream
        >>> X = np.array([[1.0, 5.0, 1.0, 0.0], [2.0, 5.0, 2.0, 0.0], [4.0, 5.0, 4.0, 0.0]])
        >>> stream = array_stream(X)
        >>> moments = second_moments(stream)
        >>> facts = task_facts("D_P", stream, moments, moments.covariance, rtol=1e-15)
        >>> facts.rank, facts.equal_columns
        (2, (('x0', 'x2'),))
    """
    sigma = np.maximum(np.linalg.eigvalsh(K)[::-1], 0.0)
    limit = rtol * sigma[0]
    return TaskFacts(
        name=name,
        source=stream.source,
        rows=moments.rows,
        dimension=stream.dimension,
        stored_eps=stream.stored_eps,
        spectrum=sigma,
        rank=int((sigma > limit).sum()),
        near=int(((sigma > limit / NEAR) & (sigma < limit * NEAR)).sum()),
        equal_columns=tuple((stream.columns[i], stream.columns[j]) for i, j in _equal_pairs(K)),
    )


def _equal_pairs(K: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return pairs i < j with ‖x_i − x_j‖² = K_ii + K_jj − 2K_ij = 0 to round-off, one for each j."""
    squares, pairs = np.diagonal(K), []
    for j in range(1, len(K)):
        if squares[j] == 0:
            continue
        distance = squares[:j] + squares[j] - 2 * K[:j, j]
        same = np.flatnonzero(distance <= 4 * SAME * squares[j])
        if len(same):
            pairs.append((int(same[0]), j))
    return pairs
