"""The pair of tasks with its losses: against the plain ones, clause (c) by hand, construction, refusals."""

import numpy as np
import pytest
import torch
from problems import draw
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import ImmunizationProblem
from condnum.theory.task import Task

# Sums of a few dozen products: a few hundred round-offs.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}
TWO = np.eye(2)
#: Four rows whose two columns are orthogonal.
CROSS = torch.tensor([[1.0, 1], [-1, 1], [1, -1], [-1, -1]]).double()
of_data = ImmunizationProblem.from_data


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("kind", "plain"), [("mse", mse_loss), ("bce", binary_cross_entropy_with_logits)])
def test_losses_equal_the_plain_ones_and_their_gradients(kind, plain, outputs):
    X, Y = draw(9, 5), torch.sigmoid(draw(9, outputs, seed=1))
    beta = draw(5, outputs, seed=2).requires_grad_()
    expected = plain(X @ beta, Y) * (outputs if kind == "mse" else 1)  # ‖·‖² sums over the outputs
    expected.backward()
    found = of_data(X, Y, X, loss=kind).losses[0]
    assert found.outputs == outputs
    torch.testing.assert_close(found.value(beta.detach()), expected.detach(), **CLOSE)
    torch.testing.assert_close(found.derivative(beta.detach()), beta.grad, **CLOSE)


def test_the_loss_of_classes_is_one_of_centered_rows():
    """A probe of one-hot columns whose intercept is at its best, for every β."""
    X, labels = draw(30, 4) + 2, np.array(["cat", "dog", "eel"])[np.arange(30) % 3]
    Z = torch.from_numpy((labels[:, None] == np.array(["cat", "dog", "eel"])).astype(float))
    beta = draw(4, 3, seed=2)
    left = Z - X @ beta
    plain = (left - left.mean(dim=0)).square().sum() / 30
    torch.testing.assert_close(of_data(X, labels, X).losses[0].value(beta), plain, **CLOSE)


@pytest.mark.parametrize(
    ("theta", "lost"),
    [([[1.0], [0.0]], 0.1), ([[0.0, 0], [0, 1]], 0.9), (TWO, 0)],
    ids=["loses-x2", "loses-x1", "loses-nothing"],
)
def test_clause_c_by_hand(theta, lost):
    # y = 3x₁ + x₂ with orthogonal columns: losing x₂ costs 1 of 9 + 1.
    verdict = of_data(CROSS, 3 * CROSS[:, 0] + CROSS[:, 1], CROSS).seen(np.array(theta)).immunization()
    assert verdict.fit_lost == pytest.approx(lost)
    assert verdict.clauses.fit_kept == (lost == 0)


def test_it_is_the_problem_of_two_tasks():
    X_P, X_H, y = draw(6, 3), draw(9, 3, seed=1), ["a", "b", "a", "b", "a", "c"]
    found, known = of_data(X_P, y, X_H), ImmunizationProblem(Task.of(X_P, y), Task.of(X_H))
    theta, beta = draw(3, 3, seed=2), draw(3, 3, seed=3)
    assert found.seen(theta).immunization() == known.seen(theta).immunization()
    assert found.losses[0].value(beta) == known.losses[0].value(beta)
    assert repr(found.probe_steps(theta)) == repr(known.probe_steps(theta))  # an unknown number is nan
    assert (found.losses[1], found.probes[1]) == (None, None)


def test_other_rows_for_loss_and_probe():
    X, Z, y = draw(6, 3), draw(9, 3, seed=1), draw(9, seed=2)
    problem = of_data(X, None, X, None, X_loss=Z, y_loss=y, X_probe=2 * Z, y_probe=-y)
    torch.testing.assert_close(problem.benign.covariance, X.mT @ X)
    for loss, probe, rows, targets in zip(problem.losses, problem.probes, (Z, 2 * Z), (y, -y), strict=True):
        beta = draw(3, 1, seed=4)
        torch.testing.assert_close(loss.value(beta), mse_loss(rows @ beta, targets[:, None]), **CLOSE)
        torch.testing.assert_close(probe.moment, rows.mT @ targets[:, None], **CLOSE)


OTHERS = {"X_probe": np.eye(3), "y_probe": [1.5, 2.5, 0]}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((TWO, [1, 2], np.eye(3)), {}, InvalidInputError, "X_benign has 2 features and X_harmful 3"),
        (
            (TWO, [1, 2, 3], TWO),
            {},
            InvalidInputError,
            "one target per row, got y_benign of shape",
        ),
        ((TWO, None, TWO * np.nan), {}, InvalidInputError, "X_harmful"),
        ((TWO, None, 1e160 * TWO), {}, InvalidInputError, r"entries up to 1e\+160, whose squares overflow"),
        ((TWO, [0, 2], TWO), {"loss": "bce"}, InvalidInputError, r"y_benign.*outside \[0, 1\].*to 2"),
        ((TWO, [0, 1], TWO), {"loss": "bec"}, UnknownNameError, "did you mean 'bce'"),
        ((TWO, None, TWO), {"X_loss": TWO}, InvalidInputError, "X_loss and y_loss must"),
        ((TWO, None, TWO), OTHERS, InvalidInputError, "other inputs of y_harmful have 3 features, X_harmful"),
    ],
)
def test_refused_by_the_names_of_the_arguments(arguments, options, error, message):
    with pytest.raises(error, match=message):
        of_data(*arguments, **options)
