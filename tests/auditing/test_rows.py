"""Two files as one pair: matched, scaled, looked at; and rows without a group each."""

import numpy as np
import pandas as pd
import pytest

from condnum.auditing import rows as module
from condnum.auditing.rows import look_at, open_pair, read_rows
from condnum.data import files
from condnum.data.files import as_stream
from condnum.data.task_pair import standardize
from condnum.errors import DataFormatError, InvalidInputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(53, 3)).astype(np.float32)
WRITERS = {
    "npy": np.save,
    "csv": lambda path, values: pd.DataFrame(values, columns=[*"abc"]).to_csv(path, index=False),
    "parquet": lambda path, values: pd.DataFrame(values, columns=[*"abc"]).to_parquet(path),
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 rows, so that small files have many."""
    monkeypatch.setattr(files, "MAX_BLOCK_ROWS", 8)


def stream(X, names=None):
    return as_stream(np.asarray(X, dtype=float) if names is None else pd.DataFrame(X, columns=[*names]))


def looked(P, H, names=None, **options):
    return look_at(*open_pair(stream(P, names), stream(H, names)), **options)


class TestPairs:
    def test_names_decide_the_order_and_drop_takes_columns_out_whatever_they_hold(self, tmp_path):
        pd.DataFrame({"id": ["x", "y"], "a": [1.0, 2.0], "b": [2.0, 5.0]}).to_parquet(tmp_path / "P.parquet")
        pd.DataFrame({"b": [3.0, 1.0], "a": [4.0, 2.0]}).to_csv(tmp_path / "H.csv", index=False)
        files = tmp_path / "P.parquet", tmp_path / "H.csv"
        with pytest.raises(InvalidInputError, match=r"H.csv has no column 'id': both tables must"):
            open_pair(*files)
        with pytest.raises(DataFormatError, match="do not hold numbers: id"):
            look_at(*open_pair(files[0], files[0]))
        P, H, notes = open_pair(*files, drop="id")
        assert (P.array().tolist(), H.array().tolist()) == ([[1, 2], [2, 5]], [[4, 3], [2, 1]])
        assert notes == [f"{files[1]}: 2 rows, 2 column(s), named by the first line: b, a."]
        for drop, said in (("c", r"unknown column to leave out .* 'c'"), ("id,a,b", "leaves no column")):
            with pytest.raises(InvalidInputError, match=said):
                open_pair(*files, drop=drop)

    def test_columns_without_names_are_dropped_by_position(self):
        P, H, notes = open_pair(stream(np.eye(3), "abc"), stream(np.eye(3)), drop="b,x1")
        assert (P.columns, H.columns) == (("a", "c"), ("x0", "x2"))
        assert "by position" in notes[0]

    def test_pairs_that_cannot_be_matched(self):
        with pytest.raises(InvalidInputError, match="2 columns and features has 4"):
            open_pair(stream(np.ones((3, 2))), stream(np.ones((3, 4))))
        with pytest.raises(InvalidInputError, match=r"no column 'a', 'b' and .* no column 'c', 'd'"):
            open_pair(stream(np.ones((3, 2)), "ab"), stream(np.ones((3, 2)), "cd"))


class TestRows:
    """One pass over the rows, against NumPy on all of them."""

    @pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
    @pytest.mark.parametrize("standardized", [False, True])
    def test_sums_of_complete_rows_whatever_the_blocks(self, small_blocks, tmp_path, kind, standardized):
        rows = X.astype(np.float64) * [1, 1e-2, 1e3] + [0, 1e3, -5]
        rows[[3, 40], [0, 2]] = np.nan
        WRITERS[kind](tmp_path / f"X.{kind}", rows)
        found = as_stream(tmp_path / f"X.{kind}")
        labels = np.arange(53) % 3
        task = look_at(found, found, standardize=standardized, y_benign=labels).benign
        whole = np.delete(rows, [3, 40], axis=0)
        kept = standardize(whole) if standardized else whole
        Y = np.eye(3)[np.delete(labels, [3, 40])]
        for own, right in (
            (task.sample, kept),
            (task.task.covariance, kept.T @ kept),
            (task.task.moment, kept.T @ Y),
        ):
            np.testing.assert_allclose(own, right, rtol=1e-8, atol=1e-8)
        assert (task.task.rows, task.total, task.gaps.tolist()) == (51, 53, [1, 0, 1])
        assert task.task.energy == pytest.approx(51)
        assert task.places.tolist() == [i for i in range(53) if i not in (3, 40)]

    def test_many_rows_are_sampled_without_replacement(self, small_blocks, monkeypatch):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 50)
        rows = np.arange(400.0)[:, None]
        counts = np.zeros(400)
        for seed in range(30):
            task = read_rows(as_stream(rows), seed=seed)
            assert (np.diff(task.places) > 0).all()
            np.testing.assert_array_equal(task.sample[:, 0], task.places)
            counts[task.places] += 1
        assert counts.sum() == 50 * 30
        assert counts.max() < 20  # of 30, where 3.75 are expected: Binomial(30, 1/8)

    def test_gaps_are_told_with_their_column_and_few_rows_too(self):
        P = RNG.normal(size=(5, 3))
        P[1:3, 0] = np.nan
        pair = looked(P, RNG.normal(size=(2, 3)))
        assert pair.notes[0] == "D_P: 2 of 5 rows have missing entries and are left out (x0: 2)."
        assert "D_H has fewer rows than columns (2 < 3)" in pair.notes[1]

    def test_empty_columns_and_infinite_values_are_named_with_their_file(self):
        P, H = RNG.normal(size=(5, 2)), RNG.normal(size=(5000, 2))
        H[4500, 1] = np.inf
        with pytest.raises(DataFormatError, match=r"data row 4,501, column 'x1'"):
            looked(P, H)
        P[:, 1] = np.nan
        said = r"0 row.s. without missing.*drop the columns.*'x1'"
        with pytest.raises(InvalidInputError, match=said):
            looked(P, H)

    def test_a_column_that_round_off_moves_is_constant_when_standardized(self):
        P = RNG.normal(size=(40, 2))
        P[:, 1] = np.where(np.arange(40) % 2, 0.1 + 0.2, 0.3)
        pair = looked(P, P[:, ::-1], standardize=True)
        assert pair.notes[:2] == (
            "D_P has 1 constant column(s) (x1).",
            "D_H has 1 constant column(s) (x0).",
        )
        assert not pair.benign.sample[:, 1].any()
        assert not pair.benign.task.covariance[1].any()
        assert not standardize(P)[:, 1].any()


class TestGroups:
    @pytest.mark.parametrize("standardized", [False, True])
    def test_each_row_is_left_out_once_whatever_the_blocks(self, small_blocks, standardized):
        """The products of all leave-outs, each brought to N rows, are near those of all rows."""
        rows = np.random.default_rng(1).normal(size=(200, 3)) * [1, 10, 0.1] + 5
        found = read_rows(as_stream(rows), standardize=standardized)
        parts = [X.mT @ X for X in found.leave_outs()]
        assert len(parts) == 10
        whole = found.sample.T @ found.sample
        if standardized:
            assert all(np.diag(K.numpy()) == pytest.approx([200.0] * 3) for K in parts)
        else:
            counts = [of.rows for of in found.groups]
            assert counts == [20] * 10
            back = sum(K.numpy() * (200 - n) / 200 for K, n in zip(parts, counts, strict=True)) / 9
            np.testing.assert_allclose(back, whole, rtol=1e-9)

    def test_groups_of_sorted_rows_are_alike(self):
        """No group holds one end of the order."""
        found = read_rows(as_stream(np.arange(1000.0)[:, None]))
        means = [float(of.mean) for of in found.groups]
        assert np.abs(np.array(means) - 499.5).max() < 4 * 1000 / 12**0.5 / 10

    @pytest.mark.parametrize(("rows", "groups"), [(21, 0), (23, 10)])
    def test_groups_need_twice_as_many_rows_as_columns_without_one(self, rows, groups):
        assert len(read_rows(as_stream(RNG.normal(size=(rows, 10)))).groups) == groups
