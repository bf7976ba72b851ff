"""One step's gradients against those that autograd finds for the whole objective at once."""

from __future__ import annotations

import copy
import math

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
    for name, data in (("pretrain", D_P), ("harmful", D_H)):
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
    X_P, X_H = (net(both[name].inputs.double()) for name in ("pretrain", "harmful"))
    loss = cross_entropy(net.head(X_P), both["pretrain"].labels)
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
            value = float(0.7 * loss("pretrain", net.head) - loss("harmful", step.probe))
            for p, s in zip(theta, start, strict=True):
                p.copy_(s)
        return value

    slope = (outer(1e-5) - outer(-1e-5)) / 2e-5
    along = sum(float((g * w).sum()) for g, w in zip(found, way, strict=True))
    assert along == pytest.approx(slope, rel=1e-4)
    assert all(p.grad is not None for p in step.probe.parameters())


def simulated(net, batch, K, rate):
    """Losses (K + 1) and gradients of an attacker on D_H in a plain loop, without second derivatives."""
    attacked = copy.deepcopy(net)
    theta = [*attacked.trainable_parameters()]
    X, y = attacked(batch.inputs.double()).detach(), batch.labels
    M = torch.stack([(X[y == c].sum(dim=0) + X.mean(dim=0)) / ((y == c).sum() + 1) for c in range(5)])
    within = sum(float((x - M[c]).square().sum()) for x, c in zip(X, y, strict=True)) / len(X)
    head = torch.nn.Linear(X.shape[1], 5).double()
    head.weight.data, head.bias.data = 2 * M / within, -M.square().sum(dim=1) / within
    losses, gradients = [], []
    for _ in range(K + 1):
        loss = cross_entropy(head(attacked(batch.inputs.double())), y)
        found = torch.autograd.grad(loss, [*theta, head.weight, head.bias])
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([g.reshape(-1) for g in found]))
        with torch.no_grad():
            for p, g in zip([*theta, head.weight, head.bias], found, strict=True):
                p -= rate * g
    return losses, gradients


def trap_value(losses, gradients, rate):
    K = len(losses) - 1
    return math.log1p(math.exp(losses[0] - losses[K] - K * rate * float(gradients[0] @ gradients[0])))


def contract_value(losses, gradients, rate):
    """ΔL_K + ‖g_K‖B + L̃B²/2 + softplus(ĉ − c̄) + mean softplus(κ_min − κ_k) − L_0, ĉ of the update map."""
    K, u = len(losses) - 1, [-rate * g for g in gradients]  # u[k] leads from step k to k + 1
    c = float(u[K].norm() / u[K - 1].norm())  # T(z_K) − T(z_(K−1)) = u[K]
    B, L = float(u[K - 1].norm()) / (1 - c), float((gradients[K] - gradients[K - 1]).norm() / u[K - 1].norm())
    gain = losses[0] - losses[K] + float(gradients[K].norm()) * B + L / 2 * B**2
    bends = [rate * float((gradients[k + 1] - gradients[k]) @ u[k] / (u[k] @ u[k])) for k in range(K)]
    softplus = [math.log1p(math.exp(0.1 - bend)) for bend in bends]
    return gain + math.log1p(math.exp(c - 0.9)) + sum(softplus) / K - losses[0]


@pytest.mark.parametrize(
    ("method", "part", "value"), [("trap", "trap", trap_value), ("contract", "contract", contract_value)]
)
def test_parts_on_a_simulated_attacker(method, part, value, D_P, D_H, transform):
    """Value by a plain loop, gradient by its central differences along a direction; a net without kinks."""
    K, rate = 2, 1.0  # a path that contracts
    net = Backbone("test_vit", num_classes=5, seed=3, img_size=16, patch_size=8).double().train()
    both = tasks(D_P, D_H, transform)
    step = objective(net, method, SETTINGS.with_overrides(inner_steps=K, inner_rate=rate))
    found = step.backward(both, {part: 1.0}, (0,))
    theta, gradients = step.theta, [p.grad.clone() for p in step.theta]
    losses, slopes = simulated(net, both["harmful"], K, rate)
    assert slopes[-1].norm() < 0.98 * slopes[-2].norm()  # no clamp is active
    assert found == {part: pytest.approx(value(losses, slopes, rate), rel=1e-9)}
    generator = torch.Generator().manual_seed(0)
    way = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs().mean() for p in theta]
    start, ends = [p.detach().clone() for p in theta], []
    for length in (1e-5, -1e-5):
        for p, s, d in zip(theta, start, way, strict=True):
            p.data = s + length * d
        ends.append(value(*simulated(net, both["harmful"], K, rate), rate))
    along = sum(float((g * w).sum()) for g, w in zip(gradients, way, strict=True))
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        ("ours", WEIGHTS),
        ("r_ill_only", {"ill": 1e3, "supervised": 0.7}),
        ("opt_kappa", {"kappa_pretrain": 1.0, "kappa_harmful": 1.0, "supervised": 0.7}),
        ("imma", {"supervised": 0.7}),
        ("trap", WEIGHTS | {"trap": 1.0}),
        ("contract", {"contract": 1.0, "supervised": 0.7}),
    ],
)
@pytest.mark.parametrize("empty", ["pretrain", "harmful"])
def test_a_task_of_which_no_image_decodes_is_left_out_of_a_step(
    method, weights, empty, net, D_P, D_H, transform
):
    both = tasks(D_P, D_H, transform)
    both[empty] = Batch(both[empty].inputs[:0], both[empty].labels[:0])
    step = objective(net, method)
    values = step.backward(both, weights, (0,))
    assert np.isfinite([*values.values(), step.gradient_norm]).all()
