"""Digits and timm's data sets by name."""

import gzip
import struct

import numpy as np
import pytest

from condnum.data import load_mnist_images, load_small_digits
from condnum.deep import open_images
from condnum.deep.image_sets import parse_digits
from condnum.deep.images import Unreadable
from condnum.errors import DataNotFoundError, InvalidInputError, UnknownNameError


class TestDigits:
    @pytest.mark.parametrize("text", ["4-0", "a", "3", "0-4;5", "12-14", "1,,2"])
    def test_bad_subsets(self, text):
        with pytest.raises(InvalidInputError):
            parse_digits(text)

    def test_bundled_digits_split_without_overlap_and_keep_their_pixels(self):
        train, test = open_images("digits-8x8:5-9"), open_images("digits-8x8:5-9", "test")
        assert not set(train.positions.tolist()) & set(test.positions.tolist())
        digits = load_small_digits()
        assert len(train) + len(test) == int((digits.labels >= 5).sum())
        position = train.positions[3]
        assert train.labels[3] == digits.labels[position] - 5
        grey = np.asarray(train.image(3))[..., 0]
        assert np.abs(grey / 255 - digits.images[position] / 16).max() < 0.002  # half a grey level of 255

    def test_mnist_from_local_files(self, real_data):
        data = open_images("mnist:0-4", "test", limit=20)
        assert data.counts == (20,) * 5
        digits = load_mnist_images("local", "test")
        assert np.array_equal(np.asarray(data.image(5))[..., 1], digits.images[data.positions[5]])
        assert open_images("mnist:5-9", "test").labels.max() == 4

    def test_the_test_images_of_mnist_are_split_where_they_are_all(self, monkeypatch, tmp_path):
        monkeypatch.delenv("CONDNUM_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        train, test = open_images("mnist:0-4"), open_images("mnist:0-4", "test")
        assert not set(train.positions) & set(test.positions)
        assert sum(train.counts) + sum(test.counts) == 5139  # of digits 0 to 4
        assert train.take([0, 2500]).origin == test.origin == "mnist, 10,000 test images, condnum's box"
        with pytest.raises(DataNotFoundError, match="MNIST/raw"):
            open_images("mnist:0-4", source="local")

    def test_class_names_of_the_training_split_are_accepted_and_others_refused(self):
        train = open_images("digits-8x8:0-4")
        assert open_images("digits-8x8:0-4", "test", classes=train.classes).classes == train.classes
        with pytest.raises(InvalidInputError, match="class names of its own"):
            open_images("digits-8x8:5-9", classes=train.classes)
        with pytest.raises(UnknownNameError, match="split"):
            open_images("digits-8x8:0-4", "valid")


class TestTimm:
    def write_idx(self, root, name):
        """Fashion-MNIST's files, in small: 10 classes, 4 images each."""
        images = np.arange(40 * 28 * 28).reshape(40, 28, 28).astype(np.uint8)
        labels = (np.arange(40) % 10).astype(np.uint8)
        raw = root / "FashionMNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            (raw / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
            with gzip.open(raw / f"{name}-{kind}-ubyte.gz", "wb") as stream:
                stream.write(header + array.tobytes())
        return images

    def test_torch_name(self, tmp_path):
        images = self.write_idx(tmp_path, "train")
        self.write_idx(tmp_path, "t10k")
        data = open_images(f"timm:torch/fashion_mnist@{tmp_path}")
        assert data.counts == (4,) * 10
        assert data.classes[0] == "T-shirt/top"
        assert np.array_equal(np.asarray(data.image(7))[..., 0], images[7])
        assert len(data.checksum) == 64

    def test_folder_reader_lists_broken_images_instead_of_replacing_them(self, folder):
        root = folder(count=12)
        (root / "train" / "dog" / "3.png").write_bytes(b"broken")
        data = open_images(f"timm:@{root}")
        (broken,) = [image for image in map(data.image, range(24)) if isinstance(image, Unreadable)]
        assert data.classes == ("cat", "dog")
        assert "timm:[" in broken.name
        assert data.checksum == open_images(f"timm:@{root}").checksum

    def test_missing_and_streamed(self, tmp_path):
        with pytest.raises(DataNotFoundError, match="timm cannot open 'torch/cifar10'"):
            open_images(f"timm:torch/cifar10@{tmp_path}")
        with pytest.raises(InvalidInputError, match="stream"):
            open_images("timm:wds/imagenet")
