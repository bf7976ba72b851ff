"""The lab shows what is kept, its findings hold on the data that are loaded, its traces stay the same."""

import itertools
import json

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.data import TaskPair, load_diabetes_tasks
from condnum.errors import CondnumError, InvalidInputError
from condnum.files import folder_lock, output_folder
from condnum.lessons.alignment import haar_overlap_band
from condnum.lessons.alignment_lab import ALIGNED, RECORDED, alignment_lab, recorded_lab
from condnum.lessons.alignment_trails import TRAINING
from condnum.lessons.recording import RECORDABLE, record_all
from condnum.studies.alignment_path import Follower
from condnum.theory.alignment import alignment
from condnum.theory.regularizers import r_ill, r_well
from condnum.theory.spectra import hessian

STATES = [
    {},
    {"training": 0},
    {"training": 17, "i": 3, "j": 5, "side": "harmful"},
    {"extractor": "max_rir"},
    {"compare": "max_rir", "training": 9, "side": "harmful"},
]


@pytest.fixture(scope="module")
def table():
    return alignment_lab("embedded", methods="ours,opt_kappa,identity,initial,max_rir", steps=40)


@pytest.fixture(scope="module")
def pixels():
    return alignment_lab("digits:4-9", methods="ours,max_rir", steps=20)


def trace(figure, name, xaxis=None):
    return next(of for of in figure.data if of.name == name and (xaxis is None or of.xaxis == xaxis))


@pytest.mark.parametrize("kind", ["table", "pixels"])
def test_every_state_has_the_same_traces(kind, request):
    lab = request.getfixturevalue(kind)
    kinds = [[(of.type, of.xaxis) for of in lab.compute(**state).figure().data] for state in STATES]
    assert all(found == kinds[0] for found in kinds)
    assert {xaxis for _, xaxis in kinds[0]} == {"x", "x2", "x3", "x4", "x5", "x6"}


