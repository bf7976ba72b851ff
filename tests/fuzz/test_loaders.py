"""Files that are damaged, or lie: each loader reads or refuses them in words, soon and in little memory."""

import gzip
import io
import json
import pickle
import struct
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import strategies as st

from condnum.audit.attacks import read_targets
from condnum.audit.measures import read_theta
from condnum.data.feature_pair import look_at, match_streams
from condnum.data.feature_stream import open_feature_stream
from condnum.data.house_prices import CATEGORICAL, COLUMNS, load_house_prices, read_table
from condnum.data.mnist import load_mnist_images, read_idx, read_idx_shape
from condnum.deep.weights import VERSION, read_metadata, read_state, read_weights
from condnum.errors import CondnumError, DataFormatError
from condnum.report.notebook import checked_parameters, parameters_of
from condnum.studies.cells import ResultStore

HUGE = [0, 1, 2, 3, 255, 2**16, 2**31, 2**32 - 1, 2**40, 10**12, 2**63 - 1, 2**64, -1]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3))


def stored(save, *arguments, **options):
    stream = io.BytesIO()
    save(stream, *arguments, **options)
    return stream.getvalue()


# --- IDX -------------------------------------------------------------------------------------------------

IMAGES = struct.pack(">BBBB3I", 0, 0, 8, 3, 4, 2, 2) + bytes(range(16))
sizes = st.lists(st.one_of(st.integers(0, 5), st.sampled_from([2**16, 2**31, 2**32 - 1])), max_size=70)


def lying_idx(shape, body, kind):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + body


idx_files = st.builds(lying_idx, sizes, st.binary(max_size=64), st.sampled_from([8, 8, 8, 8, 9, 0x0D, 0]))


def test_idx(fuzz, damaged, written):
    def load(content):
        path = written("f", content)
        shape = read_idx_shape(path)
        assert read_idx(path).shape == shape

    files = st.one_of(idx_files, damaged([IMAGES]))
    fuzz(st.one_of(files, files.map(gzip.compress), damaged([gzip.compress(IMAGES)])), load)


def test_mnist_folder(fuzz, damaged, written, tmp_path):
    images = lying_idx((3, 28, 28), bytes(3 * 784), 8)
    labels = lying_idx((3,), b"\1\2\3", 8)

    def load(contents):
        for name, content in zip(
            ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), contents, strict=True
        ):
            written(f"raw/{name}", content)
        found = load_mnist_images(str(tmp_path / "raw"))
        assert found.images.shape == (len(found.labels), 28, 28)

    fuzz(st.tuples(damaged([images]), damaged([labels])), load)


# --- the house table -------------------------------------------------------------------------------------


def house_csv(rows):
    cells = {
        name: [("RL" if i % 2 else "RM") if name in CATEGORICAL else i + 1 for i in range(rows)]
        for name in COLUMNS
    }
    return pd.DataFrame(cells).to_csv(index=False).encode()


HOUSES = house_csv(6)
CELLS = 'NA None nan inf -inf 1e400 1_000 0x10 " \0 RL ١٢'
cell = st.one_of(
    st.sampled_from(["", *CELLS.split(" ")]),
    st.text(max_size=8),
    st.floats().map(repr),
)


@st.composite
def house_tables(draw):
    table = pd.read_csv(io.BytesIO(HOUSES), dtype=object)
    for _ in range(draw(st.integers(0, 4))):
        table.iloc[draw(st.integers(0, 5)), draw(st.integers(0, 80))] = draw(cell)
    if draw(st.booleans()):
        table = table.drop(columns=draw(st.sampled_from(COLUMNS)))
    return table.to_csv(index=False).encode("utf-8", "surrogatepass")


def test_house_prices(fuzz, damaged, written):
    def load(content):
        path = written("train.csv", content)
        read_table(path, missing="dictionary")
        pair = load_house_prices(str(path))
        assert np.isfinite(pair.X_P).all()
        assert np.isfinite(pair.X_H).all()

    fuzz(st.one_of(damaged([HOUSES]), house_tables(), st.binary(max_size=300)), load)


# --- feature matrices ------------------------------------------------------------------------------------

