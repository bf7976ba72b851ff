import errno
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from condnum import files
from condnum.errors import DataNotFoundError, MissingExtraError, OutputError
from condnum.files import atomic_write, output_folder, write_csv, write_json, write_parquet, write_text


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_output_folder_creates_parents_and_leaves_no_probe(tmp_path: Path) -> None:
    folder = output_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert listing(folder) == []
    assert output_folder(folder) == folder


def test_output_folder_stays_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert output_folder("runs/x") == Path("runs/x")


def test_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputError, match=r"taken: .*exists; .*--out"):
        output_folder(tmp_path / "taken")


def test_output_folder_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)  # root may write anywhere
    with pytest.raises(OutputError, match=r"Permission denied; free some space there or make it writable"):
        output_folder(tmp_path)


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_failure_keeps_the_old_file_and_no_temporary(tmp_path: Path, error: BaseException) -> None:
    path = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(type(error)), atomic_write(path) as temporary:  # ruff: ignore[pytest-raises-with-multiple-statements]
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["a.txt"]


def test_the_final_name_appears_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with atomic_write(path) as temporary:
        assert temporary.suffix == ".csv"
        assert temporary.parent == tmp_path
        assert not path.exists()
    assert path.exists()


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert write_text(tmp_path / "a", "x").stat().st_mode == plain.stat().st_mode


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*a\.txt: No space left on device; free some space"):
        write_text(tmp_path / "a.txt", "x")
    assert listing(tmp_path) == []


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nowhere/a\.txt: No such file or directory"):
        write_text(tmp_path / "nowhere" / "a.txt", "x")


def test_our_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"^gone$"), atomic_write(tmp_path / "a"):
        raise DataNotFoundError("gone")


def test_writers_round_trip(tmp_path: Path) -> None:
    table = pd.DataFrame({"method": ["ours", "κ"], "rir": [0.5, 1e-300]})
    value = {"κ": [1, 2.5, None], "path": Path("a/b")}
    assert json.loads(write_json(tmp_path / "a.json", value).read_text("utf-8")) == {**value, "path": "a/b"}
    pd.testing.assert_frame_equal(pd.read_csv(write_csv(tmp_path / "a.csv", table)), table)
    pd.testing.assert_frame_equal(pd.read_parquet(write_parquet(tmp_path / "a.parquet", table)), table)
    assert listing(tmp_path) == ["a.csv", "a.json", "a.parquet"]


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"'pyarrow'.*pip install 'condnum\[notebooks\]'"):
        write_parquet(tmp_path / "a.parquet", pd.DataFrame())
