"""Every correction against numbers worked out by hand."""

import math
import re

import numpy as np
import pytest

from condnum.experiments import corrections
from condnum.numbers import num
from condnum.theory.regularizers import r_ill

from .conftest import finished

#: What each must say: for two of them a closed form, diag(2,1)·[[2,1],[1,2]]·diag(2,1) has 5 ± √13.
BY_HAND = {
    "proposition-3-2": f"κ = 4; spectrum of H: .*κ = {num((5 + 13**0.5) / (5 - 13**0.5), 4)}",
    "aligned-tasks": r"κ\(H_P\): 100 → 1; κ\(H_H\): 2 → 50; RIR = 2,500 of at most 2,500",
    "theorem-4-1": f"R_ill = {num(1 / ((1 + 1 / 4) / 6), 4)} at κ = 1,000,000",
    "theorem-4-3-1": "κ 4 → ∞",
    "theorem-4-3-2": "1.631 → 1.562",
    # Both ratios grow with the square of the scale.
    "theta-scale": r"\(i\) = 0.5, \(ii\) = 0.01; 3θ: \(i\) = 4.5, \(ii\) = 0.09",
    "identity": "κ = 1 with U = I, κ = 3 with U = Q",
    "informed-attacker": "κ = 10, .*whitened by the attacker: κ = 1, 1 step",
}


@pytest.mark.parametrize("claim", corrections.CLAIMS)
def test_each_is_refuted_by_its_numbers(claim):
    found = finished(corrections)
    place = [*corrections.CLAIMS].index(claim)
    row = found.table.iloc[place]
    assert row["refuted"]
    assert math.isfinite(found.rows.loc[place, "refuted"])
    assert re.search(BY_HAND[claim], row["computed"])
    assert "—" not in row["computed"]


def test_a_claim_that_holds_or_failed_is_not_counted():
    rows = finished(corrections).rows
    rows = rows.assign(refuted=rows["claim"] != "identity")
    for kept, said in ((rows, "7 of 8 statements of the paper are refuted"), (rows.iloc[:2], "2 of 2 ")):
        assert corrections.sentence(corrections.table(kept)).startswith(said)


def test_the_figure_has_kappa_and_the_regularizer_of_the_spectra():
    first, _, second, _ = corrections.figure(finished(corrections)).data
    assert (first.x[-1], first.y[-1]) == pytest.approx((1e6, r_ill(np.diag([1.0, 0.5, 1e-6]))))
    assert (second.x[-1], second.y[-1]) == pytest.approx((10, r_ill(1e3 * np.diag([1.0, 0.5, 0.1]))))
