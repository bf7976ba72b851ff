"""Attacks on nets: who sees through what, what each of them trains, and how the best trial is chosen."""

import copy
import math

import pytest
import torch
from problems import draw
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader

from condnum.deep import Backbone, Target, attack
from condnum.deep.attack import RANGES, Muon, add_lora, from_scratch
from condnum.errors import CondnumError

from .conftest import states_equal

IMAGES = draw(6, 3, 32, 32).float()
NETS = {"test_resnet": {}, "test_vit": {"img_size": 32, "patch_size": 8}}
AXES = torch.cat([torch.eye(192)[:3], draw(13, 192).float() / 14])  # the signal, then noise


def drawn(name):
    return Backbone(name, num_classes=5, **NETS[name])


def linear(weight=AXES, *behind):
    """A linear map of the pixels, which is the trained part, maybe more, and a head for three classes."""
    layer = nn.Linear(192, len(weight), bias=False)
    layer.weight.data = weight.clone()
    return Backbone(nn.Sequential(nn.Flatten(), layer, *behind, nn.Linear(len(weight), 3)), trainable="1")


def signal(rows, seed, classes=3):
    """Images whose classes are directions of 192 pixels; all else is noise."""
    labels = torch.arange(rows) % classes
    pixels = draw(rows, 192, seed=seed).float()
    pixels[:, :3] = 0.3 * pixels[:, :3] + 3 * nn.functional.one_hot(labels, 3)
    return pixels.view(rows, 3, 8, 8), labels


TRAIN, TEST, BENIGN = signal(150, 1), signal(90, 2), signal(60, 3)


@pytest.mark.parametrize("name", ["head-sgd", "head-muon", "stage-adamw", "lora2-adamw", "all-muon"])
def test_the_identity_defense_has_exactly_the_same_curve_and_again_another(name):
    """A seed gives the new head, the batches and dropout; what else was drawn before has no part in it."""
    theta, curves = linear(AXES, nn.Dropout(0.5)), []
    nets = (theta, copy.deepcopy(theta), theta, theta)
    for net, options in zip(nets, ({}, {}, {"again": True}, {"seed": 1}), strict=True):
        torch.manual_seed(len(curves))
        curves.append(attack(Target(net, TRAIN, TEST), name, passes=3, trials=1, **options).accuracy.tolist())
    assert curves[0] == curves[1]
    if name != "head-sgd":  # whose accuracy is the same in the end, whatever the order
        assert curves[0] not in curves[2:]


def test_a_signal_that_is_shrunk_slows_gradient_descent_and_not_who_solves_and_a_scale_nobody():
    shrunk = linear(torch.cat([1e-2 * AXES[:3], 3 * AXES[3:]]))
    nets = linear(), linear(2.0**-10 * AXES), shrunk
    plain, scaled, slowed = (attack(Target(net, TRAIN, TEST), "head-sgd", passes=3) for net in nets)
    assert plain.accuracy == pytest.approx(scaled.accuracy, abs=1.5 / 90)  # round-off may move an image
    assert plain.after(3) > 0.9 > 0.6 > slowed.after(3)
    assert all(attack(Target(shrunk, TRAIN, TEST), name).final > 0.9 for name in ("ridge", "logistic"))


@pytest.mark.parametrize("how", ["ridge", "logistic"])
def test_a_net_that_hides_from_images_as_they_are_does_not_hide_from_changed_ones(how):
    target = Target(linear(-torch.eye(192)[:3], nn.ReLU()), TRAIN, TEST)  # sees negated images alone
    plain, found = attack(target, how, trials=2), attack(target, f"transformed-{how}", trials=2)
    assert plain.final < 0.75 < 0.95 < found.final
    assert (plain.change, found.change) == ("", "negated")


def test_who_trains_on_the_benign_task_alone_solves_for_the_harmful_one(monkeypatch):
    """At rate 0 it is ridge regression; after real steps θ has changed, for D_P."""
    target = Target(linear(), TRAIN, TEST, benign=BENIGN, benign_test=TEST)
    moved = attack(target, "benign-all-adamw", passes=3, trials=1)
    assert moved.passes.tolist() == [3]  # what it reaches, it reaches after them
    monkeypatch.setitem(RANGES, "adamw", (0.0, 0.0))
    still, solved = attack(target, "benign-all-adamw", passes=3, trials=1), attack(target, "ridge")
    assert (still.final, still.benign_accuracy) == (solved.final, solved.benign_accuracy)
    assert not math.isnan(still.benign_accuracy)
    with pytest.raises(CondnumError, match="needs images of D_P; give benign="):
        attack(Target(linear(), TRAIN, TEST), "benign-all-adamw", trials=1)


class Watched(Target):
    """Keeps the net that comes out of the attack."""

    def benign_accuracy(self, net=None):
        self.after = net
        return super().benign_accuracy(net)


