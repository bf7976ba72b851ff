"""The hidden folder in which a run grows until it is whole.

`DIR/.partial/` holds everything while a run works. A finished run moves its files up into `DIR`; a
stopped one, and one of which cells failed, leaves the store `DIR/.partial/cells/`, from which the
same command resumes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from condnum.cli.run import FAILURES
from condnum.errors import CondnumError, OutputError
from condnum.files import output_folder
from condnum.report.notebook import FAILED
from condnum.sweep import ResultStore
from condnum.sweep.store import DATABASE

STAGING = ".partial"
CELLS = "cells"
_LOCK = ".lock"


@dataclass(frozen=True)
class Staging:
    """One run's folders."""

    folder: Path  # the results
    path: Path  # folder/.partial
    created: bool  # the folder did not exist before

    @property
    def cells(self) -> Path:
        """The store of the run."""
        return self.path / CELLS

    def finished_cells(self) -> int | None:
        """Return how many pieces are finished; None if the store cannot be read."""
        if not (self.cells / DATABASE).exists():
            return 0
        try:
            with ResultStore(self.cells, mode="read") as store:
                return store.count()
        except CondnumError:
            return None

    def old_cells(self) -> list[Path]:
        """Return what an earlier version kept: a file a piece, which this one does not read."""
        return sorted(self.cells.glob("*.npz"))

    def promote(self) -> None:
        """Move the finished results up; remove the staging folder, but for the store if cells failed.

        Raises:
            OutputError: A file cannot be moved.
        """
        failed = (self.path / FAILURES).exists()
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
        for name in (FAILED, *(() if failed else (FAILURES,))):
            (self.folder / name).unlink(missing_ok=True)  # of an earlier try
        if failed:
            self._clear()
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def abandon(self) -> int:
        """Remove what is half done, keep the store, show a failed notebook.

        A store that cannot be read (damaged, another program's) stays as it is.

        Returns:
            How many finished cells remain.
        """
        if (self.path / FAILED).exists():
            os.replace(self.path / FAILED, self.folder / FAILED)
        kept = self.finished_cells()
        if kept == 0:
            shutil.rmtree(self.path, ignore_errors=True)
            if self.created:
                with contextlib.suppress(OSError):  # holds the failed notebook
                    self.folder.rmdir()
        else:
            self._clear()
        return kept or 0

    def _clear(self) -> None:
        """Remove everything from the staging folder but the store and the lock."""
        for entry in self.path.iterdir():
            if entry.is_dir() and entry.name != CELLS:
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.is_file() and entry.name != _LOCK:
                entry.unlink(missing_ok=True)


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
