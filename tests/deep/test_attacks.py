"""Deep attacks: adapters, the comparison of three nets, and what a panel must see through."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import Backbone
from condnum.deep.adapters import Attacked, add_lora, hold_as_matrices, merge_adapters
from condnum.deep.attack_panel import (
    DeepAttacker,
    DeepBudget,
    Pixels,
    Target,
    attack,
    load_pixels,
    scale_rows,
)
from condnum.deep.attack_report import Curves, compare, deep_attack_panel, first_reached, from_scratch
from condnum.deep.image_sets import open_images
from condnum.deep.pretraining import pretrain_backbone
from condnum.deep.transforms import evaluation_transform, training_transform
from condnum.errors import InvalidInputError, UnknownNameError

IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def drawn(name, **options):
    return Backbone(name, num_classes=5, **options)


NETS = {"test_resnet": {}, "test_vit": {"img_size": 32, "patch_size": 8}}


@pytest.mark.parametrize("name", NETS)
class TestAdapters:
    def test_merged_weights_equal_the_adapted_net(self, name):
        net = drawn(name, **NETS[name])
        before, keys = net(IMAGES), list(net.state_dict())
        factors = add_lora(net, 4, seed=1)
        assert torch.equal(net(IMAGES), before)  # B = 0
        for factor in factors:
            nn.init.normal_(factor, std=0.05)
        adapted = net(IMAGES)
        assert (adapted - before).abs().max() > 1e-2
        merged = merge_adapters(net)(IMAGES)
        assert torch.allclose(merged, adapted, rtol=1e-5, atol=1e-6)
        assert set(net.state_dict()) == set(keys)
        assert torch.equal(net.head.weight, drawn(name, **NETS[name]).head.weight)

    def test_every_linear_and_convolution_layer_but_the_head(self, name):
        net = drawn(name, **NETS[name])
        layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d) and m is not net.head]
        factors = add_lora(net, 3)
        assert len(factors) == 2 * len(layers)
        assert all(factor.ndim == 2 and min(factor.shape) <= 3 for factor in factors)

    def test_matrices_compute_the_same(self, name):
        net = drawn(name, **NETS[name])
        before = net(IMAGES)
        hold_as_matrices(net)
        assert torch.equal(net(IMAGES), before)
        held = [m.parametrizations.weight.original for m in net.modules() if hasattr(m, "parametrizations")]
        assert held
        assert all(p.ndim == 2 for p in held)

    @pytest.mark.parametrize("subset", ["head", "lora", "stage", "all"])
    def test_only_the_subset_is_trained(self, name, subset):
        theta = drawn(name, **NETS[name]).snapshot()
        start = copy.deepcopy(theta.state_dict())
        inputs = theta.frozen_activations(IMAGES) if subset == "stage" else IMAGES
        inputs = theta(IMAGES) if subset == "head" else inputs
        model = Attacked(theta, subset, 4, dimension=theta.num_features, rank=2, seed=0)
        if subset == "stage":
            with torch.no_grad():
                same = model.new_head(theta(IMAGES))
            assert torch.allclose(model.eval()(inputs), same, atol=1e-5)
        stepper = torch.optim.SGD(list(model.trained()), lr=0.1)
        for _ in range(2):  # at first B = 0, and A has no gradient
            model.train()
            stepper.zero_grad()
            nn.functional.cross_entropy(model(inputs), torch.arange(6) % 4).backward()
            stepper.step()
        assert all(torch.equal(value, start[key]) for key, value in theta.state_dict().items())
        after = merge_adapters(model.net).state_dict()
        changed = {key for key, value in after.items() if not torch.equal(value, start[key])}
        assert not any(key.startswith(f"model.{theta.split.head}") for key in changed)
        stage = tuple(f"model.{part}" for part in theta.split.trainable)
        if subset == "head":
            assert not changed
        elif subset == "stage":
            assert changed
            assert all(key.startswith(stage) for key in changed)
        else:
            assert any(not key.startswith(stage) for key in changed)
        statistics = {key for key in changed if "running" in key or "num_batches" in key}
        assert bool(statistics) == (subset == "all" and name == "test_resnet")


def test_refused():
    with pytest.raises(InvalidInputError, match=r"rank must be an integer of at least 1, got 0"):
        add_lora(nn.Linear(2, 2), 0)
    with pytest.raises(InvalidInputError, match="no linear or convolution layer"):
        add_lora(nn.Flatten(), 2)
    with pytest.raises(InvalidInputError, match="only a condnum Backbone says what its last stage is"):
        Attacked(nn.Flatten(), "stage", 2, dimension=4)
    for name in ("head-muon", "lora0-sgd", "lora-sgd", "stage-lbfgs"):
        with pytest.raises(UnknownNameError, match=f"deep attacker '{name}'"):
            DeepAttacker.named(name)


def test_first_reached_is_the_first_crossing():
    x = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
    accuracy = np.array([[0.1, 0.1, 0.9], [0.2, 0.1, 0.9], [0.6, 0.1, 0.1], [0.4, 0.1, 0.9], [0.8, 0.1, 0.9]])
    found = first_reached(x, accuracy, np.array([0.6, 0.5, 0.5]))
    assert found[0] == 2
    assert math.isnan(found[1])
    assert found[2] == 1  # there from the start
    assert first_reached(np.array([40.0, 80.0]), np.array([[0.9], [0.95]]), np.array([0.5]))[0] == 40


class TestCompare:
    """Curves whose steps are known: accuracy rises linearly in log-steps, a factor later on the others."""

    STEPS = np.r_[0, np.geomspace(1, 256, 17)]

    def curve(self, delay, seed=0, images=400):
        rise = np.clip(np.log2(np.maximum(self.STEPS, 1) / delay) / 4 + 0.2, 0.2, 1.0)
        order = np.random.default_rng(seed).permutation(images) / images
        return Curves(self.STEPS, order < rise[:, None])

    def compared(self, theta_i, scratch, share=0.8, seeds=(0, 1, 2)):
        nets = {"theta_0": 1, "theta_i": theta_i, "scratch": scratch}
        curves = {net: {s: self.curve(delay, s) for s in seeds} for net, delay in nets.items()}
        return compare(curves, {s: curves["theta_0"][s].correct[-1] for s in seeds}, share, 256)

    @pytest.mark.parametrize(
        ("delay", "scratch", "place"), [(1, 8, 0), (8, 8, 1), (2, 8, 1 / 3), (4, 16, 0.5)]
    )
    def test_known_factors_and_places(self, delay, scratch, place):
        row = self.compared(delay, scratch)
        assert row["factor"] == pytest.approx(delay, rel=0.02)
        assert row["place"] == pytest.approx(place, abs=0.02)
        assert row["factor_low"] <= row["factor"] <= row["factor_high"]
        assert row["seeds"] == row["reached_theta_i"] == 3

    def test_what_never_arrives_counts_as_the_budget(self):
        row = self.compared(1e4, 1e4)
        assert (row["reached_theta_0"], row["reached_theta_i"], row["needs_theta_i"]) == (
            3,
            0,
            pytest.approx(256),
        )
        assert row["place"] == pytest.approx(1)

    def test_no_place_without_a_head_start_and_no_factor_without_a_start(self):
        row = self.compared(2, 1.1)
        assert math.isnan(row["place"])
        assert math.isnan(row["place_low"])
        assert row["factor"] == pytest.approx(2, rel=0.02)
        assert math.isnan(self.compared(2, 8, share=0.1)["factor"])

    def test_intervals_cover_the_truth_and_narrow_with_images(self):
        generator, covered, widths = np.random.default_rng(0), 0, {}
        for images in (100, 900):
            for trial in range(30):
                curves = {}
                for net, delay in (("theta_0", 1), ("theta_i", 2), ("scratch", 16)):
                    rise = np.clip(np.log2(np.maximum(self.STEPS, 1) / delay) / 4 + 0.2, 0.2, 1.0)
                    order = generator.random((1, images))
                    curves[net] = {0: Curves(self.STEPS, order < rise[:, None])}
                row = compare(curves, {0: curves["theta_0"][0].correct[-1]}, 0.8, 256, seed=trial)
                covered += images == 100 and row["factor_low"] <= 2 <= row["factor_high"]
                widths.setdefault(images, []).append(row["factor_high"] / row["factor_low"])
        assert covered >= 24  # of 30
        assert np.median(widths[900]) < np.median(widths[100]) / 1.02


class Signal(nn.Module):
    """Features of an image: a linear map of its pixels, then a map of the features."""

    def __init__(self, axes, after=None):
        super().__init__()
        self.axes = nn.Parameter(axes)
        self.register_buffer("after", torch.eye(len(axes)) if after is None else after)

    def forward(self, images):
        return images.flatten(1) @ self.axes.mT @ self.after


def signal_images(rows, seed):
    """Three classes, three directions of 192 pixels; all else is noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 3
    pixels = torch.randn(rows, 192, generator=generator)
    pixels[:, :3] = 0.3 * pixels[:, :3] + 3 * nn.functional.one_hot(labels, 3)
    return Pixels(pixels.view(rows, 3, 8, 8), labels, 3)


