"""The columns of an audit as a page shows them."""

import html

import pandas as pd

from condnum.numbers import number
from condnum.report.tables import as_html

_TASKS = {"pretrain": "D<sub>P</sub>", "harmful": "D<sub>H</sub>"}

#: Columns that are listed; `audit.json` has all of them.
MOST_COLUMNS = 100


def columns_html(columns: pd.DataFrame) -> str:
    """Return the scale of every column, folded."""
    shown = columns.head(MOST_COLUMNS)
    table = shown[["column"]].map(lambda text: html.escape(str(text)))
    for task, label in _TASKS.items():
        for name in ("mean", "deviation", "smallest", "largest"):
            table[f"{name}, {label}"] = shown[f"{name}_{task}"].map(number)
    return (
        f"<details><summary>{len(columns):,d} columns with their scale</summary>"
        f"<div style='max-height:24em;overflow:auto'>{as_html(table)}</div></details>"
    )
