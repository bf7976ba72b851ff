"""Loaders, transforms, feature extraction and its cache."""

import json
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from condnum.deep import (
    cached_features,
    evaluation_transform,
    extract_features,
    image_loader,
    open_images,
    training_transform,
)
from condnum.deep.features import feature_key
from condnum.deep.weights import state_checksum
from condnum.errors import DataFormatError, DeviceError, InvalidInputError, UnknownNameError
from condnum.machine import is_out_of_memory, memory_advice

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


class TestTransforms:
    def test_evaluation_is_timms_own(self):
        import timm

        model = timm.create_model("resnet18", pretrained=False)
        config = timm.data.resolve_data_config({}, model=model)
        image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3)).astype(np.uint8))
        ours = evaluation_transform(model)
        assert torch.equal(ours(image), timm.data.create_transform(**config, is_training=False)(image))
        assert ours.input_size == (3, 224, 224)

    def test_a_backbone_is_asked_for_its_model_and_a_vit_for_the_size_it_was_built_for(self):
        import timm

        vit = timm.create_model("test_vit", pretrained=False, img_size=64)
        wrapped = nn.Module()
        wrapped.model = vit
        assert evaluation_transform(vit).input_size == (3, 64, 64)
        assert evaluation_transform(wrapped).description == evaluation_transform(vit).description
        with pytest.raises(InvalidInputError, match="Linear does not say which images it takes"):
            evaluation_transform(nn.Linear(2, 2))

    def test_descriptions_tell_transforms_apart(self):
        descriptions = {
            evaluation_transform(input_size=32).description,
            evaluation_transform(input_size=33).description,
            evaluation_transform(input_size=32, crop_pct=1.0).description,
            evaluation_transform(input_size=32, mean=(0.5, 0.5, 0.5)).description,
            training_transform(input_size=32).description,
            training_transform(input_size=32, augmentation="gentle").description,
        }
        assert len(descriptions) == 6
        assert json.loads(evaluation_transform(input_size=32).description)["timm"]

    def test_no_augmentation_is_the_evaluation_transform(self):
        assert (
            training_transform(input_size=32, augmentation="none").description
            == evaluation_transform(input_size=32).description
        )

    def test_gentle_never_mirrors(self):
        left = np.zeros((32, 32, 3), np.uint8)
        left[:, :10] = 255
        data = open_images(DIGITS, limit=1)
        object.__setattr__(data, "source", type(data.source)(np.repeat(left[None], 5000, 0), "left"))
        loader = image_loader(data, training_transform(input_size=16, augmentation="gentle"), batch_size=5)
        for epoch in range(8):
            loader.dataset.set_epoch(epoch)
            images = next(iter(loader)).images
            assert bool((images[..., :4].mean(dim=(1, 2, 3)) > images[..., -4:].mean(dim=(1, 2, 3))).all())

    def test_an_augmented_transform_knows_its_still_counterpart(self):
        gentle = training_transform(input_size=16, augmentation="gentle", crop_pct=0.5)
        still = evaluation_transform(input_size=16, crop_pct=0.5)
        assert gentle.still.description == still.description
        assert still.still is still

    def test_bad_options(self):
        with pytest.raises(UnknownNameError, match="transform option 'crop'"):
            evaluation_transform(crop=1)
        with pytest.raises(InvalidInputError, match="input_size"):
            evaluation_transform(input_size=(1, 8, 8))
        with pytest.raises(UnknownNameError, match="augmentation"):
            training_transform(augmentation="strong")


class TestLoader:
    def batches(self, data, workers, *, epoch=0, seed=0):
        transform = training_transform(input_size=16)
        loader = image_loader(data, transform, batch_size=8, shuffle=True, seed=seed, workers=workers)
        loader.dataset.set_epoch(epoch)
        return list(loader)

    def test_augmentation_depends_on_seed_epoch_and_image_alone(self, data):
        here, there = self.batches(data, 0), self.batches(data, 2)
        for one, other in zip(here, there, strict=True):
            assert torch.equal(one.indices, other.indices)
            assert torch.equal(one.images, other.images)
        assert not torch.equal(here[0].images, self.batches(data, 0, epoch=1)[0].images)
        assert not torch.equal(here[0].indices, self.batches(data, 0, seed=1)[0].indices)

    def test_global_streams_are_left_alone(self, data):
        random.seed(3)
        torch.manual_seed(3)
        before = random.getstate(), torch.get_rng_state()
        self.batches(data, 0)
        assert random.getstate() == before[0]
        # The DataLoader draws its base seed from its own generator too, so nothing moves at all.
        assert torch.equal(torch.get_rng_state(), before[1])

    def test_broken_images_are_left_out_and_listed(self, folder, transform):
        root = folder(count=6)
        (root / "train" / "cat" / "2.png").write_bytes(b"broken")
        batches = list(image_loader(open_images(root), transform, batch_size=3))
        assert [len(batch.labels) for batch in batches] == [2, 3, 3, 3]
        assert batches[0].indices.tolist() == [0, 1]
        assert "2.png" in batches[0].unreadable[0].name

    @pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 2, "workers": -1}])
    def test_bad_options(self, data, transform, options):
        with pytest.raises(InvalidInputError, match="must be an integer"):
            image_loader(data, transform, **options)


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

    def test_training_flags_come_back_even_after_an_error(self, data, transform):
        model = Tiny().train()
        model.linear.eval()
        model.norm.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            extract_features(model, data, transform)
        assert (model.training, model.norm.training, model.linear.training) == (True, True, False)

    def test_any_function_and_workers(self, data, transform):
        features = extract_features(lambda images: images.flatten(1), data, transform, workers=1)
        assert features.values.shape == (30, 192)

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

    def test_cpu_messages_and_other_errors(self):
        error = RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")
        assert is_out_of_memory(error)
        cpu = torch.device("cpu")
        with (
            pytest.raises(DeviceError, match="one image is already too much"),
            memory_advice(1, cpu, "features"),
        ):
            raise error
        with pytest.raises(RuntimeError, match="shapes"), memory_advice(1, cpu, "features"):
            raise RuntimeError("shapes differ")


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

    def test_unreadable_images_are_remembered(self, folder, transform, tmp_path):
        root = folder(count=12)
        (root / "train" / "dog" / "0.png").write_bytes(b"broken")
        data = open_images(root)
        for _ in range(2):
            features = cached_features(nn.Flatten(), data, transform, cache=tmp_path / "cache")
            assert [image.reason[:21] for image in features.unreadable] == ["UnidentifiedImageErro"]

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
