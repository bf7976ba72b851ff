"""Where data files are looked for, and what a user is told when they are not there.

Order: the caller's path, and nothing else if there is one; `$CONDNUM_DATA`; `./data`; the user
cache directory; then, for `source="auto"` only, a download into the user cache. Nothing ever
falls back to another data set.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from condnum.data.task_pair import SourceKind
from condnum.errors import DataNotFoundError, InvalidInputError, OutputError

#: Environment variable that names the folder of local data.
DATA_VARIABLE = "CONDNUM_DATA"

#: "auto" (local, then download), "local", "embedded", or a path.
Source: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True)
class DataFiles:
    """The files of one data set: which names under which subfolder, and how to obtain them."""

    dataset: str  # "mnist"
    folder: str  # subfolder of a data folder, "MNIST/raw"
    names: tuple[tuple[str, ...], ...]  # a file each: the accepted names, the preferred one first
    advice: str  # one sentence: where a user obtains them
    embedded_instead: str  # the loader of embedded data that plays the same part


@dataclass(frozen=True)
class Found:
    """Files that exist."""

    paths: tuple[Path, ...]  # one a file asked for, all in one folder
    source: SourceKind


def user_cache() -> Path:
    """Return the user cache directory, `$XDG_CACHE_HOME/condnum` or `~/.cache/condnum`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "condnum"


def data_folders() -> tuple[Path, ...]:
    """Return the folders that are searched, in order; they need not exist."""
    named = os.environ.get(DATA_VARIABLE)
    return (*((Path(named).expanduser(),) if named else ()), Path("data"), user_cache())


def candidate_folders(files: DataFiles, source: Source) -> tuple[Path, ...]:
    """Return the folders that may hold these files, in order.

    Args:
        files: The files.
        source: "auto" or "local" for the search order, else a folder: a data folder or the very
            folder with the files.

    Returns:
        At least one folder; they need not exist.

    Raises:
        InvalidInputError: `source` is "embedded", which these files are not.

    Examples:
        >>> files = DataFiles("toy", "toy/raw", (("a.csv",),), "ask", "load_toy()")
        >>> [folder.as_posix() for folder in candidate_folders(files, "here")]
        ['here/toy/raw', 'here/raw', 'here']
    """
    if source == "embedded":
        raise InvalidInputError(
            f"{files.dataset} is not embedded; use {files.embedded_instead}, "
            "or source='auto', 'local' or a path."
        )
    if source in ("auto", "local"):
        return tuple(folder / files.folder for folder in data_folders())
    path = Path(source).expanduser()
    return tuple(dict.fromkeys((path / files.folder, path / Path(files.folder).name, path)))


def find(files: DataFiles, source: Source = "local") -> Found | None:
    """Look for the files on this machine; never downloads.

    Args:
        files: The files.
        source: "auto", "local", a folder, or the path of the file itself when there is one only.

    Returns:
        The first folder's files where all of them exist, else None.

    Raises:
        InvalidInputError: `source` is "embedded", or one file where several are needed.
    """
    if source not in ("auto", "local", "embedded") and Path(source).expanduser().is_file():
        if len(files.names) > 1:
            raise InvalidInputError(
                f"{files.dataset} needs {len(files.names)} files; "
                f"give the folder that holds them, not {source}."
            )
        return Found((Path(source).expanduser(),), "local file")
    for folder in candidate_folders(files, source):
        paths = [next((folder / n for n in names if (folder / n).is_file()), None) for names in files.names]
        if None not in paths:
            return Found(tuple(p for p in paths if p is not None), "local file")
    return None


def obtain(files: DataFiles, source: Source, download: Callable[[Path], None]) -> Found:
    """Return the files: local ones, else for `source="auto"` downloaded ones, else a clear error.

    Args:
        files: The files.
        source: "auto", "local" or a path.
        download: Writes the files into the folder that it is given.

    Returns:
        Existing paths and where they came from.

    Raises:
        DataNotFoundError: Not there and not downloadable; the message says what to put where.
        InvalidInputError: `source` is "embedded", or one file where several are needed.
        OutputError: The user cache cannot be written to.
    """
    found = find(files, source)
    if found is not None:
        return found
    if source != "auto":
        raise DataNotFoundError(missing_message(files, source))
    folder = user_cache() / files.folder
    try:
        download(folder)
    except DataNotFoundError as error:
        raise DataNotFoundError(f"{missing_message(files, source)} {error}") from error
    found = find(files, user_cache())
    if found is None:
        raise DataNotFoundError(
            f"{missing_message(files, source)} The download wrote none of them to {folder}."
        )
    return Found(found.paths, "download")


def missing_message(files: DataFiles, source: Source = "local") -> str:
    """Return one paragraph: what is missing, where it was looked for, what to put where.

    Args:
        files: The files.
        source: What the caller asked for.

    Returns:
        Text for an error or a status line.
    """
    wanted = " and ".join(" or ".join(names) for names in files.names)
    tried = ", ".join(str(folder.absolute()) for folder in candidate_folders(files, source))
    named = os.environ.get(DATA_VARIABLE)
    if source not in ("auto", "local"):
        fix = f"Give an existing path (or 'auto', 'local'), got '{source}'."
    elif named:
        exists = "" if Path(named).expanduser().is_dir() else ", a folder that does not exist"
        fix = f"{DATA_VARIABLE} is '{named}'{exists}; put the file(s) into its subfolder {files.folder}/."
    else:
        fix = (
            f"Put the file(s) into data/{files.folder}/, or set {DATA_VARIABLE} to the folder "
            f"that holds {files.folder}/."
        )
    return f"{files.dataset}: {wanted} not found in: {tried}. {fix} {files.advice}"


def fetch_openml(dataset: str, **query: Any) -> Any:
    """Fetch a data set from OpenML through scikit-learn.

    Args:
        dataset: Its name, for the message.
        **query: Passed on to `sklearn.datasets.fetch_openml`.

    Returns:
        scikit-learn's `Bunch`.

    Raises:
        DataNotFoundError: Offline, or OpenML does not answer as it should.
    """
    from sklearn import datasets

    try:
        # cache=False: what is kept is the one file that the loaders read, not a second copy.
        return datasets.fetch_openml(**query, cache=False)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataNotFoundError(
            f"The download of {dataset} from OpenML failed ({type(error).__name__}: {error}); "
            "this machine may be offline."
        ) from error


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """Give a temporary path that becomes `path` on success, so that no half-written file is left.

    Args:
        path: The final place; its folder is made.

    Yields:
        Where to write.

    Raises:
        OutputError: The place cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error}; set XDG_CACHE_HOME to a writable folder."
        ) from error


def short_names(paths: Sequence[Path]) -> str:
    """Return the common folder and the file names, for a provenance line.

    Examples:
        >>> short_names([Path("a/x.gz"), Path("a/y.gz")])
        'a (x.gz, y.gz)'
    """
    if len(paths) == 1:
        return str(paths[0])
    return f"{paths[0].parent} ({', '.join(p.name for p in paths)})"
