"""Lesson 4: tasks and Algorithm 1 by hand, what the sentence says at known states, the reader's θ."""

import numpy as np
import pytest
import torch

from condnum.lessons.limit import NULLS, PATH_STEPS, algorithm1_path, attacks, limit_explorer, two_tasks
from condnum.lessons.record import states
from condnum.theory.kappa import condition_number, relative_immunization_ratio
from condnum.theory.limits import rir_limit
from condnum.theory.regularizers import r_ill_gradient, r_well_gradient


@pytest.mark.parametrize("null", NULLS.values())
@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_two_tasks_are_as_asked_for(null, angle):
    K_P, K_H = two_tasks(kappa_benign=50.0, kappa_harmful=7.0, angle=angle, dimension=5, null=null)
    P, H = condition_number(K_P), condition_number(K_H)
    np.testing.assert_allclose([P.value, H.value], [50.0, 7.0], rtol=1e-12)
    assert P.rank == 5 - (null in ("both", "benign"))
    assert H.rank == 5 - (null in ("both", "harmful"))
    first = np.abs(np.linalg.eigh(two_tasks(angle=angle, dimension=5)[1])[1][:, -1])
    assert first[[0, -1]] == pytest.approx([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))], abs=1e-12)


def test_the_path_is_algorithm_1_by_hand():
    """θ ← θ − η(λ_P·2θ∇R_well + λ_H·2θ∇R_ill), λ's balanced at θ = I."""
    K_P, K_H = two_tasks(angle=45.0)
    tasks = [torch.from_numpy(K) for K in (K_P, K_H)]
    theta, lambdas = torch.eye(4, dtype=torch.float64), None
    path = algorithm1_path(K_P, K_H, ratio=2.0, learning_rate=0.1)
    for t in range(4):
        found = relative_immunization_ratio(theta, K_P, K_H)
        np.testing.assert_allclose(path[t], [found.benign_ratio, found.harmful_ratio], rtol=1e-9)
        H_P, H_H = (theta.mT @ K @ theta for K in tasks)
        parts = [2 * theta @ one.gradient for one in (r_well_gradient(H_P), r_ill_gradient(H_H))]
        lambdas = lambdas or [1 / float(parts[0].norm()), 2 / float(parts[1].norm())]
        theta = theta - 0.1 * sum(w * part for w, part in zip(lambdas, parts, strict=True))
    assert path.shape == (PATH_STEPS + 1, 2)
    lost = algorithm1_path(*two_tasks(kappa_benign=1.0), learning_rate=1.0)
    assert 1 < len(lost) < PATH_STEPS  # a step so large loses a direction, and the path ends


def test_the_sentence_says_the_limit():
    _, proportional = limit_explorer(angle=0, kappa_harmful=100.0)  # K_P = K_H: the pencil is 1
    assert "RIR<sub>max</sub> = 1," in proportional
    limit = rir_limit(*two_tasks(angle=90.0))
    _, opposed = limit_explorer(angle=90)
    # Eigenvalues 1 … 0.1 against 0.01 … 1: the pencil's κ is 100·10, times 100/10.
    assert limit.value == pytest.approx(1e4)
    assert "RIR<sub>max</sub> = 10,000," in opposed
    assert "has no limit" in limit_explorer(null="benign")[1]
    assert "Algorithm 1 cannot start" in limit_explorer(kappa_harmful=1.0)[1]


def test_a_theta_of_the_readers_is_a_diamond_beside_the_librarys():
    drawn = limit_explorer.draw(limit_explorer.start, {"extractor": lambda K_P, K_H: np.eye(len(K_P))})
    assert not drawn["agrees"]
    diamonds = [
        one for one in drawn["figure"]["data"] if "diamond" in str(one.get("marker", {}).get("symbol"))
    ]
    gray, yours = (np.array([one["x"][0], one["y"][0]]) for one in diamonds)
    np.testing.assert_allclose(yours, 1, rtol=1e-9)  # the raw inputs
    assert gray[1] > 1.5
    assert gray[0] <= 1 + 1e-6


@pytest.mark.parametrize("null", NULLS.values())
def test_the_axes_hold_every_mark_but_not_the_end_of_a_ray(null):
    for panel in limit_explorer(null=null, angle=90)[0]:
        (left, right), (bottom, top) = panel.limits
        for one in panel.traces:
            if one["mode"] == "markers":
                assert left <= one["x"][0] <= right
                assert bottom <= one["y"][0] <= top
        assert top < 1e9


def test_its_states_can_be_recorded():
    assert len(states(limit_explorer)) <= 500


def test_four_attackers():
    runs = attacks(angle=30.0)
    raw, best, same, whitened = runs
    limit = rir_limit(*two_tasks(angle=30.0, dimension=16))
    kappa = limit.lambda_max / limit.lambda_min
    assert [run.kappa for run in runs] == pytest.approx([10.0, kappa, kappa, 1.0], rel=1e-10)
    assert whitened.steps_to(1e-12) == 1
    assert same.steps_to(1e-6) < raw.steps_to(1e-6) < best.steps_to(1e-6)
    assert best.steps_to(1e-300) is None
