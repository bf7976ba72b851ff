"""Images as torch users have them: data sets, loaders of tuples or dictionaries, tensors; runs on them."""

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from condnum.deep import (
    Backbone,
    DeepSettings,
    evaluation_transform,
    immunize_backbone,
    rir_theta0,
)
from condnum.deep.features import extract_features
from condnum.deep.image_sets import as_images
from condnum.errors import InvalidInputError

from .test_backbone import Encoder, vit

SIDE = 32


class Items(Dataset):
    """Noisy images of two classes, as pictures or tensors, in pairs or dictionaries."""

    def __init__(self, read, count=48, seed=0):
        self.read, self.labels = read, np.arange(count) % 2
        drawn = np.random.default_rng(seed).integers(0, 200, (count, SIDE, SIDE, 3))
        self.pixels = (drawn + 50 * self.labels[:, None, None, None]).astype(np.uint8)

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
    whole = {"crop_pct": 1.0, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    transform = None if data.tensors else evaluation_transform(input_size=SIDE, **whole)
    rows = extract_features(nn.Flatten(), data, transform).values
    assert np.allclose(rows, KINDS["tensors"][0].flatten(1).numpy(), atol=1e-6)
    assert data.checksum != as_images(Items(PAIRS.read, seed=1), "D_P").checksum


def test_a_folder_is_opened_and_a_data_set_of_torchvision_has_its_images(folder):
    root = folder(count=3)
    mine, theirs = as_images(root, "D_P"), as_images(torchvision.datasets.ImageFolder(root / "train"), "D_P")
    assert mine.classes == theirs.classes == ("cat", "dog")
    assert np.array_equal(np.asarray(mine.image(4)), np.asarray(theirs.image(4)))
    with pytest.raises(InvalidInputError, match="needs a transform"):
        extract_features(nn.Flatten(), theirs)


@pytest.mark.parametrize("net", ["torchvision", "Hugging Face"])
def test_nets_of_other_libraries_are_immunized_and_measured_on_loaders(net):
    torch.manual_seed(0)
    made = Encoder(2) if net == "Hugging Face" else vit()
    if net == "torchvision":
        nn.init.normal_(made.heads.head.weight)  # which torchvision makes 0
    backbone = Backbone(made, trainable=None if net == "Hugging Face" else "encoder.layers.encoder_layer_0")
    D_P, D_H = KINDS["loader of dictionaries"], (KINDS["tensors"][0].flip(3), PAIRS.labels)
    settings = DeepSettings(steps=2, record_every=2, batch_size=20, group_size=20, groups=1, keep="last")
    found = immunize_backbone(backbone, D_P, D_H, settings=settings, device="cpu")
    assert (found.stop_reason, found.steps) == ("steps", 2)
    assert np.isfinite(found.history[["supervised", "well", "ill"]]).all(axis=None)
    measured = rir_theta0(found.theta_0, found.theta_I, D_P, D_H, groups=1, group_size=40)
    assert np.isfinite([measured.compact.rir, measured.ridge.rir]).all()
    theta = found.theta_I.model
    assert type(theta) is type(made)
    assert not all(torch.equal(*pair) for pair in zip(theta.parameters(), made.parameters(), strict=True))


class Endless(IterableDataset):
    def __iter__(self):
        yield PAIRS[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Endless(), "without a length"),
        (Items(lambda pixels, _: tensor(pixels)), r"expected \(image, label\) .* got a Tensor"),
        (Items(lambda pixels, y: (torch.from_numpy(pixels), y)), r"tensors of torch\.uint8; give floats"),
        (Items(lambda pixels, y: (torch.rand(3, 8, 8), y)), "changes its images at random; leave that to"),
    ],
    ids=["iterable", "no label", "uint8", "random"],
)
def test_what_is_no_labeled_data_set_is_refused(data, message):
    with pytest.raises(InvalidInputError, match=message):
        as_images(data, "D_H")
