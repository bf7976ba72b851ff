"""Tables and words of the experiment on limits."""

import pandas as pd

from condnum.report.tables import GAP, Column, bullets, count_of, label, number, rows_of, span

#: Overshoots below this are round-off of κ's up to about 1e10.
ROUND_OFF = 1e-6

#: Extractors that were held against the ceiling.
_KINDS = {
    "family": "family from I to θ*",
    "front": "front θ_s",
    "random": "random",
    "climbed": "pushed by Adam on log RIR",
    "methods": "methods",
    "race": "contestants of the race",
}


def _pair(pretrain: str, harmful: str) -> str:
    """Name a pair of tasks."""
    return f"{pretrain}{GAP}→{GAP}{harmful}".replace("digit ", "")


def _share(share: float, least: float, most: float) -> str:
    """Format a share of the ceiling, with its range over seeds if that can be seen."""
    spread = span([least, most], " – ")
    return number(share) + (f" ({spread})" if "–" in spread else "")


_PAIR: dict[str, Column] = {"pair": ("pretrain_task harmful_task", _pair)}

_SUMMARY: dict[str, Column] = {
    "method": ("method", label),
    "(i) ↑": ("harmful_ratio", number),
    "(ii) ↓": ("pretrain_ratio", number),
    "RIR ↑": ("rir", number),
    "ceiling": ("rir_ceiling", number),
    "RIR / ceiling": ("rir_share rir_share_min rir_share_max", _share),
    "immunized": ("immunized seeds", count_of),
}


def summary_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format (i), (ii), RIR and its share of the ceiling at one ε, a row per pair × method."""
    return _without_lone_pair(rows_of(summary, _PAIR | _SUMMARY))


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
    columns: dict[str, Column] = {
        "D": ("dimension", str),
        "rank K_P": ("rank_pretrain", str),
        "rank K_H": ("rank_harmful", str),
        "null in both": ("common", str),
        "null(K_P) excited by D_H": ("harmful_only", str),
        "its share of tr(K_H)": ("harmful_energy", number),
        "null(K_P) ∩ range(K_H)": ("intersection", str),
        "its share": ("intersection_energy", number),
        "null(K_H) excited by D_P": ("pretrain_only", str),
        "its share of tr(K_P)": ("pretrain_energy", number),
    }
    return rows_of(spaces, _PAIR | columns)


def overshoot_table(overshoots: pd.DataFrame) -> pd.DataFrame:
    """Format how far the tried extractors stay below the ceiling, a row per pair × kind."""
    columns: dict[str, Column] = {
        "extractors": ("kind", lambda kind: _KINDS[kind]),
        "how many": ("points", str),
        "largest share of the ceiling": ("largest_share", "{:.9f}".format),
        "worst overshoot": ("overshoot", lambda value: "0" if value <= 0 else f"{value:.1e}"),
    }
    return _without_lone_pair(rows_of(overshoots, _PAIR | columns))


def race_table(race: pd.DataFrame) -> pd.DataFrame:
    """Format the race."""
    return rows_of(
        race,
        {
            "contestant": ("contestant", str),
            "steps": ("steps", lambda steps: f"{steps:,}" if steps else "—"),
            "seconds of processor": ("seconds", number),
            "times faster than Algorithm 1": ("times_faster", number),
            "RIR": ("rir", number),
            "RIR / ceiling": ("rir_share", number),
            "(i)": ("harmful_ratio", number),
            "(ii)": ("pretrain_ratio", number),
        },
    )


def words(summary: pd.DataFrame, spaces: pd.DataFrame, overshoots: pd.DataFrame, race: pd.DataFrame) -> str:
    """Say what the tables of a run say, from their numbers alone."""
    own = spaces[(spaces["harmful_only"] > 0) & (spaces["rank_harmful"] > 1)]
    null = "every compact ceiling is finite: no harmful task has a direction of its own."
    if len(own):
        null = (
            f"without a ridge {len(own)} of {len(spaces)} pair{'s' * (len(spaces) > 1)} have no ceiling at "
            f"all. That rests on directions that hold a share of {span(own['harmful_energy'], ' to ')} of "
            "the harmful task's energy. On <i>K</i> + εI every ceiling is finite."
        )
    worst, count = overshoots["overshoot"].max(), int(overshoots["points"].sum())
    front = (
        f"one of {count} extractors overshoots it by {worst:.1e}, more than the round-off that was expected: "
        "look at the conditioning of that pair, or raise ε."
    )
    if worst <= ROUND_OFF:
        front = (
            f"none of {count} extractors lies beyond it (largest overshoot {max(worst, 0.0):.1e}, "
            "round-off). That agrees with the proof, and is none itself."
        )
    said = [
        f"<b>Null spaces</b>: {null}",
        f"<b>Shares</b> (compact κ of <i>K</i> + εI): {_share_words(summary)}",
        f"<b>The front</b>: {front}",
    ]
    if len(race):
        rows = race.set_index("contestant")
        names = ("Algorithm 1", "generalised eigenproblem", "Cholesky factor")
        descent, closed, factor = (rows.loc[name] for name in names)
        pair = _pair(descent["pretrain_task"], descent["harmful_task"])
        said.append(
            f"<b>The race</b> ({pair}): in processor time one generalised eigenproblem took "
            f"{number(closed['seconds'])} s and reached a share of {number(closed['rir_share'])} of the "
            f"ceiling; {int(descent['steps']):,} steps of Algorithm 1 took {number(descent['seconds'])} s, "
            f"{number(closed['times_faster'])} times as long, and reached {number(descent['rir_share'])}. "
            f"The Cholesky factor alone, which does not tell the ceiling, took {number(factor['seconds'])} s "
            f"({number(factor['times_faster'])} times faster than Algorithm 1)."
        )
    return bullets(said)


def _share_words(summary: pd.DataFrame) -> str:
    """Say which trained method reaches the largest share, and which meet Definition 3.1."""
    methods, controls = summary.groupby("method", sort=False), ["identity", "initial", "optimal", "front"]
    trained = methods["rir_share"].agg(["min", "max"]).drop(index=controls, errors="ignore")
    text = ""
    if len(trained):
        best = trained["max"].idxmax()
        most, least = (number(trained.loc[best, end]) for end in ("max", "min"))
        text = f"of the trained methods {label(best)} comes closest, with {most} of the ceiling"
        if len(summary) > len(methods):
            text += f" on its best pair and {least} on its worst"
        text += ". "
    counts = methods[["immunized", "seeds"]].sum()
    immunized = ", ".join(f"{label(name)} {count_of(*row)}" for name, row in counts.iterrows())
    return (
        f"{text}Immunized by Definition 3.1 there: {immunized}. All were computed for <i>K</i>, not for "
        "<i>K</i> + εI: directions that a task does not use have the eigenvalue ε here, and these methods "
        "leave them as they fall."
    )


def _without_lone_pair(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the column `pair` if there is one pair only."""
    return table.drop(columns="pair") if table["pair"].nunique() == 1 else table
