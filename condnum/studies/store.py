"""The results of a sweep in a folder: a row per cell in SQLite, long arrays beside it.

A cell is finished when its row is committed, and its arrays are on the disk before that. Whatever
stops the writer (Ctrl-C, `kill -9`, a full disk, a loss of power), all committed cells remain.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
)
from condnum.files import atomic_write, output_folder
from condnum.studies.cell import (
    Arrays,
    CellResult,
    Row,
    checked_result,
    pack_arrays,
    row_from_json,
    row_to_json,
    unpack_arrays,
)

# The SQLite file of a store: made once, recognised afterwards, and never written to if it is foreign.


#: "CNDM" in the file's header, with the version of the table beside it.
APPLICATION_ID = 0x434E444D
SCHEMA_VERSION = 1

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE cells (
    key     TEXT PRIMARY KEY,
    status  TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    row     TEXT,           -- JSON object of scalars; NULL if failed
    arrays  TEXT,           -- SHA-256 of arrays/<key>.npz; NULL if there is none
    error   TEXT,           -- traceback; NULL if done
    seconds REAL NOT NULL,
    created TEXT NOT NULL   -- ISO 8601, UTC
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_INDEX = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_BUSY_SECONDS = 30.0


def open_database(path: Path, mode: Literal["write", "read"]) -> sqlite3.Connection:
    """Open a store's file, after a look at it that changes nothing."""
    with translated(path):
        exists = _recognised(path)
        if mode == "read":
            if not exists:
                raise DataNotFoundError(
                    f"no results in {path.parent}: {path.name} is missing; run the sweep."
                )
            return _connect_to_read(path)
        db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            # Readers are not blocked by a writer. A disk that cannot do it keeps the journal it has.
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")  # a committed cell survives a loss of power
            if not exists:
                db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db


@contextmanager
def translated(path: Path) -> Generator[None, None, None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            raise DataFormatError(_damage(path, str(error))) from error
        raise OutputError(
            f"cannot use the results in {path}: {error}; free some space there or make it writable, or "
            "choose another folder. The results committed so far are kept."
        ) from error


def _recognised(path: Path) -> bool:
    """Tell whether the file is a sound store; False if it is missing or has nothing in it yet."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with closing(_connect_to_read(path)) as db:
        application, version, objects = (
            db.execute(query).fetchone()[0]
            for query in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
        )
        if (application, version, objects) == (0, 0, 0):
            return False  # a writer was stopped between making the file and making the table
        if application != APPLICATION_ID:
            raise DataFormatError(
                f"{path} is an SQLite file of another program (application id {application}); it is left as "
                "it is. Choose another folder for the results, or move that file away."
            )
        if version != SCHEMA_VERSION:
            raise DataFormatError(
                f"{path} holds results of version {version}, and this condnum reads version "
                f"{SCHEMA_VERSION}; it is left as it is. Use the condnum that wrote it, or another folder."
            )
        found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise DataFormatError(_damage(path, found))
    return True


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a file so that SQLite cannot change it."""
    uri = path.absolute().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        db.close()
        log = path.with_name(f"{path.name}-wal")
        if error.sqlite_errorcode & 0xFF not in _NO_INDEX or (log.exists() and log.stat().st_size):
            raise
        # In a read-only folder readers cannot make their shared index; without a log they need none.
        return sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, isolation_level=None)
    except BaseException:
        db.close()
        raise
    return db


def _damage(path: Path, reason: str) -> str:
    """Return the message about a file that SQLite does not understand."""
    return (
        f"{path} is no sound SQLite file ({reason}); it is left as it is. Move it away to start anew, "
        "restore a copy of it, or choose another folder for the results."
    )


# One writer at a time: a lock that the system takes back when the writer dies, however it dies.


