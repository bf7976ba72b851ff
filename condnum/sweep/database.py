"""The SQLite file of a store: made once, recognised afterwards, and never written to if it is foreign."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from condnum.errors import DataFormatError, DataNotFoundError, OutputError

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
