"""Images: folders and what can be wrong in them, digits by name, and data sets as torch users have them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import paint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from condnum.data import load_small_digits
from condnum.data.images import ImageData, Unreadable, as_images, open_images
from condnum.errors import CondnumError

torchvision = pytest.importorskip("torchvision", reason="the extra deep is not installed")


def files(data):
    """Paths of the images in use, below their class folders."""
    return ["/".join(Path(data.items[i]).parts[-2:]) for i in data.positions.tolist()]


@pytest.mark.parametrize(
    ("splits", "classes", "test_folder"),
    [
        (("train", "val"), ("n01440764", "n01443537"), "val"),  # ImageNet
        (("train", "valid", "test"), ("AD", "AE", "ZW"), "test"),  # Country211
        (("TRAIN", "Testing"), ("Acura RL 2012", "AM General 2000"), "Testing"),  # timm's order
    ],
)
def test_usual_splits_and_the_names_that_systems_give_them(folder, splits, classes, test_folder):
    root = folder(splits, classes, count=3, suffix="JPEG")
    train, test = open_images(root), open_images(root, "test")
    assert train.classes == test.classes == classes
    assert train.counts == test.counts == (3,) * len(classes)
    assert test.items[0] == str(root / test_folder / classes[0] / "0.JPEG")
    assert open_images(root, splits[1]).items[0].startswith(str(root / splits[1]))
    with pytest.raises(CondnumError, match=f"first is '{classes[0]}'"):
        open_images(root, "test", classes=train.classes[1:])


def test_hidden_files_are_left_out_and_what_is_no_image_is_counted(folder):
    root = folder(("",), ("c2", "c10"), count=10)
    for name in (".git", "__MACOSX", "@eaDir", "c10/.ipynb_checkpoints", "c10/inside"):
        paint(root / name / "0.png", 9)
    for name in ("l.heic", "notes", ".DS_Store", "._a.jpg"):
        (root / "c10" / name).write_bytes(b"no image")
    data, test = open_images(root), open_images(root, "test")
    assert data.classes == ("c2", "c10")  # in natural order
    assert len(data) + len(test) == 21
    assert data.limit(2).warnings == data.warnings
    assert "2 files are not read as images" in data.warnings[0]


def test_what_is_missing_is_said(folder, tmp_path):
    for text in ("a", "3", "0-"):
        with pytest.raises(CondnumError, match=f"'{text}' is not a set of two digits or more"):
            open_images(f"digits-8x8:{text}")
    paint(tmp_path / "flat" / "train" / "0.png", 9)
    whole, one = folder(), folder(classes=("cat",), root=tmp_path / "one")
    for said, *arguments in (
        ("there is no folder .*CONDNUM_DATA", tmp_path / "nowhere"),
        ("no folder 'dev'", whole, "dev"),
        ("no train/ folder", folder(("val",), root=tmp_path / "val")),
        ("Put the images into .*/train/<class>/<image>", tmp_path / "flat"),
        ("one class only, 'cat'", one),
        ("too few to hold out", folder(("",), count=2, root=tmp_path / "few")),
    ):
        with pytest.raises(CondnumError, match=said):
            open_images(*arguments)


def test_in_the_checksum_the_place_does_not_count_but_every_byte_does(folder, tmp_path):
    root = folder(root=tmp_path / "a")
    shutil.copytree(root, tmp_path / "b")
    one, other = open_images(root), open_images(tmp_path / "b")
    assert one.checksum == other.checksum != other.take(range(9)).checksum
    path = tmp_path / "b" / "train" / "dog" / "0.png"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # same name, same size
    path.write_bytes(content)
    assert open_images(tmp_path / "b").checksum != one.checksum


def test_damaged_files_are_named_with_the_reason(folder):
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
    assert [image.name for image in failed] == [
        str(train / name) for name in ("cat/0.png", "cat/1.jpg", "dog/0.png")
    ]
    assert all(image.reason for image in failed)


def read(path):
    """Return an image file as it is read."""
    return ImageData("toy", "train", ("a", "b"), np.arange(2), (str(path),) * 2, np.arange(2)).image(0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp"])
def test_exif_says_which_side_is_up(tmp_path, name):
    """A camera that is held sideways stores a turned picture, and says so; damaged EXIF turns nothing."""
    from PIL import Image

    corner = np.zeros((16, 24, 3), np.uint8)
    corner[:8, :8] = 255  # at the upper left
    for orientation, quarters in ((1, 0), (3, 2), (6, 1), (8, 3)):
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(np.rot90(corner, quarters)).save(tmp_path / name, exif=exif)
        found = read(tmp_path / name)
        assert found.size == (24, 16)
        assert np.abs(np.asarray(found).astype(int) - corner).mean() < 8  # JPEG
    Image.fromarray(corner).save(tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01")
    assert read(tmp_path / "x.jpg").size == (24, 16)


def test_gray_values_of_more_than_8_bits_and_labels_that_do_not_fit_are_refused(tmp_path):
    from PIL import Image

    for kind in (np.uint16, np.int32, np.float32):
        Image.fromarray(np.zeros((8, 8), kind)).save(tmp_path / "deep.tif")
        assert "save them as 8 bits" in read(tmp_path / "deep.tif").reason
    items = np.zeros((3, 4, 4), np.uint8)
    with pytest.raises(CondnumError, match="2 are out of range, the first is -1 of image 1"):
        ImageData("toy", "train", ("a", "b"), np.array([0, -1, 5]), items, np.arange(3))


def test_digits_split_without_overlap_and_keep_their_pixels():
    train, test = open_images("digits-8x8:7-9,5,6"), open_images("digits-8x8:5-9", "test")
    assert train.classes == test.classes == tuple("56789")
    assert not set(train.positions.tolist()) & set(test.positions.tolist())
    digits = load_small_digits()
    assert len(train) + len(test) == int((digits.labels >= 5).sum())
    position = train.positions[3]
    assert train.labels[3] == digits.labels[position] - 5
    gray = np.asarray(train.image(3))[..., 0]
    assert np.abs(gray / 255 - digits.images[position] / 16).max() < 0.002  # half a gray level of 255


# Data sets of torch.


class Items(Dataset):
    """Noisy images of two classes, as pictures or tensors, in pairs or dictionaries."""

    def __init__(self, read, seed=0):
        self.read, self.labels = read, np.arange(48) % 2
        self.pixels = np.random.default_rng(seed).integers(0, 255, (48, 8, 8, 3)).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.read(self.pixels[index], int(self.labels[index]))


def tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


def processed(items):
    """Collate as image processors of Hugging Face do."""
    return {
        "pixel_values": torch.stack([tensor(item["image"]) for item in items]),
        "labels": torch.tensor([item["label"] for item in items]),
    }


PAIRS = Items(lambda pixels, label: (tensor(pixels), label))
RECORDS = Items(lambda pixels, label: {"image": pixels, "label": label})
KINDS = {
    "data set of tensors": PAIRS,
    "data set of dictionaries": RECORDS,
    "subset": Subset(PAIRS, range(48)),
    "loader of tuples": DataLoader(PAIRS, batch_size=7, shuffle=True),
    "loader of dictionaries": DataLoader(RECORDS, batch_size=7, collate_fn=processed, drop_last=True),
    "tensors": (torch.stack([PAIRS[k][0] for k in range(48)]), PAIRS.labels),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_images_in_the_order_of_the_data_set(kind):
    data = as_images(KINDS[kind], "D_P")
    assert (data.counts, data.tensors) == ((24, 24), kind != "data set of dictionaries")
    for index in (0, 47):
        image = data.image(index)
        assert torch.equal(image if data.tensors else tensor(np.array(image)), PAIRS[index][0])
    assert data.checksum != as_images(Items(PAIRS.read, seed=1), "D_P").checksum


def test_a_folder_has_the_images_of_torchvisions_image_folder(folder):
    root = folder(count=3)
    mine, theirs = as_images(root, "D_P"), as_images(torchvision.datasets.ImageFolder(root / "train"), "D_P")
    assert mine.classes == theirs.classes == ("cat", "dog")
    assert mine.labels.tolist() == theirs.labels.tolist()
    for index in range(6):
        assert np.array_equal(np.asarray(mine.image(index)), np.asarray(theirs.image(index)))


class Endless(IterableDataset):
    def __iter__(self):
        yield PAIRS[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Endless(), "without a length"),
        (Items(lambda pixels, _: tensor(pixels)), r"expected \(image, label\) .* got a Tensor"),
        (Items(lambda pixels, y: (torch.from_numpy(pixels), y)), r"tensors of torch\.uint8; give floats"),
        (Items(lambda pixels, y: (torch.rand(3, 8, 8), y)), "changes its images at random; give the same"),
    ],
    ids=["iterable", "no label", "uint8", "random"],
)
def test_what_is_no_labeled_data_set_is_refused(data, message):
    with pytest.raises(CondnumError, match=message):
        as_images(data, "D_H")
