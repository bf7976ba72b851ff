"""Where data files are looked for, and what a user is told when they are not there.

Order: the caller's path, and nothing else if there is one; `$CONDNUM_DATA`; `./data`; the user
cache directory; then, for `source="auto"`, the bundled data: the files that come with condnum. Nothing is
downloaded, and what was taken stands in every title.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from condnum.data.task_pair import SourceKind
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError
from condnum.files import sha256_file

#: Environment variable that names the folder of local data.
DATA_VARIABLE = "CONDNUM_DATA"

#: The folder of the files that come with condnum, laid out as any data folder.
BOX = Path(__file__).with_name("box")

#: "auto" (local, then bundled), "local", "embedded", or a path.
Source: TypeAlias = "str | os.PathLike[str]"

#: Name under the data folder -> SHA-256; `embedded/` names arrays. MNIST has two sums a file,
#: compressed and plain, as a file that was compressed anew has other bytes but the same content.
_SHA256SUMS = """
1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41  house_prices/train.csv
db8f937d487057fb14a9f0fbe97f0bc8d311ab41b750d41e1ff37c43b9e55e19  MNIST/raw/train-images-idx3-ubyte.gz
51fc562b6747b666fbf6e84ce29d43c3cb5f9c388c664d43b33f02095313405a  MNIST/raw/train-labels-idx1-ubyte.gz
cfeddb84311ecf044fc6a5b0f6ee8a24d265d4e83e388400186eb114082f4209  MNIST/raw/t10k-images-idx3-ubyte.gz
e41c74e484045d39b462a7790a4af51301bd9b0b24f0154798d713ec68c45920  MNIST/raw/t10k-labels-idx1-ubyte.gz
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  MNIST/raw/train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  MNIST/raw/train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  MNIST/raw/t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  MNIST/raw/t10k-labels-idx1-ubyte
715adb24fd0f53b9d9b5b9f591e3a5498a40b604338e3ff3cc50cd6a17fca27d  embedded/digits-8x8
ed0af9b810baa6057ea752af4060c68ba0f2e712817a9f3fcad9b80c37b1a60e  embedded/diabetes
"""
KNOWN_CHECKSUMS = {name: digest for digest, name in map(str.split, _SHA256SUMS.strip().splitlines())}


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
class FoundFiles:
    """Files that exist."""

    files: DataFiles  # those asked for, or what is taken instead
    paths: tuple[Path, ...]  # one a file, all in one folder
    source: SourceKind

    @cached_property
    def checksums(self) -> list[str]:
        """SHA-256 of each file; of a compressed table that of its content, as if it were plain."""
        return [sha256_file(path, decompress=path.name.endswith(".csv.gz")) for path in self.paths]

    @property
    def checksum(self) -> str:
        """One sum for all: that of a single file, else that of the sums, a line each."""
        if len(self.checksums) == 1:
            return self.checksums[0]
        return hashlib.sha256("".join(f"{digest}\n" for digest in self.checksums).encode()).hexdigest()

    @cached_property
    def known(self) -> bool:
        """Whether published and recorded numbers were measured on these bytes, or on the same content."""
        for names, path, digest in zip(self.files.names, self.paths, self.checksums, strict=True):
            name = f"{self.files.folder}/{names[-1]}"
            plain = KNOWN_CHECKSUMS.get(name)
            if digest not in (plain, KNOWN_CHECKSUMS.get(f"{name}.gz")) and not (
                path.suffix == ".gz" and sha256_file(path, decompress=True) == plain
            ):
                return False
        return True

    @property
    def location(self) -> str:
        """The path, or the common folder and the names of the files, for a provenance line."""
        if len(self.paths) == 1:
            return str(self.paths[0])
        return f"{self.paths[0].parent} ({', '.join(path.name for path in self.paths)})"


def user_cache() -> Path:
    """Return the user cache directory, `$XDG_CACHE_HOME/condnum` or `~/.cache/condnum`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "condnum"


def data_folders() -> tuple[Path, ...]:
    """Return the folders that are searched, in order; they need not exist."""
    named = os.environ.get(DATA_VARIABLE)
    return (*((Path(named).expanduser(),) if named else ()), Path("data"), user_cache())


def _candidates(files: DataFiles, source: Source) -> dict[Path, SourceKind]:
    """Return the folders that may hold these files, in order, with the name of each place."""
    if source == "embedded":
        raise InvalidInputError(
            f"{files.dataset} is not embedded; use {files.embedded_instead}, "
            "or source='auto', 'local' or a path."
        )
    if source in ("auto", "local"):
        kinds: tuple[SourceKind, ...] = ("CONDNUM_DATA", "./data", "user cache", "bundled data")
        folders = (*data_folders(), *([BOX] if source == "auto" else []))
        named = zip(folders, kinds if os.environ.get(DATA_VARIABLE) else kinds[1:], strict=False)
        return {folder / files.folder: kind for folder, kind in named}
    path = Path(source).expanduser()
    return dict.fromkeys((path / files.folder, path / Path(files.folder).name, path), "given path")


def find(files: DataFiles, source: Source = "auto") -> FoundFiles | None:
    """Look for the files."""
    if source not in ("auto", "local", "embedded") and Path(source).expanduser().is_file():
        if len(files.names) > 1:
            raise InvalidInputError(
                f"{files.dataset} needs {len(files.names)} files; "
                f"give the folder that holds them, not {source}."
            )
        return FoundFiles(files, (Path(source).expanduser(),), "given path")
    named = os.environ.get(DATA_VARIABLE) if source in ("auto", "local") else None
    if named and not Path(named).expanduser().is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} is '{named}', a folder that does not exist; set it to the folder that holds "
            f"{files.folder}/, or unset it: then --data auto ends in the bundled data."
        )
    for folder, kind in _candidates(files, source).items():
        for wanted in filter(None, (files, files.instead)):
            there = [[folder / name for name in names if (folder / name).is_file()] for names in wanted.names]
            if all(there):
                return FoundFiles(wanted, tuple(paths[0] for paths in there), kind)
    return None


def obtain(files: DataFiles, source: Source) -> FoundFiles:
    """Return the files; say what is missing, where it was looked for and what to put where.

    An altered bundled file is refused.
    """
    found = find(files, source)
    if found is None:
        wanted = " and ".join(" or ".join(names) for names in files.names)
        tried = ", ".join(str(folder.absolute()) for folder in _candidates(files, source))
        named = os.environ.get(DATA_VARIABLE)
        fix = (
            f"Put the file(s) into data/{files.folder}/, or set {DATA_VARIABLE} to the folder "
            f"that holds {files.folder}/."
        )
        if named:
            fix = f"{DATA_VARIABLE} is '{named}'; put the file(s) into its subfolder {files.folder}/."
        if source not in ("auto", "local"):
            fix = f"Give an existing path, or 'auto', which ends in the bundled data; got '{source}'."
        raise DataNotFoundError(f"{files.dataset}: {wanted} not found in: {tried}. {fix} {files.advice}")
    if found.source == "bundled data" and not found.known:
        raise DataFormatError(
            f"{found.location}, SHA-256 {', '.join(found.checksums)}: not what condnum came with; "
            f"install condnum again, or put files of your own into data/{files.folder}/."
        )
    return found
