"""The house-price task pair: Ames housing split by zoning (Sec. 5.1 and Appendix C.2 of the paper).

D_H holds the rows zoned `RL` with target SalePrice, D_P the others with target LotArea.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.house_table import (
    CATEGORICAL,
    COLUMNS,
    FILES,
    HARMFUL_TARGET,
    PRETRAIN_TARGET,
    Missing,
    read_table,
)
from condnum.data.resolver import Found, Source, obtain
from condnum.data.standardise import label_encode, standardise
from condnum.data.task_arrays import FloatArray, check_rows
from condnum.data.task_pair import Provenance, TaskPair
from condnum.errors import DataFormatError, UnknownNameError

Features = Literal["clean", "published"]
Encoders = Literal["union", "per_domain"]
Normalise = Literal["per_task", "before_split"]


SPLIT_COLUMN, HARMFUL_ZONE = "MSZoning", "RL"
#: Columns that are no features, by feature set.
DROPPED = {
    "published": frozenset({PRETRAIN_TARGET, HARMFUL_TARGET}),
    "clean": frozenset({PRETRAIN_TARGET, HARMFUL_TARGET, "Id", SPLIT_COLUMN}),
}


def load_house_prices(
    source: Source = "auto",
    *,
    features: Features = "clean",
    rows: int | None = None,
    encoders: Encoders = "union",
    normalise: Normalise = "per_task",
    missing: Missing = "pandas",
) -> TaskPair:
    """Load the house-price pair: fill missing cells with 0, label-encode, split, standardise.

    Args:
        source: `auto` (local file, else condnum's box), `local`, or a path: the CSV file or a folder.
        features: `clean` drops Id and the split column MSZoning (77 features); `published`
            keeps them (79, as the paper says).
        rows: Keep the first `rows` rows of *each* domain after the split (all of a domain that
            has fewer); None keeps 309 and 1151. The published release keeps the first 200.
        encoders: Number the categories on the `union` of both domains, or `per_domain` as the
            release does, where one code may mean two things. Fitted before `rows` cuts.
        normalise: Mean and deviation of each task's kept rows (`per_task`), or of the whole table
            (`before_split`). The release takes those of each task before `rows` cuts.
        missing: Cells that are missing: what `pandas` reads so (empty, NA, None), or what the
            data `dictionary` says (None is a category of MasVnrType).

    Returns:
        `X_P` (309, D) with target LotArea and `X_H` (1151, D) with target SalePrice. Columns that
        are constant in the rows that normalise them are exactly zero.

    Raises:
        DataNotFoundError: No file here; the message says what to put where.
        DataFormatError: Not the table that is meant: the message names columns and rows.
        UnknownNameError: An option has no such value.
        InvalidInputError: Bad `rows`, a task with too few rows or with a constant target.

    Examples:
        >>> pair = load_house_prices("auto")
        >>> pair.title()  # doctest: +SKIP
        'house-prices, condnum's box: 309 rows D_P, 1151 rows D_H, D = 77, SHA-256 1e18addf'
    """
    for kind, value, choices in (
        ("feature set", features, get_args(Features)),
        ("encoders", encoders, get_args(Encoders)),
        ("normalise", normalise, get_args(Normalise)),
        ("missing", missing, get_args(Missing)),
    ):
        if value not in choices:
            raise UnknownNameError(kind, value, choices)
    if rows is not None:
        check_rows(rows)
    found = obtain(FILES, source)
    table = read_table(found.paths[0], missing=missing)
    harmful = np.asarray(table[SPLIT_COLUMN] == HARMFUL_ZONE)
    _check_split(table, harmful, found.paths[0])

    codes = _encode(table, harmful if encoders == "per_domain" else np.zeros(len(table), dtype=bool))
    names = [name for name in COLUMNS if name not in DROPPED[features]]
    X = np.stack([codes[name] for name in names], axis=1)
    parts: list[FloatArray] = []
    for mask, target in ((~harmful, PRETRAIN_TARGET), (harmful, HARMFUL_TARGET)):
        kept = np.flatnonzero(mask)[:rows]
        for values in (X, codes[target]):
            reference = values if normalise == "before_split" else None
            parts.append(standardise(values[kept], reference=reference))
    options = {
        "features": features,
        "rows": rows,
        "encoders": encoders,
        "normalise": normalise,
        "missing": missing,
    }
    return _pair(parts, names, found, options)


def _pair(parts: list[FloatArray], names: list[str], found: Found, options: dict[str, Any]) -> TaskPair:
    (checksum,) = found.checksums
    return TaskPair(
        X_P=parts[0],
        y_P=parts[1],
        X_H=parts[2],
        y_H=parts[3],
        name="house-prices",
        pretrain_name=f"{PRETRAIN_TARGET}, zoning not {HARMFUL_ZONE}",
        harmful_name=f"{HARMFUL_TARGET}, zoning {HARMFUL_ZONE}",
        feature_names=tuple(names),
        checksum=checksum,
        provenance=Provenance(
            source=found.source,
            location=str(found.paths[0]),
            description="Ames housing, sales of 2006-2010, as Kaggle's 'House Prices' (train.csv).",
            url="https://www.openml.org/d/42165",
            licence="none stated; published by its author for teaching",
            citation="D. De Cock (2011), Ames, Iowa: Alternative to the Boston Housing Data, "
            "J. Stat. Educ. 19(3).",
            known_checksum=found.known,
            files={"train.csv": checksum},
            options=options,
        ),
    )


def _check_split(table: pd.DataFrame, harmful: NDArray[np.bool_], path: Path) -> None:
    counts = int((~harmful).sum()), int(harmful.sum())
    if min(counts) < 2:
        zones = ", ".join(sorted(set(table[SPLIT_COLUMN]))) or "none"
        raise DataFormatError(
            f"{path}: the split by column '{SPLIT_COLUMN}' gives {counts[1]} row(s) zoned "
            f"'{HARMFUL_ZONE}' (D_H) and {counts[0]} other(s) (D_P); each needs 2 or more. "
            f"Zones in the file: {zones}."
        )


def _encode(table: pd.DataFrame, domain: NDArray[np.bool_]) -> dict[str, FloatArray]:
    """Return all columns as float64 `(N,)`; categories are numbered within each value of `domain`."""
    codes: dict[str, FloatArray] = {}
    for name in COLUMNS:
        values = table[name].to_numpy(dtype=str if name in CATEGORICAL else np.float64)
        if name in CATEGORICAL:
            encoded = np.empty(len(values))
            for part in (domain, ~domain):
                encoded[part] = label_encode(values[part])
            values = encoded
        codes[name] = values
    return codes
