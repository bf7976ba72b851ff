"""Features in blocks: the same rows from every kind of file, and files that are refused."""

import os

import numpy as np
import pandas as pd
import pytest

from condnum.audit.attacks import read_targets
from condnum.data import feature_stream
from condnum.data.feature_stream import array_stream, open_feature_stream
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, UnknownNameError

X = np.random.default_rng(0).normal(size=(53, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 8 rows, so that small files have many."""
    monkeypatch.setattr(feature_stream, "MAX_BLOCK_ROWS", 8)


def saved(path, values=X):
    """Write a matrix in the format that the name says."""
    frame = pd.DataFrame(values, columns=[f"c{i}" for i in range(values.shape[1])])
    match path.name.split(".", 1)[1]:
        case "fortran.npy":
            np.save(path, np.asfortranarray(values))
        case "big.npy":
            np.save(path, values.astype(">f4"))
        case "npy":
            np.save(path, values)
        case "fortran.npz":
            np.savez(path, np.asfortranarray(values))
        case "npz":
            np.savez_compressed(path, values)
        case "csv":
            frame.to_csv(path, index=False)
        case "plain.csv":
            frame.to_csv(path, index=False, header=False)
        case "groups.parquet":
            frame.to_parquet(path, row_group_size=13)
        case "parquet":
            frame.set_index(pd.Index(range(5, 5 + len(frame)))).to_parquet(path)
    return path


KINDS = [
    "npy",
    "fortran.npy",
    "big.npy",
    "npz",
    "fortran.npz",
    "csv",
    "plain.csv",
    "parquet",
    "groups.parquet",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_holds_the_same_rows(tmp_path, kind):
    """In order, again, from the middle, and with columns in another order."""
    stream = open_feature_stream(saved(tmp_path / f"X.{kind}"))
    rtol, blocks = (1e-6 if "csv" in kind else 0), list(stream.blocks())
    assert [len(block) for block in blocks] == [8] * 6 + [5]
    np.testing.assert_allclose(np.concatenate(blocks), X, rtol=rtol)
    np.testing.assert_allclose(stream.array(), X, rtol=rtol)
    np.testing.assert_allclose(np.concatenate(list(stream.blocks(2, 5))), X[16:40], rtol=rtol)
    chosen = stream.select([stream.columns[2], stream.columns[0]])
    np.testing.assert_allclose(chosen.array(), X[:, [2, 0]], rtol=rtol)
    assert stream.count in (None, 53)
    assert stream.stored_eps == pytest.approx(2.0**-52 if "csv" in kind else 2.0**-23, rel=1e-12)


@pytest.mark.parametrize("ending", ["npy", "csv", "parquet"])
def test_rows_with_gaps_are_left_out_wherever_rows_are_read(ending, tmp_path):
    holes = X.copy()
    holes[[3, 40], [0, 2]] = np.nan
    stream = open_feature_stream(saved(tmp_path / f"X.{ending}", holes))
    kept = np.delete(X, [3, 40], axis=0)
    np.testing.assert_allclose(stream.array(), kept, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate(list(stream.blocks(5))), kept[-13 + 1 :], rtol=1e-6)
    assert sum(map(len, stream.raw_blocks())) == 53


def test_text_is_no_obstacle_where_it_is_not_read(tmp_path):
    (tmp_path / "X.csv").write_text("name,a,yes\nx,1,True\ny,,False\nz,3,True\n")
    stream = open_feature_stream(tmp_path / "X.csv").select(["yes", "a"])
    assert stream.array().tolist() == [[1, 1], [1, 3]]


def test_a_limit_on_memory():
    with pytest.raises(DataFormatError, match=r"takes more than 0\.0 MiB"):
        array_stream(X).array(max_bytes=100)


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = saved(tmp_path / "X.npy")
    blocks = open_feature_stream(path).blocks()
    next(blocks)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataFormatError, match="changed while it was read"):
        list(blocks)


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("X.txt", b"1 2", r"ends in '\.txt'"),
            ("X.npy", b"not numpy", "is not a whole NumPy file"),
            ("X.npz", b"not a zip", "is damaged"),
            ("X.csv", b"", "is empty"),
            ("X.csv", b"a,b\n1,2\n3,cat\n", "hold numbers: b .data row 2 of 'b' is 'cat'"),
            ("X.csv", b"a,b\n1,2\n1,2,3\n4,5\n", "is not a table of numbers|no end of a line|3"),
            ("X.csv", b"a;b\n1,5;2\n", "separates its cells by semicolons.*sep=';'"),
            ("X.csv", b"1,5;2,5\n2;3\n", "separates its cells by semicolons"),
            ("X.csv", b"a\tb\n1\t2\n", "separates its cells by tabs"),
            ("X.csv", b"\xff\xfe\x00a", "or not what its ending says"),
            ("X.csv", b"a,a\n1,2\n", "has the column 'a' twice"),
            ("X.parquet", b"not parquet", "or not what its ending says"),
        ],
    )
    def test_damaged_or_foreign_files(self, name, content, message, tmp_path):
        (tmp_path / name).write_bytes(content)
        with pytest.raises((DataFormatError, InvalidInputError), match=message):
            list(open_feature_stream(tmp_path / name).blocks())

    def test_a_pickle_and_a_file_that_is_cut_off(self, tmp_path):
        np.save(tmp_path / "X.npy", np.array([[{}]], dtype=object), allow_pickle=True)
        with pytest.raises(DataFormatError, match="Pickled objects are never loaded"):
            open_feature_stream(tmp_path / "X.npy")
        path = saved(tmp_path / "X.npy")
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(DataFormatError, match="is not a whole NumPy file"):
            open_feature_stream(path)

    @pytest.mark.parametrize("shape", [(3,), (2, 2, 2), (0, 3)])
    def test_what_is_no_matrix(self, shape, tmp_path):
        np.save(tmp_path / "X.npy", np.ones(shape))
        with pytest.raises(DataFormatError, match="features are a matrix"):
            open_feature_stream(tmp_path / "X.npy")

    def test_text_in_parquet_is_named(self, tmp_path):
        pd.DataFrame({"a": [1.0], "word": ["x"]}).to_parquet(tmp_path / "X.parquet")
        stream = open_feature_stream(tmp_path / "X.parquet")
        with pytest.raises(DataFormatError, match=r"do not hold numbers: word \('word' is of type"):
            list(stream.blocks())
        assert next(stream.select(["a"]).blocks()).tolist() == [[1.0]]

    @pytest.mark.parametrize("name", ["folder", "folder.npy"])
    def test_a_folder_is_called_one(self, name, tmp_path):
        (tmp_path / name).mkdir()
        for reader in (open_feature_stream, read_targets):
            with pytest.raises(DataFormatError, match="is a folder; give a file in it"):
                reader(tmp_path / name)

    def test_a_missing_file_and_an_unknown_key(self, tmp_path):
        for name in ("none.npy", "none.npz", "none.csv", "none.parquet"):
            with pytest.raises(DataNotFoundError, match=rf"cannot read .*{name}: .*No such file"):
                open_feature_stream(tmp_path / name)
        np.savez(tmp_path / "X.npz", a=X, b=X)
        with pytest.raises(UnknownNameError, match="unknown array"):
            open_feature_stream(tmp_path / "X.npz", key="c")
        with pytest.raises(DataFormatError, match=r"holds 2 arrays \(a, b\)"):
            open_feature_stream(tmp_path / "X.npz")

    def test_too_wide_says_what_it_would_take(self):
        with pytest.raises(InvalidInputError, match=r"D = 4 columns, above the limit of 3.*GiB"):
            array_stream(np.ones((2, 4)), max_dimension=3)
