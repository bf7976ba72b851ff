"""Feature extraction and its cache."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import Backbone, evaluation_transform, features, open_images
from condnum.deep.features import cached_features, extract_features
from condnum.deep.transforms import training_transform
from condnum.deep.weights import state_checksum
from condnum.errors import DataFormatError, DeviceError, InvalidInputError

DIGITS = "digits-8x8:0-4"


class Tiny(nn.Module):
    """Pixels through BatchNorm, which must not learn, and a linear map; counts its calls."""

    def __init__(self, seed=0):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.linear = nn.Linear(3 * 64, 6)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            self.linear.weight.copy_(torch.randn(6, 3 * 64, generator=generator) / 10)
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


def test_equals_the_model_on_all_images_and_leaves_it_as_it_was(data, transform):
    model = Tiny().train()
    model.linear.eval()
    before = state_checksum(model.state_dict())
    features = extract_features(model, data, transform, batch_size=7)
    assert (model.norm.training, model.linear.training) == (True, False)
    images = torch.stack([transform(data.image(i)) for i in range(len(data))])
    with torch.no_grad():
        expected = model.eval()(images)
    np.testing.assert_allclose(features.values, expected.numpy(), rtol=1e-5, atol=1e-6)  # batch order
    assert features.labels.tolist() == data.labels.tolist()
    assert state_checksum(model.state_dict()) == before  # BatchNorm's statistics too
    assert not features.values.flags.writeable


def test_unreadable_images_have_no_row_and_many_of_them_are_refused(folder, transform):
    root = folder(count=12)
    (root / "train" / "dog" / "0.png").write_bytes(b"broken")
    features = extract_features(nn.Flatten(), open_images(root), transform)
    assert features.indices.tolist() == [i for i in range(24) if i != 12]
    assert [image.name.endswith("0.png") for image in features.unreadable] == [True]
    for i in range(3):
        (root / "train" / "dog" / f"{i}.png").write_bytes(b"broken")
    with pytest.raises(DataFormatError, match="3 of 24 images cannot be decoded"):
        extract_features(nn.Flatten(), open_images(root), transform)


def test_wrong_models(data, transform):
    with pytest.raises(InvalidInputError, match=r"pooled features \(B, D\).*wrap it in a Backbone"):
        extract_features(nn.Identity(), data, transform)
    with pytest.raises(InvalidInputError, match=r"NaN or infinity for 30 image"):
        extract_features(lambda images: images.flatten(1) / 0, data, transform)
    with pytest.raises(InvalidInputError, match="transform is random"):
        extract_features(nn.Flatten(), data, training_transform(input_size=8))


def test_out_of_memory_says_which_batch_size_to_try(data, transform):
    def hungry(images):
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return images.flatten(1)

    with pytest.raises(DeviceError, match="batch size of 9; try a batch size of 4"):
        extract_features(hungry, data, transform, batch_size=9)
    assert len(extract_features(hungry, data, transform, batch_size=4)) == 30


class TestCache:
    @pytest.fixture
    def calls(self, monkeypatch):
        """Count the passes over a data set."""
        found, run = [], features.extract_features
        monkeypatch.setattr(
            features, "extract_features", lambda *given, **how: found.append(1) or run(*given, **how)
        )
        return found

    def test_second_call_reads_a_memory_map_and_what_features_depend_on_counts(
        self, data, transform, tmp_path, calls
    ):
        net, other = Backbone("test_resnet"), Backbone("test_resnet", seed=1)
        first = cached_features(net, data, transform, cache=tmp_path)
        again = cached_features(net, data, transform, cache=tmp_path)
        assert len(calls) == 1
        assert isinstance(again.values, np.memmap)
        assert np.array_equal(first.values, again.values)
        assert again.labels.tolist() == data.labels.tolist()
        assert again.classes == data.classes
        pooled = Backbone("test_resnet", global_pool="max")
        assert pooled.checksum == net.checksum
        buffer = Backbone("test_resnet")
        buffer.model.bn1.running_mean += 1
        for changed in (
            (other, data, transform),
            (pooled, data, transform),
            (buffer, data, transform),
            (net, open_images(DIGITS, limit=7), transform),
            (net, data, evaluation_transform(input_size=8)),
        ):
            before = len(calls)
            cached_features(*changed, cache=tmp_path)
            assert len(calls) == before + 1

    def test_a_module_of_the_caller_is_run_each_time(self, data, transform, tmp_path, calls):
        """Its weights do not tell what it does."""
        net = Backbone(Tiny(), head="linear", trainable="norm")
        for _ in range(2):
            extract = cached_features(net, data, evaluation_transform(input_size=8), cache=tmp_path)
        assert len(calls) == 2
        assert extract.dimension == 3 * 64
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("damage", ["flip", "no rows", "bad json", "foreign key"])
    def test_damaged_entries_are_computed_anew(self, data, transform, tmp_path, calls, damage):
        net = Backbone("test_resnet")
        good = np.array(cached_features(net, data, transform, cache=tmp_path).values)
        values = next(path for path in tmp_path.glob("*.npy") if ".rows" not in path.name)
        rows, meta = next(tmp_path.glob("*.rows.npy")), next(tmp_path.glob("*.json"))
        content = values.read_bytes()
        if damage == "flip":
            values.write_bytes(content[:-3] + bytes([content[-3] ^ 64]) + content[-2:])
        elif damage == "no rows":
            rows.unlink()
        elif damage == "bad json":
            meta.write_text(meta.read_text()[:50])
        else:
            known = json.loads(meta.read_text())
            known["key"]["data"] = "0" * 64
            meta.write_text(json.dumps(known))
        for _ in range(2):  # the second time the entry is whole again
            assert np.array_equal(cached_features(net, data, transform, cache=tmp_path).values, good)
            assert len(calls) == 2
