"""Images: layouts and what can be wrong with them, digits by name, transforms, loaders."""

import os
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from condnum.data import load_small_digits
from condnum.deep import evaluation_transform, open_images
from condnum.deep.images import FileImages, ImageData, ItemImages, Unreadable, image_loader
from condnum.deep.transforms import training_transform
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError

from .conftest import paint


def names(data):
    """Relative names of the images in use."""
    return [os.path.relpath(data.source.name(i), data.source.root) for i in data.positions.tolist()]


class TestLayouts:
    def test_usual_splits_and_names_that_systems_give_them(self, folder, tmp_path):
        for number, (splits, classes, test_folder) in enumerate(
            (
                (("train", "val"), ("n01440764", "n01443537"), "val"),  # ImageNet
                (("train", "valid", "test"), ("AD", "AE", "ZW"), "test"),  # Country211
                (("TRAIN", "Testing"), ("Acura RL 2012", "AM General 2000"), "Testing"),  # timm's order
            )
        ):
            root = folder(splits, classes, count=3, suffix="JPEG", root=tmp_path / str(number) / "car_data")
            train, test = open_images(root), open_images(root, "test")
            assert train.classes == test.classes == classes
            assert train.counts == test.counts == (3,) * len(classes)
            assert test.source.root.name == test_folder
            assert open_images(root, splits[1]).source.root.name == splits[1]
            assert names(train)[0] == os.path.join(classes[0], "0.JPEG")
            with pytest.raises(DataFormatError, match=f"first is '{classes[0]}'"):
                open_images(root, "test", classes=train.classes[1:])

    def test_classes_without_splits_are_split_80_to_20_per_class(self, folder):
        root = folder(("",), ("cat", "dog"), count=10)
        train, test = open_images(root), open_images(root, "test")
        assert (train.counts, test.counts) == ((8, 8), (2, 2))
        assert not set(names(train)) & set(names(test))
        paint(root / "cat" / "new.png", 3)
        assert set(names(test)) <= set(names(open_images(root, "test"))) | {"cat/new.png"}

    def test_hidden_files_are_left_out_and_what_is_no_image_is_counted(self, folder):
        root = folder(("",), ("c2", "c10"), count=10)
        for name in (".git", "__MACOSX", "@eaDir", "c10/.ipynb_checkpoints", "c10/inside"):
            paint(root / name / "0.png", 9)
        for name in ("l.heic", "notes", ".DS_Store", "._a.jpg"):
            (root / "c10" / name).write_bytes(b"no image")
        data, test = open_images(root), open_images(root, "test")
        assert data.classes == ("c2", "c10")  # in natural order
        assert len(data) + len(test) == 21
        (said,) = data.warnings
        assert test.warnings == data.limit(2).warnings == data.warnings
        assert "2 files are not read as images" in said

    def test_what_is_missing_is_said(self, folder, tmp_path):
        def refused(error, message, *arguments):
            with pytest.raises(error, match=message):
                open_images(*arguments)

        for text in ("a", "3"):
            refused(InvalidInputError, "digits", f"digits-8x8:{text}")
        refused(DataNotFoundError, "there is no folder", tmp_path / "nowhere")
        refused(DataNotFoundError, "no folder 'dev'", folder(), "dev")
        refused(DataNotFoundError, "no train/ folder", folder(("val",), root=tmp_path / "val"))
        for kind in ("Train", "Test"):
            paint(tmp_path / "flat" / kind / "0.png", 9)
        refused(DataFormatError, "Put the images into .*/train/<class>/<image>", tmp_path / "flat")
        refused(InvalidInputError, "one class only, 'cat'", folder(classes=("cat",), root=tmp_path / "one"))
        (tmp_path / "data" / "train" / "emu").mkdir()
        refused(DataFormatError, "no valid file for the classes emu", tmp_path / "data")
        refused(InvalidInputError, "too few to hold out", folder(("",), count=2, root=tmp_path / "few"))


def test_limit_is_deterministic_nested_and_seeded(folder):
    root = folder(count=12)
    few, more = open_images(root, limit=3), open_images(root, limit=7)
    assert few.counts == (3, 3)
    assert set(names(few)) < set(names(more))
    assert names(few) == names(open_images(root, limit=3)) == sorted(names(few))
    assert names(few) != names(open_images(root, limit=3, seed=1))


class TestChecksum:
    def test_the_place_does_not_count_but_every_byte_does(self, folder, tmp_path):
        root = folder(root=tmp_path / "a")
        shutil.copytree(root, tmp_path / "b")
        one, other = open_images(root), open_images(tmp_path / "b")
        assert one.checksum == other.checksum
        path = tmp_path / "b" / "train" / "dog" / "0.png"
        content = bytearray(path.read_bytes())
        content[-20] ^= 1  # same name, same size
        path.write_bytes(content)
        assert open_images(tmp_path / "b").checksum != one.checksum
        path.unlink()
        with pytest.raises(DataNotFoundError, match=r"0\.png.*changed"):
            _ = other.take(range(10)).checksum

    def test_beyond_a_limit_it_sees_every_size_but_not_every_byte(self, tmp_path, monkeypatch):
        files = tuple(f"{i}.png" for i in range(6))
        for name in files:
            (tmp_path / name).write_bytes(b"abc")

        def checksum(order=range(6)):
            return FileImages(tmp_path, files).checksum(order)

        whole = checksum()
        assert whole == checksum(range(5, -1, -1))
        monkeypatch.setattr("condnum.deep.images.READ_BYTES", 6)
        before = checksum()
        unseen = []
        for name in files:
            (tmp_path / name).write_bytes(b"abX")
            unseen.append(checksum() == before)
            (tmp_path / name).write_bytes(b"abcd")
            assert checksum() != before
            (tmp_path / name).write_bytes(b"abc")
        assert sum(unseen) == 4  # six files of three bytes, two of them read


