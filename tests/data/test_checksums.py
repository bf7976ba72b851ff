import gzip
import hashlib

import numpy as np
import pytest

from condnum.data import KNOWN_CHECKSUMS, sha256_arrays, sha256_file
from condnum.data.task_pair import combine_checksums, is_known
from condnum.errors import DataFormatError, DataNotFoundError

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, message "abc"


def test_published_test_vector(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == ABC


def test_file_longer_than_a_chunk(tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "f").write_bytes(content)
    assert sha256_file(tmp_path / "f") == hashlib.sha256(content).hexdigest()


def test_content_of_gzip(tmp_path):
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"abc"))
    assert sha256_file(tmp_path / "f.gz", decompress=True) == ABC
    assert sha256_file(tmp_path / "f.gz") != ABC


@pytest.mark.parametrize("content", [b"plain text", gzip.compress(b"abc" * 99)[:-9]], ids=["plain", "cut"])
def test_damaged_gzip(tmp_path, content):
    (tmp_path / "f.gz").write_bytes(content)
    with pytest.raises(DataFormatError, match="not a whole gzip file"):
        sha256_file(tmp_path / "f.gz", decompress=True)


def test_missing_file(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"cannot read .*absent"):
        sha256_file(tmp_path / "absent")


def test_arrays_depend_on_name_shape_type_and_values():
    a = np.arange(6.0)
    sums = {
        sha256_arrays(a=a),
        sha256_arrays(b=a),
        sha256_arrays(a=a.reshape(2, 3)),
        sha256_arrays(a=a.astype(np.float32)),
        sha256_arrays(a=a + 1),
    }
    assert len(sums) == 5
    assert sha256_arrays(a=a.reshape(2, 3)) == sha256_arrays(a=np.asfortranarray(a.reshape(2, 3)))


def test_combination_counts_order():
    assert combine_checksums(["a", "b"]) == hashlib.sha256(b"a\nb\n").hexdigest()
    assert combine_checksums(["a", "b"]) != combine_checksums(["b", "a"])


def test_table_has_whole_sums_only():
    assert len(KNOWN_CHECKSUMS) == 11
    assert all(len(d) == 64 and set(d) <= set("0123456789abcdef") for d in KNOWN_CHECKSUMS.values())


def test_recompressed_file_is_known_by_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr("condnum.data.task_pair.KNOWN_CHECKSUMS", {"toy/f": ABC})
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(b"abc", compresslevel=1))
    assert is_known("toy/f", path, sha256_file(path))
    path.write_bytes(gzip.compress(b"abd"))
    assert not is_known("toy/f", path, sha256_file(path))


def test_sum_under_another_name_is_not_known(tmp_path):
    images = KNOWN_CHECKSUMS["MNIST/raw/train-images-idx3-ubyte"]
    assert not is_known("MNIST/raw/train-labels-idx1-ubyte", tmp_path / "f", images)
