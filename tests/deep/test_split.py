"""Which part of which architecture is immunized."""

import pytest
import timm
from torch import nn

from condnum.deep import SplitRule, register_split_rule, split_choices
from condnum.deep.split_rules import _RULES, BY_NAME, split
from condnum.errors import InvalidInputError, UnknownNameError


def model(name, **options):
    return timm.create_model(name, num_classes=3, **options)


@pytest.mark.parametrize(
    ("name", "trainable", "head", "rule"),
    [
        ("resnet18", "layer4", "fc", "resnet"),
        ("test_resnet", "layer4", "fc", "resnet"),
        ("test_vit", "blocks.5", "head", "vit"),
        ("test_convnext", "stages.3", "head.fc", "timm stage"),
        ("test_efficientnet", "blocks.4", "classifier", "timm stage"),
        ("regnetx_002", "s4", "head.fc", "timm stage"),
    ],
)
def test_rules(name, trainable, head, rule):
    found = split(model(name))
    assert (found.trainable, found.head, found.rule) == ((trainable,), head, rule)


def test_resnet18_trains_its_last_two_residual_blocks():
    net = model("resnet18")
    (part,) = split(net).trainable
    assert len(net.get_submodule(part)) == 2


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


def test_no_rule_finds_a_part():
    with pytest.raises(InvalidInputError, match=r"no rule knows .* Choices: part0"):
        split(Trunk(nn.LayerNorm(2)))


def test_the_caller_names_one_or_several_modules():
    net = model("test_resnet")
    assert split(net, "layer4.0").rule == BY_NAME
    assert split(net, ["layer3", "layer4"]).trainable == ("layer3", "layer4")


@pytest.mark.parametrize(
    ("trainable", "error", "message"),
    [
        ("layer9", UnknownNameError, r"unknown module 'layer9'; did you mean 'layer.*layer1, .*layer4"),
        ("fc", InvalidInputError, "holds or belongs to the head 'fc'"),
        ("", InvalidInputError, "holds or belongs to the head 'fc'"),
        ("maxpool", InvalidInputError, "no parameters to train.*layer4"),
        ([], InvalidInputError, "names no module"),
    ],
    ids=["unknown", "head", "everything", "no parameters", "none"],
)
def test_bad_names_show_the_choices(trainable, error, message):
    with pytest.raises(error, match=message):
        split(model("test_resnet"), trainable)


def test_choices_are_parts_of_the_trunk():
    choices = split_choices(model("test_vit"))
    assert {"patch_embed", "blocks.0", "blocks.5", "norm"} <= set(choices)
    assert not {"head", "head_drop", "fc_norm"} & set(choices)


def test_a_registered_rule_is_asked_first(monkeypatch):
    monkeypatch.setattr("condnum.deep.split_rules._RULES", list(_RULES))
    register_split_rule(SplitRule("mine", lambda net, head: "layer3" if hasattr(net, "layer3") else None))
    assert split(model("test_resnet")).trainable == ("layer3",)
    assert split(model("test_vit")).rule == "vit"
