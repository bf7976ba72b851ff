"""Feature tables of a reader's own: what is read, and what is refused."""

import io
import pickle
import zipfile

import numpy as np
import pandas as pd
import pytest

from condnum.data.feature_table import read_feature_table, select_columns
from condnum.errors import DataFormatError, DataNotFoundError, UnknownNameError

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]])


def saved(path):
    """Write X in the format of the path's ending."""
    if path.suffix == ".npy":
        np.save(path, X)
    elif path.suffix == ".npz":
        np.savez_compressed(path, X=X)
    elif path.suffix == ".csv":
        pd.DataFrame(X, columns=list("abc")).to_csv(path, index=False)
    else:
        pd.DataFrame(X, columns=list("abc")).to_parquet(path)
    return path


@pytest.mark.parametrize("ending", ["npy", "npz", "csv", "parquet"])
def test_the_same_matrix_from_every_format(ending, tmp_path):
    table = read_feature_table(saved(tmp_path / f"X.{ending}"))
    np.testing.assert_array_equal(table.features, X)
    assert not table.features.flags.writeable
    assert table.named == (ending in ("csv", "parquet"))
    assert table.columns == (("a", "b", "c") if table.named else ("x0", "x1", "x2"))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int8, bool, ">f8"])
def test_stored_types_become_float64_and_leave_their_epsilon(kind, tmp_path):
    np.save(tmp_path / "X.npy", np.asfortranarray(X.astype(kind)))
    table = read_feature_table(tmp_path / "X.npy")
    np.testing.assert_array_equal(table.features, X.astype(kind).astype(float))
    assert table.features.dtype == np.float64
    stored = np.dtype(kind)
    assert table.stored_eps == np.finfo(stored if stored.kind == "f" else float).eps


def test_csv_without_names_with_gaps_and_a_byte_order_mark(tmp_path):
    (tmp_path / "plain.csv").write_text("1,2\n3,4\n")
    plain = read_feature_table(tmp_path / "plain.csv")
    assert plain.features.tolist() == [[1, 2], [3, 4]]
    assert not plain.named
    (tmp_path / "gaps.csv").write_bytes("\ufeffa, b\n1,\nNA,4\n".encode())
    gaps = read_feature_table(tmp_path / "gaps.csv")
    assert gaps.columns == ("a", "b")
    np.testing.assert_array_equal(gaps.features, [[1, np.nan], [np.nan, 4]])


def test_columns_in_the_order_asked_for(tmp_path):
    table = read_feature_table(saved(tmp_path / "X.csv"), columns=["c", "a"])
    np.testing.assert_array_equal(table.features, X[:, [2, 0]])
    with pytest.raises(UnknownNameError, match=r"unknown column of .*X\.csv 'd'"):
        select_columns(table, ["d"])


def test_an_npz_of_several_arrays_needs_a_key(tmp_path):
    np.savez(tmp_path / "two.npz", first=X, second=2 * X)
    with pytest.raises(DataFormatError, match="holds 2 arrays"):
        read_feature_table(tmp_path / "two.npz")
    assert read_feature_table(tmp_path / "two.npz", key="second").features[0, 0] == 2
    with pytest.raises(UnknownNameError, match="first, second"):
        read_feature_table(tmp_path / "two.npz", key="third")


class Bomb:
    """Would write a file if it were unpickled."""

    def __reduce__(self):
        return (exec, ("open('condnum-was-here', 'w')",))


def object_array():
    stream = io.BytesIO()
    np.save(stream, np.array([[Bomb()]], dtype=object), allow_pickle=True)
    return stream.getvalue()


def promise(shape):
    """A header of a huge array with nothing behind it."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


BAD = {
    "pickled objects": ("X.npy", object_array(), "Pickled objects are never loaded"),
    "a pickle named npy": ("X.npy", pickle.dumps(Bomb()), "not a NumPy file"),
    "an empty npy": ("X.npy", b"", "not a NumPy file"),
    "cut off": ("X.npy", promise((10, 10)) + b"123", "cut off"),
    "promises a terabyte": ("X.npy", promise((10**6, 10**6)), "cut off: its header promises 8,000,000"),
    "no zip": ("X.npz", b"PK\x03\x04 but no more", "damaged"),
    "text in csv": ("X.csv", b"id,a\nx,1\n", "1 column.s. do not hold numbers: id"),
    "ragged csv": ("X.csv", b"a,b\n1,2\n1,2,3\n", "not a table in CSV"),
    "empty csv": ("X.csv", b"", "not a table in CSV"),
    "names only": ("X.csv", b"a,b\n", "do not hold numbers|shape"),
    "binary csv": ("X.csv", b"\xff\xfe\x00a", "not a table in CSV"),
    "infinite": ("X.csv", b"a,b\n1,2\n3,inf\n", "data row 2, column 'b'"),
    "no parquet": ("X.parquet", b"PAR1 nothing", "not a parquet file"),
    "another ending": ("X.xlsx", b"", "ends in '.xlsx'"),
}


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.replace(" ", "-"))
def test_bad_files_are_refused_in_words(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, content, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFormatError, match=message):
        read_feature_table(tmp_path / name)
    assert not (tmp_path / "condnum-was-here").exists()


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), (0, 3)])
def test_only_matrices_are_features(shape, tmp_path):
    np.save(tmp_path / "X.npy", np.zeros(shape))
    with pytest.raises(DataFormatError, match="features are a matrix"):
        read_feature_table(tmp_path / "X.npy")


def test_complex_numbers_are_no_features(tmp_path):
    np.save(tmp_path / "X.npy", X + 1j)
    with pytest.raises(DataFormatError, match="complex128"):
        read_feature_table(tmp_path / "X.npy")


@pytest.mark.parametrize("ending", ["npy", "npz", "csv", "parquet"])
def test_the_limit_holds_for_the_matrix_as_well_as_for_the_file(ending, tmp_path):
    path = saved(tmp_path / f"X.{ending}")
    with pytest.raises(DataFormatError, match="above the limit"):
        read_feature_table(path, max_bytes=40)  # X takes 48 bytes
    zeros = np.zeros((1000, 1000))
    np.savez_compressed(tmp_path / "zeros.npz", X=zeros)  # 8 MB in 8 kB
    with pytest.raises(DataFormatError, match="unpacked"):
        read_feature_table(tmp_path / "zeros.npz", max_bytes=10**6)


def test_missing_files_and_folders(tmp_path):
    for name in ("none.npy", "none.npz", "none.csv", "none.parquet"):
        with pytest.raises(DataNotFoundError, match="No such file"):
            read_feature_table(tmp_path / name)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(DataNotFoundError, match="directory"):
        read_feature_table(tmp_path / "folder.npy")


def test_a_damaged_member_of_an_npz(tmp_path):
    with zipfile.ZipFile(tmp_path / "X.npz", "w") as archive:
        archive.writestr("X.npy", b"garbage")
    with pytest.raises(DataFormatError, match="not a NumPy file"):
        read_feature_table(tmp_path / "X.npz")
