"""Batched descents against the same problems one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covariances import decaying_task

from condnum.errors import InvalidInputError
from condnum.methods import DescentSettings, get_method, immunize, immunize_batch
from condnum.methods.problem import SMALL, ImmunizationProblem

LARGE = SMALL + 12  # where one problem alone takes the factor form too


def problems(*ranks, loss=None, dimension=LARGE):
    """Problems with the given (rank of P, rank of H); their losses differ in rows too."""

    def task(rank, number):
        return decaying_task(dimension, rank, 3 * number, loss=loss, rows=20 + number)

    return [ImmunizationProblem(task(p, 2 * i), task(h, 2 * i + 1)) for i, (p, h) in enumerate(ranks)]


def one_by_one(chosen, method, seeds, settings):
    return [immunize(p, method, seed=s, settings=settings) for p, s in zip(chosen, seeds, strict=True)]


def assert_same(batch, alone, rtol=1e-8):
    """κ after the last step within 1e-8, and all else that a result says."""
    assert len(batch) == len(alone)
    for ours, theirs in zip(batch, alone, strict=True):
        assert (ours.seed, ours.steps, ours.stop_reason) == (theirs.seed, theirs.steps, theirs.stop_reason)
        assert ours.converged == theirs.converged
        assert list(ours.history) == list(theirs.history)
        assert ours.part_weights == pytest.approx(theirs.part_weights, rel=1e-9)
        for name in theirs.history:
            np.testing.assert_allclose(ours.history[name], theirs.history[name], rtol=rtol, err_msg=name)


GD = {"optimizer": "gd", "learning_rate": 1e-2}
GD |= {"weights": "fixed", "lambda_pretrain": 1.0, "lambda_harmful": 1.0}


@pytest.mark.parametrize(
    ("method", "ranks", "loss", "options"),
    [
        ("ours", ((120, 110), (100, 130), (140, 140)), None, {}),
        ("ours", ((120, 110), (100, 130)), "bce", {"loss_weight": 10.0}),
        ("ours", ((120, 110), (100, 130)), "mse", GD),
        ("ours", ((20, 20), (20, 15)), "mse", {}),  # alone by `eigh`
        ("r_ill_only", ((120, 110), (100, 130)), None, {}),
        ("opt_kappa", ((120, 110), (100, 130)), None, {"convention": "ridge"}),
        # Ranks far below D and small steps: at κ_H = 1e7 the vector of σ_k, and with it all that follows, is
        # only known to 1e-7, whoever computes it.
        ("opt_kappa", ((30, 25), (20, 40)), None, {"convention": "compact", "learning_rate": 1e-4}),
        ("opt_kappa", ((20, 20), (20, 15)), None, {"learning_rate": 1e-4}),
        ("imma", ((120, 110), (100, 130)), "bce", {"inner_steps": 2}),
    ],
)
def test_as_one_by_one(method, ranks, loss, options):
    chosen = problems(*ranks, loss=loss, dimension=20 if ranks[0][0] == 20 else LARGE)
    seeds = range(len(ranks))
    steps = {"steps": 30, "learning_rate": 1e-3, "record_every": 15}
    settings = get_method(method).defaults.with_overrides(**(steps | options))
    batch = immunize_batch(chosen, method, seeds=seeds, settings=settings)
    assert_same(batch, one_by_one(chosen, method, seeds, settings))


def test_a_problem_that_diverges_keeps_its_last_finite_theta_and_touches_no_other():
    sound = problems((120, 110), (100, 130))
    tall = ImmunizationProblem(replace(sound[0].pretrain), replace(sound[0].harmful))
    for task in (tall.pretrain, tall.harmful):  # F is finite, H = FᵀF is not
        vars(task)["range"] = replace(task.range, values=task.range.values * 1e305)
    settings = DescentSettings(steps=6, learning_rate=1e-3, record_every=2)
    mixed = immunize_batch([sound[0], tall, sound[1]], seeds=[0, 5, 1], settings=settings)
    alone = immunize(tall, "ours", seed=5, settings=settings)
    assert mixed[1].stop_reason == alone.stop_reason == "diverged"
    assert mixed[1].steps == alone.steps
    torch.testing.assert_close(mixed[1].theta, alone.theta, rtol=1e-9, atol=1e-12)
    assert len(mixed[1].history["step"]) == len(alone.history["step"])
    assert_same([mixed[0], mixed[2]], immunize_batch(sound, seeds=[0, 1], settings=settings), rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seeds": [0]}, "one seed per problem, got 2 and 1"),
        ({"method": "pareto"}, "'pareto' does not support batches"),
        ({"method": "imma"}, "needs targets, but y_P, y_H are missing"),
        ({"method": "imma", "settings": DescentSettings()}, "takes ImmaSettings, got DescentSettings"),
    ],
    ids=["seeds", "closed-form", "targets", "settings"],
)
def test_what_does_not_fit_together_is_refused(options, text):
    chosen = problems((120, 110), (100, 130))
    with pytest.raises(InvalidInputError, match=text):
        immunize_batch(chosen, **({"seeds": [0, 1]} | options))
