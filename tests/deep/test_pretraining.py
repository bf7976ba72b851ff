"""Training a θ₀ on D_P: it learns, it is repeatable, and it can be stopped."""

import pytest
import torch

from condnum.deep import Backbone, evaluation_transform, extract_features, open_images
from condnum.deep.features import head_accuracy
from condnum.deep.pretraining import pretrain_backbone
from condnum.errors import CancelledError, InvalidInputError, UnknownNameError


def backbone(seed=0, classes=2):
    return Backbone("test_resnet", num_classes=classes, seed=seed)


def small(net):
    return evaluation_transform(net, input_size=16, crop_pct=1.0)


def digits(split="train", limit=30):
    return open_images("digits-8x8:0-1", split, limit=limit)


def train(net, **options):
    arguments = {"epochs": 3, "batch_size": 16, "device": "cpu", "transform": small(net), **options}
    return pretrain_backbone(net, arguments.pop("data", digits()), **arguments)


class TestTraining:
    def test_learns_to_tell_two_digits_apart(self):
        net = backbone()
        made = train(net, epochs=8, test=digits("test"), test_transform=small(net))
        assert made.test_accuracy >= 0.95
        assert made.history["loss"].iloc[-1] < made.history["loss"].iloc[0]
        assert made.history["epoch"].tolist() == list(range(1, 9))
        assert made.images == 60
        features = extract_features(net, digits("test"), small(net))
        assert made.test_accuracy == head_accuracy(net, features)

    def test_same_seed_same_weights_and_global_generators_untouched(self):
        state = torch.get_rng_state()
        first, second, other = backbone(), backbone(), backbone()
        train(first, seed=4)
        train(second, seed=4)
        train(other, seed=5)
        assert first.checksum == second.checksum != other.checksum
        assert torch.equal(torch.get_rng_state(), state)


class TestCheckpoint:
    def test_a_stopped_run_ends_like_an_undisturbed_one(self, tmp_path):
        undisturbed, stopped, resumed = backbone(), backbone(), backbone()
        whole = train(undisturbed, seed=1)

        def stop(progress):
            if progress.epoch == 2:
                raise CancelledError("enough")

        file = tmp_path / "state.checkpoint"
        with pytest.raises(CancelledError, match="enough"):
            train(stopped, seed=1, checkpoint=file, on_progress=stop)
        rest = train(resumed, seed=1, checkpoint=file)
        assert resumed.checksum == undisturbed.checksum
        assert rest.history["loss"].tolist() == whole.history["loss"].tolist()


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"epochs": 0}, InvalidInputError, "epochs must be an integer of at least 1, got 0"),
            ({"batch_size": 1}, InvalidInputError, "batch_size must be an integer of at least 2"),
            ({"optimizer": "adam"}, UnknownNameError, "unknown optimizer 'adam'; did you mean 'adamw'"),
            ({"learning_rate": 0.0}, InvalidInputError, "learning_rate must be positive and finite"),
            ({"warmup": 1.0}, InvalidInputError, "warmup must be a share"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
    )
    def test_options(self, options, error, message):
        with pytest.raises(error, match=message):
            train(backbone(), **options)

    def test_head_of_another_size(self):
        with pytest.raises(InvalidInputError, match=r"head of test_resnet has 3 outputs.*has 2 classes"):
            train(backbone(classes=3))

    def test_loss_that_is_not_finite(self):
        with pytest.raises(InvalidInputError, match=r"the loss is (nan|inf).*lower learning_rate=1e\+30"):
            train(backbone(), optimizer="sgd", learning_rate=1e30, warmup=0.0, epochs=3)

    def test_unreadable_images_are_counted_and_listed(self, folder):
        root = folder(count=12)
        (root / "train" / "cat" / "0.png").write_bytes(b"no image")
        net = backbone()
        made = train(net, data=open_images(root), epochs=2)
        assert [image.name.endswith("0.png") for image in made.unreadable] == [True]


class TestHeadAccuracy:
    def test_is_that_of_the_logits(self):
        net = backbone(classes=2)
        data, transform = digits("test"), small(net)
        features = extract_features(net, data, transform)
        images = torch.stack([transform(data.image(i)) for i in range(len(data))])
        with torch.inference_mode():
            expected = float((net.logits(images).argmax(dim=1).numpy() == data.labels).mean())
        assert head_accuracy(net, features) == expected
