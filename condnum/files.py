"""Files that appear whole or not at all, and files that are read as they are found.

A result is written under a hidden temporary name in its own folder, flushed to the disk and then
renamed, so that no file with a final name is ever half-written, whatever stops the program.
"""

import gzip
import hashlib
import json
import os
import tempfile
import uuid
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, cast

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
