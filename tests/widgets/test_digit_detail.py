"""The detail of a digit pair is computed from the run's own cells."""

import numpy as np
import pytest

from condnum.errors import InvalidInputError
from condnum.lessons.pair_browser import digit_pair_detail
from condnum.studies import digit_pairs
from condnum.studies import digit_pairs as digit_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = digit_config.DigitPairsConfig(methods=("imma",), seeds=1, epochs=3, pairs=((4, 7),))
    return digit_pairs.run(config, tmp_path_factory.mktemp("store"))


def test_curves_of_the_methods_and_both_controls(run):
    detail = digit_pair_detail(run, 4, 7, probe_steps=20)
    assert set(detail.curves["method"]) == {"imma", "identity", "initial"}
    assert detail.mean_pretrain.shape == (8, 8)
    chosen = run.digits.images[run.digits.labels == 4]
    np.testing.assert_allclose(detail.mean_pretrain, chosen.mean(axis=0))
    ratio = detail.curves[detail.curves["quantity"] == "norm_ratio"]
    assert ratio["x"].max() == 20


@pytest.mark.parametrize(("pair", "text"), [((4, 4), "two different digits"), ((1, 2), "no pair")])
def test_pairs_that_the_run_lacks(run, pair, text):
    with pytest.raises(InvalidInputError, match=text):
        digit_pair_detail(run, *pair)
