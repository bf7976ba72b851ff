"""What an extractor is to an attacker: its spectrum in numbers, and the optima that it allows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from condnum.probing.attackers.attacker import AttackProblem
from condnum.probing.attackers.race import AttackBudget
from condnum.probing.attackers.space import Spectrum

#: Largest eigenvalues that `deflated_condition` leaves out: steps that conjugate gradients may spend on them.
REMOVED = 5


def effective_condition(spectrum: Spectrum, epsilon: float, *, removed: int = 0) -> float:
    """Return `σ_{1+n}/σ_j`, j the first index beyond which at most a share ε of the excess loss lies.

    What κ would be if the attacker could ignore the directions that the target does not need; with n = 0 of
    the order of the steps of gradient descent to ε. Conjugate gradients remove n large eigenvalues in n steps
    (Axelsson 1976) and meet the ratio that is left.

    Args:
        spectrum: σ_i and p_i.
        epsilon: Target.
        removed: n, the largest eigenvalues that do not count.

    Returns:
        Between 1 and κ.

    Examples:
        >>> one = Spectrum(np.array([8.0, 4.0, 1e-9]), np.eye(3), np.eye(3), np.array([0.5, 0.499, 0.001]))
        >>> effective_condition(one, 0.01), effective_condition(one, 0.01, removed=1)
        (2.0, 1.0)
    """
    tail = np.cumsum(spectrum.shares[::-1])[::-1]
    needed = int(np.flatnonzero(tail > epsilon)[-1])
    return float(spectrum.sigma[min(removed, needed)] / spectrum.sigma[needed])


def extractor_facts(
    problems: Mapping[str, AttackProblem], baseline: str, budget: AttackBudget, scale: float
) -> pd.DataFrame:
    """Return a row per extractor: spectrum in numbers, both optima and their evidence."""
    raw = problems[baseline].space.convex_optimum.loss
    rows = []
    for name, problem in problems.items():
        space, S = problem.space, problem.space.spectrum
        rows.append(
            {
                "extractor": name,
                "kappa": S.condition,
                "rank": S.rank,
                "features": space.features.shape[1],
                "rows": len(space.features),
                "effective_condition": effective_condition(S, budget.headline),
                "deflated_condition": effective_condition(S, budget.headline, removed=REMOVED),
                "start_loss": space.objective.start_loss * scale,
                "optimum": space.convex_optimum.loss * scale,
                "baseline_optimum": raw * scale,
                "optimum_error": space.convex_optimum.error * scale,
                "optimum_converged": space.convex_optimum.converged,
            }
        )
    return pd.DataFrame(rows)


def spectrum_rows(name: str, spectrum: Spectrum) -> pd.DataFrame:
    """Return eigenvalues and shares in long form."""
    index = np.arange(1, spectrum.rank + 1)
    return pd.DataFrame(
        {"extractor": name, "index": index, "sigma": spectrum.sigma, "share": spectrum.shares}
    )
