"""Tables of the linear experiments: the paper's, the limits, attackers."""

import numpy as np
import pandas as pd

from condnum.page.tables import (
    GAP,
    RATIO_TITLES,
    Column,
    count_of,
    in_brackets,
    lines,
    number,
    published,
    shown,
    span,
    spans,
    times,
    with_spread,
)

#: Convention and scale of θ in words, those of the published numbers first.
MEASURES = {
    ("ridge", "as_trained"): "ridge, θ as trained",
    ("ridge", "unit"): "ridge, θ at unit scale",
    ("compact", "unit"): "compact",
}


def immunized(rows: pd.DataFrame) -> Column:
    """Return the column of immunized cells, with those whose benign task is lost where that was measured."""

    def write(rate: float, cells: int, lost: float = 0.0) -> str:
        met = count_of(rate * cells, cells)
        return f"{met}<br>{in_brackets(f'benign task lost: {round(lost * cells)}')}" if lost else met

    return f"success_rate cells{' lost_rate' * ('lost_rate' in rows)}", write


def comparison_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format every convention of a summary: the verdict, the ratios, the theoretical limit.

    The published ratios stand below those in their own convention.
    """
    measure = pd.Series(zip(summary["convention"], summary["theta_scale"], strict=True), summary.index)
    rows = summary.assign(κ=measure.map(MEASURES), cells=summary["seeds"] * summary.get("pairs", 1))
    rows = rows.sort_values("κ", kind="stable", key=lambda names: names.map([*MEASURES.values()].index))
    theirs = rows["κ"] == next(iter(MEASURES.values()))
    columns: dict[str, Column] = {"κ": "κ", "method": "method", "immunized": immunized(rows)}
    if "benign_slowdown" in rows:
        columns |= {
            "benign steps ↓": ("benign_slowdown", times),
            "harmful steps ↑": ("harmful_slowdown", times),
        }
    for name, title in RATIO_TITLES.items():
        of = f"published_{name}"
        rows[of] = rows[of].where(theirs)
        columns |= lines(title, ("", with_spread(name)), *[published(name)] * bool(rows[of].notna().any()))
    if np.isfinite(rows["rir_limit"]).any():
        columns |= lines("RIR / limit", ("", "rir_share"), ("(limit)", ("rir_limit", in_brackets)))
    return shown(rows, columns)


def linear_evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what a ratio rests on: ranks, κ(θ), the loss gap of clause (c), steps and seconds."""
    return spans(
        results[results["convention"] == "compact"],
        ["method"],
        {
            "method": "method", "rank H_P": "rank_benign", "rank H_H": "rank_harmful",
            "κ(θ)": "theta_condition", "loss gap, clause (c)": "loss_gap", "limit of RIR": "rir_limit",
            "steps": "steps", "seconds a seed": "seconds", "stopped by": "stop_reason",
        },
    )  # fmt: skip


# How much is possible.

_PAIR: dict[str, Column] = {
    "pair": ("benign_task harmful_task", lambda P, H: f"{P}{GAP}→{GAP}{H}".replace("digit ", ""))
}


def limits_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format (i), (ii), RIR and its fraction of the limit at one ε, a row per pair × method."""

    def share(mean: float, least: float, most: float) -> str:
        ends = span([least, most], " – ")
        return number(mean) + (f" ({ends})" if "–" in ends else "")

    columns: dict[str, Column] = {"method": "method", "immunized": ("immunized seeds", count_of)}
    columns |= {title: name for name, title in RATIO_TITLES.items()}
    within = ("", ("rir_share rir_share_min rir_share_max", share))
    columns |= lines("RIR / limit", within, ("(limit)", ("rir_limit", in_brackets)))
    table = shown(summary, _PAIR | columns)
    return table.drop(columns="pair") if table["pair"].nunique() == 1 else table


def null_table(spaces: pd.DataFrame) -> pd.DataFrame:
    """Format what each task has and the other lacks, a row per pair."""
    columns: dict[str, Column] = {
        "D": "dimension", "rank K_P": "rank_benign", "rank K_H": "rank_harmful", "null in both": "common"
    }  # fmt: skip
    for title, name, energy in (
        ("null(K_P) excited by D_H", "harmful_only", "harmful_energy"),
        ("null(K_P) ∩ range(K_H)", "intersection", "intersection_energy"),
        ("null(K_H) excited by D_P", "benign_only", "benign_energy"),
    ):
        columns |= lines(title, ("", name), ("(energy)", (energy, in_brackets)))
    return shown(spaces, _PAIR | columns)
