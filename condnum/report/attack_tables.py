"""Tables of the attack panel for people: strings, a row per extractor or attacker."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from condnum.probing import AttackReport
from condnum.report.comparison import number


def sentence_list(sentences: Sequence[str]) -> str:
    """Return sentences as an HTML list.

    Examples:
        >>> sentence_list(["κ < 2"])
        '<ul><li>κ &lt; 2</li></ul>'
    """
    return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in sentences)}</ul>"


def extractor_table(report: AttackReport, immunization: pd.DataFrame) -> pd.DataFrame:
    """Format spectra, optima and RIR, a row per extractor."""
    rows = []
    for facts in report.extractors.to_dict("records"):
        row = {
            "extractor": facts["extractor"],
            "κ of the attacker's Hessian": number(facts["kappa"]),
            f"acts like, ε = {100 * report.budget.headline:g} %": number(facts["effective_condition"]),
            "rank": f"{facts['rank']} of {facts['features']}",
            "L₀": number(facts["start_loss"]),
            "L* on its features": number(facts["optimum"]),
            "L* on raw inputs": number(facts["baseline_optimum"]),
        }
        for measured in immunization.to_dict("records"):
            if measured["extractor"] == facts["extractor"]:
                text = f"{number(measured['rir'])} ({number(measured['harmful_ratio'])}, "
                row[f"RIR ((i), (ii)), {measured['convention']}"] = (
                    text + f"{number(measured['pretrain_ratio'])})"
                )
        rows.append(row)
    return pd.DataFrame(rows).fillna("—")


def prediction_table(report: AttackReport) -> pd.DataFrame:
    """Format predicted against observed steps to the headline target, where there are predictions."""
    table = report.at(report.steps, None)
    known = table[table["predicted_kappa"].notna()]
    return pd.DataFrame(
        {
            "attacker": known["label"],
            "extractor": known["extractor"],
            "observed": [_steps(row) for row in known.to_dict("records")],
            "from the spectrum": [_whole(value) for value in known["predicted_spectrum"]],
            "from κ alone": [_whole(value) for value in known["predicted_kappa"]],
        }
    )


def choice_table(report: AttackReport) -> pd.DataFrame:
    """Format the best hyper-parameters, passes and seconds to the headline target."""
    table = report.at(report.steps, None).sort_values("label", kind="stable", key=_order(report))
    return pd.DataFrame(
        {
            "attacker": table["label"],
            "extractor": table["extractor"],
            "choice": table["choice"] + np.where(table["at_edge"], " (edge)", ""),
            "steps": [_steps(row) for row in table.to_dict("records")],
            "passes": [number(float(value)) for value in table["passes"]],
            "seconds": [number(float(f"{value:.2g}")) for value in table["seconds"]],
        }
    )


def _order(report: AttackReport) -> Callable[[pd.Series], pd.Series]:
    """Return a sort key that keeps the panel's order of attackers."""
    place = {label: i for i, label in enumerate(dict.fromkeys(report.steps["label"]))}
    return lambda labels: labels.map(place)


def _steps(row: dict[str, float]) -> str:
    """Return steps as text, `>N` if they did not suffice."""
    return f"{row['steps']:,.0f}" if np.isfinite(row["steps"]) else f">{row['last_step']:,.0f}"


def _whole(value: float) -> str:
    """Return a predicted number of steps as text."""
    return f"{value:,.0f}" if np.isfinite(value) and value < 1e6 else number(float(value))
