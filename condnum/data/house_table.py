"""The Ames table behind the house-price pair: its 81 columns, and how it is read."""

from __future__ import annotations

import io
import os
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.idx import opened
from condnum.data.resolver import DataFiles
from condnum.data.task_arrays import FloatArray
from condnum.errors import DataFormatError

Missing = Literal["pandas", "dictionary"]

FILES = DataFiles(
    dataset="house-prices",
    folder="house_prices",
    names=(("train.csv.gz", "train.csv"),),
    advice="It is the train.csv of Kaggle's 'House Prices' (1460 rows, 81 columns); condnum's box holds it.",
    embedded_instead="load_diabetes_tasks()",
)

#: The 81 columns in file order; a name with `*` holds categories, the others numbers.
_HEADER = """
Id MSSubClass MSZoning* LotFrontage LotArea Street* Alley* LotShape* LandContour* Utilities* LotConfig*
LandSlope* Neighborhood* Condition1* Condition2* BldgType* HouseStyle* OverallQual OverallCond YearBuilt
YearRemodAdd RoofStyle* RoofMatl* Exterior1st* Exterior2nd* MasVnrType* MasVnrArea ExterQual* ExterCond*
Foundation* BsmtQual* BsmtCond* BsmtExposure* BsmtFinType1* BsmtFinSF1 BsmtFinType2* BsmtFinSF2 BsmtUnfSF
TotalBsmtSF Heating* HeatingQC* CentralAir* Electrical* 1stFlrSF 2ndFlrSF LowQualFinSF GrLivArea
BsmtFullBath BsmtHalfBath FullBath HalfBath BedroomAbvGr KitchenAbvGr KitchenQual* TotRmsAbvGrd Functional*
Fireplaces FireplaceQu* GarageType* GarageYrBlt GarageFinish* GarageCars GarageArea GarageQual* GarageCond*
PavedDrive* WoodDeckSF OpenPorchSF EnclosedPorch 3SsnPorch ScreenPorch PoolArea PoolQC* Fence* MiscFeature*
MiscVal MoSold YrSold SaleType* SaleCondition* SalePrice
"""
COLUMNS = tuple(name.removesuffix("*") for name in _HEADER.split())
CATEGORICAL = frozenset(name.removesuffix("*") for name in _HEADER.split() if name.endswith("*"))
PRETRAIN_TARGET, HARMFUL_TARGET = "LotArea", "SalePrice"

#: Largest file that is read, a hundred times the table.
MAX_BYTES = 48 << 20

#: Cells that count as missing. pandas (2.0 and later) reads "None" as missing too, although the
#: data dictionary means "no veneer" by it; this touches MasVnrType only.
MISSING_CELLS = {"pandas": ["", "NA", "None"], "dictionary": ["", "NA"]}


def read_table(path: str | os.PathLike[str], *, missing: Missing = "pandas") -> pd.DataFrame:
    """Read the CSV: numbers as float64 with 0 for missing, categories as strings with "0" for missing."""
    with opened(path) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DataFormatError(
            f"{path} takes more than {MAX_BYTES >> 20} MiB, the table less than half of one; {FILES.advice}"
        )
    try:
        raw = pd.read_csv(
            io.BytesIO(content), dtype=str, keep_default_na=False, na_values=MISSING_CELLS[missing]
        )
    except (ValueError, UnicodeError) as error:  # pandas' parser errors are ValueErrors
        raise DataFormatError(f"{path} is not a CSV table ({error}); {FILES.advice}") from error
    absent = [name for name in COLUMNS if name not in raw]
    if absent:
        shown = ", ".join(absent[:8]) + (", …" if len(absent) > 8 else "")
        raise DataFormatError(f"{path} lacks {len(absent)} of the 81 columns: {shown}; {FILES.advice}")
    columns = {
        name: _strings(raw[name]) if name in CATEGORICAL else _numbers(raw[name], path) for name in COLUMNS
    }
    return pd.DataFrame(columns)


def _strings(column: pd.Series) -> NDArray[Any]:
    # Object first: pandas 3 strings and categoricals refuse a fill value that they do not hold.
    return column.astype(object).where(column.notna(), "0").to_numpy(dtype=str)


def _numbers(column: pd.Series, path: object) -> FloatArray:
    empty = column.isna().to_numpy()
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = np.flatnonzero(~np.isfinite(values) & ~empty)
    if len(wrong):
        cell = column.iloc[wrong[0]]
        raise DataFormatError(
            f"{path}: column '{column.name}' must hold finite numbers; {len(wrong)} cell(s) do not, "
            f"the first in data row {wrong[0] + 1}: '{cell}'."
        )
    if column.name in (PRETRAIN_TARGET, HARMFUL_TARGET) and empty.any():
        raise DataFormatError(
            f"{path}: target column '{column.name}' has {empty.sum()} missing value(s), the first in "
            f"data row {np.flatnonzero(empty)[0] + 1}; drop these rows, a target cannot be filled with 0."
        )
    return np.where(empty, 0.0, values)
