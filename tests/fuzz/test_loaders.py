"""Files that are damaged, or lie: each loader reads or refuses them in words, soon and in little memory."""

import gzip
import io
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import save

from condnum.auditing.extractors import read_extractors
from condnum.data.digits import read_idx
from condnum.data.feature_pair import look_at, match_streams
from condnum.data.feature_stream import as_stream, read_targets
from condnum.data.house_prices import CATEGORICAL, HOUSE_COLUMNS, load_house_prices, read_house_table
from condnum.deep.weights import CHECKPOINT_VERSION, read_metadata, read_state, read_weights
from condnum.errors import CondnumError, DataFormatError, InvalidInputError

X = np.random.default_rng(0).normal(size=(7, 3))
pick = st.sampled_from


def stored(write, *arguments, **options):
    stream = io.BytesIO()
    write(stream, *arguments, **options)
    return stream.getvalue()


# IDX and the house table.


def idx(shape, body=b"", kind=8):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + body


IMAGES = idx((4, 2, 2), bytes(range(16)))


def test_idx(fuzz, damaged, written):
    def load(content):
        assert read_idx(written("f", content)).dtype == np.uint8

    files = damaged([IMAGES])
    fuzz(st.one_of(files, files.map(gzip.compress), damaged([gzip.compress(IMAGES)])), load)


HOUSES = pd.DataFrame(
    {n: [("RL" if i % 2 else "RM") if n in CATEGORICAL else i + 1 for i in range(6)] for n in HOUSE_COLUMNS}
)
CELLS = 'NA None nan inf -inf 1e400 1_000 0x10 " \0 RL ١٢'
cell = st.one_of(pick(["", *CELLS.split(" ")]), st.text(max_size=8), st.floats().map(repr))


def test_house_prices(fuzz, damaged, written):
    def load(content):
        path = written("train.csv", content)
        read_house_table(path)
        pair = load_house_prices(str(path))
        assert np.isfinite(pair.X_P).all()
        assert np.isfinite(pair.X_H).all()

    valid = [HOUSES.to_csv(index=False).encode()]
    fuzz(st.one_of(damaged(valid), st.binary(max_size=300)), load)


# Feature matrices.


def bare_npy(header, version=(1, 0), length=None):
    size = len(header) if length is None else length
    kind = "<H" if version[0] == 1 else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(kind, size) + header


def zipped(content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("X.npy", content)
    return stream.getvalue()


csv_files = st.builds(
    lambda rows, sep, end: end.join(sep.join(row) for row in rows).encode("utf-8", "surrogatepass"),
    st.lists(st.lists(cell, min_size=1, max_size=4), max_size=5),
    pick([",", ",", ";", "\t", ", "]),
    pick(["\n", "\r\n", "\r"]),
)
ARROWS = {
    "float": pa.array([1.0, None, 3.0]),
    "bool": pa.array([True, None, False]),
    "text": pa.array(["1", "2", "x"]),
    "list": pa.array([[1.0], [2.0, 3.0], None]),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "time": pa.array([1, 2, 3], pa.timestamp("ns")),
    "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(30, 2)),
    "huge": pa.array([2**63, 2**64 - 1, 0], pa.uint64()),
    "empty": pa.array([]),
}


def parquet(columns):
    length = min((len(ARROWS[kind]) for _, kind in columns), default=0)
    table = pa.table([ARROWS[kind][:length] for _, kind in columns], names=[name for name, _ in columns])
    return stored(lambda stream: pq.write_table(table, stream))


named = st.tuples(pick(["a", "b", "", "__index_level_0__", "a.b", "é"]), pick(sorted(ARROWS)))
WHOLE = X, np.asfortranarray(X), X.astype(">f4")
FEATURES = {
    ".npy": [stored(np.save, array) for array in WHOLE],
    ".npz": [stored(np.savez, array) for array in WHOLE] + [stored(np.savez_compressed, X=X)],
    ".csv": [b"a,b\n1,2\n3,4\n", b"1,2\n3,4\n", "\ufeffa,b\n1,\n".encode()],
    ".parquet": [parquet([("a", "float"), ("b", "huge")])],
}
GENERATED = {".csv": csv_files, ".parquet": st.lists(named, max_size=4).map(parquet)}


def features(path):
    stream = as_stream(path)
    rows = sum(len(block) for block in stream.blocks())
    assert stream.count in (None, rows)
    assert not np.isnan(stream.array()).any()
    pair = look_at(*match_streams(stream, stream), standardize=True)
    assert np.isfinite(pair.pretrain.array()).all()


@pytest.mark.parametrize("ending", sorted(FEATURES))
def test_feature_files(fuzz, damaged, written, ending):
    """As features, as an extractor and as targets: each reads it or refuses it in words."""

    def load(value):
        content, kind = value
        path = written(f"X{ending}", content)
        refused = []
        for read in (
            features,
            lambda path: np.testing.assert_array_less(abs(read_extractors(path, 3)[0]["theta"]), np.inf),
            lambda path: np.testing.assert_array_less(0, len(read_targets(path, kind=kind)[0])),
        ):
            try:
                read(path)
            except CondnumError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    files = st.one_of(damaged(FEATURES[ending]), GENERATED.get(ending, st.nothing()))
    fuzz(st.tuples(files, pick(["auto", "regression", "classification"])), load)


# Weights.

STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.zeros(2)}


