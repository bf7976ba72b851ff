"""Tasks: sufficient statistics against the plain loss, sampling, loss gap, construction."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from condnum.data import load_diabetes_tasks
from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.methods.problem import ImmunizationProblem, LinearTask, LogisticLoss, SquaredLoss

# Sums of a few dozen products: a few hundred round-offs.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def task_of(X, Y, loss="mse"):
    return LinearTask(X.mT @ X, X, Y, loss)


class TestSquaredLoss:
    def test_by_hand(self):
        # X = [[1, 0], [1, 2]], y = (1, 3), β = (2, 1): residuals 1 and 1.
        X, y = torch.tensor([[1.0, 0], [1, 2]]).double(), torch.tensor([[1.0], [3.0]]).double()
        loss = task_of(X, y).supervised
        assert isinstance(loss, SquaredLoss)
        value, gradient = (
            loss.value(torch.tensor([[2.0], [1.0]]).double()),
            loss.derivative(torch.tensor([[2.0], [1.0]]).double()),
        )
        assert float(value) == pytest.approx(1)
        # (2/N)Xᵀr = (1 + 1, 0 + 2).
        torch.testing.assert_close(gradient, torch.tensor([[2.0], [2.0]]).double())


class TestLogisticLoss:
    def test_by_hand(self):
        # Logits 0 and 2 with labels 0 and 1.
        X, y = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
        loss = task_of(X, y, "bce").supervised
        assert isinstance(loss, LogisticLoss)
        value, gradient = (
            loss.value(torch.tensor([[1.0]]).double()),
            loss.derivative(torch.tensor([[1.0]]).double()),
        )
        assert float(value) == pytest.approx((math.log(2) + math.log1p(math.exp(-2))) / 2)
        assert float(gradient) == pytest.approx(2 * (1 / (1 + math.exp(-2)) - 1) / 2)

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_equals_the_plain_loss_and_its_gradients(self, outputs):
        X, Y = draw(9, 5), torch.sigmoid(draw(9, outputs, seed=1))
        beta = draw(5, outputs, seed=2).requires_grad_()
        plain = binary_cross_entropy_with_logits(X @ beta, Y)
        plain.backward()
        loss = task_of(X, Y, "bce").supervised
        value, gradient = loss.value(beta.detach()), loss.derivative(beta.detach())
        torch.testing.assert_close(value, plain.detach(), **CLOSE)
        torch.testing.assert_close(loss.value(beta.detach()), plain.detach(), **CLOSE)
        torch.testing.assert_close(gradient, beta.grad, **CLOSE)

    def test_large_logits_do_not_overflow(self):
        X, y = torch.tensor([[1e4], [-1e4]]).double(), torch.tensor([[0.0], [0.0]]).double()
        loss, beta = task_of(X, y, "bce").supervised, torch.ones(1, 1).double()
        value, gradient = loss.value(beta), loss.derivative(beta)
        assert float(value) == pytest.approx(5e3)
        assert float(gradient) == pytest.approx(5e3)


class TestLinearTask:
    def test_rank(self):
        assert LinearTask(torch.diag(torch.tensor([3.0, 0.0, 1.0])).double()).rank == 2
        X = draw(3, 6)
        assert LinearTask(X.mT @ X).rank == 3
        with pytest.raises(RankError, match="task's covariance has rank 0"):
            _ = LinearTask(torch.zeros(2, 2).double()).rank

    def test_loss_rows_of_its_own(self):
        X, Z, Y = draw(4, 3), draw(7, 3, seed=1), draw(7, 1, seed=2)
        task = LinearTask(X.mT @ X, X, Y, "mse", Z)
        beta = draw(3, 1, seed=3)
        torch.testing.assert_close(task.supervised.value(beta), mse_loss(Z @ beta, Y), **CLOSE)
        assert task.supervised_rows is Z


class TestSample:
    def test_rows_without_replacement_and_their_targets(self):
        X = torch.arange(20.0).double().reshape(10, 2)
        task = task_of(X, X[:, :1] * 100)
        batch = task.sample(6, torch.Generator().manual_seed(0))
        assert batch.features.shape == (6, 2)
        assert len(set(batch.features[:, 0].tolist())) == 6
        torch.testing.assert_close(batch.targets, batch.features[:, :1] * 100)
        torch.testing.assert_close(batch.covariance, batch.features.mT @ batch.features)
        assert batch.loss == task.loss

    def test_loss_rows_are_drawn_with_their_own_targets(self):
        X = draw(5, 2)
        Z = torch.arange(16.0).double().reshape(8, 2)
        batch = LinearTask(X.mT @ X, X, Z[:, 1:] * 3, "mse", Z).sample(3, torch.Generator().manual_seed(0))
        assert batch.features.shape == (3, 2)
        torch.testing.assert_close(batch.targets, batch.loss_features[:, 1:] * 3)

    def test_without_rows(self):
        problem = ImmunizationProblem.from_covariances(np.eye(2), np.eye(2))
        with pytest.raises(InvalidInputError, match="mini-batches need the data rows"):
            problem.sample(2, torch.Generator())


class TestLossGap:
    def test_zero_for_invertible_extractors(self):
        task = task_of(draw(30, 6), draw(30, 2, seed=1))
        for seed in range(5):
            # Orthogonal projections onto one space by two bases, κ(θ) below 1e3.
            assert task.loss_gap(draw(6, 6, seed=10 + seed)) == pytest.approx(0, abs=1e-10)

    def test_one_when_the_predictive_direction_is_killed(self):
        # y = x₁ and x₁ ⟂ x₂: without x₁ nothing is left.
        X = torch.tensor([[1.0, 1], [-1, 1], [1, -1], [-1, -1]]).double()
        task = task_of(X, X[:, :1])
        assert task.loss_gap(torch.diag(torch.tensor([0.0, 1.0])).double()) == pytest.approx(1)
        assert task.loss_gap(torch.diag(torch.tensor([1.0, 0.0])).double()) == pytest.approx(0, abs=1e-15)
        assert task.loss_gap(torch.zeros(2, 2).double()) == pytest.approx(1)

    def test_a_share_by_hand(self):
        # y = 3x₁ + x₂ with orthogonal columns: losing x₂ costs 1 of 9 + 1.
        X = torch.tensor([[1.0, 1], [-1, 1], [1, -1], [-1, -1]]).double()
        task = task_of(X, 3 * X[:, :1] + X[:, 1:])
        assert task.loss_gap(torch.tensor([[1.0], [0.0]]).double()) == pytest.approx(0.1)

    def test_on_loss_rows(self):
        X, Z, Y = draw(4, 3), draw(7, 3, seed=1), draw(7, 1, seed=2)
        task = LinearTask(X.mT @ X, X, Y, "mse", Z)
        assert task.loss_gap(torch.zeros(3, 3).double()) == pytest.approx(
            task_of(Z, Y).loss_gap(torch.zeros(3, 3).double())
        )


class TestFromData:
    def test_two_tasks(self):
        X_P, X_H = draw(6, 3).numpy(), draw(4, 3, seed=1).numpy()
        problem = ImmunizationProblem.from_data(X_P, X_P[:, 0], X_H, X_H[:, :2])
        np.testing.assert_allclose(problem.pretrain.covariance, X_P.T @ X_P)
        np.testing.assert_allclose(problem.harmful.covariance, X_H.T @ X_H)
        assert problem.pretrain.targets.shape == (6, 1)
        assert problem.harmful.targets.shape == (4, 2)
        assert (problem.dimension, problem.device) == (3, torch.device("cpu"))
        assert problem.pretrain.covariance.dtype == torch.float64

    def test_other_rows_for_loss_and_probe(self):
        X, Z, y = draw(6, 3), draw(9, 3, seed=1), draw(9, seed=2)
        problem = ImmunizationProblem.from_data(
            X, None, X, None, X_loss=Z, y_loss=y, X_probe=2 * Z, y_probe=-y
        )
        torch.testing.assert_close(problem.pretrain.covariance, X.mT @ X)
        for task, rows, targets in ((problem.pretrain, Z, y), (problem.harmful, 2 * Z, -y)):
            beta = draw(3, 1, seed=4)
            torch.testing.assert_close(
                task.supervised.value(beta), mse_loss(rows @ beta, targets[:, None]), **CLOSE
            )

    def test_without_targets(self):
        problem = ImmunizationProblem.from_data(draw(4, 2), None, draw(4, 2, seed=1))
        assert problem.pretrain.supervised is None
        assert problem.harmful.supervised is None

    @pytest.mark.parametrize(
        ("arguments", "options", "error", "message"),
        [
            ((np.eye(2), [1, 2], np.eye(3)), {}, InvalidInputError, "X_P has 2 features and X_H 3"),
            ((np.eye(2), [1, 2, 3], np.eye(2)), {}, InvalidInputError, r"y_P has shape \(3, 1\) for 2 rows"),
            ((np.eye(2), None, np.eye(2), [1]), {}, InvalidInputError, r"y_H has shape \(1, 1\) for 2 rows"),
            ((np.eye(2), np.ones((2, 1, 1)), np.eye(2)), {}, InvalidInputError, "one target per row"),
            ((np.ones(2), None, np.eye(2)), {}, InvalidInputError, "X_P must have 2 dimension"),
            ((np.eye(2), [1, np.nan], np.eye(2)), {}, InvalidInputError, "y_P holds 1 non-finite"),
            ((np.eye(2), [0, 2], np.eye(2)), {"loss": "bce"}, InvalidInputError, r"outside \[0, 1\].*to 2"),
            ((np.eye(2), [0, 1], np.eye(2)), {"loss": "bec"}, UnknownNameError, "did you mean 'bce'"),
            ((np.eye(2), None, np.eye(2)), {"X_loss": np.eye(2)}, InvalidInputError, "X_loss and y_loss go"),
            ((np.eye(2), None, np.eye(2)), {"y_probe": [1, 2]}, InvalidInputError, "X_probe and y_probe go"),
            (
                (np.eye(2), None, np.eye(2)),
                {"X_loss": np.eye(2), "y_loss": [1]},
                InvalidInputError,
                "for 2 rows",
            ),
        ],
    )
    def test_refused(self, arguments, options, error, message):
        with pytest.raises(error, match=message):
            ImmunizationProblem.from_data(*arguments, **options)

    @pytest.mark.parametrize("name", ["X_loss", "X_probe"])
    def test_other_rows_live_in_the_same_space(self, name):
        options = {name: np.ones((2, 3)), name.replace("X", "y"): [0.0, 1.0]}
        with pytest.raises(InvalidInputError, match=r"3 features.*2|2 features.*3"):
            ImmunizationProblem.from_data(np.eye(2), None, np.eye(2), **options)


class TestFromCovariances:
    @pytest.mark.parametrize(
        ("P", "H", "message"),
        [
            (np.ones((2, 3)), np.eye(2), r"pretrain_covariance must be square, got shape \(2, 3\)"),
            (np.eye(2), np.ones((2, 3)), "harmful_covariance must be square"),
            (np.eye(2), np.eye(3), r"same shape, got \[\(2, 2\), \(3, 3\)\]"),
            (np.eye(2), np.full((2, 2), np.inf), "harmful_covariance holds 4 non-finite"),
        ],
        ids=["P", "H", "differ", "infinite"],
    )
    def test_refused(self, P, H, message):
        with pytest.raises(InvalidInputError, match=message):
            ImmunizationProblem.from_covariances(P, H)


class TestFromPair:
    def test_diabetes(self):
        pair = load_diabetes_tasks()
        problem = ImmunizationProblem.from_pair(pair)
        np.testing.assert_allclose(problem.pretrain.covariance, pair.X_P.T @ pair.X_P)
        np.testing.assert_array_equal(problem.harmful.targets[:, 0], pair.y_H)
        # A standardised target: predicting zero costs its variance, 1.
        assert float(problem.pretrain.supervised.value(torch.zeros(8, 1).double())) == pytest.approx(1)
        # Tensors of its own: the pair is read-only.
        problem.pretrain.covariance.add_(0)


def test_targets_of_zeros_lose_nothing():
    """The paper's D_P of digit pairs holds one class with label 0: predicting zero is perfect."""
    X = np.random.default_rng(0).normal(size=(6, 3))
    problem = ImmunizationProblem.from_data(X, np.zeros(6), X, np.ones(6), loss="bce")
    assert problem.pretrain.loss_gap(torch.eye(3, dtype=torch.float64)) == pytest.approx(0, abs=0)
