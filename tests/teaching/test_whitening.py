"""What the ceiling does not bound."""

import numpy as np
import pytest

from condnum.errors import RankError
from condnum.lessons.two_tasks import attacks, two_tasks, whiten
from condnum.theory.ceiling import rir_ceiling


def test_four_attackers():
    raw, best, same, whitened = attacks(angle=30.0)
    K_P, K_H = two_tasks(angle=30.0, dimension=16)
    limit = rir_ceiling(K_P, K_H)
    assert raw.kappa == pytest.approx(10.0, rel=1e-10)
    assert best.kappa == pytest.approx(limit.lambda_max / limit.lambda_min, rel=1e-10)
    assert same.kappa == pytest.approx(best.kappa, rel=1e-10)
    np.testing.assert_allclose(same.spectrum[:-1], same.spectrum[0], rtol=1e-10)
    assert whitened.kappa == pytest.approx(1.0, rel=1e-10)
    assert whitened.steps_to(1e-12) == 1
    assert same.steps_to(1e-6) < raw.steps_to(1e-6) < best.steps_to(1e-6)


def test_a_share_that_is_not_reached():
    assert attacks(kappa_pretrain=1e6, kappa_harmful=1e6)[1].steps_to(1e-300) is None


def test_whitening_of_singular_data_keeps_its_rank():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(3, 5))
    theta = whiten(generator.normal(size=(5, 5)), X.T @ X)
    assert theta.shape == (5, 3)
    np.testing.assert_allclose(theta.T @ X.T @ X @ theta, np.eye(3), atol=1e-10)


def test_nothing_to_whiten():
    with pytest.raises(RankError, match="rank 0"):
        whiten(np.zeros((2, 2)), np.eye(2))
