"""One writer at a time: a lock that the system takes back when the writer dies, however it dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from condnum.errors import OutputError


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
