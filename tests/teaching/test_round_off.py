"""The plateau: its level, and that it is the arithmetic's and not the method's."""

import numpy as np
import pytest

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.condition_number import plateau


@pytest.mark.parametrize("kappa", [10.0, 100.0])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_curve_ends_on_a_plateau_of_the_predicted_order(kappa, precision):
    run = plateau(kappa, precision)
    end = run.norm_ratio[run.steps > 0.8 * run.steps[-1]]
    assert end.max() <= run.round_off
    # Rounding of b alone rarely cancels: the level is within (κ·eps)² and a ten-thousandth of it.
    assert end.min() > 1e-4 * run.round_off
    assert end.max() < 10 * end.min()  # flat


def test_before_the_plateau_both_precisions_agree():
    single, double = plateau(100.0, "float32"), plateau(100.0, "float64")
    early = double.norm_ratio > 1e3 * single.round_off
    wanted = np.interp(double.steps[early], single.steps, single.norm_ratio)
    np.testing.assert_allclose(np.log(wanted), np.log(double.norm_ratio[early]), atol=0.05)


def test_bad_arguments():
    with pytest.raises(InvalidInputError, match="kappa must be above 1, got 1"):
        plateau(1.0)
    with pytest.raises(UnknownNameError, match="unknown precision 'float16'"):
        plateau(10.0, "float16")