def plain(net):
    """Write adapted weights into the net."""
    for part in list(net.modules()):
        if parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight")
    return net


@pytest.mark.parametrize("name", NETS)
def test_merged_lora_weights_equal_the_adapted_net(name):
    net = drawn(name)
    before, keys = net(IMAGES), list(net.state_dict())
    factors = add_lora(net, 4, seed=1)
    assert torch.equal(net(IMAGES), before)  # B = 0
    for factor in factors:
        nn.init.normal_(factor, std=0.05)
    adapted = net(IMAGES)
    assert (adapted - before).abs().max() > 1e-2
    assert torch.allclose(plain(net)(IMAGES), adapted, rtol=1e-5, atol=1e-6)
    assert set(net.state_dict()) == set(keys)


@pytest.mark.parametrize("part", ["head", "stage", "lora2", "all"])
@pytest.mark.parametrize("name", NETS)
def test_only_the_named_part_is_trained_and_the_target_stays(name, part):
    theta, labels = drawn(name), torch.arange(6) % 2
    start = copy.deepcopy(theta.state_dict())
    target = Watched(theta, (IMAGES, labels), (IMAGES, labels), benign_test=(IMAGES, labels))
    attack(target, f"{part}-adamw", passes=2, trials=1)
    assert all(torch.equal(value, start[key]) for key, value in theta.state_dict().items())
    after = plain(target.after or theta).state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, start[key])}
    stage = tuple(f"model.{own}." for own in theta.trainable)
    assert not any(key.startswith(f"model.{theta.head_name}.") for key in changed)
    assert bool(changed) == (part != "head")
    assert all(key.startswith(stage) for key in changed) == (part in ("head", "stage"))
    assert any("running" in key for key in changed) == (part == "all" and name == "test_resnet")


def test_muon_takes_steps_of_equal_singular_values():
    for shape in ((6, 40), (40, 6), (8, 3, 3, 3)):
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = draw(*shape).float() * torch.logspace(0, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))
        Muon([weight], lr=0.1).step()
        sigma = torch.linalg.svdvals(weight.detach().flatten(1))
        assert float(sigma[0] / sigma[-1]) < 3 < float(torch.linalg.cond(weight.grad.flatten(1)))
        assert float(weight.detach().square().mean().sqrt()) == pytest.approx(0.1, rel=1e-5)
        assert float((weight.detach() * weight.grad).sum()) < 0


@pytest.mark.parametrize("name", ["head-sgd", "ridge", "transformed-ridge", "stage-adamw"])
def test_test_images_choose_nothing(name):
    wrong = (TEST[0], TEST[1].roll(1))
    found, poisoned = (attack(Target(linear(), TRAIN, of), name, passes=2) for of in (TEST, wrong))
    assert (found.chosen, found.change) == (poisoned.chosen, poisoned.change)
    assert poisoned.final < 0.4 < 0.6 < found.final


def test_rates_that_all_diverge_are_refused_and_some_that_do_are_not_chosen(monkeypatch):
    target = Target(linear(), TRAIN, TEST)
    monkeypatch.setitem(RANGES, "adamw", (1e-2, 1e31))
    found = attack(target, "all-adamw", passes=2, trials=2)
    assert (found.chosen < 1e28, found.final > 0.5) == (True, True)
    monkeypatch.setitem(RANGES, "adamw", (1e29, 1e31))
    with pytest.raises(CondnumError, match=r"every trial of 'all weights, AdamW' diverges \(1e\+29"):
        attack(target, "all-adamw", passes=2, trials=2)


@pytest.mark.parametrize("name", NETS)
def test_from_scratch_is_the_same_architecture_with_other_weights_and_own_statistics(name):
    backbone, data = drawn(name), (IMAGES, torch.arange(6) % 2)
    anew, again = (from_scratch(backbone, data, None, seed=0) for _ in range(2))
    assert anew.trainable == backbone.trainable
    assert states_equal(anew, again)
    pairs = zip(anew.parameters(), backbone.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs if a.ndim > 1)
    if name == "test_resnet":
        first = anew.model.conv1[0](IMAGES).mean(dim=(0, 2, 3))
        assert torch.allclose(anew.model.conv1[1].running_mean, first, atol=1e-5)
    assert not any(part.training for part in anew.modules())


@pytest.mark.parametrize("name", ["head-adamw", "logistic", "stage-adamw"])
def test_few_images_missing_classes_loaders_and_dictionaries(name):
    """Two classes of four images each; the test set has a class that training lacks, and lacks one."""
    train, (images, labels) = signal(8, 1, classes=2), signal(9, 2)
    test = DataLoader([{"image": x, "label": int(y) + 1} for x, y in zip(images, labels, strict=True)], 4)
    found = attack(Target(linear(), train, test), name, passes=2, trials=2)
    assert found.chance == pytest.approx(1 / 3)
    assert found.rows == 6
    assert found.final <= 1 / 3  # of label 1 alone
