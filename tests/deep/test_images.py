"""From images to batches: timm's transforms, random ones by seed, nets of other libraries on loaders."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from condnum.deep import (
    Backbone,
    DeepSettings,
    as_images,
    evaluation_transform,
    immunize_backbone,
    open_images,
    rir_theta0,
)
from condnum.deep.features import extract_features
from condnum.deep.images import image_loader
from condnum.deep.transforms import training_transform
from condnum.errors import InvalidInputError

from .test_backbone import Encoder, vit


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


def test_tensors_take_no_transform_and_pictures_need_one():
    with pytest.raises(InvalidInputError, match="needs a transform"):
        extract_features(nn.Flatten(), open_images("digits-8x8:0-1", limit=2))
    tensors = as_images((torch.rand(4, 3, 8, 8), torch.arange(4) % 2), "D_P")
    with pytest.raises(InvalidInputError, match="holds tensors, which no transform changes"):
        extract_features(nn.Flatten(), tensors, evaluation_transform(input_size=8))


@pytest.mark.parametrize("net", ["torchvision", "Hugging Face"])
def test_nets_of_other_libraries_are_immunized_and_measured_on_loaders(net):
    torch.manual_seed(0)
    made = Encoder(2) if net == "Hugging Face" else vit()
    if net == "torchvision":
        nn.init.normal_(made.heads.head.weight)  # which torchvision makes 0
    backbone = Backbone(made, trainable=None if net == "Hugging Face" else "encoder.layers.encoder_layer_0")
    labels, images = torch.arange(48) % 2, torch.rand(48, 3, 32, 32)
    images += 0.2 * labels[:, None, None, None]
    records = [{"pixel_values": image, "labels": int(y)} for image, y in zip(images, labels, strict=True)]
    D_P, D_H = DataLoader(records, batch_size=7), (images.flip(3), labels)
    settings = DeepSettings(steps=2, record_every=2, batch_size=20, group_size=20, groups=1, keep="last")
    found = immunize_backbone(backbone, D_P, D_H, settings=settings, device="cpu")
    assert (found.stop_reason, found.steps) == ("steps", 2)
    assert np.isfinite(found.history[["supervised", "well", "ill"]]).all(axis=None)
    measured = rir_theta0(found.theta_0, found.theta_I, D_P, D_H, groups=1, group_size=40)
    assert np.isfinite([measured.compact.rir, measured.ridge.rir]).all()
    theta = found.theta_I.model
    assert type(theta) is type(made)
    assert not all(torch.equal(*pair) for pair in zip(theta.parameters(), made.parameters(), strict=True))
