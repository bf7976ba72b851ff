"""How each kind of file holds a feature matrix, read in blocks of rows where the format allows it.

`.npy` and `.parquet` are read from any row on, text from the start; an array of an archive (`.npz`, `.pt`,
`.safetensors`) is taken into memory. Nothing in a file is executed: pickles are refused. Tables are read as
pandas reads them, where nothing else is said.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import pickle
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import sparse

from condnum.arrays import as_array, storage_eps
from condnum.errors import DataFormatError, check_known, require

#: Largest array of an archive, which is taken into memory whole.
ARCHIVE_BYTES = 512 << 20
#: Longest line of a table in text: a million cells of sixteen characters.
MAX_LINE = 16 << 20

Columns: TypeAlias = "list[int] | slice"
#: Blocks from one on, of so many rows, of some columns; only the last block may be shorter.
Reader: TypeAlias = Callable[[int, int, Columns], Iterator[NDArray[Any]]]
#: Frames of a table without its first rows, of about so many rows each, of the columns at some positions.
Frames: TypeAlias = Callable[[int, int, Sequence[int]], Iterator[pd.DataFrame]]


@dataclass(frozen=True)
class Opened:
    """What the beginning of a file says."""

    read: Reader
    shape: tuple[Any, ...]  # (N, D), N None where only reading tells
    dtype: np.dtype[Any]  # the stored type; float64 for text
    names: tuple[str, ...] = ()  # of the columns; none if the file has none
    notes: tuple[str, ...] = ()  # what was understood, in sentences
    eps: float | None = None  # of the stored type, where NumPy has no such type
    column: Callable[[], pd.Series] | None = None  # the only column of a table, whatever it holds


# Arrays.


def open_value(value: Any, name: str, vector: bool = False) -> Opened:
    """Take an array, a tensor, a sparse matrix or a data frame in memory; with `vector`, also text."""
    if hasattr(value, "to_pandas"):  # of Arrow and Polars
        value = value.to_pandas()
    if isinstance(value, pd.Series):
        value = value.to_frame()
    array: Any = None
    if sparse.issparse(value):
        array = value.tocsr()
    elif not isinstance(value, pd.DataFrame):
        array = as_array(value, name)
        array = array[:, None] if vector and array.ndim == 1 else array
    if array is not None and not (vector and array.dtype.kind in "OUS"):

        def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
            for at in range(first * size, array.shape[0], size):
                rows = array[at : at + size]
                yield (rows.toarray() if sparse.issparse(rows) else rows)[:, kept]

        eps = storage_eps(value) if isinstance(value, torch.Tensor) else None
        return Opened(read, array.shape, array.dtype, eps=eps)
    frame = value if array is None else pd.DataFrame(array)

    def frames(skip: int, size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        return (frame.iloc[at : at + size, list(used)] for at in range(skip, len(frame), size))

    opened = _table(frames, frame, name, rows=len(frame))
    return opened if array is None else replace(opened, names=())


def _mapped(path: Path) -> NDArray[Any]:
    """Map an array, which checks its header against the file's size."""
    with np.errstate(all="ignore"):  # sizes that lie may overflow, and are refused all the same
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "pickle" in str(error):  # NumPy recommends to load it unsafely
                raise ValueError("it has another format, or holds Python objects") from error
            raise
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataFormatError(f"{path} is an archive of numpy.savez; rename it to end in .npz.")
    return array


def _open_npy(path: Path, _: str | None, vector: bool) -> Opened:
    """Take the header of an array; its rows are then read by position."""
    array = _mapped(path)
    shape = array.shape
    if array.dtype.kind in "US":
        return open_value(np.array(array), str(path), vector)

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        for begin in range(first * size, shape[0], size):
            # Mapped anew for each block: no page that was touched stays, and a file cut short is noticed.
            rows = _mapped(path)[begin : begin + size]
            yield np.array(rows.reshape(len(rows), -1)[:, kept])

    return Opened(read, (*shape, 1) if vector and len(shape) == 1 else shape, array.dtype)


def _pick(
    path: Path, shapes: Mapping[str, tuple[int, ...]], key: str | None, vector: bool
) -> tuple[str, tuple[str, ...]]:
    """Choose an array of an archive: the named one, the only one, or the only matrix (or vector)."""
    if key is not None:
        check_known(f"array of {path}", key, shapes)
        return key, ()
    fitting = [
        name
        for name, shape in shapes.items()
        if len(shape) in (1, 2) and (len(shape) == 1 or shape[1] == 1) == vector
    ]
    if len(shapes) == 1:
        return next(iter(shapes)), ()
    if len(fitting) != 1:
        shown = ", ".join(list(shapes)[:8]) + (", …" if len(shapes) > 8 else "")
        raise DataFormatError(
            f"{path} holds {len(shapes)} arrays ({shown}); choose one with --key NAME (in Python: key=); "
            "save θ and targets alone."
        )
    others = ", ".join(name for name in shapes if name != fitting[0])
    what = "targets" if vector else "features"
    return fitting[0], (f"{path}: {fitting[0]} is taken for the {what}; {others} is not read.",)


