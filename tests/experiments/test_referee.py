"""The referee on pairs of nets of known answer, its numbers, requirements, command and resumption."""

import copy
import json
import math
import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from condnum.deep import Backbone, save_backbone
from condnum.deep.attack import drawn_changes, from_scratch
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments.referee import Budget, contest, read_requirements, referee
from condnum.page.results import write_results

TINY = Budget(0, 0, {"head": 8, "stage": 4, "lora": 4, "all": 4}, 1, 1, ("negated",), 1)


class Net(nn.Module):
    """Two convolutions, and features that a factor scales."""

    def __init__(self, classes=3, factor=1.0):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        self.head, self.factor = nn.Linear(16, classes), factor

    def forward(self, images):
        maps = self.second(self.first(images).relu()).relu()
        return self.head(self.factor * maps.mean((2, 3)))


def task(seed):
    """Three classes of textures, with noise: `(n, 3, 8, 8)` and labels."""
    generator = torch.Generator().manual_seed(seed)
    textures = torch.randn(3, 3, 8, 8, generator=generator)
    labels = torch.arange(240) % 3
    return textures[labels] + 0.7 * torch.randn(240, 3, 8, 8, generator=generator), labels


D_P, D_H = task(0), task(1)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    made = Net()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(D_P[0]), D_P[1]).backward()
        optimizer.step()
    return made


def permuted(net):
    """The same function: channels in another order, and the inputs of the next layer with them."""
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    for parameter in (net.first.weight, net.first.bias):
        parameter.data = parameter.data[order]
    net.second.weight.data = net.second.weight.data[:, order]
    return net


def scaled(net):
    net.factor = 1e-3
    return net


def broken(net):
    nn.init.normal_(net.head.weight, std=10.0, generator=torch.Generator().manual_seed(2))
    return net


def blind(net):
    """Features that are zero for all images."""
    net.second.weight.data.zero_()
    net.second.bias.data = -torch.ones(16)
    return net


CHANGED = {"copy": lambda net: net, "permuted": permuted, "scaled": scaled, "broken head": broken}


@pytest.fixture(scope="module")
def judged(net):
    """What the referee says of the net before and after a change."""
    options = {"budget": TINY, "quiet": True, "require": "head<1%,any>1%,D_P>1%"}
    return cache(lambda change: referee(net, change(copy.deepcopy(net)), D_P, D_H, **options))


@pytest.mark.parametrize("change", CHANGED)
def test_a_net_whose_features_tell_as_much_does_not_resist(judged, change):
    found = judged(CHANGED[change])
    assert found.sentence.startswith("Does not resist: ")
    assert found.resists is False
    solved = found.attackers[found.attackers["solved"]]
    assert set(solved["light"]) == {"gets through"}
    np.testing.assert_allclose(solved["after"], solved["before"], atol=0.05)
    if change == "copy":
        assert (found.attackers["after"] == found.attackers["before"]).all()
    head_lost = change in ("scaled", "broken head")
    assert ("the released head is broken" in found.sentence) == head_lost
    assert "The benign task pays" not in found.sentence
    numbers = found.numbers.set_index("number")
    rir = numbers.loc[[name for name in numbers.index if name.startswith("RIR") and "floor" not in name]]
    np.testing.assert_allclose(rir["after"], 1.0, rtol=1e-3)
    assert "disagrees" not in set(rir["agrees"])


def test_the_floor_of_the_release_depends_on_the_scale_of_the_features(judged):
    measured = judged(scaled).measured
    assert measured["compact_rir"] == pytest.approx(1, rel=1e-3)
    assert not 0.99 < measured["floor_harmful_ratio"] < 1.01


def test_a_net_that_lost_everything_is_destroyed_and_not_immunized(judged):
    found = judged(blind)
    assert set(found.attackers.loc[found.attackers["solved"], "light"]) == {"stopped"}
    assert found.resists is False
    assert "The benign task pays" in found.sentence
    assert math.isnan(found.measured["compact_rir"])
    assert said_of(found, "stopped").sentence.startswith("Destroyed, not immunized")


def said_of(found, light, others="stopped"):
    """A verdict whose first attacker has one light, and all others another."""
    lights = [light] + [others] * (len(found.attackers) - 1)
    run = SimpleNamespace(table=found.attackers.assign(light=lights), rows=found.run.rows)
    return replace(found, run=run)


