"""The house-price table: split, encoded and standardized by hand, refused, and as it really is."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum.data import load_house_prices
from condnum.data.files import BOX
from condnum.data.house_prices import MISSING_CELLS

PATH = Path("data/house_prices/train.csv")


def houses(drop=(), options=None, **cells):
    """Write a table of 3 rows zoned RL and 2 others into ./data, and load it."""
    table = {
        "Id": range(1, 6),
        "MSZoning": ["RL", "RM", "RL", "FV", "RL"],
        "Street": [*"abcbd"],
        "LotArea": [1, 10, 2, 30, 3],
        "SalePrice": [100, 5, 200, 6, 300],
    } | cells
    PATH.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(table).drop(columns=[*drop]).to_csv(PATH, index=False)
    return load_house_prices("auto", **(options or {}))


def test_encoders_on_the_union_or_per_domain():
    # D_H rows a, c, d; D_P rows b, b. Codes in D_H on the union: 0, 2, 3; per domain: 0, 1, 2.
    union, apart = houses(), houses(options={"encoders": "per_domain"})
    assert union.feature_names == apart.feature_names == ("Street",)
    assert union.X_H[:, 0].tolist() == pytest.approx([x / 14**0.5 for x in (-5, 1, 4)])
    assert apart.X_H[:, 0].tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])


@pytest.mark.parametrize(("features", "D", "ranks"), [("published", 79, (74, 76)), ("clean", 77, (72, 75))])
def test_real_table(features, D, ranks):
    pair = load_house_prices(features=features)
    assert (pair.X_P.shape, pair.X_H.shape) == ((309, D), (1151, D))
    assert pair.provenance.known_checksum
    assert (np.linalg.matrix_rank(pair.X_P), np.linalg.matrix_rank(pair.X_H)) == ranks


def test_real_table_agrees_with_the_recipe_in_pandas_and_scikit_learn():
    from sklearn.preprocessing import LabelEncoder, StandardScaler

    frame = pd.read_csv(BOX / "house_prices/train.csv.gz", keep_default_na=False, na_values=MISSING_CELLS)
    for name in frame:
        if frame[name].dtype.kind in "if":
            frame[name] = frame[name].fillna(0)
        else:
            frame[name] = LabelEncoder().fit_transform(frame[name].astype(object).fillna(0).astype(str))
    zones = pd.read_csv(BOX / "house_prices/train.csv.gz")["MSZoning"]
    inputs = frame.drop(columns=["LotArea", "SalePrice"]).astype(float)
    pair = load_house_prices(features="published")
    for X, y, rows, target in (
        (pair.X_P, pair.y_P, zones != "RL", "LotArea"),
        (pair.X_H, pair.y_H, zones == "RL", "SalePrice"),
    ):
        scaled = StandardScaler().fit_transform(inputs[rows])
        np.testing.assert_allclose(X, scaled, atol=1e-11)  # 1151-term sums of values to 1e5
        prices = StandardScaler().fit_transform(frame.loc[rows, [target]])
        np.testing.assert_allclose(y, prices[:, 0], atol=1e-11)
