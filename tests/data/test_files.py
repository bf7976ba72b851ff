"""Files of every kind: found, checked by their sums, read in blocks, and refused with the fix."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from condnum.data import data_status, files, load_house_prices
from condnum.data.files import BOX, DataFiles, as_stream, obtain, read_targets
from condnum.errors import CondnumError
from condnum.files import data_folders, sha256_file, user_cache

ONE = DataFiles("toy", "toy/raw", ("a",), "Ask the author.")
TWO = DataFiles("toy", "toy/raw", ("a", "b"), "Ask the author.")


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_earlier_folder_wins_and_all_files_come_from_one(isolated, monkeypatch):
    assert data_folders() == (Path("data"), isolated / "cache" / "condnum")
    monkeypatch.setattr(files, "BOX", isolated / "box")
    (isolated / "mine").mkdir()
    monkeypatch.setenv("CONDNUM_DATA", str(isolated / "mine"))
    for folder, source in (
        (isolated / "box", "bundled data"),
        (user_cache(), "user cache"),
        (Path("data"), "./data"),
        (isolated / "mine", "CONDNUM_DATA"),
    ):
        path = put(folder / "toy/raw/a")
        assert (obtain(ONE).paths, obtain(ONE).source) == ((path,), source)
    both = put(user_cache() / "toy/raw/a"), put(user_cache() / "toy/raw/b.gz")
    assert obtain(TWO).paths == both
    monkeypatch.setenv("CONDNUM_DATA", "typo")
    with pytest.raises(CondnumError, match="CONDNUM_DATA is 'typo', a folder that does not exist"):
        obtain(ONE)


@pytest.mark.parametrize("place", ["toy/raw/a", "raw/a", "a"])
def test_a_given_path_and_nothing_else(isolated, place):
    path = put(isolated / "given" / place)
    for source in (isolated / "given", str(path)):
        assert (obtain(ONE, source).paths, obtain(ONE, source).source) == ((path,), "given path")
    with pytest.raises(CondnumError, match=r"Give the folder that holds them, .* got '.*given"):
        obtain(TWO, path)
    with pytest.raises(CondnumError, match=r"toy: a .or a.gz. not found in: .*elsewhere"):
        obtain(ONE, isolated / "elsewhere")


def test_bundled_files_are_known_however_they_are_compressed(isolated, monkeypatch):
    """Their README has the SHA-256 of each."""
    text = (BOX / "README.md").read_text()
    bundled = [path for path in BOX.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(bundled) == 4
    for path in bundled:
        assert sha256_file(path) in text
        assert sha256_file(path, decompress=path.suffix == ".gz") in text
    shutil.copytree(BOX, isolated / "box")
    monkeypatch.setattr(files, "BOX", isolated / "box")
    path = isolated / "box/house_prices/train.csv.gz"
    content = gzip.decompress(path.read_bytes())
    for change, known in ((b"", True), (b"\n", False)):
        path.write_bytes(gzip.compress(content + change))
        assert load_house_prices().provenance.known_checksum == known


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.realdata)])
def test_all_data_sets_come_along_and_are_known(real, request):
    rows = {"house-prices": 1460, "mnist": 10_000, "mnist-test": 10_000, "digits-8x8": 1797, "diabetes": 442}
    if real:
        request.getfixturevalue("real_data")
        rows["mnist"] = 60_000
    table = data_status().set_index("data set")
    assert table["rows"].to_dict() == rows
    assert set(table["status"]) == {"ok"}


def test_sums_of_files(tmp_path):
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, message "abc"
    path = put(tmp_path / "f.gz", "abc")
    assert sha256_file(path) == abc
    path.write_bytes(gzip.compress(b"abc"))
    assert sha256_file(path) != sha256_file(path, decompress=True) == abc
    path.write_bytes(gzip.compress(b"abc" * 99)[:-9])
    with pytest.raises(CondnumError, match="truncated or damaged gzip"):
        sha256_file(path, decompress=True)


# Features. Each writer takes a path and a matrix with columns a, b, c.

RNG = np.random.default_rng(0)
NUMBERS = {  # the type in which they are stored -> the values, and the bits by which ranks are told
    "float64": (RNG.normal(size=(53, 3)), 52),
    "float32": (RNG.normal(size=(53, 3)).astype(np.float32), 23),
    "float16": (RNG.normal(size=(53, 3)).astype(np.float16), 23),  # half precision counts as float32
    "int64": (RNG.integers(0, 200_000, (53, 3)), 52),
}


def frame(values):
    return pd.DataFrame(values, columns=[*"abc"])


WRITERS = {
    "npy": np.save,
    "fortran.npy": lambda path, X: np.save(path, np.asfortranarray(X)),
    "big-endian.npy": lambda path, X: np.save(path, X.astype(X.dtype.newbyteorder(">"))),
    "npz": lambda path, X: np.savez_compressed(path, X),
    "labeled.npz": lambda path, X: np.savez(path, X=X, other=X, y=np.arange(len(X)) % 3),
    "pt": lambda path, X: torch.save(torch.tensor(X), path),
    "labeled.pt": lambda path, X: torch.save({"f": torch.tensor(X), "y": [*"ab"], "epoch": 3}, path),
    "safetensors": lambda path, X: save_file({"X": torch.tensor(X)}, path),
    "csv": lambda path, X: frame(X).to_csv(path, index=False),
    "index.csv": lambda path, X: frame(X).to_csv(path),
    "windows.csv": lambda path, X: frame(X).to_csv(
        path, index=False, lineterminator="\r\n", encoding="utf-8-sig"
    ),
    "parquet": lambda path, X: frame(X).set_index(pd.RangeIndex(5, 58)).to_parquet(path),
    "groups.parquet": lambda path, X: frame(X).to_parquet(path, row_group_size=13),
    "index.parquet": lambda path, X: frame(X).reset_index(names="Unnamed: 0").to_parquet(path),
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 rows, so that small files have many."""
    monkeypatch.setattr(files, "MAX_BLOCK_ROWS", 8)


