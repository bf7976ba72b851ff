import gzip

import numpy as np
import pytest

from condnum.data.mnist import read_idx, read_idx_shape, write_idx
from condnum.data.task_pair import sha256_file
from condnum.errors import DataFormatError, DataNotFoundError

# 2 images of 1×3: magic 0x00000803, sizes 2, 1, 3 big-endian, six bytes.
BYTES = bytes.fromhex("00000803 00000002 00000001 00000003 010203 0405ff")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_plain_and_gzip_whatever_the_name(tmp_path, pack):
    path = tmp_path / "f"
    path.write_bytes(pack(BYTES))
    assert read_idx(path).tolist() == [[[1, 2, 3]], [[4, 5, 255]]]
    assert read_idx_shape(path) == (2, 1, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(BYTES[:-1], r"is truncated: its header says 2×1×3 = 6 bytes, 5 follow", id="truncated"),
        pytest.param(BYTES + b"\x00", "has trailing bytes: .* 7 follow", id="trailing"),
        pytest.param(BYTES[:9], "is truncated: 9 bytes, less than its header", id="header"),
        pytest.param(b"\x00\x00", "not an IDX file .* starts with 0x0000", id="two-bytes"),
        pytest.param(b"", "not an IDX file", id="empty"),
        pytest.param(b"\x00\x00\x0d\x01" + BYTES[4:], "starts with 0x00000d01", id="floats"),
        pytest.param(b"<html>", "starts with 0x3c68746d", id="html"),
        pytest.param(b"\x00\x00\x08\x00", "starts with 0x00000800", id="no-dimension"),
        pytest.param(gzip.compress(BYTES)[:-6], "truncated or damaged gzip", id="cut-gzip"),
        pytest.param(gzip.compress(BYTES)[:12] + b"\xff" * 20, "damaged gzip|not an IDX file", id="bad-gzip"),
    ],
)
def test_damaged(tmp_path, content, message):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(DataFormatError, match=message):
        read_idx(path)


def test_missing(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"cannot read .*absent"):
        read_idx(tmp_path / "absent")


def test_writer_writes_the_format_and_the_same_bytes_each_time(tmp_path):
    array = np.array([[[1, 2, 3]], [[4, 5, 255]]], dtype=np.uint8)
    write_idx(tmp_path / "a.gz", array)
    write_idx(tmp_path / "b.gz", array)
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == BYTES
    assert sha256_file(tmp_path / "a.gz") == sha256_file(tmp_path / "b.gz")
