"""Table 2 and Figure 2 on the 8×8 digits: the tasks of a pair, what is measured, and one way of counting."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from condnum import ImmunizationProblem, immunize, relative_immunization_ratio
from condnum.data import load_small_digits
from condnum.errors import CondnumError
from condnum.experiments import frame, mnist

OPTIONS = {
    "data": "digits", "methods": "", "seeds": 1, "steps": 4, "pairs": "4-7,9-0", "labels": "one_vs_rest",
    "device": "cpu", "full": True,
}  # fmt: skip


def run(**options):
    return frame.run(mnist, jobs=1, quiet=True, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def found():
    return run(seeds=2, methods="ours,initial,max_rir,pareto")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": "4-4"}, "pair '4-4': give two different digits"),
        ({"pairs": "4-7,4-x"}, "expected a pair of digits such as 4-7, .*got '4-x'"),
        ({"labels": "rest"}, "unknown labels 'rest'"),
        ({"seeds": 0}, "seeds must be an integer ≥ 1, got 0"),
        ({"data": "nowhere"}, "nowhere"),
    ],
    ids=str,
)
def test_refused_at_the_door(options, words):
    with pytest.raises(CondnumError, match=words):
        mnist.cells(**{**OPTIONS, **options})


def test_no_pairs_are_all_and_a_quick_run_has_one():
    assert len(mnist.cells(**{**OPTIONS, "pairs": "", "methods": "ours"})) == 90
    quick = mnist.cells(**{**OPTIONS, "pairs": "", "methods": "ours", "seeds": 3, "full": False})
    assert [(cell["benign"], cell["harmful"], cell["seed"]) for cell in quick] == [(0, 1, 0)]


def test_a_row_is_the_measure_of_covariances_of_equally_many_images(found):
    digits = load_small_digits()
    X = [digits.pixels(np.flatnonzero(digits.labels == digit)) for digit in (9, 0)]
    K_P, K_H = (rows[: min(map(len, X))].T @ rows[: min(map(len, X))] for rows in X)
    theta = immunize(ImmunizationProblem.from_covariances(K_P, K_H), "max_rir").theta
    row = found.rows.query("method == 'max_rir' and benign == 9").iloc[0]
    expected = relative_immunization_ratio(theta, K_P, K_H, convention="ridge")
    assert row["ridge_rir"] == pytest.approx(expected.rir, rel=1e-6)
    assert row["ridge_benign_ratio"] == pytest.approx(expected.benign_ratio, rel=1e-6)


def test_a_digit_against_the_rest_is_one_balanced_task_on_either_side():
    (P, _), (_, H) = (mnist.tasks("digits", *pair, "one_vs_rest", "cpu").losses for pair in ((4, 9), (9, 4)))
    assert P.targets.equal(H.targets)
    assert P.features.equal(H.features)
    assert P.targets.unique(return_counts=True)[1].diff() == 0


def test_the_published_labels_are_one_constant_per_side():
    losses = mnist.tasks("digits", 4, 9, "published", "cpu").losses
    assert [set(loss.targets.ravel().tolist()) for loss in losses] == [{0.0}, {1.0}]


def test_sentence_table_and_figure_count_the_same_runs(found):
    counts = (found.rows["ridge_success"] == 1).groupby(found.rows["method"], sort=False).agg(["sum", "size"])
    assert list(found.table["immunized_ridge"]) == list(counts["sum"])
    assert f"immunizes {counts['sum']['ours']} of {counts['size']['ours']} runs" in found.sentence
    figure = mnist.figure(found)
    heads = figure.layout.yaxis.ticktext
    assert [head.partition("<br>")[2] for head in heads] == [f"{k} of {n} runs" for k, n in counts.to_numpy()]
    crosses = [sum("✕" in text for text in row) for row in figure.data[0].text]
    met = (found.rows["ridge_success"] == 1).groupby([found.rows[of] for of in ("method", "benign")]).all()
    assert crosses == [(~met[method]).sum() for method in counts.index]


def rows_of(*cells):
    """Rows of a run, from method, seed, digits of both tasks, RIR and verdict; (ii) is 2."""
    names = ["method", "seed", "benign", "harmful", "ridge_rir", "ridge_success"]
    rows = pd.DataFrame(cells, columns=names).assign(data="digits", ridge_benign_ratio=2.0)
    return SimpleNamespace(rows=rows.assign(ridge_harmful_ratio=2 * rows["ridge_rir"]))


SEEN = rows_of(
    ("ours", 0, 3, 8, math.e**2, True),
    ("ours", 1, 3, 8, math.e**4, True),
    ("ours", 0, 0, 1, math.e**-1, True),
    ("ours", 1, 0, 1, math.e**-1, None),
    ("imma", 0, 3, 8, math.e**-5, False),
)


def drawn(trace, at):
    return trace.z[at], trace.text[at]


def test_a_cell_is_the_mean_of_ln_rir_and_is_crossed_unless_every_seed_is_known_to_succeed():
    (few,) = mnist.figure(SEEN).data
    assert list(few.x) == ["3 → 8", "0 → 1"]
    assert drawn(few, (0, 0)) == (pytest.approx(3), "3.0")  # (2 + 4) / 2
    assert drawn(few, (0, 1)) == (pytest.approx(-1), "−1.0<sup>✕</sup>")
    assert drawn(few, (1, 0)) == (pytest.approx(-5), "−5.0<sup>✕</sup>")
    assert np.isnan(few.z[1, 1])  # a cell that failed
    assert few.text[1, 1] == ""
    assert few.hovertext[0, 0].endswith("2 of 2 immunized<br>(i) 40.2, (ii) 2, RIR 20.1")  # 2e³, e³


def test_many_pairs_have_a_panel_per_method_with_rows_for_benign_digits(monkeypatch):
    monkeypatch.setattr(mnist, "FEW", 1)
    ours, imma = mnist.figure(SEEN).data
    assert drawn(ours, (3, 8)) == (pytest.approx(3), "3.0")
    assert drawn(ours, (0, 1)) == (pytest.approx(-1), "−1.0<sup>✕</sup>")
    assert np.isfinite(imma.z).sum() == 1
    assert set(np.ravel(imma.text)) == {"", "−5.0<sup>✕</sup>"}


def test_colors_are_symmetric_and_leave_out_what_no_method_is_compared_with():
    beyond = rows_of(*SEEN.rows.iloc[:, :6].itertuples(index=False), ("pareto", 0, 3, 8, 1e9, True))
    scale = mnist.figure(beyond).layout.coloraxis
    assert (scale.cmin, scale.cmax) == (pytest.approx(-5), pytest.approx(5))


def test_one_control_with_one_seed_and_a_failed_pair_have_a_page():
    found = run(methods="identity")
    assert found.sentence.startswith("Identity")
    assert "0 of 2 runs on 2 of 90 pairs with RIR 1 " in found.sentence
    assert mnist.figure(found).layout.coloraxis.cmax == 1
    left = SimpleNamespace(rows=found.rows.iloc[:1])
    assert mnist.table(left.rows)["pairs"].tolist() == [1]
    assert "1 of 90" in mnist.figure(left).layout.title.text


def test_mnist_stands_beside_table_2_and_the_small_digits_do_not(found):
    assert found.table["published_rir_mean"].isna().all()
    table = mnist.table(found.rows.assign(data="mnist"))
    assert "Table 2 has 70.04\u00a0±\u00a03.28 after 30 epochs" in mnist.sentence(table)
