"""The results of a study in a folder: a file a cell, named by its key.

A cell is finished when its file has its name: rows and arrays are written under another one, flushed to the
disk and renamed. Whatever stops the writer (Ctrl-C, `kill -9`, a full disk, a loss of power), all finished
cells remain.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal
from zipfile import ZipFile

import numpy as np

from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
)
from condnum.files import atomic_write, output_folder, write_text
from condnum.studies.cell import CellResult, checked_result

#: Folder of a run's store, inside that of its results.
CELLS = "cells"

#: The index of stores of before, which had one.
_OLD_INDEX = "results.sqlite"
_LOCK = ".writer.lock"
_ROW = "row.json"
_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")


class ResultStore:
    """Results by key: one process writes, any number read.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, ResultStore(folder) as store:
        ...     store.put("a1", {"kappa": 2.5}, {"history": np.array([4, 1])})
        ...     store.fail("b2", "ValueError: singular")
        ...     store.get("a1"), store.get("b2"), store.count(), store.failures()
        (CellResult(row={'kappa': 2.5}, arrays={'history': array([4, 1])}), None, 1,
         {'b2': 'ValueError: singular'})
    """

    def __init__(self, folder: str | os.PathLike[str], mode: Literal["write", "read"] = "write") -> None:
        if mode not in ("write", "read"):
            raise UnknownNameError("mode", mode, ["write", "read"])
        self.folder, self._stack = Path(folder).expanduser(), ExitStack()
        if (self.folder / _OLD_INDEX).exists():
            raise DataFormatError(
                f"{self.folder} holds results of an earlier version of condnum ({_OLD_INDEX}), which this "
                "one does not read; they are left as they are. Move that folder away, or choose another "
                "one for the results: all cells are then computed again."
            )
        if mode == "read":
            if not self.folder.is_dir():
                raise DataNotFoundError(f"no results in {self.folder}: run the study first.")
            return
        output_folder(self.folder)
        self._lock()
        for leftover in self.folder.glob(".*.npz"):  # of a writer that was killed
            leftover.unlink(missing_ok=True)

    def _lock(self) -> None:
        """Be the one writer; the system takes the lock back however this process ends."""
        from filelock import FileLock, Timeout

        try:
            self._stack.enter_context(FileLock(self.folder / _LOCK, timeout=0))
        except Timeout as error:
            raise OutputError(
                f"another process is writing results to {self.folder}; wait for it, stop it, or choose "
                'another folder. To read meanwhile, open ResultStore(folder, mode="read").'
            ) from error
        except (OSError, NotImplementedError) as error:
            raise OutputError(
                f"{self.folder / _LOCK} cannot be locked: {error}; choose a folder on a disk of this machine."
            ) from error

    def close(self) -> None:
        """Let others write."""
        self._stack.close()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str) -> CellResult | None:
        """Return a finished cell's row and arrays; None if it is not finished or its file is damaged."""
        try:
            with np.load(self._path(key), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            row = json.loads(arrays.pop(_ROW))
        except Exception:  # whatever a damaged file makes of its readers
            return None
        return CellResult(row, arrays) if isinstance(row, dict) else None

    def count(self) -> int:
        """Return the number of finished cells, without a look into them."""
        return sum(1 for _ in self.folder.glob("[!.]*.npz"))

    def failures(self) -> dict[str, str]:
        """Return the tracebacks of the cells that failed when last tried, by key."""
        return {path.stem: path.read_text(encoding="utf-8") for path in sorted(self.folder.glob("*.failed"))}

    def put(self, key: str, row: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        """Keep a finished cell; after the return it is on the disk, and an older result is replaced."""
        result, path = checked_result((row, arrays or {})), self._path(key)
        with atomic_write(path) as temporary, ZipFile(temporary, "w") as archive:
            # Infinite numbers are written as Python does, `Infinity`.
            archive.writestr(_ROW, json.dumps(result.row, ensure_ascii=False))
            for name, array in result.arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        path.with_suffix(".failed").unlink(missing_ok=True)

    def fail(self, key: str, error: str) -> None:
        """Keep the error of a cell that failed, for a person to read; the next run tries it again."""
        write_text(self._path(key).with_suffix(".failed"), error)
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Return the file of a cell."""
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidInputError(f"a key has 1 to 100 letters, digits, - or _, got {key!r}.")
        return self.folder / f"{key}.npz"
