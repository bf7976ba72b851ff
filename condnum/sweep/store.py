"""The results of a sweep in a folder: a row per cell in SQLite, long arrays beside it.

A cell is finished when its row is committed, and its arrays are on the disk before that. Whatever
stops the writer (Ctrl-C, `kill -9`, a full disk, a loss of power), all committed cells remain.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.files import atomic_write, output_folder
from condnum.sweep.database import open_database, translated
from condnum.sweep.lock import writer_lock
from condnum.sweep.result import (
    Arrays,
    CellResult,
    Row,
    checked_result,
    pack_arrays,
    row_from_json,
    row_to_json,
    unpack_arrays,
)

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
