"""Every correction against numbers worked out by hand, and the notebook that shows them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum.lessons import corrections
from condnum.lessons.corrections import correction_table
from condnum.report.tables import CORRECTIONS_CSV, formula_html

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "experiments" / "corrections.ipynb"


@pytest.mark.parametrize("check", corrections.CORRECTIONS, ids=lambda check: check.__name__)
def test_each_is_refuted_and_says_all(check):
    found = check()
    assert found.refuted is True or found.refuted == np.True_
    assert all((found.place, found.claim, found.setting, found.claimed, found.computed, found.correction))
    assert not any(np.isnan(value) for value in found.values.values())


def test_eq_10_is_the_diagonal():
    # diag(2,1)·[[2,1],[1,2]]·diag(2,1) = [[8,2],[2,2]], eigenvalues 5 ± √13
    values = corrections.proposition_3_2().values
    assert values["kappa_eq_10"] == pytest.approx(4, rel=1e-12)
    assert values["kappa"] == pytest.approx((5 + 13**0.5) / (5 - 13**0.5), rel=1e-12)


def test_aligned_tasks_reach_the_ceiling():
    values = corrections.aligned_remark().values
    assert values["rir"] == pytest.approx(2500, rel=1e-9)
    assert values["ceiling"] == pytest.approx(2500, rel=1e-9)


def test_r_ill_tends_to_24_fifths():
    # 1/((1 + ¼)/6) = 4.8
    assert corrections.theorem_4_1().values["r_ill_vanishing"] == pytest.approx(4.8, rel=1e-9)


def test_step_bounds():
    well, ill = corrections.theorem_4_3_well().values, corrections.theorem_4_3_ill().values
    assert (well["eta"], well["printed_bound"], well["corrected_bound"]) == pytest.approx((0.25, 0.5, 0.125))
    assert well["kappa_after"] == np.inf
    assert ill["eta"] / ill["printed_bound"] == pytest.approx(0.8063)
    assert ill["eta"] > ill["corrected_bound"]
    assert (ill["kappa_before"], ill["kappa_after"]) == pytest.approx((1.631, 1.562), abs=5e-4)


def test_scaling_by_three_moves_both_ratios_ninefold():
    values = corrections.gauge_of_ratios().values
    assert values["harmful_ratio_3"] / values["harmful_ratio_1"] == pytest.approx(9, rel=1e-5)  # ε = 1e-6
    assert values["pretrain_ratio_3"] / values["pretrain_ratio_1"] == pytest.approx(9, rel=1e-5)


def test_keys_are_unique():
    keys = [check().key for check in corrections.CORRECTIONS]
    assert len(keys) == len(set(keys)) == 8


def test_formulas_are_escaped():
    assert formula_html("a_<b> & κ_P") == "a_&lt;b&gt; &amp; κ<sub>P</sub>"


def test_the_notebook_computes_them(tmp_path, on_shared_kernel):
    pytest.importorskip("papermill", reason="the extra notebooks is not installed")
    from condnum.report.notebook import run_notebook

    run_notebook(NOTEBOOK, {"out": str(tmp_path / "out"), "quiet": True}, tmp_path / "out", quiet=True)
    written = pd.read_csv(tmp_path / "out" / CORRECTIONS_CSV)
    expected = correction_table([check() for check in corrections.CORRECTIONS])
    pd.testing.assert_frame_equal(written, expected, check_dtype=False)
