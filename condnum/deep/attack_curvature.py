"""The curvature that an attacker meets, and the steps that it predicts beside those that the attack took."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.deep.attack_panel import SCRATCH, DeepAttacker, Target, chosen_rows, draw_of
from condnum.deep.attack_report import DeepAttackReport, first_reached
from condnum.deep.gauss_newton import curvature, gradient_spectrum

#: Rows on which curvature is measured, and how many go through the net at a time.
ROWS, _BATCH = 128, 32

#: Share of the excess loss whose steps are predicted.
LEFT = 0.1

#: From so many points on a rank correlation is stated.
FEWEST = 6


def attack_curvature(
    target: Target, attacker: DeepAttacker, *, seed: int = 0, stream: int = 0, rows: int = ROWS
) -> dict[str, Any]:
    """Measure the GGN of the cross entropy where an attack begins, in the parameters that it trains.

    Args:
        target: The net; of another task its rows of that task.
        attacker: What is trained; the head is drawn as for its attack.
        seed: Of the rows.
        stream: As for `attack`.
        rows: Largest number of rows.

    Returns:
        Extreme eigenvalues, `condition` above the floor (of the curvature, and of the directions that the
        gradient meets), effective rank, and `predicted_kappa`, `predicted_spectrum`: steps of gradient
        descent at its best constant rate until a tenth of the local model's excess loss is left, by Eq. 2
        and by the whole spectrum. Evidence: residuals, iterations, standard errors.
    """
    fit, _ = chosen_rows(target, 0, seed)
    chosen = np.sort(np.random.default_rng([seed, 6]).permutation(fit)[:rows])
    inputs = target.inputs(attacker.subset, target.train, chosen)
    labels = target.train.labels[torch.from_numpy(chosen)].to(target.device)
    features = target.inputs("head", target.train, chosen)
    model = target.attacked(attacker, features, draw_of(seed, stream))
    trained = list(model.trained())
    data = list(zip(inputs.split(_BATCH), labels.split(_BATCH), strict=True))
    found, met = curvature(model, trained, data, seed=seed), gradient_spectrum(model, trained, data)
    return {
        "parameters": found.parameters,
        "rows": found.rows,
        "rank_bound": found.rank_bound,
        "largest": found.largest,
        "smallest": found.smallest,
        "condition": found.condition,
        "floor": found.floor,
        "resolved": found.resolved,
        "trace": found.trace,
        "trace_error": found.trace_error,
        "effective_rank": found.effective_rank,
        "effective_rank_error": found.effective_rank_error,
        "residual_largest": found.residuals[0],
        "residual_smallest": found.residuals[1],
        "iterations": found.iterations,
        "gradient_condition": met.condition,
        "gradient_iterations": met.iterations,
        "excess": met.excess,
        "predicted_kappa": met.kappa_steps(LEFT),
        "predicted_spectrum": met.steps(LEFT),
    }


def predicted_beside_observed(
    report: DeepAttackReport, curvatures: pd.DataFrame, share: float = 0.9
) -> pd.DataFrame:
    """Set the steps that the curvature predicts beside the steps of the attacks with most rows.

    Args:
        report: The attacks.
        curvatures: Rows of `attack_curvature` on D_H with `backbone`, `net`, `part` and `seed`.
        share: Of θ₀'s final accuracy with the same attacker, that counts as arrived.

    Returns:
        A row an attack: `predicted_kappa`, `predicted_spectrum`, `observed` steps, `reached` (else `observed`
        is the budget).
    """
    most = max(report.rows, key=lambda shots: report.rows[shots])
    known = curvatures.set_index(["backbone", "net", "part", "seed"])
    found = []
    for place, run in report.runs.items():
        attacker = DeepAttacker.named(place.attacker)
        start = report.runs.get(place._replace(net="theta_0"))
        key = (place.backbone, place.net, part_of(attacker), place.seed)
        if place.shots != most or key not in known.index or start is None:
            continue
        if attacker.closed_form or attacker.optimizer == "whitened":  # not the curvature that they meet
            continue
        goal = np.array([share * start.accuracy[-1]])
        steps = float(first_reached(run.steps.astype(float), run.accuracy[:, None], goal)[0])
        found.append(
            {
                **place._asdict(),
                "part": key[2],
                "optimizer": attacker.optimizer,
                **{name: known.at[key, name] for name in ("predicted_kappa", "predicted_spectrum")},
                "observed": report.budget.steps if math.isnan(steps) else steps,
                "reached": not math.isnan(steps),
            }
        )
    return pd.DataFrame(found)


def part_of(attacker: DeepAttacker) -> str:
    """Return what an attacker trains: `head`, `lora4`, `stage`, `all`."""
    return f"{attacker.subset}{attacker.rank or ''}"


def correlations(beside: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's rank correlation of predicted and observed steps, by part and optimizer, and of all.

    Nets from scratch are left out: κ speaks of the way to an optimum, not of what the optimum is worth, and
    the blind features of a drawn net may have a small one.

    Examples:
        >>> points = {"net": "ours", "part": "head", "optimizer": "sgd", "observed": range(6)}
        >>> points |= {"predicted_kappa": [1, 2, 3, 4, 5, 6], "predicted_spectrum": [6, 5, 4, 3, 2, 1]}
        >>> correlations(pd.DataFrame(points))["rho_spectrum"].tolist()
        [-1.0, -1.0]
    """
    from scipy.stats import spearmanr

    rows, beside = [], beside[beside["net"] != SCRATCH]
    groups = [*beside.groupby(["part", "optimizer"], sort=False), (("any", "any"), beside)]
    for (part, optimizer), own in groups:
        rhos = [math.nan, math.nan]
        if len(own) >= FEWEST and own["observed"].nunique() > 1:
            pairs = (own["predicted_kappa"], own["predicted_spectrum"])
            rhos = [float(spearmanr(one, own["observed"]).statistic) for one in pairs]
        rows.append((part, optimizer, len(own), *rhos))
    return pd.DataFrame(rows, columns=["part", "optimizer", "attacks", "rho_kappa", "rho_spectrum"])
