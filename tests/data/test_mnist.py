"""MNIST from IDX files, found, damaged and downloaded."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from condnum.data import digit_pair, load_mnist_images, sha256_file, user_cache
from condnum.data.mnist import download_mnist, read_idx, write_idx
from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
)

RAW = Path("data/MNIST/raw")
# 2 images of 1×3: magic 0x00000803, sizes 2, 1, 3 big-endian, six bytes.
BYTES = bytes.fromhex("00000803 00000002 00000001 00000003 010203 0405ff")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_idx_plain_and_gzip_whatever_the_name(tmp_path, pack):
    (tmp_path / "f").write_bytes(pack(BYTES))
    assert read_idx(tmp_path / "f").tolist() == [[[1, 2, 3]], [[4, 5, 255]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BYTES[:-1], r"is truncated: its header says 2×1×3 = 6 bytes, 5 follow"),
        (BYTES + b"\x00", "has trailing bytes: .* 7 follow"),
        (BYTES[:9], "is truncated: 9 bytes, less than its header"),
        (b"", "not an IDX file"),
        (b"\x00\x00\x0d\x01" + BYTES[4:], "starts with 0x00000d01"),
        (b"\x00\x00\x08\x00", "starts with 0x00000800"),
        (gzip.compress(BYTES, mtime=0)[:-6], "truncated or damaged gzip"),
        (gzip.compress(BYTES, mtime=0)[:12] + b"\xff" * 20, "damaged gzip|not an IDX file"),
    ],
)
def test_idx_that_is_damaged(tmp_path, content, message):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataFormatError, match=message):
        read_idx(tmp_path / "f")


def test_the_writer_writes_the_same_bytes_each_time(tmp_path):
    for name in "ab":
        write_idx(tmp_path / name, np.array([[[1, 2, 3]], [[4, 5, 255]]], dtype=np.uint8))
    assert gzip.decompress((tmp_path / "a").read_bytes()) == BYTES
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_loads_plain_files(write_mnist):
    write_mnist(RAW)
    digits = load_mnist_images("local")
    assert digits.counts == (3,) * 10
    # grey value 17 under MNIST's mean and deviation
    assert digits.pixels(np.array([17]))[0, 0] == pytest.approx((17 / 255 - 0.1307) / 0.3081, rel=1e-14)
    sums = [sha256_file(RAW / f"train-{n}-ubyte") for n in ("images-idx3", "labels-idx1")]
    assert list(digits.provenance.files.values()) == sums
    assert digits.provenance.known_checksum is False
    assert digits.provenance.location == f"{RAW} (train-images-idx3-ubyte, train-labels-idx1-ubyte)"
    assert digit_pair(digits, 1, 7, labels="published").X_P.shape == (3, 784)


def test_gzip_is_preferred_and_the_test_split_has_its_own_files(write_mnist):
    write_mnist(RAW, "t10k")
    for plain in list(RAW.iterdir()):
        plain.with_name(plain.name + ".gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.write_bytes(b"not read")
    digits = load_mnist_images("local", "test")
    assert digits.label == "mnist, 30 test images, ./data"
    assert load_mnist_images().checksum == digits.checksum  # no training images here
    with pytest.raises(DataNotFoundError, match="all 70 000 images: condnum data download"):
        load_mnist_images("auto", "train")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 8, 8)), np.zeros(2), r"images must be \(N, 28, 28\) .* got \(2, 8, 8\)"),
        (np.zeros((2, 28, 28)), np.zeros((2, 1)), r"labels \(N,\), got .* \(2, 1\)"),
        (np.zeros((2, 28, 28)), np.zeros(3), "do not belong together"),
    ],
)
def test_files_that_do_not_fit(write_mnist, images, labels, message):
    write_mnist(RAW, images=images.astype(np.uint8), labels=labels.astype(np.uint8))
    with pytest.raises(DataFormatError, match=message):
        load_mnist_images("local")


def test_missing_and_unknown(write_mnist):
    write_mnist(RAW)
    (RAW / "train-labels-idx1-ubyte").unlink()
    wanted = "train-images-idx3-ubyte.gz or train-images-idx3-ubyte and train-labels-idx1-ubyte.gz"
    with pytest.raises(DataNotFoundError, match=f"mnist: {wanted}"):
        load_mnist_images("local")
    with pytest.raises(UnknownNameError, match="unknown split 'tests'; did you mean 'test'"):
        load_mnist_images("local", "tests")
    with pytest.raises(InvalidInputError, match=r"mnist is not embedded; use load_small_digits\(\)"):
        load_mnist_images("embedded")


class Bunch:
    def __init__(self, rows, columns):
        self.data = np.zeros((rows, columns))
        self.data[:, 0] = np.arange(rows) % 251
        self.target = np.array([str(i % 10) for i in range(rows)], dtype=object)


def test_download_is_split_and_kept(monkeypatch):
    with pytest.raises(DataNotFoundError, match=r"OpenML failed .*no network.* put the four"):
        download_mnist()
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **q: Bunch(50, 784))
    with pytest.raises(DataFormatError, match=r"mnist_784 must be \(70000, 784\) .* got \(50, 784\)"):
        download_mnist()
    monkeypatch.setattr("condnum.data.mnist._ROWS", 50)
    monkeypatch.setattr("condnum.data.mnist._TRAIN_ROWS", 30)
    assert download_mnist() == user_cache() / "MNIST/raw"
    digits, test = load_mnist_images(), load_mnist_images("auto", "test")
    assert digits.label == "mnist, 30 training images, user cache"
    assert digits.images[:, 0, 0].tolist() == list(range(30))
    assert test.images[:, 0, 0].tolist() == list(range(30, 50))
    assert test.labels.tolist() == [i % 10 for i in range(30, 50)]
    assert len(list((user_cache() / "MNIST" / "raw").iterdir())) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(user_cache() / "MNIST/raw/train-labels-idx1-ubyte.gz"))
    with pytest.raises(OutputError, match="set XDG_CACHE_HOME to a writable folder"):
        download_mnist()


@pytest.mark.realdata
def test_real_mnist(real_data):
    train, test = load_mnist_images("local"), load_mnist_images("local", "test")
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.counts == (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    assert train.provenance.known_checksum
    assert test.provenance.known_checksum
    # The constants of the normalisation are rounded to four digits.
    assert (train.images / 255).mean() == pytest.approx(0.1307, abs=5e-5)
    assert (train.images / 255).std() == pytest.approx(0.3081, abs=5e-5)
