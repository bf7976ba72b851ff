"""What a linear map of a net's features does to a head on D_H: `pareto` and erasure beside θ₀'s features.

Rows of D_H are cut in three: the defender's, the attacker's, and those on which both are scored. The attacker
solves for a head (ridge regression) or compares with neighbors, on rows of their own or on the defender's.
"""

import time
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.deep.images import hold_out_rows, rows_per_class
from condnum.estimators import Eraser, Immunizer
from condnum.progress import report_event

Rows: TypeAlias = NDArray[np.floating]
Labels: TypeAlias = NDArray[np.int64]

#: Rows of a task that are used at most: neighbors are compared with all of them.
_MOST_ROWS = 12_000
#: Penalties of ridge regression in units of the mean eigenvalue, chosen by leaving one out.
_PENALTIES = np.geomspace(1e-6, 1.0, 7)


def linear_defenses(
    X_P: Rows,
    y_P: Labels,
    X_H: Rows,
    y_H: Labels,
    *,
    seed: int = 0,
    per_class: tuple[int, ...] = (4, 0),
    judged: float = 0.4,
    attacker: float = 0.5,
) -> pd.DataFrame:
    """Return a row per defense and rows per class, with accuracies from 0 to 1.

    Of each class, the fraction `judged` scores, and `attacker` of the rest is the attacker's; of their rows,
    defender and attacker have at most `per_class` (0: all).
    """
    (X_P, y_P), (X_H, y_H) = _some(X_P, y_P, seed), _some(X_H, y_H, seed)
    rest, judge = hold_out_rows(y_H, [seed, 20], judged)
    parts = [rest[part] for part in hold_out_rows(y_H[rest], [seed, 21], attacker)]
    train, test = hold_out_rows(y_P, [seed, 22], judged)
    found = []
    for count in per_class:
        own, other = (part[rows_per_class(y_H[part], count or None, seed)] for part in parts)
        shuffled = np.random.default_rng([seed, 23]).permutation(y_H[own])
        defenses: dict[str, Eraser | Immunizer | None] = {
            "features of θ₀": None,
            "pareto": Immunizer("pareto"),
            "erase, shuffled labels": Eraser(),
            "erase": Eraser(),
        }
        for name, made in defenses.items():
            report_event(stage=f"linear defenses: {name}", seed=seed)
            started = time.perf_counter()
            if isinstance(made, Immunizer):
                made.fit(X_P[train], X_H[own])
            elif made is not None:
                made.fit(X_H[own], shuffled if "shuffled" in name else y_H[own])
            seconds = time.perf_counter() - started
            P, H = (X if made is None else made.transform(X) for X in (X_P, X_H))
            scores = H[judge], y_H[judge]
            row = {
                "defense": name,
                "rows_per_class": len(own) / len(np.unique(y_H)),
                "ridge_own_rows": _ridge(H[own], y_H[own], *scores),
                "ridge_fresh_rows": _ridge(H[other], y_H[other], *scores),
                "neighbors_fresh_rows": _neighbors(H[other], y_H[other], *scores),
                "benign_ridge": _ridge(P[train], y_P[train], P[test], y_P[test]),
                "chance_harmful": float(np.bincount(y_H[judge]).max() / len(judge)),
                "linear_rir": made.verdict_.rir if isinstance(made, Immunizer) else np.nan,
                "seconds": seconds,
            }
            found.append(row)
    return pd.DataFrame(found)


def _some(X: Rows, y: Labels, seed: int) -> tuple[Rows, Labels]:
    """Return as many rows of each class as `_MOST_ROWS` allows."""
    kept = rows_per_class(y, max(5, _MOST_ROWS // len(np.unique(y))), seed)
    return X[kept], y[kept]


def _ridge(X: Rows, y: Labels, Z: Rows, z: Labels) -> float:
    """Return the accuracy of ridge regression on one-hot labels, with intercept."""
    from sklearn.linear_model import RidgeClassifierCV

    X, Z = np.asarray(X, np.float64), np.asarray(Z, np.float64)
    spread = float(((X - X.mean(axis=0)) ** 2).sum() / X.shape[1]) or 1.0
    return float(RidgeClassifierCV(alphas=_PENALTIES * spread).fit(X, y).score(Z, z))


def _neighbors(X: Rows, y: Labels, Z: Rows, z: Labels) -> float:
    """Return the accuracy of the nearest neighbor, by cosine."""
    from sklearn.neighbors import KNeighborsClassifier

    return float(KNeighborsClassifier(1, metric="cosine").fit(X, y).score(Z, z))
