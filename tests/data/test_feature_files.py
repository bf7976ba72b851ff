"""Features in blocks from every kind of file, and two files as one pair: matched, scaled, looked at."""

import os

import numpy as np
import pandas as pd
import pytest

from condnum.audit.attacks import read_targets
from condnum.data import feature_stream
from condnum.data.feature_pair import look_at, match_streams, odd_columns, open_pair
from condnum.data.feature_stream import as_stream
from condnum.data.task_pair import standardize
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    UnknownNameError,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(53, 3)).astype(np.float32)

WRITERS = {
    "npy": np.save,
    "fortran.npy": lambda path, values: np.save(path, np.asfortranarray(values)),
    "big.npy": lambda path, values: np.save(path, values.astype(">f4")),
    "npz": np.savez_compressed,
    "fortran.npz": lambda path, values: np.savez(path, np.asfortranarray(values)),
    "csv": lambda path, values: frame(values).to_csv(path, index=False),
    "plain.csv": lambda path, values: frame(values).to_csv(path, index=False, header=False),
    "parquet": lambda path, values: frame(values).set_index(pd.RangeIndex(5, 58)).to_parquet(path),
    "groups.parquet": lambda path, values: frame(values).to_parquet(path, row_group_size=13),
}


def frame(values):
    return pd.DataFrame(values, columns=["c0", "c1", "c2"])


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 rows, so that small files have many."""
    monkeypatch.setattr(feature_stream, "MAX_BLOCK_ROWS", 8)


class TestBlocks:
    @pytest.mark.parametrize("kind", WRITERS)
    def test_every_kind_of_file_holds_the_same_rows(self, small_blocks, tmp_path, kind):
        """In order, again, from the middle, and with columns in another order."""
        WRITERS[kind](tmp_path / f"X.{kind}", X)
        stream = as_stream(tmp_path / f"X.{kind}")
        rtol, blocks = (1e-6 if "csv" in kind else 0), list(stream.blocks())
        assert [len(block) for block in blocks] == [8] * 6 + [5]
        np.testing.assert_allclose(np.concatenate(blocks), X, rtol=rtol)
        np.testing.assert_allclose(stream.array(), X, rtol=rtol)
        np.testing.assert_allclose(np.concatenate(list(stream.blocks(2, 5))), X[16:40], rtol=rtol)
        chosen = stream.select([stream.columns[2], stream.columns[0]])
        np.testing.assert_allclose(chosen.array(), X[:, [2, 0]], rtol=rtol)
        assert stream.count in (None, 53)
        assert stream.stored_eps == pytest.approx(2.0**-52 if "csv" in kind else 2.0**-23, rel=1e-12)

    @pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
    def test_rows_with_gaps_are_left_out_wherever_rows_are_read(self, small_blocks, kind, tmp_path):
        holes = X.copy()
        holes[[3, 40], [0, 2]] = np.nan
        WRITERS[kind](tmp_path / f"X.{kind}", holes)
        stream = as_stream(tmp_path / f"X.{kind}")
        kept = np.delete(X, [3, 40], axis=0)
        np.testing.assert_allclose(stream.array(), kept, rtol=1e-6)
        np.testing.assert_allclose(np.concatenate(list(stream.blocks(5))), kept[-13 + 1 :], rtol=1e-6)
        assert sum(map(len, stream.raw_blocks())) == 53

    def test_text_is_no_obstacle_where_it_is_not_read(self, tmp_path):
        (tmp_path / "X.csv").write_text("name,a,yes\nx,1,True\ny,,False\nz,3,True\n")
        pd.DataFrame({"yes": [1.0], "a": [1.0], "name": ["x"]}).to_parquet(tmp_path / "X.parquet")
        for ending, rows in (("csv", [[1, 1], [1, 3]]), ("parquet", [[1, 1]])):
            stream = as_stream(tmp_path / f"X.{ending}")
            assert stream.select(["yes", "a"]).array().tolist() == rows
            with pytest.raises(DataFormatError, match=r"hold numbers: name \('name' (holds 'x'|is of type)"):
                stream.array()

    def test_limits_and_a_file_that_changes_while_it_is_read(self, small_blocks, tmp_path, monkeypatch):
        monkeypatch.setattr(feature_stream, "WHOLE_BYTES", 100)
        with pytest.raises(DataFormatError, match=r"takes more than 0 MiB"):
            as_stream(X).array()
        np.save(tmp_path / "X.npy", X)
        blocks = as_stream(tmp_path / "X.npy").blocks()
        next(blocks)
        os.utime(tmp_path / "X.npy", ns=(1, 1))
        with pytest.raises(DataFormatError, match="changed while it was read"):
            list(blocks)

    def test_folders_and_missing_files(self, tmp_path):
        (tmp_path / "folder.npy").mkdir()
        for reader in (as_stream, read_targets):
            with pytest.raises(DataFormatError, match="is a folder; give a file in it"):
                reader(tmp_path / "folder.npy")
        for name in ("none.npy", "none.npz", "none.csv", "none.parquet"):
            with pytest.raises(DataNotFoundError, match=rf"cannot read .*{name}: .*No such file"):
                as_stream(tmp_path / name)


def stream(X, names=()):
    return as_stream(np.asarray(X, dtype=float), name="memory", columns=tuple(names))


def looked(P, H, names=(), **options):
    return look_at(*match_streams(stream(P, names), stream(H, names)), **options)


class TestPairs:
    def test_names_decide_the_order_and_what_is_left_out(self, tmp_path):
        pd.DataFrame({"a": [1.0], "b": [2.0], "x": [9.0]}).to_parquet(tmp_path / "P.parquet")
        pd.DataFrame({"b": [3.0], "a": [4.0]}).to_csv(tmp_path / "H.csv", index=False)
        P, H, notes = open_pair(tmp_path / "P.parquet", tmp_path / "H.csv")
        assert (P.array().tolist(), H.array().tolist()) == ([[1, 2]], [[4, 3]])
        assert len(notes) == 1
        assert "1 column(s) that occur only" in notes[0]

    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_drop_takes_columns_out_whatever_they_hold(self, tmp_path, ending):
        table = pd.DataFrame({"id": ["x", "y"], "a": [1.0, 2.0], "b": [2.0, 5.0]})
        path = tmp_path / f"X.{ending}"
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
        with pytest.raises(DataFormatError, match="do not hold numbers: id"):
            look_at(*open_pair(path, path))
        P, H, _ = open_pair(path, path, drop="id, b")
        assert P.columns == H.columns == ("a",)
        assert P.array().tolist() == [[1], [2]]
        with pytest.raises(UnknownNameError, match=r"unknown column to leave out .* 'c'"):
            open_pair(path, path, drop="c")
        with pytest.raises(InvalidInputError, match="leaves no column"):
            open_pair(path, path, drop="id,a,b")

    def test_columns_without_names_are_dropped_by_position(self):
        P, H, notes = match_streams(stream(np.eye(3), "abc"), stream(np.eye(3)), drop="b,x1")
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

    def test_pairs_that_cannot_be_matched(self):
        with pytest.raises(InvalidInputError, match="2 columns and memory has 4"):
            match_streams(stream(np.ones((3, 2))), stream(np.ones((3, 4))))
        with pytest.raises(InvalidInputError, match="no column in common"):
            match_streams(stream(np.ones((3, 2)), "ab"), stream(np.ones((3, 2)), "cd"))


class TestRows:
    def test_gaps_are_told_with_their_column_and_few_rows_too(self):
        P = RNG.normal(size=(5, 3))
        P[1:3, 0] = np.nan
        pair = looked(P, RNG.normal(size=(2, 3)))
        assert pair.pretrain.array().shape == (3, 3)
        assert pair.notes[0] == "D_P: 2 of 5 rows have missing entries and are left out (x0: 2)."
        assert "D_H has fewer rows than columns (2 < 3)" in pair.notes[1]
        assert pair.surveys[0].complete.tolist() == [True, False, False, True, True]

    def test_empty_columns_and_infinite_values_are_named_with_their_file(self):
        P, H = RNG.normal(size=(5, 2)), RNG.normal(size=(5000, 2))
        H[4500, 1] = np.inf
        with pytest.raises(DataFormatError, match=r"data row 4,501, column 'x1'") as caught:
            looked(P, H)
        assert caught.value.field == "harmful"
        H[4500, 1] = 1e200
        with pytest.raises(DataFormatError, match=r"numbers so large .* column 'x1'"):
            looked(P, H)
        P[:, 1] = np.nan
        said = r"0 row.s. without missing.*drop the columns.*'x1'"
        with pytest.raises(InvalidInputError, match=said) as caught:
            looked(P, H)
        assert caught.value.field == "pretrain"

    def test_scaled_as_the_library_does_it(self):
        # E(x²) − E(x)² of the second cancels to 1e-6 of the deviation, a sum in order is good to 1e-9 of it.
        P = RNG.normal(size=(9000, 3)) * [1, 1e-2, 1e3] + [0, 1e3, -5]
        P[:, 0] = 0.1
        holes = P.copy()
        holes[7, 1] = np.nan
        pair = looked(holes, P[:50], standardize=True)
        whole = np.delete(P, 7, axis=0)
        np.testing.assert_allclose(pair.pretrain.array(), standardize(whole), atol=1e-8)
        assert any("standardized" in note for note in pair.notes)
        np.testing.assert_allclose(pair.columns["mean_pretrain"], whole.mean(axis=0))
        np.testing.assert_allclose(pair.columns["deviation_pretrain"][1:], whole.std(axis=0)[1:])
        np.testing.assert_array_equal(pair.columns["largest_harmful"], P[:50].max(axis=0))


class TestColumns:
    def look(self, column, other=None, *, name="c", **options):
        """What a column looks like among measurements; `other` is the harmful task's."""
        P, H = RNG.normal(size=(2, 200, 6))
        P[:, 2], H[:, 2] = column, column if other is None else other
        pair = looked(P, H, ("a", "b", name, "d", "e", "f"), **options)
        assert [text for text in pair.columns["look"].drop(2) if text] == []
        return pair, pair.columns["look"][2]

    @pytest.mark.parametrize(
        ("column", "other", "kind"),
        [
            (np.ones(200), None, "constant"),
            (np.ones(200), np.arange(200) / 7, "constant in D_P"),
            (np.arange(200), None, "index"),
            (RNG.permutation(200), np.arange(900, 700, -1), "index"),
            (np.arange(200) % 3, None, "label: a few distinct"),
            (np.arange(200) % 3, 3 + np.arange(200) % 2, "label: different integers"),
            (RNG.poisson(50, size=200), None, ""),
            (RNG.normal(size=200), None, ""),
        ],
        ids=["constant", "constant-once", "sorted", "permuted", "codes", "disjoint", "counts", "measured"],
    )
    def test_odd_ones_are_known_by_their_values(self, column, other, kind):
        pair, look = self.look(column, other)
        assert look.startswith(kind)
        assert bool(look) == bool(kind) == bool(pair.notes)
        assert odd_columns(pair.columns) == (["c"] if kind.startswith(("label", "index")) else [])

    def test_an_answer_is_known_by_its_name_as_well_but_not_in_a_table_of_codes(self):
        pair, look = self.look(RNG.normal(size=200), name="Target")
        assert look == "label: by its name"
        assert "drop=Target" in pair.notes[0]
        codes = RNG.integers(0, 3, size=(200, 6))
        assert (looked(codes, codes).columns["look"] == "").all()

    @pytest.mark.parametrize("kind", ["labels", "numbers"])
    def test_the_answer_is_recognised_whatever_it_is_called(self, kind):
        y = RNG.integers(0, 4, size=200)
        targets = y if kind == "labels" else RNG.normal(size=(200, 1))
        answer = 2.5 * (y % 2) - 1 if kind == "labels" else 3 - 2 * targets[:, 0]
        pair, look = self.look(answer, targets=targets)
        assert look == "label: a function of the targets"
        assert "targets are given as well" in " ".join(pair.notes)
        with pytest.raises(CondnumError, match="has 200 rows, but there are 150 targets"):
            self.look(np.ones(200), targets=np.arange(150))
