"""The store: what is committed stays, what is foreign is left alone, one writer at a time."""

import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
)
from condnum.studies import store as database
from condnum.studies import store as lock
from condnum.studies import store as module
from condnum.studies.store import APPLICATION_ID, ResultStore


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "sweep"


@pytest.fixture
def filled(folder):
    """A closed store with two finished cells, one of them with arrays, and one that failed."""
    with ResultStore(folder) as store:
        store.put("a", {"kappa": 2.5, "name": "α", "none": None, "flag": True}, {}, 0.25)
        store.put("b", {"kappa": 3}, {"history": np.arange(1000.0), "file": np.array(["x", "yz"])}, 0.5)
        store.fail("c", "ValueError: singular", 0.1)
    return folder


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class TestContent:
    def test_round_trip(self, filled):
        with ResultStore(filled) as store:
            assert store.get("a") == ({"kappa": 2.5, "name": "α", "none": None, "flag": True}, {})
            row, arrays = store.get("b")
            assert row == {"kappa": 3}
            assert np.array_equal(arrays["history"], np.arange(1000.0))
            assert arrays["file"].tolist() == ["x", "yz"]
            assert [store.done(key) for key in "abcd"] == [True, True, False, False]
            assert store.get("c") is None
            assert store.get("d") is None
            assert list(store.rows()) == ["a", "b"]
            assert store.failures() == {"c": "ValueError: singular"}

    def test_columns(self, filled):
        with closing(sqlite3.connect(filled / "results.sqlite")) as db:
            assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
            rows = db.execute("SELECT key, status, seconds, error, created FROM cells").fetchall()
        assert [row[:4] for row in rows] == [
            ("a", "done", 0.25, None),
            ("b", "done", 0.5, None),
            ("c", "failed", 0.1, "ValueError: singular"),
        ]
        assert all(row[4].endswith("+00:00") for row in rows)

    def test_special_floats_and_numpy_scalars(self, folder):
        row = {
            "inf": float("inf"),
            "nan": np.float64("nan"),
            "third": 1 / 3,
            "n": np.int64(3),
            "b": np.bool_(1),
        }
        with ResultStore(folder) as store:
            store.put("a", row)
            back = store.get("a").row
        assert back["inf"] == float("inf")
        assert back["nan"] != back["nan"]
        assert (back["third"], back["n"], back["b"]) == (1 / 3, 3, True)
        assert type(back["n"]) is int

    def test_a_result_replaces_a_failure_and_an_older_result(self, filled):
        with ResultStore(filled) as store:
            store.put("c", {"kappa": 1})
            store.put("b", {"kappa": 4}, {"history": np.ones(3)})
            assert store.failures() == {}
            assert store.get("b").arrays["history"].tolist() == [1, 1, 1]
            assert len(store.rows()) == 3

    @pytest.mark.parametrize(
        ("key", "row", "arrays", "message"),
        [
            ("../a", {}, {}, "a key has 1 to 100 letters, digits, - or _, got '../a'"),
            ("", {}, {}, "got ''"),
            ("a", {"history": [1, 2]}, {}, "column 'history' of a cell is a list"),
            ("a", {3: 1}, {}, "named by text, got 3"),
            ("a", {}, {"x": np.array([{}])}, r"array 'x' of a cell holds Python objects \(shape \(1,\)\)"),
        ],
        ids=["path", "empty", "list", "name", "objects"],
    )
    def test_what_cannot_be_stored(self, folder, key, row, arrays, message):
        with ResultStore(folder) as store:
            with pytest.raises(InvalidInputError, match=message):
                store.put(key, row, arrays)
            assert store.rows() == {}

    def test_mode(self, folder):
        with pytest.raises(UnknownNameError, match="unknown mode 'wirte'; did you mean 'write'"):
            ResultStore(folder, mode="wirte")

    def test_use_after_close_is_a_mistake(self, filled):
        store = ResultStore(filled)
        store.close()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            store.rows()


