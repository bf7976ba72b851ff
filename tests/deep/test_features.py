"""Loaders, transforms, feature extraction and its cache."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import (
    cached_features,
    evaluation_transform,
    extract_features,
    open_images,
    training_transform,
)
from condnum.deep.features import feature_key
from condnum.deep.weights import state_checksum
from condnum.errors import DataFormatError, DeviceError, InvalidInputError, UnknownNameError

DIGITS = "digits-8x8:0-4"


class Tiny(nn.Module):
    """Pixels through BatchNorm, which must not learn, and a linear map; counts its calls."""

    def __init__(self, width=6, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.norm = nn.BatchNorm2d(3)
        self.linear = nn.Linear(3 * 64, width)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(width, 3 * 64, generator=generator) / 10)
            self.linear.bias.zero_()
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return self.linear(self.norm(images).flatten(1))


@pytest.fixture
def transform():
    return evaluation_transform(input_size=8, crop_pct=1.0)


@pytest.fixture
def data():
    return open_images(DIGITS, limit=6)


class TestExtraction:
    def test_equals_the_model_on_all_images_and_leaves_it_as_it_was(self, data, transform):
        model = Tiny().train()
        model.linear.eval()
        before = state_checksum(model.state_dict())
        features = extract_features(model, data, transform, batch_size=7)
        images = torch.stack([transform(data.image(i)) for i in range(len(data))])
        with torch.no_grad():
            expected = model.eval()(images)
        np.testing.assert_allclose(features.values, expected.numpy(), rtol=1e-5, atol=1e-6)  # batch order
        assert features.labels.tolist() == data.labels.tolist()
        assert state_checksum(model.state_dict()) == before  # BatchNorm's statistics too
        assert not features.values.flags.writeable

    def test_unreadable_images_have_no_row(self, folder, transform):
        root = folder(count=12)
        (root / "train" / "dog" / "0.png").write_bytes(b"broken")
        data = open_images(root)
        features = extract_features(lambda images: images.flatten(1), data, transform)
        assert len(features) == 23
        assert set(range(24)) - set(features.indices.tolist()) == {12 if "cat" in data.image_name(0) else 0}
        assert [image.name.endswith("0.png") for image in features.unreadable] == [True]

    def test_damaged_data_are_refused(self, folder, transform):
        root = folder(count=4)
        for i in range(4):
            (root / "train" / "dog" / f"{i}.png").write_bytes(b"broken")
        with pytest.raises(DataFormatError, match="4 of 8 images do not decode"):
            extract_features(lambda images: images.flatten(1), open_images(root), transform)

    def test_wrong_models(self, data, transform):
        with pytest.raises(InvalidInputError, match=r"pooled features \(B, D\).*num_classes=0"):
            extract_features(nn.Identity(), data, transform)
        with pytest.raises(InvalidInputError, match=r"NaN or infinity for 30 image"):
            extract_features(lambda images: images.flatten(1) / 0, data, transform)
        with pytest.raises(InvalidInputError, match="transform is random"):
            extract_features(nn.Flatten(), data, training_transform(input_size=8))
        with pytest.raises(UnknownNameError, match="precision"):
            extract_features(nn.Flatten(), data, transform, precision="float8")

    def test_mixed_precision_is_stored_as_float32_and_remembers_its_round_off(self, data, transform):
        low = extract_features(Tiny(), data, transform, precision="bfloat16")
        full = extract_features(Tiny(), data, transform)
        assert low.values.dtype == np.float32
        assert low.eps == pytest.approx(2.0**-7)
        gap = np.abs(low.values - full.values).max() / np.abs(full.values).max()
        assert 1e-5 < gap < 0.05


class TestOutOfMemory:
    def test_the_message_says_which_batch_size_to_try(self, data, transform):
        def hungry(images):
            if len(images) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return images.flatten(1)

        with pytest.raises(DeviceError, match="batch size of 9; try a batch size of 4"):
            extract_features(hungry, data, transform, batch_size=9)
        assert len(extract_features(hungry, data, transform, batch_size=4)) == 30


class TestCache:
    def test_second_call_reads_a_memory_map_and_runs_nothing(self, data, transform, tmp_path):
        model = Tiny()
        first = cached_features(model, data, transform, cache=tmp_path, batch_size=16)
        calls = model.calls
        again = cached_features(model, data, transform, cache=tmp_path, batch_size=16)
        assert calls == 2
        assert model.calls == calls
        assert isinstance(again.values, np.memmap)
        assert np.array_equal(first.values, again.values)
        assert again.labels.tolist() == data.labels.tolist()
        assert again.classes == data.classes

    def test_whatever_features_depend_on_changes_the_key(self, data, transform, folder):
        model = Tiny()
        base = feature_key(model, data, transform, name="tiny")
        other_buffer = Tiny()
        other_buffer.norm.running_mean += 1
        others = [
            feature_key(Tiny(seed=1), data, transform, name="tiny"),
            feature_key(other_buffer, data, transform, name="tiny"),
            feature_key(nn.Sequential(Tiny(), nn.ReLU()), data, transform, name="tiny"),
            feature_key(model, open_images(DIGITS, limit=7), transform, name="tiny"),
            feature_key(model, data, evaluation_transform(input_size=8), name="tiny"),
            feature_key(model, data, transform, name="tiny", precision="bfloat16"),
            feature_key(model, data, transform, name="other"),
        ]
        assert len({json.dumps(key) for key in (base, *others)}) == 8
        assert base == feature_key(Tiny(), open_images(DIGITS, limit=6), transform, name="tiny")

    @pytest.mark.parametrize("damage", ["flip", "truncate", "pickle", "no rows", "bad json", "foreign key"])
    def test_damaged_entries_are_computed_anew(self, data, transform, tmp_path, damage):
        model = Tiny()
        good = np.array(cached_features(model, data, transform, cache=tmp_path).values)
        values = next(path for path in tmp_path.glob("*.npy") if ".rows" not in path.name)
        rows, meta = next(tmp_path.glob("*.rows.npy")), next(tmp_path.glob("*.json"))
        if damage == "flip":
            content = bytearray(values.read_bytes())
            content[-3] ^= 64
            values.write_bytes(content)
        elif damage == "truncate":
            values.write_bytes(values.read_bytes()[:-40])
        elif damage == "pickle":
            np.save(values, np.array([{"code": 1}], dtype=object), allow_pickle=True)
        elif damage == "no rows":
            rows.unlink()
        elif damage == "bad json":
            meta.write_text(meta.read_text()[:50])
        else:
            content = json.loads(meta.read_text())
            content["key"]["weights"] = "0" * 64
            meta.write_text(json.dumps(content))
        calls = model.calls
        again = cached_features(model, data, transform, cache=tmp_path)
        assert model.calls > calls
        assert np.array_equal(again.values, good)
        cached_features(model, data, transform, cache=tmp_path)
        assert model.calls == calls + 1  # the entry is whole again

    def test_no_half_entry_when_the_writer_dies(self, data, transform, tmp_path, monkeypatch):
        def die(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("condnum.deep.features.write_json", die)
        with pytest.raises(KeyboardInterrupt):
            cached_features(Tiny(), data, transform, cache=tmp_path)
        monkeypatch.undo()
        assert not list(tmp_path.glob("*.json"))
        model = Tiny()
        cached_features(model, data, transform, cache=tmp_path)
        assert model.calls == 1

    def test_a_function_has_no_key(self, data, transform, tmp_path):
        with pytest.raises(InvalidInputError, match="is no torch module"):
            cached_features(lambda images: images.flatten(1), data, transform, cache=tmp_path)
        assert len(cached_features(lambda images: images.flatten(1), data, transform, cache=None)) == 30
