"""Paths of extractors: each kept number against the theory's own functions."""

import numpy as np
import pytest
import torch

from condnum.data import load_diabetes_tasks
from condnum.methods import immunize
from condnum.studies.alignment_path import PathTasks, follow, kept_steps
from condnum.theory.alignment import alignment
from condnum.theory.immunization import relative_immunization_ratio

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
        settings=tasks.study.settings("opt_kappa").with_overrides(record_every=0, steps=12),
        callback=lambda progress: seen.update({progress.step: progress.theta.clone()}),
        callback_steps=range(12),
    )
    return seen | {result.steps: result.theta}


@pytest.mark.parametrize("side", [0, 1], ids=["pretrain", "harmful"])
@pytest.mark.parametrize("step", [0, 5, 12])
def test_a_kept_step_is_what_the_theory_says_of_its_theta(tasks, kept, thetas, step, side):
    theta = thetas[step]
    k = kept["step"].tolist().index(step)
    task = (tasks.problem.pretrain, tasks.problem.harmful)[side]
    truth = alignment(theta, task.covariance)
    r = task.rank
    np.testing.assert_allclose(kept["sigma"][k], np.linalg.svd(theta, compute_uv=False), rtol=CLOSE)
    np.testing.assert_allclose(kept["predicted"][k, side], truth.predicted, rtol=1e-7)
    np.testing.assert_allclose(kept["spectrum"][k, side, :r], truth.spectrum[:r], rtol=1e-7)
    np.testing.assert_allclose(kept["blocks"][k, side][:, :r], truth.overlaps[:, :r], atol=CLOSE)
    assert kept["misalignment"][k, side] == pytest.approx(truth.misalignment, rel=1e-6)
    assert kept["predicted_kappa"][k, side] == pytest.approx(truth.predicted_condition, rel=1e-6)
    found = relative_immunization_ratio(
        theta, *(t.covariance for t in (tasks.problem.pretrain, tasks.problem.harmful))
    )
    ratios = found.pretrain_ratio, found.harmful_ratio
    assert kept["ratios"][k, side] == pytest.approx(ratios[side], rel=1e-7)


@pytest.mark.parametrize("data", ["embedded", "digits:4-9"])
def test_what_is_erased_counts_for_no_kappa(data):
    """Round-off of erased and of dead directions once gave κ's of 1e27, and RIR was noise."""
    tasks = PathTasks.named(data)
    found = immunize(tasks.problem, "erase").verdict
    kept = follow(tasks, "erase")["ratios"][0]
    assert kept == pytest.approx([found.pretrain_ratio, found.harmful_ratio], rel=1e-4)


@pytest.mark.parametrize("i", [0, 3, 8])
def test_what_sigma_moves_is_the_derivative_of_log_kappa(tasks, kept, thetas, i):
    theta, h = thetas[5], 1e-6
    k = kept["step"].tolist().index(5)
    U, s, V = torch.linalg.svd(theta)
    K = [task.covariance for task in (tasks.problem.pretrain, tasks.problem.harmful)]

    def logs(factor):
        scaled = torch.where(torch.arange(len(s)) == i, s * factor, s)
        found = relative_immunization_ratio((U * scaled) @ V, *K)
        return np.log([found.pretrain_ratio, found.harmful_ratio])

    slope = (logs(1 + h) - logs(1 - h)) / (2 * h)
    pull = 2 * (kept["top"] - kept["low"])[k, :, i]
    np.testing.assert_allclose(pull, slope, rtol=1e-4, atol=1e-6)  # central differences: h² and eps·κ/h


def test_steps_are_log_spaced_with_both_ends_and_fill_the_wanted_number():
    for limit in (5, 120, 1000, 12_000, 20_000):
        steps = kept_steps(limit)
        assert steps[0] == 0
        assert steps[-1] == limit
        assert steps == sorted(set(steps))
        assert min(limit + 1, 30) <= len(steps) <= 60


def test_targets_are_not_needed_and_what_needs_them_is_left_out(tmp_path):
    pair = load_diabetes_tasks()
    for name, X in (("P", pair.X_P), ("H", pair.X_H)):
        np.save(tmp_path / f"{name}.npy", X)
    tasks = PathTasks.of_files(str(tmp_path / "P.npy"), str(tmp_path / "H.npy"))
    assert "imma" not in tasks.allowed()
    assert tasks.features == tuple(f"x{k}" for k in range(8))
    assert follow(tasks, "r_ill_only", 3)["step"].tolist() == [0, 1, 2, 3]
