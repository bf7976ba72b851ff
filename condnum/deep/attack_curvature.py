"""The curvature that an attacker meets, and the steps that it predicts beside those that the attack took."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.deep.adapters import Attacked
from condnum.deep.attack_kinds import DeepAttacker
from condnum.deep.attack_panel import SCRATCH, draw_of
from condnum.deep.attack_report import DeepAttackReport
from condnum.deep.attack_target import Target
from condnum.deep.gauss_newton import curvature, gradient_spectrum

#: Rows on which curvature is measured, and how many go through the net at a time.
ROWS, _BATCH = 128, 32

#: Fraction of the excess loss that is left after the predicted steps.
_LEFT = 0.1

#: From so many points on a rank correlation is stated.
FEWEST = 6


def attack_curvature(
    target: Target, attacker: DeepAttacker, *, seed: int = 0, rows: int = ROWS
) -> dict[str, Any]:
    """Measure the GGN of the cross entropy where an attack's first repeat begins, in what it trains.

    `predicted_kappa` and `predicted_spectrum` are steps of gradient descent at its best constant rate until a
    tenth of the local model's excess loss is left, by Eq. 2 and by the whole spectrum.
    """
    fit, _ = target.train.chosen_rows(0, seed)
    chosen = np.sort(np.random.default_rng([seed, 6]).permutation(fit)[:rows])
    inputs = target.inputs(attacker.subset, target.train, chosen)
    labels = target.train.labels[torch.from_numpy(chosen)].to(target.device)
    features = target.inputs("head", target.train, chosen)
    model = Attacked(target.theta, attacker, target.train.classes, features, seed=draw_of(seed, 0))
    trained = list(model.trained())
    data = list(zip(inputs.split(_BATCH), labels.split(_BATCH), strict=True))
    found, met = curvature(model, trained, data, seed=seed), gradient_spectrum(model, trained, data)
    names = ("parameters", "rows", "rank_bound", "largest", "smallest", "condition", "floor", "resolved")
    return {
        **{name: getattr(found, name) for name in names},
        "residual_largest": found.residuals[0],
        "residual_smallest": found.residuals[1],
        "iterations": found.iterations,
        "gradient_condition": met.condition,
        "gradient_iterations": met.iterations,
        "excess": met.excess,
        "predicted_kappa": met.kappa_steps(_LEFT),
        "predicted_spectrum": met.steps(_LEFT),
    }


def predicted_beside_observed(
    report: DeepAttackReport, curvatures: pd.DataFrame, fraction: float = 0.8
) -> pd.DataFrame:
    """Set the steps that curvatures on D_H predict beside the steps of the attacks with most examples.

    `observed` is the geometric mean over repeats; one that misses the goal counts as the budget.
    """
    known = curvatures.set_index(["backbone", "net", "part", "seed"])
    found = []
    for place in report.runs:
        attacker = DeepAttacker.named(place.attacker)
        key = (place.backbone, place.net, part_of(attacker), place.seed)
        if place.shots != report.most or key not in known.index or not attacker.predictable:
            continue
        steps = report.needs(place, fraction)
        observed = np.exp(np.log(np.where(np.isnan(steps), report.budget.steps, steps)).mean())
        found.append(
            {
                **place._asdict(),
                "part": key[2],
                "optimizer": attacker.optimizer,
                **{name: known.at[key, name] for name in ("predicted_kappa", "predicted_spectrum")},
                "observed": observed,
                "reached": not np.isnan(steps).any(),
            }
        )
    return pd.DataFrame(found)


def part_of(attacker: DeepAttacker) -> str:
    """Return what an attacker trains: `head`, `lora4`, `stage`, `all`."""
    return f"{attacker.subset}{attacker.rank or ''}"


def correlations(beside: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's rank correlation of predicted and observed steps, by net, part and optimizer.

    Within θ₀ and within each θ_I: over both together the mere label would order the attacks. Nets from
    scratch are left out: κ speaks of the way to an optimum, not of what the optimum is worth.

    Examples:
        >>> points = {"net": "ours", "part": "head", "optimizer": "sgd", "observed": range(6)}
        >>> points |= {"predicted_kappa": [1, 2, 3, 4, 5, 6], "predicted_spectrum": [6, 5, 4, 3, 2, 1]}
        >>> correlations(pd.DataFrame(points))["rho_spectrum"].tolist()
        [-1.0]
    """
    from scipy.stats import spearmanr

    names, rows = ["net", "part", "optimizer"], []
    for key, own in beside[beside["net"] != SCRATCH].groupby(names, sort=False):
        rhos = [math.nan, math.nan]
        if len(own) >= FEWEST and own["observed"].nunique() > 1:
            pairs = (own["predicted_kappa"], own["predicted_spectrum"])
            rhos = [float(spearmanr(one, own["observed"]).statistic) for one in pairs]
        rows.append((*key, len(own), *rhos))
    return pd.DataFrame(rows, columns=[*names, "attacks", "rho_kappa", "rho_spectrum"])
