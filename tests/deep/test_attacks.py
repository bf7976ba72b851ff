"""Deep attacks: adapters, the comparison of three nets, and what a panel must see through."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from condnum.data.images import open_images
from condnum.deep import Backbone
from condnum.deep.attacks import attackers
from condnum.deep.attacks.attack import DeepAttackRun, attack
from condnum.deep.attacks.attacked_net import AttackedNet, Muon, add_lora
from condnum.deep.attacks.attackers import CHANGES, DeepAttacker, DeepBudget
from condnum.deep.attacks.report import (
    AGAIN,
    AttackKey,
    DeepAttackReport,
    cheapest_attack,
    compare_needs,
    deep_attack_panel,
    effect,
    first_reached,
    t_interval,
)
from condnum.deep.attacks.target import Pixels, Target, from_scratch, load_pixels
from condnum.deep.pretraining import pretrain_backbone
from condnum.deep.transforms import evaluation_transform, training_transform
from condnum.errors import InvalidInputError, UnknownNameError

IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
NETS = {"test_resnet": {}, "test_vit": {"img_size": 32, "patch_size": 8}}


def drawn(name, **options):
    return Backbone(name, num_classes=5, **NETS[name], **options)


def plain(net):
    """Write adapted weights into the net."""
    for part in list(net.modules()):
        if parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight")
    return net


@pytest.mark.parametrize("name", NETS)
class TestAdapters:
    def test_merged_weights_equal_the_adapted_net(self, name):
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
        assert torch.equal(net.head.weight, drawn(name).head.weight)

    @pytest.mark.parametrize("subset", ["head", "lora", "stage", "all"])
    def test_only_the_subset_is_trained(self, name, subset):
        theta = drawn(name).snapshot()
        start = copy.deepcopy(theta.state_dict())
        inputs = theta.frozen_activations(IMAGES) if subset == "stage" else IMAGES
        inputs = theta(IMAGES) if subset == "head" else inputs
        attacker = DeepAttacker.named(f"{'lora2' if subset == 'lora' else subset}-sgd")
        model = AttackedNet(theta, attacker, 4, torch.ones(1, theta.num_features))
        if subset == "stage":
            with torch.no_grad():
                same = model.new_head(theta(IMAGES))
            assert torch.allclose(model.eval()(inputs), same, atol=1e-5)
        stepper = torch.optim.SGD(model.trained, lr=0.1)
        for _ in range(2):  # at first B = 0, and A has no gradient
            model.train()
            stepper.zero_grad()
            nn.functional.cross_entropy(model(inputs), torch.arange(6) % 4).backward()
            stepper.step()
        assert all(torch.equal(value, start[key]) for key, value in theta.state_dict().items())
        after = plain(model.net).state_dict()
        changed = {key for key, value in after.items() if not torch.equal(value, start[key])}
        assert not any(key.startswith(f"model.{theta.head_name}") for key in changed)
        stage = tuple(f"model.{part}" for part in theta.trainable)
        if subset == "head":
            assert not changed
        elif subset == "stage":
            assert changed
            assert all(key.startswith(stage) for key in changed)
        else:
            assert any(not key.startswith(stage) for key in changed)
        statistics = {key for key in changed if "running" in key or "num_batches" in key}
        assert bool(statistics) == (subset == "all" and name == "test_resnet")


def test_first_reached_is_the_first_crossing():
    x, curve = np.array([0.0, 1.0, 2.0, 4.0, 8.0]), np.array([0.1, 0.2, 0.6, 0.4, 0.8])
    assert first_reached(x, curve, 0.6) == pytest.approx(2)
    assert math.isnan(first_reached(x, curve, 0.9))
    assert first_reached(x, curve, 0.1) == 1  # there from the start
    assert first_reached(np.array([40.0, 80.0]), np.array([0.9, 0.95]), 0.5) == pytest.approx(40)


class TestCompare:
    """Needs of attacks whose factors are known."""

    def compared(self, times, scratch=8.0, most=256.0, **others):
        base = np.outer(np.geomspace(2, 8, 3), [1.0, 1.5])  # seeds × repeats, which pairing takes out
        nets = {"theta_0": base, "theta_i": times * base, "scratch": scratch * base}
        return compare_needs(nets | others, most)

    @pytest.mark.parametrize(
        ("times", "scratch", "score"), [(1, 8, 0), (8, 8, 1), (2, 8, 1 / 3), (4, 16, 0.5)]
    )
    def test_known_factors_and_scores(self, times, scratch, score):
        row = self.compared(times, scratch)
        ends = [row[f"factor{end}"] for end in ("", "_low", "_high")]
        assert ends == pytest.approx([times] * 3)  # no noise is left between pairs
        assert row["protection"] == pytest.approx(score)
        assert (row["seeds"], row["attacks"], row["reached_theta_i"]) == (3, 6, 6)

    def test_what_misses_the_goal_on_theta_i_is_a_lower_bound_and_on_theta_0_no_factor(self):
        never = np.full((3, 2), np.nan)
        row = self.compared(1, theta_i=never)
        assert row["reached_theta_i"] == 0
        assert row["needs_theta_i"] == pytest.approx(256)
        assert row["factor"] > 1
        assert row["factor_high"] == math.inf
        both = self.compared(1, theta_i=never, scratch=math.nan)
        assert math.isnan(both["protection"])  # neither arrives: nothing is known of it
        once = np.array([[1.0, 1.0], [1.0, np.nan], [1.0, 1.0]])
        row = self.compared(1, theta_0=once)
        assert math.isnan(row["factor"])
        assert row["reached_theta_0"] == 5

    def test_what_is_solved_has_no_factor_whatever_the_budget(self):
        once = np.array([[1.0], [np.nan], [1.0]])
        needs = {"theta_0": np.ones((3, 1)), "theta_i": once, "scratch": np.full((3, 1), np.nan)}
        row = compare_needs(needs, math.nan)
        assert (row["reached_theta_0"], row["reached_theta_i"], row["reached_scratch"]) == (3, 2, 0)
        assert all(math.isnan(row[name]) for name in ("factor", "protection", "needs_theta_i", "noise"))

    def test_the_unit_is_the_seed_and_of_one_seed_the_repeat(self):
        drawn = np.exp(np.random.default_rng(0).normal(size=(3, 4)))
        for seeds, unit in ((3, np.log(drawn).mean(axis=1)), (1, np.log(drawn[0]))):
            ones = np.ones((seeds, 4))
            row = compare_needs({"theta_0": ones, "theta_i": drawn[:seeds], "scratch": 99 * ones}, 256)
            found = [row[f"factor{end}"] for end in ("", "_low", "_high")]
            assert np.log(found) == pytest.approx(t_interval(unit))

    def test_an_effect_has_to_leave_the_range_of_a_against_a(self):
        again = np.outer(np.geomspace(2, 8, 3), [1.0, 1.5]) * np.array([[1, 1], [1, 2.5], [1, 1]])
        facts = {"attacker": "all-adamw"}
        inside = facts | self.compared(2, **{AGAIN: again})
        assert inside["noise"] == pytest.approx(2.5)
        assert inside["factor_low"] > 1
        assert effect(inside) == "no measurable slowdown"
        assert effect(facts | self.compared(3, **{AGAIN: again})) == "slowdown"
        assert effect(facts | self.compared(0.3, **{AGAIN: again})) == "faster on θ_I"


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


@pytest.fixture(scope="module")
def report():
    """θ₀ knows the signal; a net from scratch mixes it with the noise; four nets stand for defenses."""
    defenses = {
        "identity": Signal(trunk(0)),
        "scaled": Signal(trunk(0), 1e-3 * torch.eye(16)),
        "shrunk": Signal(trunk(0), torch.diag(torch.tensor([1e-2] * 3 + [3.0] * 13))),
        "drawn anew": Signal(trunk(5, mixed=True)),
    }
    return deep_attack_panel(
        Signal(trunk(0)), defenses, signal_images(300, 1), signal_images(300, 2),
        scratch=Signal(trunk(9, mixed=True)), attackers=("head-sgd", "ridge", "logistic", "whitened"),
        shots=(0,), budget=DeepBudget(steps=40, trials=4, checkpoints=12), seeds=(0, 1),
    )  # fmt: skip


@pytest.fixture(scope="module")
def rows(report):
    return {(row["method"], row["attacker"]): row for _, row in report.factors([0.9]).iterrows()}


class TestPanel:
    def test_the_identity_defense_has_exactly_factor_one_as_attacks_are_paired(self, report, rows):
        for name in ("head-sgd", "whitened"):
            row = rows["identity", name]
            assert (row["factor"], row["factor_low"], row["factor_high"]) == pytest.approx((1, 1, 1))
            assert row["effect"] == "no measurable slowdown"
        assert rows["identity", "head-sgd"]["noise"] >= 1
        curves = report.curves().query("attacker == 'head-sgd'").set_index(["seed", "repeat", "step"])
        of = {net: table["accuracy"] for net, table in curves.groupby("net")}
        assert of["theta_0"].equals(of["identity"])
        assert not of["theta_0"].equals(of[AGAIN])

    def test_a_mere_change_of_scale_is_no_defense(self, rows):
        assert rows["scaled", "head-sgd"]["effect"] == "no measurable slowdown"
        assert rows["scaled", "whitened"]["effect"] == "no measurable slowdown"
        assert rows["scaled", "ridge"]["effect"] == "reaches the goal at once"

    def test_one_goal_for_all_and_the_cheapest_success_comes_first(self, report, rows):
        final = report.table().query("net == 'theta_0'").groupby("seed")["final_accuracy"]
        goal = 1 / 3 + 0.9 * (final.max().mean() - 1 / 3)  # chance is a third
        assert [row["goal"] for row in rows.values()] == pytest.approx([goal] * len(rows))
        of = {attacker: row for (method, attacker), row in rows.items() if method == "shrunk"}
        assert of["head-sgd"]["factor"] > 3
        assert of["head-sgd"]["effect"] == "slowdown"
        assert of["whitened"]["factor"] < 1.5
        assert of["whitened"]["final_theta_i"] > 0.95 * of["whitened"]["final_theta_0"]
        assert next(iter(of)) == "ridge"  # one pass over 240 examples; logistic regression takes several
        assert of["ridge"]["examples_theta_i"] == 240
        assert of["logistic"]["examples_theta_i"] > 240
        assert of["head-sgd"]["examples_budget"] == 40 * 240
        words = cheapest_attack(report.factors([0.9]).query("method == 'shrunk'"))
        assert words.startswith("The cheapest successful attack is ridge regression, solved: it reaches 9")

    def test_a_trunk_drawn_anew_stops_head_and_solver_and_no_score_is_made_up(self, rows):
        assert rows["drawn anew", "ridge"]["effect"] == "misses the goal"
        head = rows["drawn anew", "head-sgd"]
        assert head["reached_theta_i"] == head["reached_scratch"] == 0
        assert math.isnan(head["protection"])  # neither arrives

    def test_every_net_has_the_trials_of_the_grid_and_the_best_held_out_one_is_chosen(self, report):
        trials = report.trials().query("seed == 0")
        assert (AGAIN, "logistic") not in trials.groupby(["net", "attacker"]).groups  # nothing is drawn
        for (_, attacker), one in trials.groupby(["net", "attacker"]):
            assert one["value"].tolist() == DeepAttacker.named(attacker).trials(4).tolist()
        for place, run in report.runs.items():
            best = run.trials.set_index("value")["held_out"]
            assert best[run.chosen] == best.max()
            assert run.at_edge == (run.chosen in (best.index[0], best.index[-1])), place
        assert (report.table()["rows"] == 240).all()  # of 300, a fifth held out


def test_refused():
    net, one = Signal(trunk(0)), signal_images(30, 1)
    target = Target(net, one, one)
    for error, message, call in (
        (
            InvalidInputError,
            "Backbone, which defines its last stage",
            lambda: attack(target, named("stage-sgd")),
        ),
        (
            InvalidInputError,
            "images on which θ_I was not trained",
            lambda: attack(target, named("fresh-ridge")),
        ),
        (
            InvalidInputError,
            "'trunk' needs a condnum Backbone",
            lambda: attack(target, named("trunk"), shots=2),
        ),
        (
            InvalidInputError,
            "cannot be re-initialized here; pass the same architecture with new weights as scratch=",
            lambda: deep_attack_panel(net, net, one, one),
        ),
        (
            InvalidInputError,
            "train has 3 classes and test has 4",
            lambda: deep_attack_panel(net, net, one, Pixels(one.images, one.labels, 4), scratch=net),
        ),
        (UnknownNameError, "deep attacker 'lora-sgd'", lambda: named("lora-sgd")),
    ):
        with pytest.raises(error, match=message):
            call()


named = DeepAttacker.named


class Hiding(Signal):
    """Features of the negated image alone: as it is, an image lights none."""

    def forward(self, images):
        return torch.relu(super().forward(-images))


@pytest.mark.parametrize("name", ["fresh-transformed-ridge", "transformed-logistic"])
def test_a_net_that_hides_from_images_as_they_are_does_not_hide_from_changed_ones(name):
    train, test, fresh = (signal_images(rows, seed) for rows, seed in ((300, 1), (300, 2), (240, 3)))
    target = Target(Hiding(torch.eye(192)[:3]), train, test, fresh=fresh)
    attacker = DeepAttacker.named(name)
    assert attacker.closed_form
    assert attacker.label.endswith("transformed images" + ", fresh images" * name.startswith("fresh"))
    plain = attack(target, DeepAttacker.named(attacker.optimizer), shots=40)
    found = attack(target, attacker, shots=40)
    assert plain.final_accuracy < 0.7 < 0.95 < found.final_accuracy
    assert found.layer == "negated"
    assert plain.layer == ""
    assert not {"twice the side", "twice as wide"} & set(
        found.trials["layer"]
    )  # this net takes one size only
    assert set(found.trials["layer"]) < set(CHANGES)
    best = found.trials.loc[found.trials["held_out"].idxmax()]
    assert found.final_accuracy == pytest.approx(best["final"])


def test_a_net_of_any_size_is_read_at_twice_the_side_as_well():
    images = signal_images(12, 0)
    target = Target(drawn("test_resnet"), images, images)
    assert set(target.transformed(images, np.arange(12))) == set(CHANGES)


def test_nets_of_one_trunk_run_it_once(monkeypatch):
    images, theta, kept = signal_images(12, 0), drawn("test_resnet"), {}
    other = copy.deepcopy(theta)
    with torch.no_grad():
        for parameter in other.trainable_parameters():
            parameter.mul_(1.5)
    seen, run = [], Backbone.frozen_activations
    monkeypatch.setattr(Backbone, "frozen_activations", lambda net, x: (seen.append(len(x)), run(net, x))[1])
    for net, passes in ((theta, 12), (other, 0)):
        target = Target(net, images, images, kept=kept)
        assert torch.allclose(target.features(images), net(images.images), rtol=1e-4, atol=1e-5)
        changed = target.transformed(images, np.arange(12))["twice the side"]
        assert torch.allclose(changed, net(CHANGES["twice the side"](images.images)), rtol=1e-4, atol=1e-5)
        assert seen.count(12) == passes // 12 * (1 + len(CHANGES))
        seen.clear()


def test_pixels_are_the_images_and_a_fifth_of_the_chosen_ones_is_held_out():
    data = open_images("digits-8x8:5-9", limit=12)
    backbone = drawn("test_resnet")
    transform = evaluation_transform(backbone, input_size=16)
    pixels = load_pixels(data, transform)
    assert pixels.images.shape == (60, 3, 16, 16)
    assert torch.equal(pixels.images[7], transform(data.image(7)))
    assert [len(rows) for rows in pixels.chosen_rows(10, 0)] == [40, 10]
    assert len(load_pixels(data, transform, most=20)) == 20
    some = data.take(np.flatnonzero(data.labels < 2))
    assert len(load_pixels(some, transform, most=20)) == 20  # of two classes, whatever the head has
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


@pytest.mark.parametrize("name", ["stage-sgd", "lora2-adamw", "all-adamw"])
def test_a_backbone_learns_and_its_benign_accuracy_is_measured(name, trained):
    backbone, transform = trained
    train, test = (
        load_pixels(open_images("digits-8x8:5-9", split, limit=20), transform) for split in ("train", "test")
    )
    benign = load_pixels(open_images("digits-8x8:0-4", "test", limit=10), transform)
    target, budget = Target(backbone, train, test, benign_test=benign), DeepBudget(8, 1, checkpoints=3)
    run = attack(target, named(name), budget=budget)
    assert run.final_accuracy > run.accuracy[:, 0].mean()
    hits = run.benign_accuracy * len(benign.labels) * len(run.accuracy)  # over all repeats
    assert hits == pytest.approx(round(hits))
    assert run.accuracy.shape == (2, len(run.steps))
    assert np.array_equal(attack(target, named(name), budget=budget).accuracy, run.accuracy)
    assert not np.array_equal(attack(target, named(name), budget=budget, again=True).accuracy, run.accuracy)
    assert not np.array_equal(run.accuracy[0], run.accuracy[1])


def test_the_attacker_who_steps_aside_does_not_meet_the_immunized_part(trained):
    backbone, transform = trained
    train, test = (
        load_pixels(open_images("digits-8x8:5-9", split, limit=20), transform) for split in ("train", "test")
    )
    ruined = copy.deepcopy(backbone)
    for parameter in ruined.trainable_parameters():
        nn.init.zeros_(parameter.data)
    budget, runs = DeepBudget(trials=2), {}
    for name in ("trunk", "ridge"):
        runs[name] = [
            attack(Target(net, train, test), DeepAttacker.named(name), budget=budget)
            for net in (backbone, ruined)
        ]
    assert runs["trunk"][0].accuracy == runs["trunk"][1].accuracy > 0.6
    assert runs["ridge"][1].final_accuracy < 0.3  # the immunized part gives nothing to solve
    layer = runs["trunk"][0].layer
    assert layer in dict(backbone.model.named_modules())
    assert not layer.startswith(backbone.trainable)
    whole = Backbone("test_resnet", num_classes=5, trainable="conv1")
    with pytest.raises(InvalidInputError, match="nothing comes before the immunized part"):
        attack(Target(whole, train, test), DeepAttacker.named("trunk"), budget=budget)


@pytest.mark.parametrize("name", NETS)
def test_from_scratch_is_the_same_architecture_with_other_weights_and_own_statistics(name):
    backbone = drawn(name)
    anew = from_scratch(backbone, 0, IMAGES)
    assert anew.model.state_dict().keys() == backbone.model.state_dict().keys()
    assert anew.trainable == backbone.trainable
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


@pytest.fixture(scope="module")
def digits_target():
    """A small drawn net, with images of both tasks."""
    net = drawn("test_resnet").snapshot()
    look = evaluation_transform(net)
    sets = {
        name: load_pixels(open_images(f"digits-8x8:{digits}", split), look, most=100)
        for name, digits, split in (
            ("train", "5-9", "train"), ("test", "5-9", "test"), ("benign_train", "0-4", "train"),
            ("benign_test", "0-4", "test"),
        )
    }  # fmt: skip
    return Target(net, sets.pop("train"), sets.pop("test"), **sets)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_who_trains_on_the_benign_task_alone_solves_for_the_harmful_one(
    digits_target, optimizer, monkeypatch
):
    """After no step worth the name it is ridge regression; after real ones θ has changed, for D_P."""
    budget, attacker = DeepBudget(steps=12, trials=1, repeats=1), named(f"benign-stage-{optimizer}")
    with monkeypatch.context() as patch:
        patch.setitem(attackers.RANGES, optimizer, (1e-12, 1e-12))
        still = attack(digits_target, attacker, budget=budget)
    solved = attack(digits_target, named("ridge"), budget=DeepBudget(trials=4))
    assert still.final_accuracy == solved.final_accuracy
    moved = attack(digits_target, attacker, budget=budget)
    assert moved.steps.tolist() == still.steps.tolist() == [12]  # what it reaches, it reaches after them
    assert moved.trials["final"].notna().all()
    alone = Target(digits_target.theta, digits_target.train, digits_target.test)
    with pytest.raises(InvalidInputError, match="begins with training images of D_P; give benign_train"):
        attack(alone, attacker, budget=budget)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (8, 3, 3, 3)], ids=str)
def test_muon_takes_steps_of_equal_singular_values(shape):
    weight = nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(
        0, 2, shape[0]
    ).view(-1, *[1] * (len(shape) - 1))
    Muon([weight], lr=0.1).step()
    sigma = torch.linalg.svdvals(weight.detach().flatten(1))
    assert float(sigma[0] / sigma[-1]) < 3 < float(torch.linalg.cond(weight.grad.flatten(1)))
    assert float(weight.detach().square().mean().sqrt()) == pytest.approx(0.1, rel=1e-5)
    assert float((weight.detach() * weight.grad).sum()) < 0


def test_sgrc():
    """Of attacks with known curves: nothing differs from θ₀ itself."""

    def run(accuracy, benign):
        curves, trials = np.array([accuracy]), pd.DataFrame({"trial": [1]})
        return DeepAttackRun(trials, 1.0, False, "", np.array([0, 4]), curves, benign, 64, 0.0)

    known = {
        ("theta_0", "all-sgd"): run([0.2, 0.8], 0.90),
        (AGAIN, "all-sgd"): run([0.2, 0.8], 0.90),
        ("ours", "all-sgd"): run([0.2, 0.6], 0.50),
        ("theta_0", "ridge"): run([0.2, 0.7], 0.95),
        ("ours", "ridge"): run([0.2, 0.35], 0.95),
    }
    runs = {AttackKey("net", net, attacker, 0, 0): of for (net, attacker), of in known.items()}
    report = DeepAttackReport(runs, DeepBudget(), 0.2)
    table = report.sgrc().set_index(["net", "attacker", "step"])
    assert table.loc[(AGAIN, "all-sgd", 4), "sgrc"] == 0
    assert table.loc[("ours", "all-sgd", 4), "sgrc"] == pytest.approx(25)
    assert table.loc[("ours", "ridge", 4), "sgrc"] == pytest.approx(50)
    assert table.loc[("ours", "all-sgd", 4), "epochs"] == 2  # 4 steps of 32 images of 64
