import dataclasses
import pickle

import numpy as np
import pytest

from condnum.data import Provenance, TaskPair
from condnum.data.task_pair import read_only
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


def test_properties_and_titles():
    pair = toy()
    assert (pair.rows_pretrain, pair.rows_harmful, pair.dimension) == (3, 2, 2)
    assert pair.X_H.dtype == np.float64
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


def test_loss_and_probe_samples_default_to_the_tasks():
    pair = toy()
    assert pair.loss_sample[0] is pair.X_P
    assert pair.probe_sample[1] is pair.y_H


def test_loss_and_probe_samples_of_their_own():
    pair = toy(X_loss=[[9, 9], [8, 8]], y_loss=[0, 1], X_probe=[[7, 7], [6, 6], [5, 5]], y_probe=[1, 0, 1])
    assert pair.loss_sample[0].tolist() == [[9, 9], [8, 8]]
    assert pair.probe_sample[1].tolist() == [1, 0, 1]
    assert pair.dimension == 2


def test_head_cuts_everything_and_says_so():
    pair = toy(X_loss=[[9, 9], [8, 8], [7, 7]], y_loss=[0, 1, 1]).head(2)
    assert pair.X_P.tolist() == [[1, 2], [3, 4]]
    assert pair.y_P.tolist() == [0, 1]
    assert pair.rows_harmful == 2
    assert pair.loss_sample[1].tolist() == [0, 1]
    assert pair.X_probe is None
    assert pair.provenance.options == {"features": "clean", "head": 2}
    assert pair.checksum == toy().checksum


def test_head_larger_than_the_task_keeps_it():
    assert toy().head(50).rows_pretrain == 3


@pytest.mark.parametrize("rows", [1, 0, -3, 2.0, True, "3", None])
def test_head_refuses(rows):
    with pytest.raises(InvalidInputError, match=r"rows must be an integer of at least 2, got"):
        toy().head(rows)


def test_pickles_for_worker_processes():
    pair = pickle.loads(pickle.dumps(toy()))
    assert pair.title() == toy().title()
    assert np.array_equal(pair.X_P, toy().X_P)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"X_P": [[1, NAN], [3, 4], [INF, NAN]]},
            r"X_P holds 3 non-finite .* row 0, feature 'b' \(column 1\): nan",
            id="nan-X",
        ),
        pytest.param(
            {"y_H": [1.0, INF]}, r"y_H holds 1 non-finite value\(s\), the first at row 1: inf", id="inf-y"
        ),
        pytest.param({"X_H": [[1, 0]], "y_H": [1]}, r"task 'second' has 1 row\(s\) in X_H", id="one-row"),
        pytest.param({"X_H": np.empty((0, 2)), "y_H": []}, r"task 'second' has 0 row\(s\)", id="empty-split"),
        pytest.param(
            {"y_P": [4.0, 4.0, 4.0]},
            r"target y_P of task 'first' is the constant 4 over 3 rows",
            id="constant",
        ),
        pytest.param({"y_P": [0.0, 1.0]}, "X_P has 3 rows but y_P has 2 values", id="lengths"),
        pytest.param(
            {"X_H": [[1, 0, 0], [0, 1, 0]]}, "X_H has 3 columns but there are 2 feature names", id="columns"
        ),
        pytest.param(
            {"feature_names": ("a",)}, "X_P has 2 columns but there are 1 feature names", id="names"
        ),
        pytest.param(
            {"y_P": [[0.0], [1.0], [2.0]]}, r"y_P \(N,\), got shapes \(3, 2\) and \(3, 1\)", id="2d-y"
        ),
        pytest.param({"X_P": [["u", "v"]] * 3}, "X_P must hold real numbers, got dtype", id="text"),
        pytest.param(
            {"X_P": [[1, 2], [3], [4, 5]]}, "X_P is not an array .* rows of equal length", id="ragged"
        ),
        pytest.param({"X_loss": [[1, 2], [3, 4]]}, "X_loss and y_loss belong together", id="half-loss"),
        pytest.param(
            {"X_probe": [[1, 2], [3, 4]], "y_probe": [1, 1]}, "target y_probe of task 'second'", id="probe"
        ),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        toy(**changes)


def test_constant_target_when_allowed_but_never_for_the_loss():
    assert toy(y_P=[0, 0, 0], allow_constant_target=True).y_P.tolist() == [0, 0, 0]
    with pytest.raises(InvalidInputError, match=r"y_loss .* constant 1"):
        toy(X_loss=[[1, 2], [3, 4]], y_loss=[1, 1], allow_constant_target=True)