def test_maps_are_the_overlaps_and_a_click_names_their_cells(pixels):
    view = pixels.compute(extractor="max_rir", i=30, j=34)
    drawn, blocks = view.figure().data[0], view.steps[0]["blocks"][0]
    assert drawn.meta == {"click": {"i": "y", "j": "x"}}
    np.testing.assert_allclose(drawn.z, blocks, atol=drawn.zmax / 2048)
    np.testing.assert_allclose(blocks.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("i", [1, 4, 9])
def test_the_term_of_sigma_i_is_ringed_in_every_panel(table, i):
    view = table.compute(extractor="ours", training=20, i=i, j=2)
    step, figure = view.steps[0], view.figure()
    for axis in ("x", "x2"):
        assert (trace(figure, "(i, j)", axis).y[0], trace(figure, "(i, j)", axis).x[0]) == (i, 2)
    scale = step["sigma"][0] ** 2 * view.tasks.values[:, 0]
    rings = [of for of in figure.data if of.name == "σ<sub>i</sub>'s term"]
    for side, ring in enumerate(rings):
        assert ring.y[0] == pytest.approx(step["predicted"][side][i - 1] / scale[side])
        circles = [of for of in figure.data if of.name == "Eq. 10"][side]
        assert circles.customdata[ring.x[0] - 1] == i  # what a click on that circle chooses
    moved = trace(figure, "σ<sub>i</sub> doubled")
    ratio = np.log2([moved.x[1] / moved.x[0], moved.y[1] / moved.y[0]])
    np.testing.assert_allclose(ratio, step.pull(i), rtol=1e-12)


@pytest.mark.parametrize("training", [0, TRAINING])
def test_terms_of_eq_10_stay_below_what_majorisation_leaves_them(table, training):
    figure = table.compute(extractor="ours", training=training).figure()
    limits = [of for of in figure.data if of.name == "Schur–Horn"]
    terms = [of for of in figure.data if of.name == "Eq. 10"]
    for limit, term in zip(limits, terms, strict=True):
        told = dict(zip(term.x.tolist(), term.y.tolist(), strict=True))
        assert len(limit.x) >= 8
        for m, most in zip(limit.x.tolist(), limit.y.tolist(), strict=True):
            assert told.get(m, 0.0) <= most * (1 + 1e-9)
    view = table.compute(extractor="ours", training=training)
    truth, theory = view.steps[0]["spectrum"][0], np.sort(view.steps[0]["predicted"][0])[::-1]
    scale = view.steps[0]["sigma"][0] ** 2 * view.tasks.values[0][0]
    assert limits[0].y[1] * scale == pytest.approx(truth[:2].sum() - theory[0])


def test_shares_sum_to_one_and_are_the_derivatives_of_the_regularizers(table):
    view = table.compute(extractor="ours", training=0)
    step, problem = view.steps[0], table.trails.data.problem
    shares = np.array([step.shares(i, view.tasks) for i in range(1, 10)])
    np.testing.assert_allclose(shares.sum(axis=0), 1, rtol=1e-9)
    U, s, h = step.left(1, 9), step["sigma"], 1e-5
    K_P, K_H = (task.covariance.numpy() for task in (problem.pretrain, problem.harmful))

    def values(scale):
        theta = U * s * scale
        ill = r_ill(hessian(theta, K_H), rank=problem.harmful.rank)
        return np.array([float(r_well(hessian(theta, K_P))), float(ill)])

    for i in (0, 4, 8):
        bump = h * (np.arange(9) == i)
        slope = (values(1 + bump) - values(1 - bump)) / (2 * h) / values(np.ones(9))
        np.testing.assert_allclose(shares[i], slope / [4, -4], rtol=1e-3, atol=1e-5)  # float32 U, h²


def test_a_direction_is_bars_of_named_columns_or_an_image(table, pixels):
    bars = trace(table.compute(i=2).figure(), "u<sub>i</sub>")
    named = dict(zip(table.trails.tasks.features, table.compute(i=2).steps[0].left(2)[:, 0], strict=True))
    assert len(bars.y) == 7
    assert all(named[column] == pytest.approx(value) for column, value in zip(bars.y, bars.x, strict=True))
    assert np.size(trace(table.compute().figure(), "image").z) == 0
    figure = pixels.compute(i=2, j=3).figure()
    image = np.array(trace(figure, "image").z, dtype=float)
    assert image.shape == (8, 17)  # u_i, a gap, q_j
    u = pixels.compute(i=2).steps[0].left(2)[:, 0]
    np.testing.assert_allclose(image[:, :8].ravel(), u / np.abs(u).max(), atol=1 / 100)
    assert np.isnan(image[:, 8]).all()
    assert all(len(of.x) == 0 for of in figure.data if of.type == "bar")


@pytest.mark.parametrize("kind", ["table", "pixels"])
def test_each_preset_shows_the_finding_that_it_names(kind, request):
    lab = request.getfixturevalue(kind)
    assert lab.presets
    for preset in lab.presets:
        view = lab.compute(**preset.settings)
        step, words = view.steps[0], view.finding()
        if preset.label.startswith("Training"):
            angles = dict(step.turned(view.tasks.leading))
            assert f"u<sub>{max(angles, key=angles.get)}</sub>" in words
            assert "Training turns" in words
        elif preset.label.startswith("One direction"):
            assert step.shares(preset.settings["i"], view.tasks)[1] >= 0.5
            assert preset.label in words
        elif preset.label.startswith("Aligned"):
            truth = alignment(_theta(lab, preset.settings["extractor"]), _covariance(lab))
            assert truth.misalignment <= ALIGNED
            assert step.immunized
            assert preset.label in words
        elif preset.label.startswith("Algorithm 1 beside"):
            assert [of.trail.name for of in view.steps] == ["ours", "max_rir"]
            assert words.startswith("<b>Ours beside Maximum RIR</b>")
        else:
            assert not alignment(np.eye(view.tasks.dimension), _covariance(lab)).u_unique
            assert "not unique" in words


def _covariance(lab):
    return lab.trails.data.problem.pretrain.covariance.numpy()


def _theta(lab, name):
    from condnum.methods import immunize

    return immunize(lab.trails.data.problem, name).theta.numpy()


def test_an_extractor_that_is_not_kept_is_computed_when_it_is_chosen(tmp_path):
    lab = alignment_lab("embedded", methods="identity", steps=2, out=tmp_path)
    assert list(lab.trails.kept) == ["identity"]
    explorer = lab(extractor="r_ill_only")
    assert explorer.error == ""
    assert explorer.result.steps[0].name.endswith("step 2 of 2")
    again = alignment_lab("embedded", methods="r_ill_only", steps=2, out=tmp_path)
    kept, found = (of.trails.of("r_ill_only").arrays["left"] for of in (again, lab))
    np.testing.assert_array_equal(kept, found)


def test_the_page_hears_of_each_step_and_an_interruption_is_told_with_the_fix(tmp_path, monkeypatch):
    lab = alignment_lab("embedded", methods="identity", steps=3, out=tmp_path)
    explorer, heard = lab(), []
    explorer.observe(lambda change: heard.append(json.loads(change["new"])), "payload")
    explorer.extractor = "imma"
    words = [payload["reading"] for payload in heard]
    assert any("computing imma" in text and "of 3" in text for text in words[:-1])
    assert heard[-1]["figure"] is not None

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "see", stop)
    explorer.extractor = "opt_kappa"
    assert "opt_kappa was interrupted: choose it again" in explorer.error
    monkeypatch.undo()
    explorer.extractor = "identity"
    explorer.extractor = "opt_kappa"
    assert explorer.error == ""


