"""Tables and words of the reproduction audit."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from condnum.report.tables import number
from condnum.studies.release import DETAILS, TEXTS

_GAP = "\u00a0"

#: The conventions in words.
_NAMES = {"ridge": "floor", "compact": "compact"}

#: Changes of log10 RIR below this, 2 %, are not spoken of as rises or falls.
NEGLIGIBLE = math.log10(1.02)

_NO_CHANGE = "no clear change of"

#: Titles of the switches, for figures.
TITLES = {name: text.title for name, text in TEXTS.items()}


def switch_table(switches: Sequence[str]) -> pd.DataFrame:
    """List what each switch does, a row per switch.

    Examples:
        >>> switch_table(["bias"])["the release"][0]
        'the extractor has one, and its RIR counts it'
    """
    chosen = [TEXTS[name] for name in switches]
    return pd.DataFrame(
        {
            "switch": [text.title for text in chosen],
            "the release": [text.released for text in chosen],
            "the corrected protocol": [text.corrected for text in chosen],
            "why it can matter": [text.why for text in chosen],
        }
    )


def detail_table(switches: Sequence[str]) -> pd.DataFrame:
    """List what the rebuilt loop takes from the release beside the switches, and where it differs.

    Examples:
        >>> len(detail_table(["bias", "rows", "normalise"])) - len(detail_table(["bias"]))
        1
    """
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
        said.append(f"<li>{text}.</li>")
    return f"<ul>{''.join(said)}</ul>" if said else ""


def landing_table(landing: pd.DataFrame) -> pd.DataFrame:
    """Format the release's end by epochs."""
    return pd.DataFrame(
        [
            {
                "epochs": str(row["epochs"]),
                "updates": str(row["updates"]),
                "RIR, mean": number(row["rir_mean"]),
                "least to largest": f"{number(row['rir_min'])} – {number(row['rir_max'])}",
                "reported": "—"
                if math.isnan(row["reported_min"])
                else f"{number(row['reported_min'])} – {number(row['reported_max'])}",
            }
            for row in landing.to_dict("records")
        ]
    )


