"""Pairs of tasks that both have targets of their own, over the same features: what erasure is tried on.

Labels are integers, targets of a regression are standardized over all rows. A folder of one's own holds
`X_P`, `y_P`, `X_H` and `y_H`, each in a format that condnum reads.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from condnum.data.digits import Digits, load_mnist_images, load_small_digits
from condnum.data.files import as_stream, embedded, obtain, read_targets
from condnum.data.house_prices import FILES, load_house_prices, read_house_table
from condnum.data.task_pair import TaskPair, standardize
from condnum.errors import DataNotFoundError, UnknownNameError, check_known

#: Columns that split the Ames table, with the value of the harmful task's houses.
AMES_SPLITS = {"CentralAir": "N", "LotShape": "Reg", "GarageType": "Attchd", "HouseStyle": "1Story"}

DiabetesFeatures = Literal["clean", "published"]


def digit_halves(digits: Digits) -> TaskPair:
    """Return digits 0–4 as the benign and 5–9 as the harmful task, in file order."""
    halves = [np.flatnonzero(digits.labels < 5), np.flatnonzero(digits.labels >= 5)]
    arrays = [part for half in halves for part in (digits.pixels(half), digits.labels[half])]
    return TaskPair.from_arrays(*arrays, name=digits.name)


def ames_pair(column: str) -> TaskPair:
    """Return log price of the houses on one side of a column, and lot area of those on the other side."""
    table = read_house_table(obtain(FILES, "auto").paths[0])
    harmful = np.asarray(table[column] == AMES_SPLITS[column])
    for name in table.columns.difference(table.select_dtypes("number").columns):
        table[name] = pd.factorize(table[name], sort=True)[0]
    features = table.drop(columns=["Id", "SalePrice", "LotArea", column])
    X = standardize(features.to_numpy(dtype=np.float64))
    price, area = (standardize(np.log(table[name].to_numpy())) for name in ("SalePrice", "LotArea"))
    return TaskPair.from_arrays(
        X[~harmful],
        price[~harmful],
        X[harmful],
        area[harmful],
        name=f"ames-{column}",
        feature_names=tuple(features),
    )


def wine_pair() -> TaskPair:
    """Return alcohol (benign) and cultivar (harmful) of the same wines, from the other twelve columns."""
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    X = standardize(X)
    return TaskPair.from_arrays(X[:, 1:], X[:, 0], X[:, 1:], y, name="wine")


def breast_cancer_pair() -> TaskPair:
    """Return diagnosis (benign) and smoothness (harmful) of the same cells, from the other columns."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    X, names = standardize(bunch.data), list(bunch.feature_names)
    smoothness = X[:, names.index("mean smoothness")]
    X = X[:, ["smoothness" not in name for name in names]]
    return TaskPair.from_arrays(X, bunch.target, X, smoothness, name="breast-cancer")


def load_diabetes_tasks(*, features: DiabetesFeatures = "clean") -> TaskPair:
    """Load the diabetes table (442×10) as a pair like the house prices: split by `sex`, two targets.

    The data are those of Efron et al. (2004), Least Angle Regression, Ann. Statist. 32(2).
    D_P predicts the body mass index `bmi` where sex is coded 1 (235 rows); D_H predicts the disease
    progression after one year where it is coded 2 (207 rows). `bmi` is a target, so it is a
    feature of neither. Raw units, then standardized per task with population deviations.

    Args:
        features: `clean` drops the split column `sex` (8 features); `published` keeps it, as the
            paper keeps MSZoning (9 features, that column is zero and both covariances are singular).

    Returns:
        `X_P` (235, D), `y_P` (235,), `X_H` (207, D), `y_H` (207,).

    Raises:
        UnknownNameError: Unknown `features`.

    Examples:
        >>> pair = load_diabetes_tasks()
        >>> len(pair.X_P), len(pair.X_H), pair.dimension
        (235, 207, 8)
    """
    check_known("feature set", features, get_args(DiabetesFeatures))
    from sklearn import datasets

    bunch = datasets.load_diabetes(scaled=False)
    # The file has four decimals; scikit-learn before 1.8 reads eleven values off by one in the last place.
    data, target = np.asarray(bunch.data, np.float64).round(4), np.asarray(bunch.target, np.float64)
    columns = [str(name) for name in bunch.feature_names]
    dropped = {"bmi", "sex"} if features == "clean" else {"bmi"}
    kept = [i for i, name in enumerate(columns) if name not in dropped]
    sex, bmi = data[:, columns.index("sex")], data[:, columns.index("bmi")]
    return TaskPair(
        X_P=standardize(data[sex == 1][:, kept]),
        y_P=standardize(bmi[sex == 1]),
        X_H=standardize(data[sex == 2][:, kept]),
        y_H=standardize(target[sex == 2]),
        benign_name="bmi, sex coded 1",
        harmful_name="disease progression, sex coded 2",
        feature_names=tuple(columns[i] for i in kept),
        **embedded("diabetes", "load_diabetes(scaled=False)", data=data, target=target),
    )


#: Pairs by name; the first four come with scikit-learn.
LABELED_PAIRS: dict[str, Callable[[], TaskPair]] = {
    "digits-8x8": lambda: digit_halves(load_small_digits()),
    "wine": wine_pair,
    "breast-cancer": breast_cancer_pair,
    "diabetes": load_diabetes_tasks,
    "house-prices": load_house_prices,
    **{f"ames-{column}": partial(ames_pair, column) for column in AMES_SPLITS},
    "mnist": lambda: digit_halves(load_mnist_images()),
}


def load_labeled_pair(name: str) -> TaskPair:
    """Load a pair by name, or the four files of a folder of one's own."""
    if name in LABELED_PAIRS:
        return LABELED_PAIRS[name]()
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UnknownNameError("pair of tasks", name, [*LABELED_PAIRS, "FOLDER with X_P, y_P, X_H, y_H"])

    def find(part: str) -> Path:
        found = sorted(folder.glob(f"{part}.*"))
        if not found:
            raise DataNotFoundError(
                f"{folder} has no file {part}.npy (or .csv, .parquet, …); the folder needs X_P, y_P, X_H and "
                "y_H: features (N, D) and targets (N,) of the benign task P and the harmful task H."
            )
        return found[0]

    def features(part: str) -> Any:
        stream = as_stream(find(part))
        X = stream.array(gaps="refuse")
        return pd.DataFrame(X, columns=[*stream.columns]) if stream.named else X

    def targets(part: str) -> Any:
        y = read_targets(find(part), name=part)[0]
        return y[:, 0] if y.shape[1:] == (1,) else y

    return TaskPair.from_arrays(
        features("X_P"), targets("y_P"), features("X_H"), targets("y_H"), name=folder.name
    )
