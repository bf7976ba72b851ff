import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import LabelEncoder, StandardScaler

from condnum.data.task_pair import label_encode, standardise


def test_hand_derived():
    # mean 2, population variance ((−2)² + 0 + 2²)/3 = 8/3
    z = standardise(np.array([0.0, 2.0, 4.0]))
    assert z == pytest.approx([-2 / (8 / 3) ** 0.5, 0.0, 2 / (8 / 3) ** 0.5], rel=1e-15)


def test_a_constant_that_floating_point_cannot_average_is_exactly_zero():
    column = np.full((1151, 1), 0.1)
    naive = (column - column.mean()) / column.std()
    assert abs(naive).max() > 0.5  # the trap is real: round-off divided by round-off
    assert not standardise(column).any()


def test_reference_rows_give_the_mean_and_deviation():
    reference = np.array([[0.0], [2.0]])  # mean 1, deviation 1
    assert standardise(np.array([[5.0]]), reference=reference).tolist() == [[4.0]]


def test_agrees_with_scikit_learn():
    X = np.random.default_rng(0).normal(3.0, 7.0, size=(50, 4))
    # Two orders of summation: a few eps per entry.
    np.testing.assert_allclose(standardise(X), StandardScaler().fit_transform(X), atol=1e-13)


@given(st.lists(st.text(alphabet="aZ0 é", max_size=3), min_size=1, max_size=30))
def test_label_encode_agrees_with_scikit_learn(values):
    array = np.array(values, dtype=str)
    assert label_encode(array).tolist() == LabelEncoder().fit_transform(array).tolist()
