"""The table of the reproduction audit."""

import math

import pandas as pd

from condnum.report.tables import GAP, count_of, number, rounded, span

#: The conventions in words.
_NAMES = {"ridge": "floor", "compact": "compact"}


def switch_table(waterfall: pd.DataFrame) -> pd.DataFrame:
    """Format RIR switch by switch, and the factor by which each switch changes it, in both conventions."""
    rows = []
    for (start, _, switch), both in waterfall.groupby(["start_epochs", "index", "switch"], sort=False):
        setting = f"released, {start} epochs" if switch == "released" else f"+{GAP}{switch}"
        cells = {"setting": setting, "updates": f"{both['updates'].max():,}"}
        for row in both.to_dict("records"):
            name = _NAMES[row["convention"]]
            spread = (
                f"<br><small>{span([row['rir_min'], row['rir_max']])}</small>" if row["seeds"] > 1 else ""
            )
            change = "" if math.isnan(row["factor"]) else f"<br><small>× {rounded(row['factor'])}</small>"
            cells[f"immunized, {name}"] = count_of(row["immunized"], row["seeds"])
            cells[f"RIR, {name}<br><small>change</small>"] = number(row["rir"]) + spread + change
        rows.append(cells)
    return pd.DataFrame(rows)
