"""Fig. 3: the probe against autograd, the choice of the learning rate, and the convex upper line."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from condnum.deep import convex_probe, probe_accuracy
from condnum.deep.probe import softmax_descents
from condnum.errors import InvalidInputError

X = torch.randn(90, 7, generator=torch.Generator().manual_seed(0)).double()
y = torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def digits():
    """8×8 digits as features: (X_train, y_train, X_test, y_test)."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order] / 16, y[order]
    return X[:1200].astype(np.float32), y[:1200], X[1200:].astype(np.float32), y[1200:]


@pytest.mark.parametrize("logits", [1 << 24, 100], ids=["one part", "many parts"])
def test_descent_is_that_of_torchs_own_layer_loss_and_optimizer(monkeypatch, logits):
    monkeypatch.setattr("condnum.deep.probe._LOGITS", logits)
    rates = np.array([0.05, 0.5, 2.0])
    _, losses = softmax_descents([(X, y)], 4, rates, 3)
    assert losses[0, 0] == pytest.approx(np.log(4))
    for k, rate in enumerate(rates):
        head = nn.Linear(7, 4).double()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        stepper = torch.optim.SGD(head.parameters(), lr=rate)
        for epoch in range(1, 4):
            stepper.zero_grad()
            nn.functional.cross_entropy(head(X), y).backward()
            stepper.step()
            expected = float(nn.functional.cross_entropy(head(X), y).detach())
            assert losses[epoch, 0, k] == pytest.approx(expected, rel=1e-10)


def test_a_rate_that_overflows_is_nan_and_spares_the_others():
    large = X.float() * 1e18
    accuracies, _ = softmax_descents([(large, y)], 4, np.array([1e-38, 1e25]), 5)
    assert np.isnan(accuracies[-1, 0, 1])
    assert np.isfinite(accuracies[:, 0, 0]).all()


def test_digits_are_learned_and_the_test_rows_choose_nothing(digits):
    X, y, Z, z = digits
    honest = probe_accuracy(X, y, Z, z, epochs=30)
    assert len(honest.test_accuracy) == 31
    assert honest.test_accuracy[0] < 0.2  # all weights zero: one class for everything
    assert 0.85 < honest.test_accuracy[-1] < 1
    poisoned = probe_accuracy(X, y, Z[::-1].copy(), np.roll(z, 3), epochs=30)
    assert honest.learning_rate == poisoned.learning_rate
    assert honest.test_accuracy[-1] != poisoned.test_accuracy[-1]


def test_an_ill_conditioned_map_slows_gd_but_not_the_informed_attacker(digits):
    # An invertible map of the features: the same best classifier, a worse condition number.
    X, y, Z, z = digits
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 64)))[0]
    A = (V * np.geomspace(1, 1e-3, 64)) @ V.T
    plain, slow = (probe_accuracy(X @ M, y, Z @ M, z).test_accuracy[-1] for M in (np.eye(64), A))
    assert slow < plain - 0.1
    assert convex_probe(X @ A, y, Z @ A, z).test_accuracy > slow + 0.1


def test_the_convex_probe_is_scikit_learns_on_standardized_features(digits, monkeypatch):
    X, y, Z, z = digits
    chosen = convex_probe(*digits)
    assert chosen.penalty == (1e-3, 1e-1, 1e1, 1e3)[int(np.argmax(chosen.heldout_accuracies))]
    assert chosen.converged
    mean, std = X.astype(float).mean(0), X.astype(float).std(0)
    scale = np.divide(1, std, out=np.zeros_like(std), where=std > 1e-6)
    model = LogisticRegression(C=chosen.penalty, max_iter=1000).fit((X - mean) * scale, y)
    assert chosen.test_accuracy == pytest.approx(model.score((Z - mean) * scale, z), abs=0.004)
    assert chosen.test_accuracy > 0.93
    monkeypatch.setattr("condnum.deep.probe._ITERATIONS", 2)
    stopped = convex_probe(*digits)
    assert (stopped.converged, stopped.iterations) == (False, 2)


ROWS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


@pytest.mark.parametrize("probe", [probe_accuracy, convex_probe])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.zeros(20, int)}, r"holds the classes \[0\]; a probe needs two or more"),
        ({"y_train": np.arange(20) % 2 - 1}, r"holds the classes \[-1, 0\]"),
        ({"y_test": np.arange(20) % 3}, r"6 label\(s\) that y_train does not hold, the first is 2"),
        ({"y_train": np.arange(20) / 2}, "one integer for each of the 20 rows"),
        ({"y_train": np.arange(19) % 2}, "one integer for each of the 20 rows"),
        ({"features_test": ROWS[:, :2]}, "3 columns and features_test 2"),
        ({"features_train": ROWS * np.nan}, "features_train holds 60 non-finite"),
        ({"features_train": ROWS[0]}, "features_train must have 2 dimension"),
        ({"y_train": np.arange(20), "y_test": np.arange(20)}, "no class has two training rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_is_refused(probe, change, message):
    labels = np.arange(20) % 2
    arguments = {"features_train": ROWS, "y_train": labels, "features_test": ROWS, "y_test": labels}
    with pytest.raises(InvalidInputError, match=message):
        probe(**{**arguments, **change})