class TestArrays:
    def test_they_are_on_the_disk_before_the_row(self, folder, monkeypatch):
        with ResultStore(folder) as store:
            seen = []

            def write(key, *_):
                seen.append((folder / "arrays" / f"{key}.npz").exists())
                raise KeyboardInterrupt

            monkeypatch.setattr(store, "_write", write)
            with pytest.raises(KeyboardInterrupt):
                store.put("a", {"y": 1}, {"x": np.ones(3)})
            assert seen == [True]
            assert not store.done("a")

    @pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "another's", "emptied"])
    def test_damage_makes_a_cell_unfinished(self, filled, damage):
        path = filled / "arrays" / "b.npz"
        content = bytearray(path.read_bytes())
        if damage == "missing":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(content[:-50])
        elif damage == "flipped":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        elif damage == "emptied":
            path.write_bytes(b"")
        else:
            np.savez(path, history=np.zeros(3))
        with ResultStore(filled) as store:
            assert not store.done("b")
            assert store.get("b") is None
            assert list(store.rows()) == ["a"]
            assert "b" not in store.failures()
            store.put("b", {"kappa": 3}, {"history": np.ones(2)})
            assert store.done("b")

    def test_a_damaged_row_is_unfinished_too(self, filled):
        with closing(sqlite3.connect(filled / "results.sqlite")) as db, db:
            db.execute("UPDATE cells SET row = '{\"kappa\": 2.' WHERE key = 'a'")
            db.execute("UPDATE cells SET row = '[1]' WHERE key = 'b'")
        with ResultStore(filled) as store:
            assert store.rows() == {}

    def test_no_pickle_is_loaded(self, filled):
        path = filled / "arrays" / "b.npz"
        np.savez(path, history=np.array([{}], dtype=object))
        with closing(sqlite3.connect(filled / "results.sqlite")) as db, db:
            db.execute("UPDATE cells SET arrays = ? WHERE key = 'b'", [digest(path)])
        with ResultStore(filled) as store:
            assert not store.done("b")

    def test_leftovers_of_a_killed_writer_are_removed(self, filled):
        leftover = filled / "arrays" / ".b-x1.npz"
        leftover.write_bytes(b"half")
        ResultStore(filled, mode="read").close()
        assert leftover.exists()
        ResultStore(filled).close()
        assert not leftover.exists()
        assert (filled / "arrays" / "b.npz").exists()


