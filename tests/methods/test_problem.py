"""The pair of tasks with its losses: against the plain ones, clause (c) by hand, construction, refusals."""

import numpy as np
import pandas as pd
import pytest
import torch
from covariances import draw
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods.problem import ImmunizationProblem, LogisticLoss, SquaredLoss
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.task import Task

# Sums of a few dozen products: a few hundred round-offs.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}
TWO = np.eye(2)
#: Four rows whose two columns are orthogonal.
CROSS = torch.tensor([[1.0, 1], [-1, 1], [1, -1], [-1, -1]]).double()


def losses_of(kind, X, Y):
    """The loss of one task, as a problem makes it."""
    return ImmunizationProblem.from_data(X, Y, X, loss=kind).losses[0]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    ("kind", "loss", "plain"),
    [("mse", SquaredLoss, mse_loss), ("bce", LogisticLoss, binary_cross_entropy_with_logits)],
)
def test_losses_equal_the_plain_ones_and_their_gradients(kind, loss, plain, outputs):
    X, Y = draw(9, 5), torch.sigmoid(draw(9, outputs, seed=1))
    beta = draw(5, outputs, seed=2).requires_grad_()
    expected = plain(X @ beta, Y) * (outputs if kind == "mse" else 1)  # ‖·‖² sums over the outputs
    expected.backward()
    found = losses_of(kind, X, Y)
    assert (type(found), found.outputs) == (loss, outputs)
    torch.testing.assert_close(found.value(beta.detach()), expected.detach(), **CLOSE)
    torch.testing.assert_close(found.derivative(beta.detach()), beta.grad, **CLOSE)


def test_the_loss_of_classes_is_one_of_centered_rows():
    """A probe of one-hot columns whose intercept is at its best, for every β."""
    X, labels = draw(30, 4) + 2, np.array(["cat", "dog", "eel"])[np.arange(30) % 3]
    Z = torch.from_numpy((labels[:, None] == np.array(["cat", "dog", "eel"])).astype(float))
    beta = draw(4, 3, seed=2)
    left = Z - X @ beta
    plain = (left - left.mean(dim=0)).square().sum() / 30
    torch.testing.assert_close(losses_of("mse", X, labels).value(beta), plain, **CLOSE)


class TestFitLost:
    """Clause (c) of Definition 3.1: the part of what raw features fit that θ loses."""

    @pytest.mark.parametrize(
        ("theta", "lost"),
        [([[1.0], [0.0]], 0.1), ([[0.0, 0], [0, 1]], 0.9), (TWO, 0)],
        ids=["loses-x2", "loses-x1", "loses-nothing"],
    )
    def test_a_part_by_hand(self, theta, lost):
        # y = 3x₁ + x₂ with orthogonal columns: losing x₂ costs 1 of 9 + 1.
        problem = ImmunizationProblem.from_data(CROSS, 3 * CROSS[:, 0] + CROSS[:, 1], CROSS)
        verdict = problem.seen(np.array(theta)).immunization()
        assert verdict.fit_lost == pytest.approx(lost)
        assert verdict.clauses.fit_kept == (lost == 0)

    def test_on_the_rows_of_the_loss_and_without_anything_to_lose(self):
        theta = torch.tensor([[1.0, 0], [0, 1], [0, 0]]).double()
        X, Z, Y = draw(4, 3), draw(7, 3, seed=1), draw(7, 1, seed=2)
        own = ImmunizationProblem.from_data(Z, Y, X).seen(theta).immunization().fit_lost
        others = ImmunizationProblem.from_data(X, None, X, X_loss=Z, y_loss=Y)
        assert others.seen(theta).immunization().fit_lost == pytest.approx(own)
        assert 0.01 < own < 1
        for nothing in (None, np.zeros(4)):
            assert ImmunizationProblem.from_data(X, nothing, X).seen(theta).immunization().fit_lost is None


