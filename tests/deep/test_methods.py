"""What methods do in a step: terms against dense references, gradients against central differences."""

import numpy as np
import pytest
import torch
from problems import draw
from sklearn.linear_model import Ridge
from torch.nn import functional

from condnum.deep import Backbone, DeepSettings, NetStep, Samples
from condnum.deep import methods as on_nets
from condnum.deep.methods import LEFT, PENALTIES, SUPERVISED, get_net_method, transformed_images
from condnum.theory.features import feature_r_ill, feature_r_well

WEIGHTS = {SUPERVISED: 0.7, "well": 1e-7, "ill": 1e3, "kappa_benign": 1.0, "kappa_harmful": 1.0}


@pytest.fixture
def step(D_P, D_H, transform):
    """Make a step of 48 images of each task, from activations where a net is to be run from them."""

    def make(net, *, key=(0, 0), kept=False, counts=(48, 48), **settings):
        sets = [Samples(data, transform) for data in (D_P, D_H)]
        sets = [samples.keep(net) if kept else samples for samples in sets]
        found = [next(samples.batches([np.arange(n)])) for samples, n in zip(sets, counts, strict=True)]
        batches = {name: batch._replace(inputs=batch.inputs.double()) for name, batch in
                   zip(("benign", "harmful"), found, strict=True)}  # fmt: skip
        probe = torch.nn.Linear(net.num_features, 5).double()
        theta_0 = net.double().train().snapshot()
        return NetStep(net, batches, DeepSettings(**settings), probe, theta_0, key)

    return make


@pytest.fixture
def smooth():
    """A net without kinks, all of it trained."""
    return Backbone("test_vit", num_classes=5, seed=3, img_size=16, patch_size=8).whole()


def gradients(step):
    return torch.cat([p.grad.reshape(-1) for p in (*step.theta, *step.heads) if p.grad is not None])


def backward(method, step, weights=WEIGHTS):
    for p in (*step.theta, *step.heads):
        p.grad = torch.zeros_like(p)
    known = get_net_method(method)
    step._kept.clear()
    return (known.backward or (lambda step, weights: step.backward(known.parts, weights)))(step, weights)


def slope(step, value, length=1e-5):
    """Central difference of a value along a direction, and the gradient along it."""
    way = [draw(*p.shape, seed=2) * p.detach().abs().mean() for p in step.theta]
    along = sum(float((p.grad * d).sum()) for p, d in zip(step.theta, way, strict=True))
    ends = []
    for move in (length, -2 * length):
        with torch.no_grad():
            for p, d in zip(step.theta, way, strict=True):
                p.add_(move * d)
        ends.append(value())
    return along, (ends[0] - ends[1]) / (2 * length)


def smoothed(logits, labels):
    return functional.cross_entropy(logits, labels, label_smoothing=0.1)


def test_gradients_are_those_of_the_whole_objective_from_images_and_from_activations(backbone, step):
    one = step(backbone)
    values, found = backward("ours", one), gradients(one)
    backbone.zero_grad()
    X_P, X_H = (backbone(one.batches[name].inputs) for name in ("benign", "harmful"))
    loss = smoothed(backbone.head(X_P), one.labels["benign"])
    (0.7 * loss + 1e-7 * feature_r_well(X_P) + 1e3 * feature_r_ill(X_H)).backward()
    torch.testing.assert_close(found[: len(gradients(one))], gradients(one), rtol=1e-7, atol=1e-12)
    assert values[SUPERVISED] == pytest.approx(float(loss.detach()))
    assert values["well"] == pytest.approx(float(feature_r_well(X_P).detach()))
    kept = step(backbone.float().eval(), kept=True)
    assert kept.batches["benign"].activations
    backward("ours", kept)
    torch.testing.assert_close(gradients(kept), found, rtol=1e-4, atol=1e-5 * float(found.abs().max()))


def test_the_bilevel_gradient_goes_through_the_inner_steps(smooth, step):
    one = step(smooth, inner_steps=2, inner_rate=0.05)
    backward("imma", one)

    def loss(task, head):
        return smoothed(head(smooth(one.batches[task].inputs)), one.labels[task])

    def outer():
        start = [p.detach().clone() for p in one.theta]
        for _ in range(2):
            downhill = torch.autograd.grad(loss("harmful", one.probe), one.theta)
            with torch.no_grad():
                for p, g in zip(one.theta, downhill, strict=True):
                    p.sub_(0.05 * g)
        with torch.no_grad():
            value = float(0.7 * loss("benign", smooth.head) - loss("harmful", one.probe))
            for p, s in zip(one.theta, start, strict=True):
                p.copy_(s)
        return value

    assert all(bool(p.grad.any()) for p in one.probe.parameters())
    along, expected = slope(one, outer)
    assert along == pytest.approx(expected, rel=1e-4)


def test_the_gradient_of_erase_is_that_of_all_its_parts(smooth, step):
    """Away from θ₀, where the distance has no slope."""
    one = step(smooth, transformed=True)
    with torch.no_grad():
        for p in one.theta:
            p.add_(1e-2 * draw(*p.shape, seed=4) * p.abs().mean())

    def value():
        found = backward("erase", one)
        return 0.7 * (found[SUPERVISED] + found["distance"]) + found[LEFT]

    value()
    # Values have the round-off of float32 features, 1e-9, and a third derivative of about 10.
    along, expected = slope(one, value, 5e-4)
    assert along == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("columns", [3, 40], ids=["fewer columns than rows", "more"])
def test_ridge_outputs_are_those_of_scikit_learn(columns):
    X, other, y = draw(20, columns) * 100 + 7, draw(9, columns, seed=1), torch.arange(20) % 3
    for penalty in PENALTIES:
        alpha = penalty * float((X - X.mean(dim=0)).square().sum()) / len(X)
        expected = Ridge(alpha=alpha).fit(X, functional.one_hot(y)).predict(other)
        assert on_nets.ridge_outputs(X, y, other, 3, penalty).numpy() == pytest.approx(expected, rel=1e-8)


def test_a_random_change_is_one_for_all_images():
    images = draw(6, 3, 16, 16).float()
    found = [transformed_images(images, (0, number)) for number in range(12)]
    assert torch.equal(found[0], transformed_images(images, (0, 0)))
    assert torch.allclose(found[3][:2], transformed_images(images[:2], (0, 3)), atol=1e-5)
    assert len({part.shape[-1] for part in found}) > 3
    assert transformed_images(images, (0, 0), resize=False).shape == images.shape
