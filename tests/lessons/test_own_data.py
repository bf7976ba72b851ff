"""Lesson 5: by hand and against dense references; its figure; uploads, paths, errors beside their fields."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.auditing import audit
from condnum.auditing.measures import AS_IS
from condnum.errors import InvalidInputError
from condnum.lessons.own_data import UPLOAD_BYTES, OwnDataExplorer, own_data
from condnum.probing import linear_probe


@pytest.fixture
def files(tmp_path):
    def write(P, H):
        paths = {}
        for name, X in (("pretrain", P), ("harmful", H)):
            paths[name] = str(tmp_path / f"{name}.npy")
            np.save(paths[name], X)
        return paths

    return write


def test_against_dense_references(files):
    rng = np.random.default_rng(3)
    P, H = rng.normal(size=(40, 6)) * np.geomspace(1, 0.1, 6), rng.normal(size=(30, 6))
    result = own_data(**files(P, H), goal=0.01, ridge=0.5)
    K_P, K_H = P.T @ P, H.T @ H
    pencil = scipy.linalg.eigh(K_H, K_P, eigvals_only=True)
    expected = pencil[-1] / pencil[0] * np.linalg.cond(K_P) / np.linalg.cond(K_H)
    assert result.ceiling == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(result.harmful.spectrum, np.linalg.eigvalsh(K_H)[::-1], rtol=1e-9)
    Q_P, Q_H = (np.linalg.eigh(K)[1][:, ::-1] for K in (K_P, K_H))
    np.testing.assert_allclose(result.own.overlaps, (Q_P.T @ Q_H) ** 2, atol=1e-9)
    assert result.pretrain.ridge == pytest.approx(np.linalg.cond(K_P + 0.5 * np.eye(6)), rel=1e-12)
    assert (result.own.title, result.warnings) == ("pretrain.npy and harmful.npy", ())
    w = np.random.default_rng(0).normal(size=6)
    curve = linear_probe(np.eye(6), K_H, K_H @ w, steps=1000)  # every step recorded
    assert result.costs[2] == int(np.argmax(curve.norm_ratio <= 0.01)) > 1
    assert result.costs[1] == 1  # κ(H_P(θ*)) = 1


def test_the_audit_of_the_same_float32_files_says_the_same(files):
    rng = np.random.default_rng(0)
    P, H = (rng.normal(size=(500, 20)).astype(np.float32) for _ in range(2))
    P[:, 0] *= 1e-4  # κ of 1e8: above float32's round-off squared, below float32's round-off
    lesson, found = own_data(**files(P, H)), audit(P, H, bootstrap=0)
    assert lesson.pretrain.rank == found.kappa_of("pretrain", AS_IS, "compact")["rank"] == 20
    kappa = found.kappa_of("pretrain", AS_IS, "compact")["kappa"]
    assert lesson.pretrain.compact == pytest.approx(kappa, rel=1e-6)
    assert kappa > 1e7
    assert lesson.ceiling == pytest.approx(found.ceiling.value, rel=1e-6)


def test_null_spaces_make_the_ceiling_infinite_and_are_told(files):
    result = own_data(**files(np.diag([2.0, 1.0, 0.0]), np.diag([1.0, 2.0, 3.0])))
    assert (result.pretrain.rank, result.harmful_only, result.ceiling) == (2, 1, math.inf)
    assert math.isfinite(result.ridge_limit)
    text = " ".join(result.warnings)
    assert "K_P has rank 2 of 3" in text
    assert "X_H excites 1 direction" in text
    assert "column(s) of zeros (x2)" in text


def upload(explorer, control, name, content):
    """What the page does with a file that its reader chose."""
    message = {"kind": "upload", "control": control, "name": name}
    explorer._on_message(None, message, [memoryview(content)])
    return shown(explorer)


def shown(explorer):
    """What the page is told."""
    return json.loads(explorer.payload)


def blank(explorer):
    return explorer.result is None and shown(explorer)["figure"] is None and "code" not in shown(explorer)


def test_bad_uploads_are_told_beside_their_field_and_leave_nothing_old():
    explorer = OwnDataExplorer()
    said = upload(explorer, "pretrain", "large.npy", bytes(UPLOAD_BYTES + 1))
    assert "give its path" in said["error"]
    assert (said["field"], explorer.pretrain) == ("pretrain", "")
    assert blank(explorer)
    message = {"kind": "state", "id": 1, "state": explorer.settings}
    explorer._on_message(None, message, [])  # what "Reset" does
    assert not blank(explorer)
    said = upload(explorer, "pretrain", "../../P.csv", b"name,a\nx,1\n")
    assert "X_H is missing" in said["error"]
    assert said["field"] == "harmful"
    said = upload(explorer, "harmful", "H.csv", b"name,a\nx,1\ny,2\n")
    assert "do not hold numbers: name" in said["error"]
    assert said["field"] == "pretrain"
    assert blank(explorer)
    assert "'pretrian'; did you mean 'pretrain'" in upload(explorer, "pretrian", "P.csv", b"a\n1\n")["error"]
    assert Path(explorer.pretrain).name == "P.csv"
    assert Path(explorer._folder.name) in Path(explorer.pretrain).resolve().parents  # not beside it


def test_columns_are_listed_flagged_and_left_out(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    for name in "PH":
        rows = "\n".join(f"{a},{b},{c},{i % 2}" for i, (a, b, c) in enumerate(X))
        (tmp_path / f"{name}.csv").write_text(f"a,<b>,c,label\n{rows}\n")
    files = {"pretrain": str(tmp_path / "P.csv"), "harmful": str(tmp_path / "H.csv")}
    explorer = OwnDataExplorer(**files)
    assert "look like the answer (label: by its name)" in shown(explorer)["caption"]
    assert "<td>&lt;b&gt;</td>" in shown(explorer)["caption"]
    explorer.drop = "label"
    assert "look like" not in shown(explorer)["caption"].split("<details")[0]
    assert len(explorer.result.own.pair.columns) == 3
    explorer.drop = "labels"
    assert "did you mean" in shown(explorer)["error"]
    assert shown(explorer)["field"] == "drop"
    assert blank(explorer)
    with pytest.raises(InvalidInputError, match="No such file"):
        OwnDataExplorer.show(static=True, pretrain="none.npy", harmful="none.npy")
    explorer.change(drop="label", standardize=True)
    assert explorer.result.ceiling == own_data(**files, drop="label", standardize=True).ceiling
