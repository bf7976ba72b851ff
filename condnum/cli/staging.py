"""The hidden folder in which a run grows until it is whole.

`DIR/.partial/` holds everything while a run works. A finished run moves its files up into `DIR`; a
stopped one leaves `DIR/.partial/cells/`, from which the same command resumes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from condnum.errors import OutputError
from condnum.files import output_folder
from condnum.report.notebook import FAILED

STAGING = ".partial"
CELLS = "cells"
_LOCK = ".lock"


@dataclass(frozen=True)
class Staging:
    """One run's folders."""

    folder: Path  # the results
    path: Path  # folder/.partial
    created: bool  # the folder did not exist before

    def finished_cells(self) -> list[Path]:
        """Return the files of the pieces that are finished."""
        files = (self.path / CELLS).glob("**/*")
        return sorted(p for p in files if p.is_file() and p.name[0] != "." and ".sqlite" not in p.name)

    def promote(self) -> None:
        """Move the finished results up and remove the staging folder with its cells.

        Raises:
            OutputError: A file cannot be moved.
        """
        try:
            for source in sorted(self.path.rglob("*")):
                inside = source.relative_to(self.path)
                if source.is_file() and not source.name.startswith(".") and inside.parts[0] != CELLS:
                    target = self.folder / inside
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(source, target)
        except OSError as error:
            raise OutputError(
                f"cannot move the results from {self.path} to {self.folder}: {error.strerror or error}; "
                "they are still there."
            ) from error
        (self.folder / FAILED).unlink(missing_ok=True)  # of an earlier try
        shutil.rmtree(self.path, ignore_errors=True)

    def abandon(self) -> int:
        """Remove what is half done, keep finished cells, show a failed notebook.

        Returns:
            How many finished cells remain.
        """
        kept = self.finished_cells()
        if (self.path / FAILED).exists():
            os.replace(self.path / FAILED, self.folder / FAILED)
        for source in sorted(self.path.rglob("*"), reverse=True):  # children first
            if source.is_file() and source not in kept and source.name != _LOCK:
                source.unlink(missing_ok=True)
            elif source.is_dir():
                with contextlib.suppress(OSError):  # holds cells
                    source.rmdir()
        if not kept:
            shutil.rmtree(self.path, ignore_errors=True)
            if self.created:
                with contextlib.suppress(OSError):  # holds the failed notebook
                    self.folder.rmdir()
        return len(kept)


@contextmanager
def staging(out: str | os.PathLike[str]) -> Generator[Staging, None, None]:
    """Open the staging folder of a run, for one process at a time.

    Args:
        out: The folder of the results; created if need be.

    Yields:
        The folders.

    Raises:
        OutputError: Not writable, or another run is writing there.
    """
    created = not Path(out).expanduser().exists()
    folder = output_folder(out)
    path = output_folder(folder / STAGING)
    with open(path / _LOCK, "w", encoding="utf-8") as lock:
        _lock(lock.fileno(), folder)
        try:
            yield Staging(folder, path, created)
        finally:
            (path / _LOCK).unlink(missing_ok=True)


def _lock(handle: int, folder: Path) -> None:
    """Take the lock or say who has it; systems without such locks go without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise OutputError(
            f"another run is writing to {folder}; wait for it, or choose another folder with --out."
        ) from error
