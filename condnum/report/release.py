"""Tables and words of the reproduction audit."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd

from condnum.report.tables import bullets, count_of, number, rounded, rows_of
from condnum.studies.release import DETAILS, TEXTS

#: The conventions in words.
_NAMES = {"ridge": "floor", "compact": "compact"}

#: Changes of log10 RIR below this, 2 %, are not spoken of as rises or falls.
NEGLIGIBLE = math.log10(1.02)

_NO_CHANGE = "no clear change of"

#: Titles of the switches, for figures.
TITLES = {name: text.title for name, text in TEXTS.items()}

#: A row of the waterfall.
Stage: TypeAlias = Mapping[str, Any] | pd.Series


def switch_table(switches: Sequence[str]) -> pd.DataFrame:
    """List what each switch does, a row per switch."""
    headings = ["switch", "the release", "the corrected protocol", "why it can matter"]
    return pd.DataFrame([TEXTS[name] for name in switches]).set_axis(headings, axis="columns")


def detail_table(switches: Sequence[str]) -> pd.DataFrame:
    """List what the rebuilt loop takes from the release beside the switches, and where it differs."""
    rows = [(what, how) for about, what, how in DETAILS if not about or about in switches]
    return pd.DataFrame(rows, columns=["what", "how it is here"])


def landing_words(landing: pd.DataFrame) -> str:
    """Say how the release's end compares with what it is reported to print."""
    said = []
    for row in landing[landing["reported_min"].notna()].to_dict("records"):
        low, high = number(row["reported_min"]), number(row["reported_max"])
        text = (
            f"<b>{row['epochs']} epochs</b> ({row['updates']} updates): RIR {number(row['rir_mean'])} on "
            f"average, {number(row['rir_min'])} to {number(row['rir_max'])} over {row['seeds']} seeds; "
            f"reported about {low} to {high}. {row['inside']} of {row['seeds']} seeds lie in that range"
        )
        if row["miss"] != 1:
            side = "above" if row["miss"] > 1 else "below"
            text += f", the mean is {abs(row['miss'] - 1):.0%} {side} it"
        said.append(f"{text}.")
    return bullets(said) if said else ""


def landing_table(landing: pd.DataFrame) -> pd.DataFrame:
    """Format the release's end by epochs."""

    def between(low: float, high: float) -> str:
        return "—" if math.isnan(low) else f"{number(low)} – {number(high)}"

    return rows_of(
        landing,
        {
            "epochs": ("epochs", str),
            "updates": ("updates", str),
            "RIR, mean": ("rir_mean", number),
            "least to largest": ("rir_min rir_max", between),
            "reported": ("reported_min reported_max", between),
        },
    )


