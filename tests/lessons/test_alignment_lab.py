"""The lab shows what is kept, its traces stay the same."""

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.data import TaskPair, load_diabetes_tasks
from condnum.errors import CondnumError
from condnum.lessons.alignment_lab import LABS, alignment_lab, recorded_lab
from condnum.lessons.explorers import record_file
from condnum.theory.kappa import hessian
from condnum.theory.regularizers import r_ill, r_well

STATES = [
    {},
    {"training": 0},
    {"training": 17, "i": 3, "j": 5, "side": "harmful"},
    {"extractor": "max_rir"},
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
    assert {xaxis for _, xaxis in kinds[0]} == {"x", "x2", "x3", "x4"}


def test_shares_sum_to_one_and_are_the_derivatives_of_the_regularizers(table):
    view = table.compute(extractor="ours", training=0)
    step, problem = view.step, table.tasks.problem
    shares = np.array([step.shares(i, view.tasks) for i in range(1, 10)])
    np.testing.assert_allclose(shares.sum(axis=0), 1, rtol=1e-9)
    U, s, h = step.left(1, 9), step["sigma"], 1e-5
    K_P, K_H = (task.covariance.numpy() for task in (problem.benign, problem.harmful))

    def values(scale):
        theta = U * s * scale
        ill = r_ill(hessian(theta, K_H), rank=problem.harmful.rank)
        return np.array([float(r_well(hessian(theta, K_P))), float(ill)])

    for i in (0, 4, 8):
        bump = h * (np.arange(9) == i)
        slope = (values(1 + bump) - values(1 - bump)) / (2 * h) / values(np.ones(9))
        np.testing.assert_allclose(shares[i], slope / [4, -4], rtol=1e-3, atol=1e-5)  # float32 U, h²


def test_a_lab_is_recorded_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(LABS, "AlignmentLabDigits49", ("digits:4-9", "max_rir"))
    file = tmp_path / "lab.js"
    record_file("AlignmentLabDigits49", file)
    assert 'condnum.recordings["AlignmentLabDigits49"]' in file.read_text()
    with pytest.raises(CondnumError, match="AlignmentLabMnist49"):
        recorded_lab("AlignmentLabCifar")


def test_what_cannot_be_followed_is_refused_with_the_fix():
    for data, words in (("imagenet", "mnist:4-9"), ("digits:4-4", "two different digits")):
        with pytest.raises(CondnumError, match=words):
            alignment_lab(data)
    with pytest.raises(CondnumError, match="ours"):
        alignment_lab("embedded", methods="adam")


def test_arrays_of_ones_own_have_a_lab():
    table = load_diabetes_tasks()
    pair = TaskPair.from_arrays(table.X_P, table.y_P, table.X_H, table.y_H, feature_names=table.feature_names)
    lab = alignment_lab(pair, methods="max_rir")
    assert lab.tasks.features == table.feature_names
    assert lab.show(static=True).layout.title.text.startswith("Maximum RIR")
