"""The alignment lab: each number against the theory's own functions, and paths that a run has kept."""

import json

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.data import TaskPair, load_diabetes_tasks
from condnum.errors import CondnumError
from condnum.experiments import frame, house_prices
from condnum.lessons.alignment_lab import YOURS, AlignmentLab
from condnum.lessons.record import MOST, plain, states
from condnum.methods import immunize
from condnum.theory.alignment import alignment
from condnum.theory.kappa import relative_immunization_ratio

#: κ of the diabetes tasks is below 1e4: products of three matrices in float64 keep ten digits of the spectra.
CLOSE = 1e-7


@pytest.fixture(scope="module")
def table():
    return AlignmentLab("embedded", methods="ours,identity,max_rir", steps=40)


@pytest.fixture(scope="module")
def pixels():
    return AlignmentLab("digits:4-9", methods="ours,max_rir", steps=20)


def test_a_kept_step_is_what_the_theory_says_of_its_theta(table):
    path = table.paths["ours"]
    assert path["steps"].tolist() == sorted({*path["steps"].tolist(), 0, 40})
    for index in (0, len(path["steps"]) // 2, -1):
        theta = path["path"][index]
        U, s, views, _ = table.at("ours", index % len(path["steps"]))
        np.testing.assert_allclose(s, np.linalg.svd(theta, compute_uv=False), rtol=CLOSE)
        np.testing.assert_allclose(U @ U.T, np.eye(len(U)), atol=1e-12)
        for view, task in zip(views, table.tasks, strict=True):
            truth = alignment(theta, task.covariance)
            np.testing.assert_allclose(view.predicted, truth.predicted, rtol=CLOSE)
            scale = 1e-12 * truth.spectrum[0]  # beyond the rank of K
            np.testing.assert_allclose(view.spectrum, truth.spectrum, rtol=CLOSE, atol=scale)
            np.testing.assert_allclose(view.overlaps, truth.overlaps, atol=CLOSE)
            if view.rank == len(U):
                assert view.predicted_kappa == pytest.approx(truth.predicted_condition, rel=CLOSE)
        found = relative_immunization_ratio(theta, *(task.covariance for task in table.tasks))
        ratios = [view.kappa / task.kappa for view, task in zip(views, table.tasks, strict=True)]
        assert ratios == pytest.approx([found.benign_ratio, found.harmful_ratio], rel=CLOSE)


@pytest.mark.parametrize("data", ["embedded", "digits:4-9"])
def test_what_is_erased_counts_for_no_kappa(data):
    """Round-off of erased and of dead directions once gave κ's of 1e27, and RIR was noise."""
    lab = AlignmentLab(data, methods="erase")
    found = immunize(lab.problem, "erase").verdict
    row, ratios = lab.table().loc["Erasure"], [found.benign_ratio, found.harmful_ratio]
    assert [row["(ii)"], row["(i)"]] == pytest.approx(ratios, rel=1e-4)
    kappas = [view.kappa / task.kappa for view, task in zip(lab.at("erase", 0)[2], lab.tasks, strict=True)]
    assert kappas == pytest.approx(ratios, rel=1e-4)


@pytest.mark.parametrize("kind", ["table", "pixels"])
def test_every_state_is_drawn_and_yours_is_one_extractor(kind, request):
    lab = request.getfixturevalue(kind)
    assert len(states(lab.explorer)) <= MOST
    for state in ({}, {"training": 0}, {"training": 17, "i": 3, "j": 5, "side": 1}, {"extractor": YOURS}):
        drawn = lab.explorer.draw(lab.explorer.state(state), {"theta": lambda K_P, K_H: np.eye(len(K_P))})
        assert json.dumps(plain(drawn["figure"]))
        assert {one["xaxis"] for one in drawn["figure"]["data"]} == {"x", "x2", "x3", "x4"}
    assert "Definition 3.1 is NOT met, (a) fails</b>" in drawn["sentence"]  # θ = I


def test_the_paths_of_a_run_are_read_and_a_run_of_other_steps_is_not(tmp_path):
    given = {"data": "embedded", "methods": "ours,max_rir", "features": "published", "rows": 0, "full": True}
    frame.run(house_prices, out=tmp_path, quiet=True, jobs=1, seeds=2, steps=10, device="auto", **given)
    lab = AlignmentLab("embedded", methods="ours,opt_kappa", steps=10, run=str(tmp_path))
    own = AlignmentLab("embedded", methods="ours", steps=10, run=str(tmp_path / "nothing"))
    assert lab.origins == {"ours": f"read from {tmp_path}", "opt_kappa": "trained here"}
    np.testing.assert_allclose(lab.paths["ours"]["path"], own.paths["ours"]["path"], rtol=1e-6)
    other = AlignmentLab("embedded", methods="ours", steps=11, run=str(tmp_path))
    assert other.origins == {"ours": "trained here"}


def test_what_cannot_be_followed_is_refused_with_the_fix_and_arrays_have_a_lab():
    for data, words in (("imagenet", "mnist:4-9"), ("digits:4-4", "two different digits")):
        with pytest.raises(CondnumError, match=words):
            AlignmentLab(data)
    with pytest.raises(CondnumError, match="ours"):
        AlignmentLab("embedded", methods="adam")
    given = load_diabetes_tasks()
    pair = TaskPair.from_arrays(given.X_P, given.y_P, given.X_H, given.y_H, feature_names=given.feature_names)
    lab = AlignmentLab(pair, methods="max_rir")
    assert lab.features == given.feature_names
    assert lab.explorer()[1].startswith("<b>Maximum RIR")
