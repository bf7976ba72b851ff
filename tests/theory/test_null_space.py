"""What one task has and the other lacks: by hand, and as the ceiling's criterion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError
from condnum.theory.ceiling import null_spaces, rir_ceiling


def test_diagonal_pair_by_hand():
    spaces = null_spaces(np.diag([4.0, 1.0, 0.0, 0.0, 0.0]), np.diag([0.0, 2.0, 5.0, 1.0, 0.0]))
    assert (spaces.dimension, spaces.rank_pretrain, spaces.rank_harmful) == (5, 2, 3)
    assert (spaces.harmful_only, spaces.intersection, spaces.pretrain_only, spaces.common) == (2, 2, 1, 1)
    assert spaces.harmful_energy == pytest.approx(6 / 8)
    assert spaces.intersection_energy == pytest.approx(6 / 8)
    assert spaces.pretrain_energy == pytest.approx(4 / 5)
    np.testing.assert_allclose(spaces.energies, [5 / 8, 1 / 8])
    np.testing.assert_allclose(spaces.directions.abs(), np.eye(5)[:, 2:4], atol=1e-12)


def test_a_leaning_direction_is_excited_without_lying_inside():
    """v at 60° to e₁: a share sin²60° of its energy is in null(K_P), but v is not."""
    v = np.array([0.5, np.sqrt(0.75)])
    spaces = null_spaces(np.diag([1.0, 0.0]), np.outer(v, v))
    assert (spaces.harmful_only, spaces.intersection) == (1, 0)
    assert spaces.harmful_energy == pytest.approx(0.75)
    assert spaces.intersection_energy == 0


def test_invertible_tasks_have_nothing_of_their_own():
    spaces = null_spaces(np.diag([4.0, 1.0]), np.diag([1.0, 2.0]))
    assert (spaces.harmful_only, spaces.intersection, spaces.pretrain_only, spaces.common) == (0, 0, 0, 0)
    assert spaces.harmful_energy == 0
    assert spaces.directions.shape == (2, 0)


@given(
    seed=st.integers(0, 2**32 - 1),
    shared=st.integers(1, 3),
    pretrain=st.integers(0, 2),
    harmful=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_dimensions_in_a_random_basis(seed, shared, pretrain, harmful):
    """`shared` directions of both tasks, some of one's own, one of neither, turned by a rotation."""
    D = shared + pretrain + harmful + 1
    generator = np.random.default_rng(seed)
    Q = np.linalg.qr(generator.normal(size=(D, D)))[0]
    parts = np.split(Q, np.cumsum([shared, pretrain, harmful]), axis=1)
    K_P, K_H = (
        B @ np.diag(generator.uniform(1, 5, B.shape[1])) @ B.T
        for B in (np.hstack(parts[:2]), np.hstack([parts[0], parts[2]]))
    )
    spaces = null_spaces(K_P, K_H)
    found = (spaces.harmful_only, spaces.intersection, spaces.pretrain_only, spaces.common)
    assert found == (harmful, harmful, pretrain, 1)
    assert spaces.harmful_energy == pytest.approx(
        np.trace(parts[2].T @ K_H @ parts[2]) / np.trace(K_H), abs=1e-12
    )
    assert float(spaces.energies.sum()) == pytest.approx(spaces.harmful_energy, abs=1e-12)
    infinite = np.isinf(rir_ceiling(K_P, K_H).value)
    assert infinite == (harmful > 0 and spaces.rank_harmful > 1)


def test_bad_shapes():
    with pytest.raises(InvalidInputError, match="of the same shape"):
        null_spaces(np.eye(2), np.eye(3))
    with pytest.raises(InvalidInputError, match="must be square"):
        null_spaces(np.ones((2, 3)), np.eye(3))
