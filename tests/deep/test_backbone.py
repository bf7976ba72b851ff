"""Backbones of any library: what is frozen stays, θ₀ is a copy, activations replace images."""

import copy

import pytest
import timm
import torch
import torchvision
from torch import nn

from condnum.deep import Backbone, load_backbone, save_backbone
from condnum.deep.hooks import Replay
from condnum.deep.parts import choose_trainable, find_head
from condnum.errors import CondnumError, InvalidInputError, UnknownNameError


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.output = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, hidden_states, head_mask=None):
        return (hidden_states + self.output(self.attention(hidden_states).tanh()),)


class Encoder(nn.Module):
    """A vision model as Hugging Face makes them: tuples between layers, a mapping in the end."""

    def __init__(self, classes):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 17, 12))
        self.embeddings = nn.Conv2d(3, 12, 8, stride=8)
        self.layer = nn.ModuleList(Layer() for _ in range(3))
        self.layernorm = nn.LayerNorm(12)
        self.classifier = nn.Linear(12, classes)

    def forward(self, pixel_values, labels=None):
        hidden = self.embeddings(pixel_values).flatten(2).mT
        hidden = torch.cat([hidden.mean(1, keepdim=True), hidden], dim=1) + self.position
        for layer in self.layer:
            hidden = layer(hidden_states=hidden)[0]
        hidden = self.layernorm(hidden)
        return {"logits": self.classifier(hidden[:, 0])}


def vit():
    return torchvision.models.VisionTransformer(32, 8, 2, 3, 24, 48, num_classes=5)


#: A net, options of `Backbone`, and the part and head that are found.
NETS = {
    "test_resnet": ("test_resnet", {"num_classes": 5}, "layer4", "fc"),
    "timm ViT": ("test_vit", {"num_classes": 5, "img_size": 32, "patch_size": 8}, "blocks.5", "head"),
    "timm ConvNeXt": ("convnext_atto", {"num_classes": 5}, "stages.3", "head.fc"),
    "timm GhostNet": ("ghostnet_050", {"num_classes": 5}, ("blocks.7", "conv_head"), "classifier"),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=5), {}, "layer4", "fc"),
    "mobilenet": (
        lambda: torchvision.models.mobilenet_v3_small(num_classes=5), {}, "features.12", "classifier.3"
    ),
    "ViT": (vit, {}, "encoder.layers.encoder_layer_1", "heads.head"),
    "Hugging Face": (lambda: Encoder(5), {}, "layer.2", "classifier"),
}  # fmt: skip


def made(kind, **changes):
    torch.manual_seed(0)
    net, options, _, _ = NETS[kind]
    return Backbone(net if isinstance(net, str) else net(), **{**options, **changes})


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


