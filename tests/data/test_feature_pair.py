"""Two files as one pair: matched columns, rows with gaps, scales, and columns that are no features."""

import numpy as np
import pandas as pd
import pytest

from condnum.data.feature_pair import look_at, match_streams, odd_columns, open_pair
from condnum.data.feature_stream import array_stream
from condnum.data.task_pair import standardise
from condnum.errors import CondnumError, DataFormatError, InvalidInputError, UnknownNameError

RNG = np.random.default_rng(0)


def stream(X, names=()):
    return array_stream(np.asarray(X, dtype=float), name="memory", columns=tuple(names))


def looked(P, H, names=(), **options):
    return look_at(*match_streams(stream(P, names), stream(H, names)), **options)


class TestMatching:
    def test_a_clean_pair_is_left_as_it_is(self):
        P, H = RNG.normal(size=(9, 3)), RNG.normal(size=(8, 3))
        pair = looked(P, H)
        np.testing.assert_array_equal(pair.pretrain.array(), P)
        np.testing.assert_array_equal(pair.harmful.array(), H)
        assert pair.notes == ()

    def test_names_decide_the_order_and_what_is_left_out(self, tmp_path):
        pd.DataFrame({"a": [1.0], "b": [2.0], "x": [9.0]}).to_parquet(tmp_path / "P.parquet")
        pd.DataFrame({"b": [3.0], "a": [4.0]}).to_csv(tmp_path / "H.csv", index=False)
        P, H, notes = open_pair(tmp_path / "P.parquet", tmp_path / "H.csv")
        assert (P.array().tolist(), H.array().tolist()) == ([[1, 2]], [[4, 3]])
        assert len(notes) == 1
        assert "1 column(s) that only" in notes[0]

    def test_drop_takes_columns_out_whatever_they_hold(self, tmp_path):
        for name in "PH":
            frame = pd.DataFrame({"id": ["x", "y"], "a": [1.0, 2.0], "b": [2.0, 5.0]})
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
            frame.to_parquet(tmp_path / f"{name}.parquet")
        for ending in ("csv", "parquet"):
            files = [tmp_path / f"{name}.{ending}" for name in "PH"]
            with pytest.raises(DataFormatError, match="do not hold numbers: id"):
                look_at(*open_pair(*files))
            P, H, _ = open_pair(*files, drop="id, b")
            assert P.columns == H.columns == ("a",)
            assert P.array().tolist() == [[1], [2]]
        with pytest.raises(UnknownNameError, match=r"unknown column to leave out .* 'c'"):
            open_pair(*files, drop="c")
        with pytest.raises(InvalidInputError, match="leaves no column"):
            open_pair(*files, drop="id,a,b")

    def test_columns_without_names_are_dropped_by_position(self):
        P, H, notes = match_streams(stream(np.eye(3), "abc"), stream(np.eye(3)), drop="b")
        assert (P.columns, H.columns) == (("a", "c"), ("x0", "x2"))
        assert "by position" in notes[0]

    def test_an_archive_of_both_tasks(self, tmp_path):
        np.savez(tmp_path / "both.npz", first=np.eye(2), second=np.ones((3, 2)))
        path = tmp_path / "both.npz"
        P, H, _ = open_pair(path, path, key="first,second")
        assert (len(P.array()), len(H.array())) == (2, 3)
        with pytest.raises(UnknownNameError, match="first, second") as caught:
            open_pair(path, path, key="first,third")
        assert caught.value.field == "harmful"

    @pytest.mark.parametrize(
        ("P", "H", "message"),
        [
            (stream(np.ones((3, 2))), stream(np.ones((3, 4))), "2 columns and memory has 4"),
            (stream(np.ones((3, 2)), "ab"), stream(np.ones((3, 2)), "cd"), "no column in common"),
        ],
        ids=["widths", "nothing-in-common"],
    )
    def test_pairs_that_cannot_be_matched(self, P, H, message):
        with pytest.raises(InvalidInputError, match=message):
            match_streams(P, H)


