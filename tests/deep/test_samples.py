"""Images as a net takes them: transformed, only those that decode, kept, in an order of their own."""

import itertools

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from condnum.deep import Backbone, Samples, evaluation_transform, open_images
from condnum.deep.samples import TaskStream
from condnum.errors import CondnumError


def test_the_transform_is_timms_own_and_of_the_size_that_a_net_was_built_for():
    model = timm.create_model("resnet18", pretrained=False)
    config = timm.data.resolve_data_config({}, model=model)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 260, 3)).astype(np.uint8))
    ours = evaluation_transform(model)
    assert torch.equal(ours(image), timm.data.create_transform(**config, is_training=False)(image))
    assert evaluation_transform(Backbone("test_vit", img_size=64)).input_size == (3, 64, 64)
    with pytest.raises(CondnumError, match="Linear has no `pretrained_cfg`"):
        evaluation_transform(nn.Linear(2, 2))


def test_rows_that_do_not_decode_are_left_out_and_named_and_many_are_refused(folder, transform, backbone):
    root = folder(count=12)
    (root / "train" / "cat" / "0.png").write_bytes(b"broken")
    plain = Samples(open_images(root), transform)
    for samples in (plain, plain.keep(backbone)):
        found = samples.features(backbone)
        assert found.indices.tolist() == list(range(1, 24))
        assert found.labels.tolist() == [0] * 11 + [1] * 12
        assert [image.name.endswith("0.png") for image in samples.unreadable] == [True]
        assert [len(batch.labels) for batch in samples.batches([np.arange(3), np.array([0])])] == [2, 0]
        assert len(samples.tensors()[0]) == 23
    for i in (1, 2):
        (root / "train" / "cat" / f"{i}.png").write_bytes(b"broken")
    with pytest.raises(CondnumError, match="3 of 24 images cannot be decoded"):
        Samples(open_images(root), transform).features(backbone)


class StoppedError(Exception):
    """What ends a run in the middle of a pass."""


def test_kept_activations_give_the_features_of_images_and_no_pass_is_repeated(
    backbone, D_H, transform, tmp_path, monkeypatch
):
    passed, stop, known = [], [2], Backbone.frozen_activations

    def watched(self, images):
        if len(images) > 1:  # a single one tells the shape
            if len(passed) == stop[0]:
                raise StoppedError
            passed.append(len(images))
        return known(self, images)

    monkeypatch.setattr(Backbone, "frozen_activations", watched)
    with pytest.raises(StoppedError):
        Samples(D_H, transform).keep(backbone, tmp_path)
    stop[0] = 99
    kept = Samples(D_H, transform).keep(backbone, tmp_path)
    assert sum(passed) == len(D_H) == 160
    for parameter in backbone.trainable_parameters():
        parameter.data *= 1.5  # another net on the same trunk
    direct = Samples(D_H, transform).features(backbone)

    def is_direct(samples):
        found = samples.features(backbone)
        assert np.allclose(found.values, direct.values, rtol=1e-5, atol=1e-5 * np.abs(direct.values).max())

    is_direct(kept)
    is_direct(Samples(D_H, transform).keep(backbone, tmp_path))
    assert sum(passed) == 160
    for part in ("rows", "done"):
        (file,) = tmp_path.glob(f"*.{part}.npy")
        file.write_bytes(file.read_bytes()[:-40])
        is_direct(Samples(D_H, transform).keep(backbone, tmp_path))
    assert sum(passed) == 3 * 160
    Samples(D_H, transform).keep(Backbone("test_resnet", num_classes=5, seed=2), tmp_path)  # another trunk
    assert sum(passed) == 4 * 160


@pytest.mark.parametrize("few", [0, 2])
def test_the_order_is_a_function_of_seed_and_step_alone(D_H, transform, few):
    kept, rows = Samples(D_H, transform).keep(), np.arange(10, 57)

    def order(samples, key, first, count):
        stream = TaskStream(samples, rows, 20, key, few).steps(first)
        return [batch.indices.tolist() for batch in itertools.islice(stream, count)]

    whole = order(kept, (3, 1), 0, 8)
    assert order(Samples(D_H, transform), (3, 1), 0, 8) == whole
    assert all(order(kept, (3, 1), first, 2) == whole[first : first + 2] for first in (1, 2, 5))
    assert all(len(set(batch)) == len(batch) and set(batch) <= set(rows) for batch in whole)
    assert not any(order(kept, key, 0, 8) == whole for key in ((4, 1), (3, 0)))
    if few:
        assert {len(np.unique(D_H.labels[batch])) for batch in whole} == {few}
        assert len(np.unique(D_H.labels[np.concatenate(whole)])) > few
    else:
        assert all(len(set(one + two)) == 40 for one, two in zip(whole[::2], whole[1::2], strict=True))