@pytest.mark.parametrize("stored", NUMBERS)
@pytest.mark.parametrize("kind", WRITERS)
def test_every_file_holds_the_same_rows(small_blocks, tmp_path, kind, stored):
    """In blocks, in order, again, and with columns in another order."""
    X, bits = NUMBERS[stored]
    WRITERS[kind](tmp_path / f"X.{kind}", X)
    stream, rtol = as_stream(tmp_path / f"X.{kind}"), 0
    if "csv" in kind:  # as few digits as give back the number in its own type
        rtol, bits = float(np.finfo(X.dtype if X.dtype.kind == "f" else float).eps), 52
    blocks = [*stream.blocks()]
    assert max(map(len, blocks)) <= 8
    np.testing.assert_allclose(np.concatenate(blocks), X, rtol=rtol)
    chosen = stream.select([stream.columns[2], stream.columns[0]])
    np.testing.assert_allclose(chosen.array(), X[:, [2, 0]], rtol=rtol)
    assert (stream.named, stream.dimension) == ("csv" in kind or "parquet" in kind, 3)
    assert stream.columns == (tuple("abc") if stream.named else ("x0", "x1", "x2"))
    assert np.log2(stream.stored_eps) == pytest.approx(-bits)
    assert ("it is the index, and is left out" in " ".join(stream.notes)) == ("index" in kind)
    assert ("is taken for the features, not" in " ".join(stream.notes)) == ("labeled" in kind)


