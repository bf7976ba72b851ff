import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits

from condnum.data import digit_pair, load_diabetes_tasks, load_small_digits
from condnum.errors import UnknownNameError


def test_small_digits():
    digits = load_small_digits()
    assert np.array_equal(digits.images, load_digits().images)
    assert digits.counts == (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
    pixels = digits.pixels()
    # One mean and one deviation for all pixels; sums of 115 008 terms.
    assert pixels.mean() == pytest.approx(0, abs=1e-12)
    assert pixels.std() == pytest.approx(1, abs=1e-12)
    assert digits.provenance.source == "embedded"


def test_small_digit_pair():
    pair = digit_pair(load_small_digits(), 0, 1)
    assert pair.X_P.shape == (178, 64)
    assert pair.title().startswith("digits-8x8, embedded: 178 rows D_P, 178 rows D_H, D = 64")


@pytest.mark.parametrize(("features", "dimension"), [("clean", 8), ("published", 9)])
def test_diabetes(features, dimension):
    pair = load_diabetes_tasks(features=features)
    assert (pair.rows_pretrain, pair.rows_harmful, pair.dimension) == (235, 207, dimension)
    assert "bmi" not in pair.feature_names
    assert ("sex" in pair.feature_names) == (features == "published")
    for X in (pair.X_P, pair.X_H):
        sigma = np.linalg.eigvalsh(X.T @ X)
        assert (sigma > dimension * np.finfo(float).eps * sigma[-1]).sum() == 8
    assert pair.provenance.options == {"features": features}


def test_diabetes_targets_by_their_correlation_with_the_raw_table():
    raw = load_diabetes(scaled=False)
    pair = load_diabetes_tasks()
    first, second = raw.data[:, 1] == 1, raw.data[:, 1] == 2
    assert np.corrcoef(pair.y_P, raw.data[first, 2])[0, 1] == pytest.approx(1)
    assert np.corrcoef(pair.y_H, raw.target[second])[0, 1] == pytest.approx(1)
    assert pair.y_H.std() == pytest.approx(1)
    age = pair.feature_names.index("age")
    assert np.corrcoef(pair.X_P[:, age], raw.data[first, 0])[0, 1] == pytest.approx(1)


def test_constant_split_column_is_exactly_zero():
    pair = load_diabetes_tasks(features="published")
    sex = pair.feature_names.index("sex")
    assert not pair.X_P[:, sex].any()
    assert not pair.X_H[:, sex].any()


def test_unknown_features():
    with pytest.raises(UnknownNameError, match="unknown feature set 'all'"):
        load_diabetes_tasks(features="all")
