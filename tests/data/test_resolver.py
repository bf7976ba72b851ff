import gzip
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from condnum.data import data_folders, load_house_prices, load_mnist_images, sha256_file, user_cache
from condnum.data.resolver import BOX, DataFiles, Found, find, missing_message, obtain
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError

ONE = DataFiles("toy", "toy/raw", (("a.gz", "a"),), "Ask the author.", "load_other()")
TWO = DataFiles("toy", "toy/raw", (("a.gz", "a"), ("b",)), "Ask the author.", "load_other()")


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_order_of_folders(isolated, monkeypatch):
    assert data_folders() == (Path("data"), isolated / "cache" / "condnum")
    monkeypatch.setenv("CONDNUM_DATA", "/somewhere")
    assert data_folders() == (Path("/somewhere"), Path("data"), isolated / "cache" / "condnum")


def test_cache_without_xdg(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "condnum"


def test_earlier_folder_wins(isolated, monkeypatch):
    monkeypatch.setattr("condnum.data.resolver.BOX", isolated / "box")
    in_box = put(isolated / "box/toy/raw/a")
    assert (find(ONE).paths, find(ONE).source) == ((in_box,), "condnum's box")
    assert find(ONE, "local") is None
    in_cache = put(user_cache() / "toy/raw/a")
    assert (find(ONE).paths, find(ONE).source) == ((in_cache,), "user cache")
    in_data = put(Path("data/toy/raw/a"))
    assert find(ONE).paths == (in_data,)
    (isolated / "mine").mkdir()
    monkeypatch.setenv("CONDNUM_DATA", str(isolated / "mine"))
    assert (find(ONE).paths, find(ONE).source) == ((in_data,), "./data")
    in_mine = put(isolated / "mine/toy/raw/a")
    assert (find(ONE).paths, find(ONE).source) == ((in_mine,), "CONDNUM_DATA")


def test_what_is_taken_instead_comes_from_the_first_folder_that_has_either():
    either = replace(ONE, instead=replace(ONE, names=(("b",),)))
    in_cache = put(user_cache() / "toy/raw/a")
    assert find(either).paths == (in_cache,)
    in_data = put(Path("data/toy/raw/b"))
    assert find(either) == Found(either.instead, (in_data,), "./data")


def test_preferred_name_wins():
    put(Path("data/toy/raw/a"))
    compressed = put(Path("data/toy/raw/a.gz"))
    assert find(ONE).paths == (compressed,)


def test_all_files_come_from_one_folder():
    put(Path("data/toy/raw/a"))
    assert find(TWO) is None
    paths = (put(user_cache() / "toy/raw/a"), put(user_cache() / "toy/raw/b"))
    assert find(TWO).paths == paths


@pytest.mark.parametrize("place", ["toy/raw/a", "raw/a", "a"])
def test_explicit_folder(isolated, place):
    path = put(isolated / "given" / place)
    assert obtain(ONE, isolated / "given").paths == (path,)
    assert obtain(ONE, isolated / "given").source == "given path"


def test_explicit_file(isolated):
    path = put(isolated / "any-name.txt")
    assert obtain(ONE, str(path)).paths == (path,)
    with pytest.raises(InvalidInputError, match="toy needs 2 files; give the folder"):
        find(TWO, path)


def test_explicit_path_never_falls_through(isolated):
    put(Path("data/toy/raw/a"))
    with pytest.raises(DataNotFoundError, match=r"Give an existing path, or 'auto', .* got '.*elsewhere'"):
        obtain(ONE, isolated / "elsewhere")


def test_embedded_is_refused_by_name():
    with pytest.raises(InvalidInputError, match=r"toy is not embedded; use load_other\(\)"):
        find(ONE, "embedded")


def test_the_message_says_where_and_what():
    with pytest.raises(DataNotFoundError) as caught:
        obtain(TWO, "auto")
    message = str(caught.value)
    assert "a.gz or a and b not found in:" in message
    for folder in (Path("data").absolute(), user_cache(), BOX):
        assert str(folder / "toy/raw") in message
    assert "Put the file(s) into data/toy/raw/, or set CONDNUM_DATA" in message
    assert message.endswith("Ask the author.")


def test_a_variable_that_names_no_folder_is_refused(isolated, monkeypatch):
    put(Path("data/toy/raw/a"))
    monkeypatch.setenv("CONDNUM_DATA", str(isolated / "typo"))
    with pytest.raises(DataNotFoundError, match=r"CONDNUM_DATA is '.*typo', a folder that does not exist"):
        find(ONE)
    (isolated / "typo").mkdir()
    assert find(ONE).source == "./data"
    assert f"CONDNUM_DATA is '{isolated / 'typo'}'; put the file(s)" in missing_message(ONE)


@pytest.mark.parametrize(
    ("load", "name", "byte"),
    [
        (load_house_prices, "house_prices/train.csv.gz", -9),
        (load_mnist_images, "MNIST/raw/t10k-labels-idx1-ubyte.gz", 4),
    ],
)
def test_the_box_is_read_and_an_altered_file_in_it_refused(isolated, monkeypatch, load, name, byte):
    loaded = load()
    assert loaded.provenance.source == "condnum's box"
    assert loaded.provenance.known_checksum
    assert "condnum's box" in loaded.title()
    shutil.copytree(BOX, isolated / "box")
    monkeypatch.setattr("condnum.data.resolver.BOX", isolated / "box")
    path = isolated / "box" / name
    content = bytearray(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(content))
    assert load().provenance.known_checksum  # other bytes, the same content
    content[byte] ^= 1
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataFormatError, match=r"not what condnum came with; install condnum again"):
        load()


def test_the_box_says_what_it_holds():
    """Its README has the SHA-256 of every file, and the package's settings ship them all."""
    text = (BOX / "README.md").read_text()
    files = [path for path in BOX.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) == 3
    for path in files:
        assert path.relative_to(BOX).as_posix() in text
        assert sha256_file(path) in text
        assert sha256_file(path, decompress=True) in text
    settings = tomllib.loads((BOX.parents[2] / "pyproject.toml").read_text())
    assert "data/box/**" in settings["tool"]["setuptools"]["package-data"]["condnum"]
