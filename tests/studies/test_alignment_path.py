"""Paths of extractors: each kept number against the theory's own functions, resuming, refusals."""

import numpy as np
import pytest
import torch

from condnum.data import load_diabetes_tasks
from condnum.methods import immunize
from condnum.probing import linear_probe
from condnum.studies.alignment_path import TASKS_CELL, AlignmentPath, PathData, kept_directions, kept_steps
from condnum.theory.alignment import alignment
from condnum.theory.immunization import relative_immunization_ratio

#: κ of the diabetes tasks is below 1e4: products of three matrices in float64 keep ten digits of the spectra.
CLOSE = 1e-9
TRAINING = {"data": "embedded", "methods": ("opt_kappa", "max_rir"), "steps": 12}


@pytest.fixture(scope="module")
def run():
    return AlignmentPath(**TRAINING).run()


def arrays(run, method):
    return next(result.arrays for result in run.cells if result.cell["method"] == method)


@pytest.fixture(scope="module")
def thetas(run):
    """θ at each step of that training, by running it again."""
    seen, study = {}, run.study
    result = immunize(
        run.data.problem,
        "opt_kappa",
        settings=study.settings("opt_kappa"),
        callback=lambda progress: seen.update({progress.step: progress.theta.clone()}),
        callback_steps=range(12),
    )
    return seen | {result.steps: result.theta}


@pytest.mark.parametrize("side", [0, 1], ids=["pretrain", "harmful"])
@pytest.mark.parametrize("step", [0, 5, 12])
def test_a_kept_step_is_what_the_theory_says_of_its_theta(run, thetas, step, side):
    kept, theta = arrays(run, "opt_kappa"), thetas[step]
    k = kept["step"].tolist().index(step)
    task = (run.data.problem.pretrain, run.data.problem.harmful)[side]
    truth = alignment(theta, task.covariance)
    r = task.rank
    np.testing.assert_allclose(kept["sigma"][k], np.linalg.svd(theta, compute_uv=False), rtol=CLOSE)
    np.testing.assert_allclose(kept["predicted"][k, side], truth.predicted, rtol=1e-7)
    np.testing.assert_allclose(kept["spectrum"][k, side, :r], truth.spectrum[:r], rtol=1e-7)
    np.testing.assert_allclose(kept["blocks"][k, side][:, :r], truth.overlaps[:, :r], atol=CLOSE)
    assert kept["misalignment"][k, side] == pytest.approx(truth.misalignment, rel=1e-6)
    assert kept["predicted_kappa"][k, side] == pytest.approx(truth.predicted_condition, rel=1e-6)
    found = relative_immunization_ratio(theta, *(t.covariance for t in vars(run.data.problem).values()))
    ratios = found.pretrain_ratio, found.harmful_ratio
    assert kept["ratios"][k, side] == pytest.approx(ratios[side], rel=1e-7)
    moment, record = task.features.T @ task.targets, kept["probe_steps"]
    probe = linear_probe(theta, task.covariance, moment, steps=5000, record=record)
    np.testing.assert_allclose(kept["probes"][k, side], probe.norm_ratio, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("i", [0, 3, 8])
def test_what_sigma_moves_is_the_derivative_of_log_kappa(run, thetas, i):
    kept, theta, h = arrays(run, "opt_kappa"), thetas[5], 1e-6
    k = kept["step"].tolist().index(5)
    U, s, V = torch.linalg.svd(theta)
    K = [task.covariance for task in (run.data.problem.pretrain, run.data.problem.harmful)]

    def logs(factor):
        scaled = torch.where(torch.arange(len(s)) == i, s * factor, s)
        found = relative_immunization_ratio((U * scaled) @ V, *K)
        return np.log([found.pretrain_ratio, found.harmful_ratio])

    slope = (logs(1 + h) - logs(1 - h)) / (2 * h)
    pull = 2 * (kept["top"] - kept["low"])[k, :, i]
    np.testing.assert_allclose(pull, slope, rtol=1e-4, atol=1e-6)  # central differences: h² and eps·κ/h


def test_steps_are_log_spaced_with_both_ends_and_fill_the_wanted_number():
    for limit, dimension in ((5, 9), (120, 784), (1000, 79), (12_000, 79), (20_000, 784)):
        steps = kept_steps(limit, dimension)
        assert steps[0] == 0
        assert steps[-1] == limit
        assert steps == sorted(set(steps))
        assert min(limit + 1, 30) <= len(steps) <= 60
    assert kept_directions(784) == 784
    assert 0 < kept_directions(2048) < 2048


def test_targets_are_not_needed_and_what_needs_them_is_left_out(tmp_path):
    pair = load_diabetes_tasks()
    for name, X in (("P", pair.X_P), ("H", pair.X_H)):
        np.save(tmp_path / f"{name}.npy", X)
    study = AlignmentPath(data="given", steps=3)
    data = PathData.of_files(str(tmp_path / "P.npy"), str(tmp_path / "H.npy"))
    assert "imma" not in study.allowed(data)
    cells = study.cells(data)
    assert [cell["method"] for cell in cells] == [TASKS_CELL, *study.allowed(data)]
    assert data.features == tuple(f"x{k}" for k in range(8))
    found = study.compute(data, next(cell for cell in cells if cell["method"] == "r_ill_only"))
    assert found.arrays["step"].tolist() == [0, 1, 2, 3]
