"""Fig. 3: the probe against autograd, the choice of the learning rate, and the convex upper line."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from condnum.deep import convex_probe, probe_accuracy
from condnum.deep.probe import MULTIPLES, descend
from condnum.errors import InvalidInputError, UnknownNameError

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
@pytest.mark.parametrize("optimizer", ["gd", "sgd"])
def test_descent_is_that_of_torchs_own_layer_loss_and_optimizer(monkeypatch, logits, optimizer):
    monkeypatch.setattr("condnum.deep.probe._LOGITS", logits)
    rates = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
    _, losses = descend([(X, y)], 4, rates, epochs=3, optimizer=optimizer, batch_size=32, seed=5)
    assert losses[0, 0] == pytest.approx(np.log(4))
    generator = torch.Generator().manual_seed(5)
    orders = [torch.randperm(90, generator=generator).split(32) for _ in range(3)]
    for k, rate in enumerate(rates.tolist()):
        head = nn.Linear(7, 4).double()
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        stepper = torch.optim.SGD(head.parameters(), lr=rate)
        for epoch, order in enumerate(orders, 1):
            for batch in order if optimizer == "sgd" else [slice(None)]:
                stepper.zero_grad()
                nn.functional.cross_entropy(head(X[batch]), y[batch]).backward()
                stepper.step()
            expected = float(nn.functional.cross_entropy(head(X), y).detach())
            assert losses[epoch, 0, k] == pytest.approx(expected, rel=1e-10)


def test_a_rate_that_overflows_is_nan_and_spares_the_others():
    large = X.float() * 1e18
    rates = torch.tensor([1e-38, 1e25])
    accuracies, _ = descend([(large, y)], 4, rates, epochs=5, optimizer="gd", batch_size=1, seed=0)
    assert np.isnan(accuracies[-1, 0, 1])
    assert np.isfinite(accuracies[:, 0, 0]).all()


def test_digits_are_learned_and_the_table_is_tidy(digits):
    result = probe_accuracy(*digits, epochs=30, seeds=(0, 1))
    assert 0.85 < result.final_accuracy < 1
    known = "seed role learning_rate multiple epoch train_loss heldout_accuracy test_accuracy"
    assert list(result.curves.columns) == known.split()
    assert len(result.curves) == 2 * 31 * (len(MULTIPLES) + 1)
    assert not result.curves.duplicated(["seed", "role", "learning_rate", "epoch"]).any()
    curve = result.best_curve
    assert curve["epoch"].tolist() == list(range(31))
    assert curve["mean"].iloc[0] < 0.2  # all weights zero: one class for everything
    assert curve["mean"].iloc[-1] == result.final_accuracy


def test_the_test_rows_choose_nothing(digits):
    X, y, Z, z = digits
    honest = probe_accuracy(X, y, Z, z, epochs=10)
    poisoned = probe_accuracy(X, y, Z[::-1].copy(), np.roll(z, 3), epochs=10)
    assert honest.learning_rates == poisoned.learning_rates
    assert honest.final_accuracy != poisoned.final_accuracy


def test_an_ill_conditioned_map_slows_gd_but_not_the_informed_attacker(digits):
    # An invertible map of the features: the same best classifier, a worse condition number.
    X, y, Z, z = digits
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 64)))[0]
    A = (V * np.geomspace(1, 1e-3, 64)) @ V.T
    plain, slow = (probe_accuracy(X @ M, y, Z @ M, z, epochs=50) for M in (np.eye(64), A))
    assert slow.final_accuracy < plain.final_accuracy - 0.1
    assert convex_probe(X @ A, y, Z @ A, z).test_accuracy > slow.final_accuracy + 0.1


def test_the_convex_probe_is_scikit_learns_on_standardised_features(digits):
    X, y, Z, z = digits
    result = convex_probe(*digits, penalties=[0.1])
    mean, std = X.astype(float).mean(0), X.astype(float).std(0)
    scale = np.divide(1, std, out=np.zeros_like(std), where=std > 1e-6)
    model = LogisticRegression(C=0.1, max_iter=1000).fit((X - mean) * scale, y)
    assert result.test_accuracy == pytest.approx(model.score((Z - mean) * scale, z), abs=0.004)
    assert result.converged
    assert result.heldout_accuracies == ()
    chosen = convex_probe(*digits)
    assert chosen.penalty == (1e-3, 1e-1, 1e1, 1e3)[int(np.argmax(chosen.heldout_accuracies))]
    assert chosen.test_accuracy > 0.93
    stopped = convex_probe(*digits, penalties=[1e3], max_iterations=2)
    assert (stopped.converged, stopped.iterations) == (False, 2)


ROWS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.zeros(20, int)}, "one class only"),
        ({"y_train": np.arange(20) % 2 - 1}, "holds -1, out of range"),
        ({"y_test": np.arange(20) % 3}, r"6 label\(s\) out of the range of training, the first is 2"),
        ({"y_train": np.arange(20) / 2}, "one integer for each of the 20 rows"),
        ({"y_train": np.arange(19) % 2}, "one integer for each of the 20 rows"),
        ({"features_test": ROWS[:, :2]}, "3 columns and features_test 2"),
        ({"features_train": ROWS * np.nan}, "features_train holds 60 non-finite"),
        ({"features_train": ROWS[0]}, "features_train must have 2 dimension"),
        ({"y_train": np.arange(20), "y_test": np.arange(20)}, "no class has two training rows"),
        ({"learning_rates": [0.0]}, "learning_rates must be positive"),
        ({"learning_rates": [1e39], "epochs": 3}, "every learning rate diverges"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"seeds": (1, 1)}, "seeds must be different"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'"),
        ({"criterion": "adam"}, "unknown criterion 'adam'"),
        ({"preprocessing": "adam"}, "unknown preprocessing 'adam'"),
    ],
)
def test_what_is_refused(change, message):
    labels = np.arange(20) % 2
    arguments = {"features_train": ROWS, "y_train": labels, "features_test": ROWS, "y_test": labels}
    with pytest.raises((InvalidInputError, UnknownNameError), match=message):
        probe_accuracy(**{**arguments, **change})
