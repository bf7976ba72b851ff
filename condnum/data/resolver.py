"""Where data files are looked for, and what a user is told when they are not there.

Order: the caller's path, and nothing else if there is one; `$CONDNUM_DATA`; `./data`; the user
cache directory; then, for `source="auto"`, the box: the files that come with condnum. Nothing is
downloaded, and what was taken stands in every title.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TypeAlias, cast

from condnum.data.task_pair import SourceKind, is_known, sha256_file
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError

#: Environment variable that names the folder of local data.
DATA_VARIABLE = "CONDNUM_DATA"

#: The folder of the files that come with condnum, laid out as any data folder.
BOX = Path(__file__).with_name("box")

#: "auto" (local, then the box), "local", "embedded", or a path.
Source: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True)
class DataFiles:
    """The files of one data set: which names under which subfolder, and how to obtain them."""

    dataset: str  # "mnist"
    folder: str  # subfolder of a data folder, "MNIST/raw"
    names: tuple[tuple[str, ...], ...]  # a file each: the accepted names, the preferred one first
    advice: str  # one sentence: where a user obtains them
    embedded_instead: str  # the loader of embedded data that plays the same part
    instead: DataFiles | None = None  # taken from a folder that holds these but not the others


@dataclass(frozen=True)
class Found:
    """Files that exist."""

    files: DataFiles  # those asked for, or what is taken instead
    paths: tuple[Path, ...]  # one a file, all in one folder
    source: SourceKind

    @cached_property
    def checksums(self) -> list[str]:
        """SHA-256 of each file; of a compressed table that of its content, as if it were plain."""
        return [sha256_file(path, decompress=path.name.endswith(".csv.gz")) for path in self.paths]

    @cached_property
    def known(self) -> bool:
        """Whether these are the files that published and recorded numbers were measured on."""
        files = zip(self.files.names, self.paths, self.checksums, strict=True)
        return all(
            is_known(f"{self.files.folder}/{names[-1]}", path, digest) for names, path, digest in files
        )


def user_cache() -> Path:
    """Return the user cache directory, `$XDG_CACHE_HOME/condnum` or `~/.cache/condnum`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "condnum"


def data_folders() -> tuple[Path, ...]:
    """Return the folders that are searched, in order; they need not exist."""
    named = os.environ.get(DATA_VARIABLE)
    return (*((Path(named).expanduser(),) if named else ()), Path("data"), user_cache())


def candidate_folders(files: DataFiles, source: Source) -> dict[Path, SourceKind]:
    """Return the folders that may hold these files, in order, with the name of each place."""
    if source == "embedded":
        raise InvalidInputError(
            f"{files.dataset} is not embedded; use {files.embedded_instead}, "
            "or source='auto', 'local' or a path."
        )
    if source in ("auto", "local"):
        kinds: tuple[SourceKind, ...] = ("CONDNUM_DATA", "./data", "user cache", "condnum's box")
        folders = (*data_folders(), *([BOX] if source == "auto" else []))
        named = zip(folders, kinds if os.environ.get(DATA_VARIABLE) else kinds[1:], strict=False)
        return {folder / files.folder: kind for folder, kind in named}
    path = Path(source).expanduser()
    return dict.fromkeys((path / files.folder, path / Path(files.folder).name, path), "given path")


def find(files: DataFiles, source: Source = "auto") -> Found | None:
    """Look for the files."""
    if source not in ("auto", "local", "embedded") and Path(source).expanduser().is_file():
        if len(files.names) > 1:
            raise InvalidInputError(
                f"{files.dataset} needs {len(files.names)} files; "
                f"give the folder that holds them, not {source}."
            )
        return Found(files, (Path(source).expanduser(),), "given path")
    named = os.environ.get(DATA_VARIABLE) if source in ("auto", "local") else None
    if named and not Path(named).expanduser().is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} is '{named}', a folder that does not exist; set it to the folder that holds "
            f"{files.folder}/, or unset it: then --data auto ends in condnum's box."
        )
    for folder, kind in candidate_folders(files, source).items():
        for wanted in (files, files.instead):
            paths = [
                next((folder / n for n in names if (folder / n).is_file()), None)
                for names in (wanted.names if wanted else ())
            ]
            if wanted and None not in paths:
                return Found(wanted, tuple(p for p in paths if p is not None), kind)
    return None


def obtain(files: DataFiles, source: Source) -> Found:
    """Return the files, or a clear error; an altered file of the box is one."""
    found = find(files, source)
    if found is None:
        raise DataNotFoundError(missing_message(files, source))
    if found.source == "condnum's box" and not found.known:
        raise DataFormatError(
            f"{short_names(found.paths)}, SHA-256 {', '.join(found.checksums)}: not what condnum came with; "
            f"install condnum again, or put files of your own into data/{files.folder}/."
        )
    return found


def missing_message(files: DataFiles, source: Source = "auto") -> str:
    """Return one paragraph: what is missing, where it was looked for, what to put where."""
    wanted = " and ".join(" or ".join(names) for names in files.names)
    tried = ", ".join(str(folder.absolute()) for folder in candidate_folders(files, source))
    named = os.environ.get(DATA_VARIABLE)
    if source not in ("auto", "local"):
        fix = f"Give an existing path, or 'auto', which ends in condnum's box; got '{source}'."
    elif named:
        fix = f"{DATA_VARIABLE} is '{named}'; put the file(s) into its subfolder {files.folder}/."
    else:
        fix = (
            f"Put the file(s) into data/{files.folder}/, or set {DATA_VARIABLE} to the folder "
            f"that holds {files.folder}/."
        )
    return f"{files.dataset}: {wanted} not found in: {tried}. {fix} {files.advice}"


@contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """Open a file, plain or gzip, and turn what goes wrong while it is read into our words."""
    try:
        with open(path, "rb") as stream:
            compressed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else open(path, "rb") as stream:
            yield cast(IO[bytes], stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataFormatError(f"{path} is truncated or damaged gzip ({error}); fetch it again.") from error
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {path}: {error}; check the path and its permissions."
        ) from error


def short_names(paths: Sequence[Path]) -> str:
    """Return the common folder and the file names, for a provenance line."""
    if len(paths) == 1:
        return str(paths[0])
    return f"{paths[0].parent} ({', '.join(p.name for p in paths)})"