def effect_table(waterfall: pd.DataFrame, epochs: int) -> pd.DataFrame:
    """Format what each switch multiplies RIR by, alone and after those before it."""
    start = waterfall[waterfall["start_epochs"] == epochs]
    rows = []
    alone = start[start["path"] == "alone"]
    for name in dict.fromkeys(alone["switch"]):
        cells: dict[str, str] = {"switch": TITLES.get(name, name)}
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for path, word in (("alone", "alone"), ("cumulative", "in turn")):
            for convention, label in _NAMES.items():
                part = start[
                    (start["path"] == path) & (start["switch"] == name) & (start["convention"] == convention)
                ]
                found[path, convention] = part.iloc[0].to_dict()
                cells[f"{word}, {label}"] = factor_words(found[path, convention])
        cells["in words"] = _effect_words(
            found["cumulative", "ridge"], found["cumulative", "compact"], found["alone", "ridge"]
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
            label = _NAMES[row["convention"]]
            span = f" ({number(row['rir_min'])} – {number(row['rir_max'])})" if row["seeds"] > 1 else ""
            cells[f"RIR, {label}"] = number(row["rir"]) + span
            cells[f"immunized, {label}"] = f"{row['immunized']}{_GAP}of{_GAP}{row['seeds']}"
        rows.append(cells)
    return pd.DataFrame(rows)


def factor_words(row: dict[str, Any]) -> str:
    """Return the change of a stage as a factor, with one standard deviation over seeds.

    Examples:
        >>> factor_words({"factor": 4.0, "change": 0.602, "change_std": 0.1})
        '× 4 (3.2 – 5)'
    """
    if not math.isfinite(row["change"]):
        return "—"
    text = f"× {_short(row['factor'])}"
    if not math.isfinite(row["change_std"]):
        return text
    low, high = (10 ** (row["change"] + side * row["change_std"]) for side in (-1, 1))
    return f"{text} ({_short(low)} – {_short(high)})"


def audit_words(waterfall: pd.DataFrame, epochs: int) -> str:
    """Say what the waterfall from one start shows, from its numbers alone."""
    start = waterfall[(waterfall["start_epochs"] == epochs) & (waterfall["path"] == "cumulative")]
    said = []
    for convention, label in _NAMES.items():
        rows = start[start["convention"] == convention].sort_values("index")
        first, last = rows.iloc[0], rows.iloc[-1]
        steps = rows.iloc[1:]
        up = steps.loc[steps["change"].idxmax()]
        down = steps.loc[steps["change"].idxmin()]
        text = (
            f"<b>{label} convention</b>: RIR {number(first['rir'])} as released, {number(last['rir'])} "
            f"corrected (geometric means). The switch that raises it most in turn is “{_title(up)}” "
            f"({factor_words(up.to_dict())})"
        )
        if down["change"] < 0:
            text += f", the one that lowers it most “{_title(down)}” ({factor_words(down.to_dict())})"
        said.append(f"<li>{text}.</li>")
    said += _at_equal_updates(waterfall, epochs)
    steps = start[start["index"] > 0]
    opposed = [
        TITLES.get(name, name)
        for name, both in steps.groupby("switch", sort=False)
        if {_direction(row) for row in both.to_dict("records")} == {"raises", "lowers"}
    ]
    if opposed:
        said.append(
            f"<li>The two conventions move in opposite directions at {len(opposed)} of "
            f"{steps['switch'].nunique()} switches, each beyond its spread over seeds: "
            f"{html.escape(', '.join(opposed))}. Neither number alone says whether a change helped.</li>"
        )
    verdicts = {
        name: {
            row["convention"]: f"{row['immunized']} of {row['seeds']}"
            for row in start[start["index"] == place].to_dict("records")
        }
        for name, place in (("released", 0), ("corrected", start["index"].max()))
    }
    said.append(
        "<li>Seeds that meet (i) &gt; 1 and (ii) ≤ 1, θ as trained (floor, compact): released "
        f"{verdicts['released']['ridge']}, {verdicts['released']['compact']}; corrected "
        f"{verdicts['corrected']['ridge']}, {verdicts['corrected']['compact']}.</li>"
    )
    return f"<ul>{''.join(said)}</ul>"


def _at_equal_updates(waterfall: pd.DataFrame, epochs: int) -> list[str]:
    """Compare both protocols at the corrected number of updates, which is the last switch alone."""
    start = waterfall[(waterfall["start_epochs"] == epochs) & (waterfall["switch"] == "epochs")]
    rir = start.set_index(["path", "convention"])["rir"].to_dict()
    if len(rir) != 4:
        return []
    parts = [
        f"{number(rir['alone', convention])} as released and {number(rir['cumulative', convention])} "
        f"corrected ({label})"
        for convention, label in _NAMES.items()
    ]
    return [
        f"<li>At the same number of updates, {int(start['updates'].max()):,}, RIR is {', '.join(parts)}: "
        "this is the difference that is not one of budget.</li>"
    ]


def _short(value: float) -> str:
    """Format a factor to two digits: its spread is rarely known better."""
    return number(float(f"{value:.2g}"))


def _title(row: pd.Series) -> str:
    """Return a stage's switch in words."""
    return html.escape(str(TITLES.get(row["switch"], row["switch"])))


def _effect_words(floor: dict[str, Any], compact: dict[str, Any], alone: dict[str, Any]) -> str:
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


def _direction(row: dict[str, Any]) -> str:
    """Return what a stage does to RIR; within the spread over seeds, or 2 %, nothing that can be told."""
    change, spread = row["change"], row["change_std"]
    if abs(change) <= max(spread if math.isfinite(spread) else 0.0, NEGLIGIBLE):
        return _NO_CHANGE
    return "raises" if change > 0 else "lowers"
