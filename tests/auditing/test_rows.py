"""Two files as one pair: matched, scaled, looked at; and rows without a group each."""

import numpy as np
import pandas as pd
import pytest

from condnum.auditing.rows import look_at, open_pair, read_rows
from condnum.data import files
from condnum.data.files import as_stream
from condnum.data.task_pair import standardize
from condnum.errors import CondnumError

RNG = np.random.default_rng(0)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 rows, so that small files have many."""
    monkeypatch.setattr(files, "MAX_BLOCK_ROWS", 8)


def stream(X, names=None):
    return as_stream(np.asarray(X, dtype=float) if names is None else pd.DataFrame(X, columns=[*names]))


def test_names_decide_the_order_and_drop_takes_columns_out_whatever_they_hold(tmp_path):
    pd.DataFrame({"id": ["x", "y"], "a": [1.0, 2.0], "b": [2.0, 5.0]}).to_parquet(tmp_path / "P.parquet")
    pd.DataFrame({"b": [3.0, 1.0], "a": [4.0, 2.0]}).to_csv(tmp_path / "H.csv", index=False)
    files = tmp_path / "P.parquet", tmp_path / "H.csv"
    with pytest.raises(CondnumError, match=r"H.csv has no column 'id': both tables must"):
        open_pair(*files)
    P, H, notes = open_pair(*files, drop="id")
    assert (P.array().tolist(), H.array().tolist()) == ([[1, 2], [2, 5]], [[4, 3], [2, 1]])
    assert notes == [f"{files[1]}: 2 rows, 2 column(s), named by the first line: b, a."]
    with pytest.raises(CondnumError, match=r"unknown column to leave out .* 'c'"):
        open_pair(*files, drop="c")
    P, H, _ = open_pair(stream(np.eye(3), "abc"), stream(np.eye(3)), drop="b,x1")  # by position
    assert (P.columns, H.columns) == (("a", "c"), ("x0", "x2"))
    with pytest.raises(CondnumError, match="2 columns and features has 4"):
        open_pair(stream(np.ones((3, 2))), stream(np.ones((3, 4))))


@pytest.mark.parametrize("kind", ["npy", "csv"])
@pytest.mark.parametrize("standardized", [False, True])
def test_sums_are_those_of_complete_rows_whatever_the_blocks(small_blocks, tmp_path, kind, standardized):
    """One pass over the rows, against NumPy on all of them."""
    rows = RNG.normal(size=(53, 3)) * [1, 1e-2, 1e3] + [0, 1e3, -5]
    rows[[3, 40], [0, 2]] = np.nan
    path, labels = tmp_path / f"X.{kind}", np.arange(53) % 3
    np.save(path, rows) if kind == "npy" else pd.DataFrame(rows, columns=[*"abc"]).to_csv(path, index=False)
    found = as_stream(path)
    pair = look_at(found, found, standardize=standardized, y_benign=labels)
    whole = np.delete(rows, [3, 40], axis=0)
    kept = standardize(whole) if standardized else whole
    Y, task = np.eye(3)[np.delete(labels, [3, 40])], pair.benign
    for own, right in (
        (task.sample, kept),
        (task.task.covariance, kept.T @ kept),
        (task.task.moment, kept.T @ Y),
    ):
        np.testing.assert_allclose(own, right, rtol=1e-8, atol=1e-8)
    assert (task.task.rows, task.total, task.gaps.tolist()) == (51, 53, [1, 0, 1])
    assert pair.notes[0].startswith("D_P: 2 of 53 rows have missing entries and are left out")


def test_empty_columns_and_infinite_values_are_named():
    P, H = RNG.normal(size=(5, 2)), RNG.normal(size=(5000, 2))
    H[4500, 1] = np.inf
    for column, said in (
        (P[:, 1], r"data row 4,501, column 'x1'"),
        (np.nan, r"0 row.s. without missing.*'x1'"),
    ):
        P[:, 1] = column
        with pytest.raises(CondnumError, match=said):
            look_at(*open_pair(stream(P), stream(H)))


def test_a_column_that_round_off_moves_is_constant_when_standardized():
    P = RNG.normal(size=(40, 2))
    P[:, 1] = np.where(np.arange(40) % 2, 0.1 + 0.2, 0.3)
    pair = look_at(*open_pair(stream(P), stream(P[:, ::-1])), standardize=True)
    said = "D_P has 1 constant column(s) (x1).", "D_H has 1 constant column(s) (x0)."
    assert pair.notes[:2] == said
    assert not pair.benign.sample[:, 1].any()
    assert not pair.benign.task.covariance[1].any()


@pytest.mark.parametrize("standardized", [False, True])
def test_each_row_is_left_out_once_whatever_the_blocks(small_blocks, standardized):
    """The products of all leave-outs, each brought to N rows, are near those of all rows."""
    rows = np.random.default_rng(1).normal(size=(200, 3)) * [1, 10, 0.1] + 5
    found = read_rows(as_stream(rows), standardize=standardized)
    parts = [X.mT @ X for X in found.leave_outs()]
    assert [of.rows for of in found.groups] == [20] * len(parts) == [20] * 10
    if standardized:
        assert all(np.diag(K.numpy()) == pytest.approx([200.0] * 3) for K in parts)
    else:
        back = sum(K.numpy() * 180 / 200 for K in parts) / 9
        np.testing.assert_allclose(back, found.sample.T @ found.sample, rtol=1e-9)


def test_groups_of_sorted_rows_are_alike_and_there_are_none_of_few_rows():
    """No group holds one end of the order; a group has to leave twice as many rows as columns."""
    found = read_rows(as_stream(np.arange(1000.0)[:, None]))
    means = [float(of.mean) for of in found.groups]
    assert np.abs(np.array(means) - 499.5).max() < 4 * 1000 / 12**0.5 / 10
    counts = [len(read_rows(as_stream(RNG.normal(size=(rows, 10)))).groups) for rows in (21, 23)]
    assert counts == [0, 10]
