"""Heatmaps of digit pairs: values by hand, one symmetric scale, crosses where a seed fails."""

import math

import numpy as np
import pandas as pd
import pytest

from condnum import figures as plots


@pytest.fixture
def results():
    """Ratio (i) is 2·RIR, ratio (ii) is 2."""
    rows = [
        ("ours", 0, 3, 8, math.e**2, True),
        ("ours", 1, 3, 8, math.e**4, True),
        ("ours", 0, 0, 1, math.e**-1, False),
        ("ours", 1, 0, 1, math.e**-1, True),
        ("imma", 0, 3, 8, math.e**-5, False),
        ("imma", 1, 3, 8, math.e**-5, False),
        ("max_rir", 0, 3, 8, math.e**9, True),
    ]
    names = ["method", "seed", "benign_digit", "harmful_digit", "rir", "success"]
    table = pd.DataFrame(rows, columns=names).assign(convention="ridge", theta_scale="unit")
    table = pd.concat([table, table[:2].assign(rir=7.0, convention="compact")], ignore_index=True)
    return table.assign(harmful_ratio=2 * table["rir"], benign_ratio=2.0)


@pytest.fixture(autouse=True)
def _panels(monkeypatch):
    """Draw panels for two pairs too."""
    monkeypatch.setattr("condnum.figures.pairs.FEW", 0)


def test_a_few_pairs_are_the_columns_of_one_map(results, monkeypatch):
    monkeypatch.setattr("condnum.figures.pairs.FEW", 2)
    (map_,) = plots.pair_heatmaps(results, "toy").data
    assert list(map_.x) == ["3 → 8", "0 → 1"]
    assert map_.z[0].tolist() == pytest.approx([3, -1])
    assert np.isnan(map_.z[2][1])  # max_rir was not run on that pair
    assert "median 3.88" in map_.y[0]  # (e² + e⁻¹) / 2


def drawn(trace, texts="text"):
    """The texts of the cells that are drawn, by (benign, harmful)."""
    shown = zip(*np.nonzero(np.isfinite(trace.z)), strict=True)
    return {tuple(trace.customdata[at]): trace[texts][at] for at in shown}


def test_cells_are_means_of_ln_rir_with_rows_for_pretraining(results):
    ours, imma, _ = plots.pair_heatmaps(results, "toy").data
    assert drawn(ours, "z") == pytest.approx({(3, 8): 3, (0, 1): -1})  # (2 + 4) / 2
    assert (ours.y[3], ours.x[8]) == (3, 8)
    assert drawn(ours) == {(3, 8): "3.0", (0, 1): "−1.0<sup>✕</sup>"}  # which fails in one seed
    assert drawn(imma) == {(3, 8): "−5.0<sup>✕</sup>"}
    hover = drawn(ours, "hovertext")[3, 8]
    assert hover.endswith("succeeds in 2 of 2<br>(i) 40.2, (ii) 2, RIR 20.1")  # 2e³, e³
    unknown = results.astype({"success": object})
    unknown.loc[0, "success"] = None  # a missing verdict is no success
    assert drawn(plots.pair_heatmaps(unknown, "toy").data[0])[3, 8] == "3.0<sup>✕</sup>"
