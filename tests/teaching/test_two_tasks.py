"""Two tasks have the spectra, the angle and the null space that were asked for."""

import numpy as np
import pytest

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.two_tasks import NULL_KINDS, two_tasks
from condnum.theory.spectra import condition_number


@pytest.mark.parametrize("null", NULL_KINDS)
@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_condition_numbers_and_ranks(null, angle):
    K_P, K_H = two_tasks(kappa_pretrain=50.0, kappa_harmful=7.0, angle=angle, dimension=5, null=null)
    P, H = condition_number(K_P), condition_number(K_H)
    np.testing.assert_allclose([P.value, H.value], [50.0, 7.0], rtol=1e-12)
    assert P.rank == 5 - (null in ("both", "pretrain"))
    assert H.rank == 5 - (null in ("both", "harmful"))


def test_the_angle_is_that_of_the_first_eigenvectors():
    _, K_H = two_tasks(angle=25.0, dimension=5)
    first = np.linalg.eigh(K_H)[1][:, -1]
    assert abs(first[0]) == pytest.approx(np.cos(np.deg2rad(25.0)), rel=1e-12)
    assert abs(first[-1]) == pytest.approx(np.sin(np.deg2rad(25.0)), rel=1e-12)
    assert np.linalg.eigh(K_H)[1][2, 2] ** 2 == pytest.approx(1.0)  # the middle one of five stays


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"angle": 91.0}, InvalidInputError, "between 0 and 90 degrees, got 91"),
        ({"null": "pretrian"}, UnknownNameError, "did you mean 'pretrain'"),
        ({"null": "both", "dimension": 2}, InvalidInputError, "at least 3 with null space 'both', got 2"),
        ({"dimension": 1}, InvalidInputError, "at least 2 with null space 'none', got 1"),
        ({"kappa_harmful": 0.5}, InvalidInputError, r"kappa must be at least 1 and finite, got 0\.5"),
    ],
    ids=["angle", "null", "no room", "dimension", "kappa"],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        two_tasks(**arguments)
