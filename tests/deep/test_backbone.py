"""Backbones: frozen means frozen, θ₀ is a copy, steps from activations equal those from images; splits."""

import copy

import pytest
import timm
import torch
from torch import nn

from condnum.deep import Backbone
from condnum.deep.split_rules import BackboneSplit, split
from condnum.deep.trunk import trainable_chain
from condnum.errors import CondnumError, InvalidInputError, UnknownNameError

#: Backbones of three kinds, small enough for a test; the ResNet has BatchNorm everywhere.
SMALL = {
    "resnet": {"name": "test_resnet"},
    "vit": {"name": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 8, "depth": 2},
    "efficientnet": {"name": "test_efficientnet"},
}


def small(kind, **options):
    return Backbone(**SMALL[kind], num_classes=5, **options)


def images(seed=0):
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def train_steps(logits, parameters):
    """A few SGD steps; timm starts the last scale of a residual block at zero."""
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits(step), torch.arange(4)).backward()
        optimizer.step()


def train(backbone):
    backbone.train()
    train_steps(lambda step: backbone.logits(images(step)), backbone.parameters())


@pytest.mark.parametrize("kind", SMALL)
def test_features_are_timms_and_training_moves_the_split_alone_from_images_or_activations(kind):
    backbone, kept, x = small(kind), small(kind), images()
    with torch.no_grad():
        expected = backbone.model.forward_head(backbone.model.forward_features(x), pre_logits=True)
        assert torch.equal(backbone(x), expected)
        assert torch.equal(backbone.logits(x), backbone.model(x))
    assert expected.shape == (4, backbone.num_features)
    before = copy.deepcopy(backbone.model.state_dict())
    activations = [kept.frozen_activations(images(step)) for step in range(3)]
    assert not any(a.requires_grad for a in activations)
    train(backbone)
    kept.train()
    train_steps(lambda step: kept.head(kept.features_from(activations[step])), kept.parameters())
    assert backbone.checksum == kept.checksum  # bit for bit, on a CPU
    moved = {key for key, value in backbone.model.state_dict().items() if not torch.equal(value, before[key])}
    parts = tuple(f"{part}." for part in (*backbone.split.trainable, backbone.split.head))
    assert all(key.startswith(parts) for key in moved)
    assert not any("running_" in key or "num_batches" in key for key in moved)
    assert all(any(key.startswith(part) for key in moved) for part in parts)


@pytest.mark.parametrize("caller", ["itself", "a parent module"])
def test_train_leaves_frozen_modules_in_evaluation_mode(caller):
    backbone = small("resnet", drop_rate=0.5)
    (backbone if caller == "itself" else nn.Sequential(backbone)).train()
    modules = dict(backbone.model.named_modules())
    training = {name for name, module in modules.items() if module.training}
    assert {"layer4", "fc"} <= training
    assert not any(name.startswith(("layer3", "bn1", "conv1")) for name in training)
    assert not any(isinstance(modules[name], nn.BatchNorm2d) for name in training)
    assert not backbone.model.training  # timm reads this flag for its dropout before the classifier
    assert torch.equal(backbone(images()), backbone(images()))
    assert not any(module.training for module in backbone.eval().modules())


def test_snapshot_is_independent_and_never_trains():
    backbone = small("resnet")
    theta_0, x = backbone.snapshot(), images()
    expected, checksum = theta_0(x), theta_0.checksum
    assert torch.equal(expected, backbone(x).detach())
    train(backbone)
    assert theta_0.checksum == checksum != backbone.checksum
    assert torch.equal(theta_0(x), expected)
    assert not torch.allclose(backbone.eval()(x), expected)
    assert not any(p.requires_grad for p in theta_0.parameters())
    assert not any(m.training for m in theta_0.train().model.modules())
    with pytest.raises(CondnumError, match="cannot be trained"), theta_0.pretraining():
        pass


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_whole_copy_trains_every_module_and_the_backbone_keeps_its_split(name):
    options = {"img_size": 32, "patch_size": 8} if name == "test_vit" else {}
    backbone = Backbone(name, num_classes=5, **options)
    whole = backbone.whole().train()
    trained = {key for key, p in whole.model.named_parameters() if p.requires_grad}
    loose = {key for key, _ in whole.model.named_parameters() if "." not in key}  # cls_token, pos_embed
    assert trained == {key for key, _ in whole.model.named_parameters()} - loose
    assert len(list(backbone.trainable_parameters())) < len(list(whole.trainable_parameters()))
    if name == "test_vit":  # the position is added between two modules
        with pytest.raises(InvalidInputError, match="not a chain of modules"):
            whole.frozen_activations(images())


