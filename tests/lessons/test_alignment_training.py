"""Paths of extractors: each kept number against the theory's own functions."""

from dataclasses import replace

import numpy as np
import pytest

from condnum.experiments.linear import chosen_settings
from condnum.lessons.alignment_training import PathTasks, follow
from condnum.methods import immunize
from condnum.theory.alignment import alignment
from condnum.theory.kappa import relative_immunization_ratio

#: κ of the diabetes tasks is below 1e4: products of three matrices in float64 keep ten digits of the spectra.
CLOSE = 1e-9


@pytest.fixture(scope="module")
def tasks():
    return PathTasks.named("embedded")


@pytest.fixture(scope="module")
def kept(tasks):
    return follow(tasks, "opt_kappa", 12)


@pytest.fixture(scope="module")
def thetas(tasks):
    """θ at each step of that training, by running it again."""
    seen = {}
    result = immunize(
        tasks.problem,
        "opt_kappa",
        settings=replace(chosen_settings("embedded", "opt_kappa", 0), record_every=0, steps=12),
        callback=lambda progress: seen.update({progress.step: progress.theta.clone()}),
        callback_steps=range(12),
    )
    return seen | {result.steps: result.theta}


@pytest.mark.parametrize("side", [0, 1], ids=["benign", "harmful"])
@pytest.mark.parametrize("step", [0, 5, 12])
def test_a_kept_step_is_what_the_theory_says_of_its_theta(tasks, kept, thetas, step, side):
    theta = thetas[step]
    k = kept["step"].tolist().index(step)
    task = (tasks.problem.benign, tasks.problem.harmful)[side]
    truth = alignment(theta, task.covariance)
    r = task.rank
    np.testing.assert_allclose(kept["sigma"][k], np.linalg.svd(theta, compute_uv=False), rtol=CLOSE)
    np.testing.assert_allclose(kept["predicted"][k, side], truth.predicted, rtol=1e-7)
    np.testing.assert_allclose(kept["spectrum"][k, side, :r], truth.spectrum[:r], rtol=1e-7)
    np.testing.assert_allclose(kept["blocks"][k, side][:, :r], truth.overlaps[:, :r], atol=CLOSE)
    assert kept["misalignment"][k, side] == pytest.approx(truth.misalignment, rel=1e-6)
    assert kept["predicted_kappa"][k, side] == pytest.approx(truth.predicted_condition, rel=1e-6)
    found = relative_immunization_ratio(
        theta, *(t.covariance for t in (tasks.problem.benign, tasks.problem.harmful))
    )
    ratios = found.benign_ratio, found.harmful_ratio
    assert kept["ratios"][k, side] == pytest.approx(ratios[side], rel=1e-7)


@pytest.mark.parametrize("data", ["embedded", "digits:4-9"])
def test_what_is_erased_counts_for_no_kappa(data):
    """Round-off of erased and of dead directions once gave κ's of 1e27, and RIR was noise."""
    tasks = PathTasks.named(data)
    found = immunize(tasks.problem, "erase").verdict
    kept = follow(tasks, "erase")["ratios"][0]
    assert kept == pytest.approx([found.benign_ratio, found.harmful_ratio], rel=1e-4)
