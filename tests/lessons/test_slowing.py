"""Lesson 8: steps, accuracies and price by other computations; the ends of the path."""

import numpy as np
import pytest

from condnum.lessons import slowing
from condnum.lessons.record import states
from condnum.lessons.slowing import STARTS, STOPS, digit_tasks, path_extractor, stop
from condnum.numbers import num
from condnum.theory.erasure import erasure_price

EACH_START = pytest.mark.parametrize("start", STARTS.values())
OWN = (TASKS := digit_tasks()).eraser


def fit(rows):  # to Z, the best in raw pixels
    return rows.X @ np.linalg.lstsq(rows.X, rows.Z, rcond=1e-10)[0]


def test_the_split_shares_no_image():
    parts = vars(TASKS).values()
    whole = np.concatenate([rows.images for rows in parts])
    assert len(np.unique(whole, axis=0)) == len(whole) == 1797
    assert min(np.bincount(rows.labels, minlength=5).min() for rows in parts) > 30


@EACH_START
def test_the_gradient_shrinks_with_s_and_theta_is_invertible_until_it_ends(start):
    raw, part, gone = (path_extractor(s, start).T @ OWN.X.T @ OWN.Z for s in (1.0, 0.2, 0.0))
    np.testing.assert_allclose(part, 0.2 * raw, atol=1e-9 * np.abs(raw).max())
    np.testing.assert_allclose(gone, 0, atol=1e-10 * np.abs(raw).max())
    assert np.linalg.matrix_rank(path_extractor(0.001, start)) == 48
    for rank in (1, 4):
        assert np.linalg.matrix_rank(path_extractor(0.0, start, rank), tol=1e-8) == 48 - rank


@EACH_START
def test_whitening_undoes_the_path_until_it_ends_at_a_price(start):
    reached = {stop(path_extractor(s, start).tobytes()).accuracies["whitened"] for s in STOPS.values() if s}
    assert reached == {slowing.accuracy(np.eye(48), TASKS.attacker, TASKS.fresh, whitened=True)}
    erased, rows = stop(path_extractor(0.0, start).tobytes()), TASKS.benign
    assert erased.accuracies["own"] == pytest.approx(np.bincount(OWN.labels).max() / len(OWN.labels))
    assert 0.25 < erased.accuracies["whitened"] < 0.55  # fresh rows: a sampling error is left
    assert erased.accuracies["kernel"] > 0.8
    assert np.isinf([erased.harmful.fixed, erased.harmful.exact]).all()
    price = erasure_price(rows.task, (OWN.X.T @ OWN.Z)[:, :4]) * len(rows.Z)
    assert 1 - erased.benign.fit == pytest.approx(price / np.square(fit(rows)).sum(), rel=1e-8)


@pytest.mark.parametrize("task", ["harmful", "benign"])
@pytest.mark.parametrize("exact", [False, True])
def test_a_run_of_so_many_steps_reaches_the_goal_and_of_one_less_does_not(task, exact):
    rows = OWN if task == "harmful" else TASKS.benign
    F, least = rows.X @ path_extractor(0.1), np.square(rows.Z - fit(rows)).sum()
    goal = least + slowing.GOAL * (np.square(rows.Z).sum() - least)
    found = getattr(stop(path_extractor(0.1).tobytes()), task)
    W, losses = np.zeros((48, 5)), []
    for _ in range(int(found.exact if exact else found.fixed)):
        losses.append(np.square(F @ W - rows.Z).sum())
        gradient = F.T @ (F @ W - rows.Z)
        along = np.square(gradient).sum() / np.square(F @ gradient).sum()
        W = W - (along if exact else np.linalg.norm(F, 2) ** -2) * gradient
    end = np.square(F @ W - rows.Z).sum()
    assert end <= goal * (1 + 1e-9) <= losses[-1] * (1 + 2e-9)  # round-off of sums over 1,000 images


def test_the_sentence_says_slowed_or_stopped_with_the_numbers_of_the_stop():
    here, raw = (stop(path_extractor(s).tobytes()) for s in (0.01, 1.0))
    _, slowed = slowing.slowing(s=0.01)
    assert (
        f"RIR = {num(here.immunization.rir)}: gradient descent needs {num(here.harmful.fixed)} steps"
        in slowed
    )
    assert f"factor of {num(here.harmful.fixed / raw.harmful.fixed, 2)}, not stopped" in slowed
    assert "not slowed" in slowing.slowing(s=1.0)[1]
    assert "no linear probe learns anything" in slowing.slowing(s=0.0)[1]
    assert "2 of 4 directions are erased" in slowing.slowing(s=0.0, rank=2)[1]


def test_a_leace_of_the_readers_is_drawn_and_agrees():
    explorer, own = slowing.slowing, lambda sigma, G, s: slowing.leace(sigma, G, s)
    assert explorer.draw(explorer.start, {"erase": own})["agrees"]
    other = explorer.draw(explorer.start, {"erase": lambda sigma, G, s: np.eye(len(sigma))})
    assert not other["agrees"]  # it erases nothing
    assert len(states(explorer)) <= 500
