"""Every correction against numbers worked out by hand."""

import numpy as np
import pytest

from condnum.lessons.corrections import CORRECTIONS


@pytest.mark.parametrize("check", CORRECTIONS, ids=lambda check: check.__name__)
def test_each_is_refuted_and_says_all(check):
    found = check()
    assert found.refuted is True or found.refuted == np.True_
    assert all((found.place, found.claim, found.setting, found.claimed, found.computed, found.correction))
    assert not any(np.isnan(value) for value in found.values.values())


def test_their_numbers_by_hand():
    values = {check.__name__: check().values for check in CORRECTIONS}
    assert len({check().key for check in CORRECTIONS}) == len(values) == 8
    # diag(2,1)·[[2,1],[1,2]]·diag(2,1) = [[8,2],[2,2]], eigenvalues 5 ± √13
    kappa = (5 + 13**0.5) / (5 - 13**0.5)
    assert values["proposition_3_2"] == pytest.approx({"kappa_eq_10": 4, "kappa": kappa}, rel=1e-12)
    aligned = values["aligned_remark"]
    assert (aligned["rir"], aligned["ceiling"]) == pytest.approx((2500, 2500), rel=1e-9)
    assert values["theorem_4_1"]["r_ill_vanishing"] == pytest.approx(4.8, rel=1e-9)  # 1/((1 + ¼)/6)
    well, ill = values["theorem_4_3_well"], values["theorem_4_3_ill"]
    assert (well["eta"], well["printed_bound"], well["corrected_bound"]) == pytest.approx((0.25, 0.5, 0.125))
    assert well["kappa_after"] == np.inf
    assert ill["eta"] / ill["printed_bound"] == pytest.approx(0.8063)
    assert (ill["kappa_before"], ill["kappa_after"]) == pytest.approx((1.631, 1.562), abs=5e-4)
    scaled = values["scale_of_ratios"]
    for name in ("harmful_ratio", "pretrain_ratio"):
        assert scaled[f"{name}_3"] / scaled[f"{name}_1"] == pytest.approx(9, rel=1e-5)  # ε = 1e-6
