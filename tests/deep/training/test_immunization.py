"""Whole runs on a tiny backbone: what is kept, what moves, how a run ends and how it goes on."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import Backbone, DeepSettings, immunize_backbone
from condnum.deep.methods import NET_METHODS, NetStep
from condnum.deep.training import loop
from condnum.deep.training.monitor import Evaluation, Monitor
from condnum.deep.training.samples import Samples, hold_out
from condnum.deep.transforms import training_transform
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError

SHORT = DeepSettings(
    steps=8, batch_size=100, record_every=2, groups=1, optimizer="sgd", learning_rate=1e-3,
    weights="balanced", precondition=True, patience=None,
)  # fmt: skip
ADAPTIVE = DeepSettings(steps=8, batch_size=100, record_every=2, groups=1)


@pytest.fixture
def run(backbone, D_P, D_H, transform):
    def immunized(settings=SHORT, **options):
        arguments = {"transform_P": transform, "transform_H": transform, "device": "cpu", **options}
        net, P, H = (arguments.pop(key, own) for key, own in (("net", backbone), ("P", D_P), ("H", D_H)))
        return immunize_backbone(net, P, H, settings=settings, **arguments)

    return immunized


def states_equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def moved(before, net):
    return {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}


@pytest.mark.parametrize("method", [name for name in NET_METHODS if name != "erase"])
def test_only_the_trainable_part_and_the_head_move(run, backbone, method):
    before = copy.deepcopy(backbone.state_dict())
    result = run(SHORT.with_overrides(keep="last", steps=2), method=method)
    assert not moved(before, backbone)
    assert states_equal(result.theta_0, backbone)
    assert not result.theta_I.training
    keys = moved(before, result.theta_I)
    assert {key.split(".")[1] for key in keys} == {*backbone.trainable, backbone.head_name}
    assert not any("running" in key for key in keys)  # BatchNorm's statistics


@pytest.mark.parametrize(
    ("method", "settings", "augmentation"),
    [
        ("imma", SHORT.with_overrides(schedule="cosine", steps=6), "none"),
        ("ours", ADAPTIVE.with_overrides(steps=6), "none"),
        ("erase", ADAPTIVE.with_overrides(steps=6), "imagenet"),
    ],
)
def test_a_resumed_run_ends_where_an_undisturbed_one_ends(
    run, tmp_path, monkeypatch, method, settings, augmentation
):
    options = {"method": method, "transform_P": training_transform(input_size=16, augmentation=augmentation)}
    whole = run(settings, **options)

    seen = []

    def watched(step, **_):
        seen.append(step)
        if seen == [1, 2, 3, 4, 5]:  # one step after the checkpoint of step 4
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "report_event", watched)
    options["checkpoint"] = path = tmp_path / "kept" / "run.ckpt"
    with pytest.raises(KeyboardInterrupt):
        run(settings, **options)
    resumed = run(settings, **options)
    assert seen == [*range(1, 6), *range(5, whole.steps + 1)]
    assert resumed.history.equals(whole.history)
    assert states_equal(resumed.theta_I, whole.theta_I)
    again = run(settings, **options)
    assert (again.steps, again.best) == (whole.steps, whole.best)
    with pytest.raises(InvalidInputError, match="is the checkpoint of a run with other"):
        run(settings, seed=1, **options)
    path.write_bytes(b"half a file")
    with pytest.raises(DataFormatError, match="not a complete checkpoint"):
        run(settings, **options)


def test_a_value_that_is_not_finite_ends_with_the_last_good_theta(run, monkeypatch):
    original, calls = NetStep.loss, []  # one a step

    def spoiled(*arguments, **options):
        calls.append(1)
        return original(*arguments, **options) * (float("nan") if len(calls) == 6 else 1.0)

    monkeypatch.setattr(NetStep, "loss", spoiled)
    result = run(SHORT.with_overrides(keep="last"))
    assert (result.stop_reason, result.steps, result.best_step) == ("diverged", 5, 4)
    assert "step 6" in result.warnings[0]
    assert "learning_rate" in result.warnings[0]
    assert all(bool(torch.isfinite(value).all()) for value in result.theta_I.state_dict().values())


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"settings": "resnet18-car"}, "did you mean 'resnet18-cars'"),
        ({}, {"net": Backbone("test_resnet", num_classes=4)}, "label 4 .* out of range.* 4 outputs"),
        ({}, {"net": Backbone("test_resnet", num_classes=5).snapshot()}, "snapshot"),
    ],
)
def test_bad_input_is_refused(run, settings, options, message):
    with pytest.raises((InvalidInputError, UnknownNameError), match=message):
        run(**{"settings": SHORT.with_overrides(**settings), **options})


#: Meets all conditions: (i) 2, (ii) 0.5, RIR_θ0 4 and 9, accuracy 0.9.
FINE = Evaluation(0, 4.0, 2.0, 0.5, 9.0, 2.0, 0.5, 0.0, 0.9, 1.0)


@pytest.fixture
def answers(monkeypatch):
    """Put answers by step in place of the monitor's measured ones."""

    def follow(answer):
        monkeypatch.setattr(Monitor, "evaluate", lambda _, __, step: replace(FINE, step=step, **answer(step)))

    return follow


