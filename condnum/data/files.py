"""Files of data: found, checked by their sums, and read in blocks of rows.

Data sets are looked for at the path of the caller alone, if there is one; else in `$CONDNUM_DATA`, `./data`,
the user cache, and among the files that come with condnum. Features are read by NumPy, pandas, pyarrow and
torch: `.npy`, `.parquet` and `.csv` in blocks, `.npz`, `.pt` and `.safetensors` at once. Nothing in a file is
executed, and notes say what was understood where it could be misunderstood.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.arrays import FloatArray, TargetKind, as_array, as_targets, rank_eps
from condnum.data.task_pair import Provenance, sha256_arrays
from condnum.errors import CondnumError, DataFormatError, DataNotFoundError, InvalidInputError, require
from condnum.files import DATA_VARIABLE, data_folders, sha256_file

# Data sets.

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
    """The files of one data set, and the place where they were found."""

    dataset: str  # "mnist"
    folder: str  # subfolder of a data folder, "MNIST/raw"
    names: tuple[str, ...]  # of the files; each may also be compressed, NAME.gz
    advice: str  # one sentence: where a user obtains them
    paths: tuple[Path, ...] = ()  # one a file, all in one folder, once they are found
    source: str = ""  # which place

    def about(self, name: str, split: str = "") -> dict[str, Any]:
        """Return name, checksum and provenance of the data set that was read from these files.

        The sum is that of the content, uncompressed; of several files that of their sums, a line each.
        """
        sums = [sha256_file(path, decompress=path.suffix == ".gz") for path in self.paths]
        known = sums == [KNOWN_CHECKSUMS.get(f"{self.folder}/{own}") for own in self.names]
        location, checksum = str(self.paths[0]), sums[0]
        if len(sums) > 1:
            location = f"{self.paths[0].parent} ({', '.join(path.name for path in self.paths)})"
            checksum = hashlib.sha256("".join(f"{digest}\n" for digest in sums).encode()).hexdigest()
        origin = Provenance(self.source, location, known, split)
        return {"name": name, "checksum": checksum, "provenance": origin}


def obtain(files: DataFiles, source: Source = "auto") -> DataFiles:
    """Return the files with their paths, or say what is missing, where it was looked for and what to do."""
    given, named = Path(source).expanduser(), os.environ.get(DATA_VARIABLE)
    if source == "auto":
        if named and not Path(named).expanduser().is_dir():
            raise DataNotFoundError(
                f"{DATA_VARIABLE} is '{named}', a folder that does not exist; set it to the folder that "
                f"holds {files.folder}/, or unset it to use the bundled data."
            )
        places = [folder / files.folder for folder in (*data_folders(), BOX)]
        kinds = ["CONDNUM_DATA"] * bool(named) + ["./data", "user cache", "bundled data"]
        fix = f"Put them into {files.folder}/ in data/ or in the folder that {DATA_VARIABLE} names."
    else:
        if given.is_file() and len(files.names) == 1:
            return replace(files, paths=(given,), source="given path")
        places = [given / files.folder, given / Path(files.folder).name, given]
        kinds = ["given path"] * len(places)
        fix = f"Give the folder that holds them, or 'auto' for the bundled data; got '{source}'."
    for place, kind in zip(places, kinds, strict=True):
        there = [[place / f"{name}.gz", place / name] for name in files.names]
        found = [path for paths in there for path in paths if path.is_file()]
        chosen = tuple(next((path for path in paths if path in found), place) for paths in there)
        if place not in chosen:
            return replace(files, paths=chosen, source=kind)
    tried = ", ".join(str(place.absolute()) for place in places)
    names = " and ".join(f"{name} (or {name}.gz)" for name in files.names)
    raise DataNotFoundError(f"{files.dataset}: {names} not found in: {tried}. {fix} {files.advice}")


def embedded(name: str, loader: str, **arrays: NDArray[Any]) -> dict[str, Any]:
    """Return the same as `about`, of arrays that come with scikit-learn."""
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


# Features and targets.

#: A block holds at most this much, counted as float32: large enough for matrix products at full speed.
BLOCK_BYTES = 16 << 20
#: Rows of a block of narrow features.
MAX_BLOCK_ROWS = 65_536
#: Widest features that are accepted.
MAX_FEATURES = 20_000

#: A matrix of any kind (array, tensor, data frame), where to find one, or a stream of one.
FeaturesLike = Any
#: Targets of any kind (array, tensor, series, text), or where to find some.
TargetsLike = Any

#: Blocks of about so many rows, of the columns at some places.
Reader: TypeAlias = Callable[[int, Sequence[int]], Iterator[Any]]


@dataclass(frozen=True, eq=False)
class FeatureStream:
    """A feature matrix X as a sequence of blocks of rows; it can be read any number of times."""

    source: str  # the path as given, or a name
    columns: tuple[str, ...]  # D names
    named: bool  # whether the file named its columns
    dtype: np.dtype[Any]  # the stored type; float64 for text and for whole numbers of a table
    stored_eps: float  # precision by which ranks are told; integers and booleans count as float64
    read: Reader
    order: tuple[int, ...]  # places of the columns in what is read
    notes: tuple[str, ...] = ()  # what was understood of the file, in sentences
    table: Callable[[], pd.DataFrame] | None = None  # all columns of a table, text and labels as they are

    @property
    def dimension(self) -> int:
        """Number of columns D."""
        return len(self.columns)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Read blocks of rows in the stored type, as they are: NaN where an entry is missing."""
        rows = max(1, min(MAX_BLOCK_ROWS, BLOCK_BYTES // (4 * self.dimension)))
        with _readable(self.source):
            yield from self.read(rows, list(self.order))

    def array(self, *, gaps: Literal["drop", "refuse"] = "drop") -> FloatArray:
        """Return the rows in memory: the complete ones, or all of them, which then have to be finite."""
        with np.errstate(all="ignore"):  # numbers beyond float64 become infinite
            X = np.concatenate([np.asarray(block, dtype=np.float64) for block in self.blocks()])
        whole = np.isfinite(X).all(axis=1)
        if gaps == "refuse" and not whole.all():
            raise InvalidInputError(
                f"{self.source} has NaN or infinite entries, the first in row {np.argmin(whole)}; drop or "
                "replace them."
            )
        return X[~np.isnan(X).any(axis=1)]

    def targets(self) -> NDArray[Any] | pd.Series:
        """Return targets as they are stored: of a table its only column, or the only one of text."""
        if self.table is None:
            return np.concatenate([*self.blocks()])
        with _readable(self.source):
            table = self.table().iloc[:, list(self.order)]
        text = [i for i, dtype in enumerate(table.dtypes) if not _float_type(dtype)]
        if len(text) != 1 and table.shape[1] > 1:
            return self.array(gaps="refuse")
        column = table.iloc[:, text[0] if text else 0]
        empty = np.flatnonzero(column.isna())
        if len(empty):
            raise DataFormatError(
                f"{self.source}: column '{column.name}' has {len(empty)} missing value(s), the first in data "
                f"row {empty[0] + 1:,d}; fill them, or drop these rows from features and targets."
            )
        return column

    def select(self, columns: Sequence[str]) -> FeatureStream:
        """Return a stream of some of the columns, in the order asked for."""
        place = dict(zip(self.columns, self.order, strict=True))
        return replace(self, columns=tuple(columns), order=tuple(place[name] for name in columns))


def as_stream(features: FeaturesLike, *, name: str = "features") -> FeatureStream:
    """Return a stream of features, wherever they are; an array in memory is called by `name`."""
    if isinstance(features, FeatureStream):
        return features
    return _open(features) if isinstance(features, str | os.PathLike) else _of_value(features, name)


def read_targets(
    value: TargetsLike, *, kind: TargetKind = "auto", name: str = "targets"
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read labels, numbered from 0 in ascending order, or numbers `(N, m)`, and say what was understood."""
    if not isinstance(value, str | os.PathLike):
        return as_targets(value, name, kind)[0], ()
    stream = _open(value, vector=True)
    found = stream.targets()
    numbers, classes = as_targets(found, name, kind)
    which = f"column '{found.name}'" if isinstance(found, pd.Series) else f"{stream.dimension} column(s)"
    what = "numbers"
    if classes is not None:
        some = ", ".join(map(str, classes[:5])) + ", …" * (len(classes) > 5)
        what = f"labels of {len(classes)} classes: {some}"
    notes = stream.notes if stream.table is None else ()
    return numbers, (*notes, f"{name}: {which} of {stream.source} as {what}.")


def _open(path: Source, vector: bool = False) -> FeatureStream:
    """Open a file of features, or with `vector` of targets."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise DataFormatError(f"{path} is a folder; give a file in it, such as a .npy, .csv or .parquet.")
    if file.suffix.lower() not in _OPENERS:
        raise DataFormatError(
            f"{path} ends in '{file.suffix}', which is not a supported format; read it with the library that "
            "wrote it, and save it with DataFrame.to_parquet or numpy.save. Formats: "
            f"{', '.join(_OPENERS)}."
        )
    with _readable(str(file)):
        return _OPENERS[file.suffix.lower()](file, vector)


@contextmanager
def _readable(source: str) -> Generator[None]:
    """Turn whatever readers of arrays and tables raise about a damaged file into our words."""
    try:
        yield
    except CondnumError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            reason = error.strerror or error
            raise DataNotFoundError(f"cannot read {source}: {reason}; check the path.") from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if any(word in reason for word in ("pickle", "Python objects", "weights_only")):
            # What NumPy and torch advise is to load it unsafely.
            reason = "it holds Python objects, which are not loaded as that can run code, or another format"
        raise DataFormatError(
            f"{source} is damaged or does not match its extension ({reason}); write it again, with numbers "
            "only."
        ) from error


def _stream(
    source: str,
    read: Reader,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    names: Sequence[str] = (),
    eps: float | None = None,
    order: Sequence[int] = (),
    text: bool = False,
    **more: Any,
) -> FeatureStream:
    """Refuse what is not a matrix of numbers, and name columns that have no names."""
    if len(shape) != 2 or 0 in shape or dtype.kind not in ("fiubUS" if text else "fiub"):
        raise InvalidInputError(
            f"{source} holds an array of shape {shape} and type {dtype}; expected a matrix (N, D) of real "
            "numbers, not empty, with one row per sample: save X.astype(float), images as "
            "X.reshape(len(X), -1)."
        )
    D = shape[1]
    if D > MAX_FEATURES:
        raise InvalidInputError(
            f"{source} has D = {D:,d} columns, above the limit of {MAX_FEATURES:,d} (a covariance takes "
            f"{8 * D**2 / 2**30:.1f} GiB): project the features to fewer columns."
        )
    columns = tuple(names) or tuple(f"x{i}" for i in range(D))
    if len(set(columns)) < D:
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InvalidInputError(f"{source} has the column '{twice}' twice; rename or drop one.")
    eps = rank_eps(np.empty(0, dtype)) if eps is None else eps
    return FeatureStream(source, columns, bool(names), dtype, eps, read, tuple(order or range(D)), **more)


def _of_value(value: Any, name: str, vector: bool = False, notes: tuple[str, ...] = ()) -> FeatureStream:
    """Read an array, a tensor or a data frame in memory."""
    if hasattr(value, "to_pandas"):  # of Arrow and Polars
        value = value.to_pandas()
    if isinstance(value, pd.DataFrame):

        def frames(size: int, places: Sequence[int]) -> Iterator[pd.DataFrame]:
            return (value.iloc[at : at + size, list(places)] for at in range(0, len(value), size))

        return _of_table(name, frames, value.columns, len(value), value.dtypes, lambda: value)
    array = as_array(value, name)
    array = array[:, None] if vector and array.ndim == 1 else array

    def read(size: int, places: Sequence[int]) -> Iterator[NDArray[Any]]:
        return (array[at : at + size][:, places] for at in range(0, len(array), size))

    eps = rank_eps(value) if isinstance(value, torch.Tensor) else None  # NumPy has no bfloat16
    return _stream(name, read, array.shape, array.dtype, eps=eps, text=vector, notes=notes)


def _npy(path: Path, vector: bool) -> FeatureStream:
    """Map an array anew for each block: no page that was touched stays, and a file cut short is noticed."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise DataFormatError(f"{path} is a file of numpy.savez; rename it to end in .npz.")

    def read(size: int, places: Sequence[int]) -> Iterator[NDArray[Any]]:
        for at in range(0, array.shape[0], size):
            rows = np.load(path, mmap_mode="r", allow_pickle=False)[at : at + size]
            yield np.asarray(rows.reshape(len(rows), -1)[:, places])  # a copy, not of the map

    shape = (*array.shape, 1) if vector and array.ndim == 1 else array.shape
    return _stream(str(path), read, shape, array.dtype, text=vector)


def _archive(path: Path, vector: bool) -> FeatureStream:
    """Read the only array of a file; X or y of several, or else the only matrix or vector."""
    arrays = _LOADERS[path.suffix.lower()](path)
    what, name = ("targets", "y") if vector else ("features", "X")
    fitting = [name] if name in arrays else [*arrays]
    if len(fitting) > 1:
        shapes = {own: np.shape(array) for own, array in arrays.items()}
        fitting = [own for own, s in shapes.items() if len(s) in (1, 2) and (s[1:] in ((), (1,))) == vector]
    if len(fitting) != 1:
        raise DataFormatError(
            f"{path} holds {len(arrays)} arrays ({', '.join([*arrays][:8])}), of which {len(fitting)} may be "
            f"the {what}; save it with the {what} named {name}."
        )
    others = ", ".join(own for own in arrays if own != fitting[0])
    notes = (f"{path}: {fitting[0]} is taken for the {what}, not {others}.",) if others else ()
    return _of_value(arrays[fitting[0]], str(path), vector, notes)


def _torch(path: Path) -> Mapping[str, Any]:
    value = torch.load(path, map_location="cpu", weights_only=True)
    named = value if isinstance(value, Mapping) else {"X": value}
    return {str(own): of for own, of in named.items() if isinstance(of, torch.Tensor | list)}


#: What loads the arrays of a file that holds several.
_LOADERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".pt": _torch,
    ".safetensors": lambda path: require("safetensors.torch", "deep").load_file(path),
}


def _csv(path: Path, vector: bool) -> FeatureStream:
    """Read text as `pandas.read_csv` does, after a look at how many values each line has."""
    rows = 0
    with open(path, newline="", encoding="utf-8-sig") as text:
        lines = csv.reader(text)
        header = next(filter(None, lines), [])
        if len(header) == 1 and (other := next((sep for sep in ";\t" if sep in header[0]), "")):
            raise DataFormatError(
                f"{path} separates its values by {other!r}, not by commas: its first line is {header[0]!r}; "
                f"write it again: pandas.read_csv({path.name!r}, sep={other!r}).to_csv({path.name!r}, "
                "index=False), with decimal=',' where numbers have decimal commas."
            )
        for line in filter(None, lines):
            rows += 1
            if len(line) != len(header):
                raise DataFormatError(
                    f"{path}, line {lines.line_num}: {len(line)} value(s), but the header names "
                    f"{len(header)} column(s) ({', '.join(header[:5])}); correct this line or the header."
                )

    def frames(size: int, places: Sequence[int]) -> Iterator[pd.DataFrame]:
        with pd.read_csv(path, chunksize=size) as chunks:
            yield from (chunk.iloc[:, list(places)] for chunk in chunks)

    def table() -> pd.DataFrame:
        found = pd.read_csv(path)
        words = [own for own in found if found[own].isna().all() or not _float_type(found[own].dtype)]
        if words:  # a label NA, None or nan is a label
            found[words] = pd.read_csv(path, usecols=words, dtype=str, keep_default_na=False, na_values=[""])
        return found

    types = [np.dtype(float)] * len(header)
    return _of_table(str(path), frames, header, rows, types, table, ", named by the first line")


def _parquet(path: Path, _: bool) -> FeatureStream:
    """Read a table by row groups; the index that pandas stores is not a feature."""
    parquet = require("pyarrow.parquet", "notebooks")
    with parquet.ParquetFile(path) as file:
        head, rows = file.schema_arrow.empty_table().to_pandas(), file.metadata.num_rows

    def frames(size: int, places: Sequence[int]) -> Iterator[pd.DataFrame]:
        chosen = [str(head.columns[i]) for i in places]
        with parquet.ParquetFile(path, memory_map=False) as file:
            for batch in file.iter_batches(size, columns=chosen):
                yield batch.to_pandas(ignore_metadata=True)[chosen]

    return _of_table(str(path), frames, head.columns, rows, head.dtypes, lambda: pd.read_parquet(path))


def _of_table(
    source: str,
    frames: Reader,
    header: Sequence[Any],
    rows: int,
    dtypes: Any,
    table: Callable[[], pd.DataFrame],
    said: str = "",
) -> FeatureStream:
    """Read columns of numbers in a common type; a first column without a name is an index, no feature."""
    names = [str(name) for name in header]
    first = int(names[:1] in ([""], ["Unnamed: 0"]))
    kept = names[first:]
    some = ", ".join(kept[:5]) + ", …" * (len(kept) > 5)
    note = f"{source}: {rows:,d} rows, {len(kept)} column(s){said}: {some}."
    note += " The first column has no name: it is the index, and is left out." * first
    stored = np.result_type(np.float16, *(dtype for own in [*dtypes][first:] if (dtype := _float_type(own))))

    def read(size: int, places: Sequence[int]) -> Iterator[NDArray[Any]]:
        for frame in frames(size, places):
            wrong = [str(own) for own, dtype in frame.dtypes.items() if not _float_type(dtype)]
            if wrong:
                raise DataFormatError(
                    f"{source}: {len(wrong)} column(s) do not hold numbers: {', '.join(wrong[:5])}; leave "
                    "them out (drop). A column of labels is read if the table is given as targets, too."
                )
            yield frame.to_numpy(dtype=stored, na_value=np.nan)

    shape = (rows, len(kept))
    order, notes = range(first, len(names)), (note,) if said or first else ()
    return _stream(source, read, shape, stored, names=kept, order=order, notes=notes, table=table)


def _float_type(dtype: Any) -> np.dtype[Any] | None:
    """Return the type of floats that holds a column, pandas' own types among them; None: not numbers."""
    kind = getattr(dtype, "numpy_dtype", dtype)
    if getattr(kind, "kind", "O") not in "fiub":
        return None
    return np.dtype(kind if kind.kind == "f" else np.float64)


#: How a file is opened, by its ending; the truth asks for targets.
_OPENERS: dict[str, Callable[[Path, bool], FeatureStream]] = {
    ".npy": _npy,
    ".parquet": _parquet,
    ".csv": _csv,
    **dict.fromkeys(_LOADERS, _archive),
}
