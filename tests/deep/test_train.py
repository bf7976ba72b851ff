"""Whole runs on a tiny backbone: what moves, what is kept, how a run ends and goes on; heads and θ₀."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader

from condnum.deep import Backbone, DeepSettings, ImageFeatures, Samples, immunize_backbone, open_images
from condnum.deep.methods import HARMFUL, LEFT, NET_METHODS, NetStep
from condnum.deep.train import (
    Evaluation,
    _Training,
    deep_preset,
    default_settings,
    fit_head,
    head_accuracy,
    pretrain_backbone,
)
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError
from condnum.progress import PROGRESS_VARIABLE

from .conftest import randn, states_equal

SHORT = DeepSettings(steps=8, batch_size=50, record_every=2, groups=2, patience=None, learning_rate=1e-3)


@pytest.fixture
def run(backbone, D_P, D_H, transform):
    def immunized(settings=SHORT, **options):
        options = {"transform": transform, "device": "cpu", **options}
        net, P, H = (options.pop(key, own) for key, own in (("net", backbone), ("P", D_P), ("H", D_H)))
        return immunize_backbone(net, P, H, settings=settings, **options)

    return immunized


def moved(before, net):
    return {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}


@pytest.mark.parametrize("method", NET_METHODS)
def test_each_method_moves_its_part_toward_its_goal_and_theta_0_stays(run, backbone, D_P, transform, method):
    fit_head(backbone, Samples(D_P, transform).features(backbone))
    before = copy.deepcopy(backbone.state_dict())
    settings = default_settings(method).with_overrides(
        steps=16, batch_size=100, record_every=4, groups=2, learning_rate=2e-3, keep="last"
    )
    result = run(settings, method=method)
    assert not moved(before, backbone)
    assert states_equal(result.theta_0, backbone)
    assert not result.theta_I.training
    keys = moved(before, result.theta_I)
    assert not any("running" in key for key in keys)  # BatchNorm's statistics
    own = {key.split(".")[1] for key in keys}
    assert {*backbone.trainable, backbone.head_name} <= own
    assert ("conv1" in own) == settings.whole
    assert result.theta_I.trainable == backbone.trainable
    table = result.history
    assert (result.method, len(table), table["rir"].notna().sum()) == (method, 16, 4)
    first, last = table.iloc[:4].mean(), table.iloc[-4:].mean()
    if method in ("ours", "r_ill_only"):
        assert result.best.rir > 3 * result.start.rir == pytest.approx(3)
        assert last["ill"] < first["ill"]
    elif method == "opt_kappa":
        assert table["kappa_harmful"].lt(0).all()
    else:
        name, factor = {"imma": (HARMFUL, 2.0), "erase": (LEFT, 0.8)}[method]
        assert 0 <= last[name] < factor * first[name]


def test_the_result_of_the_default_keeps_the_accuracy_floor(run, backbone, D_P, transform):
    fit_head(backbone, Samples(D_P, transform).features(backbone))
    found = run(SHORT.with_overrides(steps=20, batch_size=100, record_every=5))
    assert found.best.accuracy >= found.start.accuracy - found.settings.max_accuracy_drop
    best = found.history[found.history["step"] == found.best_step]
    assert found.best_step == 0 or best["accuracy"].item() == found.best.accuracy


def test_the_preset_is_table_4(run, backbone):
    before = copy.deepcopy(backbone.state_dict())
    result = run("resnet18-cars")
    chosen, whole = result.settings, deep_preset("resnet18-cars")
    assert chosen == whole.with_overrides(group_size=100)
    assert (chosen.optimizer, chosen.learning_rate, chosen.batch_size, chosen.epochs) == ("sgd", 1e-5, 128, 3)
    assert result.part_weights == {"supervised": 1.0, "well": 5e-5, "ill": 2e6}
    assert result.steps == 3  # passes over the 128 harmful images that are not held out
    assert moved(before, result.theta_I)
    published = [deep_preset(name) for name in ("resnet18-country211", "vit-cars", "vit-country211")]
    assert [(of.lambda_benign, of.lambda_harmful, of.epochs) for of in published] == [
        (1e-4, 2e6, 3), (3e-6, 3e8, 2), (1e-6, 1e8, 2)
    ]  # fmt: skip


KILLED = """
import os, signal, sys
from condnum.deep import Backbone, immunize_backbone, open_images, evaluation_transform, train, DeepSettings
def run(path):
    D_P, D_H = (open_images(f"digits-8x8:{digits}", limit=20) for digits in ("0-4", "5-9"))
    settings = DeepSettings(steps=6, batch_size=40, record_every=2, groups=2, learning_rate=1e-3)
    net, small = Backbone("test_resnet", num_classes=5), evaluation_transform(input_size=16, crop_pct=1.0)
    return immunize_backbone(net, D_P, D_H, method=sys.argv[1], settings=settings, transform=small,
                             checkpoint=path, activations=path and path + ".kept", device="cpu")
def kill(step, stage, **_):
    if stage.startswith("immunize") and step == 5:  # one step after the checkpoint of step 4
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["imma"])
def test_a_killed_run_goes_on_to_the_end_of_an_undisturbed_one(method, tmp_path, monkeypatch):
    path, names = str(tmp_path / "run.ckpt"), {}
    code = KILLED + "train.report_event = kill\nrun(sys.argv[2])"
    killed = subprocess.run([sys.executable, "-c", code, method, path], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    monkeypatch.setattr(sys, "argv", ["", method])
    exec(KILLED, names)
    whole, resumed = names["run"](None), names["run"](path)
    assert torch.load(path, weights_only=True)["step"] == 6
    assert np.allclose(resumed.history, whole.history, rtol=1e-5, atol=1e-6, equal_nan=True)
    for a, b in zip(resumed.theta_I.parameters(), whole.theta_I.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