ROWS = [[0.5, 2.0], [1.5, 4.0]]
TABLE = pd.DataFrame(ROWS, columns=["a", "b"])
VALUES = {
    "list": ROWS,
    "frame": TABLE,
    "nullable": TABLE.astype({"a": "Float64", "b": "Int64"}),
    "arrow": pa.table(TABLE),
    "gradient": torch.tensor(ROWS).requires_grad_(),
    "bfloat16": torch.tensor(ROWS).bfloat16(),
    "big-endian": np.array(ROWS, ">f8"),
    "masked": np.ma.masked_equal([*ROWS, [-999, 1]], -999),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_in_memory(kind):
    assert as_stream(VALUES[kind]).array().tolist() == ROWS


def test_text_says_what_was_read_and_gaps_are_gaps(tmp_path):
    path = put(tmp_path / "X.CSV", "name,a,yes\nx,1,True\n\ny,,False\nz,NA,True\nw,3,True\n")
    stream = as_stream(path)
    assert stream.notes == (f"{path}: 4 rows, 3 column(s), named by the first line: name, a, yes.",)
    assert stream.select(["yes", "a"]).array().tolist() == [[1, 1], [1, 3]]
    with pytest.raises(CondnumError, match="do not hold numbers: name; leave them out"):
        stream.array()


REFUSED = {
    "long.csv": ("a,b\n1,2,3\n4,5,6\n", r"long.csv, line 2: 3 value\(s\), but the header names 2 .*\(a, b\)"),
    "semicolons.csv": ("a;b\n1,5;2\n", r"by ';', not by commas.*sep=';'\).to_csv.*decimal=','"),
    "twice.csv": ("a,a\n1,2\n", "has the column 'a' twice"),
    "header.csv": ("a,b\n", r"shape \(0, 2\) .* not empty"),
    "X.csv.gz": ("", r"ends in '.gz', which is not a supported format"),
    "noise.npy": ("noise", "is damaged or does not match its extension"),
    "noise.pt": ("noise", "is damaged or does not match its extension"),
    "noise.parquet": ("noise", "is damaged or does not match its extension"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_as_it_is_meant(tmp_path, name):
    text, said = REFUSED[name]
    with pytest.raises(CondnumError, match=said):
        as_stream(put(tmp_path / name, text))


def test_objects_missing_files_and_archives_of_several(tmp_path):
    np.save(tmp_path / "X.npy", np.array([put], dtype=object))
    torch.save({"X": Path}, tmp_path / "X.pt")
    np.savez(tmp_path / "X.npz", first=ROWS, second=ROWS)
    for name, said in (
        ("X.npy", "holds Python objects, which are not loaded"),
        ("X.pt", "holds Python objects, which are not loaded"),
        ("X.npz", r"2 arrays \(first, second\), of which 2 may .* named X"),
        ("none.csv", "cannot read .*none.csv: .*No such file"),
        (".", "is a folder; give a file in it"),
    ):
        with pytest.raises(CondnumError, match=said):
            as_stream(tmp_path / name)


# Targets.

LABELS = ["NA", "None", "nan", "EU", "NA", "1"]
LABELED = {
    "csv": lambda path, y: y.to_csv(path, index=False),
    "index.csv": lambda path, y: y.to_csv(path),
    "table.csv": lambda path, y: y.to_frame().assign(a=1.5, b=2).to_csv(path, index=False),
    "parquet": lambda path, y: y.to_frame().to_parquet(path),
    "npy": lambda path, y: np.save(path, y.to_numpy(str)),
    "npz": lambda path, y: np.savez(path, X=np.ones((6, 2)), y=y.to_numpy(str)),
    "pt": lambda path, y: torch.save({"X": torch.ones(6, 2), "y": y.tolist()}, path),
}


@pytest.mark.parametrize("kind", LABELED)
def test_labels_are_text_as_it_stands(tmp_path, kind):
    LABELED[kind](tmp_path / f"y.{kind}", pd.Series(LABELS, name="region"))
    codes, notes = read_targets(tmp_path / f"y.{kind}", name="y_harmful")
    assert codes.tolist() == np.unique(LABELS, return_inverse=True)[1].tolist()
    assert notes[-1].endswith("as labels of 5 classes: 1, EU, NA, None, nan.")


NUMERIC = {"labels": ("y\n3\n1\n3\n", [1, 0, 1]), "numbers": ("y,z\n0.5,1\n2,2\n", [[0.5, 1], [2, 2]])}


@pytest.mark.parametrize("kind", NUMERIC)
def test_whole_numbers_are_labels_and_others_numbers(tmp_path, kind):
    text, values = NUMERIC[kind]
    codes, notes = read_targets(put(tmp_path / "y.csv", text))
    assert (codes.tolist(), f"as {kind}" in notes[-1]) == (values, True)
    for value in (pd.Series(["b", "a"], dtype="category"), ["b", "a"], torch.tensor([4, 2])):
        assert read_targets(value)[0].tolist() == [1, 0]


@pytest.mark.parametrize("text", ["id,y\n1,EU\n2,\n3,US\n", "y\n0.5\nNA\n1.5\n"])
def test_missing_targets_are_named(tmp_path, text):
    with pytest.raises(CondnumError, match=r"'y' has 1 missing value\(s\), the first in data row 2"):
        read_targets(put(tmp_path / "y.csv", text))
