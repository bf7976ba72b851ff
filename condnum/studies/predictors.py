"""Which number predicts what an attacker reaches: rank correlations over immunized nets."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from condnum.deep.attacks.report import THETA_0
from condnum.studies.deep_recipes import INITIAL

#: What is known of a net before the attack, by the column of `net_results`; more means better protected.
PREDICTORS: Mapping[str, str] = {
    "rir": "RIR",
    "ridge_rir": "RIR, ridge",
    "harmful_ratio": "(i)",
    "slowdown": "steps of a head",
    "sgrc_1": "SGRC, 1 epoch",
    "sgrc_10": "SGRC, 10 epochs",
    "sgrc_50": "SGRC, 50 epochs",
    "sgrc_convex": "SGRC, solved",
    "distance": "L2 distance",
    "barrier": "mode connectivity",
}
#: The attack itself, one repeat against another: near 0 where the nets do not differ beyond chance.
REPEATED = "same attack again"

#: Methods below which an interval over methods says nothing.
FEWEST = 4
_DRAWS = 500
_LEVEL = 0.95
_NET = ["backbone", "seed", "net"]


def rank_correlations(models: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's ρ between predictors of `net_results` and the accuracy that each attacker loses.

    The loss is `M(θ₀) − M(θ_I)` at the end of the attack, of the same seed; ranks are taken within each
    backbone. A row for each attacker, examples per class and predictor: `rho`, the ends `low` and `high` of a
    95 % bootstrap interval over methods, whose nets of several seeds are drawn together, ρ with one method
    left out, at `least` and at `most`, and the numbers of `nets` and `methods`. NaN where a predictor is the
    same for all nets; no interval below `FEWEST` methods. `REPEATED` is the control: the loss in one repeat
    against that in another.
    """
    known = _known(models)
    ends = curves[curves["step"] == curves.groupby([*_NET, "attacker", "shots"])["step"].transform("max")]
    rows: list[dict[str, Any]] = []
    for where, loss in _losses(ends):
        repeats = loss.columns.size
        table = known.join(loss.mean(axis=1).rename("loss"), how="inner").reset_index()
        if repeats > 1:
            table = table.merge(loss.iloc[:, :2].set_axis([REPEATED, "other"], axis=1).reset_index())
        for name in PREDICTORS:
            rows.append(where | {"predictor": PREDICTORS[name]} | _correlation(table, name, "loss"))
        if repeats > 1:
            rows.append(where | {"predictor": REPEATED} | _correlation(table, REPEATED, "other"))
    return pd.DataFrame(rows)


def _known(models: pd.DataFrame) -> pd.DataFrame:
    """Return the predictors of each net, by backbone, seed and method."""
    by = models[models["method"] != INITIAL].rename(columns={"method": "net"}).set_index(_NET)
    compact, ridge = (by[by["convention"] == name] for name in ("compact", "ridge"))
    return compact.assign(ridge_rir=ridge["rir"])[[*PREDICTORS]]


def _losses(ends: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return for each attacker `M(θ₀) − M(θ_I)` of each net, a column for each repeat."""
    found = []
    for (attacker, shots), part in ends.groupby(["attacker", "shots"], sort=False):
        wide = part.pivot_table(index=_NET, columns="repeat", values="accuracy")
        start = wide[wide.index.get_level_values("net") == THETA_0].droplevel("net")
        loss = start.reindex(wide.index.droplevel("net")).set_axis(wide.index) - wide
        found.append(({"attacker": attacker, "shots": shots}, loss.dropna()))  # where θ₀'s attack failed
    return found


def _correlation(table: pd.DataFrame, predictor: str, outcome: str) -> dict[str, Any]:
    """Return ρ of two columns with its interval, and with one method left out; ∞ is a rank like others."""
    table = table.dropna(subset=[predictor, outcome])
    methods, which = np.unique(table["net"].to_numpy(dtype=str), return_inverse=True)
    backbones = np.unique(table["backbone"].to_numpy(dtype=str), return_inverse=True)[1]
    pair = table[[predictor, outcome]].to_numpy(dtype=float)
    rho = spearman(pair, backbones)
    low = high = least = most = np.nan
    if len(methods) >= FEWEST and np.isfinite(rho):
        rng, own = np.random.default_rng(0), [np.flatnonzero(which == k) for k in range(len(methods))]
        drawn = [
            np.concatenate([own[k] for k in rng.integers(len(methods), size=len(methods))])
            for _ in range(_DRAWS)
        ]
        all_rho = np.array([spearman(pair[rows], backbones[rows]) for rows in drawn])
        low, high = np.nanquantile(all_rho, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        others = [spearman(pair[which != k], backbones[which != k]) for k in range(len(methods))]
        least, most = np.nanmin(others), np.nanmax(others)
    found = {"rho": rho, "low": low, "high": high, "least": least, "most": most}
    counts = {"nets": len(table), "methods": len(methods)}
    return {name: float(value) for name, value in found.items()} | counts


def spearman(pair: NDArray[np.float64], groups: Sequence[int] | NDArray[np.int64]) -> float:
    """Return Spearman's ρ of the columns of `pair` `(n, 2)`, whose ranks are taken within groups `(n,)`.

    NaN where a column is constant in every group.

    Examples:
        >>> x = np.array([[1.0, 10], [2, 20], [3, 30], [9, 5], [8, 4], [7, 3]])
        >>> round(spearman(x, [0, 0, 0, 1, 1, 1]), 3)
        1.0
    """
    centered = np.zeros_like(pair)
    for group in np.unique(groups):
        rows = np.flatnonzero(np.asarray(groups) == group)
        ranks = rankdata(pair[rows], axis=0)
        centered[rows] = (ranks - ranks.mean(axis=0)) / len(rows)
    spread = np.sqrt((centered**2).sum(axis=0))
    return float(centered[:, 0] @ centered[:, 1] / spread.prod()) if spread.all() else np.nan
