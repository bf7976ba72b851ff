"""Replacing the results of a folder by those of a new run, so that a stop in between is seen and completed.

Several files cannot be renamed in one step. A journal is therefore written first, and a note that everyone
sees beside the results; then the files are moved. Every step may be done twice: whoever finds a journal does
them all again, and has the new results, all of them and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from condnum.errors import DataFormatError, DataNotFoundError, OutputError
from condnum.files import LOCK, write_json, write_text
from condnum.report.notebook import FAILED, FAILURES, INCOMPLETE, RECORD
from condnum.report.provenance import file_checksum

#: In the staging folder: which files are to be moved and removed.
JOURNAL = ".promotion.json"

_TEXT = (
    "The results in this folder are being replaced by those of a new run, which lie in {staging}.\n"
    "If no run is going on, one was stopped in this moment: the next command that writes to this folder\n"
    "completes the replacement before it does anything else.\n"
)


def result_files(staging: Path, keep: Iterable[str] = ()) -> list[str]:
    """List the finished results in a staging folder, relative to it, the record of the run last."""
    kept = frozenset(keep)
    names = [
        path.relative_to(staging).as_posix()
        for path in staging.rglob("*")
        if path.is_file() and not path.name.startswith(".") and path.relative_to(staging).parts[0] not in kept
    ]
    return sorted(names, key=lambda name: (name == RECORD, name))


def file_checksums(staging: Path, keep: Iterable[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of each result in a staging folder, for the record of the run."""
    return {name: file_checksum(staging / name) for name in result_files(staging, keep) if name != RECORD}


def begin_promotion(folder: Path, staging: Path, keep: Iterable[str] = ()) -> None:
    """Write down what a promotion moves up and what of the run before it removes."""
    moved = result_files(staging, keep)
    stale = {FAILED, FAILURES, *_earlier_files(folder)} - set(moved)
    write_json(staging / JOURNAL, {"move": moved, "remove": sorted(stale), "keep_store": FAILURES in moved})


def complete_promotion(folder: Path, staging: Path, keep: Iterable[str] = ()) -> bool:
    """Do what the journal says, from wherever it was left."""
    journal = staging / JOURNAL
    if not journal.exists():
        return False
    plan = _read(journal)
    try:
        write_text(folder / INCOMPLETE, _TEXT.format(staging=staging))
        for name in plan["move"]:
            if (staging / name).exists():  # else it was moved before the stop
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(staging / name, folder / name)
        for name in plan["remove"]:
            (folder / name).unlink(missing_ok=True)
            _remove_empty(folder, (folder / name).parent)
        for parent in {folder, *((folder / name).parent for name in plan["move"])}:
            _flush(parent)
        clear(staging, (*keep, JOURNAL) if plan["keep_store"] else (JOURNAL,))
        (folder / INCOMPLETE).unlink(missing_ok=True)
        journal.unlink()
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot move the results from {staging} to {folder}: {error.strerror or error}; they are still "
            "there, and the same command moves them once that is mended."
        ) from error
    return True


def clear(staging: Path, keep: Iterable[str] = ()) -> None:
    """Remove everything from a staging folder but what is named, and the lock of whoever runs."""
    kept = {*keep, LOCK}
    for entry in staging.iterdir():
        if entry.name in kept:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _earlier_files(folder: Path) -> set[str]:
    """Return the files that the record of the run before names; what others put there stays."""
    try:
        names = json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return set()  # the first run, or one of an earlier version: nothing to remove
    return {name for name in names if _inside(name)} if isinstance(names, dict) else set()


def _read(journal: Path) -> dict[str, Any]:
    """Read a journal and check that it names files inside the folder only."""
    try:
        plan = json.loads(journal.read_text(encoding="utf-8"))
        lists = [list(plan["move"]), list(plan["remove"])]
        sound = all(_inside(name) for names in lists for name in names) and isinstance(
            plan["keep_store"], bool
        )
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {journal}: {error.strerror or error}; make it readable."
        ) from error
    except (ValueError, LookupError, TypeError):
        sound = False
    if not sound:
        raise DataFormatError(f"{journal} is no journal of condnum; move the folder {journal.parent} away.")
    return dict(plan)


def _inside(name: object) -> bool:
    """Tell a relative name that stays inside its folder."""
    return (
        isinstance(name, str) and not Path(name).is_absolute() and ".." not in Path(name).parts and bool(name)
    )


def _remove_empty(folder: Path, parent: Path) -> None:
    """Remove a folder inside the results that a removed file has left empty."""
    if parent != folder:
        with contextlib.suppress(OSError):  # others are in it
            parent.rmdir()


def _flush(folder: Path) -> None:
    """Wait until the renames in a folder are on the disk; systems that cannot open a folder go without."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
