"""The hidden folder in which a run grows until it is whole.

`DIR/.partial/` holds everything while a run works. A finished run moves its files up into `DIR`; a
stopped one, and one of which cells failed, leaves the store `DIR/.partial/cells/`, from which the
same command resumes. Whatever else a run that was killed has left there is removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from condnum.cli.promotion import begin_promotion, clear, complete_promotion, file_checksums
from condnum.errors import CondnumError
from condnum.files import folder_lock, output_folder
from condnum.report.notebook import FAILED
from condnum.studies.store import CELLS, DATABASE, ResultStore

STAGING = ".partial"


@dataclass(frozen=True)
class Staging:
    """One run's folders."""

    folder: Path  # the results
    path: Path  # folder/.partial
    created: bool  # the folder did not exist before
    completed: bool = False  # a promotion that was stopped has been completed first

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

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each result so far, by name."""
        return file_checksums(self.path, (CELLS,))

    def promote(self) -> None:
        """Move the finished results up, and remove those of the run before that this one does not have.

        The staging folder goes, but for the store if cells failed. A run that is stopped in the middle is
        completed by the next one in this folder; Ctrl-C waits until the results are whole.
        """
        interrupted = begun = False
        while True:
            try:
                if not begun:
                    begin_promotion(self.folder, self.path, (CELLS,))
                    begun = True
                complete_promotion(self.folder, self.path, (CELLS,))
                break
            except KeyboardInterrupt:  # every step may be done twice
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt

    def abandon(self) -> int:
        """Remove what is half done, keep the store, show a failed notebook.

        A store that cannot be read (damaged, another program's) stays as it is.
        """
        if (self.path / FAILED).exists():
            os.replace(self.path / FAILED, self.folder / FAILED)
        kept = self.finished_cells()
        clear(self.path, () if kept == 0 else (CELLS,))
        return kept or 0


@contextmanager
def staging(out: str | os.PathLike[str]) -> Generator[Staging, None, None]:
    """Open the staging folder of a run, for one process at a time.

    What a killed run has left there goes, but for its store; a promotion that was stopped is completed.
    """
    created = not Path(out).expanduser().exists()
    folder = output_folder(out)
    try:
        with folder_lock(folder / STAGING, shown=folder) as path:
            completed = complete_promotion(folder, path, (CELLS,))
            clear(path, (CELLS,))
            yield Staging(folder, path, created, completed)
    finally:
        _remove_empty(folder / STAGING, folder if created else None)


def _remove_empty(*folders: Path | None) -> None:
    """Remove folders in which nothing is left."""
    for folder in filter(None, folders):
        with contextlib.suppress(OSError):  # something is in it
            folder.rmdir()