def test_pretraining_trains_everything_and_gives_the_split_back():
    backbone = small("resnet")
    before = copy.deepcopy(backbone.model.state_dict())
    with backbone.pretraining() as model:
        train_steps(lambda step: model.logits(images()), model.parameters())
    unchanged = [k for k, v in backbone.model.state_dict().items() if torch.equal(v, before[k])]
    assert not [k for k in unchanged if k.endswith(("weight", "running_mean"))]
    assert not backbone.model.conv1[0].weight.requires_grad
    assert backbone.model.layer4[0].conv1.weight.requires_grad
    assert not any(m.training for m in backbone.modules())


@pytest.mark.parametrize(
    ("trainable", "run"),
    [
        ("part", lambda net, h: net.last(net.part(h) + h)),
        ("part", lambda net, h: net.last(net.part(h)).relu()),
        ("act", lambda net, h: net.act(h)),
        ("part", lambda net, h: net.last(net.part(h).tanh())),
        ("part", lambda net, h: net.last(h)),
        ("part", lambda net, h: net.both(net.part(h), h)),
    ],
)
def test_what_is_no_chain_is_refused(trainable, run):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.part, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.act, self.both = nn.ReLU(inplace=True), nn.Bilinear(3, 3, 3)

        def forward_features(self, x):
            return run(self, self.first(x))

    with pytest.raises(InvalidInputError, match="what follows is not a chain of modules"):
        trainable_chain(Net(), (trainable,), torch.randn(64, 3))  # each unit is negative somewhere


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "resnet81"}, UnknownNameError, "did you mean 'resnet"),
        ({"name": "mnist:0-4"}, UnknownNameError, "unknown timm model 'mnist:0-4'"),
        ({"name": "test_resnet", "classifier": "old"}, UnknownNameError, "Choices: loaded, new"),
        ({"name": "test_resnet", "patches": 3}, InvalidInputError, "timm cannot build test_resnet"),
        ({"name": "deit_tiny_distilled_patch16_224"}, InvalidInputError, "2 classifiers"),
    ],
    ids=["name", "no name of timm", "classifier", "argument", "two heads"],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Backbone(**arguments)


@pytest.mark.parametrize(
    ("name", "trainable", "head"),
    [
        ("resnet18", "layer4", "fc"),
        ("vit_base_patch16_clip_224", "blocks.11", "head"),
        ("test_convnext", "stages.3", "head.fc"),
        ("test_efficientnet", "blocks.4", "classifier"),
    ],
)
def test_timms_last_stage_is_trained(name, trainable, head):
    with torch.device("meta"):
        found = split(timm.create_model(name, num_classes=3))
    assert found == BackboneSplit((trainable,), head)


class Trunk(nn.Module):
    """A model without `feature_info`; what ends its trunk is a stack, with a norm behind."""

    def __init__(self, *children):
        super().__init__()
        for index, child in enumerate(children):
            self.add_module(f"part{index}", child)
        self.fc = nn.Linear(2, 3)

    def get_classifier(self):
        return self.fc


def test_last_child_with_a_matrix_and_of_a_stack_its_last_block():
    stack = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    assert split(Trunk(nn.Linear(2, 2), stack, nn.LayerNorm(2))).trainable == ("part1.1",)
    assert split(Trunk(stack, nn.Linear(2, 2), nn.LayerNorm(2))).trainable == ("part1",)
    with pytest.raises(
        InvalidInputError, match=r"no last stage to train; give the name of a part\. Choices: part0"
    ):
        split(Trunk(nn.LayerNorm(2)))


@pytest.mark.parametrize(
    ("trainable", "error", "message"),
    [
        ("layer9", UnknownNameError, r"unknown module 'layer9'; did you mean 'layer.*layer1, .*layer4"),
        ("fc", InvalidInputError, "contains or belongs to the head 'fc'"),
        ("", InvalidInputError, "contains or belongs to the head 'fc'"),
        ("maxpool", InvalidInputError, "no parameters to train.*layer4"),
        ([], InvalidInputError, "trainable is empty"),
    ],
    ids=["unknown", "head", "everything", "no parameters", "none"],
)
def test_the_caller_names_modules(trainable, error, message):
    net = timm.create_model("test_resnet", num_classes=3)
    assert split(net, ["layer3", "layer4.0"]).trainable == ("layer3", "layer4.0")
    assert split(net, "layer4.0").trainable == ("layer4.0",)
    with pytest.raises(error, match=message):
        split(net, trainable)
