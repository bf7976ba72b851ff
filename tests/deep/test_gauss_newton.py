"""The GGN against closed forms, dense matrices and gradient descent that is really run."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.utils import parametrize

from condnum import condition_number, covariance, hessian
from condnum.deep import Backbone, gauss_newton
from condnum.deep.adapters import add_lora
from condnum.deep.gauss_newton import GradientSpectrum, curvature, ggn_operator, gradient_spectrum
from condnum.errors import RankError
from condnum.probing.recurrences import rate_steps


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(features, outputs):
    return nn.Linear(features, outputs, bias=False).double()


def at_zero(features, outputs):
    """A head at zero, where the softmax of C classes has the curvature (I − 11ᵀ/C)/C in the logits."""
    model = linear(features, outputs)
    nn.init.zeros_(model.weight)
    return model


def with_spectrum(values):
    """Rows `(P, P)` on which the GGN of a head of two classes at zero has these eigenvalues, and P zeros."""
    P = len(values)
    U, V = (torch.linalg.qr(draw(P, P, seed=k)).Q for k in range(2))
    return (U * (2 * P * torch.as_tensor(values)).sqrt()) @ V.mT


def dense(model, parameters, X):
    """The GGN from Jacobians: JᵀHJ/N, H = diag(p) − ppᵀ."""
    names = {id(p): name for name, p in model.named_parameters()}
    own = {names[id(p)]: p.detach() for p in parameters}
    parts = jacrev(lambda w: functional_call(model, w, (X,)))(own)
    J = torch.cat([part.flatten(2) for part in parts.values()], dim=2)
    p = model(X).softmax(dim=1).detach()
    H = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return (torch.einsum("nci,ncd,ndj->ij", J, H, J) / len(X)).detach()


def check_operator(model, parameters, data, expected):
    """Compare the matrix, many directions at a time and one at a time."""
    scale = 1e-9 * float(expected.abs().max())
    with ggn_operator(model, parameters, data) as G:
        torch.testing.assert_close(G @ torch.eye(len(expected), dtype=G.dtype), expected, rtol=0, atol=scale)
        v = draw(len(expected))
        torch.testing.assert_close(G @ v, expected @ v, rtol=0, atol=scale * len(v))


@pytest.fixture
def by_lanczos(monkeypatch):
    """However small the problem, the matrix is not formed."""
    monkeypatch.setattr(gauss_newton, "DENSE", 0)


@pytest.mark.parametrize("mode", ["matrix", "lanczos"])
def test_a_head_at_zero_has_the_covariance_and_the_condition_number_of_the_library(mode, request):
    if mode == "lanczos":
        request.getfixturevalue("by_lanczos")
    theta, X = draw(6, 5, seed=1), draw(40, 6)
    model = nn.Sequential(linear(6, 5), at_zero(5, 3))
    model[0].weight.data = theta.mT
    found = curvature(model, model[1].parameters(), [(X, torch.arange(40) % 3)])
    H = hessian(theta, covariance(X))
    values = torch.linalg.eigvalsh(H).numpy() / 120  # each for C − 1 directions of the classes
    if mode == "matrix":
        np.testing.assert_allclose(found.eigenvalues[5:], np.repeat(values, 2), rtol=1e-9)
    assert found.resolved
    assert (found.parameters, found.rows, found.rank_bound) == (15, 40, 15)
    assert found.condition == pytest.approx(condition_number(H).value, rel=1e-8)
    assert found.largest == pytest.approx(values[-1], rel=1e-10)


@pytest.mark.parametrize(
    ("name", "norm"),
    [("test_resnet", "layer1.0.bn1"), ("test_vit", "blocks.0.norm1")],
    ids=["resnet", "vit"],
)
def test_equals_the_dense_matrix_of_a_net(name, norm, by_lanczos):
    options = {"img_size": 32} if "vit" in name else {}
    model = Backbone(name, num_classes=3, **options).model.double()
    parameters = [*model.get_submodule(norm).parameters(), *model.get_classifier().parameters()]
    X, y = draw(5, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1])
    data = [(X[:2], y[:2]), (X[2:], y[2:])]
    expected = dense(model, parameters, X)
    check_operator(model, parameters, data, expected)
    values = torch.linalg.eigvalsh(expected).numpy()
    found = curvature(model, parameters, data, floor=1e-9)
    above = values[values > 1e-9 * values[-1]]
    assert len(above) <= found.rank_bound == 10
    assert found.resolved  # 20 steps exhaust the range
    assert found.condition == pytest.approx(above[-1] / above[0], rel=1e-6)


def test_parameters_behind_a_parametrization():
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4)).double()
    parameters = add_lora(model, 2)
    assert parametrize.is_parametrized(model[0], "weight")
    for k, factor in enumerate(parameters):
        factor.data = draw(*factor.shape, seed=k)
    X, y = draw(6, 1, 3, 3), torch.arange(6) % 4
    expected = dense(model, parameters, X)
    assert expected.shape == (46, 46)
    check_operator(model, parameters, [(X, y)], expected)


@pytest.mark.parametrize("iterations", [2, 4, 8, 16, 32, 62])
@pytest.mark.parametrize("spread", [6, 2], ids=["across the floor", "above it"])
def test_what_lanczos_does_not_resolve_is_a_bound_on_the_right_side(iterations, spread, by_lanczos):
    values = np.logspace(0, -spread, 60)
    X, model = with_spectrum(values), at_zero(60, 2)
    data = [(X, torch.arange(60) % 2)]
    found = curvature(model, model.parameters(), data, floor=1e-3, iterations=iterations)
    smallest = values[values > 1e-3][-1]
    assert found.resolved == (iterations == 62)  # the eigenvalues, and 0
    assert found.largest == pytest.approx(1, rel=1e-5)  # by SciPy where two steps are not enough
    assert found.residuals[0] <= 1e-3
    assert smallest * (1 - 1e-6) <= found.smallest <= 1 + 1e-9
    if found.resolved:
        assert found.smallest == pytest.approx(smallest, rel=1e-6)


def test_float32_says_what_it_cannot_see():
    X, y = draw(40, 6), torch.arange(40) % 3
    X[:, 5] = X[:, 0] + 1e-5 * X[:, 5]
    model = linear(6, 3)
    exact = curvature(model, model.parameters(), [(X, y)], floor=1e-13)
    single = curvature(model.float(), model.parameters(), [(X.float(), y)], floor=1e-13)
    assert exact.floor < 1e-12
    assert exact.condition > 1e8  # the real one
    assert 1e-9 < single.floor < 1e-5  # raised above the noise
    assert single.condition < 1 / single.floor


def test_batches_do_not_matter_and_the_model_is_left_as_it_was():
    model = nn.Sequential(linear(4, 5), nn.BatchNorm1d(5).double(), nn.Dropout(), linear(5, 3)).train()
    model[0].weight.requires_grad_(False)
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    X, y = draw(20, 4), torch.arange(20) % 3
    splits = [(X, y)], [(X[:1], y[:1]), (X[1:12], y[1:12]), (X[12:], y[12:])]
    one, other = (curvature(model, model[:2].parameters(), data).eigenvalues for data in splits)
    nodes = [gradient_spectrum(model, model[:2].parameters(), data).ritz_values[0] for data in splits]
    np.testing.assert_allclose(one, other, atol=1e-12)
    assert nodes[1] == pytest.approx(nodes[0])
    assert [part.training for part in model] == [True, True, False, True]
    assert [p.requires_grad for p in model[:2].parameters()] == [False, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("fraction", [0.5, 0.1, 1e-2, 1e-4])
def test_predicted_steps_are_those_that_gradient_descent_takes(fraction):
    values, weights = np.logspace(0, -2, 8)[::1], draw(8, seed=5).square().numpy()
    found = GradientSpectrum(values, weights, 8, True)
    predicted = found.steps(fraction)
    w, taken, rate = np.sqrt(weights) / values, 0, found.best_rate(int(predicted))  # ½wᵀHw, gradient √τ²
    while 0.5 * w @ (values * w) > fraction * found.excess * (1 + 1e-9):
        w, taken = w - rate * values * w, taken + 1
    assert taken == predicted
    assert min(found.left(taken - 1, eta) for eta in np.linspace(0.02, 2.1, 500)) > fraction  # none is faster
    assert found.kappa_steps(fraction) == rate_steps(99 / 101, fraction)
    assert predicted <= found.kappa_steps(fraction)


def test_nodes_are_those_of_the_gradients_measure():
    X, y = draw(12, 5), torch.arange(12) % 3
    model = nn.Sequential(linear(5, 4), nn.Tanh(), linear(4, 3))
    found = gradient_spectrum(model, model.parameters(), [(X, y)], floor=1e-12)
    G = dense(model, list(model.parameters()), X)
    grads = torch.autograd.grad(nn.functional.cross_entropy(model(X), y), list(model.parameters()))
    g = torch.cat([part.flatten() for part in grads])
    moments = [float(g @ torch.linalg.matrix_power(G, k) @ g) for k in range(4)]
    nodes = [float(found.weights @ found.ritz_values**k) for k in range(4)]
    np.testing.assert_allclose(nodes, moments, rtol=1e-8)
    assert found.excess == pytest.approx(float(g @ torch.linalg.pinv(G, rtol=1e-10) @ g) / 2, rel=1e-4)
    short = gradient_spectrum(model, model.parameters(), [(X, y)], iterations=3)
    assert not short.exhausted
    assert short.excess < found.excess  # what has no node is missing


@pytest.mark.parametrize("function", [curvature, gradient_spectrum])
def test_parameters_that_reach_no_output(function):
    model = nn.ModuleDict({"used": linear(4, 2), "idle": linear(4, 2)})
    model.forward = model["used"].forward
    data = [(draw(6, 4), torch.arange(6) % 2)]
    assert math.isfinite(function(model, model.parameters(), data).condition)
    with pytest.raises(RankError, match="no output depends on them"):
        function(model, model["idle"].parameters(), data)


def test_round_off_makes_no_node():
    """In float32 Lanczos may leave a gradient's space: what it finds there depends on the batches alone."""
    net = Backbone("test_resnet", num_classes=3).model
    images, labels = draw(20, 3, 32, 32).float(), torch.arange(20) % 3
    splits = [(images, labels)], [(images[:8], labels[:8]), (images[8:], labels[8:])]
    one, two = (gradient_spectrum(net, net.parameters(), data) for data in splits)
    assert one.condition == pytest.approx(two.condition, rel=1e-3)
