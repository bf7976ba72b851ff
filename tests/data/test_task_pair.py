"""A pair of tasks: what it accepts, copies and says; and how columns are standardized."""

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from condnum.data import Provenance, TaskPair
from condnum.data.pairs import load_labeled_pair
from condnum.data.task_pair import read_only, standardize
from condnum.errors import DataNotFoundError
from condnum.methods.problem import ImmunizationProblem

ORIGIN = Provenance("embedded", "here", False)


def toy(**changes):
    fields = {
        "X_P": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "y_P": [0.0, 1.0, 2.0],
        "X_H": [[1, 0], [0, 1]],
        "y_H": [5, 6],
        "name": "toy",
        "benign_name": "first",
        "harmful_name": "second",
        "feature_names": ("a", "b"),
        "checksum": "0123456789abcdef" * 4,
        "provenance": ORIGIN,
    }
    return TaskPair(**{**fields, **changes})


def test_arrays_are_copies_that_cannot_be_written():
    X = np.array([[1.0, 2.0], [3.0, 4.0]])
    view = X[:]
    view.setflags(write=False)  # its base can change all the same
    pair = toy(X_H=X, X_probe=view, y_probe=[0, 1])
    X[0, 0] = 99.0
    assert pair.X_H[0].tolist() == pair.X_probe[0].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        pair.X_H[0, 0] = 0.0
    assert read_only(pair.X_H, "X") is pair.X_H


def test_samples_are_the_tasks_unless_given_and_head_cuts_everything():
    assert toy().loss_sample[0].tolist() == toy().X_P.tolist()
    pair = toy(X_loss=[[9, 9], [8, 8], [7, 7]], y_loss=[0, 1, 1], X_probe=[[7, 7], [6, 6]], y_probe=[1, 0])
    assert (pair.loss_sample[0][0].tolist(), pair.probe_sample[1].tolist()) == ([9, 9], [1, 0])
    cut = pair.head(2)
    assert cut.X_P.tolist() == [[1, 2], [3, 4]]
    assert (cut.y_P.tolist(), cut.y_loss.tolist(), len(cut.X_H)) == ([0, 1], [0, 1], 2)
    assert (cut.checksum, len(pair.head(50).X_P)) == (pair.checksum, 3)


@pytest.mark.parametrize("kind", [np.array, list, pd.Series, lambda y: pd.Series(y, dtype="category")])
def test_labels_may_be_text(kind):
    X, y = np.eye(4), ["b", "a", "b", "c"]
    pair = TaskPair.from_arrays(X, kind(y), X, [True, False, True, False])
    assert (pair.y_P.dtype, pair.y_P.tolist(), pair.y_H.tolist()) == (np.int64, [1, 0, 1, 2], [1, 0, 1, 0])
    assert pair.checksum == TaskPair.from_arrays(X, [1, 0, 1, 2], X, [1, 0, 1, 0]).checksum
    assert ImmunizationProblem.from_pair(pair).benign.outputs == 3


NAN, INF = float("nan"), float("inf")


def test_a_folder_of_four_files_is_a_pair(tmp_path):
    pd.DataFrame({"a": [1.0, 2, 4], "b": [0.5, 3, 1]}).to_csv(tmp_path / "X_P.csv", index=False)
    pd.DataFrame({"b": [3.0, 1.0], "a": [4.0, 2.0]}).to_parquet(tmp_path / "X_H.parquet")
    np.save(tmp_path / "y_P.npy", [0.5, 1, 2])
    with pytest.raises(DataNotFoundError, match=r"has no file y_H.npy .* needs X_P, y_P, X_H and y_H"):
        load_labeled_pair(str(tmp_path))
    (tmp_path / "y_H.csv").write_text("y\nNA\nEU\n")
    pair = load_labeled_pair(str(tmp_path))
    assert (pair.feature_names, pair.X_H.tolist()) == (("a", "b"), [[4, 3], [2, 1]])
    assert (pair.y_P.tolist(), pair.y_H.tolist()) == ([0.5, 1, 2], [1, 0])


def test_standardized_as_scikit_learn_does_but_constants_are_exactly_zero():
    X = np.random.default_rng(0).normal(3.0, 7.0, size=(50, 4))
    # Two orders of summation: a few eps per entry.
    np.testing.assert_allclose(standardize(X), StandardScaler().fit_transform(X), atol=1e-13)
    assert not standardize(np.full((1151, 1), 0.1)).any()  # not round-off divided by round-off
    reference = np.array([[0.0], [2.0]])  # mean 1, deviation 1
    assert standardize(np.array([[5.0]]), reference=reference).tolist() == [[4.0]]
