"""A folder held by one process at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from condnum.errors import OutputError
from condnum.files import output_folder

#: The file that is locked.
LOCK = ".lock"


@contextmanager
def folder_lock(
    folder: str | os.PathLike[str], *, shown: str | os.PathLike[str] | None = None
) -> Generator[Path, None, None]:
    """Hold a folder; the lock goes with the process, however it ends.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root, folder_lock(root) as held:
        ...     os.listdir(held)
        ['.lock']
    """
    named = Path(folder if shown is None else shown)
    while True:
        path = output_folder(folder)
        try:
            lock = open(path / LOCK, "a", encoding="utf-8")  # ruff: ignore[open-file-with-context-handler]
        except FileNotFoundError:
            continue  # whoever held it has just removed its empty folder
        with lock:
            _lock(lock, named)
            if not _same_file(lock, path / LOCK):
                continue  # removed by its holder between our open and our lock
            try:
                yield path
            finally:
                with contextlib.suppress(OSError):  # the lock goes with the process anyway
                    (path / LOCK).unlink(missing_ok=True)  # while it is held: nobody else's
            return


def _same_file(lock: IO[str], path: Path) -> bool:
    """Tell whether the file that we locked is the one that others find."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(lock: IO[str], folder: Path) -> None:
    """Take the lock or say who has it; systems without such locks go without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OutputError(
            f"another run is writing to {folder}; wait for it, or choose another folder with --out."
        ) from error
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be locked: {error.strerror or error}; "
            "choose a folder on a disk of this machine."
        ) from error
