"""Tables and words of the experiment on limits."""

from __future__ import annotations

from typing import Any

import pandas as pd

from condnum.report.tables import GAP, bullets, count_of, label, number, span

#: Overshoots below this are round-off of κ's up to about 1e10.
ROUND_OFF = 1e-6

#: Nothing is trained in these.
_CONTROLS = ["identity", "initial", "optimal", "front"]


def summary_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format (i), (ii), RIR and its share of the ceiling at one ε, a row per pair × method."""
    rows = []
    for row in summary.to_dict("records"):
        spread = span([row["rir_share_min"], row["rir_share_max"]], " – ")
        rows.append(
            {
                "pair": _pair(row),
                "method": label(row["method"]),
                "(i) ↑": number(row["harmful_ratio"]),
                "(ii) ↓": number(row["pretrain_ratio"]),
                "RIR ↑": number(row["rir"]),
                "ceiling": number(row["rir_ceiling"]),
                "RIR / ceiling": number(row["rir_share"]) + (f" ({spread})" if "–" in spread else ""),
                "immunized": count_of(row["immunized"], row["seeds"]),
            }
        )
    return _without_lone_pair(rows)


def measured_table(results: pd.DataFrame, convention: str, gauge: str) -> pd.DataFrame:
    """Format (i), (ii), RIR and its ceiling on K itself, averaged over seeds, a row per pair × method."""
    chosen = results[(results["convention"] == convention) & (results["gauge"] == gauge)]
    groups = chosen.groupby(["pretrain_task", "harmful_task", "method"], sort=False)
    means = groups[["harmful_ratio", "pretrain_ratio", "rir", "rir_ceiling", "rir_share"]].mean()
    share = means["rir_share"]
    counted = means.assign(
        rir_share_min=share, rir_share_max=share, immunized=groups["success"].sum(), seeds=groups.size()
    )
    return summary_table(counted.reset_index())


def null_table(spaces: pd.DataFrame) -> pd.DataFrame:
    """Format what each task has and the other lacks, a row per pair."""
    return pd.DataFrame(
        [
            {
                "pair": _pair(row),
                "D": str(row["dimension"]),
                "rank K_P": str(row["rank_pretrain"]),
                "rank K_H": str(row["rank_harmful"]),
                "null in both": str(row["common"]),
                "null(K_P) excited by D_H": str(row["harmful_only"]),
                "its share of tr(K_H)": number(row["harmful_energy"]),
                "null(K_P) ∩ range(K_H)": str(row["intersection"]),
                "its share": number(row["intersection_energy"]),
                "null(K_H) excited by D_P": str(row["pretrain_only"]),
                "its share of tr(K_P)": number(row["pretrain_energy"]),
            }
            for row in spaces.to_dict("records")
        ]
    )


def overshoot_table(overshoots: pd.DataFrame) -> pd.DataFrame:
    """Format how far the tried extractors stay below the ceiling, a row per pair × kind."""
    kinds = {
        "family": "family from I to θ*",
        "front": "front θ_s",
        "random": "random",
        "climbed": "pushed by Adam on log RIR",
        "methods": "methods",
        "race": "contestants of the race",
    }
    return _without_lone_pair(
        [
            {
                "pair": _pair(row),
                "extractors": kinds[row["kind"]],
                "how many": str(row["points"]),
                "largest share of the ceiling": f"{row['largest_share']:.9f}",
                "worst overshoot": "0" if row["overshoot"] <= 0 else f"{row['overshoot']:.1e}",
            }
            for row in overshoots.to_dict("records")
        ]
    )


def race_table(race: pd.DataFrame) -> pd.DataFrame:
    """Format the race."""
    return pd.DataFrame(
        [
            {
                "contestant": row["contestant"],
                "steps": "—" if not row["steps"] else f"{row['steps']:,}",
                "seconds of processor": number(row["seconds"]),
                "times faster than Algorithm 1": number(row["times_faster"]),
                "RIR": number(row["rir"]),
                "RIR / ceiling": number(row["rir_share"]),
                "(i)": number(row["harmful_ratio"]),
                "(ii)": number(row["pretrain_ratio"]),
            }
            for row in race.to_dict("records")
        ]
    )


def words(summary: pd.DataFrame, spaces: pd.DataFrame, overshoots: pd.DataFrame, race: pd.DataFrame) -> str:
    """Say what the tables of a run say, from their numbers alone."""
    said = [
        f"<b>Null spaces</b>: {_null_words(spaces)}",
        f"<b>Shares</b> (compact κ of <i>K</i> + εI): {_share_words(summary)}",
        f"<b>The front</b>: {_front_words(overshoots)}",
    ]
    return bullets([*said, _race_words(race)] if len(race) else said)


def _null_words(spaces: pd.DataFrame) -> str:
    """Say for how many pairs the compact ceiling is infinite, and on how much energy that rests."""
    own = spaces[(spaces["harmful_only"] > 0) & (spaces["rank_harmful"] > 1)]
    if own.empty:
        return "every compact ceiling is finite: no harmful task has a direction of its own."
    return (
        f"without a ridge {len(own)} of {len(spaces)} pair{'s' * (len(spaces) > 1)} have no ceiling at all. "
        f"That rests on directions that hold a share of {span(own['harmful_energy'], ' to ')} of the harmful "
        "task's energy. On <i>K</i> + εI every ceiling is finite."
    )


def _share_words(summary: pd.DataFrame) -> str:
    """Say which trained method reaches the largest share, and which meet Definition 3.1."""
    methods = summary.groupby("method", sort=False)
    trained = methods["rir_share"].agg(["min", "max"]).drop(index=_CONTROLS, errors="ignore")
    text = ""
    if len(trained):
        best = trained["max"].idxmax()
        text = (
            f"of the trained methods {label(best)} comes closest, with {number(trained.loc[best, 'max'])} "
            "of the ceiling"
        )
        if len(summary) > len(methods):
            text += f" on its best pair and {number(trained.loc[best, 'min'])} on its worst"
        text += ". "
    counts = methods[["immunized", "seeds"]].sum()
    immunized = ", ".join(f"{label(name)} {count_of(*row)}" for name, row in counts.iterrows())
    return (
        f"{text}Immunized by Definition 3.1 there: {immunized}. All were computed for <i>K</i>, not for "
        "<i>K</i> + εI: directions that a task does not use have the eigenvalue ε here, and these methods "
        "leave them as they fall."
    )


def _front_words(overshoots: pd.DataFrame) -> str:
    """Say whether any extractor lies beyond the front."""
    worst, count = overshoots["overshoot"].max(), int(overshoots["points"].sum())
    if worst <= ROUND_OFF:
        return (
            f"none of {count} extractors lies beyond it (largest overshoot {max(worst, 0.0):.1e}, "
            "round-off). That agrees with the proof, and is none itself."
        )
    return (
        f"one of {count} extractors overshoots it by {worst:.1e}, more than the round-off that was expected: "
        "look at the conditioning of that pair, or raise ε."
    )


def _race_words(race: pd.DataFrame) -> str:
    """Say how much faster the closed form was, and what gradient descent reached in its time."""
    rows = race.set_index("contestant")
    descent, closed = rows.loc["Algorithm 1"], rows.loc["generalised eigenproblem"]
    factor = rows.loc["Cholesky factor"]
    return (
        f"<b>The race</b> ({_pair(descent)}): in processor time one generalised eigenproblem took "
        f"{number(closed['seconds'])} s and reached a share of {number(closed['rir_share'])} of the ceiling; "
        f"{int(descent['steps']):,} steps of Algorithm 1 took {number(descent['seconds'])} s, "
        f"{number(closed['times_faster'])} times as long, and reached {number(descent['rir_share'])}. The "
        f"Cholesky factor alone, which does not tell the ceiling, took {number(factor['seconds'])} s "
        f"({number(factor['times_faster'])} times faster than Algorithm 1)."
    )


def _without_lone_pair(rows: list[dict[str, str]]) -> pd.DataFrame:
    """Return a table without the column `pair` if there is one pair only."""
    table = pd.DataFrame(rows)
    return table.drop(columns="pair") if table["pair"].nunique() == 1 else table


def _pair(row: Any) -> str:
    """Name a pair of tasks."""
    names = (str(row[f"{task}_task"]).replace("digit ", "") for task in ("pretrain", "harmful"))
    return f"{GAP}→{GAP}".join(names)
