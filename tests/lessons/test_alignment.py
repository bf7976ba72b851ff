"""Lesson 2: formulas by hand and the theorems that it shows; its figures hold what was computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.aligned_tasks import EXPONENTS, aligned_tasks
from condnum.lessons.alignment import (
    ROTATIONS,
    AlignmentExplorer,
    alignment_sweep,
    alignment_sweep_figure,
    haar_overlap_band,
    rotated_alignment,
    rotation_matrix,
)

#: Products of orthogonal matrices of size ≤ 16: far above their round-off.
ROUND_OFF = 1e-12


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


@pytest.mark.parametrize("rotation", ROTATIONS[:-1])
@pytest.mark.parametrize("dimension", [2, 8])
def test_rotations_are_orthogonal_and_of_the_chosen_size(rotation, dimension):
    R = rotation_matrix(rotation, dimension, 35.0, seed=3)
    np.testing.assert_allclose(R.T @ R, np.eye(dimension), atol=ROUND_OFF)
    assert np.linalg.det(R) == pytest.approx(1)
    assert np.rad2deg(np.abs(np.angle(np.linalg.eigvals(R)))).max() == pytest.approx(35.0)
    again = rotation_matrix(rotation, dimension, 35.0, seed=4)
    assert (np.abs(R - again).max() > 0.01) == (rotation == "random" and dimension > 2)


@pytest.mark.parametrize("dimension", [2, 64])
def test_only_a_haar_draw_is_generic(dimension):
    draws = [rotated_alignment(rotation="haar", dimension=dimension, seed=seed) for seed in range(40)]
    overlaps = [run.diagonal_overlap for run in draws]
    assert np.mean(overlaps) == pytest.approx(1 / dimension, rel=0.25)  # E|u_iᵀq_i|² = 1/D, 40 draws
    low, high = haar_overlap_band(dimension)
    assert sum(low <= value <= high for value in overlaps) >= 30
    bounded = rotated_alignment(rotation="random", angle=90.0, dimension=dimension)
    assert bounded.exact if dimension == 2 else bounded.diagonal_overlap > 1.5 * high


def test_by_hand():
    run = rotated_alignment(angle=45.0, dimension=2, data_kappa=3.0, theta_kappa=2.0)
    np.testing.assert_allclose(12 * run.sorted_prediction, [8, 2], rtol=1e-12)
    np.testing.assert_allclose(12 * run.alignment.spectrum, 5 + np.sqrt(13) * np.array([1, -1]), rtol=1e-12)
    # off-diagonal 2, 2 of [[8, 2], [2, 2]]
    assert run.alignment.misalignment == pytest.approx(np.sqrt(8 / 76))
    undone = rotated_alignment(angle=0.0, pairing="opposite", data_kappa=100.0, theta_kappa=10.0)
    assert undone.exact
    assert undone.alignment.true_condition == pytest.approx(1)
    permuted = rotated_alignment(angle=90.0, rotation="ends")
    assert permuted.exact
    assert (np.diff(permuted.alignment.predicted) > 0).any()  # not in the order of θ


@given(
    st.floats(0.0, 90.0), st.sampled_from(ROTATIONS), st.integers(2, 12), st.floats(1.5, 1e3),
    st.floats(1.5, 30),
)  # fmt: skip
@settings(deadline=None)
def test_what_is_true_at_every_angle(angle, rotation, dimension, data_kappa, theta_kappa):
    result = rotated_alignment(
        angle=angle, rotation=rotation, dimension=dimension, data_kappa=data_kappa, theta_kappa=theta_kappa
    ).alignment
    np.testing.assert_allclose(result.overlaps.sum(0), 1, atol=ROUND_OFF)
    np.testing.assert_allclose(result.overlaps.sum(1), 1, atol=ROUND_OFF)
    assert result.majorised
    assert result.ostrowski_holds
    assert result.condition_ratio <= 1 + 1e-9  # round-off of σ_D, up to κ(θ)²κ(K)·eps


@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(0, 1))
@settings(deadline=None)
def test_aligned_tasks_follow_the_closed_form(p, h, s):
    run = aligned_tasks(pretrain_kappa=p, harmful_kappa=h, exponent=s)
    np.testing.assert_allclose(run.pretrain_condition, p ** (1 - EXPONENTS), rtol=1e-9)
    harmful = np.maximum(h / p**EXPONENTS, p**EXPONENTS / h)
    np.testing.assert_allclose(run.harmful_condition, harmful, rtol=1e-9)
    assert run.immunization.rir == pytest.approx(max(h / p**s, p**s / h) / p ** (1 - s) * p / h, rel=1e-8)
    assert run.ceiling == pytest.approx(max(p / h, h / p) * p / h, rel=1e-8)
    assert (run.ratios <= run.ceiling * (1 + 1e-8)).all()


def test_overlaps_spectra_and_partial_sums_are_those_of_the_run():
    explorer = AlignmentExplorer(angle=40.0, dimension=5, pairing="opposite")
    run, figure = explorer.result, explorer.plain_figure()
    result = run.alignment
    np.testing.assert_array_equal(by_name(figure, "overlaps").z, result.overlaps)
    np.testing.assert_array_equal(by_name(figure, "truth").y, result.spectrum)
    np.testing.assert_array_equal(by_name(figure, "Eq. 10").y, sorted(result.predicted, reverse=True))
    np.testing.assert_array_equal(by_name(figure, "Ostrowski's").y, result.ostrowski_upper)
    below, above = by_name(figure, "sums of Eq. 10").y, by_name(figure, "gap").y
    np.testing.assert_allclose(np.diff(above), result.spectrum / result.spectrum.sum(), rtol=1e-12)
    assert (below <= above + 1e-12).all()
    assert f"Misalignment {result.misalignment:.3f}" in figure.layout.title.text
    np.testing.assert_array_equal(run.table()["overlap_2"], result.overlaps[:, 1])
    for arguments in ({}, {"angle": 90.0, "data_kappa": 1e4, "theta_kappa": 30.0}, {"data_kappa": 1.0}):
        figure = rotated_alignment(**arguments).figure()
        low, high = figure.layout.yaxis2.range
        assert all((low <= np.log10(t.y)).all() and (np.log10(t.y) <= high).all() for t in figure.data[1:5])


def test_a_sweep_has_a_curve_a_rotation_in_each_panel():
    sweeps = [alignment_sweep([0.0, 45.0, 90.0], rotation=rotation) for rotation in ROTATIONS]
    run = rotated_alignment(angle=45.0, rotation="ends").alignment
    assert tuple(sweeps[0].iloc[1, -2:]) == (run.misalignment, run.condition_ratio)
    figure = alignment_sweep_figure(sweeps)
    assert len(figure.data) == 3 * 3 + 2 * 3
    np.testing.assert_array_equal(figure.data[11].y, sweeps[1].condition_ratio)
    band, median = figure.data[8:10]
    np.testing.assert_allclose(sorted(set(band.y)), np.quantile(sweeps[3].misalignment, [0.05, 0.95]))
    np.testing.assert_allclose(median.y, np.median(sweeps[3].misalignment))
    legend = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert len(legend) == len(set(legend)) == 4