def trunk(seed, mixed=False):
    generator = torch.Generator().manual_seed(seed)
    axes = torch.randn(16, 192, generator=generator) / 14
    if not mixed:
        axes[:3] = torch.eye(192)[:3]
    return axes


class TestPanel:
    """θ₀ knows the signal; a net from scratch mixes it with the noise."""

    BUDGET = DeepBudget(steps=60, trials=4, checkpoints=12)

    def factors(self, theta_i, attackers=("head-sgd",), shots=(20,), share=0.9, seeds=(0, 1, 2)):
        report = deep_attack_panel(
            Signal(trunk(0)), theta_i, signal_images(300, 1), signal_images(300, 2),
            scratch=Signal(trunk(9, mixed=True)), attackers=attackers, shots=shots, budget=self.BUDGET,
            seeds=seeds,
        )  # fmt: skip
        table = report.factors([share])
        return report, {row["attacker"]: row for _, row in table.iterrows()}

    def test_the_identity_defence_has_factor_one_within_its_interval(self):
        _, rows = self.factors(Signal(trunk(0)), ("head-sgd", "head-adamw", "all-sgd"))
        for row in rows.values():
            assert row["factor_low"] <= 1 <= row["factor_high"]
            assert not row["place_low"] > 0.25  # NaN where scratch is as fast

    def test_a_mere_change_of_scale_is_no_defence(self):
        _, rows = self.factors(Signal(trunk(0), 1e-3 * torch.eye(16)), ("head-sgd", "whitened", "ridge"))
        for row in rows.values():
            assert row["factor_low"] <= 1 <= row["factor_high"]

    def test_a_planted_ill_scaled_map_stops_gradient_descent_and_not_the_whitened_head(self):
        after = torch.diag(torch.tensor([1e-2] * 3 + [3.0] * 13))
        report, rows = self.factors(Signal(trunk(0), after), ("head-sgd", "whitened", "ridge"), shots=(0,))
        assert rows["head-sgd"]["factor_low"] > 3
        assert rows["whitened"]["factor"] < 1.5
        assert rows["whitened"]["final_theta_i"] > 0.95 * rows["whitened"]["final_theta_0"]
        assert rows["ridge"]["final_theta_i"] > 0.95 * rows["ridge"]["final_theta_0"]
        slow, seen, *_ = report.sentences(0.9)
        assert "new head, SGD: more than 60 steps" in slow or "new head, SGD: " in slow
        assert "whitened features, SGD: one step, with 90 % of θ₀'s accuracy" in seen or "void" in seen

    def test_a_trunk_drawn_anew_is_nearly_complete(self):
        _, rows = self.factors(Signal(trunk(5, mixed=True)), ("head-sgd", "ridge"), share=0.95)
        assert rows["head-sgd"]["place"] > 0.75

    def test_more_rows_never_hurt_the_table_of_rows(self):
        report, _ = self.factors(Signal(trunk(5, mixed=True)), ("ridge",), shots=(4, 20, 0))
        row = report.rows_factors([0.9]).iloc[0]
        assert row["needs_theta_0"] <= row["needs_theta_i"] <= 300
        assert row["factor"] > 1

    def test_trials_are_equal_and_the_best_so_far_is_by_held_out_rows(self):
        report, _ = self.factors(Signal(trunk(0)), ("head-sgd", "logistic"), seeds=(0,))
        trials = report.trials()
        assert set(trials.groupby(["net", "attacker"]).size()) == {4}
        for _, one in trials.groupby(["net", "attacker"]):
            leader = one["final"].to_numpy()[[int(np.argmax(one["held_out"][: k + 1])) for k in range(4)]]
            assert np.array_equal(one["best_so_far"], leader)
        table = report.table().set_index(["net", "attacker"])
        assert (table["rows"] == 48).all()  # of 60, a fifth held out

    def test_a_net_that_is_blind_learns_nothing_and_fails_nothing(self):
        report, _ = self.factors(
            Signal(0 * trunk(0)), ("head-sgd", "whitened", "ridge", "logistic"), seeds=(0,)
        )
        table = report.table()
        assert table[table["net"] == "theta_i"]["final_accuracy"].tolist() == pytest.approx([1 / 3] * 4)

    def test_refused(self):
        one = signal_images(30, 1)
        with pytest.raises(InvalidInputError, match="cannot be drawn anew here; give scratch="):
            deep_attack_panel(Signal(trunk(0)), Signal(trunk(0)), one, one)
        with pytest.raises(InvalidInputError, match="train has 3 classes and test 4"):
            deep_attack_panel(
                Signal(trunk(0)),
                Signal(trunk(0)),
                one,
                Pixels(one.images, one.labels, 4),
                scratch=Signal(trunk(1)),
            )
        target = Target(Signal(trunk(0)), one, one)
        with pytest.raises(InvalidInputError, match=r"1 row\(s\) a class leave none to choose by"):
            attack(target, DeepAttacker.named("head-sgd"), shots=1)