def _open_npz(path: Path, key: str | None, vector: bool) -> Opened:
    """Take one array of an archive, or a sparse matrix, into memory."""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

        def load(name: str) -> NDArray[Any]:
            if members[name].file_size > ARCHIVE_BYTES:
                raise DataFormatError(
                    f"{path} holds {members[name].file_size >> 20:,d} MiB, above the limit of "
                    f"{ARCHIVE_BYTES >> 20:,d} MiB for archives; save it "
                    "with numpy.save, which can be read in blocks."
                )
            unpacked = Path(folder) / "array.npy"
            with archive.open(members[name]) as packed, unpacked.open("wb") as stream:
                shutil.copyfileobj(packed, stream)
            return np.array(_mapped(unpacked))

        if {"data", "shape", "format"} <= set(members):  # of scipy.sparse.save_npz
            for name in members:
                load(name)
            return open_value(sparse.load_npz(path), str(path))
        few = key is None and 1 < len(members) <= 32
        shapes = {name: load(name).shape if few else () for name in members}
        name, notes = _pick(path, shapes, key, vector)
        return replace(open_value(load(name), str(path), vector), notes=notes)


def _tensors(value: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """List the tensors of nested dictionaries, lists and tuples by name."""
    if isinstance(value, torch.Tensor):
        return {prefix.removesuffix("."): value}
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    inner = value.items() if isinstance(value, Mapping) else ()
    return {name: part for own, of in inner for name, part in _tensors(of, f"{prefix}{own}.").items()}


def _open_torch(path: Path, key: str | None, vector: bool) -> Opened:
    """Take a tensor, or one of a dictionary or list of tensors, into memory."""
    try:
        tensors = _tensors(torch.load(path, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        raise DataFormatError(
            f"{path} holds Python objects, which are not loaded as that can run code; save the tensor alone: "
            f"torch.save(X, {path.name!r})."
        ) from error
    if not tensors:
        raise DataFormatError(f"{path} holds no tensor; save one: torch.save(X, {path.name!r}).")
    name, notes = _pick(path, {name: tuple(of.shape) for name, of in tensors.items()}, key, vector)
    return replace(open_value(tensors[name], str(path), vector), notes=notes)


def _open_safetensors(path: Path, key: str | None, vector: bool) -> Opened:
    """Take one tensor into memory."""
    with path.open("rb"), require("safetensors", "deep").safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # ruff: ignore[in-dict-keys]
        name, notes = _pick(path, shapes, key, vector)
        return replace(open_value(file.get_tensor(name), str(path), vector), notes=notes)


# Tables.

#: What pandas calls a column without a name.
_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)?|__index_level_\d+__")


def _table(
    frames: Frames,
    head: pd.DataFrame,
    source: str,
    *,
    rows: int | None,
    index: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Opened:
    """Describe a table by its first rows; the index of a data frame that was written with it is no column."""
    names = [str(name) for name in head.columns]
    places = [i for i, name in enumerate(names) if name not in index]
    first = next((at for at, i in enumerate(places) if not _UNNAMED.fullmatch(names[i])), 0)
    if first:
        notes = (*notes, f"{source}: the first column has no name; it is the index, and is left out.")
    places = places[first:]
    widths = [_width(head.iloc[:, i]) for i in places]
    width_of = dict(zip(places, widths, strict=True))
    owners = np.repeat(places, widths)  # (D,) position of the column that holds each feature
    called = [
        name
        for i, width in width_of.items()
        for own in [names[i] or f"Unnamed: {i}"]
        for name in ([own] if width == 1 else [f"{own}[{k}]" for k in range(width)])
    ]
    stored = np.result_type(np.float16, *(_stored(head.iloc[:, i]) for i in places))

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        chosen = np.arange(len(owners))[kept]
        used = np.unique(owners[chosen])
        order = np.searchsorted(np.flatnonzero(np.isin(owners, used)), chosen)

        def matrix(frame: pd.DataFrame) -> NDArray[Any]:
            columns = [_numbers(frame.iloc[:, at], width_of[i]) for at, i in enumerate(used)]
            wrong = {names[i]: cell for i, cell in zip(used, columns, strict=True) if isinstance(cell, str)}
            if wrong:
                name, cell = next(iter(wrong.items()))
                shown = ", ".join(list(wrong)[:5]) + ", …" * (len(wrong) > 5)
                advice = "leave them out (drop) or encode them (identifiers and labels are not features)."
                if cell.startswith("["):
                    advice = "vectors need one length, in a parquet file or a matrix (numpy.save)."
                raise DataFormatError(
                    f"{source}: {len(wrong)} column(s) do not hold numbers: {shown} "
                    f"('{name}' holds '{cell}'); {advice}"
                )
            return np.concatenate(columns, axis=1)[:, order].astype(stored, copy=False)

        return _regrouped(map(matrix, frames(first * size, size, used.tolist())), size)

    def column() -> pd.Series:
        return pd.concat(list(frames(0, 1 << 16, places)), ignore_index=True).iloc[:, 0]

    alone = column if len(owners) == 1 else None
    return Opened(read, (rows, len(owners)), stored, tuple(called), tuple(notes), column=alone)


def _first_vector(column: pd.Series) -> NDArray[Any] | None:
    """Return the first cell of a column of vectors, None for any other column."""
    cell = next((cell for cell in column if cell is not None), None) if column.dtype == object else None
    return np.asarray(cell) if isinstance(cell, list | tuple | np.ndarray) else None


def _width(column: pd.Series) -> int:
    """Return how many features a column holds: as many as its vectors have entries."""
    vector = _first_vector(column)
    return 1 if vector is None else len(vector)


def _stored(column: pd.Series) -> np.dtype[Any]:
    """Return the type in which a column's numbers are stored; text counts as the smallest."""
    vector = _first_vector(column)
    kind = column.dtype if vector is None else vector.dtype
    kind = getattr(kind, "numpy_dtype", kind)  # of pandas' own types
    text = isinstance(next(iter(column.dropna()), None), str)
    smallest = text or (vector is None and column.dtype.kind in "mM")
    return kind if kind.kind == "f" else np.dtype(np.float16 if smallest else np.float64)


def _numbers(column: pd.Series, width: int) -> NDArray[Any] | str:
    """Return a column as numbers `(n, width)`, NaN for missing ones, or the first cell that is no number."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=_stored(column), na_value=np.nan)[:, None]
    missing, cells = np.full(width, np.nan), column.astype(object)[column.notna()]
    try:
        if _first_vector(column) is not None:
            rows = [missing if np.ndim(cell) == 0 else cell for cell in column]
            return np.array(rows, dtype=_stored(column)).reshape(len(rows), width)
        found = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    except (TypeError, ValueError):
        found = pd.Series(np.nan, cells.index)
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind in "mM":
        found[:] = np.nan  # a code or a date is not a measurement
    wrong = cells[found.isna()]
    return found.reindex(column.index).to_numpy()[:, None] if wrong.empty else str(wrong.iloc[0])[:40]


def _regrouped(parts: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """Turn parts of any length into blocks of `size` rows."""
    waiting: NDArray[Any] | None = None
    for part in parts:
        waiting = part if waiting is None or not len(waiting) else np.concatenate([waiting, part])
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if waiting is not None and len(waiting):
        yield waiting


#: How compressed text is opened.
_UNPACK: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: Words for a missing entry, beside an empty cell.
_MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none"}
#: Signs between cells, in the order in which they are tried; a blank stands for any white space.
_SIGNS = "\t;|, "
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")


def _split(lines: Sequence[str], sign: str) -> list[list[str]]:
    """Split lines into cells."""
    given = (" ".join(line.split()) for line in lines) if sign == " " else lines
    rows = csv.reader(given, delimiter=sign, skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows]


def _split_alike(lines: Sequence[str]) -> tuple[str, list[list[str]]] | None:
    """Find the sign that gives all lines as many cells; the first may lack one, a name for the index."""
    for sign in _SIGNS:
        cells = _split(lines, sign)
        widths = {len(row) for row in cells[1:] or cells}
        if len(widths) == 1 and max(widths) > 1 and max(widths) - len(cells[0]) in (0, 1):
            return sign, cells
    return None


def _is_number(cell: str) -> bool:
    try:
        return float(cell.replace(",", ".")) is not None
    except ValueError:
        return cell.lower() in _MISSING


def _are_names(cells: Sequence[str]) -> bool:
    """Tell whether a line holds names: not all are numbers, or all are different whole numbers."""
    own = [cell for at, cell in enumerate(cells) if at or cell]  # that of the index is empty
    codes = all(re.fullmatch(r"[+-]?\d+", cell) for cell in own) and len(set(own)) == len(own)
    return not all(map(_is_number, own)) or (codes and len(cells) > 1)


def _open_text(path: Path, _: str | None, vector: bool) -> Opened:
    """Read a table in text as pandas does; signs and decimal commas are recognized by the first lines.

    The first line holds names unless all its cells are numbers. At least two different whole numbers, as
    pandas writes them for columns without names, are names as well.
    """
    unpack = _UNPACK.get(path.suffix.lower(), open)
    with unpack(path, "rb") as stream:
        encoding = "utf-16" if stream.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    lines = list[str]()
    with unpack(path, "rt", encoding=encoding, errors="replace", newline="") as stream:
        while len(lines) < 100 and sum(map(len, lines)) < MAX_LINE and (line := stream.readline(MAX_LINE)):
            lines.append(line)
    if any("\0" in line for line in lines):
        raise ValueError("it holds bytes that are no text")
    above = next((at for at, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    body = [line for line in lines[above:] if line.strip()]
    if not body:
        raise DataFormatError(f"{path} is empty; expected a line for each row.")
    comment = lines[above - 1].lstrip("# ") if above else ""  # numpy.savetxt writes names as a comment
    found = _split_alike([comment, *body]) if comment.strip() else None
    named = found is not None and _are_names(found[1][0])
    if found is None or not named:
        sign = next((sign for sign in _SIGNS[:-1] if sign in body[0]), ",")
        found = _split_alike(body) or (sign, _split(body, sign))
    sign, cells = found
    first, D, skipped = cells[0], max(map(len, cells[:2])), above
    if not named and _are_names(first):
        named, skipped = True, above + 1
    shown, notes = ", ".join(first[:5]) + ", …" * (len(first) > 5), list[str]()
    if all(map(_is_number, first)):
        said = "is taken for the names of columns" if named else "is data: the file has no line of names"
        notes.append(f"{path}: the first line ({shown}) {said}.")
    names = [""] * (D - len(first)) + first if named else [f"x{i}" for i in range(D)]
    commas = [cell for row in cells for cell in row if _COMMA.fullmatch(cell)]
    layout: dict[str, Any] = {
        "sep": r"\s+" if sign == " " else sign,
        "decimal": "," if any(sign != "," or cell[-4:-3] != "," for cell in commas) else ".",
        "header": None,
        "names": range(D),
        "index_col": False,
        "skiprows": skipped,
        "skipinitialspace": True,
        "encoding": encoding,
        "encoding_errors": "replace",
    }

    def frames(skip: int, size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        with pd.read_csv(path, chunksize=size, **layout) as chunks:
            for chunk in islice(chunks, skip // size, None):
                if chunk.empty:
                    raise DataFormatError(f"{path} is empty: no row follows its first line.")
                yield chunk.iloc[:, list(used)]

    head = pd.DataFrame(np.empty((0, D)), columns=names)
    opened = _table(frames, head, str(path), rows=None, notes=notes)
    return opened if named else replace(opened, names=())


def _open_parquet(path: Path, _: str | None, vector: bool) -> Opened:
    """Read a table by row groups; the index that pandas stores is not a feature."""
    parquet = require("pyarrow.parquet", "notebooks")
    with parquet.ParquetFile(path) as file:
        count, names = file.metadata.num_rows, [field.name for field in file.schema_arrow]
        stored = json.loads((file.schema_arrow.metadata or {}).get(b"pandas", b"{}"))
        first = next(file.iter_batches(100), None)
        head = (file.schema_arrow.empty_table() if first is None else first).to_pandas(ignore_metadata=True)
    index = [name for name in stored.get("index_columns", ()) if isinstance(name, str)]

    def frames(skip: int, size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        with parquet.ParquetFile(path, memory_map=False) as file:
            metadata = file.metadata
            ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
            groups = np.flatnonzero(ends > skip).tolist()  # from the one with the first row on
            if not groups:
                return
            skip -= int(ends[groups[0] - 1]) if groups[0] else 0
            chosen = [names[i] for i in used]
            for batch in file.iter_batches(size, row_groups=groups, columns=chosen):
                yield batch.to_pandas(ignore_metadata=True)[chosen].iloc[skip:]
                skip = max(0, skip - batch.num_rows)

    return _table(frames, head, str(path), rows=count, index=index)


_KINDS: dict[str, Callable[[Path, str | None, bool], Opened]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".pt": _open_torch,
    ".pth": _open_torch,
    ".safetensors": _open_safetensors,
    ".parquet": _open_parquet,
}
#: How a file is opened, by its ending; the word names an array of an archive, the truth asks for targets.
OPENERS = _KINDS | {
    f".{kind}{packed}": _open_text for kind in ("csv", "tsv", "txt") for packed in ("", *_UNPACK)
}
#: Endings of the files that hold several arrays.
ARCHIVES = (".npz", ".pt", ".pth", ".safetensors")
