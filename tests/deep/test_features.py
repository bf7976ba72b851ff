"""Feature extraction and its cache."""

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import evaluation_transform, open_images
from condnum.deep.features import extract_features
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
