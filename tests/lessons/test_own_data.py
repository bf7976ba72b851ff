"""Lesson 5: against dense references and the audit; the reader's θ; tables that cannot be used."""

import numpy as np
import pytest
import scipy.linalg

from condnum.auditing import audit
from condnum.errors import CondnumError
from condnum.lessons.own_data import OVERLAP_BLOCKS, WIDEST, Tables, overlap_blocks, own_data, read
from condnum.lessons.record import states
from condnum.numbers import num
from condnum.probing import linear_probe
from condnum.probing.panel import RAW
from condnum.theory.limits import rir_limit
from condnum.theory.task import Task


def lines_of(panel):
    return {one["name"]: one for one in panel.traces}


def test_against_dense_references():
    rng = np.random.default_rng(3)
    P, H = rng.normal(size=(40, 6)) * np.geomspace(1, 0.1, 6), rng.normal(size=(30, 6))
    K_P, K_H = P.T @ P, H.T @ H
    (left, middle, _), sentence, table = own_data(X_P=P, X_H=H, goal=0.01, ridge=0.5)
    pencil = scipy.linalg.eigh(K_H, K_P, eigvals_only=True)
    limit = pencil[-1] / pencil[0] * np.linalg.cond(K_P) / np.linalg.cond(K_H)
    assert f"RIR ≤ {num(limit, 4)}<" in sentence
    assert "<br>" not in sentence  # no warnings
    drawn = lines_of(left)["K<sub>H</sub>"]["customdata"]
    np.testing.assert_allclose(drawn, np.linalg.eigvalsh(K_H)[::-1], rtol=1e-9)
    Q_P, Q_H = (np.linalg.eigh(K)[1][:, ::-1] for K in (K_P, K_H))
    np.testing.assert_allclose(middle.traces[0]["z"], (Q_P.T @ Q_H) ** 2, atol=1e-9)
    numbers = table.set_index("task")["harmful H"]
    assert numbers["κ, ridge ε"] == num(np.linalg.cond(K_H + 0.5 * np.eye(6)), 4)
    w = np.random.default_rng(0).normal(size=6)
    curve = linear_probe(None, Task.of_covariance(K_H, K_H @ w), steps=1000)  # every step is recorded
    assert numbers["steps, as is"] == str(np.argmax(curve.norm_ratio <= 0.01))
    assert table.set_index("task")["pre-training P"]["steps, after θ*"] == "1"  # κ(H_P(θ*)) = 1


def test_the_audit_of_the_same_float32_tables_says_the_same():
    rng = np.random.default_rng(0)
    P, H = (rng.normal(size=(500, 20)).astype(np.float32) for _ in range(2))
    P[:, 0] *= 1e-4  # κ of 1e8: above float32's round-off squared, below float32's round-off
    (task, harmful, _), found = read(Tables.of(P, H)), audit(P, H)
    assert task.rank == found.row(RAW, "compact")["rank_benign"] == 20
    assert task.kappa == pytest.approx(found.row(RAW, "compact")["kappa_benign"], rel=1e-6)
    assert rir_limit(task, harmful).value == pytest.approx(found.limit.value, rel=1e-6)


def test_null_spaces_have_no_limit_and_a_tolerance_cuts_the_rank():
    X_P, X_H = np.diag([2.0, 1.0, 0.0]), np.diag([1.0, 2.0, 3.0])
    _, sentence, table = own_data(X_P=X_P, X_H=X_H)
    assert "RIR has no limit" in sentence
    assert "excites 1 direction" in sentence
    assert table.iloc[1].tolist() == ["rank", "2 of 3", "3 of 3"]
    X_P = np.diag([1.0, 0.06, 0.01])
    ranks = [own_data(X_P=X_P, X_H=X_P, tolerance=cut)[2].iloc[1, 1] for cut in (1e-16, 0.03, 0.1)]
    assert ranks == ["3 of 3", "2 of 3", "1 of 3"]


def test_a_theta_of_the_readers_is_probed_beside_the_librarys():
    explorer, given = own_data, {"X_P": np.diag([3.0, 1.0, 0.2]), "X_H": np.diag([1.0, 2.0, 0.5])}

    def theta_star(K_P):
        return np.diag(np.diag(K_P) ** -0.5)

    right = explorer.draw(explorer.start, {**given, "immunizer": theta_star})
    assert right["agrees"]
    assert right["figure"]["layout"] == explorer.draw(explorer.start, given)["figure"]["layout"]
    other = explorer.draw(explorer.start, {**given, "immunizer": lambda K_P: np.eye(3)})
    assert not other["agrees"]
    by_name = {one["name"]: one["y"] for one in other["figure"]["data"] if one["name"] != "the library's"}
    for task in "PH":
        before, after = (by_name[f"D<sub>{task}</sub> {when}"] for when in ("as is", "after θ*"))
        np.testing.assert_allclose(after, before, rtol=1e-9)
    singular = {"X_P": np.diag([1.0, 0.0, 1.0]), "X_H": np.eye(3), "immunizer": theta_star}
    assert "Your" not in explorer.draw(explorer.start, singular)["sentence"]  # it has no K_P^(-1/2)


def test_columns_are_left_out_by_name_and_what_has_changed_is_read_again(tmp_path):
    X, paths = np.random.default_rng(0).normal(size=(60, 3)), [tmp_path / f"{name}.csv" for name in "PH"]
    for path in paths:
        rows = "\n".join(f"{a},{b},{c},{i % 2}" for i, (a, b, c) in enumerate(X))
        path.write_text(f"a,<b>,c,label\n{rows}\n")
    _, sentence, table = own_data(X_P=paths[0], X_H=str(paths[1]))
    assert "named by the first line: a, &lt;b&gt;, c, label" in sentence
    assert table.iloc[1, 1] == "4 of 4"
    assert own_data(X_P=paths[0], X_H=paths[1], drop="label")[2].iloc[1, 1] == "3 of 3"
    before = own_data(X_P=X, X_H=X)[2]
    X[:, 0] *= 100
    assert own_data(X_P=X, X_H=X)[2].iloc[2, 1] != before.iloc[2, 1]


def test_overlaps_of_many_directions_are_summed_in_blocks():
    D = 2 * OVERLAP_BLOCKS
    X = np.diag(np.arange(D, 0.0, -1))
    tables = Tables.of(X, X)
    np.testing.assert_allclose(overlap_blocks(tables, False), np.eye(OVERLAP_BLOCKS), atol=1e-12)


@pytest.mark.parametrize(
    ("X_P", "X_H", "words"),
    [
        ("none.npy", "none.npy", "No such file"),
        ("P.npy", None, "give both, or neither"),
        (["a.npy", "b.npy"], np.eye(2), "X_P is a list of paths; give one path"),
        (np.eye(3), np.eye(2), "has 3 columns"),
        (np.zeros((4, 2)), np.eye(2), "rank 0"),
        (np.ones((2, WIDEST + 1)), np.ones((2, WIDEST + 1)), "or run condnum audit"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(X_P, X_H, words):
    with pytest.raises(CondnumError, match=words):
        own_data.show(static=True, X_P=X_P, X_H=X_H)


def test_its_states_can_be_recorded():
    assert len(states(own_data)) <= 500
