"""Data that scikit-learn carries: nothing to fetch, the same everywhere."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from condnum.data.checksums import KNOWN_CHECKSUMS, sha256_arrays
from condnum.data.digits import Digits
from condnum.data.standardise import standardise
from condnum.data.task_pair import Provenance, TaskPair
from condnum.errors import UnknownNameError

DiabetesFeatures = Literal["clean", "published"]

#: Code of `sex` in the table (1 or 2, without further meaning) of each task.
_PRETRAIN_SEX, _HARMFUL_SEX = 1.0, 2.0


def load_small_digits() -> Digits:
    """Load scikit-learn's 8×8 digits: the test half of the UCI optical recognition data set.

    Returns:
        `images` (1797, 8, 8) with grey values 0–16 and `labels` (1797,); `mean` and `std` are those
        of all pixels x/16 of all images, one number each as for MNIST.

    Examples:
        >>> digits = load_small_digits()
        >>> digits.images.shape, sum(digits.counts)
        ((1797, 8, 8), 1797)
        >>> bool(abs(digits.pixels().mean()) < 1e-12)
        True
    """
    from sklearn import __version__, datasets  # a second to import: only when asked for

    bunch = datasets.load_digits()
    images = np.asarray(bunch.images).astype(np.uint8)
    labels = np.asarray(bunch.target).astype(np.uint8)
    checksum = sha256_arrays(images=images, labels=labels)
    scaled = images / 16.0
    return Digits(
        images=images,
        labels=labels,
        name="digits-8x8",
        checksum=checksum,
        pixel_max=16.0,
        mean=float(scaled.mean()),
        std=float(scaled.std()),
        provenance=Provenance(
            source="embedded",
            location=f"scikit-learn {__version__}, load_digits",
            description="Optical recognition of handwritten digits, 8×8 pixels, grey values 0 to 16.",
            url="https://archive.ics.uci.edu/dataset/80",
            licence="CC BY 4.0",
            citation="E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.",
            known_checksum=checksum == KNOWN_CHECKSUMS["embedded/digits-8x8"],
            files={"images and labels": checksum},
        ),
    )


def load_diabetes_tasks(*, features: DiabetesFeatures = "clean") -> TaskPair:
    """Load the diabetes table (442×10) as a pair like the house prices: split by `sex`, two targets.

    D_P predicts the body mass index `bmi` where sex is coded 1 (235 rows); D_H predicts the disease
    progression after one year where it is coded 2 (207 rows). `bmi` is a target, so it is a
    feature of neither. Raw units, then standardised per task with population deviations.

    Args:
        features: `clean` drops the split column `sex` (8 features); `published` keeps it, as the
            paper keeps MSZoning (9 features, that column is zero and both covariances are singular).

    Returns:
        `X_P` (235, D), `y_P` (235,), `X_H` (207, D), `y_H` (207,).

    Raises:
        UnknownNameError: Unknown `features`.

    Examples:
        >>> pair = load_diabetes_tasks()
        >>> pair.rows_pretrain, pair.rows_harmful, pair.dimension
        (235, 207, 8)
    """
    if features not in get_args(DiabetesFeatures):
        raise UnknownNameError("feature set", features, get_args(DiabetesFeatures))
    from sklearn import __version__, datasets

    bunch = datasets.load_diabetes(scaled=False)
    data, target = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.float64)
    columns = [str(name) for name in bunch.feature_names]
    checksum = sha256_arrays(data=data, target=target)
    dropped = {"bmi", "sex"} if features == "clean" else {"bmi"}
    kept = [i for i, name in enumerate(columns) if name not in dropped]
    sex, bmi = data[:, columns.index("sex")], data[:, columns.index("bmi")]
    pretrain, harmful = sex == _PRETRAIN_SEX, sex == _HARMFUL_SEX
    return TaskPair(
        X_P=standardise(data[pretrain][:, kept]),
        y_P=standardise(bmi[pretrain]),
        X_H=standardise(data[harmful][:, kept]),
        y_H=standardise(target[harmful]),
        name="diabetes",
        pretrain_name="bmi, sex coded 1",
        harmful_name="disease progression, sex coded 2",
        feature_names=tuple(columns[i] for i in kept),
        checksum=checksum,
        provenance=Provenance(
            source="embedded",
            location=f"scikit-learn {__version__}, load_diabetes(scaled=False)",
            description="Diabetes patients: ten baseline variables, disease progression a year later.",
            url="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
            licence="as distributed with scikit-learn (BSD 3-Clause)",
            citation="B. Efron, T. Hastie, I. Johnstone and R. Tibshirani (2004), Least Angle Regression, "
            "Ann. Statist. 32(2), 407-499.",
            known_checksum=checksum == KNOWN_CHECKSUMS["embedded/diabetes"],
            files={"data and target": checksum},
            options={"features": features},
        ),
    )