def pickled(value, **options):
    return stored(lambda stream: torch.save(value, stream, **options))


TORCH = [pickled(STATE), pickled({"model": STATE}), pickled([1, "x"])]
TORCH.append(pickled(STATE, _use_new_zipfile_serialization=False))


THETA = {"step": 3, "theta": torch.ones(2)}
WHOLE_STATE = {"version": CHECKPOINT_VERSION, "identity": {"seed": 0}, "state": THETA}
STATES = [pickled(content) for content in (WHOLE_STATE, {**WHOLE_STATE, "identity": 3}, [WHOLE_STATE])]


def training(path):
    return read_state(path, {"seed": 0}, "training")


WEIGHTS = {
    "w.pt": (TORCH, [read_weights]),
    "w.safetensors": ([save(STATE, {"format": "pt"}), save({}, {"a": "b"})], [read_metadata, read_weights]),
    "s.checkpoint": (STATES, [training]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(fuzz, damaged, written, name):
    valid, readers = WEIGHTS[name]

    def load(content):
        path = written(name, content)
        for read in readers:
            read(path)

    load(valid[0])
    fuzz(damaged(valid), load)


# What takes no chance to find.


class Exploit:
    """Unpickling this would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def blocks(path):
    return list(as_stream(path).blocks())


def in_array(save):
    return lambda bad: stored(save, np.array([[bad]], dtype=object), allow_pickle=True)


def in_checkpoint(bad, **options):
    return pickled({"w": bad, "version": CHECKPOINT_VERSION, "identity": {}, "state": {}}, **options)


@pytest.mark.parametrize(
    ("name", "read", "write"),
    [
        ("X.npy", blocks, in_array(np.save)),
        ("X.npz", blocks, in_array(np.savez)),
        ("w.pt", read_weights, in_checkpoint),
        ("legacy.pt", read_weights, lambda bad: in_checkpoint(bad, _use_new_zipfile_serialization=False)),
        ("s.checkpoint", training, in_checkpoint),
        ("raw.pt", read_weights, pickle.dumps),
        ("X.csv", blocks, pickle.dumps),
        ("X.parquet", blocks, pickle.dumps),
    ],
)
def test_a_pickle_in_any_file_is_never_executed(tmp_path, written, name, read, write):
    proof = tmp_path / "proof"
    with pytest.raises(CondnumError):
        read(written(name, write(Exploit(proof))))
    assert not proof.exists()
    pickle.loads(pickle.dumps(Exploit(proof))).close()  # the exploit itself works
    assert proof.exists()


def test_a_gzip_bomb_is_not_unpacked(fuzz, written):
    stream, zeros = io.BytesIO(), bytes(1 << 24)
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as archive:
        archive.write(idx((60_000, 28, 28)))
        for _ in range(8):
            archive.write(zeros)

    def load(content):
        with pytest.raises(CondnumError, match=r"47040000 bytes, 67108848 follow"):
            read_idx(written("f.gz", content))

    fuzz(st.just(stream.getvalue()), load, examples=1)


# Files that are damaged, foreign or lie: what fuzzing has found was a traceback, a hang or a gigabyte.

HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': %s, }"
NPY = [
    b"not numpy",
    stored(np.save, X)[:-5],
    bare_npy(HEADER % b"(1, 1)", (0x59, 1)),  # unknown version
    bare_npy(b"{", (2, 0), 2**32 - 1),  # a header of 4 GiB
    bare_npy(b"(" * 900 + b"\n"),
    bare_npy(HEADER % b"(1000000, 1000000)"),  # a terabyte
    bare_npy(HEADER % b"(9223372036854775807, 9223372036854775807)"),
]


# 2 images of 1×3: magic 0x00000803, sizes 2, 1, 3 big-endian, six bytes.
SIX = idx((2, 1, 3), b"\1\2\3\4\5\xff")
CELLS_OF_TEXT = "hold numbers: b .'b' holds 'cat'"
FILES = [
    *[("X.npy", content, blocks, "is damaged or does not match its extension") for content in NPY],
    *[("X.npz", zipped(content), blocks, "is damaged|holds an array of shape") for content in NPY],
    *[("X.npy", stored(np.save, x), blocks, "expected a matrix") for x in (np.ones(3), np.ones((2, 2, 2)))],
    *[
        ("X.npy", stored(np.save, np.zeros((1, 1), kind)), blocks, f"type {kind}.*; expected a matrix")
        for kind in ("<U1", "complex128", "datetime64")
    ],
    ("X.npz", stored(np.savez, a=X, b=X), blocks, r"holds 2 arrays \(a, b\)"),
    ("X.xlsx", b"1 2", blocks, r"ends in '\.xlsx'"),
    ("X.csv", b"", blocks, "No columns to parse"),
    ("X.csv", b"a,b\n", blocks, r"is empty: its shape is \(0, 2\)"),
    ("X.csv", b"a,b\n1,2\n3,cat\n", blocks, CELLS_OF_TEXT),
    ("y.csv", b"1\nnan\n", read_targets, "has NaN or infinite entries, the first in row 1"),
    ("X.csv", b"a,b\n1,2\n3,4,5\n", blocks, "is damaged.*Expected 2 fields in line 3, saw 3"),
    ("X.csv", b"day,b\n2020-01-01,1\n", blocks, "1 .* do not hold numbers: day .'day' holds '2020-01-01'"),
    ("X.csv", b'e\n"[0.1, 0.2]"\n', blocks, "one column per number"),
    ("X.pt", pickled({"a": torch.ones(2, 2), "b": torch.ones(2, 2)}), blocks, r"holds 2 arrays.*--key NAME"),
    ("X.pt", pickled({"a": np.eye(2)}), blocks, "holds Python objects.*torch.save"),
    ("X.pt", pickled({"epoch": 3}), blocks, "holds no tensor"),
    ("X.pt", b"abc", blocks, "is damaged"),
    ("X.safetensors", b"abc", blocks, "is damaged"),
    *[("f", idx(s), read_idx, "is damaged") for s in ((0, 2**16, 2**16, 2**31), (2**28 + 1,))],
    ("f", idx([1] * 65) + b"\0", read_idx, "is not an IDX file"),
    ("f", SIX[:-1], read_idx, r"is damaged: its header says 2×1×3 = 6 bytes, 5 follow"),
    ("f", SIX + b"\0", read_idx, r"= 6 bytes, 7 follow"),
    ("f", SIX[:9], read_idx, "or ends before its sizes"),
    ("f", b"", read_idx, "not an IDX file"),
    ("f", idx((6,), b"", kind=0x0D), read_idx, "starts with 0x00000d01"),
    ("f", idx(()), read_idx, "starts with 0x00000800"),
    ("f", gzip.compress(SIX, mtime=0)[:-6], read_idx, "truncated or damaged gzip"),
    ("f", gzip.compress(SIX, mtime=0)[:12] + b"\xff" * 20, read_idx, "damaged gzip|not an IDX file"),
    ("w.safetensors", b"short", read_weights, "neither safetensors nor a whole state dict"),
    ("w.pt", b"(l.", read_weights, "neither safetensors nor a whole state dict"),
    ("w.pt", pickled({}), read_weights, "is empty"),
]


@pytest.mark.parametrize(("name", "content", "reader", "message"), FILES)
def test_files_that_are_damaged_or_lie(written, name, content, reader, message):
    with pytest.raises((DataFormatError, InvalidInputError), match=message):
        reader(written(name, content))


PEAK = """
from pathlib import Path
import condnum
try:
    condnum.audit("X.npy", "X.npy", y_harmful="y.npz")
except condnum.CondnumError as error:
    print(error)
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_process(tmp_path):
    """A bomb that is handed to a process of its own: below 1 GiB, libraries included."""
    np.save(tmp_path / "X.npy", np.eye(3))
    with (
        zipfile.ZipFile(tmp_path / "y.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("y.npy", "w", force_zip64=True) as member,
    ):
        member.write(bare_npy(HEADER % b"(83886080, 1)"))
        for _ in range(40):
            member.write(bytes(1 << 24))
    command = [sys.executable, "-c", PEAK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    refusal, peak = done.stdout.splitlines()
    assert "holds 640 MiB, above the limit of 512 MiB for archives" in refusal
    assert int(peak) < 1 << 20
