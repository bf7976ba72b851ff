"""The browser of pairs: a click or a choice shows RIR of a method, and the curves of a pair."""

import json

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.pair_browser import pair_browser, pair_curves
from condnum.machine import limited_threads
from condnum.studies.linear import DigitPairs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    study = DigitPairs(methods=("ours", "imma"), seeds=1, steps=3, pairs=((4, 7), (9, 0)))
    return study.run(out=tmp_path_factory.mktemp("pairs"), jobs=1)


def test_the_map_is_that_of_the_method_and_the_curves_are_those_of_the_pair(run):
    explorer = pair_browser(run)()
    assert (explorer.method, explorer.pretrain, explorer.harmful) == ("ours", 4, 7)
    results = run.tables["results"].query("convention == 'ridge' and theta_scale == 'unit'")
    for settings in ({}, {"method": "imma"}, {"pretrain": 9, "harmful": 0}):
        explorer.change(**settings)
        assert explorer.error == ""
        figure = explorer.plain_figure()
        heat, ring, curve = figure.data[0], figure.data[2], figure.data[3]
        for _, row in results[results["method"] == explorer.method].iterrows():
            assert heat.z[row["pretrain_digit"], row["harmful_digit"]] == pytest.approx(np.log(row["rir"]))
        assert np.isnan(heat.z).sum() == 98  # what the run lacks cannot be clicked
        assert heat.meta == {"click": {"pretrain": "y", "harmful": "x"}}
        assert (ring.y[0], ring.x[0]) == (explorer.pretrain, explorer.harmful)
        with limited_threads(1):  # as explorers compute
            wanted = pair_curves(run, explorer.pretrain, explorer.harmful)
        chosen = "quantity == 'norm_ratio' and task == 'pretrain' and method == 'ours' and x > 0"
        wanted = wanted.query(chosen)
        np.testing.assert_array_equal(curve.y, wanted["value"])
        assert "RIR" in json.loads(explorer.payload)["caption"]


def test_a_pair_that_the_run_lacks_is_refused_in_words(run):
    explorer = pair_browser(run)(pretrain=1, harmful=2)
    assert "this run lacks the pair (1, 2)" in explorer.error
    explorer.pretrain = 2
    assert "two different digits" in explorer.error
    assert set(pair_curves(run, 4, 7)["method"]) == {"ours", "imma", "identity", "initial"}
