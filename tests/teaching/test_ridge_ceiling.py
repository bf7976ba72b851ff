"""What a ridge does to the ceiling, against limits found by hand."""

import numpy as np
import pytest

from condnum.errors import InvalidInputError
from condnum.lessons.ridge_ceiling import ridge_ceiling_demo


@pytest.mark.parametrize("null", ["none", "both", "harmful", "pretrain"])
def test_the_bound_holds_for_the_optimum(null):
    demo = ridge_ceiling_demo(null=null)
    assert (demo.attained <= demo.of_measure * (1 + 1e-9)).all()
    np.testing.assert_allclose(demo.of_data[-1], 1.0, atol=10)  # a huge ridge leaves two like tasks


def test_without_null_space_all_tend_to_the_compact_ceiling():
    demo = ridge_ceiling_demo(null="none")
    for curve in (demo.of_data, demo.of_measure, demo.attained):
        assert curve[0] == pytest.approx(demo.compact, rel=1e-5)  # ε/σ_D = 1e-6


def test_a_feature_dead_in_both_tasks_changes_the_limit():
    """κ(K_P + ε)/κ(K_H + ε) → 1 instead of 100/10; κ(M) stays, as 1 lies inside M's spectrum."""
    demo = ridge_ceiling_demo(null="both", kappa_pretrain=100.0, kappa_harmful=10.0)
    assert demo.of_data[0] == pytest.approx(demo.compact / 10, rel=1e-5)


def test_a_feature_of_the_harmful_task_alone_makes_it_grow_like_one_over_ridge_squared():
    demo = ridge_ceiling_demo(null="pretrain")
    assert demo.compact == np.inf
    slope = np.diff(np.log(demo.of_data[:8])) / np.diff(np.log(demo.ridges[:8]))
    np.testing.assert_allclose(slope, -2.0, atol=1e-3)


def test_the_chosen_ridge_lies_on_the_curve():
    demo = ridge_ceiling_demo(null="both", ridge=1e-8)
    assert demo.at_ridge.rir == pytest.approx(demo.attained[0], rel=1e-9)
    assert demo.at_compact.rir == pytest.approx(demo.compact, rel=1e-9)


def test_a_ridge_that_is_none():
    with pytest.raises(InvalidInputError, match="ridge"):
        ridge_ceiling_demo(ridge=-1.0)