def test_a_lab_is_recorded_by_its_name_with_what_it_has_computed(tmp_path, monkeypatch):
    monkeypatch.setitem(RECORDED, "AlignmentLabDigits49", ("digits:4-9", "max_rir"))
    (file,) = record_all(tmp_path / "js", ["AlignmentLabDigits49"], jobs=1, labs=tmp_path / "labs")
    assert 'condnum.recordings["AlignmentLabDigits49"]' in file.read_text()
    lab = recorded_lab("AlignmentLabDigits49", tmp_path / "labs")
    assert lab.__name__ == "AlignmentLabDigits49"
    assert lab().traits()["extractor"].values == ["max_rir"]
    assert lab.__name__ not in RECORDABLE  # which other processes import
    with pytest.raises(CondnumError, match="AlignmentLabMnist49"):
        recorded_lab("AlignmentLabCifar", tmp_path)


def test_what_cannot_be_followed_is_refused_with_the_fix(tmp_path):
    with pytest.raises(CondnumError, match="mnist:4-9"):
        alignment_lab("imagenet")
    with pytest.raises(CondnumError, match="ours"):
        alignment_lab("embedded", methods="adam")
    table = load_diabetes_tasks()
    np.save(tmp_path / "P.npy", table.X_P)
    np.save(tmp_path / "H.npy", table.X_H)
    files = {"pretrain": str(tmp_path / "P.npy"), "harmful": str(tmp_path / "H.npy")}
    with pytest.raises(InvalidInputError, match=r"imma cannot be followed.*y_P"):
        alignment_lab(methods="imma", **files)


def test_arrays_of_ones_own_have_a_lab():
    table = load_diabetes_tasks()
    pair = TaskPair.from_arrays(table.X_P, table.y_P, table.X_H, table.y_H, feature_names=table.feature_names)
    lab = alignment_lab(pair, methods="max_rir")
    assert lab.trails.tasks.features == table.feature_names
    assert lab.show(static=True).layout.title.text.startswith("Maximum RIR")


def test_the_band_of_haar_draws_agrees_with_its_normal_law():
    for D in (60, 120):  # of 200 draws a quantile is known to a tenth of the deviation or so
        deviation = np.sqrt(2 / (D + 2)) / D
        for drawn, sign in zip(haar_overlap_band(D), (-1, 1), strict=True):
            assert drawn == pytest.approx(1 / D + sign * 1.645 * deviation, abs=0.5 * deviation)
    low, high = haar_overlap_band(784)
    assert (low + high) / 2 == pytest.approx(1 / 784)


def test_the_slider_reaches_both_ends_and_each_kept_step_once(table):
    trail = table.trails.of("ours")
    indices = [trail.at(mark).index for mark in range(TRAINING + 1)]
    assert (indices[0], indices[-1]) == (0, len(trail.arrays["step"]) - 1)
    assert all(0 <= b - a <= 2 for a, b in itertools.pairwise(indices))


def test_labs_of_two_data_are_computed_at_once(tmp_path):
    with folder_lock(output_folder(tmp_path / "embedded")):  # as another process holds it
        lab = alignment_lab("digits:4-9", methods="identity", out=tmp_path)
    assert list(lab.trails.kept) == ["identity"]
    assert (tmp_path / "digits-4-9").is_dir()
