"""Folder layouts, splits, subsets, checksums, and every way in which a folder can be wrong."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from condnum.deep import open_images
from condnum.deep.image_sets import imagenet_classes
from condnum.deep.images import ArrayImages, ImageData, Unreadable, files_checksum
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, UnknownNameError

from .conftest import paint


def names(data):
    """Relative names of the images in use."""
    return [os.path.relpath(data.image_name(i), data.source.root) for i in range(len(data))]


class TestLayouts:
    def test_imagenet_train_and_val(self, folder):
        root = folder(("train", "val"), ("n01440764", "n01443537"), count=3, suffix="JPEG")
        train, test = open_images(root), open_images(root, "test")
        assert train.classes == test.classes == ("n01440764", "n01443537")
        assert train.counts == test.counts == (3, 3)
        assert test.source.root.name == "val"
        assert names(train)[0] == os.path.join("n01440764", "0.JPEG")

    def test_a_part_of_imagenet_keeps_the_labels_of_the_pretrained_head(self, folder):
        known = imagenet_classes()
        assert len(known) == 1000
        root = folder(("train", "val"), (known[7], known[217]), count=2)
        data = open_images(root, classes="imagenet-1k")
        assert sorted(set(data.labels.tolist())) == [7, 217]
        assert len(data.classes) == 1000

    def test_country211_has_three_splits_and_test_is_its_own(self, folder):
        root = folder(("train", "valid", "test"), ("AD", "AE", "ZW"), count=2)
        assert open_images(root, "test").source.root.name == "test"
        assert open_images(root, "valid").source.root.name == "valid"
        assert open_images(root).classes == ("AD", "AE", "ZW")

    def test_stanford_cars_as_class_folders_in_a_wrapping_folder(self, folder, tmp_path):
        classes = ("Acura RL Sedan 2012", "AM General Hummer SUV 2000")  # timm sorts without regard to case
        folder(("train", "test"), classes, count=2, root=tmp_path / "outer" / "car_data")
        data = open_images(tmp_path / "outer", "test")
        assert data.classes == classes
        assert len(data) == 4

    def test_classes_without_splits_are_split_80_to_20_per_class(self, folder):
        root = folder(("",), ("cat", "dog"), count=10)
        train, test = open_images(root), open_images(root, "test")
        assert train.counts == (8, 8)
        assert test.counts == (2, 2)
        assert not set(names(train)) & set(names(test))
        before = set(names(test))
        paint(root / "cat" / "new.png", 3)
        assert before <= set(names(open_images(root, "test"))) | {"cat/new.png"}

    def test_train_alone_gives_a_held_out_test_set(self, folder):
        root = folder(("train",), count=10)
        assert open_images(root).counts == (8, 8)
        assert open_images(root, "test").counts == (2, 2)

    def test_natural_order_nested_folders_and_hidden_files(self, folder, tmp_path):
        root = folder(("train", "test"), ("c1", "c2", "c10"), count=2)
        paint(root / "train" / "c2" / "more" / "9.png", 9)
        (root / "train" / "c2" / "._0.png").write_bytes(b"macOS")
        (root / "train" / "c2" / "notes.txt").write_text("no image")
        (root / "train" / ".cache").mkdir()
        data = open_images(root)
        assert data.classes == ("c1", "c2", "c10")
        assert data.counts == (2, 3, 2)


class TestDevkit:
    def make(self, root, classes=(1, 2, 2), field="class"):
        for split in ("cars_train", "cars_test"):
            for i in range(3):
                paint(root / split / f"{i:05}.jpg", 40 * i)
        (root / "devkit").mkdir()
        names = np.array(["AM General Hummer", "Acura RL"], dtype=object)
        savemat(root / "devkit" / "cars_meta.mat", {"class_names": names})
        rows = np.array(
            [(f"{i:05}.jpg", c) for i, c in enumerate(classes)], dtype=[("fname", object), (field, object)]
        )
        savemat(root / "devkit" / "cars_train_annos.mat", {"annotations": rows})
        savemat(root / "cars_test_annos_withlabels.mat", {"annotations": rows})
        return root

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_original_files(self, tmp_path, split):
        data = open_images(self.make(tmp_path), split)
        assert data.classes == ("AM General Hummer", "Acura RL")
        assert data.labels.tolist() == [0, 1, 1]  # MATLAB counts from 1
        assert data.image(2).size == (12, 12)

    def test_labels_out_of_range(self, tmp_path):
        with pytest.raises(
            DataFormatError, match=r"0 to 1 for 2 classes; 1 are out of range, the first is 6"
        ):
            open_images(self.make(tmp_path, classes=(1, 2, 7)))

    def test_missing_images_labels_and_fields(self, tmp_path):
        root = self.make(tmp_path / "a", field="klass")
        with pytest.raises(DataFormatError, match="must have the fields 'fname' and 'class'"):
            open_images(root)
        root = self.make(tmp_path / "b")
        (root / "cars_train" / "00001.jpg").unlink()
        with pytest.raises(DataNotFoundError, match=r"00001\.jpg is missing"):
            open_images(root)
        (root / "cars_test_annos_withlabels.mat").unlink()
        with pytest.raises(DataNotFoundError, match="cars_test_annos_withlabels"):
            open_images(root, "test")
        (root / "devkit" / "cars_train_annos.mat").write_bytes(b"not a table" * 20)
        with pytest.raises(DataFormatError, match="cannot be read as a MATLAB 5 file"):
            open_images(root)


class TestWrongFolders:
    def test_no_such_folder_or_split(self, folder, tmp_path):
        with pytest.raises(DataNotFoundError, match="there is no folder"):
            open_images(tmp_path / "nowhere")
        with pytest.raises(DataNotFoundError, match="no folder 'dev'"):
            open_images(folder(), "dev")

    def test_flat_validation_folder_as_imagenet_ships_it(self, folder):
        root = folder(("train",))
        paint(root / "val" / "ILSVRC2012_val_00000001.JPEG", 9)
        with pytest.raises(DataFormatError, match=r"no class sub-folders.*valprep"):
            open_images(root, "test")

    def test_test_without_train(self, folder):
        with pytest.raises(DataNotFoundError, match="no train/ folder"):
            open_images(folder(("val",)))

    def test_no_classes_one_class_empty_class(self, folder, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataFormatError, match="no class sub-folders"):
            open_images(tmp_path / "empty")
        with pytest.raises(InvalidInputError, match="one class only, 'cat'"):
            open_images(folder(classes=("cat",), root=tmp_path / "one"))
        root = folder(root=tmp_path / "hollow")
        (root / "train" / "emu").mkdir()
        with pytest.raises(DataFormatError, match="class folder 'emu' holds no image"):
            open_images(root)

    def test_a_class_that_training_lacks(self, folder):
        root = folder()
        paint(root / "test" / "emu" / "0.png", 3)
        train = open_images(root)
        with pytest.raises(DataFormatError, match="first is 'emu'"):
            open_images(root, "test", classes=train.classes)

    def test_too_few_to_hold_out(self, folder):
        with pytest.raises(InvalidInputError, match="too few to hold out"):
            open_images(folder(("",), count=2))


class TestSubsets:
    def test_limit_is_deterministic_nested_and_seeded(self, folder):
        root = folder(("train", "test"), count=12)
        few, more = open_images(root, limit=3), open_images(root, limit=7)
        assert few.counts == (3, 3)
        assert set(names(few)) < set(names(more))
        assert names(few) == names(open_images(root, limit=3))
        assert names(few) != names(open_images(root, limit=3, seed=1))
        assert names(few) == sorted(names(few))

    @pytest.mark.parametrize("limit", [0, -1, True, 1.5])
    def test_bad_limit(self, folder, limit):
        with pytest.raises(InvalidInputError, match="limit per class"):
            open_images(folder(), limit=limit)


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

    def test_subset_and_label_order_count(self, folder):
        root = folder()
        sums = {
            open_images(root).checksum,
            open_images(root, limit=2).checksum,
            open_images(root, "test").checksum,
            open_images(root, classes=("dog", "cat")).checksum,
        }
        assert len(sums) == 4

    def test_sampled_sees_every_size_but_not_every_byte(self, tmp_path, monkeypatch):
        monkeypatch.setattr("condnum.deep.images.SAMPLED_FILES", 2)
        files = [f"{i}.png" for i in range(6)]
        for name in files:
            (tmp_path / name).write_bytes(b"abc")
        before = files_checksum(tmp_path, files, "sampled")
        assert before != files_checksum(tmp_path, files, "full")
        assert files_checksum(tmp_path, files) == files_checksum(tmp_path, files[::-1], "full")
        unseen = []
        for name in files:
            (tmp_path / name).write_bytes(b"abX")
            unseen.append(files_checksum(tmp_path, files, "sampled") == before)
            (tmp_path / name).write_bytes(b"abcd")
            assert files_checksum(tmp_path, files, "sampled") != before
            (tmp_path / name).write_bytes(b"abc")
        assert sum(unseen) == 4  # six files, two of them in the sample

    def test_auto_turns_to_sampling_beyond_the_limit(self, tmp_path, monkeypatch):
        (tmp_path / "a.png").write_bytes(b"x" * 100)
        monkeypatch.setattr("condnum.deep.images.FULL_BYTES", 99)
        assert files_checksum(tmp_path, ["a.png"]) == files_checksum(tmp_path, ["a.png"], "sampled")
        with pytest.raises(UnknownNameError, match="checksum mode"):
            files_checksum(tmp_path, ["a.png"], "quick")

    def test_a_file_that_went_away(self, folder):
        root = folder()
        data = open_images(root)
        (root / "train" / "cat" / "0.png").unlink()
        with pytest.raises(DataNotFoundError, match=r"0\.png.*changed"):
            _ = data.checksum


class TestUnreadable:
    def break_files(self, root):
        """One of each kind: no image at all, truncated JPEG data, a PNG with a broken chunk."""
        (root / "train" / "cat" / "0.png").write_bytes(b"this is text")
        paint(root / "train" / "cat" / "1.jpg", 90, side=64)
        whole = (root / "train" / "cat" / "1.jpg").read_bytes()
        (root / "train" / "cat" / "1.jpg").write_bytes(whole[: len(whole) // 2])
        png = bytearray((root / "train" / "dog" / "0.png").read_bytes())
        png[40:60] = b"\xff" * 20
        (root / "train" / "dog" / "0.png").write_bytes(png)

    def test_skipped_counted_and_listed(self, folder):
        root = folder(count=20)
        self.break_files(root)
        data = open_images(root)
        failed = [image for image in map(data.image, range(len(data))) if isinstance(image, Unreadable)]
        assert len(data) == 41
        listed = {os.path.relpath(image.name, root / "train") for image in failed}
        assert listed == {
            os.path.join("cat", "0.png"),
            os.path.join("cat", "1.jpg"),
            os.path.join("dog", "0.png"),
        }
        assert all(image.reason for image in failed)

    def test_grey_and_palette_images_become_rgb(self, folder):
        root = folder()
        Image.new("L", (5, 5), 7).save(root / "train" / "cat" / "grey.png")
        Image.new("P", (5, 5)).save(root / "train" / "cat" / "palette.gif")
        Image.new("RGBA", (5, 5)).save(root / "train" / "cat" / "alpha.png")
        data = open_images(root)
        assert {data.image(i).mode for i in range(len(data))} == {"RGB"}


class TestInMemory:
    def test_decoded_once_and_otherwise_the_same(self, folder):
        root = folder(count=3)
        (root / "train" / "cat" / "1.png").write_bytes(b"broken")
        data = open_images(root)
        kept = data.in_memory()
        assert kept.checksum == data.checksum
        assert kept.decoded_bytes == 5 * 12 * 12 * 3
        pixels = [np.asarray(data.image(i)) for i in (0, 2, 5)]
        assert isinstance(kept.image(1), Unreadable)
        shutil.rmtree(root / "train")
        for before, index in zip(pixels, (0, 2, 5), strict=True):
            assert np.array_equal(np.asarray(kept.image(index)), before)
        subset = kept.take([5, 0])
        assert np.array_equal(np.asarray(subset.image(0)), pixels[2])

    def test_the_budget_holds_and_the_rest_is_read_as_ever(self, folder):
        data = open_images(folder(count=3))
        kept = data.in_memory(budget=1000)
        assert kept.decoded_bytes == 2 * 432
        assert all(np.array_equal(kept.image(i), data.image(i)) for i in range(6))


def test_image_data_checks_labels():
    source = ArrayImages(np.zeros((3, 4, 4), np.uint8), "toy")
    with pytest.raises(DataFormatError, match=r"2 are out of range, the first is -1 of toy\[1\]"):
        ImageData("toy", "train", ("a", "b"), np.array([0, -1, 5]), source, np.arange(3))
    with pytest.raises(DataFormatError, match="at least one image"):
        ImageData("toy", "train", ("a", "b"), np.array([], int), source, np.array([], int))
    with pytest.raises(InvalidInputError, match="one class only, 'b'"):
        ImageData("toy", "train", ("a", "b"), np.array([1, 1, 1]), source, np.arange(3))
