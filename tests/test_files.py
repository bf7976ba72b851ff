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


def test_folders_are_made_with_their_parents_and_a_file_is_none(tmp_path):
    assert output_folder(tmp_path / "runs/x") == output_folder(tmp_path / "runs/x")
    assert listing(tmp_path / "runs/x") == []
    (tmp_path / "taken").write_text("")
    with pytest.raises(OutputError, match=r"taken: .*exists; .*--out"):
        output_folder(tmp_path / "taken")


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    with atomic_write(tmp_path / "a.csv") as temporary:
        temporary.write_text("x")
        assert (temporary.suffix, temporary.parent) == (".csv", tmp_path)
        assert not (tmp_path / "a.csv").exists()
    with pytest.raises(OutputError, match=r"nowhere/a\.txt: No such file or directory"):
        write_text(tmp_path / "nowhere" / "a.txt", "x")
    with pytest.raises(DataNotFoundError, match=r"^gone$"), atomic_write(tmp_path / "a"):
        raise DataNotFoundError("gone")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*a\.txt: No space left on device; free some space"):
        write_text(tmp_path / "a.txt", "x")
    assert listing(tmp_path) == ["a.csv"]


def test_writers_round_trip(tmp_path, monkeypatch):
    table = pd.DataFrame({"method": ["ours", "κ"], "rir": [0.5, 1e-300]})
    value = {"κ": [1, 2.5, None], "path": Path("a/b")}
    assert json.loads(write_json(tmp_path / "a.json", value).read_text("utf-8")) == {**value, "path": "a/b"}
    write_tables(tmp_path, {"a.csv": table, "a.parquet": table})
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), table)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), table)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"the module 'pyarrow.*pip install -e '.\[notebooks\]'"):
        write_tables(tmp_path, {"b.parquet": table})
