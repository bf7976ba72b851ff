"""Fig. 3: the choice of the learning rate, and the convex upper line."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from condnum.deep.backbone import Backbone
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.probe import (
    DESCENT_GOAL,
    DESCENT_STEPS,
    convex_probe,
    descent_path,
    fit_head,
    path_slowdown,
    probe_accuracy,
)
from condnum.errors import InvalidInputError


def features(X, y):
    return ImageFeatures(X.astype(np.float32), y, np.arange(len(y)), tuple("0123456789"))


@pytest.fixture(scope="module")
def digits():
    """8×8 digits as features: (X_train, y_train, X_test, y_test)."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order] / 16, y[order]
    return X[:1200].astype(np.float32), y[:1200], X[1200:].astype(np.float32), y[1200:]


def test_digits_are_learned_and_the_test_rows_choose_nothing(digits):
    X, y, Z, z = digits
    honest = probe_accuracy(features(X, y), features(Z, z), epochs=30)
    assert len(honest.test_accuracy) == 31
    assert honest.test_accuracy[0] < 0.2  # all weights zero: one class for everything
    assert 0.85 < honest.test_accuracy[-1] < 1
    poisoned = probe_accuracy(features(X, y), features(Z[::-1], np.roll(z, 3)), epochs=30)
    assert honest.learning_rate == poisoned.learning_rate
    assert honest.test_accuracy[-1] != poisoned.test_accuracy[-1]


@pytest.mark.parametrize("absent", [4, 9])
def test_images_of_a_class_that_training_lacks_are_missed(digits, absent):
    X, y, Z, z = digits
    train, test = features(X[y != absent], y[y != absent]), features(Z, z)
    most = 1 - (z == absent).mean()
    assert probe_accuracy(train, test, epochs=5).test_accuracy[-1] <= most
    assert 0.8 < convex_probe(train, test).test_accuracy <= most
    assert np.isfinite(descent_path(train, test)).all()


def test_the_convex_probe_is_scikit_learns_on_standardized_features(digits, monkeypatch):
    X, y, Z, z = digits
    chosen = convex_probe(features(X, y), features(Z, z))
    assert chosen.converged
    mean, std = X.astype(float).mean(0), X.astype(float).std(0)
    scale = np.divide(1, std, out=np.zeros_like(std), where=std > 1e-6)
    model = LogisticRegression(C=chosen.penalty, max_iter=1000).fit((X - mean) * scale, y)
    assert chosen.test_accuracy == pytest.approx(model.score((Z - mean) * scale, z), abs=0.004)
    assert chosen.test_accuracy > 0.93
    monkeypatch.setattr("condnum.deep.probe._ITERATIONS", 2)
    stopped = convex_probe(features(X, y), features(Z, z))
    assert (stopped.converged, stopped.iterations) == (False, 2)


@pytest.mark.parametrize("classes", [2, 10])
def test_a_fitted_head_is_the_convex_probe(digits, classes):
    X, y, Z, z = digits
    train, test = features(X[y < classes], y[y < classes]), features(Z[z < classes], z[z < classes])
    backbone = Backbone(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, classes)), trainable="0")
    fit_head(backbone, train)
    assert head_accuracy(backbone, test) == pytest.approx(convex_probe(train, test).test_accuracy, abs=0.004)
    bent = Backbone(
        nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 2))), trainable="0", head="1"
    )
    with pytest.raises(InvalidInputError, match=r"not a linear layer.*--finetune-benign"):
        fit_head(bent, train)


def test_the_path_of_a_head_is_that_of_gradient_descent(digits):
    """Steps that are taken, at 1/σ₁ on the squared error of centered one-hot targets."""
    X, y, Z, z = (part[:300] for part in digits)
    path = descent_path(features(X, y), features(Z, z))
    A, B = (of.astype(float) - X.astype(float).mean(0) for of in (X, Z))
    target, wanted = (np.eye(10)[of] - np.eye(10)[y].mean(0) for of in (y, z))
    W, rate, last = np.zeros((64, 10)), 1 / np.linalg.norm(A, 2) ** 2, 100
    for _ in range(last):
        W -= rate * A.T @ (A @ W - target)
    taken = 1 - ((wanted - B @ W) ** 2).sum() / (wanted**2).sum()
    assert path[np.isclose(DESCENT_STEPS, last)] == pytest.approx(taken, abs=1e-9)


def test_a_defense_that_shrinks_what_tells_the_classes_apart_slows_the_head_and_a_scale_does_not(digits):
    """The directions that count have eigenvalues s² times smaller: 1/s² times the steps."""
    _, y, _, z = digits
    drawn = np.random.default_rng(0)
    noise = [np.c_[drawn.normal(size=(len(of), 10)), np.eye(10)[of] / 3] for of in (y, z)]

    def path(scale, strength):
        return descent_path(*(features(scale * rows * np.r_[np.ones(10), np.full(10, strength)], of)
                              for rows, of in zip(noise, (y, z), strict=True)))  # fmt: skip

    plain = path(1.0, 1.0)
    assert path_slowdown(plain, path(1e-3, 1.0)) == 1
    assert path_slowdown(plain, path(1.0, 0.1)) == pytest.approx(100, rel=0.2)
    assert path_slowdown(plain, path(1.0, 0.0)) >= 1e6 / 100  # the goal is not reached: a lower bound
    assert path_slowdown(0 * plain, plain) == 1  # θ₀'s own head learns nothing
    assert 0 < DESCENT_GOAL < 1
