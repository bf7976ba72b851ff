"""Images of digits and pairs of them: scikit-learn's, and MNIST from files found, damaged, downloaded."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.preprocessing import StandardScaler

from condnum.data import (
    Digits,
    Provenance,
    digit_pair,
    load_diabetes_tasks,
    load_mnist_images,
    load_small_digits,
)
from condnum.data.digits import download_mnist
from condnum.errors import CondnumError
from condnum.files import user_cache

ORIGIN = Provenance("embedded", "here", False, split="train")


def make(labels):
    """1×2 images; image i holds the gray values (i, 0)."""
    labels = np.array(labels, dtype=np.uint8)
    images = np.zeros((len(labels), 1, 2), dtype=np.uint8)
    images[:, 0, 0] = np.arange(len(labels))
    return Digits(images, labels, "toy", "ab" * 32, 100.0, 0.5, 0.25, ORIGIN)


@pytest.fixture
def digits():
    # positions of 3: 0 2 4 6; of 8: 1 5 7; of others: 3 8 9
    return make([3, 8, 3, 1, 3, 8, 3, 8, 1, 0])


def gray(X):
    """Undo (x/100 − 1/2)/(1/4) on the first pixel: the position of each image."""
    return np.round((X[:, 0] * 0.25 + 0.5) * 100).astype(int).tolist()


@pytest.mark.parametrize(("p", "h"), [(3, 8), (8, 3)])
def test_pair_is_cut_to_the_smaller_count_in_file_order(digits, p, h):
    pair = digit_pair(digits, p, h)
    places = {3: [0, 2, 4], 8: [1, 5, 7]}
    assert (gray(pair.X_P), gray(pair.X_H)) == (places[p], places[h])
    assert (pair.benign_name, pair.harmful_name) == (f"digit {p}", f"digit {h}")
    assert (pair.y_P.tolist(), pair.y_H.tolist()) == ([1, 1, 1], [1, 1, 1])
    assert pair.checksum == digits.checksum


def test_one_vs_rest_is_balanced_and_takes_turns(digits):
    pair = digit_pair(digits, 3, 8)
    for (X, y), digit, own in ((pair.loss_sample, 3, [0, 2, 4]), (pair.probe_sample, 8, [1, 5, 7])):
        assert y.tolist() == [1, 0, 1, 0, 1, 0]
        assert gray(X[y == 1]) == own
        rest = gray(X[y == 0])
        assert len(set(rest)) == 3
        assert all(digits.labels[i] != digit for i in rest)
    alone = digit_pair(make([3, 3, 3, 3, 8, 8, 8]), 3, 8)  # the other digit alone is rest enough
    assert sorted(gray(alone.loss_sample[0])) == [0, 1, 2, 4, 5, 6]


def test_pairs_and_digits_that_are_refused(digits):
    with pytest.raises(CondnumError, match="two different digits 0 to 9, got 3 and 3"):
        digit_pair(digits, 3, 3)
    with pytest.raises(
        CondnumError, match=r"toy has 4 image\(s\) of 3 and 0 of 9; each digit needs at least"
    ):
        digit_pair(digits, 3, 9)
    with pytest.raises(CondnumError, match=r"from 0 to 9 .* and labels up to 12"):
        make([1, 12, 11])


def test_small_digits():
    digits = load_small_digits()
    assert np.array_equal(digits.images, load_digits().images)
    assert digits.counts == tuple(np.bincount(load_digits().target))
    pixels = digits.pixels()
    # One mean and one deviation for all pixels; sums of 115 008 terms.
    assert (pixels.mean(), pixels.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1, abs=1e-12))
    assert digit_pair(digits, 0, 1).X_P.shape == (178, 64)


@pytest.mark.parametrize("features", ["clean", "published"])
def test_diabetes(features):
    pair, raw = load_diabetes_tasks(features=features), load_diabetes(scaled=False)
    columns = {"clean": [0, *range(3, 10)], "published": [0, 1, *range(3, 10)]}[features]
    assert pair.feature_names == tuple(raw.feature_names[i] for i in columns)
    for code, rows, X, y, target in (
        (1, 235, pair.X_P, pair.y_P, raw.data[:, 2]),
        (2, 207, pair.X_H, pair.y_H, raw.target),
    ):
        chosen = raw.data[:, 1] == code
        assert chosen.sum() == rows
        both = np.column_stack([raw.data[:, columns], target])[chosen]
        np.testing.assert_allclose(np.column_stack([X, y]), StandardScaler().fit_transform(both), atol=1e-12)


# MNIST.

RAW = Path("data/MNIST/raw")


def test_loads_plain_files(write_mnist):
    write_mnist(RAW)
    digits = load_mnist_images()
    assert digits.counts == (3,) * 10
    # gray value 17 under MNIST's mean and deviation
    assert digits.pixels(np.array([17]))[0, 0] == pytest.approx((17 / 255 - 0.1307) / 0.3081, rel=1e-14)
    assert digits.provenance.known_checksum is False


def test_gzip_is_preferred_and_the_test_split_has_its_own_files(write_mnist):
    write_mnist(RAW, "t10k")
    for plain in list(RAW.iterdir()):
        plain.with_name(plain.name + ".gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.write_bytes(b"not read")
    digits = load_mnist_images("auto", "test")
    assert digits.label == "mnist, 30 test images, ./data"
    assert load_mnist_images().checksum == digits.checksum  # no training images here
    with pytest.raises(CondnumError, match="for all 70,000 images, run condnum data download"):
        load_mnist_images("auto", "train")


@pytest.mark.parametrize(
    "content", [b"half", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x03ab", b"\0\0\x0d\x01\0\0\0\x02ab"]
)
def test_damaged_files_are_named(write_mnist, content):
    (write_mnist(RAW) / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(CondnumError, match="train-labels-idx1-ubyte is damaged, or not an IDX file"):
        load_mnist_images()


def test_what_is_downloaded_is_found(monkeypatch, write_mnist):
    datasets = pytest.importorskip("torchvision.datasets", reason="the extra deep is not installed")

    def fetch(root, download):
        for stem in ("train", "t10k"):
            write_mnist(Path(root) / "MNIST/raw", stem)

    monkeypatch.setattr(datasets, "MNIST", fetch)
    assert download_mnist() == user_cache() / "MNIST/raw"
    assert load_mnist_images().label == "mnist, 30 training images, user cache"
    assert load_mnist_images("auto", "test").label == "mnist, 30 test images, user cache"

    def cut_off(root, download):
        raise RuntimeError("Error downloading train")

    monkeypatch.setattr(datasets, "MNIST", cut_off)
    with pytest.raises(CondnumError, match=r"of MNIST failed .Error downloading train.*put the four"):
        download_mnist()