def test_accuracy_comes_first_then_the_conditions_then_a_slower_head_then_rir():
    ascending = [
        {"accuracy": 0.2, "slowdown": 50.0, "rir": 50.0},
        {"benign_ratio": 2.0, "slowdown": 50.0, "rir": 5.0},
        {"benign_ratio": 1.0, "slowdown": 50.0, "rir": 5.0},
        {"rir": 3.0},
        {"rir": 5.0},
        {"slowdown": 3.0, "rir": 1.0},
    ]
    ranks = [replace(FINE, **values).rank(0.85) for values in ascending]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_patience_stops_early_and_a_result_may_be_theta_0(run, answers):
    answers(lambda step: {})
    result = run(SHORT.with_overrides(patience=2))
    assert (result.stop_reason, result.steps, result.best_step) == ("early_stopping", 4, 0)
    assert states_equal(result.theta_I, result.theta_0)
    assert "nothing was immunized" in result.warnings[0]


def test_adaptive_weights_follow_the_worse_of_both_images_and_the_accuracy(run, answers):
    """(ii) is fine on training images but, with its spread, not on held-out ones; the accuracy falls."""
    known = {"benign_ratio": 0.2, "held_benign_ratio": 1.5, "held_benign_std": 0.2}
    answers(lambda step: {**known, "accuracy": 0.9 if step < 4 else 0.84})
    history = run(ADAPTIVE).history
    assert history["ratio"].tolist() == pytest.approx(
        [loop.RATIO_FACTOR**-k for k in (0, 0, 1, 1, 2, 2, 3, 3)]
    )
    assert history["loss_weight"].tolist() == pytest.approx(
        [loop.LOSS_FACTOR**k for k in (0, 0, -1, -1, 0, 0, 1, 1)]
    )


def test_a_larger_rir_is_progress_and_what_is_not_met_is_said(run, answers):
    """(ii) is above 1, and more so with each step: λ_H has yet to come down."""
    answers(lambda step: {"benign_ratio": 1.2 + step, "held_benign_ratio": 1.3 + step,
            "rir": 20.0 + min(step, 4), "held_rir": 30.0})  # fmt: skip
    options = {"patience": 1, "record_every": 1, "learning_rate": 1e-9}
    result = run(ADAPTIVE.with_overrides(steps=9, **options))
    assert result.best_step == 0
    assert result.steps > 4
    (text,) = run(ADAPTIVE.with_overrides(steps=1, keep="last", **options)).warnings
    assert "no θ met all conditions" in text
    assert "the result is the nearest, after step 1" in text


def test_held_out_images_are_not_trained_on(run, monkeypatch, answers, D_P):
    seen, batches = [], Samples.batches

    def spied(self, epoch, rows):
        if self.data is D_P:
            seen.extend(np.concatenate(rows).tolist())
        return batches(self, epoch, rows)

    monkeypatch.setattr(Samples, "batches", spied)
    answers(lambda step: {})
    run(ADAPTIVE)
    rest, held = hold_out(D_P.labels, seed=0)
    trained = seen[len(rest) + len(held) :]  # the monitor takes θ₀'s features of both once
    assert set(trained) == set(rest.tolist())
    assert len(held) == 50