@pytest.mark.parametrize(
    ("light", "said", "resists"),
    [
        ("gets through", "Does not resist: 1 of 10 attackers get through. The cheapest, ridge", False),
        ("not known", "Not known: too few images or passes to judge ridge regression, solved.", None),
        ("hindered", "Resists in part: none of 10 attackers gets through; hindered: ridge", True),
        ("stopped", "Resists within this budget: none of 10 attackers gets through.", True),
    ],
)
def test_the_first_line_follows_the_worst_light(judged, light, said, resists):
    found = said_of(judged(CHANGED["copy"]), light)
    assert found.sentence.startswith(said)
    assert found.resists is resists
    agrees = found.numbers.set_index("number")["agrees"]["RIR, compact κ, mean over groups"]  # it is 1
    assert agrees == {False: "agrees", True: "disagrees", None: ""}[resists]


def test_a_net_before_that_does_not_know_its_own_task_is_said(net):
    found = referee(broken(copy.deepcopy(net)), net, D_P, D_H, budget=TINY, quiet=True)
    assert "before, the released head is no better than chance" in found.sentence


def test_drawn_changes_depend_on_the_seed_and_keep_the_shape():
    images = torch.rand(2, 3, 8, 8)
    first, second = (drawn_changes(2, seed) for seed in (0, 1))
    assert [*first] == ["drawn 1", "drawn 2"]
    results = [change(images) for changes in (first, second) for change in changes.values()]
    assert all(of.shape == images.shape and of.isfinite().all() for of in results)
    assert len({float(of.sum()) for of in results}) == 4


def test_a_module_is_drawn_anew_where_its_layers_can_be(net):
    start = Backbone(net, trainable="second")
    drawn = from_scratch(start, D_H, None, seed=0)
    assert not torch.equal(drawn.model.first.weight, net.first.weight)
    own = Net()
    own.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(InvalidInputError, match=r"'scale' of a Net cannot be drawn anew"):
        from_scratch(Backbone(own, trainable="second"), D_H, None, seed=0)


def test_requirements_are_read_and_checked(judged):
    assert read_requirements("head<20%, D_P>0.9") == [("head", "<", 0.2), ("D_P", ">", 0.9)]
    for wrong in ("head", "head<20", "head=20%"):
        with pytest.raises(InvalidInputError, match="must be like head<20%"):
            read_requirements(wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'head'"):
        read_requirements("haed<20%")
    (unmet,) = judged(CHANGED["copy"]).unmet
    assert unmet.startswith("head < 1.0 % is required, found ")


def test_a_budget_keeps_classes_with_enough_images():
    X, y = torch.rand(800, 3, 8, 8), torch.arange(800) % 100
    made = contest(Net(), Net(), (X, y), (X, y), budget=replace(TINY, images=30))
    for name, images in made.images.items():
        kept = np.bincount(images.labels)
        assert (kept > 0).sum() == 3, name
    assert len(made.images["harmful"]) <= 30


def test_finished_attacks_are_kept(net, tmp_path):
    small = [(X[:60], y[:60]) for X, y in (D_P, D_H)]
    runs = [referee(net, copy.deepcopy(net), *small, budget=TINY, out=tmp_path, quiet=True) for _ in range(2)]
    assert [found.run.record["cells"]["computed"] for found in runs] == [32, 0]
    assert runs[0].sentence == runs[1].sentence


def test_the_command_writes_page_and_record_and_fails_a_requirement(condnum, tmp_path):
    generator = np.random.default_rng(0)
    for name in ("P", "H"):
        for split in ("train", "test"):
            for label in ("a", "b"):
                folder = tmp_path / name / split / label
                folder.mkdir(parents=True)
                for place in range(12):
                    gray = generator.integers(0, 120, (16, 16), dtype=np.uint8) + 120 * (label == "b")
                    Image.fromarray(gray.astype(np.uint8)).save(folder / f"{place}.png")
    for name in ("before", "after"):
        save_backbone(Backbone("test_resnet", num_classes=2, seed=3), tmp_path / f"{name}.safetensors")
    words = "referee --before before.safetensors --after after.safetensors --benign P --harmful H"
    words += " --image-size 16 --out found -q --require"
    done = condnum(*words.split(), "any<1%", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "any < 1.0 % is required, found" in done.stderr
    text = (tmp_path / "found/referee.json").read_text("utf-8")
    assert not {"NaN", "Infinity"} & {*re.findall(r"\w+", text)}
    record = json.loads(text)
    assert record["sentence"] in " ".join(done.stdout.split())
    assert 0 <= record["measured"]["head_after"] <= 1
    page = (tmp_path / "found/report.html").read_text("utf-8")
    assert "What this budget did not try" in page
    results = write_results(tmp_path, tmp_path, {}).read_text("utf-8")
    assert "Referee: does this net resist?" in results
    assert record["sentence"][:40] in results
