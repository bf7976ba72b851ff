"""Every correction against numbers worked out by hand."""

import math

import pytest

from condnum.lessons import corrections
from condnum.numbers import num

#: What each must say: for two of them a closed form, diag(2,1)·[[2,1],[1,2]]·diag(2,1) has 5 ± √13.
BY_HAND = {
    corrections.proposition_3_2: ("κ = 4", f"κ = {num((5 + math.sqrt(13)) / (5 - math.sqrt(13)), 4)}"),
    corrections.aligned_remark: ("not both", "κ(H_P): 100 → 1; κ(H_H): 2 → 50; RIR = 2,500 of at most 2,500"),
    corrections.theorem_4_1: ("in the first", f"R_ill = {num(1 / ((1 + 1 / 4) / 6), 4)} at κ = 1,000,000"),
    corrections.theorem_4_3_well: ("κ falls from 4", "κ 4 → ∞"),
    corrections.theorem_4_3_ill: ("κ rises from 1.631", "κ 1.631 → 1.562"),
    # ε = 1e-6: both ratios grow with the square of the scale
    corrections.scale_of_ratios: ("one verdict", "(i) = 0.5, (ii) = 0.01; 3θ: (i) = 4.5, (ii) = 0.09"),
}


@pytest.mark.parametrize("check", corrections.CORRECTIONS, ids=lambda check: check.__name__)
def test_each_is_refuted_by_its_numbers(check):
    found = check()
    assert found.refuted is True
    assert "nan" not in found.computed
    claimed, computed = BY_HAND.get(check, ("", ""))
    assert claimed in found.claimed
    assert computed in found.computed
