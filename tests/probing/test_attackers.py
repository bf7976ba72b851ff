"""Each attacker against plain loops over the rows, torch's optimizers, SciPy and scikit-learn."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import PROBLEMS, columns, turned
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from condnum.probing import ATTACKERS, AttackBudget, Attacker, Race, attack_panel, filters
from condnum.probing.panel import judging_rows
from condnum.theory.slowdown import descent_filter

FAR = AttackBudget(steps=25, dense_steps=8, epsilons=(1e-12,), reported_epsilon=1e-12, batch_size=20, seed=4)


def met(name, least=0.3, **options):
    """What attackers meet of a problem through θ, and the centered features and targets by hand."""
    X, y = PROBLEMS[name]
    theta, problems = turned(X.shape[1], least), []

    def look(problem, budget):
        problems.append(problem)
        race = Race(problem, ["looks"], budget)
        race.observe(np.ones(1), lambda: np.zeros((1, *problem.shape)))
        return race

    attack_panel(X, y, theta, attackers=Attacker("look", "Looks", look), only="theta", **options)
    F, Y = (X - X.mean(axis=0)) @ theta, columns(y) - columns(y).mean(axis=0)
    return problems[0], F / np.sqrt((F**2).mean()), Y / np.sqrt((Y**2).mean())


def excess(F, Y, W):
    """Relative excess loss of weights `(d, m)`; an invertible θ keeps the optimum."""
    best = ((F @ np.linalg.lstsq(F, Y, rcond=1e-10)[0] - Y) ** 2).sum()
    return (((F @ W - Y) ** 2).sum() - best) / ((Y**2).sum() - best)


@pytest.mark.parametrize("name", PROBLEMS)
def test_losses_and_gradients_of_many_candidates_match_autograd(name):
    problem, F, Y = met(name)
    W = np.random.default_rng(0).normal(size=(3, *problem.shape))
    found, gradient = problem.evaluate(W)
    for b in range(3):
        w = torch.from_numpy(W[b]).requires_grad_()
        ((torch.from_numpy(F) @ w - torch.from_numpy(Y)) ** 2).sum().div(len(F)).backward()
        assert found[b] == pytest.approx(excess(F, Y, W[b]), rel=1e-8)
        np.testing.assert_allclose(gradient[b], w.grad.numpy(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(problem.batch_gradient(W, np.arange(len(F))), gradient, rtol=1e-8, atol=1e-10)


def rates(method, top, mu):
    """Step, momentum, and whether the gradient is taken ahead, as the authors write them."""
    root, roots = math.sqrt(3 * top / mu + 1), (math.sqrt(top), math.sqrt(mu))
    return {
        "gd": (2 / (top + mu), 0, 0),
        "momentum": (4 / sum(roots) ** 2, ((roots[0] - roots[1]) / sum(roots)) ** 2, 0),
        "nesterov": (4 / (3 * top + mu), (root - 2) / (root + 2), 1),
    }[method]


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", ["gd", "momentum", "nesterov"])
def test_filters_are_the_plain_loops(method, name):
    problem, F, Y = met(name)
    race = ATTACKERS[method].run(problem, FAR)
    H, b, minima = F.T @ F / len(F), F.T @ Y / len(F), filters.assumed_minima(problem.sigma)
    for candidate, mu in enumerate(minima):
        step, beta, ahead = rates(method, np.linalg.eigvalsh(H)[-1], mu)
        w = before = np.zeros_like(b)
        values = [excess(F, Y, w)]
        for _ in range(len(race.steps) - 1):
            at = w + ahead * beta * (w - before)
            w, before = w - step * (H @ at - b) + beta * (w - before), w
            values.append(excess(F, Y, w))
        np.testing.assert_allclose(np.array(race.excess)[:, candidate], values, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("distinct", [1, 2, 4])
def test_conjugate_gradients_need_as_many_steps_as_distinct_eigenvalues(distinct):
    basis = np.linalg.qr(np.c_[np.ones(30), np.random.default_rng(0).normal(size=(30, 12))])[0][:, 1:]
    X = basis * np.sqrt(np.repeat(np.geomspace(1, 100, distinct), 12 // distinct))
    found = attack_panel(X, X @ np.random.default_rng(1).normal(size=12), attackers="cg").table
    assert found["steps"].tolist()[-1] == distinct


@pytest.mark.parametrize("name", PROBLEMS)
def test_kappa_bounds_steps_of_the_textbook_s_parameters(name):
    problem, *_ = met(name, 0.1)
    sigma, energy = problem.modes.sigma, problem.modes.energy
    last = [
        float(energy @ q[0] ** 2) for q in itertools.islice(filters.gradient_descent(sigma, sigma[-1:]), 5000)
    ]
    for epsilon in (0.1, 0.01, 0.001):
        assert np.flatnonzero(np.array(last) <= epsilon)[0] <= filters.worst_steps(
            "gd", 1 / sigma[-1], epsilon
        )


def test_the_filter_of_gradient_descent_is_exact_for_tiny_eigenvalues():
    sigma = np.geomspace(1, 1e-3, 5)
    for step, q in enumerate(itertools.islice(filters.gradient_descent(sigma, sigma[:1]), 9)):
        np.testing.assert_allclose(descent_filter(sigma, step) if step else np.ones(5), q[0], atol=1e-12)
    assert descent_filter(np.array([1e-17]), 10**17)[0] == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("name", ["numbers", "four classes"])
@pytest.mark.parametrize("method", ["adam", "stacked", "fine_tune"])
def test_each_rate_descends_as_it_would_alone(method, name):
    """Weights start at zero; fine-tuning starts at θ, on the raw inputs."""
    problem, F, Y = met(name)
    race = ATTACKERS[method].run(problem, FAR)
    d, m = problem.shape
    U = np.linalg.qr(np.random.default_rng(FAR.seed).normal(size=(d, d)))[0]
    start = {"adam": [np.zeros((d, m))], "stacked": [U, np.zeros((d, m))]}.get(method)
    if method == "fine_tune":
        X = PROBLEMS[name][0]
        centered = X - X.mean(axis=0)
        F, theta = centered / np.sqrt((centered**2).mean()), turned(d, 0.3)
        start = [theta * np.sqrt((centered**2).mean() / ((centered @ theta) ** 2).mean()), np.zeros((d, m))]
    for candidate in (2, 4):
        layers = [torch.tensor(of, requires_grad=True) for of in start]
        optimizer = torch.optim.Adam(layers, lr=float(race.choices[candidate].split()[1]))
        values = []
        for _ in race.steps:
            W = layers[0] if len(layers) == 1 else layers[0] @ layers[1]
            values.append(excess(F, Y, W.detach().numpy()))
            optimizer.zero_grad()
            ((torch.from_numpy(F) @ W - torch.from_numpy(Y)) ** 2).sum().div(len(F)).backward()
            optimizer.step()
        np.testing.assert_allclose(
            np.array(race.excess)[:, candidate], values, rtol=0.01
        )  # the rate's digits


def test_sgd_takes_each_row_once_an_epoch_and_is_seeded(monkeypatch):
    problem, F, _ = met("numbers")
    seen, really = [], type(problem).batch_gradient
    monkeypatch.setattr(
        type(problem), "batch_gradient", lambda own, W, at: seen.append(at) or really(own, W, at)
    )
    run, again, other = (ATTACKERS["sgd"].run(problem, replace(FAR, seed=of)) for of in (4, 4, 5))
    assert sorted(np.concatenate(seen[: len(F) // 20])) == list(range(len(F)))
    np.testing.assert_array_equal(run.excess, again.excess)
    assert not np.array_equal(run.excess, other.excess, equal_nan=True)


@pytest.mark.parametrize("name", ["numbers", "two classes", "one-hot and a dead column"])
def test_whitened_and_standardized_coordinates(name):
    problem, F, _ = met(name)
    np.testing.assert_allclose(problem.whitened().hessian, np.eye(len(problem.sigma)), atol=1e-12)
    scaled = StandardScaler().fit_transform(F)
    np.testing.assert_allclose(problem.standardized().hessian, scaled.T @ scaled / len(F), atol=1e-9)


def test_solved_heads_are_those_of_the_libraries_on_rows_that_judge():
    X, y = PROBLEMS["four classes"]
    held_out, classes = (X[80:], y[80:]), np.unique(y)
    found = attack_panel(X[:80], y[:80], held_out=held_out, attackers=["closed_form", "logistic"]).table
    accuracy = found.drop_duplicates("attacker").set_index("attacker")["accuracy"]
    judges = judging_rows(40, 0)
    centers = X[:80].mean(axis=0), columns(y)[:80].mean(axis=0)
    W = np.linalg.lstsq(X[:80] - centers[0], columns(y)[:80] - centers[1])[0]
    solved = classes[((X[80:] - centers[0]) @ W + centers[1]).argmax(axis=1)]
    assert accuracy["closed_form"] == pytest.approx((solved == y[80:])[judges].mean())
    scaler = StandardScaler().fit(X[:80])
    model = LogisticRegression(max_iter=200).fit(scaler.transform(X[:80]), y[:80])
    right = model.predict(scaler.transform(X[80:])) == y[80:]
    assert (
        abs(accuracy["logistic"] - right[judges].mean()) <= 2 / judges.sum()
    )  # or that on whitened features