@pytest.mark.parametrize("kind", NETS)
def test_training_moves_part_and_head_alone_from_images_or_activations(kind):
    backbone, kept, x = made(kind), made(kind), images()
    assert (backbone.trainable, backbone.head_name, backbone.num_classes) == (
        (NETS[kind][2],) if isinstance(NETS[kind][2], str) else NETS[kind][2],
        NETS[kind][3],
        5,
    )
    with torch.no_grad():
        whole = backbone.model(x)
        whole = whole["logits"] if isinstance(whole, dict) else whole
        assert torch.allclose(backbone.logits(x), whole, atol=1e-5)
    assert backbone(x).shape == (4, backbone.num_features)
    before = copy.deepcopy(backbone.model.state_dict())
    activations = [kept.frozen_activations(images(step)) for step in range(3)]
    assert not any(a.requires_grad for a in activations)
    assert activations[0].shape[1:] != x.shape[1:]  # the trunk has run
    train(backbone)
    kept.train()
    torch.manual_seed(0)
    train_steps(lambda step: kept.head(kept(activations[step], activations=True)), kept.parameters())
    pairs = zip(backbone.state_dict().values(), kept.state_dict().values(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)
    assert not any("forward" in vars(part) or part._forward_pre_hooks for part in kept.modules())
    moved = {key for key, value in backbone.model.state_dict().items() if not torch.equal(value, before[key])}
    parts = tuple(f"{part}." for part in (*backbone.trainable, backbone.head_name))
    assert all(key.startswith(parts) for key in moved)
    assert not any("running_" in key or "num_batches" in key for key in moved)
    assert all(any(key.startswith(part) for key in moved) for part in parts)


def test_a_module_stays_as_it_is_and_comes_back_from_its_file(tmp_path):
    net = torchvision.models.shufflenet_v2_x0_5(num_classes=5).train()
    before = copy.deepcopy(net.state_dict())
    backbone = Backbone(net, trainable=["stage4"])
    train(backbone)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    path = save_backbone(backbone, tmp_path / "theta_I.safetensors")
    again = load_backbone(path, net)
    assert (again.checksum, again.trainable) == (backbone.checksum, ("stage4",))
    with pytest.raises(
        InvalidInputError, match="holds a ShuffleNetV2, which is not a timm model; give a module"
    ):
        load_backbone(path)


@pytest.mark.parametrize("caller", ["itself", "a parent module"])
def test_train_leaves_frozen_modules_in_evaluation_mode(caller):
    backbone = made("test_resnet", drop_rate=0.5)
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
    backbone = made("test_resnet")
    theta_0, x = backbone.snapshot(), images()
    expected, checksum = theta_0(x), theta_0.checksum
    train(backbone)
    assert theta_0.checksum == checksum != backbone.checksum
    assert torch.equal(theta_0(x), expected)
    assert not any(p.requires_grad for p in theta_0.parameters())
    assert not any(m.training for m in theta_0.train().model.modules())
    with pytest.raises(CondnumError, match="cannot be trained"), theta_0.pretraining():
        pass


@pytest.mark.parametrize("kind", ["test_resnet", "timm ViT"])
def test_a_whole_copy_trains_every_module_and_starts_from_the_images(kind):
    backbone = made(kind)
    whole = backbone.whole().train()
    trained = {key for key, p in whole.model.named_parameters() if p.requires_grad}
    loose = {key for key, _ in whole.model.named_parameters() if "." not in key}  # cls_token, pos_embed
    assert trained == {key for key, _ in whole.model.named_parameters()} - loose
    assert len(list(backbone.trainable_parameters())) < len(list(whole.trainable_parameters()))
    assert torch.equal(whole.frozen_activations(images()), images())


def test_pretraining_trains_everything_and_gives_the_split_back():
    backbone = made("test_resnet")
    before = copy.deepcopy(backbone.model.state_dict())
    with backbone.pretraining() as model:
        train_steps(lambda step: model(images()), model.parameters())
    unchanged = [k for k, v in backbone.model.state_dict().items() if torch.equal(v, before[k])]
    assert not [k for k in unchanged if k.endswith(("weight", "running_mean"))]
    assert not backbone.model.conv1[0].weight.requires_grad
    assert backbone.model.layer4[0].conv1.weight.requires_grad
    assert not any(m.training for m in backbone.modules())


@pytest.mark.parametrize(
    ("trainable", "run"),
    [
        ("part", lambda net, h: net.last(net.part(h) + h)),
        ("act", lambda net, h: net.last(net.act(h))),
        ("part", lambda net, h: net.last(net.both(net.part(h), h))),
        ("part", lambda net, h: net.last(h)),
    ],
    ids=["residual", "in place", "two inputs", "never called"],
)
def test_a_net_that_reads_its_trunk_again_is_not_run_from_activations(trainable, run):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.part, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.act, self.both = nn.ReLU(inplace=True), nn.Bilinear(3, 3, 3)

        def forward(self, x):
            return run(self, self.first(x))

    with pytest.raises(InvalidInputError, match="later modules read the trunk too; train it on images"):
        Replay.of(Net(), "last", (trainable,), torch.randn(64, 3))  # each unit is negative somewhere


def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("net", "options", "error", "message"),
    [
        ("resnet81", {}, UnknownNameError, "did you mean 'resnet"),
        ("test_resnet", {"patches": 3}, InvalidInputError, "timm cannot build test_resnet"),
        ("deit_tiny_distilled_patch16_224", {}, InvalidInputError, "2 classifiers"),
        (plain(), {"num_classes": 3}, InvalidInputError, "num_classes has no effect on a module"),
        (plain()[:3], {}, InvalidInputError, "no linear layer at its end: give the name .* as head="),
        (plain(), {"head": "fc"}, InvalidInputError, "Sequential has no module 'fc'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments(net, options, error, message):
    with pytest.raises(error, match=message):
        Backbone(net, **options)


def test_a_head_that_is_given_no_matrix_is_refused():
    with pytest.raises(
        InvalidInputError, match=r"head '1' of Sequential is given \(4, 4, 1, 1\), not pooled"
    ):
        Backbone(plain(), head="1", trainable="0")(torch.zeros(4, 3, 3, 3))


class Trunk(nn.Module):
    """A model without `feature_info`; what ends its trunk is a stack, with a norm behind."""

    def __init__(self, *children):
        super().__init__()
        for index, child in enumerate(children):
            self.add_module(f"part{index}", child)
        self.fc = nn.Linear(2, 3)


@pytest.mark.parametrize(
    ("trainable", "error", "message"),
    [
        ("layer9", UnknownNameError, "unknown module 'layer9'; did you mean 'layer"),
        ("fc", InvalidInputError, "contains or belongs to the head 'fc'"),
        ("maxpool", InvalidInputError, "no parameters to train"),
        ([], InvalidInputError, "trainable is empty"),
    ],
    ids=["unknown", "head", "no parameters", "none"],
)
def test_the_last_stage_unless_the_caller_names_modules(trainable, error, message):
    def chosen(net, names=None):
        return choose_trainable(net, find_head(net), names)

    stack = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    assert chosen(Trunk(nn.Linear(2, 2), stack, nn.LayerNorm(2))) == ("part1.1",)
    assert chosen(Trunk(stack, nn.Linear(2, 2), nn.LayerNorm(2))) == ("part1",)
    with pytest.raises(InvalidInputError, match="no last stage to train; give the name of a part"):
        chosen(Trunk(nn.LayerNorm(2)))
    net = timm.create_model("test_resnet", num_classes=3)
    assert chosen(net, ["layer3", "layer4.0"]) == ("layer3", "layer4.0")
    assert chosen(net, "layer4.0") == ("layer4.0",)
    with pytest.raises(error, match=message):
        chosen(net, trainable)
