"""Results that appear whole or not at all, and folders that cannot be written to."""

import errno
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from condnum import files
from condnum.errors import DataNotFoundError, MissingExtraError, OutputError
from condnum.files import atomic_write, output_folder, write_json, write_tables, write_text


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_output_folder_creates_parents_stays_relative_and_leaves_no_probe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_folder("runs/x") == output_folder("runs/x") == Path("runs/x")
    assert listing(Path("runs/x")) == []


def test_output_folder_that_is_a_file_or_not_writable(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputError, match=r"taken: .*exists; .*--out"):
        output_folder(tmp_path / "taken")

    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)  # root may write anywhere
    with pytest.raises(OutputError, match=r"Permission denied; free some space there or make it writable"):
        output_folder(tmp_path)


def test_the_final_name_appears_only_at_the_end_as_an_ordinary_file(tmp_path):
    path, plain = tmp_path / "a.csv", tmp_path / "plain"
    plain.write_text("")
    with atomic_write(path) as temporary:
        assert (temporary.suffix, temporary.parent) == (".csv", tmp_path)
        assert not path.exists()
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_full_disk_a_missing_folder_and_errors_of_our_own(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match=r"nowhere/a\.txt: No such file or directory"):
        write_text(tmp_path / "nowhere" / "a.txt", "x")
    with pytest.raises(DataNotFoundError, match=r"^gone$"), atomic_write(tmp_path / "a"):
        raise DataNotFoundError("gone")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*a\.txt: No space left on device; free some space"):
        write_text(tmp_path / "a.txt", "x")
    assert listing(tmp_path) == []


def test_writers_round_trip(tmp_path, monkeypatch):
    table = pd.DataFrame({"method": ["ours", "κ"], "rir": [0.5, 1e-300]})
    value = {"κ": [1, 2.5, None], "path": Path("a/b")}
    assert json.loads(write_json(tmp_path / "a.json", value).read_text("utf-8")) == {**value, "path": "a/b"}
    write_tables(tmp_path, {"a.csv": table, "a.parquet": table})
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), table)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), table)
    assert listing(tmp_path) == ["a.csv", "a.json", "a.parquet"]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"the module 'pyarrow.*pip install -e '.\[notebooks\]'"):
        write_tables(tmp_path, {"b.parquet": table})