@contextmanager
def writer_lock(path: Path) -> Generator[None, None, None]:
    """Hold the lock while the block runs; systems without such locks go without."""
    try:
        stream = open(path, "a+", encoding="utf-8")  # ruff: ignore[open-file-with-context-handler]
    except OSError as error:
        raise OutputError(
            f"results cannot be written to {path.parent}: {error.strerror or error}; make it writable, or "
            "choose another folder."
        ) from error
    with stream:
        _take(stream.fileno(), path)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}")
        stream.flush()
        try:
            yield
        finally:
            stream.truncate(0)


def _take(handle: int, path: Path) -> None:
    """Take the lock, or say who has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = path.read_text(encoding="utf-8") or "another process"
        raise OutputError(
            f"{who} is writing results to {path.parent}; wait for it, stop it, or choose another folder. "
            'To read meanwhile, open ResultStore(folder, mode="read").'
        ) from error
    except OSError as error:
        raise OutputError(
            f"{path} cannot be locked: {error.strerror or error}; choose a folder on a disk of this machine."
        ) from error


#: Folder of a run's store, inside that of its results.
CELLS = "cells"

DATABASE = "results.sqlite"
ARRAYS = "arrays"
_LOCK = ".writer.lock"
_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


def cells_folder(out: str) -> Path | None:
    """Return where a run keeps its finished cells.

    Args:
        out: Folder of its results; empty for a run that writes nothing.

    Returns:
        A folder for `ResultStore`, or None.

    Examples:
        >>> cells_folder("runs/mine").as_posix(), cells_folder("")
        ('runs/mine/cells', None)
    """
    return Path(out) / CELLS if out else None


class ResultStore:
    """Results by key; for one thread of one process, and any number of readers elsewhere.

    The folder should lie on a disk of the machine that writes: SQLite's log cannot be shared over a
    network. Workers elsewhere need no access to it.

    Args:
        folder: Made if it does not exist, with `results.sqlite` and `arrays/`.
        mode: `write` for the one process that writes, `read` for others.

    Raises:
        OutputError: Not writable, or somebody else is writing.
        DataFormatError: `results.sqlite` is damaged or another program's; it is left as it is.
        DataNotFoundError: Nothing to read.
        UnknownNameError: No such mode.

    Examples:
        >>> import numpy, tempfile
        >>> with tempfile.TemporaryDirectory() as folder, ResultStore(folder) as store:
        ...     store.put("a1", {"kappa": 2.5}, {"history": numpy.array([4, 1])}, seconds=0.1)
        ...     store.fail("b2", "ValueError: singular")
        ...     store.done("a1"), store.done("b2"), store.get("a1"), store.failures()
        (True, False, CellResult(row={'kappa': 2.5}, arrays={'history': array([4, 1])}),
         {'b2': 'ValueError: singular'})
    """

    def __init__(self, folder: str | os.PathLike[str], mode: Literal["write", "read"] = "write") -> None:
        if mode not in ("write", "read"):
            raise UnknownNameError("mode", mode, ["write", "read"])
        self.folder = Path(folder).expanduser()
        self.path = self.folder / DATABASE
        with ExitStack() as stack:
            if mode == "write":
                output_folder(self.folder)
                stack.enter_context(writer_lock(self.folder / _LOCK))
            self._db: sqlite3.Connection = open_database(self.path, mode)
            stack.callback(self._db.close)
            if mode == "write":
                for leftover in output_folder(self.folder / ARRAYS).glob(".*"):  # of a writer that was killed
                    leftover.unlink(missing_ok=True)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the file and let others write."""
        self._stack.close()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def done(self, key: str) -> bool:
        """Tell whether a cell is finished; one whose arrays are missing or damaged is not.

        Args:
            key: The cell's key.

        Returns:
            False also if it failed.
        """
        return self.get(key) is not None

    def get(self, key: str) -> CellResult | None:
        """Return a finished cell's row and arrays.

        Args:
            key: The cell's key.

        Returns:
            `(row, arrays)`; None if it is not finished.

        Raises:
            DataFormatError: The file was damaged meanwhile.
            OutputError: It cannot be read.
        """
        found = self._query("SELECT key, row, arrays FROM cells WHERE key = ? AND status = 'done'", key)
        return self._result(*found[0]) if found else None

    def rows(self) -> dict[str, Row]:
        """Return the rows of all finished cells by key, in the order in which they were finished.

        Returns:
            Without cells whose arrays are missing or damaged.

        Raises:
            DataFormatError: The file was damaged meanwhile.
            OutputError: It cannot be read.
        """
        found = self._query("SELECT key, row, arrays FROM cells WHERE status = 'done' ORDER BY rowid")
        results = ((key, self._result(key, row, digest)) for key, row, digest in found)
        return {key: result.row for key, result in results if result is not None}

    def count(self) -> int:
        """Return the number of finished cells, without a look at their arrays.

        Raises:
            DataFormatError: The file was damaged meanwhile.
            OutputError: It cannot be read.
        """
        return int(self._query("SELECT count(*) FROM cells WHERE status = 'done'")[0][0])

    def failures(self) -> dict[str, str]:
        """Return the errors of the cells that failed when last tried, by key.

        Returns:
            Error texts as they were given.

        Raises:
            DataFormatError: The file was damaged meanwhile.
            OutputError: It cannot be read.
        """
        return dict(self._query("SELECT key, error FROM cells WHERE status = 'failed' ORDER BY rowid"))

    def put(
        self, key: str, row: Mapping[str, Any], arrays: Mapping[str, Any] | None = None, seconds: float = 0.0
    ) -> None:
        """Keep a finished cell: first its arrays, then its row; after the return both are on the disk.

        Args:
            key: The cell's key; an older result under it is replaced.
            row: Scalars by column.
            arrays: Arrays by name.
            seconds: How long it took.

        Raises:
            InvalidInputError: A key, column or array that cannot be stored.
            OutputError: The disk is full or not writable; what was committed before is kept.
        """
        result = checked_result(row, arrays or {})
        digest = None
        if result.arrays:
            content = pack_arrays(result.arrays)
            digest = hashlib.sha256(content).hexdigest()
            with atomic_write(self._arrays_path(key)) as temporary:
                temporary.write_bytes(content)
        self._write(key, "done", row_to_json(result.row), digest, None, seconds)

    def fail(self, key: str, error: str, seconds: float = 0.0) -> None:
        """Keep the error of a cell that failed; the next run tries it again.

        Args:
            key: The cell's key.
            error: What happened, for a person to read.
            seconds: How long it took to fail.

        Raises:
            InvalidInputError: A key that cannot be stored.
            OutputError: The disk is full or not writable.
        """
        self._write(key, "failed", None, None, error, seconds)

    def _result(self, key: str, text: str, digest: str | None) -> CellResult | None:
        """Read what belongs to a row; None if it is damaged."""
        row = row_from_json(text)
        arrays: Arrays | None = {}
        if digest is not None:
            try:
                content = self._arrays_path(key).read_bytes()
            except OSError:
                return None
            arrays = unpack_arrays(content) if hashlib.sha256(content).hexdigest() == digest else None
        return None if row is None or arrays is None else CellResult(row, arrays)

    def _arrays_path(self, key: str) -> Path:
        """Return the file of a cell's arrays; a key is part of its name."""
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidInputError(f"a key has 1 to 100 letters, digits, - or _, got {key!r}.")
        return self.folder / ARRAYS / f"{key}.npz"

    def _query(self, statement: str, *values: object) -> list[Any]:
        """Return all rows of a query."""
        with translated(self.path):
            return self._db.execute(statement, values).fetchall()

    def _write(
        self, key: str, status: str, row: str | None, arrays: str | None, error: str | None, seconds: float
    ) -> None:
        """Commit one row; a statement on its own is a transaction."""
        self._arrays_path(key)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self._query(
            "INSERT OR REPLACE INTO cells (key, status, row, arrays, error, seconds, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(key, status, row, arrays, error, float(seconds), created),
        )
