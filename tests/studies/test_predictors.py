"""Rank correlations between what is known of a net and what its attackers lose."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from condnum.deep.attacks.report import AGAIN, SCRATCH, THETA_0
from condnum.figures.deep_attacks import predictor_figure
from condnum.studies.predictors import PREDICTORS, REPEATED, rank_correlations, spearman

METHODS = ("a", "b", "c", "d", "e")


def tables(loss, *, seeds=2, repeats=2, backbones=("net",), methods=METHODS):
    """Return models whose RIR rises with the method, and curves of attacks that lose `loss(k, seed)`."""
    models, curves = [], []
    for number, backbone in enumerate(backbones):
        for seed in range(seeds):
            start = 0.9 - 0.1 * seed - 0.2 * number
            nets = {THETA_0: 0.0, AGAIN: 0.01, SCRATCH: 0.3}
            nets |= {name: loss(k, seed) for k, name in enumerate(methods, 1)}
            for net, lost in nets.items():
                for repeat in range(repeats):
                    at = {"backbone": backbone, "net": net, "attacker": "head-sgd", "shots": 0, "seed": seed}
                    for step, accuracy in ((0, 0.1), (50, start - lost + 0.001 * repeat)):
                        curves.append(at | {"repeat": repeat, "step": step, "accuracy": accuracy})
            for k, name in enumerate(("initial", *methods)):
                for convention in ("compact", "ridge"):
                    known = dict.fromkeys(PREDICTORS, 1.0) | {"rir": 10.0**k * (1 + seed), "distance": -k}
                    known.pop("ridge_rir")
                    models.append(
                        {"backbone": backbone, "method": name, "seed": seed, "convention": convention} | known
                    )
    return pd.DataFrame(models), pd.DataFrame(curves)


def found(*args, **how):
    """Return the correlations by predictor."""
    return rank_correlations(*tables(*args, **how)).set_index("predictor")


def test_a_loss_that_follows_rir_has_rho_1_and_its_opposite_minus_1():
    table = found(lambda k, seed: 0.05 * k + 0.001 * seed)
    assert table.at["RIR", "rho"] == pytest.approx(1)
    assert table.at["L2 distance", "rho"] < -0.9
    assert table.at[REPEATED, "rho"] == pytest.approx(1)
    assert (table["nets"] == 10).all()
    assert (table["methods"] == 5).all()
    assert np.isnan(table.at["(i)", "rho"])  # the same for all nets


def test_the_level_of_a_seed_or_a_backbone_makes_no_correlation():
    alone = found(lambda k, seed: 0.05 * (k % 3))
    pooled = found(lambda k, seed: 0.05 * (k % 3), backbones=("net", "other"))
    assert pooled.at["RIR", "rho"] == pytest.approx(alone.at["RIR", "rho"])
    assert pooled.at["RIR", "nets"] == 20


def test_infinite_steps_are_the_largest_rank_and_one_method_may_make_a_correlation():
    models, curves = tables(lambda k, seed: 0.3 * (k == 5) + 0.01 * seed)
    models.loc[models["method"] == "e", "slowdown"] = np.inf
    row = rank_correlations(models, curves).set_index("predictor").loc["steps of a head"]
    assert row["nets"] == 10
    assert row["rho"] > 0.6
    rir = rank_correlations(models, curves).set_index("predictor").loc["RIR"]
    models, curves = models[models["method"] != "e"], curves[curves["net"] != "e"]
    without = rank_correlations(models, curves).set_index("predictor").loc["RIR"]
    assert rir["least"] == pytest.approx(without["rho"])
    assert rir["least"] < rir["rho"] - 0.3


@pytest.mark.parametrize(("failed", "nets"), [([1], 5), ([0, 1], 0)])
def test_nets_whose_theta_0_could_not_be_attacked_are_left_out(failed, nets):
    models, curves = tables(lambda k, seed: 0.05 * k)
    curves = curves[(curves["net"] != THETA_0) | ~curves["seed"].isin(failed)]
    assert (rank_correlations(models, curves)["nets"] == nets).all()


def test_the_interval_holds_rho_and_is_wide_where_methods_are_few():
    table = found(lambda k, seed: 0.05 * ((k * 2) % 5))
    row = table.loc["RIR"]
    assert row["low"] <= row["rho"] <= row["high"]
    assert row["high"] - row["low"] > 0.5
    assert found(lambda k, seed: 0.1 * k, methods=METHODS[:3])["low"].isna().all()


def test_the_figure_shows_every_predictor_or_says_that_methods_are_too_few():
    figure = predictor_figure(rank_correlations(*tables(lambda k, seed: 0.05 * ((k * 2) % 5))), "data")
    assert list(figure.layout.yaxis.tickvals) == [*PREDICTORS.values(), REPEATED]
    assert tuple(figure.layout.yaxis.range) == (-0.5, len(PREDICTORS) + 0.5)
    assert "10 nets of 5 methods" in str(figure.layout.title.text)
    few = predictor_figure(rank_correlations(*tables(lambda k, seed: 0.1 * k, methods=METHODS[:3])), "data")
    assert "Too few methods" in str(few.layout.title.text)


def test_one_repeat_has_no_control():
    assert REPEATED not in found(lambda k, seed: 0.1 * k, repeats=1).index


def test_rho_is_scipys_with_ties():
    x, y = np.random.default_rng(0).integers(0, 5, (2, 30)).astype(float)
    assert spearman(np.stack([x, y], axis=1), np.zeros(30)) == pytest.approx(spearmanr(x, y)[0])