class TestRows:
    def test_gaps_are_told_with_their_column_and_few_rows_too(self):
        P = RNG.normal(size=(5, 3))
        P[1:3, 0] = np.nan
        pair = looked(P, RNG.normal(size=(2, 3)))
        assert pair.pretrain.array().shape == (3, 3)
        assert pair.notes[0] == "D_P: 2 of 5 rows have missing entries and are left out (x0: 2)."
        assert "D_H has fewer rows than columns (2 < 3)" in pair.notes[1]
        assert pair.surveys[0].complete.tolist() == [True, False, False, True, True]

    def test_an_empty_column_is_named_with_what_to_do(self):
        P = RNG.normal(size=(5, 2))
        P[:, 1] = np.nan
        with pytest.raises(InvalidInputError, match=r"0 row.s. without missing.*leave out.*'x1'") as caught:
            looked(P, RNG.normal(size=(5, 2)))
        assert caught.value.field == "pretrain"

    def test_infinite_values_are_refused_with_their_place(self):
        H = RNG.normal(size=(5000, 2))
        H[4500, 1] = np.inf
        with pytest.raises(DataFormatError, match=r"data row 4,501, column 'x1'") as caught:
            looked(RNG.normal(size=(5, 2)), H)
        assert caught.value.field == "harmful"

    def test_standardised_as_the_library_does_it(self):
        P = RNG.normal(size=(9000, 3)) * [1, 1e-3, 1e3] + [0, 1e4, -5]  # the second would cancel
        P[:, 0] = 0.1
        holes = P.copy()
        holes[7, 1] = np.nan
        pair = looked(holes, P[:50], standardise=True)
        np.testing.assert_allclose(pair.pretrain.array(), standardise(np.delete(P, 7, axis=0)), atol=1e-8)
        assert any("standardised" in note for note in pair.notes)


class TestColumns:
    def measured(self, rows=200, D=6):
        return RNG.normal(size=(rows, D))

    def look(self, column, other=None, *, name="c", **options):
        """What a column looks like among measurements; `other` is the harmful task's."""
        P, H = self.measured(), self.measured()
        P[:, 2], H[:, 2] = column, column if other is None else other
        pair = looked(P, H, ("a", "b", name, "d", "e", "f"), **options)
        return pair, pair.columns["look"][2]

    def test_scales_are_those_of_all_complete_rows(self):
        X = self.measured(rows=9000) * [1, 10, 100, 1, 1, 1] + 3
        table = looked(X, X[:100]).columns
        np.testing.assert_allclose(table["mean_pretrain"], X.mean(axis=0))
        np.testing.assert_allclose(table["deviation_pretrain"], X.std(axis=0))
        np.testing.assert_array_equal(table["largest_harmful"], X[:100].max(axis=0))
        assert (table["look"] == "").all()

    @pytest.mark.parametrize(
        ("column", "other", "kind"),
        [
            (np.ones(200), None, "constant"),
            (np.ones(200), np.arange(200) / 7, "constant in D_P"),
            (np.arange(200), None, "index"),
            (RNG.permutation(200), np.arange(900, 700, -1), "index"),
            (np.arange(200) % 3, None, "label: a few whole"),
            (np.arange(200) % 3, 3 + np.arange(200) % 2, "label: other whole"),
            (RNG.poisson(50, size=200), None, ""),
            (RNG.normal(size=200), None, ""),
        ],
        ids=["constant", "constant-once", "sorted", "permuted", "codes", "disjoint", "counts", "measured"],
    )
    def test_odd_ones_are_known_by_their_values(self, column, other, kind):
        pair, look = self.look(column, other)
        assert look.startswith(kind)
        assert bool(look) == bool(kind)
        assert odd_columns(pair.columns) == (["c"] if kind.startswith(("label", "index")) else [])

    def test_an_answer_is_known_by_its_name_as_well(self):
        pair, look = self.look(RNG.normal(size=200), name="Target")
        assert look == "label: so it is called"
        assert "drop=Target" in pair.notes[0]

    def test_tables_of_codes_are_not_tables_of_labels(self):
        X = RNG.integers(0, 3, size=(200, 6))
        assert (looked(X, X).columns["look"] == "").all()

    @pytest.mark.parametrize("kind", ["labels", "numbers"])
    def test_the_answer_is_recognised_whatever_it_is_called(self, kind):
        y = RNG.integers(0, 4, size=200)
        targets = y if kind == "labels" else RNG.normal(size=(200, 1))
        answer = 2.5 * (y % 2) - 1 if kind == "labels" else 3 - 2 * targets[:, 0]
        pair, look = self.look(answer, targets=targets)
        assert look == "label: a function of the targets"
        assert "targets are given as well" in " ".join(pair.notes)
        assert [text for text in pair.columns["look"] if text] == [look]

    def test_targets_of_other_rows(self):
        with pytest.raises(CondnumError, match="has 200 rows, but there are 150 targets"):
            self.look(np.ones(200), targets=np.arange(150))