def test_unreadable_images_are_skipped_counted_and_listed(folder):
    """One of each kind: no image at all, truncated JPEG data, a PNG with a broken chunk."""
    train = folder(count=20) / "train"
    (train / "cat" / "0.png").write_bytes(b"this is text")
    paint(train / "cat" / "1.jpg", 90, side=64)
    whole = (train / "cat" / "1.jpg").read_bytes()
    (train / "cat" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    png = bytearray((train / "dog" / "0.png").read_bytes())
    png[40:60] = b"\xff" * 20
    (train / "dog" / "0.png").write_bytes(png)
    data = open_images(train.parent)
    failed = [image for image in map(data.image, range(len(data))) if isinstance(image, Unreadable)]
    assert len(data) == 41
    listed = [os.path.relpath(image.name, train) for image in failed]
    assert listed == [
        os.path.join(*parts) for parts in (("cat", "0.png"), ("cat", "1.jpg"), ("dog", "0.png"))
    ]
    assert all(image.reason for image in failed)


CORNER = np.zeros((16, 24, 3), np.uint8)
CORNER[:8, :8] = 255  # at the upper left


def image_of(folder, *names):
    """Return the first of some files as it is read."""
    source = FileImages(folder, names * (3 - len(names)))
    return ImageData("toy", "train", ("a", "b"), np.arange(2), source, np.arange(2)).image(0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp", "x.tif"])
def test_exif_says_which_side_is_up(tmp_path, name):
    """A camera that is held sideways stores a turned picture, and says so; damaged EXIF turns nothing."""
    for orientation, quarters in ((1, 0), (3, 2), (6, 1), (8, 3)):
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(np.rot90(CORNER, quarters)).save(tmp_path / name, exif=exif)
        found = image_of(tmp_path, name)
        assert found.size == (24, 16)
        assert np.abs(np.asarray(found).astype(int) - CORNER).mean() < 8  # JPEG
    Image.fromarray(CORNER).save(tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01")
    assert image_of(tmp_path, "x.jpg").size == (24, 16)


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_gray_values_of_more_than_8_bits_are_refused(tmp_path, kind):
    Image.fromarray(np.zeros((8, 8), kind)).save(tmp_path / "deep.tif")
    found = image_of(tmp_path, "deep.tif")
    assert isinstance(found, Unreadable)
    assert "save them as 8 bits" in found.reason


def test_image_data_checks_labels():
    source = ItemImages(np.zeros((3, 4, 4), np.uint8), "toy")
    with pytest.raises(DataFormatError, match=r"2 are out of range, the first is -1 of toy\[1\]"):
        ImageData("toy", "train", ("a", "b"), np.array([0, -1, 5]), source, np.arange(3))
    with pytest.raises(DataFormatError, match="at least one image"):
        ImageData("toy", "train", ("a", "b"), np.array([], int), source, np.array([], int))


def test_bundled_digits_split_without_overlap_and_keep_their_pixels():
    train, test = open_images("digits-8x8:7-9,5,6"), open_images("digits-8x8:5-9", "test")
    assert train.classes == test.classes == tuple("56789")
    assert not set(train.positions.tolist()) & set(test.positions.tolist())
    digits = load_small_digits()
    assert len(train) + len(test) == int((digits.labels >= 5).sum())
    position = train.positions[3]
    assert train.labels[3] == digits.labels[position] - 5
    grey = np.asarray(train.image(3))[..., 0]
    assert np.abs(grey / 255 - digits.images[position] / 16).max() < 0.002  # half a grey level of 255


def test_the_evaluation_transform_is_timms_own_and_of_the_size_that_a_vit_was_built_for():
    model = timm.create_model("resnet18", pretrained=False)
    config = timm.data.resolve_data_config({}, model=model)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3)).astype(np.uint8))
    ours = evaluation_transform(model)
    assert torch.equal(ours(image), timm.data.create_transform(**config, is_training=False)(image))
    assert ours.input_size == (3, 224, 224)
    wrapped = nn.Module()
    wrapped.model = vit = timm.create_model("test_vit", pretrained=False, img_size=64)
    assert evaluation_transform(vit).input_size == (3, 64, 64)
    assert evaluation_transform(wrapped).description == evaluation_transform(vit).description
    with pytest.raises(InvalidInputError, match="Linear has no `pretrained_cfg`"):
        evaluation_transform(nn.Linear(2, 2))


def test_augmentation_depends_on_seed_epoch_and_image_alone():
    data, transform = open_images("digits-8x8:0-4", limit=6), training_transform(input_size=16)

    def batches(workers, *, epoch=0, seed=0):
        loader = image_loader(data, transform, batch_size=8, seed=seed, workers=workers)
        loader.dataset.set_epoch(epoch)
        return list(loader)

    here, there = batches(0), batches(2)
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.images, other.images)
    assert not torch.equal(here[0].images, batches(0, epoch=1)[0].images)
    assert not torch.equal(here[0].images, batches(0, seed=1)[0].images)
