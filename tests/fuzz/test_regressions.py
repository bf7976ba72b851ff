"""What fuzzing has found, by name: each of these was a traceback, a hang or a gigabyte."""

import gzip
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

from condnum.audit.attacks import read_targets
from condnum.audit.measures import read_theta
from condnum.cli import main
from condnum.data import feature_stream
from condnum.data.feature_pair import look_at
from condnum.data.feature_stream import open_feature_stream
from condnum.data.house_prices import read_table
from condnum.data.mnist import read_idx
from condnum.deep.weights import read_weights
from condnum.errors import CondnumError, DataFormatError, InvalidInputError
from condnum.report.notebook import checked_parameters, parameters_of

HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': %s, }"


def idx(*shape):
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)


def npy(header, version=(1, 0), length=None, body=b""):
    size = len(header) if length is None else length
    kind = "<H" if version[0] == 1 else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(kind, size) + header + body


NPY = [
    npy(HEADER % b"(1, 1)", (0x59, 1)),  # unknown version
    npy(b"{", (2, 0), 2**32 - 1),  # a header of 4 GiB
    npy(b"[] \n"),
    npy(b"(" * 900 + b"\n"),
    npy(HEADER % b"(1000000, 1000000)"),  # a terabyte
    npy(HEADER % b"(9223372036854775807, 9223372036854775807)"),
    npy(HEADER % b"(-1, 3)"),
    npy(HEADER % b"(True, 2)", body=struct.pack("<2d", 1, 2)),
]
LINES = [b"," * 30_000, b"a" * 200_000 + b"\n1\n", b'"' + b"x" * 200_000]
CHECKPOINTS = [b"s", b"r", b"q", b"(l.", b"\x80\x02}q\x00.", b"PK\3\4", b"X\x00\x00\x00B"]
FILES = [
    *[("f", idx(*s), read_idx, "above the limit of") for s in ((0, 2**16, 2**16, 2**31), (2**28 + 1,))],
    ("f", idx(*[1] * 65) + b"\0", read_idx, "is not an IDX file"),
    ("f.gz", gzip.compress(idx(2) + bytes(64 << 20), 1), read_idx, "1048578 or more follow"),
    *[("X.npy", content, open_feature_stream, "is not a whole NumPy file") for content in NPY],
    *[("X.npy", content, read_targets, "is not a whole NumPy file") for content in NPY],
    *[("X.csv", line, open_feature_stream, "") for line in LINES],
    *[("w.pt", content, read_weights, "is not opened|is not a whole|not a state") for content in CHECKPOINTS],
]


@pytest.mark.parametrize(("name", "content", "reader", "message"), FILES)
def test_files_that_lie(written, name, content, reader, message):
    with pytest.raises((DataFormatError, InvalidInputError), match=message or None):
        reader(written(name, content))


def test_archives_in_fortran_order_or_with_a_password(tmp_path, written, monkeypatch):
    path = tmp_path / "X.npz"
    np.savez(path, np.ones((2, 2)))
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + place] |= 1
    for reader in (open_feature_stream, read_targets):
        with pytest.raises(DataFormatError, match="is damaged"):
            reader(written("Y.npz", content))
    monkeypatch.setattr(feature_stream, "WHOLE_BYTES", 100)
    np.savez(path, np.asfortranarray(np.ones((5, 3))))
    with pytest.raises(DataFormatError, match="columns come one after the other"):
        open_feature_stream(path)


@pytest.mark.parametrize(
    "values", [["a", None], ["a", 1.5, float("nan")], [[1.0], [2.0]], [{"a": 1}, None]], ids=str
)
@pytest.mark.parametrize("kind", ["auto", "classification"])
def test_targets_that_are_neither_words_nor_numbers(tmp_path, values, kind):
    frame, path = pd.DataFrame({"y": values}), tmp_path / "y.csv"
    if all(isinstance(value, list | dict | None) for value in values):
        frame.to_parquet(path := tmp_path / "y.parquet")
    else:
        frame.to_csv(path, index=False)
    with pytest.raises(InvalidInputError, match="among its values"):
        read_targets(path, kind=kind)


def test_decimals_are_numbers(tmp_path):
    pq.write_table(pa.table({"y": pa.array([1, 2, 4]).cast(pa.decimal128(30, 2))}), tmp_path / "y.parquet")
    assert read_targets(tmp_path / "y.parquet", kind="regression").ravel().tolist() == [1, 2, 4]


def test_a_house_table_of_gigabytes_is_not_read(written):
    path = written("train.csv", b"Id\n")
    with path.open("r+b") as stream:
        stream.truncate(2 << 30)
    with pytest.raises(DataFormatError, match="takes more than 48 MiB"):
        read_table(path)


def test_a_compressed_checkpoint_is_not_unpacked(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as whole,
        zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))
    with pytest.raises(DataFormatError, match="it is compressed, which torch"):
        read_weights(tmp_path / "z.pt")


def test_parameters_that_do_not_parse():
    for source in ("seeds: 'a b' = 3", "seeds: ']' = 3"):
        with pytest.raises(InvalidInputError, match=r"the type of parameter 'seeds' .* is not valid Python"):
            checked_parameters({"seeds": 3}, parameters_of(source))
    for source in ("a = '\0'", "a = " + "(" * 5000, "a = " + "-" * 50_000 + "1"):
        with pytest.raises(InvalidInputError, match="is not valid Python"):
            parameters_of(source)
    assert parameters_of("a = {[]: 1}")["a"].default is None


@pytest.mark.parametrize("command", ["run attackers --data", "run limits --seeds", "data check diabetes"])
def test_words_that_are_no_text(command, capsys):
    for word in (chr(0xD800), chr(0xDCFF)):  # the second is how a byte of no encoding arrives
        assert main([*command.split(), word]) == 2
        assert ascii(word)[1:-1] in capsys.readouterr().err


def test_long_doubles_beyond_float64_and_those_that_are_none(tmp_path):
    if np.finfo(np.longdouble).max <= np.finfo(np.float64).max:
        pytest.skip("long double is double here")
    np.save(tmp_path / "X.npy", np.full((2, 2), np.longdouble("1e4000")))
    with pytest.raises(DataFormatError, match="holds infinite values"):
        look_at(*[open_feature_stream(tmp_path / "X.npy")] * 2)
    bits = b"\xf4\x84\xec\xbb\xda\xba\x3f\x00\xed\x43\xe6\x18\x34\x24\xe1\xbf"
    np.save(tmp_path / "theta.npy", np.frombuffer(bits * 4, np.longdouble).reshape(2, -1))
    try:
        read_theta(tmp_path / "theta.npy", 2)  # a warning is an error here
    except CondnumError as error:
        assert "theta" in str(error)  # ruff: ignore[pytest-assert-in-except] - either is right, what such bits mean depends on the machine


PEAK = """
import sys
from pathlib import Path
from condnum.cli import main
status = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
print(status, next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_process(tmp_path):
    """A bomb that is handed to the real command in a process of its own: below 1 GiB, libraries included."""
    np.save(tmp_path / "X.npy", np.eye(3))
    with (
        zipfile.ZipFile(tmp_path / "y.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("y.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy(HEADER % b"(134217728, 1)"))
        for _ in range(64):
            member.write(bytes(1 << 24))
    words = ["audit", "--pretrain", "X.npy", "--harmful", "X.npy", "--targets", "y.npz"]
    command = [sys.executable, "-c", PEAK, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    status, peak = map(int, done.stdout.split())
    assert status == 2
    assert "holds an array of shape (134217728, 1)" in " ".join(done.stderr.split())
    assert peak < 1 << 20
