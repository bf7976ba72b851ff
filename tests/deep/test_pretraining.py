"""Training a θ₀ on D_P: it learns, it is repeatable, and it can be stopped."""

import pytest
import torch

from condnum.deep import Backbone, evaluation_transform, open_images, pretraining
from condnum.deep.features import extract_features, head_accuracy
from condnum.deep.pretraining import pretrain_backbone
from condnum.errors import InvalidInputError


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
    made = train(net, epochs=6, batch_size=8)
    assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0]
    assert made.history["epoch"].tolist() == list(range(1, 7))
    # the accuracy of the head is that of the logits
    images = torch.stack([small(net)(data.image(i)) for i in range(len(data))])
    with torch.inference_mode():
        expected = float((net.logits(images).argmax(dim=1).numpy() == data.labels).mean())
    assert head_accuracy(net, extract_features(net, data, small(net))) == expected > 0.7


def test_rate_rises_and_falls_and_the_global_generators_are_untouched(monkeypatch):
    state, other = torch.get_rng_state(), backbone()
    monkeypatch.setattr(pretraining, "_WARMUP", 1 / 3)
    made = train(other, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    # the last of three steps of each epoch: the peak, then half a cosine over six steps
    assert made.history["learning_rate"].tolist() == pytest.approx([1e-3, 7.5e-4, 1e-3 * 0.0669873], rel=1e-4)
    same, different = backbone(), backbone()
    train(same, seed=5)
    train(different, seed=6)
    assert same.checksum == other.checksum != different.checksum


def test_a_stopped_run_ends_like_an_undisturbed_one(tmp_path, monkeypatch):
    undisturbed, resumed = backbone(), backbone()
    whole = train(undisturbed, seed=1)

    def stop(step, **_):
        if step == 7:  # the first of the third epoch
            raise KeyboardInterrupt

    file = tmp_path / "state.checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "report_event", stop)
        with pytest.raises(KeyboardInterrupt):
            train(backbone(), seed=1, checkpoint=file)
    rest = train(resumed, seed=1, checkpoint=file)
    assert resumed.checksum == undisturbed.checksum
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 3}, r"head of test_resnet has 3 outputs.*has 2 classes"),
        ({"learning_rate": 1e30}, r"the loss is (nan|inf).*lower learning_rate=1e\+30"),
    ],
    ids=str,
)
def test_bad_options(options, message):
    with pytest.raises(InvalidInputError, match=message):
        train(backbone(options.pop("classes", 2)), **options)
