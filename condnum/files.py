"""Files that appear whole or not at all, and files that are read as they are found.

A result is written under a hidden temporary name in its own folder, flushed to the disk and then
renamed, so that no file with a final name is ever half-written, whatever stops the program.
"""

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, cast
from zipfile import BadZipFile

from condnum.errors import CondnumError, DataFormatError, DataNotFoundError, OutputError, require


def _advice(what: str, path: Path, error: OSError) -> str:
    return (
        f"{what} {path}: {error.strerror or error}; "
        "free some space there or make it writable, or choose another folder with --out."
    )


def output_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder for results, with its parents, and check that files can be written in it."""
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(_advice("results cannot be written to the folder", folder, error)) from error
    return folder


def shipped(folder: str) -> Path:
    """Return a folder of the repository: beside the package in a clone, inside the package in a wheel."""
    package = Path(__file__).resolve().parent
    return package / folder if (package / folder).is_dir() else package.with_name(folder)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Generator[Path, None, None]:
    """Give a temporary path beside `path`, which it becomes when the block succeeds, or else vanishes.

    It keeps the suffix, because writers choose their format by it.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.stem}-{uuid.uuid4().hex[:8]}{final.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())  # on the disk, so that the rename never overtakes it
        temporary.replace(final)
    except CondnumError:
        raise  # some of them are OSErrors too, and say more than we could
    except OSError as error:
        raise OutputError(_advice("cannot write", final, error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def asset(*names: str) -> str:
    """Return scripts, styles or a template of this package, by their paths in it, one after the other."""
    return "\n".join(files("condnum").joinpath(name).read_text(encoding="utf-8") for name in names)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text atomically and return its path."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: str | os.PathLike[str], value: Any) -> Path:
    """Write JSON atomically: two spaces of indentation, keys in their given order."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_tables(folder: str | os.PathLike[str], tables: Mapping[str, Any]) -> list[str]:
    """Write data frames as CSV or Parquet, as their names end; each whole or not at all."""
    target = output_folder(folder)
    for name, table in tables.items():
        with atomic_write(target / name) as temporary:
            if name.endswith(".parquet"):
                require("pyarrow", "notebooks")
                table.to_parquet(temporary, index=False)
            else:
                table.to_csv(temporary, index=False)
    return list(tables)


def read_table(folder: Path, name: str) -> Any:
    """Read a CSV that `write_tables` wrote, perhaps compressed since; None if there is none."""
    import pandas as pd

    for path in (folder / f"{name}{suffix}" for suffix in (".csv", ".csv.gz")):
        if not path.is_file():
            continue
        try:
            return pd.read_csv(path)
        except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
            raise _damaged(path, error) from error
    return None


def read_record(folder: Path) -> dict[str, Any]:
    """Read what a run recorded of itself; empty if it recorded nothing."""
    path = folder / RECORD
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataFormatError:
    return DataFormatError(f"{path} is damaged ({error}); run the experiment again.")


@contextmanager
def opened(path: str | os.PathLike[str], *, decompress: bool | None = None) -> Generator[IO[bytes]]:
    """Open a file, plain or gzip (None: as its beginning says), and put what goes wrong into our words."""
    try:
        if decompress is None:
            with open(path, "rb") as stream:
                decompress = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if decompress else open(path, "rb") as stream:
            yield cast(IO[bytes], stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataFormatError(
            f"{path} is a truncated or damaged gzip file ({error}); download it again."
        ) from error
    except CondnumError:
        raise  # as above
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions."
        ) from error


def sha256_file(path: str | os.PathLike[str], *, decompress: bool = False) -> str:
    """Return the SHA-256 of a file, or of what it holds compressed; read in blocks."""
    with opened(path, decompress=decompress) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def signature(place: str | os.PathLike[str], depth: int = 3) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of a file, or of what lies in a folder, so deep: as make looks.

    Hidden files and caches of Python do not count.
    """
    path = Path(place)
    try:
        told = path.stat()
        below = sorted(os.listdir(path)) if depth and path.is_dir() else []
    except OSError:
        return []
    listed = path.is_dir() and depth > 0
    own = (str(path.absolute()), *((0, 0) if listed else (told.st_size, told.st_mtime_ns)))
    names = (name for name in below if name[0] != "." and name != "__pycache__")
    return [own, *(found for name in names for found in signature(path / name, depth - 1))]


#: Environment variable that names the folder of local data.
DATA_VARIABLE = "CONDNUM_DATA"


def user_cache() -> Path:
    """Return the user cache directory, `$XDG_CACHE_HOME/condnum` or `~/.cache/condnum`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "condnum"


def data_folders() -> tuple[Path, ...]:
    """Return the folders that are searched, in order; they need not exist."""
    named = os.environ.get(DATA_VARIABLE)
    return (*((Path(named).expanduser(),) if named else ()), Path("data"), user_cache())


@contextmanager
def folder_lock(
    folder: str | os.PathLike[str], *, name: str = ".lock", shown: str | os.PathLike[str] | None = None
) -> Generator[Path, None, None]:
    """Hold a folder for one process; the lock goes with the process, however it ends, its file stays."""
    filelock = require("filelock", "notebooks")
    path, shown = output_folder(folder), folder if shown is None else shown
    lock = filelock.FileLock(path / name)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise OutputError(
            f"another run is writing to {shown}; wait for it, or choose another folder with --out."
        ) from error
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"{shown} cannot be locked: {error}; choose a folder on a local disk.") from error
    try:
        yield path
    finally:
        lock.release()


#: What a run writes beside its results: what somebody else needs to reproduce it, with the SHA-256 of each
#: file; the executed part of a notebook that failed; the cells that failed.
RECORD = "provenance.json"
FAILED = "report.failed.ipynb"
FAILURES = "failures.csv"

#: Of a run: its finished cells, beside what else it writes. Kept until a run has no failures.
CELLS = "cells"


@dataclass(frozen=True)
class ResultsFolder:
    """The folder of a run's results, held by this run: it has the old results or the new ones.

    A run grows in `DIR.partial`; one that is stopped leaves there the cells that it finished, and the same
    command goes on from them. When all is written, `DIR` is renamed to `DIR.old` and `DIR.partial` to `DIR`.
    What a kill leaves between these renames is completed by the next run.
    """

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
        """Put the finished run in the place of the results."""
        self.check_replaceable()
        try:
            if not (self.path / FAILURES).exists():
                shutil.rmtree(self.cells, ignore_errors=True)
            if self.folder.exists():
                os.rename(self.folder, self.old)
            os.rename(self.path, self.folder)
        except OSError as error:
            raise OutputError(
                f"cannot move the results in {self.path} to {self.folder}: {error.strerror or error}; "
                "fix this and run the same command again."
            ) from error
        finally:
            self.complete()

    def complete(self) -> None:
        """Finish a replacement from wherever it was left, or else take it back."""
        if not self.old.exists():
            return
        for source in (self.path, self.old):
            if not self.folder.exists():
                with suppress(OSError):
                    os.rename(source, self.folder)
        if self.folder.exists():
            shutil.rmtree(self.old, ignore_errors=True)

    def check_replaceable(self) -> None:
        """Refuse to replace a folder with files that no run wrote; hidden files do not count."""
        ours = {RECORD, FAILED, FAILURES}
        with suppress(DataFormatError):
            ours |= set(read_record(self.folder).get("files", ()))
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder)
            hidden = any(part.startswith(".") for part in name.parts)
            if not path.is_dir() and not hidden and name.parts[0] != CELLS and name.as_posix() not in ours:
                raise OutputError(
                    f"{self.folder} holds {name}, which was not written by condnum, and a run replaces the "
                    "whole folder; move that file away, or choose another folder with --out."
                )

    def clear(self) -> None:
        """Remove what is half done, but not the finished cells."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                if entry != self.cells or not any(entry.iterdir()):
                    shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)

    def checksums(self) -> dict[str, str]:
        """Return the SHA-256 of each file that the run wrote but its record, by its name."""
        names = {path: path.relative_to(self.path) for path in sorted(self.path.rglob("*")) if path.is_file()}
        left = {name: path for path, name in names.items() if name.parts[0] not in (CELLS, RECORD)}
        return {name.as_posix(): sha256_file(path) for name, path in left.items()}


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
        results = ResultsFolder(shown if folder == shown.absolute() else folder)
        results.complete()
        results.check_replaceable()
        output_folder(results.path)
        try:
            results.clear()
            if (results.folder / CELLS).exists() and not results.cells.exists():  # of a run with failures
                os.rename(results.folder / CELLS, results.cells)
            yield results
        finally:
            if results.path.exists():  # the run did not finish: its cells stay
                results.clear()
                with suppress(OSError):
                    results.path.rmdir()
