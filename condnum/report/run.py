"""A notebook, its page and its provenance, in one folder that holds the old results or the new ones.

A run grows in `DIR.partial`; one that is stopped leaves there the cells that it finished, and the same
command goes on from them. When all is written, `DIR` is renamed to `DIR.old` and `DIR.partial` to `DIR`.
What a kill leaves between these renames is completed by the next run.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from condnum.errors import CondnumError, DataNotFoundError, OutputError
from condnum.files import file_checksum, folder_lock, output_folder, write_json
from condnum.machine import provenance
from condnum.report.notebook import FAILED, FAILURES, PAGE, RECORD, run_notebook

#: Of a run: its finished cells, beside what else it writes. Kept until a run has no failures.
CELLS = "cells"


class StoppedError(KeyboardInterrupt):
    """A run was stopped; the text says what is kept, after the words `stopped by Ctrl-C`."""


@dataclass(frozen=True)
class ResultsFolder:
    """The folder of a run's results, held by this run."""

    folder: Path

    @property
    def path(self) -> Path:
        """Where the run grows."""
        return self.folder.with_name(f"{self.folder.name}.partial")

    @property
    def old(self) -> Path:
        """The results before, while they are being replaced."""
        return self.folder.with_name(f"{self.folder.name}.old")

    @property
    def cells(self) -> Path:
        """The store of the run."""
        return self.path / CELLS

    def replace(self) -> None:
        """Put the finished run in the place of the results; Ctrl-C waits until that is done."""
        interrupted = False
        while True:
            try:
                if not (self.path / FAILURES).exists() and self.cells.exists():
                    shutil.rmtree(self.cells)
                if self.path.exists() and self.folder.exists() and not self.old.exists():
                    os.rename(self.folder, self.old)
                if self.path.exists() and not self.folder.exists():
                    os.rename(self.path, self.folder)
                self.complete()
                break
            except KeyboardInterrupt:  # every step may be done twice
                interrupted = True
            except OSError as error:
                if not self.folder.exists():
                    with contextlib.suppress(OSError):  # else the next command completes it
                        os.rename(self.old, self.folder)
                raise OutputError(
                    f"cannot put the results in {self.path} in the place of {self.folder}: "
                    f"{error.strerror or error}; mend that and run the same command again."
                ) from error
        if interrupted:
            raise KeyboardInterrupt

    def complete(self) -> None:
        """Finish a replacement from wherever it was left; files that others put there come along."""
        if not self.old.exists():
            return
        if not self.folder.exists():
            os.rename(self.path if self.path.exists() else self.old, self.folder)
        if self.old.exists():
            ours = {RECORD, FAILED, FAILURES, *_recorded_files(self.old)}
            for path in sorted(self.old.rglob("*")):
                name = path.relative_to(self.old)
                kept = name.as_posix() not in ours and name.parts[0] != CELLS
                if kept and not path.is_dir() and not (self.folder / name).exists():
                    (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    os.rename(path, self.folder / name)
            shutil.rmtree(self.old)

    def abandon(self) -> int | None:
        """Remove what is half done but finished cells, and show a failed notebook."""
        if (self.path / FAILED).exists():
            os.replace(self.path / FAILED, output_folder(self.folder) / FAILED)
        kept = _finished_cells(self.cells)
        _clear(self.path, () if kept == 0 else (CELLS,))
        return kept

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each file that the run wrote, by its name."""
        names = {
            path.relative_to(self.path).as_posix(): path
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and path.relative_to(self.path).parts[0] != CELLS
        }
        return {name: file_checksum(path) for name, path in names.items()}


@contextmanager
def results_folder(out: str | os.PathLike[str]) -> Generator[ResultsFolder, None, None]:
    """Hold the folder of a run's results, for one process at a time."""
    shown = Path(out).expanduser()
    folder = Path(os.path.realpath(shown))
    if folder.is_file():
        raise OutputError(f"results cannot be written to the folder {shown}: it exists and is a file.")
    if os.path.ismount(folder) or folder in (Path.cwd(), *Path.cwd().parents):
        raise OutputError(
            f"results cannot be written to {shown} itself, which cannot be renamed while it is in use; "
            f"choose a folder inside it, such as --out {shown / 'results'}."
        )
    for place in (shown.parent, shown):
        if place == shown.parent or folder.exists():
            output_folder(place)  # else it is found out when all is done
    with folder_lock(folder.parent, name=f".{folder.name}.lock", shown=shown):
        held = ResultsFolder(shown if folder == shown.absolute() else folder)
        try:
            held.complete()
            output_folder(held.path)
            _clear(held.path, (CELLS,))
            if (held.folder / CELLS).exists() and not held.cells.exists():  # of a run with failures
                os.rename(held.folder / CELLS, held.cells)
            yield held
        finally:
            with contextlib.suppress(OSError):  # finished cells are in it, or it has become the results
                held.path.rmdir()


def run_report(
    notebook: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    *,
    out: str | os.PathLike[str],
    title: str,
    checksums: Mapping[str, str],
    quiet: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> list[dict[str, str]]:
    """Run a notebook; leave report.ipynb, report.html and provenance.json with its own results."""
    from condnum.report.html import export_html

    started, clock = datetime.now(UTC), time.monotonic()
    seeds = parameters.get("seeds")
    with results_folder(out) as held:
        try:
            ours = {"out": str(held.path), "quiet": quiet}
            report = run_notebook(notebook, parameters, held.path, quiet=quiet, optional=ours)
            export_html(report, held.path / PAGE, title=title)
            record = provenance(
                parameters=parameters,
                seeds=range(seeds) if isinstance(seeds, int) else (),
                checksums=checksums,
                device=str(parameters.get("device", "cpu")),
                started=started,
                seconds=time.monotonic() - clock,
            )
            write_json(held.path / RECORD, {**record, "files": held.checksums()})
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt) and not stopped():
                held.abandon()
                raise
            # The tasks of a kernel that was stopped end in errors that nobody waits for.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            (held.path / FAILED).unlink(missing_ok=True)
            kept = held.abandon()
            if kept is None:
                raise StoppedError(f"; {held.cells} is left as it is.") from None
            if not kept:
                raise StoppedError(" before the first piece was finished; nothing was kept.") from None
            pieces = f"{kept} finished piece{'s' if kept != 1 else ''}"
            raise StoppedError(
                f"; {pieces} kept in {held.cells}: the same command resumes from there."
            ) from None
        failures = _read_failures(held.path / FAILURES)
        try:
            held.replace()
        except KeyboardInterrupt:
            raise StoppedError(f" when all was done: the results in {held.folder} are complete.") from None
    return failures


def _read_failures(path: Path) -> list[dict[str, str]]:
    """Read the failures that a notebook wrote, if any cell failed."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            {name: " ".join(text.split()) for name, text in row.items()} for row in csv.DictReader(stream)
        ]


def _recorded_files(folder: Path) -> set[str]:
    """Return the files that the record of a run names."""
    try:
        return set(json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return set()  # the first run here


def _finished_cells(cells: Path) -> int | None:
    """Count the finished cells of a store; None if it cannot be read."""
    from condnum.studies.cells import ResultStore

    try:
        with ResultStore(cells, mode="read") as store:
            return store.count()
    except DataNotFoundError:
        return 0
    except CondnumError:
        return None


def _clear(folder: Path, keep: tuple[str, ...]) -> None:
    """Remove everything from a folder but what is named."""
    for entry in folder.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