class TestFromData:
    def test_two_tasks(self):
        X_P, X_H = draw(6, 3).numpy(), draw(4, 3, seed=1).numpy()
        problem = ImmunizationProblem.from_data(X_P, X_P[:, 0], X_H, X_H[:, :2])
        np.testing.assert_allclose(problem.benign.covariance, X_P.T @ X_P)
        np.testing.assert_allclose(problem.harmful.covariance, X_H.T @ X_H)
        np.testing.assert_allclose(problem.benign.moment, X_P.T @ X_P[:, :1])
        assert [loss.outputs for loss in problem.losses] == [1, 2]
        assert (problem.dimension, problem.device) == (3, torch.device("cpu"))
        assert problem.benign.covariance.dtype == torch.float64
        bare = ImmunizationProblem.from_data(X_P, None, X_H)
        assert [*bare.losses, *bare.probes] == [None] * 4

    def test_it_is_the_problem_of_two_tasks(self):
        X_P, X_H, y = draw(6, 3), draw(9, 3, seed=1), ["a", "b", "a", "b", "a", "c"]
        found = ImmunizationProblem.from_data(X_P, y, X_H)
        known = ImmunizationProblem(Task.of(X_P, y), Task.of(X_H))
        theta, beta = draw(3, 3, seed=2), draw(3, 3, seed=3)
        assert found.seen(theta).immunization() == known.seen(theta).immunization()
        assert found.losses[0].value(beta) == known.losses[0].value(beta)
        assert found.probe_steps(theta) == known.probe_steps(theta)

    def test_other_rows_for_loss_and_probe(self):
        X, Z, y = draw(6, 3), draw(9, 3, seed=1), draw(9, seed=2)
        others = {"X_loss": Z, "y_loss": y, "X_probe": 2 * Z, "y_probe": -y}
        problem = ImmunizationProblem.from_data(X, None, X, None, **others)
        torch.testing.assert_close(problem.benign.covariance, X.mT @ X)
        for loss, probe, rows, targets in zip(
            problem.losses, problem.probes, (Z, 2 * Z), (y, -y), strict=True
        ):
            beta = draw(3, 1, seed=4)
            torch.testing.assert_close(loss.value(beta), mse_loss(rows @ beta, targets[:, None]), **CLOSE)
            torch.testing.assert_close(probe.moment, rows.mT @ targets[:, None], **CLOSE)

    def test_columns_of_frames_are_matched_by_name(self):
        P, H = (pd.DataFrame(draw(6, 3, seed=seed).numpy(), columns=[*"abc"]) for seed in (0, 1))
        plain, turned = (ImmunizationProblem.from_data(P, P["b"], of) for of in (H, H[[*"cab"]]))
        torch.testing.assert_close(turned.harmful.covariance, plain.harmful.covariance, **CLOSE)
        by_task = ImmunizationProblem(Task.of(P), Task.of(H[[*"cab"]]))
        torch.testing.assert_close(by_task.harmful.covariance, plain.harmful.covariance, **CLOSE)
        with pytest.raises(InvalidInputError, match="has no column 'c'"):
            ImmunizationProblem.from_data(P, None, H.rename(columns={"c": "z"}))

    @pytest.mark.parametrize(
        ("arguments", "options", "error", "message"),
        [
            ((TWO, [1, 2], np.eye(3)), {}, InvalidInputError, "X_P has 2 features and X_H 3"),
            ((TWO, [1, 2, 3], TWO), {}, InvalidInputError, r"one target per row.*\(3,\) for 2 rows"),
            ((TWO, [0, 2], TWO), {"loss": "bce"}, InvalidInputError, r"outside \[0, 1\].*to 2"),
            ((TWO, [0, 1], TWO), {"loss": "bec"}, UnknownNameError, "did you mean 'bce'"),
            ((TWO, None, TWO), {"X_loss": TWO}, InvalidInputError, "X_loss and y_loss must"),
            (
                (TWO, None, TWO),
                {"X_probe": np.eye(3), "y_probe": [1.5, 2.5, 0]},
                InvalidInputError,
                "other inputs of y_H have 3 features, X_H has 2",
            ),
        ],
    )
    def test_refused(self, arguments, options, error, message):
        with pytest.raises(error, match=message):
            ImmunizationProblem.from_data(*arguments, **options)


@pytest.mark.parametrize("loss", ["mse", "bce"])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_changing_the_data_afterwards_changes_no_problem(kind, loss):
    X, y = np.eye(3), np.full(3, 0.5)
    given = (X, y) if kind == "array" else (torch.from_numpy(X), torch.from_numpy(y))
    problem = ImmunizationProblem.from_data(*given, *given, loss=loss, X_loss=given[0], y_loss=given[1])
    beta = draw(3, 1)
    before = [of.value(beta) for of in problem.losses]
    X[:], y[:] = 7.0, 1.0
    for task in (problem.benign, problem.harmful):
        torch.testing.assert_close(task.covariance, torch.eye(3).double(), **CLOSE)
    assert [of.value(beta) for of in problem.losses] == before
    K = np.eye(3)
    problem = ImmunizationProblem.from_covariances(K, K)
    K[:] = 0
    assert torch.equal(problem.benign.covariance, torch.eye(3).double())


@pytest.mark.filterwarnings("error")
def test_labels_of_the_logistic_loss_are_stored_as_floats_without_a_warning():
    X, y = draw(8, 3), np.arange(8) % 2.0
    assert ImmunizationProblem.from_data(X, y, X, y, loss="bce").probes[0].outputs == 1


def test_odd_inputs_are_taken_or_refused_with_the_fix():
    X = torch.nn.Parameter(torch.eye(3).double())
    assert not ImmunizationProblem.from_data(X, None, X, device="auto").benign.covariance.requires_grad
    with pytest.raises(InvalidInputError, match=r"entries up to 1e\+160, whose squares overflow"):
        ImmunizationProblem.from_data(X, None, 1e160 * X)
    with pytest.raises(InvalidInputError, match="2 inputs and the harmful task 3"):
        ImmunizationProblem.from_covariances(np.eye(2), np.eye(3))


def test_the_rank_is_what_the_stored_precision_resolves():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 20)).astype(np.float32)
    X[:, 1] = X[:, 0] * (1 + 1e-7 * rng.normal(size=200))  # equal but for the last bit
    assert ImmunizationProblem.from_data(X, None, X).benign.rank == 19
    assert ImmunizationProblem.from_covariances(X.T @ X, np.eye(20)).benign.rank == 19
    assert ImmunizationProblem.from_data(X.astype(float), None, X).benign.rank == 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_results_live_where_the_inputs_lived():
    X = torch.eye(3, device="cuda").double()
    assert ImmunizationProblem.from_data(X, None, X).device.type == "cuda"
    assert relative_immunization_ratio(X, np.eye(3), np.eye(3)).rir == pytest.approx(1)
