"""The plane of notebook 4: its borders are attained and never crossed; the path is that of Algorithm 1."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError
from condnum.lessons.ceiling import PATH_STEPS, RANDOM_EXTRACTORS, ceiling_demo
from condnum.lessons.two_tasks import two_tasks
from condnum.methods.algorithm1 import ill_direction, well_direction
from condnum.methods.problem import LinearTask
from condnum.theory.ceiling import optimal_immunizer, rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.pareto import front_extractor

#: κ up to 1e4 · 1e4 from a Cholesky-free SVD in float64: relative error below 1e-9.
CLOSE = 1e-8


def ratios(theta, K_P, K_H):
    result = relative_immunization_ratio(theta, K_P, K_H)
    return np.array([result.pretrain_ratio, result.harmful_ratio])


def test_the_ceiling_by_hand():
    """At 90° largest meets smallest: κ(M) = κ(K_P)κ(K_H), and RIR_max = κ(K_P)²."""
    plane = ceiling_demo(kappa_pretrain=20.0, kappa_harmful=5.0, angle=90.0, dimension=4).plane
    assert plane.kappa_pencil == pytest.approx(100.0, rel=1e-12)
    assert plane.ceiling.value == pytest.approx(400.0, rel=1e-12)
    np.testing.assert_allclose(plane.optimum, [1 / 20, 20], rtol=1e-12)  # κ(M)/κ(K_H) = 20


def test_proportional_tasks_cannot_be_immunized():
    plane = ceiling_demo(kappa_pretrain=30.0, kappa_harmful=30.0, angle=0.0).plane
    assert plane.ceiling.value == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(plane.cloud[:, 0], plane.cloud[:, 1], rtol=1e-9)


@pytest.mark.parametrize("null", ["none", "both", "harmful", "pretrain"])
@pytest.mark.parametrize("angle", [0.0, 20.0, 75.0])
@pytest.mark.parametrize("shape", ["geometric", "outlier"])
def test_no_extractor_leaves_the_region(null, angle, shape):
    demo = ceiling_demo(null=null, angle=angle, shape=shape, dimension=5, step=0)
    points = np.concatenate([demo.plane.cloud, demo.plane.family, demo.path])
    low, high = demo.plane.lowest(points[:, 0]), demo.plane.highest(points[:, 0])
    assert (points[:, 1] >= low * (1 - CLOSE)).all()
    assert (points[:, 1] <= high * (1 + CLOSE)).all()
    assert (points[:, 0] >= (1 - CLOSE) / demo.plane.kappa_pretrain).all()
    assert np.isinf(demo.plane.ceiling.value) == (null == "pretrain")


@given(seed=st.integers(0, 10_000), power=st.floats(-1.0, 2.0), dimension=st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_both_borders_are_attained(seed, power, dimension):
    """Random tasks, κ(M) from SciPy's generalised eigenvalues."""
    generator = np.random.default_rng(seed)
    K_P, K_H = (X.T @ X for X in generator.normal(size=(2, dimension + 4, dimension)))
    pencil = scipy.linalg.eigvalsh(K_H, K_P)
    kappa = pencil[-1] / pencil[0]
    theta = front_extractor(K_P, K_H, power)
    x, y = (np.linalg.cond(theta.T @ K @ theta) for K in (K_P, K_H))
    assert x == pytest.approx(kappa ** abs(power), rel=1e-6)  # conds of products: error κ²·eps
    assert y == pytest.approx(kappa * x if power >= 0 else kappa / x, rel=1e-6)


def test_the_largest_harmful_ratio_that_definition_3_1_accepts():
    K_P, K_H = two_tasks(angle=45.0)
    limit = rir_ceiling(K_P, K_H)
    s = np.log(100.0) / np.log(limit.lambda_max / limit.lambda_min)  # κ(M)^s = κ(K_P)
    np.testing.assert_allclose(ratios(front_extractor(K_P, K_H, s), K_P, K_H), [1, limit.value], rtol=CLOSE)


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
    assert rir[-2] < 0.95 * plane.ceiling.value


def test_without_a_ceiling_a_free_direction_is_scaled():
    plane = ceiling_demo(null="pretrain").plane
    tail = plane.family[-9:]
    np.testing.assert_allclose(tail[:, 0], plane.optimum[0], rtol=1e-10)  # κ(H_P) does not see it
    assert (np.diff(tail[2:, 1]) > 0).all()
    assert tail[-1, 1] > 1000 * tail[0, 1]
    assert plane.cloud_share == 0


def test_random_extractors_come_close_but_not_beyond():
    plane = ceiling_demo().plane
    assert plane.cloud.shape == (RANDOM_EXTRACTORS, 2)
    assert 0.9 < plane.cloud_share <= 1 + CLOSE


def test_the_path_is_algorithm_1_by_hand():
    """θ ← θ − η(λ_P·2θ∇R_well + λ_H·2θ∇R_ill), λ's balanced at θ = I."""
    K_P, K_H = two_tasks(angle=45.0)
    tasks = [LinearTask(torch.from_numpy(K)) for K in (K_P, K_H)]
    theta = torch.eye(4, dtype=torch.float64)
    demo = ceiling_demo(angle=45.0, ratio=2.0, learning_rate=0.1, step=3)
    lambdas = None
    for t in range(4):
        np.testing.assert_allclose(demo.path[t], ratios(theta, K_P, K_H), rtol=1e-9)
        parts = [well_direction(tasks[0], theta), ill_direction(tasks[1], theta)]
        lambdas = lambdas or [1 / float(parts[0].norm()), 2 / float(parts[1].norm())]
        theta = theta - 0.1 * sum(w * part for w, part in zip(lambdas, parts, strict=True))
    assert demo.path.shape == (PATH_STEPS + 1, 2)
    assert demo.shown == 3


def test_the_path_gets_near_the_ceiling():
    demo = ceiling_demo(angle=70.0)
    assert demo.rir[-1] > 0.9 * demo.plane.ceiling.value


def test_a_path_that_diverges_ends_where_kappa_means_something():
    demo = ceiling_demo(kappa_pretrain=1.0, learning_rate=1.0)
    assert demo.stop_reason == "diverged"
    assert demo.shown == len(demo.path) - 1 < PATH_STEPS
    assert (demo.rir <= demo.plane.ceiling.value * (1 + CLOSE)).all()


def test_what_is_cached_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        ceiling_demo().path[0, 0] = 5


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ceiling_demo(step=101), "between 0 and 100, got 101"),
        (lambda: ceiling_demo(angle=-1.0), "between 0 and 90 degrees, got -1"),
        (lambda: ceiling_demo(learning_rate=0.0), "learning_rate must be a positive number, got 0"),
        (lambda: front_extractor(np.diag([1.0, 0.0]), np.eye(2), 1.0), "ranks 1 and 2 in 2 dimensions"),
        (lambda: front_extractor(np.eye(2), np.eye(2), np.inf), "power must be finite, got inf"),
    ],
    ids=["step", "angle", "rate", "singular", "power"],
)
def test_bad_arguments(call, match):
    with pytest.raises(InvalidInputError, match=match):
        call()