numbers = st.one_of(st.integers(-3, 12), st.sampled_from(HUGE))
shapes = st.one_of(
    st.tuples(numbers, numbers),
    st.lists(numbers, max_size=70).map(tuple),
    st.sampled_from(["3", "(3,)*4", "None", "(True, False)", "(1.5, 2)", "((2, 3),)", "()"]),
)
TYPES = "<f8 <f4 >f8 <f2 <i8 |u1 |b1 |O <U9 |S3 <c16 <M8[s] |V8 <f16 |S0"
types = st.sampled_from(TYPES.split())


def lying_npy(shape, dtype, fortran, body, version):
    header = f"{{'descr': '{dtype}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header + body


npy_files = st.builds(
    lying_npy,
    shapes,
    types,
    st.sampled_from([True, False, 1, "None"]),
    st.one_of(st.binary(max_size=96), st.just(X.tobytes())),
    st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]),
)


def zipped(members, compressed=True):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


names = st.sampled_from(["X.npy", "X", "../X.npy", "a/b.npy", "é\u202e.npy", "__class__.npy"])
npz_files = st.builds(zipped, st.dictionaries(names, npy_files, max_size=3), st.booleans())
NPY = [stored(np.save, X), stored(np.save, np.asfortranarray(X)), stored(np.save, X.astype(">f4"))]
NPZ = [stored(np.savez, X), stored(np.savez_compressed, X=X), stored(np.savez, np.asfortranarray(X))]

