"""Lesson 4: the borders are attained and never crossed; the path is Algorithm 1's; ridges; attackers."""

import numpy as np
import pytest
import torch

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.ceiling import (
    PATH_STEPS,
    RANDOM_EXTRACTORS,
    ceiling_demo,
)
from condnum.lessons.ridge_ceiling import RIDGES, ridge_ceiling_demo
from condnum.lessons.two_tasks import NULL_LABELS, attacks, attacks_figure, two_tasks, whiten
from condnum.theory.ceiling import optimal_immunizer, rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.regularizers import r_ill_gradient, r_well_gradient
from condnum.theory.spectra import condition_number

#: κ up to 1e4 · 1e4 from a Cholesky-free SVD in float64: relative error below 1e-9.
CLOSE = 1e-8
NULLS = pytest.mark.parametrize("null", NULL_LABELS)


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


def ratios(theta, K_P, K_H):
    result = relative_immunization_ratio(theta, K_P, K_H)
    return np.array([result.pretrain_ratio, result.harmful_ratio])


@NULLS
@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_two_tasks_are_as_asked_for(null, angle):
    K_P, K_H = two_tasks(kappa_pretrain=50.0, kappa_harmful=7.0, angle=angle, dimension=5, null=null)
    P, H = condition_number(K_P), condition_number(K_H)
    np.testing.assert_allclose([P.value, H.value], [50.0, 7.0], rtol=1e-12)
    assert P.rank == 5 - (null in ("both", "pretrain"))
    assert H.rank == 5 - (null in ("both", "harmful"))
    _, K_H = two_tasks(angle=angle, dimension=5)
    first = np.abs(np.linalg.eigh(K_H)[1][:, -1])
    assert first[[0, -1]] == pytest.approx([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))], abs=1e-12)


def test_the_ceiling_by_hand():
    """At 90° largest meets smallest: κ(M) = κ(K_P)κ(K_H), and RIR_max = κ(K_P)²."""
    plane = ceiling_demo(kappa_pretrain=20.0, kappa_harmful=5.0, angle=90.0, dimension=4).plane
    assert plane.kappa_pencil == pytest.approx(100.0, rel=1e-12)
    assert plane.ceiling.value == pytest.approx(400.0, rel=1e-12)
    np.testing.assert_allclose(plane.optimum, [1 / 20, 20], rtol=1e-12)  # κ(M)/κ(K_H) = 20
    proportional = ceiling_demo(kappa_pretrain=30.0, kappa_harmful=30.0, angle=0.0).plane
    assert proportional.ceiling.value == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(proportional.cloud[:, 0], proportional.cloud[:, 1], rtol=1e-9)


@NULLS
@pytest.mark.parametrize(("angle", "shape"), [(0.0, "geometric"), (20.0, "outlier"), (75.0, "geometric")])
def test_no_extractor_leaves_the_region(null, angle, shape):
    demo = ceiling_demo(null=null, angle=angle, shape=shape, dimension=5, step=0)
    points = np.concatenate([demo.plane.cloud, demo.plane.family, demo.path])
    low, high = demo.plane.lowest(points[:, 0]), demo.plane.highest(points[:, 0])
    assert (points[:, 1] >= low * (1 - CLOSE)).all()
    assert (points[:, 1] <= high * (1 + CLOSE)).all()
    assert (points[:, 0] >= (1 - CLOSE) / demo.plane.kappa_pretrain).all()
    assert np.isinf(demo.plane.ceiling.value) == (null == "pretrain")


def test_the_family_leads_from_the_identity_to_the_optimum_below_the_front():
    K_P, K_H = two_tasks(angle=45.0)
    plane = ceiling_demo(angle=45.0).plane
    np.testing.assert_allclose(plane.family[0], [1, 1], rtol=1e-12)
    np.testing.assert_allclose(plane.family[-1], plane.optimum, rtol=1e-12)
    np.testing.assert_allclose(plane.optimum, ratios(optimal_immunizer(K_P, K_H), K_P, K_H), rtol=1e-10)
    middle = np.diag(np.diag(K_P) ** -0.25)  # s = 1/2
    np.testing.assert_allclose(plane.family[10], ratios(middle, K_P, K_H), rtol=1e-10)
    rir = plane.family[:, 1] / plane.family[:, 0]
    assert (np.diff(rir) > 0).all()
    assert plane.cloud.shape == (RANDOM_EXTRACTORS, 2)
    assert 0.9 < plane.cloud_share <= 1 + CLOSE
    free = ceiling_demo(null="pretrain").plane  # without a ceiling a free direction is scaled
    np.testing.assert_allclose(free.family[-9:, 0], free.optimum[0], rtol=1e-10)  # κ(H_P) does not see it
    assert free.family[-1, 1] > 1000 * free.family[-9, 1]


