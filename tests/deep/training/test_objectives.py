"""One step's gradients against those that autograd finds for the whole objective at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from condnum.deep import Backbone, DeepSettings
from condnum.deep.training.objectives import DeepObjective
from condnum.deep.training.samples import Batch, Samples
from condnum.theory.features import feature_r_ill, feature_r_well

SETTINGS = DeepSettings(precondition=False)
WEIGHTS = {"well": 1e-7, "ill": 1e3, "supervised": 0.7}


def tasks(D_P, D_H, transform, net=None):
    """Return the first 96 images of each task; those of a net start behind its trunk."""
    found = {}
    for name, data in (("benign", D_P), ("harmful", D_H)):
        samples = Samples(data, transform, seed=0, workers=0)
        if net is not None:
            samples.keep_activations(net, 96)
        (found[name],) = samples.batches(0, [np.arange(96)])
        assert found[name].activations == (net is not None)
    return found


def objective(net, method="ours", settings=SETTINGS):
    return DeepObjective(net, method, settings, harmful_classes=5)


def gradients(backbone):
    """Return all gradients in one vector."""
    parameters = [*backbone.trainable_parameters(), *backbone.head_parameters()]
    return torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])


def cross_entropy(logits, labels):
    return functional.cross_entropy(logits, labels, label_smoothing=0.1)


@pytest.fixture
def net(backbone):
    return backbone.double().train()


def test_gradients_are_those_of_the_whole_objective(net, D_P, D_H, transform):
    both = tasks(D_P, D_H, transform)
    values = objective(net).backward(both, WEIGHTS, (0,))
    found = gradients(net)
    net.zero_grad()
    X_P, X_H = (net(both[name].inputs.double()) for name in ("benign", "harmful"))
    loss = cross_entropy(net.head(X_P), both["benign"].labels)
    (0.7 * loss + 1e-7 * feature_r_well(X_P) + 1e3 * feature_r_ill(X_H)).backward()
    assert torch.allclose(found, gradients(net), rtol=1e-7, atol=1e-12)
    assert values["supervised"] == pytest.approx(float(loss.detach()))
    assert values["well"] == pytest.approx(float(feature_r_well(X_P).detach()))
    objective(net).backward(tasks(D_P, D_H, transform, net.eval()), WEIGHTS, (0,))
    assert torch.allclose(gradients(net), found, rtol=1e-8, atol=1e-12)


def test_bilevel_gradient_goes_through_the_inner_steps(D_P, D_H, transform):
    """Central differences of the outer objective along a direction, inner steps included; without kinks."""
    settings = SETTINGS.with_overrides(inner_steps=2, inner_rate=0.05)
    net = Backbone("test_vit", num_classes=5, seed=3, img_size=16, patch_size=8).double().train()
    both = tasks(D_P, D_H, transform)
    step = objective(net, "imma", settings)
    step.backward(both, {"supervised": 0.7}, (0,))
    theta = step.theta
    found = [p.grad.clone() for p in theta]
    generator = torch.Generator().manual_seed(0)
    way = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs().mean() for p in theta]

    def move(direction, length):
        with torch.no_grad():
            for p, d in zip(theta, direction, strict=True):
                p.add_(length * d)

    def loss(task, head):
        return cross_entropy(head(net(both[task].inputs.double())), both[task].labels)

    def outer(shift):
        start = [p.detach().clone() for p in theta]
        move(way, shift)
        for _ in range(2):
            move(torch.autograd.grad(loss("harmful", step.probe), theta), -0.05)
        with torch.no_grad():
            value = float(0.7 * loss("benign", net.head) - loss("harmful", step.probe))
            for p, s in zip(theta, start, strict=True):
                p.copy_(s)
        return value

    slope = (outer(1e-5) - outer(-1e-5)) / 2e-5
    along = sum(float((g * w).sum()) for g, w in zip(found, way, strict=True))
    assert along == pytest.approx(slope, rel=1e-4)
    assert all(p.grad is not None for p in step.probe.parameters())


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("ours", WEIGHTS),
        ("r_ill_only", {"ill": 1e3, "supervised": 0.7}),
        ("opt_kappa", {"kappa_benign": 1.0, "kappa_harmful": 1.0, "supervised": 0.7}),
        ("imma", {"supervised": 0.7}),
    ],
)
@pytest.mark.parametrize("empty", ["benign", "harmful"])
def test_a_task_of_which_no_image_decodes_is_left_out_of_a_step(
    method, weights, empty, net, D_P, D_H, transform
):
    both = tasks(D_P, D_H, transform)
    both[empty] = Batch(both[empty].inputs[:0], both[empty].labels[:0])
    step = objective(net, method)
    values = step.backward(both, weights, (0,))
    assert np.isfinite([*values.values(), step.gradient_norm]).all()