csv_cells = st.lists(st.lists(cell, min_size=1, max_size=4), max_size=5)
csv_files = st.builds(
    lambda rows, sep, end: end.join(sep.join(row) for row in rows).encode("utf-8", "surrogatepass"),
    csv_cells,
    st.sampled_from([",", ",", ";", "\t", ", "]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
CSV = [b"a,b\n1,2\n3,4\n", b"1,2\n3,4\n", "\ufeffa,b\n1,\n".encode()]


def table(columns):
    import pyarrow as pa

    kinds = {
        "float": pa.array([1.0, None, 3.0]),
        "half": pa.array(np.ones(3, np.float16)),
        "int": pa.array([1, 2, 3]),
        "bool": pa.array([True, None, False]),
        "text": pa.array(["1", "2", "x"]),
        "list": pa.array([[1.0], [2.0, 3.0], None]),
        "struct": pa.array([{"a": 1}, {"a": 2}, None]),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "null": pa.nulls(3),
        "time": pa.array([1, 2, 3], pa.timestamp("ns")),
        "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(30, 2)),
        "binary": pa.array([b"\0", b"", None]),
        "huge": pa.array([2**63, 2**64 - 1, 0], pa.uint64()),
        "empty": pa.array([]),
    }
    pairs = [(name, kinds[kind]) for name, kind in columns]
    length = min((len(values) for _, values in pairs), default=0)
    return pa.table([values[:length] for _, values in pairs], names=[name for name, _ in pairs])


def parquet_bytes(columns):
    import pyarrow.parquet as pq

    return stored(lambda stream, content: pq.write_table(content, stream), table(columns))


kinds = ["float", "half", "int", "bool", "text", "list", "struct", "dictionary", "null", "time", "decimal",
         "binary", "huge", "empty"]  # fmt: skip
columns = st.lists(
    st.tuples(st.sampled_from(["a", "b", "", "__index_level_0__", "a.b", "é"]), st.sampled_from(kinds)),
    max_size=4,
)
PARQUET = [parquet_bytes([("a", "float"), ("b", "int")])]

GENERATED = {".npy": npy_files, ".npz": npz_files, ".csv": csv_files, ".parquet": columns.map(parquet_bytes)}
VALID = {".npy": NPY, ".npz": NPZ, ".csv": CSV, ".parquet": PARQUET}
ENDINGS = sorted(VALID)


@pytest.fixture
def feature_files(damaged):
    def files(ending):
        return st.one_of(GENERATED[ending], damaged(VALID[ending]))

    return files


@pytest.mark.parametrize("ending", ENDINGS)
def test_feature_files(fuzz, feature_files, written, ending):
    """As features, as an extractor and as targets: each reads it or refuses it in words."""

    def features(path):
        stream = open_feature_stream(path)
        rows = sum(len(block) for block in stream.raw_blocks())
        assert stream.count in (None, rows)
        for block in stream.blocks(1, 2):
            assert block.shape[1] == stream.dimension
        assert not np.isnan(stream.array()).any()
        pair = look_at(*match_streams(stream, stream), standardise=True)
        assert np.isfinite(pair.pretrain.array()).all()

    def load(value):
        content, kind = value
        path = written(f"X{ending}", content)
        refused = []
        for read in (
            features,
            lambda path: np.testing.assert_array_less(abs(read_theta(path, 3)), np.inf),
            lambda path: np.testing.assert_array_less(0, len(read_targets(path, kind=kind))),
        ):
            try:
                read(path)
            except CondnumError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    kinds = st.sampled_from(["auto", "regression", "classification"])
    fuzz(st.tuples(feature_files(ending), kinds), load)


# --- weights ---------------------------------------------------------------------------------------------

STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.zeros(2)}
TORCH = [
    stored(lambda stream: torch.save(STATE, stream)),
    stored(lambda stream: torch.save({"model": STATE}, stream)),
    stored(lambda stream: torch.save(STATE, stream, _use_new_zipfile_serialization=False)),
    stored(lambda stream: torch.save([1, "x"], stream)),
]


def repacked(content, damage, compressed):
    """Damage the members of an archive of torch.save, and not its directory."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(members)[damage[0] % len(members)]
    body = bytearray(members[name])
    if body:
        body[damage[1] % len(body)] = damage[2]
    return zipped({**members, name: bytes(body)}, compressed)


damages = st.tuples(st.integers(0, 9), st.integers(0, 400), st.integers(0, 255))
torch_archives = st.builds(repacked, st.sampled_from(TORCH[:2]), damages, st.booleans())


def test_checkpoint(fuzz, damaged, written):
    def load(content):
        assert read_weights(written("w.pt", content)).state

    fuzz(st.one_of(damaged(TORCH), torch_archives, st.binary(max_size=200)), load)


def lying_safetensors(header, length, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length % 2**64) + text + body


entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F64", "BF16", "I8", "F8_E4M3", "X", 3, None]),
        "shape": st.lists(st.sampled_from([0, 1, 2, 2**32, 2**63, -1, 1.5]), max_size=4),
        "data_offsets": st.lists(st.sampled_from([0, 4, 8, 2**40, 2**64 - 1, -1]), max_size=3),
    }
)
safetensors_files = st.builds(
    lying_safetensors,
    st.dictionaries(
        st.sampled_from(["w", "__metadata__", "", "é"]), st.one_of(entries, st.just({"sha256": "0"}))
    ),
    st.one_of(st.none(), st.none(), st.sampled_from(HUGE)),
    st.binary(max_size=16),
)


def test_safetensors(fuzz, damaged, written):
    from safetensors.torch import save

    valid = [save(STATE, {"format": "pt"}), save({}, {"a": "b"})]

    def load(content):
        path = written("w.safetensors", content)
        read_metadata(path)
        read_weights(path)

    fuzz(st.one_of(damaged(valid), safetensors_files), load)


def test_state_of_a_training(fuzz, damaged, written):
    from safetensors.torch import save

    theta = {"items": [["step", 3], ["theta", {"tensor": "0", "channels_last": False}]]}
    whole = {"version": VERSION, "identity": {"seed": 0}, "state": theta}
    texts = [json.dumps(content) for content in (whole, {**whole, "identity": 3}, [whole])]
    valid = [save({"0": torch.ones(2)}, {"state": text}) for text in texts]

    def load(content):
        read_state(written("s.checkpoint", content), {"seed": 0}, "training")

    load(valid[0])
    fuzz(st.one_of(damaged(valid), safetensors_files), load)


# --- results and parameters ------------------------------------------------------------------------------


def test_store(fuzz, damaged, written, tmp_path):
    with ResultStore(tmp_path / "whole") as store:
        store.put("a", {"rir": 2.0}, {"history": X})
    whole = (tmp_path / "whole" / "a.npz").read_bytes()

    def load(content):
        path = written("cells/a.npz", content)
        with ResultStore(path.parent) as store:
            found = store.get("a")
            assert found is None or np.array_equal(found.arrays.get("history", X), X)

    fuzz(damaged([whole]), load)


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
assignments = st.builds(
    lambda name, kind, value: f"{name}{kind} = {value}",
    st.sampled_from(["seeds", "é", "a.b", "x, y", "class", "a[0]"]),
    st.sampled_from(
        [
            "",
            ": int",
            ": 'str | None'",
            ": list[int]",
            ": Literal['a', 3]",
            ": Optional[int]",
            ": ]",
            ": 'a b'",
        ]
    ),
    st.one_of(
        values.map(repr),
        st.sampled_from(["{[]: 1}", "f()", "1" * 5000, "(" * 300, "-" * 5000 + "1", "\0", "'\\ud800'"]),
    ),
)


def test_parameters(fuzz):
    def load(value):
        source, given = value
        declared = parameters_of(source)
        checked_parameters(dict.fromkeys(declared, given), declared)

    sources = st.one_of(st.lists(assignments, max_size=3).map("\n".join), st.text(max_size=60))
    fuzz(st.tuples(sources, values), load)


# --- what takes no chance to find ------------------------------------------------------------------------


class Exploit:
    """Unpickling this would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def loaders():
    return {
        "stream.npy": lambda path: list(open_feature_stream(path).blocks()),
        "theta.npy": lambda path: read_theta(path, 1),
        "y.npy": read_targets,
        "stream.npz": lambda path: list(open_feature_stream(path).blocks()),
        "y.npz": read_targets,
        "weights.pt": read_weights,
        "legacy.pt": read_weights,
        "raw.pt": read_weights,
        "state.checkpoint": lambda path: read_state(path, {}, "training"),
        "pickle.csv": lambda path: list(open_feature_stream(path).blocks()),
        "pickle.parquet": open_feature_stream,
        "w.safetensors": read_weights,
        "idx": read_idx,
        "train.csv": read_table,
    }


@pytest.mark.parametrize("name", sorted(loaders()))
def test_a_pickle_in_any_file_is_never_executed(tmp_path, name):
    proof, path = tmp_path / "proof", tmp_path / name
    bad = Exploit(proof)
    array = np.empty((1, 1), dtype=object)
    array[0, 0] = bad
    if name.endswith(".npy"):
        content = stored(np.save, array, allow_pickle=True)
    elif name.endswith(".npz"):
        content = stored(np.savez, array, allow_pickle=True)
    elif name in ("weights.pt", "state.checkpoint"):
        content = stored(
            lambda stream: torch.save({"w": bad, "version": VERSION, "identity": {}, "state": {}}, stream)
        )
    elif name == "legacy.pt":
        content = stored(lambda stream: torch.save({"w": bad}, stream, _use_new_zipfile_serialization=False))
    else:
        content = pickle.dumps(bad)
    path.write_bytes(content)
    with pytest.raises(CondnumError):
        loaders()[name](path)
    assert not proof.exists()
    pickle.loads(pickle.dumps(bad)).close()  # the exploit itself works
    assert proof.exists()


def bomb(head, size):
    """Compress a header and `size` zero bytes into about a thousandth of them."""
    stream = io.BytesIO()
    block = bytes(1 << 24)
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as archive:
        archive.write(head)
        for _ in range(size >> 24):
            archive.write(block)
    return stream.getvalue()


@pytest.mark.parametrize(
    "shape", [(60_000, 28, 28), (2**31, 1, 1), (2**32 - 1, 2**32 - 1, 28)], ids=["mnist", "2-gib", "lie"]
)
def test_a_gzip_bomb_is_not_unpacked(fuzz, written, shape):
    content = bomb(lying_idx(shape, b"", 8), 1 << 30)
    assert len(content) < 8 << 20

    def load(value):
        with pytest.raises(DataFormatError):
            read_idx(written("f.gz", value))

    fuzz(st.just(content), load, examples=1)


def test_a_line_of_a_million_columns(fuzz, written):
    lines = [b",".join(b"1" for _ in range(10**6)), b"," * 10**6, b"a" * 10**6 + b"\n1", b'"' + b"," * 10**6]

    def load(content):
        path = written("X.csv", content)
        with pytest.raises(CondnumError):
            open_feature_stream(path)
        with pytest.raises(CondnumError):
            read_theta(path, 3)

    fuzz(st.sampled_from(lines), load, examples=4)