class TestWriters:
    def test_a_second_writer_is_refused_and_told_who_writes(self, folder):
        with ResultStore(folder) as store:
            store.put("a", {"x": 1})
            code = f"from condnum.studies.store import ResultStore; ResultStore({str(folder)!r})"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert f"OutputError: process {os.getpid()} on " in done.stderr
            assert "is writing results to" in done.stderr
            with pytest.raises(OutputError, match="is writing results to"):
                ResultStore(folder)
            store.put("b", {"x": 2})
        with ResultStore(folder) as store:
            assert len(store.rows()) == 2

    def test_readers_see_what_is_committed(self, folder):
        with ResultStore(folder) as store, closing(ResultStore(folder, mode="read")) as reader:
            assert reader.rows() == {}
            store.put("a", {"x": 1}, {"y": np.ones(2)})
            assert reader.get("a").row == {"x": 1}
            with pytest.raises(OutputError, match="readonly"):
                reader.put("b", {"x": 1})

    def test_nothing_to_read(self, folder):
        with pytest.raises(DataNotFoundError, match=r"results\.sqlite is missing; run the sweep"):
            ResultStore(folder, mode="read")
        assert not folder.exists()

    def test_systems_without_locks_go_without(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "fcntl", None)
        with ResultStore(folder) as store:
            store.put("a", {"x": 1})

    def test_a_disk_without_locks(self, folder, monkeypatch):
        import fcntl

        def refuse(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(
            OutputError, match="cannot be locked: No locks available; choose a folder on a disk"
        ):
            ResultStore(folder)

    def test_a_lock_that_cannot_be_made(self, tmp_path):
        with (
            pytest.raises(OutputError, match="cannot be written"),
            lock.writer_lock(tmp_path / "no" / "lock"),
        ):
            pass


class TestForeignFiles:
    def refuse(self, folder, message):
        path = folder / "results.sqlite"
        before = digest(path)
        for mode in ("write", "read"):
            with pytest.raises(DataFormatError, match=message):
                ResultStore(folder, mode=mode)
        assert digest(path) == before

    def test_not_sqlite(self, folder):
        folder.mkdir()
        (folder / "results.sqlite").write_text("key,kappa\n" * 500)
        self.refuse(folder, "is no sound SQLite file .*it is left as it is")

    def test_another_program(self, folder):
        folder.mkdir()
        with closing(sqlite3.connect(folder / "results.sqlite")) as db, db:
            db.execute("CREATE TABLE bookmarks (url TEXT)")
        self.refuse(folder, "another program .application id 0.; it is left as it is")

    def test_another_version(self, filled):
        with closing(sqlite3.connect(filled / "results.sqlite")) as db:
            db.execute("PRAGMA user_version = 9")
        self.refuse(filled, "holds results of version 9, and this condnum reads version 1")

    def test_damaged_pages(self, folder):
        with ResultStore(folder) as store:
            for i in range(300):
                store.put(f"k{i}", {"x": i, "pad": "p" * 100})
        path = folder / "results.sqlite"
        content = bytearray(path.read_bytes())
        content[8192:12288] = b"\xff" * 4096
        path.write_bytes(content)
        self.refuse(folder, "is no sound SQLite file")

    def test_cut_in_half(self, folder):
        with ResultStore(folder) as store:
            for i in range(300):
                store.put(f"k{i}", {"x": i, "pad": "p" * 100})
        path = folder / "results.sqlite"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        self.refuse(folder, "is no sound SQLite file")

    def test_an_empty_file_is_what_a_killed_writer_may_leave(self, folder):
        folder.mkdir()
        (folder / "results.sqlite").touch()
        with ResultStore(folder) as store:
            store.put("a", {"x": 1})

    def test_so_is_a_file_without_tables(self, folder):
        folder.mkdir()
        with closing(sqlite3.connect(folder / "results.sqlite")) as db:
            db.execute("PRAGMA journal_mode = WAL")
        with pytest.raises(DataNotFoundError, match="run the sweep"):
            ResultStore(folder, mode="read")
        with ResultStore(folder) as store:
            store.put("a", {"x": 1})

    def test_damage_while_open(self, filled, monkeypatch):
        with ResultStore(filled) as store:
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT

            def execute(*_):
                raise error

            monkeypatch.setattr(
                store, "_db", type("Broken", (), {"execute": execute, "close": lambda _: None})()
            )
            with pytest.raises(DataFormatError, match="malformed"):
                store.rows()


@contextmanager
def as_ordinary_user():
    """Give up the rights of root, to whom every folder is writable."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder that an ordinary user can reach; those of pytest are their owner's alone."""
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


class TestUnwritable:
    def test_read_only_folder(self, open_folder):
        with ResultStore(open_folder) as store:
            store.put("a", {"x": 1}, {"y": np.ones(2)})
        open_folder.chmod(0o555)
        before = digest(open_folder / "results.sqlite")
        with as_ordinary_user():
            with pytest.raises(OutputError, match="cannot be written to the folder"):
                ResultStore(open_folder)
            with ResultStore(open_folder, mode="read") as reader:
                assert reader.get("a").arrays["y"].tolist() == [1, 1]
        assert digest(open_folder / "results.sqlite") == before

    def test_read_only_folder_with_a_log_of_a_killed_writer(self, open_folder):
        with ResultStore(open_folder) as store:
            store.put("a", {"x": 1})
            copy = open_folder / "copy"
            shutil.copytree(open_folder, copy, ignore=shutil.ignore_patterns("copy", "*-shm"))
        copy.chmod(0o555)
        with as_ordinary_user(), pytest.raises(OutputError, match="cannot use the results in"):
            ResultStore(copy, mode="read")  # the row is in the log, which cannot be read without an index

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "taken").touch()
        with pytest.raises(OutputError, match="taken"):
            ResultStore(tmp_path / "taken")

    def test_full_disk_in_the_database(self, folder):
        with ResultStore(folder) as store:
            pages = store._db.execute("PRAGMA page_count").fetchone()[0] + 2
            store._db.execute(f"PRAGMA max_page_count = {pages}")

            def fill():
                for x in range(1000):
                    store.put(f"k{x}", {"x": x, "pad": "p" * 100})

            with pytest.raises(OutputError, match=r"database or disk is full; free some space .* are kept"):
                fill()
            kept = len(store.rows())
            assert 0 < kept < 1000
            assert [row["x"] for row in store.rows().values()] == list(range(kept))
        with ResultStore(folder) as store:  # with space again
            assert len(store.rows()) == kept
            store.put(f"k{kept}", {"x": kept})
            assert len(store.rows()) == kept + 1

    def test_full_disk_under_the_arrays(self, filled, monkeypatch):
        def write_bytes(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with ResultStore(filled) as store:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "write_bytes", write_bytes)
                with pytest.raises(OutputError, match="No space left on device"):
                    store.put("d", {"x": 1}, {"y": np.ones(3)})
            assert not store.done("d")
            assert list(store.rows()) == ["a", "b"]
        assert sorted(p.name for p in (filled / "arrays").iterdir()) == ["b.npz"]

    def test_full_disk_while_making_the_table(self, folder, monkeypatch):
        monkeypatch.setattr(database, "_SCHEMA", "PRAGMA max_page_count = 1;" + database._SCHEMA)
        with pytest.raises(OutputError, match="full"):
            ResultStore(folder)
        monkeypatch.undo()
        with ResultStore(folder) as store:
            store.put("a", {"x": 1})


def test_the_key_of_a_plan_is_a_key(plans, folder):
    (plan,) = plans(1)
    with ResultStore(folder) as store:
        store.put(plan.key, {"x": 1}, {"y": np.ones(1)})
        assert store.done(plan.key)
    assert module.ARRAYS == "arrays"
