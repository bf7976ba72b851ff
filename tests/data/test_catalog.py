"""Where files are found, what their sums say, and what the catalog says of them."""

import gzip
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from condnum.data import (
    available,
    data_folders,
    data_status,
    load_house_prices,
    sha256_arrays,
    sha256_file,
    user_cache,
)
from condnum.data.catalog import BOX, DataFiles, FoundFiles, obtain
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError

ONE = DataFiles("toy", "toy/raw", (("a.gz", "a"),), "Ask the author.")
TWO = DataFiles("toy", "toy/raw", (("a.gz", "a"), ("b",)), "Ask the author.")
RAW = Path("data/MNIST/raw")


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestFolders:
    def test_the_earlier_one_wins(self, isolated, monkeypatch):
        assert data_folders() == (Path("data"), isolated / "cache" / "condnum")
        monkeypatch.setattr("condnum.data.catalog.BOX", isolated / "box")
        path = put(isolated / "box/toy/raw/a")
        assert obtain(ONE) == FoundFiles(ONE, (path,), "bundled data")
        path = put(user_cache() / "toy/raw/a")
        assert obtain(ONE) == FoundFiles(ONE, (path,), "user cache")
        path = put(Path("data/toy/raw/a"))
        (isolated / "mine").mkdir()
        monkeypatch.setenv("CONDNUM_DATA", str(isolated / "mine"))
        assert obtain(ONE) == FoundFiles(ONE, (path,), "./data")
        path = put(isolated / "mine/toy/raw/a")
        assert obtain(ONE) == FoundFiles(ONE, (path,), "CONDNUM_DATA")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert user_cache() == Path.home() / ".cache" / "condnum"

    def test_all_files_come_from_one_folder(self):
        put(Path("data/toy/raw/a"))
        paths = (put(user_cache() / "toy/raw/a"), put(user_cache() / "toy/raw/b"))
        assert obtain(TWO).paths == paths

    @pytest.mark.parametrize("place", ["toy/raw/a", "raw/a", "a"])
    def test_a_given_path_and_nothing_else(self, isolated, place):
        path = put(isolated / "given" / place)
        for source in (isolated / "given", str(path)):
            assert obtain(ONE, source) == FoundFiles(ONE, (path,), "given path")
        with pytest.raises(InvalidInputError, match="toy needs 2 files; give the folder"):
            obtain(TWO, path)
        with pytest.raises(DataNotFoundError, match=r"Give an existing path, .* got '.*elsewhere'"):
            obtain(ONE, isolated / "elsewhere")


def test_bundled_files_are_known_however_they_are_compressed(isolated, monkeypatch):
    """Their README has the SHA-256 of each."""
    text = (BOX / "README.md").read_text()
    files = [path for path in BOX.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) == 4
    for path in files:
        assert sha256_file(path) in text
        assert sha256_file(path, decompress=path.suffix == ".gz") in text
    shutil.copytree(BOX, isolated / "box")
    monkeypatch.setattr("condnum.data.catalog.BOX", isolated / "box")
    path = isolated / "box/house_prices/train.csv.gz"
    content = gzip.decompress(path.read_bytes())
    for change, known in ((b"", True), (b"\n", False)):
        path.write_bytes(gzip.compress(content + change))
        assert load_house_prices().provenance.known_checksum == known


def test_sums_of_files(tmp_path):
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, message "abc"
    path = put(tmp_path / "f.gz", "abc")
    assert sha256_file(path) == abc
    path.write_bytes(gzip.compress(b"abc"))
    assert sha256_file(path) != sha256_file(path, decompress=True) == abc
    for content in (b"plain text", gzip.compress(b"abc" * 99)[:-9]):
        path.write_bytes(content)
        with pytest.raises(DataFormatError, match="truncated or damaged gzip"):
            sha256_file(path, decompress=True)
    with pytest.raises(DataNotFoundError, match=r"cannot read .*absent"):
        sha256_file(tmp_path / "absent")
    both = FoundFiles(TWO, (put(tmp_path / "a"), put(tmp_path / "b")), "given path")
    assert both.checksum == hashlib.sha256("".join(f"{x}\n" for x in both.checksums).encode()).hexdigest()


def test_sums_of_arrays_depend_on_name_shape_type_and_values():
    a = np.arange(6.0)
    others = {"b": a}, {"a": a.reshape(2, 3)}, {"a": a.astype(np.float32)}, {"a": a + 1}
    assert len({sha256_arrays(a=a), *(sha256_arrays(**other) for other in others)}) == 5
    assert sha256_arrays(a=a.reshape(2, 3)) == sha256_arrays(a=np.asfortranarray(a.reshape(2, 3)))
    assert sha256_arrays(a=a) == sha256_arrays(a=a.astype(">f8"))


class TestCatalog:
    def test_nothing_here_but_what_comes_along(self):
        found = {status.name: status for status in available()}
        assert list(found) == ["house-prices", "mnist", "mnist-test", "digits-8x8", "diabetes"]
        assert [s.source for s in found.values()] == ["bundled data"] * 3 + ["embedded"] * 2
        assert [s.rows for s in found.values()] == [1460, 10_000, 10_000, 1797, 442]
        assert [s.status for s in found.values()] == ["ok"] * 5

    def test_unknown_and_broken_files_are_statuses(self, write_houses, write_mnist, monkeypatch):
        path = write_houses(Path("data/house_prices/train.csv"))
        houses = data_status("house-prices")
        assert (houses.status, houses.rows, houses.checksum) == ("unknown checksum", 5, sha256_file(path))
        write_houses(Path("data/house_prices/train.csv"), drop=("SalePrice",))
        assert data_status("house-prices").status == "broken"
        write_mnist(RAW)
        assert data_status("mnist").rows == 30
        monkeypatch.setenv("CONDNUM_DATA", "typo")
        mnist = data_status("mnist")
        assert (mnist.status, mnist.source, mnist.rows) == ("missing", "", None)
        assert "CONDNUM_DATA is 'typo'" in mnist.advice

    @pytest.mark.realdata
    def test_real_data_is_whole(self, real_data):
        assert [s.rows for s in available()] == [1460, 60_000, 10_000, 1797, 442]
        assert all(s.status == "ok" and s.advice == "" for s in available())
