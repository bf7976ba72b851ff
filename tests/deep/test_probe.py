"""Fig. 3: the choice of the learning rate, and the convex upper line."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from condnum.deep.features import ImageFeatures
from condnum.deep.probe import convex_probe, probe_accuracy


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
