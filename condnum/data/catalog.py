"""What data this machine has: where files are looked for, their checksums, and the list of data sets.

Order: the path of the caller alone, if there is one; else `$CONDNUM_DATA`; `./data`; the user cache folder;
then the bundled data: the files that come with condnum. Nothing is downloaded, and what was taken stands in
every title.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from condnum.data.task_pair import Provenance, sha256_arrays
from condnum.errors import CondnumError, DataNotFoundError, InvalidInputError
from condnum.files import DATA_VARIABLE, data_folders, sha256_file

#: The folder of the files that come with condnum, laid out as any data folder.
BOX = Path(__file__).with_name("box")

#: "auto" (local, then bundled), or a path.
Source: TypeAlias = "str | os.PathLike[str]"

#: Name under the data folder -> SHA-256 of the content, uncompressed; `embedded/` names arrays.
_SHA256SUMS = """
1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41  house_prices/train.csv
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


@dataclass(frozen=True)
class FoundFiles:
    """Files that exist."""

    files: DataFiles
    paths: tuple[Path, ...]  # one a file, all in one folder
    source: str  # which place

    @cached_property
    def checksums(self) -> list[str]:
        """SHA-256 of each file; of a compressed one that of its content, as if it were plain."""
        return [sha256_file(path, decompress=path.suffix == ".gz") for path in self.paths]

    @property
    def checksum(self) -> str:
        """One sum for all: that of a single file, else that of the sums, a line each."""
        if len(self.checksums) == 1:
            return self.checksums[0]
        return hashlib.sha256("".join(f"{digest}\n" for digest in self.checksums).encode()).hexdigest()

    @property
    def known(self) -> bool:
        """Whether published and recorded numbers were measured on this content."""
        folder = self.files.folder
        return self.checksums == [KNOWN_CHECKSUMS.get(f"{folder}/{names[-1]}") for names in self.files.names]

    @property
    def location(self) -> str:
        """The path, or the common folder and the names of the files, for a provenance line."""
        if len(self.paths) == 1:
            return str(self.paths[0])
        return f"{self.paths[0].parent} ({', '.join(path.name for path in self.paths)})"

    def about(self, name: str, split: str = "") -> dict[str, Any]:
        """Return name, checksum and provenance of the data set that was read from these files."""
        origin = Provenance(self.source, self.location, self.known, split)
        return {"name": name, "checksum": self.checksum, "provenance": origin}


def embedded(name: str, loader: str, **arrays: NDArray[Any]) -> dict[str, Any]:
    """Return the same of arrays that come with scikit-learn."""
    from sklearn import __version__

    checksum = sha256_arrays(**arrays)
    known = checksum == KNOWN_CHECKSUMS[f"embedded/{name}"]
    origin = Provenance("embedded", f"scikit-learn {__version__}, {loader}", known)
    return {"name": name, "checksum": checksum, "provenance": origin}


def find_folder(name: str) -> Path:
    """Return a folder by its path, or by its name in one of the data folders."""
    places = [Path(name).expanduser(), *(folder / name for folder in data_folders())]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        looked = ", ".join(str(folder.absolute()) for folder in data_folders())
        raise DataNotFoundError(
            f"there is no folder {name} here or in {looked}; give the path of the data set, or set "
            f"{DATA_VARIABLE} to the folder that holds {name}/train/CLASS/* and {name}/test/CLASS/*."
        )
    return found


def obtain(files: DataFiles, source: Source = "auto") -> FoundFiles:
    """Return the files; say what is missing, where it was looked for and what to put where."""
    given, named = Path(source).expanduser(), os.environ.get(DATA_VARIABLE)
    folders = dict.fromkeys((given / files.folder, given / Path(files.folder).name, given), "given path")
    if source == "auto":
        kinds = (["CONDNUM_DATA"] if named else []) + ["./data", "user cache", "bundled data"]
        places = [folder / files.folder for folder in (*data_folders(), BOX)]
        folders = dict(zip(places, kinds, strict=True))
    elif given.is_file():
        if len(files.names) > 1:
            raise InvalidInputError(
                f"{files.dataset} needs {len(files.names)} files; "
                f"give the folder that holds them, not {source}."
            )
        return FoundFiles(files, (given,), "given path")
    if source == "auto" and named and not Path(named).expanduser().is_dir():
        raise DataNotFoundError(
            f"{DATA_VARIABLE} is '{named}', a folder that does not exist; set it to the folder that holds "
            f"{files.folder}/, or unset it to use the bundled data."
        )
    for folder, kind in folders.items():
        there = [[folder / name for name in names if (folder / name).is_file()] for names in files.names]
        if all(there):
            return FoundFiles(files, tuple(paths[0] for paths in there), kind)
    fix = f"Put the file(s) into the subfolder {files.folder}/ of data/ or of the folder in {DATA_VARIABLE}."
    if source != "auto":
        fix = f"Give an existing path, or 'auto', which falls back to the bundled data; got '{source}'."
    names = " and ".join(" or ".join(names) for names in files.names)
    tried = ", ".join(str(folder.absolute()) for folder in folders)
    raise DataNotFoundError(f"{files.dataset}: {names} not found in: {tried}. {fix} {files.advice}")


def _loaders() -> Mapping[str, Callable[[], Any]]:
    """Return what loads each data set; imported here, as loaders ask this module for their files."""
    import condnum.data as loaders

    return {
        "house-prices": loaders.load_house_prices,
        "mnist": loaders.load_mnist_images,
        "mnist-test": lambda: loaders.load_mnist_images("auto", "test"),
        "digits-8x8": loaders.load_small_digits,
        "diabetes": loaders.load_diabetes_tasks,
    }


@dataclass(frozen=True)
class DataStatus:
    """What a full load of a data set found."""

    name: str
    status: str  # "ok", "unknown checksum", "missing" or "broken"
    advice: str = ""  # what is missing or broken, and the fix
    source: str = ""  # where it was found; "" if it does not load
    location: str = ""  # path or package
    rows: int | None = None
    checksum: str = ""  # 64 hexadecimal digits


def available() -> list[DataStatus]:
    """Load each data set in full, and compare the checksums with those on which numbers were measured."""
    return [data_status(name) for name in _loaders()]


def data_status(name: str) -> DataStatus:
    """Return the status of one data set."""
    try:
        data = _loaders()[name]()
    except CondnumError as error:
        return DataStatus(name, "missing" if isinstance(error, DataNotFoundError) else "broken", str(error))
    origin = data.provenance
    status = "ok" if origin.known_checksum else "unknown checksum"
    return DataStatus(name, status, "", origin.source, origin.location, data.rows, data.checksum)
