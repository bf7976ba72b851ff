"""The published numbers of Tables 1 to 3; `published.csv` is their only place."""

from functools import cache
from io import StringIO
from typing import Any

import pandas as pd

from condnum.files import asset


@cache
def published_table() -> pd.DataFrame:
    """Return all rows; backbone and harmful data set are those of Table 3."""
    return pd.read_csv(StringIO(asset("experiments/published.csv")))


def published(table: int, backbone: str = "", harmful: str = "") -> dict[str, dict[str, Any]]:
    """Return the rows of a table by method; empty where the paper has none.

    Examples:
        >>> published(1)["ours"]["rir_mean"], published(2)["ours"]["steps"]
        (356.2, '30 epochs')
    """
    rows = (
        published_table()
        .rename(columns={"rir": "rir_mean"})
        .fillna({"backbone": "", "harmful": "", "steps": ""})
    )
    own = rows[(rows["table"] == table) & (rows["backbone"] == backbone) & (rows["harmful"] == harmful)]
    return {str(row["method"]): row for row in own.to_dict("records")}
