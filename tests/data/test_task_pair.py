"""A pair of tasks: what it accepts, copies and says; and the two steps that tabular loaders share."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import LabelEncoder, StandardScaler

from condnum.data import Provenance, TaskPair
from condnum.data.task_pair import label_encode, read_only, standardise
from condnum.errors import InvalidInputError

ORIGIN = Provenance("embedded", "here", "toy", "", "", "", False, options={"features": "clean"})


def toy(**changes):
    fields = {
        "X_P": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "y_P": [0.0, 1.0, 2.0],
        "X_H": [[1, 0], [0, 1]],
        "y_H": [5, 6],
        "name": "toy",
        "pretrain_name": "first",
        "harmful_name": "second",
        "feature_names": ("a", "b"),
        "checksum": "0123456789abcdef" * 4,
        "provenance": ORIGIN,
    }
    return TaskPair(**{**fields, **changes})


def test_titles_here_and_in_a_worker_process():
    pair = pickle.loads(pickle.dumps(toy()))
    assert np.array_equal(pair.X_P, toy().X_P)
    assert pair.title() == "toy, embedded: 3 rows D_P, 2 rows D_H, D = 2, SHA-256 01234567"
    assert pair.describe() == (
        "toy, embedded: D_P = first (3 rows), D_H = second (2 rows), 2 features, SHA-256 01234567"
    )


def test_arrays_are_copies_that_cannot_be_written():
    X = np.array([[1.0, 2.0], [3.0, 4.0]])
    pair = toy(X_H=X)
    X[0, 0] = 99.0
    assert pair.X_H[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        pair.X_H[0, 0] = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        pair.name = "other"


def test_read_only_array_is_shared_not_copied():
    X = np.ones((2, 2))
    X.setflags(write=False)
    assert read_only(X, "X") is X


def test_a_read_only_view_is_copied_because_its_base_can_change():
    base = np.ones((2, 2))
    view = base[:]
    view.setflags(write=False)
    frozen = read_only(view, "X")
    base[0, 0] = 5.0
    assert frozen.tolist() == [[1, 1], [1, 1]]


def test_loss_and_probe_samples_are_the_tasks_unless_given():
    pair = toy()
    assert pair.loss_sample[0] is pair.X_P
    assert pair.probe_sample[1] is pair.y_H
    pair = toy(X_loss=[[9, 9], [8, 8]], y_loss=[0, 1], X_probe=[[7, 7], [6, 6], [5, 5]], y_probe=[1, 0, 1])
    assert pair.loss_sample[0].tolist() == [[9, 9], [8, 8]]
    assert pair.probe_sample[1].tolist() == [1, 0, 1]


def test_head_cuts_everything_and_says_so():
    pair = toy(X_loss=[[9, 9], [8, 8], [7, 7]], y_loss=[0, 1, 1]).head(2)
    assert pair.X_P.tolist() == [[1, 2], [3, 4]]
    assert pair.y_P.tolist() == [0, 1]
    assert pair.rows_harmful == 2
    assert pair.loss_sample[1].tolist() == [0, 1]
    assert pair.X_probe is None
    assert pair.provenance.options == {"features": "clean", "head": 2}
    assert pair.checksum == toy().checksum
    assert toy().head(50).rows_pretrain == 3


@pytest.mark.parametrize("rows", [1, 0, -3, 2.0, True, "3", None])
def test_head_refuses(rows):
    with pytest.raises(InvalidInputError, match=r"rows must be an integer of at least 2, got"):
        toy().head(rows)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"X_P": [[1, NAN], [3, 4], [INF, NAN]]},
            r"X_P holds 3 non-finite .* row 0, feature 'b' \(column 1\): nan",
        ),
        ({"y_H": [1.0, INF]}, r"y_H holds 1 non-finite value\(s\), the first at row 1: inf"),
        ({"X_H": [[1, 0]], "y_H": [1]}, r"task 'second' has 1 row\(s\) in X_H"),
        ({"X_H": np.empty((0, 2)), "y_H": []}, r"task 'second' has 0 row\(s\)"),
        ({"y_P": [4.0, 4.0, 4.0]}, r"target y_P of task 'first' is the constant 4 over 3 rows"),
        ({"y_P": [0.0, 1.0]}, "X_P has 3 rows but y_P has 2 values"),
        ({"X_H": [[1, 0, 0], [0, 1, 0]]}, "X_H has 3 columns but there are 2 feature names"),
        ({"y_P": [[0.0], [1.0], [2.0]]}, r"y_P \(N,\), got shapes \(3, 2\) and \(3, 1\)"),
        ({"X_P": [["u", "v"]] * 3}, "X_P must hold real numbers, got dtype"),
        ({"X_P": [[1, 2], [3], [4, 5]]}, "X_P is not an array .* rows of equal length"),
        ({"X_loss": [[1, 2], [3, 4]]}, "X_loss and y_loss belong together"),
        ({"X_probe": [[1, 2], [3, 4]], "y_probe": [1, 1]}, "target y_probe of task 'second'"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        toy(**changes)


def test_constant_target_when_allowed_but_never_for_the_loss():
    assert toy(y_P=[0, 0, 0], allow_constant_target=True).y_P.tolist() == [0, 0, 0]
    with pytest.raises(InvalidInputError, match=r"y_loss .* constant 1"):
        toy(X_loss=[[1, 2], [3, 4]], y_loss=[1, 1], allow_constant_target=True)


def test_standardised_by_hand():
    # mean 2, population variance ((−2)² + 0 + 2²)/3 = 8/3
    z = standardise(np.array([0.0, 2.0, 4.0]))
    assert z == pytest.approx([-2 / (8 / 3) ** 0.5, 0.0, 2 / (8 / 3) ** 0.5], rel=1e-15)


def test_a_constant_that_floating_point_cannot_average_is_exactly_zero():
    column = np.full((1151, 1), 0.1)
    naive = (column - column.mean()) / column.std()
    assert abs(naive).max() > 0.5  # the trap is real: round-off divided by round-off
    assert not standardise(column).any()
    reference = np.array([[0.0], [2.0]])  # mean 1, deviation 1
    assert standardise(np.array([[5.0]]), reference=reference).tolist() == [[4.0]]


def test_standardised_as_scikit_learn_does():
    X = np.random.default_rng(0).normal(3.0, 7.0, size=(50, 4))
    # Two orders of summation: a few eps per entry.
    np.testing.assert_allclose(standardise(X), StandardScaler().fit_transform(X), atol=1e-13)


@given(st.lists(st.text(alphabet="aZ0 é", max_size=3), min_size=1, max_size=30))
def test_label_encode_agrees_with_scikit_learn(values):
    array = np.array(values, dtype=str)
    assert label_encode(array).tolist() == LabelEncoder().fit_transform(array).tolist()