def test_pixels_are_the_images_and_few_rows_are_part_of_more():
    data = open_images("digits-8x8:5-9", limit=12)
    backbone = drawn("test_resnet")
    transform = evaluation_transform(backbone, input_size=16)
    pixels = load_pixels(data, transform)
    assert pixels.images.shape == (60, 3, 16, 16)
    assert torch.equal(pixels.images[7], transform(data.image(7)))
    few, more = pixels.few(3, 0), pixels.few(8, 0)
    assert (len(few), len(more), len(pixels.few(0, 0))) == (15, 40, 60)
    assert set(few) <= set(more)
    assert np.bincount(pixels.labels[few]).tolist() == [3] * 5
    assert len(load_pixels(data, transform, most=20)) == 20
    with pytest.raises(InvalidInputError, match="this transform is random"):
        load_pixels(data, training_transform(backbone, input_size=16))


@pytest.fixture(scope="module")
def trained():
    """θ₀ of three epochs, and the transform."""
    backbone = drawn("test_resnet")
    transform = evaluation_transform(backbone, input_size=16)
    data = open_images("digits-8x8:0-4", limit=60)
    pretrain_backbone(backbone, data, epochs=3, batch_size=32, learning_rate=2e-3, transform=transform)
    return backbone, transform


@pytest.mark.parametrize("name", ["stage-sgd", "lora2-adamw", "all-muon", "stage-muon"])
def test_a_backbone_learns_and_its_benign_accuracy_is_measured(name, trained):
    if name.endswith("muon") and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon")
    backbone, transform = trained
    train, test = (
        load_pixels(open_images("digits-8x8:5-9", split, limit=20), transform) for split in ("train", "test")
    )
    benign = load_pixels(open_images("digits-8x8:0-4", "test", limit=10), transform)
    target = Target(backbone, train, test, pretrain_test=benign)
    run = attack(target, DeepAttacker.named(name), budget=DeepBudget(12, 2, checkpoints=4))
    assert run.accuracy[-1] > run.accuracy[0]
    assert 0.2 < run.pretrain_accuracy <= 1
    assert run.correct.shape == (len(run.steps), len(test))
    again = attack(target, DeepAttacker.named(name), budget=DeepBudget(12, 2, checkpoints=4))
    assert np.array_equal(again.correct, run.correct)


@pytest.mark.parametrize("name", NETS)
def test_from_scratch_is_the_same_architecture_with_other_weights_and_own_statistics(name):
    backbone = drawn(name, **NETS[name])
    anew = from_scratch(backbone, 0, IMAGES)
    assert anew.model.state_dict().keys() == backbone.model.state_dict().keys()
    assert anew.split.trainable == backbone.split.trainable
    assert anew.checksum != backbone.checksum
    first = next((part for part in anew.modules() if isinstance(part, nn.BatchNorm2d)), None)
    if first is None:
        return
    seen = []
    hook = first.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    anew(IMAGES)
    hook.remove()
    assert torch.allclose(first.running_mean, seen[0].mean(dim=(0, 2, 3)), atol=1e-5)
    assert first.momentum == drawn(name).model.bn1.momentum
    assert not first.training


def test_a_head_is_scaled_by_rows_of_all_classes():
    """Images of a folder come class by class."""
    labels = np.repeat(np.arange(4), 200)
    assert set(labels[scale_rows(np.arange(800))]) == {0, 1, 2, 3}
    assert scale_rows(np.arange(100)).tolist() == list(range(100))  # all, where there are few
