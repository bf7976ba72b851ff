"""Attacks on nets: who sees through what, what each of them trains, and how the best trial is chosen."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader

from condnum.data.images import open_images
from condnum.deep import Backbone, Target, attack, evaluation_transform
from condnum.deep.attack import ATTACKERS, CHANGES, RANGES, Attacker, Muon, add_lora, from_scratch, smoothness
from condnum.errors import InvalidInputError, UnknownNameError

from .conftest import randn, states_equal

IMAGES = randn(6, 3, 32, 32).float()
NETS = {"test_resnet": {}, "test_vit": {"img_size": 32, "patch_size": 8}}
AXES = torch.cat([torch.eye(192)[:3], randn(13, 192).float() / 14])  # the signal, then noise


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
    pixels = randn(rows, 192, seed=seed).float()
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
        state = torch.get_rng_state()
        curves.append(attack(Target(net, TRAIN, TEST), name, passes=3, trials=1, **options).accuracy.tolist())
        assert torch.equal(torch.get_rng_state(), state)
    assert curves[0] == curves[1]
    if name != "head-sgd":  # whose accuracy is the same in the end, whatever the order
        assert curves[0] not in curves[2:]


@pytest.mark.parametrize("name", ["head-sgd", "ridge"])
def test_a_mere_change_of_scale_is_no_defense(name):
    plain, scaled = (attack(Target(linear(s * AXES), TRAIN, TEST), name, passes=5) for s in (1.0, 2.0**-10))
    assert plain.accuracy == pytest.approx(scaled.accuracy, abs=1.5 / 90)  # round-off may move an image
    assert plain.final > 0.9


def test_a_signal_that_is_shrunk_slows_gradient_descent_and_not_who_solves():
    shrunk = linear(torch.cat([1e-2 * AXES[:3], 3 * AXES[3:]]))
    plain, slowed = (attack(Target(net, TRAIN, TEST), "head-sgd", passes=3) for net in (linear(), shrunk))
    assert plain.after(3) > 0.9 > 0.6 > slowed.after(3)
    assert all(attack(Target(shrunk, TRAIN, TEST), name).final > 0.9 for name in ("ridge", "logistic"))


@pytest.mark.parametrize("how", ["ridge", "logistic"])
def test_a_net_that_hides_from_images_as_they_are_does_not_hide_from_changed_ones(how):
    target = Target(linear(-torch.eye(192)[:3], nn.ReLU()), TRAIN, TEST)  # sees negated images alone
    plain, found = attack(target, how, trials=2), attack(target, f"transformed-{how}", trials=2)
    assert plain.final < 0.75 < 0.95 < found.final
    assert (plain.change, found.change) == ("", "negated")
    assert set(target.changes()) == {name for name in CHANGES if "twice" not in name}  # this net has one size
    assert set(Target(drawn("test_resnet"), TRAIN, TEST).changes()) == set(CHANGES)


def test_who_trains_on_the_benign_task_alone_solves_for_the_harmful_one(monkeypatch):
    """At rate 0 it is ridge regression; after real steps θ has changed, for D_P."""
    target = Target(linear(), TRAIN, TEST, benign=BENIGN, benign_test=TEST)
    moved = attack(target, "benign-all-adamw", passes=3, trials=1)
    assert moved.passes.tolist() == [3]  # what it reaches, it reaches after them
    monkeypatch.setitem(RANGES, "adamw", (0.0, 0.0))
    still, solved = attack(target, "benign-all-adamw", passes=3, trials=1), attack(target, "ridge")
    assert (still.final, still.benign_accuracy) == (solved.final, solved.benign_accuracy)
    assert not math.isnan(still.benign_accuracy)
    with pytest.raises(InvalidInputError, match="needs images of D_P; give benign="):
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
    found = attack(target, f"{part}-adamw", passes=2, trials=1)
    assert found.rows == 4
    assert found.benign_accuracy * 6 == pytest.approx(round(found.benign_accuracy * 6))
    assert all(torch.equal(value, start[key]) for key, value in theta.state_dict().items())
    after = plain(target.after or theta).state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, start[key])}
    stage = tuple(f"model.{own}." for own in theta.trainable)
    assert not any(key.startswith(f"model.{theta.head_name}.") for key in changed)
    assert bool(changed) == (part != "head")
    assert all(key.startswith(stage) for key in changed) == (part in ("head", "stage"))
    statistics = {key for key in changed if "running" in key}
    assert bool(statistics) == (part == "all" and name == "test_resnet")


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (8, 3, 3, 3)], ids=str)
def test_muon_takes_steps_of_equal_singular_values(shape):
    weight = nn.Parameter(torch.zeros(shape))
    sizes = torch.logspace(0, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))
    weight.grad = randn(*shape).float() * sizes
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
    with pytest.raises(InvalidInputError, match=r"every trial of 'all weights, AdamW' diverges \(1e\+29"):
        attack(target, "all-adamw", passes=2, trials=2)


def test_accuracy_is_measured_after_the_passes_that_are_compared():
    target = Target(linear(), signal(30, 1), signal(30, 2))
    assert attack(target, "all-adamw", trials=1).passes.tolist() == [0, 1, 5, 10, 50]
    found = attack(target, "all-adamw", passes=7, trials=1)
    assert found.passes.tolist() == [0, 1, 5, 7]
    assert found.after(7) == found.final
    assert math.isnan(found.after(10))
    assert attack(target, "head-adamw", passes=7, trials=1).passes.tolist() == list(range(8))


def test_trials_are_a_grid_and_the_neighbors_of_the_best():
    found = attack(Target(linear(), TRAIN, TEST), "head-adamw", passes=2, trials=2)
    assert found.chosen in np.geomspace(*RANGES["head-adamw"], 3)
    assert found.at_edge == (found.chosen in RANGES["head-adamw"])
    one = attack(Target(linear(), TRAIN, TEST), "head-adamw", passes=2, trials=1)
    assert (one.chosen, one.at_edge) == (pytest.approx(10**-2.5), False)


@pytest.mark.parametrize("name", NETS)
def test_from_scratch_is_the_same_architecture_with_other_weights_and_own_statistics(name):
    backbone, data = drawn(name), (IMAGES, torch.arange(6) % 2)
    anew = from_scratch(backbone, data, None, seed=0)
    assert anew.model.state_dict().keys() == backbone.model.state_dict().keys()
    assert anew.trainable == backbone.trainable
    assert not any(torch.equal(*pair) for pair in zip(anew.parameters(), backbone.parameters(), strict=True)
                   if pair[0].ndim > 1)  # fmt: skip
    assert states_equal(anew, from_scratch(backbone, data, None, seed=0))
    for norm in (part for part in anew.modules() if isinstance(part, nn.BatchNorm2d)):
        seen = []
        hook = norm.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        anew(IMAGES)
        hook.remove()
        assert (norm.training, norm.momentum) == (False, drawn(name).model.bn1.momentum)
        assert torch.allclose(norm.running_mean, seen[0].mean(dim=(0, 2, 3)), atol=1e-5)
        break  # those behind see what it normalized by the batch
    with pytest.raises(InvalidInputError, match="not a timm model and cannot be drawn anew"):
        from_scratch(linear(), TRAIN, None, seed=0)


@pytest.mark.parametrize("name", ["head-adamw", "logistic", "stage-adamw"])
def test_few_images_missing_classes_loaders_and_dictionaries(name):
    """Two classes of four images each; the test set has a class that training lacks, and lacks one."""
    train, (images, labels) = signal(8, 1, classes=2), signal(9, 2)
    test = DataLoader([{"image": x, "label": int(y) + 1} for x, y in zip(images, labels, strict=True)], 4)
    found = attack(Target(linear(), train, test), name, passes=2, trials=2)
    assert found.chance == pytest.approx(1 / 3)
    assert found.rows == 6
    assert found.final <= 1 / 3  # of label 1 alone


def test_images_that_do_not_decode_are_left_out(folder):
    root = folder(count=11)
    for split, number in (("train", 0), ("test", 3)):
        (root / split / "cat" / f"{number}.png").write_bytes(b"broken")
    target = Target(drawn("test_resnet"), *(open_images(root, split) for split in ("train", "test")),
                    transform=evaluation_transform(input_size=32))  # fmt: skip
    for name in ("ridge", "all-adamw"):
        found = attack(target, name, passes=1, trials=1)
        assert found.rows in (17, 18)  # of 22, four are held out, and one may be the broken one
        assert found.final * 21 == pytest.approx(round(found.final * 21))


def test_smoothness_bounds_the_curvature_of_a_softmax_head():
    X, y = randn(20, 3), torch.arange(20) % 2
    extended = torch.cat([X, torch.ones(20, 1)], 1)

    def loss(W):
        return nn.functional.cross_entropy(extended @ W.view(4, 2), y)

    curvature = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, torch.zeros(8).double()))[-1]
    assert float(curvature) <= smoothness(X) * (1 + 1e-9) <= 2.01 * float(curvature)


def test_names():
    assert [Attacker.named(name).name for name in ATTACKERS] == list(ATTACKERS)
    for name in ("lora-adamw", "stage4-muon", "benign-ridge", "all-sgd", ""):
        with pytest.raises(UnknownNameError, match=f"deep attacker '{name}'"):
            Attacker.named(name)
