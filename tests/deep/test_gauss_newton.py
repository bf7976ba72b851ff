"""The GGN against closed forms, dense matrices and gradient descent that is really run."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader, TensorDataset

from condnum import condition_number, covariance, hessian
from condnum.deep import Backbone, curvature, gauss_newton, gradient_spectrum
from condnum.deep.ggn_operator import ggn_operator
from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.probing.recurrences import rate_steps


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_hot(labels, classes):
    return nn.functional.one_hot(labels, classes).double()


def linear(features, outputs, *, bias=False):
    return nn.Linear(features, outputs, bias=bias).double()


def with_spectrum(values, seed=0):
    """Rows `(P, P)` of a linear model with one output whose GGN, squared loss, has these eigenvalues."""
    P = len(values)
    U, V = (torch.linalg.qr(draw(P, P, seed=seed + k)).Q for k in range(2))
    return (U * (P * torch.as_tensor(values)).sqrt()) @ V.mT


def dense(model, parameters, X, loss):
    """The GGN from Jacobians: JᵀHJ/N, H the identity or diag(p) − ppᵀ."""
    names = {id(p): name for name, p in model.named_parameters()}
    own = {names[id(p)]: p.detach() for p in parameters}
    parts = jacrev(lambda w: functional_call(model, w, (X,)))(own)
    J = torch.cat([part.flatten(2) for part in parts.values()], dim=2)
    p = model(X).softmax(dim=1).detach()
    H = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    if loss == "squared":
        H = torch.eye(p.shape[1], dtype=p.dtype).expand(len(X), -1, -1)
    return (torch.einsum("nci,ncd,ndj->ij", J, H, J) / len(X)).detach()


def check_operator(model, parameters, data, loss, expected):
    """Compare the matrix, many directions at a time and one at a time."""
    scale = 1e-9 * float(expected.abs().max())
    with ggn_operator(model, parameters, data, loss) as G:
        torch.testing.assert_close(G @ torch.eye(len(expected), dtype=G.dtype), expected, rtol=0, atol=scale)
        v = draw(len(expected))
        torch.testing.assert_close(G @ v, expected @ v, rtol=0, atol=scale * len(v))


@pytest.fixture
def by_lanczos(monkeypatch):
    """However small the problem, the matrix is not formed."""
    monkeypatch.setattr(gauss_newton, "DENSE", 0)


def test_linear_head_with_squared_loss_has_the_covariance_in_each_output():
    X, y = draw(30, 4), torch.arange(30) % 3
    model = linear(4, 3, bias=True)
    whole = torch.cat([X, torch.ones(30, 1).double()], dim=1)
    data = [(X, one_hot(y, 3))]
    found = curvature(model, model.parameters(), data, loss="squared")
    expected = np.sort(np.repeat(torch.linalg.eigvalsh(whole.mT @ whole / 30).numpy(), 3))
    np.testing.assert_allclose(found.eigenvalues, expected, rtol=1e-10)
    assert (found.parameters, found.rows, found.rank_bound, found.exact) == (15, 30, 15, True)
    assert found.condition == pytest.approx(condition_number(whole.numpy(), kind="features").value, rel=1e-9)
    check_operator(model, [model.weight], data, "squared", torch.kron(torch.eye(3).double(), X.mT @ X / 30))


def test_softmax_at_zero_weights_has_the_covariance_over_c_in_c_minus_1_outputs():
    X = draw(30, 4)
    model = linear(4, 3)
    nn.init.zeros_(model.weight)
    found = curvature(model, model.parameters(), [(X, torch.arange(30) % 3)])
    values = torch.linalg.eigvalsh(X.mT @ X / 90).numpy()
    np.testing.assert_allclose(found.eigenvalues[4:], np.repeat(values, 2), rtol=1e-9)
    assert found.condition == pytest.approx(values[-1] / values[0])  # the 4 zeros are below the floor
    assert curvature(model, model.parameters(), [(X[:3], torch.arange(3))]).rank_bound == 6


@pytest.mark.parametrize("mode", ["matrix", "lanczos"])
def test_condition_of_a_probe_on_a_linear_extractor_is_the_librarys(mode, request):
    if mode == "lanczos":
        request.getfixturevalue("by_lanczos")
    theta, X = draw(6, 5, seed=1), draw(40, 6)
    model = nn.Sequential(linear(6, 5), linear(5, 2))
    model[0].weight.data = theta.mT
    data = [(X, one_hot(torch.arange(40) % 2, 2))]
    found = curvature(model, model[1].parameters(), data, loss="squared")
    H = hessian(theta, covariance(X))
    assert found.resolved
    assert found.condition == pytest.approx(condition_number(H).value, rel=1e-8)
    assert found.largest == pytest.approx(condition_number(H).sigma_max / 40, rel=1e-10)


@pytest.mark.parametrize(
    ("name", "norm", "loss"),
    [("test_resnet", "layer1.0.bn1", "cross_entropy"), ("test_vit", "blocks.0.norm1", "squared")],
    ids=["resnet", "vit"],
)
def test_equals_the_dense_matrix_of_a_net(name, norm, loss, by_lanczos):
    options = {"img_size": 32} if "vit" in name else {}
    model = Backbone(name, num_classes=3, **options).model.double()
    parameters = [*model.get_submodule(norm).parameters(), *model.get_classifier().parameters()]
    X, y = draw(5, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1])
    y = one_hot(y, 3) if loss == "squared" else y
    data = [(X[:2], y[:2]), (X[2:], y[2:])]
    expected = dense(model, parameters, X, loss)
    check_operator(model, parameters, data, loss, expected)
    values = torch.linalg.eigvalsh(expected).numpy()
    found = curvature(model, parameters, data, loss=loss, floor=1e-9)
    above = values[values > 1e-9 * values[-1]]
    assert len(above) <= found.rank_bound <= 15
    assert found.resolved  # 20 steps exhaust the range
    assert found.condition == pytest.approx(above[-1] / above[0], rel=1e-6)


class Factors(nn.Module):
    """W + BA, as LoRA adds it."""

    def __init__(self, weight):
        super().__init__()
        self.A = nn.Parameter(draw(2, weight[0].numel(), seed=3))
        self.B = nn.Parameter(draw(len(weight), 2, seed=4))

    def forward(self, weight):
        return weight + (self.B @ self.A).view_as(weight)


def test_parameters_behind_a_parametrization():
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4)).double()
    for layer in (model[0], model[3]):
        parametrize.register_parametrization(layer, "weight", Factors(layer.weight))
    parameters = [p for i in (0, 3) for p in model[i].parametrizations.weight[0].parameters()]
    X, y = draw(6, 1, 3, 3), torch.arange(6) % 4
    expected = dense(model, parameters, X, "cross_entropy")
    assert expected.shape == (46, 46)
    check_operator(model, parameters, [(X, y)], "cross_entropy", expected)


@pytest.mark.parametrize("iterations", [2, 4, 8, 16, 32, 60])
@pytest.mark.parametrize("spread", [6, 2], ids=["across the floor", "above it"])
def test_what_lanczos_does_not_resolve_is_a_bound_on_the_right_side(iterations, spread, by_lanczos):
    values = np.logspace(0, -spread, 60)
    X = with_spectrum(values)
    model = linear(60, 1)
    found = curvature(
        model, model.parameters(), [(X, X[:, :1])], loss="squared", floor=1e-3, iterations=iterations
    )
    smallest = values[values > 1e-3][-1]
    assert found.resolved == (iterations == 60)
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
    assert exact.round_off < 1e-14 < exact.floor < 1e-12
    assert exact.condition > 1e8  # the real one
    assert 1e-9 < single.round_off < single.floor < 1e-5  # raised above the noise
    assert single.condition < 1 / single.floor


def test_batches_do_not_matter_and_the_model_is_left_as_it_was():
    model = nn.Sequential(linear(4, 5), nn.BatchNorm1d(5).double(), nn.Dropout(), linear(5, 3)).train()
    model[0].weight.requires_grad_(False)
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    X, y = draw(20, 4), torch.arange(20) % 3
    loader = DataLoader(TensorDataset(X, y), batch_size=3, shuffle=True)
    split = [(X[:1], y[:1]), (X[1:12], y[1:12]), (X[12:], y[12:])]
    runs = [curvature(model, model[:2].parameters(), data) for data in ([(X, y)], split, loader)]
    nodes = [gradient_spectrum(model, model[:2].parameters(), d).ritz_values[0] for d in ([(X, y)], split)]
    for run in runs[1:]:
        np.testing.assert_allclose(run.eigenvalues, runs[0].eigenvalues, atol=1e-12)
    assert nodes[1] == pytest.approx(nodes[0])
    assert [part.training for part in model] == [True, True, False, True]
    assert [p.requires_grad for p in model[:2].parameters()] == [False, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("share", [0.5, 0.1, 1e-2, 1e-4])
def test_predicted_steps_are_those_that_gradient_descent_takes(share):
    X, T = with_spectrum(np.logspace(0, -2, 8)), draw(8, 2, seed=5)
    model = linear(8, 2)
    nn.init.zeros_(model.weight)
    found = gradient_spectrum(model, model.parameters(), [(X, T)], loss="squared")
    assert found.exhausted
    assert found.excess == pytest.approx(float(T.square().sum()) / 16)  # X is square: the optimum is 0
    predicted = found.steps(share)
    optimizer = torch.optim.SGD(model.parameters(), lr=found.best_rate(int(predicted)))
    taken = 0
    while (loss := (model(X) - T).square().sum() / 16) > share * found.excess * (1 + 1e-9):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken += 1
    assert taken == predicted
    assert min(found.left(taken - 1, eta) for eta in np.linspace(0.02, 2.1, 500)) > share  # no rate is faster
    assert found.kappa_steps(share) == rate_steps(99 / 101, share)
    assert predicted <= found.kappa_steps(share)


def test_nodes_are_those_of_the_gradients_measure():
    X, y = draw(12, 5), torch.arange(12) % 3
    model = nn.Sequential(linear(5, 4), nn.Tanh(), linear(4, 3))
    found = gradient_spectrum(model, model.parameters(), [(X, y)], floor=1e-12)
    G = dense(model, list(model.parameters()), X, "cross_entropy")
    grads = torch.autograd.grad(nn.functional.cross_entropy(model(X), y), list(model.parameters()))
    g = torch.cat([part.flatten() for part in grads])
    moments = [float(g @ torch.linalg.matrix_power(G, k) @ g) for k in range(4)]
    nodes = [float(found.weights @ found.ritz_values**k) for k in range(4)]
    np.testing.assert_allclose(nodes, moments, rtol=1e-8)
    assert found.gradient_norm == pytest.approx(float(g.norm()))
    assert found.excess == pytest.approx(float(g @ torch.linalg.pinv(G, rtol=1e-10) @ g) / 2, rel=1e-4)
    short = gradient_spectrum(model, model.parameters(), [(X, y)], iterations=3)
    assert not short.exhausted
    assert short.excess < found.excess  # what has no node is missing


X, y = draw(6, 4), torch.arange(6) % 2
MODEL = linear(4, 2)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"parameters": []}, InvalidInputError, "0 parameters are given"),
        ({"parameters": [MODEL.weight, nn.Parameter(draw(3))]}, InvalidInputError, r"number 1 \(\(3,\)\)"),
        ({"parameters": [MODEL.weight, MODEL.weight]}, InvalidInputError, "each must occur once"),
        ({"data": []}, InvalidInputError, "0 rows"),
        ({"data": iter([(X, y)])}, InvalidInputError, "6 rows in one pass and 0 in the next"),
        ({"loss": "hinge"}, UnknownNameError, "unknown loss 'hinge'"),
        ({"floor": 0.0}, InvalidInputError, "floor must lie between 0 and 1, got 0.0"),
        ({"iterations": 0}, InvalidInputError, "iterations must be an integer"),
        ({"data": [(X * math.nan, y)]}, InvalidInputError, "outputs are not finite"),
        ({"data": [(X, y + 1)]}, InvalidInputError, "integers from 0 to 1"),
        ({"data": [(X, X)]}, InvalidInputError, "do not fit outputs"),
        ({"data": [(X, X)], "loss": "squared"}, InvalidInputError, r"give finite targets \(B, C\)"),
        ({"data": [(X[:, None], y)]}, InvalidInputError, r"must return \(B, C\)"),
        ({"data": [(X * 0, y)]}, RankError, "no output depends on them|gradient is zero"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("function", [curvature, gradient_spectrum])
def test_refused(function, change, error, match):
    if isinstance(change.get("data"), type(iter([]))):
        change = {"data": iter([(X, y)])}  # the one above is used up by the other function
    arguments = {"parameters": MODEL.parameters(), "data": [(X, y)]} | change
    with pytest.raises(error, match=match):
        function(MODEL, arguments.pop("parameters"), arguments.pop("data"), **arguments)


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_shares_are_checked(share):
    found = gradient_spectrum(MODEL, MODEL.parameters(), [(X, y)])
    for predict in (found.steps, found.kappa_steps):
        with pytest.raises(InvalidInputError, match="share must lie between 0 and 1"):
            predict(share)


@pytest.mark.parametrize("function", [curvature, gradient_spectrum])
def test_parameters_that_reach_no_output(function):
    model = nn.ModuleDict({"used": linear(4, 2), "idle": linear(4, 2)})
    model.forward = model["used"].forward
    found = function(model, model.parameters(), [(X, y)])
    assert found.iterations <= 16
    with pytest.raises(RankError, match="no output depends on them"):
        function(model, model["idle"].parameters(), [(X, y)])


def test_round_off_makes_no_node():
    """In float32 Lanczos may leave a gradient's space: what it finds there depends on the batches alone."""
    net = Backbone("test_resnet", num_classes=3).model
    images, labels = draw(20, 3, 32, 32).float(), torch.arange(20) % 3
    splits = [(images, labels)], [(images[:8], labels[:8]), (images[8:], labels[8:])]
    one, two = (gradient_spectrum(net, net.parameters(), data) for data in splits)
    assert one.condition == pytest.approx(two.condition, rel=1e-3)