def effect_table(waterfall: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """Format what each switch multiplies RIR by, alone and after those before it."""
    start = waterfall[waterfall["start_epochs"] == epochs]
    stages = start.set_index(["path", "convention", "switch"]).sort_index()
    rows = []
    for switch in dict.fromkeys(start.loc[start["path"] == "alone", "switch"]):
        cells = {"switch": TITLES.get(switch, switch)}
        for path, word in (("alone", "alone"), ("cumulative", "in turn")):
            for convention, name in _NAMES.items():
                cells[f"{word}, {name}"] = factor_words(stages.loc[path, convention, switch])
        cells["in words"] = _effect_words(
            stages.loc["cumulative", "ridge", switch],
            stages.loc["cumulative", "compact", switch],
            stages.loc["alone", "ridge", switch],
        )
        rows.append(cells)
    return pd.DataFrame(rows)


def stage_table(waterfall: pd.DataFrame, epochs: int, path: str) -> pd.DataFrame:
    """Format RIR itself along a path, in both conventions."""
    part = waterfall[(waterfall["start_epochs"] == epochs) & (waterfall["path"] == path)]
    rows = []
    for (_, switch), both in part.groupby(["index", "switch"], sort=False):
        cells: dict[str, str] = {"setting": TITLES.get(switch, switch), "updates": str(both["updates"].max())}
        for row in both.to_dict("records"):
            name = _NAMES[row["convention"]]
            span = f" ({number(row['rir_min'])} – {number(row['rir_max'])})" if row["seeds"] > 1 else ""
            cells[f"RIR, {name}"] = number(row["rir"]) + span
            cells[f"immunized, {name}"] = count_of(row["immunized"], row["seeds"])
        rows.append(cells)
    return pd.DataFrame(rows)


def factor_words(row: Stage) -> str:
    """Return the change of a stage as a factor, with one standard deviation over seeds.

    Examples:
        >>> factor_words({"factor": 4.0, "change": 0.602, "change_std": 0.1})
        '× 4 (3.2 – 5)'
    """
    if not math.isfinite(row["change"]):
        return "—"
    ends = [10 ** (row["change"] + side * row["change_std"]) for side in (-1, 1)]
    spread = f" ({' – '.join(map(rounded, ends))})" if math.isfinite(row["change_std"]) else ""
    return f"× {rounded(row['factor'])}{spread}"


def audit_words(waterfall: pd.DataFrame, epochs: int) -> str:
    """Say what the waterfall from one start shows, from its numbers alone."""
    start = waterfall[(waterfall["start_epochs"] == epochs) & (waterfall["path"] == "cumulative")]

    def turned(stage: pd.Series) -> str:
        return f"“{html.escape(str(TITLES.get(stage['switch'], stage['switch'])))}” ({factor_words(stage)})"

    said = []
    for convention, name in _NAMES.items():
        rows = start[start["convention"] == convention].sort_values("index")
        first, last, steps = rows.iloc[0], rows.iloc[-1], rows.iloc[1:]
        up, down = (steps.loc[place] for place in (steps["change"].idxmax(), steps["change"].idxmin()))
        text = (
            f"<b>{name} convention</b>: RIR {number(first['rir'])} as released, {number(last['rir'])} "
            f"corrected (geometric means). The switch that raises it most in turn is {turned(up)}"
        )
        if down["change"] < 0:
            text += f", the one that lowers it most {turned(down)}"
        said.append(f"{text}.")
    last_switch = waterfall[(waterfall["start_epochs"] == epochs) & (waterfall["switch"] == "epochs")]
    rir = last_switch.set_index(["path", "convention"])["rir"].to_dict()
    if len(rir) == 4:  # alone it gives the release as many updates as the corrected protocol has
        parts = [
            f"{number(rir['alone', convention])} as released and {number(rir['cumulative', convention])} "
            f"corrected ({name})"
            for convention, name in _NAMES.items()
        ]
        said.append(
            f"At the same number of updates, {int(last_switch['updates'].max()):,}, RIR is "
            f"{', '.join(parts)}: this is the difference that is not one of budget."
        )
    steps = start[start["index"] > 0]
    opposed = [
        html.escape(str(TITLES.get(name, name)))
        for name, both in steps.groupby("switch", sort=False)
        if {_direction(row) for row in both.to_dict("records")} == {"raises", "lowers"}
    ]
    if opposed:
        said.append(
            f"The two conventions move in opposite directions at {len(opposed)} of "
            f"{steps['switch'].nunique()} switches, each beyond its spread over seeds: {', '.join(opposed)}. "
            "Neither number alone says whether a change helped."
        )
    released, corrected = (
        ", ".join(f"{ends.at[c, 'immunized']} of {ends.at[c, 'seeds']}" for c in _NAMES)
        for place in (0, start["index"].max())
        for ends in [start[start["index"] == place].set_index("convention")]
    )
    said.append(
        "Seeds that meet (i) &gt; 1 and (ii) ≤ 1, θ as trained (floor, compact): "
        f"released {released}; corrected {corrected}."
    )
    return bullets(said)


def _effect_words(floor: Stage, compact: Stage, alone: Stage) -> str:
    """Say what a switch does in turn, and whether it does the opposite alone."""
    if floor["change"] == 0 and compact["change"] == 0 and alone["change"] == 0:
        return "changes nothing on these data"
    first, second = _direction(floor), _direction(compact)
    text = f"{first} RIR at the floor, {second} compact RIR"
    if first == second:
        text = f"{first} RIR in {'either convention' if first == _NO_CHANGE else 'both conventions'}"
    if {_direction(alone), first} == {"raises", "lowers"}:
        text += f"; alone it {_direction(alone)} it at the floor"
    return text


def _direction(stage: Stage) -> str:
    """Return what a stage does to RIR; within the spread over seeds, or 2 %, nothing that can be told."""
    change, spread = stage["change"], stage["change_std"]
    if abs(change) <= max(spread if math.isfinite(spread) else 0.0, NEGLIGIBLE):
        return _NO_CHANGE
    return "raises" if change > 0 else "lowers"
