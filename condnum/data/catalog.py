"""The table of data sets: which of them this machine has, and whether they are whole."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from condnum.data.digits import load_mnist_images, load_small_digits
from condnum.data.house_prices import load_house_prices
from condnum.data.pairs import load_diabetes_tasks
from condnum.errors import CondnumError, DataNotFoundError

LOADERS: dict[str, Callable[[], Any]] = {
    "house-prices": load_house_prices,
    "mnist": load_mnist_images,
    "mnist-test": lambda: load_mnist_images("auto", "test"),
    "digits-8x8": load_small_digits,
    "diabetes": load_diabetes_tasks,
}


def data_status() -> pd.DataFrame:
    """Load each data set in full, and compare the checksums with those on which numbers were measured.

    The status is `ok`, `unknown checksum`, `missing` or `broken`; of the last two, `advice` names the fix.
    """
    rows = []
    for name, load in LOADERS.items():
        try:
            data = load()
        except CondnumError as error:
            status = "missing" if isinstance(error, DataNotFoundError) else "broken"
            rows.append({"data set": name, "status": status, "advice": str(error)})
            continue
        origin = data.provenance
        found = {"source": origin.source, "rows": len(data), "SHA-256": data.checksum[:8]}
        status = "ok" if origin.known_checksum else "unknown checksum"
        rows.append({"data set": name, "status": status, **found, "location": origin.location})
    columns = ["data set", "status", "source", "rows", "SHA-256", "location", "advice"]
    return pd.DataFrame(rows, columns=columns, dtype=object).fillna("")
