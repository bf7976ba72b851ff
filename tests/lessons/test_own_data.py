"""Lesson 5: by hand and against dense references; its figure; arrays, paths, errors."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.auditing import audit
from condnum.errors import InvalidInputError
from condnum.lessons.own_data import OwnDataExplorer, OwnTables, own_data
from condnum.probing import linear_probe
from condnum.probing.panel import RAW
from condnum.theory.task import Task


def test_against_dense_references():
    rng = np.random.default_rng(3)
    P, H = rng.normal(size=(40, 6)) * np.geomspace(1, 0.1, 6), rng.normal(size=(30, 6))
    result = own_data(tables=OwnTables(P, H), goal=0.01, ridge=0.5)
    K_P, K_H = P.T @ P, H.T @ H
    pencil = scipy.linalg.eigh(K_H, K_P, eigvals_only=True)
    expected = pencil[-1] / pencil[0] * np.linalg.cond(K_P) / np.linalg.cond(K_H)
    assert result.limit == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(result.harmful.spectrum, np.linalg.eigvalsh(K_H)[::-1], rtol=1e-9)
    Q_P, Q_H = (np.linalg.eigh(K)[1][:, ::-1] for K in (K_P, K_H))
    np.testing.assert_allclose(result.own.overlaps, (Q_P.T @ Q_H) ** 2, atol=1e-9)
    assert result.benign.ridge == pytest.approx(np.linalg.cond(K_P + 0.5 * np.eye(6)), rel=1e-12)
    assert (result.own.title, result.warnings) == ("X_P and X_H", ())
    w = np.random.default_rng(0).normal(size=6)
    curve = linear_probe(None, Task.of_covariance(K_H, K_H @ w), steps=1000)  # every step recorded
    assert result.costs[2] == int(np.argmax(curve.norm_ratio <= 0.01)) > 1
    assert result.costs[1] == 1  # κ(H_P(θ*)) = 1


def test_the_audit_of_the_same_float32_tables_says_the_same():
    rng = np.random.default_rng(0)
    P, H = (rng.normal(size=(500, 20)).astype(np.float32) for _ in range(2))
    P[:, 0] *= 1e-4  # κ of 1e8: above float32's round-off squared, below float32's round-off
    lesson, found = own_data(tables=OwnTables(P, H)), audit(P, H)
    assert lesson.benign.rank == found.row(RAW, "compact")["rank_benign"] == 20
    kappa = found.row(RAW, "compact")["kappa_benign"]
    assert lesson.benign.compact == pytest.approx(kappa, rel=1e-6)
    assert kappa > 1e7
    assert lesson.limit == pytest.approx(found.limit.value, rel=1e-6)


def test_null_spaces_make_the_limit_infinite_and_are_told():
    result = own_data(tables=OwnTables(np.diag([2.0, 1.0, 0.0]), np.diag([1.0, 2.0, 3.0])))
    assert (result.benign.rank, result.harmful_only, result.limit) == (2, 1, math.inf)
    assert math.isfinite(result.ridge_limit)
    text = " ".join(result.warnings)
    assert "X_H excites 1 direction" in text


def test_columns_are_named_and_left_out(tmp_path):
    X, paths = np.random.default_rng(0).normal(size=(60, 3)), [str(tmp_path / f"{name}.csv") for name in "PH"]
    for path in paths:
        rows = "\n".join(f"{a},{b},{c},{i % 2}" for i, (a, b, c) in enumerate(X))
        Path(path).write_text(f"a,<b>,c,label\n{rows}\n")
    explorer = OwnDataExplorer(tables=OwnTables(*paths))
    assert "named by the first line: a, &lt;b&gt;, c, label" in shown(explorer)["caption"]
    assert "explorer" not in explorer.plain_figure().layout.meta  # which a page would play
    dropped = OwnTables(*paths, drop="label")
    explorer = OwnDataExplorer(tables=dropped)
    assert explorer.result.own.pair.benign.stream.dimension == 3
    explorer.standardize = True
    assert explorer.result.limit == own_data(tables=dropped, standardize=True).limit
    assert explorer.result.own.title == "P.csv and H.csv, standardized"
    code = shown(explorer)["code"]
    again = eval(code, {"OwnDataExplorer": OwnDataExplorer, "tables": dropped})
    assert again.result.limit == explorer.result.limit


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (("none.npy", "none.npy"), "No such file"),
        (("P.npy", ""), "give both, or neither"),
        ((np.eye(3), np.eye(2)), "has 3 columns"),
        ((np.zeros((4, 2)), np.eye(2)), "K_P has rank 0"),
    ],
)
def test_tables_that_cannot_be_used_leave_nothing_old(tables, words):
    explorer = OwnDataExplorer(tables=OwnTables(*tables))
    assert words in shown(explorer)["error"]
    assert explorer.result is None
    assert shown(explorer)["figure"] is None
    with pytest.raises(InvalidInputError, match=words):
        OwnDataExplorer.show(static=True, tables=OwnTables(*tables))


def shown(explorer):
    """What the page is told."""
    return json.loads(explorer.payload)