def test_the_path_is_algorithm_1_by_hand():
    """θ ← θ − η(λ_P·2θ∇R_well + λ_H·2θ∇R_ill), λ's balanced at θ = I."""
    K_P, K_H = two_tasks(angle=45.0)
    tasks = [torch.from_numpy(K) for K in (K_P, K_H)]
    theta = torch.eye(4, dtype=torch.float64)
    demo = ceiling_demo(angle=45.0, ratio=2.0, learning_rate=0.1, step=3)
    lambdas = None
    for t in range(4):
        np.testing.assert_allclose(demo.path[t], ratios(theta, K_P, K_H), rtol=1e-9)
        H_P, H_H = (theta.mT @ K @ theta for K in tasks)
        parts = [2 * theta @ found.gradient for found in (r_well_gradient(H_P), r_ill_gradient(H_H))]
        lambdas = lambdas or [1 / float(parts[0].norm()), 2 / float(parts[1].norm())]
        theta = theta - 0.1 * sum(w * part for w, part in zip(lambdas, parts, strict=True))
    assert demo.path.shape == (PATH_STEPS + 1, 2)
    np.testing.assert_array_equal(demo.table().query("kind == 'algorithm_1'")["rir"], demo.rir)
    near = ceiling_demo(angle=70.0)
    assert near.rir[-1] > 0.9 * near.plane.ceiling.value
    with pytest.raises(ValueError, match="read-only"):  # it is remembered
        near.path[0, 0] = 5
    lost = ceiling_demo(kappa_pretrain=1.0, learning_rate=1.0)
    assert lost.stop_reason == "diverged"
    assert lost.shown == len(lost.path) - 1 < PATH_STEPS
    assert (lost.rir <= lost.plane.ceiling.value * (1 + CLOSE)).all()


def inside(x, y, trace):
    """Whether a point lies in the polygon of a filled trace, on logarithmic axes (even-odd rule)."""
    px, py = np.log(np.asarray(trace.x, dtype=float)), np.log(np.asarray(trace.y, dtype=float))
    qx, qy = np.roll(px, -1), np.roll(py, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = px + (np.log(y) - py) * (qx - px) / (qy - py)
    return bool((((py > np.log(y)) != (qy > np.log(y))) & (np.log(x) < crossing)).sum() % 2)


@NULLS
def test_the_grey_region_is_what_is_impossible(null):
    """A point just inside each border is free, one just beyond is grey."""
    demo = ceiling_demo(null=null, step=7)
    figure = demo.figure()
    plane, grey, front = demo.plane, by_name(figure, "no θ"), by_name(figure, "Pareto front")
    ceiling = np.nan if np.isinf(plane.ceiling.value) else plane.ceiling.value
    np.testing.assert_allclose(np.divide(front.y, front.x), ceiling, rtol=1e-12)
    shown = by_name(figure, "shown step")
    np.testing.assert_array_equal([shown.x[0], shown.y[0]], demo.path[7])
    for x in (0.02, 0.3, 5.0, 50.0):
        low, high = plane.lowest(np.array([x]))[0], plane.highest(np.array([x]))[0]
        assert inside(x, 0.9 * low, grey)
        assert not inside(x, 1.1 * low, grey)
        if np.isfinite(high):
            assert inside(x, 1.1 * high, grey)
            assert not inside(x, 0.9 * high, grey)
    assert inside(0.99 / plane.kappa_pretrain, plane.optimum[1], grey)


@NULLS
def test_what_a_ridge_does_to_the_ceiling(null):
    demo = ridge_ceiling_demo(null=null)
    assert (demo.attained <= demo.of_measure * (1 + 1e-9)).all()
    np.testing.assert_allclose(demo.of_data[-1], 1.0, atol=10)  # a huge ridge leaves two like tasks
    if null == "none":
        ends = [curve[0] for curve in (demo.of_data, demo.of_measure, demo.attained)]
        assert ends == pytest.approx([demo.compact] * 3, rel=1e-5)  # ε/σ_D = 1e-6
    if null == "both":  # κ(K_P + ε)/κ(K_H + ε) → 1 instead of 100/10; κ(M) stays: 1 lies inside M's spectrum
        assert demo.of_data[0] == pytest.approx(demo.compact / 10, rel=1e-5)
    if null == "pretrain":
        slope = np.diff(np.log(demo.of_data[:8])) / np.diff(np.log(RIDGES[:8]))
        np.testing.assert_allclose(slope, -2.0, atol=1e-3)
    compact, of_data, _, attained, chosen = demo.figure().data
    np.testing.assert_array_equal(of_data.y, demo.of_data)
    np.testing.assert_array_equal(attained.y, demo.attained)
    assert (chosen.x[1], chosen.y[1]) == (1e-3, demo.at_ridge.rir)
    np.testing.assert_array_equal(compact.y, np.nan if null == "pretrain" else demo.compact)


def test_four_attackers():
    runs = attacks(angle=30.0)
    raw, best, same, whitened = runs
    limit = rir_ceiling(*two_tasks(angle=30.0, dimension=16))
    assert raw.kappa == pytest.approx(10.0, rel=1e-10)
    assert best.kappa == pytest.approx(limit.lambda_max / limit.lambda_min, rel=1e-10)
    assert same.kappa == pytest.approx(best.kappa, rel=1e-10)
    np.testing.assert_allclose(same.spectrum[:-1], same.spectrum[0], rtol=1e-10)
    assert whitened.kappa == pytest.approx(1.0, rel=1e-10)
    assert whitened.steps_to(1e-12) == 1
    assert same.steps_to(1e-6) < raw.steps_to(1e-6) < best.steps_to(1e-6)
    assert best.steps_to(1e-300) is None
    figure = attacks_figure(runs)
    np.testing.assert_array_equal(figure.data[0].y[:5], raw.curve.excess_loss[1:6])
    assert list(figure.data[0].y <= 1e-12) == [False] * (len(figure.data[0].y) - 1) + [True]
    assert (list(figure.data[3].x), list(figure.data[3].y)) == ([1], [1e-12])


def test_whitening_of_singular_data_keeps_its_rank():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(3, 5))
    theta = whiten(generator.normal(size=(5, 5)), X.T @ X)
    assert theta.shape == (5, 3)
    np.testing.assert_allclose(theta.T @ X.T @ X @ theta, np.eye(3), atol=1e-10)
