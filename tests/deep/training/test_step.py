"""One step's gradients against those that autograd finds for the whole objective at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from condnum.deep import Backbone, feature_r_ill, feature_r_well
from condnum.deep.training.processes import Processes
from condnum.deep.training.samples import ActivationSamples, ImageSamples
from condnum.deep.training.settings import DeepSettings
from condnum.deep.training.step import FEATURE_PARTS, BilevelObjective, Objective, TaskBatches, harmful_probe

CPU = torch.device("cpu")
WEIGHTS = {"well": 1e-7, "ill": 1e3, "kappa_pretrain": 1e-4, "kappa_harmful": 1e-4, "supervised": 0.7}


def tasks(D_P, D_H, transform, cuts):
    """Return the first 96 images of each task, cut into batches."""
    found = {}
    for name, data in (("pretrain", D_P), ("harmful", D_H)):
        samples = ImageSamples(data, transform, seed=0, workers=0)
        rows = np.split(np.arange(96), cuts)
        found[name] = TaskBatches(samples, list(samples.batches(0, rows)))
    return found


def gradients(backbone):
    """Return all gradients in one vector."""
    parameters = [*backbone.trainable_parameters(), *backbone.head_parameters()]
    return torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])


@pytest.fixture
def net(backbone):
    return backbone.double().train()


@pytest.fixture
def settings():
    return DeepSettings(precision="float64", precondition=False)


def objective(net, settings):
    return Objective(net, settings, Processes(CPU))


def test_gradients_are_those_of_the_whole_objective(net, D_P, D_H, transform, settings):
    both = tasks(D_P, D_H, transform, [])
    values = objective(net, settings).backward(both, FEATURE_PARTS["ours"], WEIGHTS, (0,))
    found = gradients(net)
    net.zero_grad()
    X_P, X_H = (net(both[name].batches[0].inputs.double()) for name in ("pretrain", "harmful"))
    labels = both["pretrain"].batches[0].labels
    loss = torch.nn.functional.cross_entropy(net.head(X_P), labels, label_smoothing=0.1)
    total = 0.7 * loss + 1e-7 * feature_r_well(X_P) + 1e3 * feature_r_ill(X_H)
    total.backward()
    assert torch.allclose(found, gradients(net), rtol=1e-7, atol=1e-12)
    assert values["supervised"] == pytest.approx(float(loss))
    assert values["well"] == pytest.approx(float(feature_r_well(X_P)))


@pytest.mark.parametrize("method", ["ours", "opt_kappa"])
@pytest.mark.parametrize("precondition", [True, False])
def test_batches_that_share_a_gram_matrix_equal_one_large_batch(
    net, D_P, D_H, transform, settings, method, precondition
):
    chosen = settings.with_overrides(precondition=precondition)
    found = []
    for cuts in ([], [10, 50]):
        values = objective(net, chosen).backward(
            tasks(D_P, D_H, transform, cuts), FEATURE_PARTS[method], WEIGHTS, (0,)
        )
        found.append((gradients(net).clone(), values))
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-6, atol=1e-10 * float(found[0][0].abs().max()))
    assert found[0][1] == pytest.approx(found[1][1])


def test_activations_give_the_gradients_of_images(net, D_P, D_H, transform, settings):
    images = tasks(D_P, D_H, transform, [])
    objective(net, settings).backward(images, FEATURE_PARTS["ours"], WEIGHTS, (0,))
    expected = gradients(net).clone()
    kept = {}
    for name, task in images.items():
        net.eval()
        samples = ActivationSamples(
            net.frozen_activations(task.batches[0].inputs.double())[None], task.batches[0].labels
        )
        kept[name] = TaskBatches(samples, list(samples.batches(0, [np.arange(96)])))
    net.train()
    objective(net, settings).backward(kept, FEATURE_PARTS["ours"], WEIGHTS, (0,))
    assert torch.allclose(gradients(net), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"), [("test_resnet", {}), ("test_vit", {"img_size": 16, "patch_size": 8})]
)
@pytest.mark.parametrize("cuts", [[], [30]])
def test_bilevel_gradient_goes_through_the_inner_steps(name, options, cuts, D_P, D_H, transform):
    """Central differences of the outer objective along a direction, inner steps included."""
    settings = DeepSettings(precision="float64", inner_steps=2, inner_rate=0.05)
    net = Backbone(name, num_classes=5, seed=3, **options).double().train()
    probe = harmful_probe(net.num_features, 5, 0).double()
    both = tasks(D_P, D_H, transform, cuts)
    bilevel = BilevelObjective(objective(net, settings), probe)
    bilevel.backward(both, 0.7, (0,))
    theta = list(net.trainable_parameters())
    found = [p.grad.clone() for p in theta if p.grad is not None]
    generator = torch.Generator().manual_seed(0)
    way = [torch.randn(p.shape, generator=generator, dtype=p.dtype) * p.detach().abs().mean() for p in theta]

    def outer(shift: float):
        start = [p.detach().clone() for p in theta]
        with torch.no_grad():
            for p, w in zip(theta, way, strict=True):
                p.add_(shift * w)
        for _ in range(2):
            loss = sum(
                torch.nn.functional.cross_entropy(
                    probe(net(b.inputs.double())), b.labels, reduction="sum", label_smoothing=0.1
                )
                for b in both["harmful"].batches
            )
            inner = torch.autograd.grad(loss / 96, theta)
            with torch.no_grad():
                for p, g in zip(theta, inner, strict=True):
                    p.sub_(0.05 * g)
        value = 0.0
        with torch.no_grad():
            for task, head, weight in (("pretrain", net.head, 0.7), ("harmful", probe, -1.0)):
                for b in both[task].batches:
                    value += (
                        weight
                        / 96
                        * float(
                            torch.nn.functional.cross_entropy(
                                head(net(b.inputs.double())), b.labels, reduction="sum", label_smoothing=0.1
                            )
                        )
                    )
            for p, s in zip(theta, start, strict=True):
                p.copy_(s)
        return value

    slope = (outer(1e-5) - outer(-1e-5)) / 2e-5
    assert float(sum((g * w).sum() for g, w in zip(found, way, strict=True))) == pytest.approx(
        slope, rel=1e-4
    )
    assert all(p.grad is not None for p in probe.parameters())
