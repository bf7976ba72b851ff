import gzip
from pathlib import Path

import numpy as np
import pytest

from condnum.data import digit_pair, load_mnist_images, user_cache
from condnum.data.mnist import download_mnist
from condnum.data.task_pair import combine_checksums, sha256_file
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, UnknownNameError

RAW = Path("data/MNIST/raw")


def test_loads_plain_files(write_mnist):
    write_mnist(RAW)
    digits = load_mnist_images("local")
    assert digits.images.shape == (30, 28, 28)
    assert digits.counts == (3,) * 10
    assert digits.images[17, 3, 5] == 17
    # grey value 17 under MNIST's mean and deviation
    assert digits.pixels(np.array([17]))[0, 0] == pytest.approx((17 / 255 - 0.1307) / 0.3081, rel=1e-14)
    sums = [sha256_file(RAW / f"train-{n}-ubyte") for n in ("images-idx3", "labels-idx1")]
    assert digits.checksum == combine_checksums(sums)
    assert list(digits.provenance.files.values()) == sums
    assert digits.provenance.known_checksum is False
    assert digits.provenance.location == f"{RAW} (train-images-idx3-ubyte, train-labels-idx1-ubyte)"


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


@pytest.mark.parametrize("place", ["MNIST/raw", "raw", "."])
def test_explicit_folder(write_mnist, isolated, place):
    write_mnist(isolated / "given" / place)
    assert len(load_mnist_images(isolated / "given")) == 30


def test_pair_from_files(write_mnist):
    write_mnist(RAW)
    pair = digit_pair(load_mnist_images("local"), 1, 7, labels="published")
    assert pair.X_P.shape == (3, 784)
    assert pair.X_H[2, 0] == pytest.approx((27 / 255 - 0.1307) / 0.3081, rel=1e-14)
    assert pair.feature_names[29] == "r1c1"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        pytest.param(
            np.zeros((2, 8, 8)), np.zeros(2), r"images must be \(N, 28, 28\) .* got \(2, 8, 8\)", id="size"
        ),
        pytest.param(
            np.zeros((2, 28, 28)), np.zeros((2, 1)), r"labels \(N,\), got .* \(2, 1\)", id="labels-2d"
        ),
        pytest.param(np.zeros((2, 28, 28)), np.zeros(3), "do not belong together", id="counts"),
        pytest.param(
            np.zeros((2, 28, 28)), np.array([1, 10]), "labels must be 0 to 9; 1 are not", id="label-10"
        ),
    ],
)
def test_bad_files(write_mnist, images, labels, message):
    write_mnist(RAW, images=images.astype(np.uint8), labels=labels.astype(np.uint8))
    with pytest.raises(DataFormatError, match=message):
        load_mnist_images("local")


def test_truncated_file(write_mnist):
    write_mnist(RAW)
    path = RAW / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataFormatError, match="train-images-idx3-ubyte is truncated"):
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
    monkeypatch.setattr("condnum.data.mnist._ROWS", 50)
    monkeypatch.setattr("condnum.data.mnist._TRAIN_ROWS", 30)
    queries = []
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **q: queries.append(q) or Bunch(50, 784))
    assert download_mnist() == user_cache() / "MNIST/raw"
    digits = load_mnist_images()
    assert digits.label == "mnist, 30 training images, user cache"
    assert digits.images[:, 0, 0].tolist() == list(range(30))
    test = load_mnist_images("auto", "test")
    assert test.images[:, 0, 0].tolist() == list(range(30, 50))
    assert test.labels.tolist() == [i % 10 for i in range(30, 50)]
    assert [q["name"] for q in queries] == ["mnist_784"]  # once for both
    assert len(list((user_cache() / "MNIST" / "raw").iterdir())) == 4


def test_download_of_another_table(monkeypatch):
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **q: Bunch(20, 64))
    with pytest.raises(DataFormatError, match=r"mnist_784 must be \(70000, 784\) .* got \(20, 64\)"):
        download_mnist()


def test_no_network():
    with pytest.raises(DataNotFoundError, match=r"OpenML failed .*no network.* put the four"):
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
    pair = digit_pair(train, 3, 8, rows=100)
    assert pair.title().startswith(
        "mnist, training images, CONDNUM_DATA: 100 rows D_P, 100 rows D_H, D = 784, SHA-256 "
    )


@pytest.mark.realdata
def test_real_digits_are_cut_to_the_smaller_count(real_data):
    pair = digit_pair(load_mnist_images("local"), 5, 1, labels="published")
    assert (pair.rows_pretrain, pair.rows_harmful) == (5421, 5421)
