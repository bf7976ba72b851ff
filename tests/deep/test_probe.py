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


@pytest.fixture(scope="module")
def digits():
    """8×8 digits as features: (X_train, y_train, X_test, y_test)."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order] / 16, y[order]
    return X[:1200].astype(np.float32), y[:1200], X[1200:].astype(np.float32), y[1200:]


def by_autograd(X, y, classes, rate, epochs, batches):
    """The same descent with torch's own layer, loss and optimizer, in float64."""
    head = nn.Linear(X.shape[1], classes).double()
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD(head.parameters(), lr=rate)
    losses = []
    for epoch in range(epochs):
        for batch in batches(epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(X[batch]), y[batch]).backward()
            optimizer.step()
        losses.append(float(nn.functional.cross_entropy(head(X), y).detach()))
    return losses


class TestDescent:
    X = torch.randn(90, 7, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1))

    @pytest.mark.parametrize("logits", [1 << 24, 100], ids=["one part", "many parts"])
    def test_gd_equals_autograd_at_every_rate(self, monkeypatch, logits):
        monkeypatch.setattr("condnum.deep.probe._LOGITS", logits)
        rates = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
        X = self.X.double()
        curves = descend(X, self.y, 4, rates, [], epochs=6, optimizer="gd", batch_size=1, seed=0)
        for k, rate in enumerate(rates.tolist()):
            expected = by_autograd(X, self.y, 4, rate, 6, lambda _: [slice(None)])
            assert curves.train_loss[1:, k] == pytest.approx(expected, rel=1e-10)
        assert curves.train_loss[0] == pytest.approx(np.log(4))

    def test_sgd_equals_autograd_on_the_same_batches(self):
        rates = torch.tensor([0.1, 0.7], dtype=torch.float64)
        X = self.X.double()
        curves = descend(X, self.y, 4, rates, [], epochs=3, optimizer="sgd", batch_size=32, seed=5)
        generator = torch.Generator().manual_seed(5)
        orders = [torch.randperm(90, generator=generator).split(32) for _ in range(3)]
        for k, rate in enumerate(rates.tolist()):
            expected = by_autograd(X, self.y, 4, rate, 3, lambda epoch: orders[epoch])
            assert curves.train_loss[1:, k] == pytest.approx(expected, rel=1e-10)

    def test_a_rate_that_overflows_is_nan_and_spares_the_others(self):
        X = self.X * 1e18
        rates = torch.tensor([1e-38, 1e25])
        curves = descend(X, self.y, 4, rates, [(X, self.y)], epochs=5, optimizer="gd", batch_size=1, seed=0)
        assert np.isnan(curves.accuracies[-1, 0, 1])
        assert np.isfinite(curves.accuracies[:, 0, 0]).all()


class TestProbe:
    def test_digits_are_learned_and_the_table_is_tidy(self, digits):
        result = probe_accuracy(*digits, epochs=30, seeds=(0, 1))
        assert 0.85 < result.final_accuracy < 1
        assert list(result.curves.columns) == [
            "seed",
            "role",
            "learning_rate",
            "multiple",
            "epoch",
            "train_loss",
            "heldout_accuracy",
            "test_accuracy",
        ]
        assert len(result.curves) == 2 * 31 * (len(MULTIPLES) + 1)
        assert not result.curves.duplicated(["seed", "role", "learning_rate", "epoch"]).any()
        curve = result.best_curve
        assert curve["epoch"].tolist() == list(range(31))
        assert curve["mean"].iloc[0] < 0.2  # all weights zero: one class for everything
        assert curve["mean"].iloc[-1] == result.final_accuracy

    def test_the_test_rows_choose_nothing(self, digits):
        X, y, Z, z = digits
        honest = probe_accuracy(X, y, Z, z, epochs=10)
        poisoned = probe_accuracy(X, y, Z[::-1].copy(), np.roll(z, 3), epochs=10)
        assert honest.learning_rates == poisoned.learning_rates
        assert honest.final_accuracy != poisoned.final_accuracy

    def test_an_ill_conditioned_map_slows_gd_but_not_the_informed_attacker(self, digits):
        # An invertible map of the features: the same best classifier, a worse condition number.
        X, y, Z, z = digits
        V = np.linalg.qr(np.random.default_rng(0).normal(size=(64, 64)))[0]
        A = (V * np.geomspace(1, 1e-3, 64)) @ V.T
        plain, slow = (probe_accuracy(X @ M, y, Z @ M, z, epochs=50) for M in (np.eye(64), A))
        assert slow.final_accuracy < plain.final_accuracy - 0.1
        strong = convex_probe((X @ A).astype(np.float32), y, (Z @ A).astype(np.float32), z)
        assert strong.test_accuracy > slow.final_accuracy + 0.1


class TestConvex:
    def test_equals_scikit_learn_on_standardised_features(self, digits):
        X, y, Z, z = digits
        result = convex_probe(*digits, penalties=[0.1])
        mean, std = X.astype(float).mean(0), X.astype(float).std(0)
        scale = np.divide(1, std, out=np.zeros_like(std), where=std > 1e-6)
        model = LogisticRegression(C=0.1, max_iter=1000).fit((X - mean) * scale, y)
        assert result.test_accuracy == pytest.approx(model.score((Z - mean) * scale, z), abs=0.004)
        assert result.converged
        assert result.heldout_accuracies == ()

    def test_penalty_is_chosen_on_held_out_rows_and_non_convergence_is_told(self, digits):
        result = convex_probe(*digits)
        assert result.penalty == (1e-3, 1e-1, 1e1, 1e3)[int(np.argmax(result.heldout_accuracies))]
        assert result.test_accuracy > 0.93
        stopped = convex_probe(*digits, penalties=[1e3], max_iterations=2)
        assert not stopped.converged
        assert stopped.iterations == 2


class TestBadInput:
    X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    y = np.arange(20) % 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"y_train": np.zeros(20, int)}, "one class only"),
            ({"y_train": np.arange(20) % 2 - 1}, "holds -1, out of range"),
            ({"y_test": np.arange(20) % 3}, r"6 label\(s\) out of the range of training, the first is 2"),
            ({"y_train": np.arange(20) / 2}, "one integer for each of the 20 rows"),
            ({"y_train": np.arange(19) % 2}, "one integer for each of the 20 rows"),
            ({"features_test": X[:, :2]}, "3 columns and features_test 2"),
            ({"features_train": X * np.nan}, "NaN or infinity"),
            ({"features_train": X[0]}, r"must be \(N, D\)"),
            ({"y_train": np.arange(20), "y_test": np.arange(20)}, "no class has two training rows"),
            ({"learning_rates": [0.0]}, "learning_rates must be positive"),
            ({"learning_rates": [1e39], "epochs": 3}, "every learning rate diverges"),
            ({"epochs": 0}, "epochs must be a positive integer"),
            ({"seeds": ()}, "seeds must be different"),
            ({"seeds": (1, 1)}, "seeds must be different"),
        ],
    )
    def test_refused(self, change, message):
        arguments = {"features_train": self.X, "y_train": self.y, "features_test": self.X, "y_test": self.y}
        with pytest.raises(InvalidInputError, match=message):
            probe_accuracy(**{**arguments, **change})

    @pytest.mark.parametrize("option", ["optimizer", "criterion", "preprocessing"])
    def test_unknown_names(self, option):
        with pytest.raises(UnknownNameError):
            probe_accuracy(self.X, self.y, self.X, self.y, **{option: "adam"})
