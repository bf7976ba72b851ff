from pathlib import Path

import pytest

from condnum.data import data_folders, user_cache
from condnum.data.resolver import DataFiles, fetch_openml, find, missing_message, new_file, obtain
from condnum.errors import DataNotFoundError, InvalidInputError, OutputError

ONE = DataFiles("toy", "toy/raw", (("a.gz", "a"),), "Ask the author.", "load_other()")
TWO = DataFiles("toy", "toy/raw", (("a.gz", "a"), ("b",)), "Ask the author.", "load_other()")


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def never(folder):
    raise AssertionError("must not download")


def test_order_of_folders(isolated, monkeypatch):
    assert data_folders() == (Path("data"), isolated / "cache" / "condnum")
    monkeypatch.setenv("CONDNUM_DATA", "/somewhere")
    assert data_folders() == (Path("/somewhere"), Path("data"), isolated / "cache" / "condnum")


def test_cache_without_xdg(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "condnum"


def test_earlier_folder_wins(isolated, monkeypatch):
    in_cache = put(user_cache() / "toy/raw/a")
    assert find(ONE).paths == (in_cache,)
    in_data = put(Path("data/toy/raw/a"))
    assert find(ONE).paths == (in_data,)
    monkeypatch.setenv("CONDNUM_DATA", str(isolated / "mine"))
    assert find(ONE).paths == (in_data,)
    in_mine = put(isolated / "mine/toy/raw/a")
    assert find(ONE).paths == (in_mine,)


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
    assert obtain(ONE, isolated / "given", never).paths == (path,)
    assert obtain(ONE, isolated / "given", never).source == "local file"


def test_explicit_file(isolated):
    path = put(isolated / "any-name.txt")
    assert obtain(ONE, str(path), never).paths == (path,)
    with pytest.raises(InvalidInputError, match="toy needs 2 files; give the folder"):
        find(TWO, path)


def test_explicit_path_never_falls_through(isolated):
    put(Path("data/toy/raw/a"))
    with pytest.raises(DataNotFoundError, match=r"Give an existing path .* got '.*elsewhere'"):
        obtain(ONE, isolated / "elsewhere", never)


def test_embedded_is_refused_by_name():
    with pytest.raises(InvalidInputError, match=r"toy is not embedded; use load_other\(\)"):
        find(ONE, "embedded")


def test_local_does_not_download(isolated):
    with pytest.raises(DataNotFoundError) as caught:
        obtain(TWO, "local", never)
    message = str(caught.value)
    assert "a.gz or a and b not found in:" in message
    assert str(isolated / "cwd" / "data" / "toy/raw") in message
    assert str(isolated / "cache" / "condnum" / "toy/raw") in message
    assert "Put the file(s) into data/toy/raw/, or set CONDNUM_DATA" in message
    assert message.endswith("Ask the author.")


def test_message_names_the_variable_and_a_folder_that_does_not_exist(isolated, monkeypatch):
    monkeypatch.setenv("CONDNUM_DATA", str(isolated / "typo"))
    assert f"CONDNUM_DATA is '{isolated / 'typo'}', a folder that does not exist" in missing_message(ONE)
    (isolated / "typo").mkdir()
    assert "does not exist" not in missing_message(ONE)


def test_auto_downloads_into_the_cache_once():
    found = obtain(ONE, "auto", lambda folder: put(folder / "a"))
    assert found.source == "download"
    assert found.paths == (user_cache() / "toy/raw/a",)
    assert obtain(ONE, "auto", never).source == "local file"


def test_failed_download_says_what_to_put_where():
    def fail(folder):
        fetch_openml("toy", data_id=1)

    with pytest.raises(
        DataNotFoundError, match=r"not found in: .*download of toy .*OSError: no network in tests"
    ):
        obtain(ONE, "auto", fail)


def test_download_that_writes_nothing():
    with pytest.raises(DataNotFoundError, match="The download wrote none of them"):
        obtain(ONE, "auto", lambda folder: None)


def test_new_file_leaves_nothing_half_written(isolated):
    target = isolated / "folder" / "f"

    def write():
        with new_file(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write()
    assert list(target.parent.iterdir()) == []


def test_new_file_where_nothing_can_be_written(isolated):
    put(isolated / "file")

    def write():
        with new_file(isolated / "file" / "below") as temporary:
            temporary.write_text("never")

    with pytest.raises(OutputError, match="set XDG_CACHE_HOME to a writable folder"):
        write()
