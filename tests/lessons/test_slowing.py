"""Lesson 8: steps, accuracies and price by other computations; the ends of the path."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, RidgeCV

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons import slowing
from condnum.lessons.slowing import START_LABELS, STOPS, digit_tasks, path_extractor, stop
from condnum.theory.erasure import erasure_price

STARTS = pytest.mark.parametrize("start", START_LABELS)
OWN = (TASKS := digit_tasks()).eraser


def fit(rows):  # to Z, the best in raw pixels
    return rows.X @ np.linalg.lstsq(rows.X, rows.Z, rcond=1e-10)[0]


def test_the_split_shares_no_image():
    parts = vars(TASKS).values()
    whole = np.concatenate([rows.images for rows in parts])
    assert len(np.unique(whole, axis=0)) == len(whole) == 1797
    assert min(np.bincount(rows.labels, minlength=5).min() for rows in parts) > 30


@STARTS
def test_the_gradient_shrinks_with_s_and_theta_is_invertible_until_it_ends(start):
    raw, part, gone = (path_extractor(s, start).T @ OWN.X.T @ OWN.Z for s in (1.0, 0.2, 0.0))
    np.testing.assert_allclose(part, 0.2 * raw, atol=1e-9 * np.abs(raw).max())
    np.testing.assert_allclose(gone, 0, atol=1e-10 * np.abs(raw).max())
    assert np.linalg.matrix_rank(path_extractor(0.001, start)) == 48
    for rank in (1, 4):
        assert np.linalg.matrix_rank(path_extractor(0.0, start, rank), tol=1e-8) == 48 - rank


@pytest.mark.parametrize("task", ["harmful", "benign"])
@pytest.mark.parametrize("exact", [False, True])
def test_steps_are_those_of_a_run(task, exact):
    rows = OWN if task == "harmful" else TASKS.benign
    F, least = rows.X @ path_extractor(0.1), np.square(rows.Z - fit(rows)).sum()
    goal = least + slowing.GOAL * (np.square(rows.Z).sum() - least)
    W, steps = np.zeros((48, 5)), 0
    while np.square(F @ W - rows.Z).sum() > goal:
        gradient = F.T @ (F @ W - rows.Z)
        along = np.square(gradient).sum() / np.square(F @ gradient).sum()
        W, steps = W - (along if exact else np.linalg.norm(F, 2) ** -2) * gradient, steps + 1
    found = getattr(stop(0.1, "leace", 4), task)
    assert (found.exact if exact else found.fixed) == steps


@pytest.mark.parametrize("s", [1.0, 0.05, 0.0])
def test_accuracies_are_those_of_scikit_learn(s):
    theta, train, test = path_extractor(s), TASKS.attacker, TASKS.fresh
    F, G = train.X @ theta, (test.images - train.images.mean(axis=0)) @ theta
    found = stop(s, "leace", 4).accuracies

    def share(model):  # Z is centered: the frequencies of the classes come back
        scores = model.fit(F, train.Z).predict(G) + np.bincount(train.labels) / len(F)
        return np.mean(np.argmax(scores, axis=1) == test.labels)

    ridge = RidgeCV(slowing.RIDGES * np.linalg.norm(F, 2) ** 2, gcv_mode="svd")
    assert found["whitened"] == pytest.approx(share(LinearRegression(tol=1e-9)))
    assert found["ridge"] == pytest.approx(share(ridge), abs=2.1 / len(G))  # it refits the intercept
    squares = np.square(F[:, None] - F).sum(axis=2)
    gamma = 1 / np.median(squares)
    ridges = slowing.RIDGES * np.linalg.norm(np.exp(-gamma * squares), 2)
    shares = np.array([share(KernelRidge(alpha=one, kernel="rbf", gamma=gamma)) for one in ridges])
    assert np.abs(found["kernel"] - shares).min() < 1e-12
    assert found["kernel"] > max(shares) - 0.03  # leave-one-out finds a good ridge


@STARTS
def test_whitening_undoes_the_path_until_it_ends_at_a_price(start):
    reached = {stop(s, start, 4).accuracies["whitened"] for s in STOPS if s}
    assert reached == {slowing.accuracy(np.eye(48), TASKS.attacker, TASKS.fresh, whitened=True)}
    erased, rows = stop(0.0, start, 4), TASKS.benign
    assert erased.accuracies["own"] == pytest.approx(np.bincount(OWN.labels).max() / len(OWN.labels))
    assert 0.25 < erased.accuracies["whitened"] < 0.55  # fresh rows: a sampling error is left
    assert erased.accuracies["kernel"] > 0.8
    assert np.isinf([erased.harmful.fixed, erased.harmful.exact]).all()
    price = erasure_price(rows.X, rows.Z, (OWN.X.T @ OWN.Z)[:, :4]) * len(rows.Z)
    assert 1 - erased.benign.fit == pytest.approx(price / np.square(fit(rows)).sum(), rel=1e-8)


def test_it_is_drawn_with_chance_and_a_gap_and_never():
    shown = slowing.slowing(s=0.0)
    figure = shown.figure()
    drawn = {trace.name: trace for trace in figure.data}
    steps = drawn["steps: harmful"]
    np.testing.assert_array_equal(steps.y[:-2], [one.harmful.fixed for one in shown.path[:-1]])
    assert np.isnan(steps.y[-2])
    assert (steps.marker.symbol[-1], steps.y[-1]) == ("triangle-up", figure.layout.yaxis.tickvals[-1])
    assert drawn["accuracy: harmful, eraser's rows"].y[-1] == shown.here.accuracies["own"]
    assert set(drawn["chance"].y) == {0.2}


SAID = {
    (1.0, 4): "needs 13 steps (raw pixels: 13); for the benign task 13 (13). On fresh images",
    (0.1, 4): "although κ(H<sub>H</sub>) fell; for the benign task 28 (13)",
    (0.01, 4): "<b>slowed by a factor of 5,600, not stopped</b>",
    (0.0, 4): "<b>no linear probe learns anything from the eraser's rows</b>. On fresh",
    (0.0, 2): "2 of 4 directions are erased, and 44% of the harmful fit is left",
}


@pytest.mark.parametrize(("s", "rank"), SAID)
def test_what_is_said(s, rank):
    assert SAID[s, rank] in slowing.slowing(s=s, rank=rank).caption()
