"""Erasure of a backbone: the ridge heads against scikit-learn, the gradient, and a whole run."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from condnum.deep import Backbone, DeepSettings, immunize_backbone
from condnum.deep.hooks import pooled_outputs
from condnum.deep.images import image_loader
from condnum.deep.methods import NET_METHODS
from condnum.deep.parts import block_names
from condnum.deep.training.erasure import (
    DISTANCE,
    LEFT,
    PENALTIES,
    ErasureObjective,
    ridge_outputs,
    ridge_r2,
    transformed_images,
)
from condnum.deep.training.samples import Batch
from condnum.deep.training.settings import default_settings

SETTINGS = DeepSettings(steps=6, batch_size=100, record_every=3, groups=1)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def run(backbone, D_P, D_H, transform):
    def erased(chosen=SETTINGS, **options):
        shared = {"transform_P": transform, "transform_H": transform, "device": "cpu", **options}
        return immunize_backbone(backbone, D_P, D_H, method="erase", settings=chosen, **shared)

    return erased


@pytest.mark.parametrize("columns", [3, 40], ids=["fewer columns than rows", "more"])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_ridge_outputs_are_those_of_scikit_learn(columns, penalty):
    X, other = rows(20, columns) * 100 + 7, rows(9, columns, seed=1)
    y = torch.arange(20) % 3
    centered = X - X.mean(dim=0)
    alpha = penalty * float(centered.square().sum()) / len(X)
    expected = Ridge(alpha=alpha).fit(X, nn.functional.one_hot(y)).predict(other)
    assert ridge_outputs(X, y, other, 3, penalty).numpy() == pytest.approx(expected, rel=1e-8)


def test_ridge_r2_is_near_one_for_labels_in_the_features_and_zero_for_what_says_nothing():
    y = torch.arange(80) // 2 % 4  # the same in both halves
    assert float(ridge_r2(nn.functional.one_hot(y).double(), y, 4)) > 0.95
    assert float(ridge_r2(torch.ones(80, 5), y, 4)) <= 0
    assert float(ridge_r2(rows(80, 5), y, 4)) < 0.1


def test_blocks_are_read_while_the_net_runs_and_no_hook_stays(backbone):
    with pooled_outputs(backbone.model, block_names(backbone.model)) as outputs:
        backbone(torch.zeros(2, 3, 16, 16))
    assert list(outputs) == block_names(backbone.model)
    assert all(values.shape[0] == 2 and values.ndim == 2 for values in outputs.values())
    backbone(torch.zeros(3, 3, 16, 16))
    assert all(len(values) == 2 for values in outputs.values())


def test_a_random_change_is_one_for_all_images_and_its_key_decides_it():
    images = rows(6, 3, 16, 16).float()
    found = [transformed_images(images, (0, step)) for step in range(12)]
    assert torch.equal(found[0], transformed_images(images, (0, 0)))
    assert torch.allclose(found[3][:2], transformed_images(images[:2], (0, 3)), atol=1e-5)
    assert len({part.shape[-1] for part in found}) > 3
    assert {8 <= part.shape[-1] <= 32 for part in found} == {True}
    assert transformed_images(images, (0, 0), resize=False).shape == images.shape
    ones = [transformed_images(torch.ones(1, 3, 8, 8), (0, step)).mean() for step in range(12)]
    assert min(ones) < 0 < max(ones)


def test_what_is_read_of_transformed_images_counts_half(D_P, D_H, transform):
    net = Backbone("test_resnet", num_classes=5, seed=1).whole().double().train()
    found = next(iter(image_loader(D_H.limit(20), transform, batch_size=100)))
    H = Batch(found.images, found.labels)
    changed = H._replace(inputs=transformed_images(H.inputs, (0, 7)))
    values = []
    for batch, chosen in (
        (H, SETTINGS), (changed, SETTINGS), (H, SETTINGS.with_overrides(transformed=True)),
    ):  # fmt: skip
        step = ErasureObjective(net, chosen, harmful_classes=len(D_H.classes))
        nothing = Batch(H.inputs[:0], H.labels[:0])
        values.append(step.backward({"benign": nothing, "harmful": batch}, {"supervised": 1.0}, (0, 7))[LEFT])
    assert values[2] == pytest.approx((values[0] + values[1]) / 2, rel=1e-6)


def test_the_gradient_is_that_of_all_three_parts(D_P, D_H, transform):
    """Central differences away from θ₀, where the distance has no slope, on a net without kinks."""
    net = Backbone("test_vit", num_classes=5, seed=1, img_size=16, patch_size=8).whole().double().train()
    loaders = [image_loader(data.limit(20), transform, batch_size=100) for data in (D_P, D_H)]
    both = [Batch(found.images, found.labels) for found in (next(iter(loader)) for loader in loaders)]
    tasks = dict(zip(("benign", "harmful"), both, strict=True))
    step = ErasureObjective(net, SETTINGS, harmful_classes=len(D_H.classes))
    way = [rows(*p.shape, seed=2) * p.detach().abs().mean() for p in step.theta]

    def move(length):
        with torch.no_grad():
            for p, direction in zip(step.theta, way, strict=True):
                p.add_(length * direction)

    def value():
        found = step.backward(tasks, {"supervised": 0.7}, (0,))
        return 0.7 * (found["supervised"] + found[DISTANCE]) + found[LEFT]

    move(1e-2)
    value()
    along = sum(float((p.grad * d).sum()) for p, d in zip(step.theta, way, strict=True))
    move(1e-5)
    above = value()
    move(-2e-5)
    assert along == pytest.approx((above - value()) / 2e-5, rel=1e-4)


def test_every_block_is_trained_less_is_read_and_the_split_stays(run, backbone):
    before = copy.deepcopy(backbone.state_dict())
    result = run(SETTINGS.with_overrides(steps=16, record_every=8, learning_rate=3e-3, keep="last"))
    after = result.theta_I.state_dict()
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())
    moved = {key for key, value in after.items() if not torch.equal(value, before[key])}
    blocks = [f"model.{name}." for name in block_names(backbone.model)]
    assert all(any(key.startswith(block) for key in moved) for block in blocks)
    assert not any("running" in key for key in moved)
    assert result.theta_I.trainable == backbone.trainable
    left = result.history[LEFT].to_numpy()
    assert left[-5:].mean() < 0.8 * left[:5].mean()


def test_what_does_not_decode_is_left_out_of_a_step(D_H, transform):
    """A batch of which no image decodes, and one of which a single image does, say nothing of D_H."""
    net = Backbone("test_resnet", num_classes=5, seed=1).whole().double().train()
    step = ErasureObjective(net, SETTINGS, harmful_classes=len(D_H.classes))
    found = next(iter(image_loader(D_H.limit(4), transform, batch_size=100)))
    nothing, one, some = (Batch(found.images[:k], found.labels[:k]) for k in (0, 1, 9))
    for P, H, parts in ((some, nothing, 2), (nothing, some, 1), (some, one, 2), (nothing, nothing, 0)):
        values = step.backward({"benign": P, "harmful": H}, {"supervised": 1.0}, (0,))
        assert len(values) == parts
        assert all(np.isfinite([*values.values(), step.gradient_norm]))
        assert (step.gradient_norm > 0) == (parts > 0)


def test_without_settings_the_method_has_its_own(run, monkeypatch):
    known = {**NET_METHODS["erase"].defaults, "steps": 2}
    monkeypatch.setitem(NET_METHODS, "erase", replace(NET_METHODS["erase"], defaults=known))
    found = run(None).settings
    assert found == default_settings("erase") == DeepSettings(**known)
