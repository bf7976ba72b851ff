"""Tables of the experiment on limits."""

import pandas as pd

from condnum.report.tables import GAP, Column, count_of, in_brackets, label, lines, number, rows_of, span


def _pair(pretrain: str, harmful: str) -> str:
    """Name a pair of tasks."""
    return f"{pretrain}{GAP}→{GAP}{harmful}".replace("digit ", "")


def _share(share: float, least: float, most: float) -> str:
    """Format a fraction of the ceiling, with its range over seeds if that can be seen."""
    spread = span([least, most], " – ")
    return number(share) + (f" ({spread})" if "–" in spread else "")


_PAIR: dict[str, Column] = {"pair": ("pretrain_task harmful_task", _pair)}

_SUMMARY: dict[str, Column] = {
    "method": ("method", label),
    "immunized": ("immunized seeds", count_of),
    "(i) ↑": ("harmful_ratio", number),
    "(ii) ↓": ("pretrain_ratio", number),
    "RIR ↑": ("rir", number),
    **lines(
        "RIR / ceiling",
        ("", ("rir_share rir_share_min rir_share_max", _share)),
        ("(ceiling)", ("rir_ceiling", in_brackets)),
    ),
}


def limits_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format (i), (ii), RIR and its fraction of the ceiling at one ε, a row per pair × method."""
    table = rows_of(summary, _PAIR | _SUMMARY)
    return table.drop(columns="pair") if table["pair"].nunique() == 1 else table


def null_table(spaces: pd.DataFrame) -> pd.DataFrame:
    """Format what each task has and the other lacks, a row per pair."""

    def count(name: str, energy: str) -> tuple[tuple[str, Column], tuple[str, Column]]:
        return ("", (name, str)), ("(energy)", (energy, in_brackets))

    columns: dict[str, Column] = {
        "D": ("dimension", str),
        "rank K_P": ("rank_pretrain", str),
        "rank K_H": ("rank_harmful", str),
        "null in both": ("common", str),
        **lines("null(K_P) excited by D_H", *count("harmful_only", "harmful_energy")),
        **lines("null(K_P) ∩ range(K_H)", *count("intersection", "intersection_energy")),
        **lines("null(K_H) excited by D_P", *count("pretrain_only", "pretrain_energy")),
    }
    return rows_of(spaces, _PAIR | columns)
