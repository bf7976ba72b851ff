"""Tasks: sufficient statistics against the plain loss, sampling, loss gap, construction, batches."""

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.theory.immunization import relative_immunization_ratio

# Sums of a few dozen products: a few hundred round-offs.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}
TWO = np.eye(2)
#: Four rows whose two columns are orthogonal.
CROSS = torch.tensor([[1.0, 1], [-1, 1], [1, -1], [-1, -1]]).double()


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def task_of(X, Y, loss="mse"):
    return LinearTask(X.mT @ X, X, Y, loss)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("kind", "plain"), [("mse", mse_loss), ("bce", binary_cross_entropy_with_logits)])
def test_losses_equal_the_plain_ones_and_their_gradients(kind, plain, outputs):
    X, Y = draw(9, 5), torch.sigmoid(draw(9, outputs, seed=1))
    beta = draw(5, outputs, seed=2).requires_grad_()
    expected = plain(X @ beta, Y) * (outputs if kind == "mse" else 1)  # ‖·‖² sums over the outputs
    expected.backward()
    loss = task_of(X, Y, kind).supervised
    torch.testing.assert_close(loss.value(beta.detach()), expected.detach(), **CLOSE)
    torch.testing.assert_close(loss.derivative(beta.detach()), beta.grad, **CLOSE)


def test_rank():
    assert LinearTask(torch.diag(torch.tensor([3.0, 0.0, 1.0])).double()).rank == 2
    X = draw(3, 6)
    assert task_of(X, None).rank == 3
    assert task_of(X, None).factor is X  # independent rows are their own factor
    with pytest.raises(RankError, match="task's covariance has rank 0"):
        _ = LinearTask(torch.zeros(2, 2).double()).rank


class TestLossGap:
    @pytest.mark.parametrize(
        ("theta", "gap"),
        [([[1.0], [0.0]], 0.1), ([[0.0, 0], [0, 1]], 0.9), ([[0.0], [0.0]], 1)],
        ids=["loses-x2", "loses-x1", "loses-all"],
    )
    def test_a_share_by_hand(self, theta, gap):
        # y = 3x₁ + x₂ with orthogonal columns: losing x₂ costs 1 of 9 + 1.
        task = task_of(CROSS, 3 * CROSS[:, :1] + CROSS[:, 1:])
        assert task.loss_gap(torch.tensor(theta).double()) == pytest.approx(gap)

    def test_on_loss_rows_and_without_anything_to_lose(self):
        X, Z, Y = draw(4, 3), draw(7, 3, seed=1), draw(7, 1, seed=2)
        nothing = torch.zeros(3, 3).double()
        gap = LinearTask(X.mT @ X, X, Y, "mse", Z).loss_gap(nothing)
        assert gap == pytest.approx(task_of(Z, Y).loss_gap(nothing))
        assert task_of(X, torch.zeros(4, 1).double()).loss_gap(nothing) == 0
        with pytest.raises(InvalidInputError, match="no targets"):
            task_of(X, None).loss_gap(nothing)


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
        assert ImmunizationProblem.from_data(X_P, None, X_H).pretrain.supervised is None

    def test_other_rows_for_loss_and_probe(self):
        X, Z, y = draw(6, 3), draw(9, 3, seed=1), draw(9, seed=2)
        others = {"X_loss": Z, "y_loss": y, "X_probe": 2 * Z, "y_probe": -y}
        problem = ImmunizationProblem.from_data(X, None, X, None, **others)
        torch.testing.assert_close(problem.pretrain.covariance, X.mT @ X)
        for task, rows, targets in ((problem.pretrain, Z, y), (problem.harmful, 2 * Z, -y)):
            beta = draw(3, 1, seed=4)
            plain = mse_loss(rows @ beta, targets[:, None])
            torch.testing.assert_close(task.supervised.value(beta), plain, **CLOSE)

    @pytest.mark.parametrize(
        ("arguments", "options", "error", "message"),
        [
            ((TWO, [1, 2], np.eye(3)), {}, InvalidInputError, "X_P has 2 features and X_H 3"),
            ((TWO, [1, 2, 3], TWO), {}, InvalidInputError, r"y_P of shape \(3,\) for 2 rows"),
            ((TWO, [0, 2], TWO), {"loss": "bce"}, InvalidInputError, r"outside \[0, 1\].*to 2"),
            ((TWO, [0, 1], TWO), {"loss": "bec"}, UnknownNameError, "did you mean 'bce'"),
            ((TWO, None, TWO), {"X_loss": TWO}, InvalidInputError, "X_loss and y_loss must"),
        ],
    )
    def test_refused(self, arguments, options, error, message):
        with pytest.raises(error, match=message):
            ImmunizationProblem.from_data(*arguments, **options)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_changing_the_data_afterwards_changes_no_problem(kind):
    X, y = np.eye(3), np.ones(3)
    given = (X, y) if kind == "array" else (torch.from_numpy(X), torch.from_numpy(y))
    problem = ImmunizationProblem.from_data(*given, *given, X_loss=given[0], y_loss=given[1])
    X[:], y[:] = 7.0, 7.0
    for task in (problem.pretrain, problem.harmful):
        assert torch.equal(task.features, torch.eye(3).double())
        assert torch.equal(task.targets[:, 0], torch.ones(3).double())
    assert torch.equal(problem.pretrain.loss_features, torch.eye(3).double())
    K = np.eye(3)
    problem = ImmunizationProblem.from_covariances(K, K)
    K[:] = 0
    assert torch.equal(problem.pretrain.covariance, torch.eye(3).double())


def test_odd_inputs_are_taken_or_refused_with_the_fix():
    X = torch.nn.Parameter(torch.eye(3).double())
    assert not ImmunizationProblem.from_data(X, None, X, device="auto").pretrain.covariance.requires_grad
    with pytest.raises(InvalidInputError, match=r"entries up to 1e\+160, whose squares overflow"):
        ImmunizationProblem.from_data(X, None, 1e160 * X)
    with pytest.raises(InvalidInputError, match="square and of the same shape"):
        ImmunizationProblem.from_covariances(np.eye(2), np.eye(3))


def test_float32_data_have_the_rank_that_their_precision_resolves():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 20)).astype(np.float32)
    X[:, 1] = X[:, 0] * (1 + 1e-7 * rng.normal(size=200))  # equal but for the last bit
    Z = X.astype(np.float64)
    assert ImmunizationProblem.from_data(X, None, X).pretrain.rank == 19
    assert ImmunizationProblem.from_covariances(X.T @ X, Z.T @ Z).pretrain.rank == 19


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_results_live_where_the_inputs_lived():
    X = torch.eye(3, device="cuda").double()
    assert ImmunizationProblem.from_data(X, None, X).device.type == "cuda"
    assert relative_immunization_ratio(X, np.eye(3), np.eye(3)).rir == pytest.approx(1)
