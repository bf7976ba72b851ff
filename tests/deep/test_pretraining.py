"""Training a θ₀ on D_P: it learns, it is repeatable, and it can be stopped."""

import pytest
import torch

from condnum.deep import Backbone, evaluation_transform, extract_features, open_images, pretrain_backbone
from condnum.deep.features import head_accuracy
from condnum.errors import CancelledError, InvalidInputError, UnknownNameError


def backbone(classes=2):
    return Backbone("test_resnet", num_classes=classes)


def small(net):
    return evaluation_transform(net, input_size=16, crop_pct=1.0)


def digits(split="train"):
    return open_images("digits-8x8:0-1", split, limit=30)


def train(net, **options):
    arguments = {"epochs": 3, "batch_size": 16, "device": "cpu", "transform": small(net), **options}
    return pretrain_backbone(net, digits(), **arguments)


def test_learns_to_tell_two_digits_apart():
    net, data = backbone(), digits("test")
    made = train(net, epochs=8, test=data, test_transform=small(net))
    assert made.test_accuracy >= 0.95
    assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0]
    assert made.history["epoch"].tolist() == list(range(1, 9))
    assert made.images == 60
    # the accuracy of the head is that of the logits
    images = torch.stack([small(net)(data.image(i)) for i in range(len(data))])
    with torch.inference_mode():
        expected = float((net.logits(images).argmax(dim=1).numpy() == data.labels).mean())
    assert made.test_accuracy == head_accuracy(net, extract_features(net, data, small(net))) == expected


def test_rate_rises_and_falls_and_the_global_generators_are_untouched():
    state, other = torch.get_rng_state(), backbone()
    made = train(other, seed=5, warmup=1 / 3)
    assert torch.equal(torch.get_rng_state(), state)
    # the last of four steps of each epoch: the peak, then half a cosine over eight steps
    assert made.history["learning_rate"].tolist() == pytest.approx(
        [1e-3, 1e-3 * 0.6913417, 1e-3 * 0.0380602], rel=1e-4
    )
    same, different = backbone(), backbone()
    train(same, seed=5, warmup=1 / 3)
    train(different, seed=6, warmup=1 / 3)
    assert same.checksum == other.checksum != different.checksum


def test_a_stopped_run_ends_like_an_undisturbed_one(tmp_path):
    undisturbed, resumed = backbone(), backbone()
    whole = train(undisturbed, seed=1)

    def stop(progress):
        if progress.epoch == 2:
            raise CancelledError("enough")

    file = tmp_path / "state.checkpoint"
    with pytest.raises(CancelledError, match="enough"):
        train(backbone(), seed=1, checkpoint=file, on_progress=stop)
    rest = train(resumed, seed=1, checkpoint=file)
    assert resumed.checksum == undisturbed.checksum
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epochs": 0}, InvalidInputError, "epochs must be an integer of at least 1, got 0"),
        ({"optimizer": "adam"}, UnknownNameError, "unknown optimizer 'adam'; did you mean 'adamw'"),
        ({"learning_rate": 0.0}, InvalidInputError, "learning_rate must be positive and finite"),
        ({"warmup": 1.0}, InvalidInputError, "warmup must be a share"),
        (
            {"optimizer": "sgd", "learning_rate": 1e30, "warmup": 0.0},
            InvalidInputError,
            r"the loss is (nan|inf).*lower learning_rate=1e\+30",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        train(backbone(), **options)


def test_head_of_another_size():
    with pytest.raises(InvalidInputError, match=r"head of test_resnet has 3 outputs.*has 2 classes"):
        train(backbone(classes=3))
