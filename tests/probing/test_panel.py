"""The panel as a whole: known factors, honest budgets, any extractor, agreement with the rest, bad input."""

import numpy as np
import pandas as pd
import pytest
import torch
from problems import ODD_ARRAYS, PROBLEMS, columns, turned

from condnum import Eraser, Immunizer, Task, erasure, probe_steps
from condnum.errors import CondnumError, InvalidInputError, UnknownNameError
from condnum.probing import ATTACKERS, AttackBudget, attack_panel
from condnum.probing.panel import judging_rows

SMALL = AttackBudget(steps=6000, dense_steps=150)
#: Attackers whose steps do not depend on the coordinates of the features, but for the round-off of two.
INVARIANT = ["gd", "line_search", "momentum", "nesterov", "whiten", "closed_form"]


def panel(name, extractors=None, *attackers, held=0, budget=SMALL, **options):
    X, y = PROBLEMS[name]
    cut = len(X) - held
    others = (X[cut:], y[cut:]) if held else None
    return attack_panel(
        X[:cut], y[:cut], extractors, held_out=others, attackers=attackers or None, budget=budget, **options
    )


def steps(report, attacker, extractor, epsilon=0.01):
    table = report.at(report.table, epsilon)
    return table[(table["attacker"] == attacker) & (table["extractor"] == extractor)]["steps"].item()


@pytest.fixture(scope="module")
def report():
    return panel("two classes", {"raw": None, "ill": turned(5, 0.02)}, held=30)


def test_who_is_slowed(report):
    assert set(report.table["attacker"]) == set(ATTACKERS)
    assert report.skipped.empty
    for attacker in ("whiten", "closed_form"):
        assert (report.table[report.table["attacker"] == attacker]["steps"] == 1).all()
    assert steps(report, "gd", "ill") > 20 * steps(report, "gd", "raw")
    assert steps(report, "momentum", "ill") < steps(report, "gd", "ill")
    assert steps(report, "cg", "ill") <= 6
    assert report.worst_case("ill")["factor"] == report.at(report.factors, None)["factor"].min() <= 1
    assert report.table["accuracy"].between(0.5, 1).all()
    with pytest.raises(UnknownNameError, match="epsilon"):
        report.steps_table(epsilon=0.5)
    with pytest.raises(UnknownNameError, match="extractor 'raw'"):
        report.worst_case("raw")


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_agrees_with_probe_steps_from_rows_and_from_a_task(name):
    """One coding of targets, one goal, and an intercept."""
    X, y = PROBLEMS[name]
    theta, task = turned(X.shape[1]), Task.of(X, y).centered()
    found = panel(name, {"theta": theta}, *INVARIANT)
    of_task = attack_panel(task, extractors={"theta": theta}, attackers=INVARIANT, budget=SMALL)
    pd.testing.assert_frame_equal(found.table, of_task.table)
    for extractor, own in (("raw", None), ("theta", theta)):
        known = probe_steps(own, task, budget=SMALL.steps)
        assert steps(found, "line_search", extractor) == known.exact
        assert steps(found, "gd", extractor) <= known.fixed
        facts = found.extractors.set_index("extractor").loc[extractor]
        assert (facts["kappa"], known.fit) == pytest.approx((known.condition, 1), rel=1e-9)
    centered = X - X.mean(axis=0)
    W = np.linalg.lstsq(centered, columns(y) - columns(y).mean(axis=0), rcond=1e-10)[0]
    residual = ((centered @ W - columns(y) + columns(y).mean(axis=0)) ** 2).sum() / len(X)
    assert found.extractors["optimum"].tolist() == pytest.approx([residual] * 2, rel=1e-6)


@pytest.mark.parametrize("most", [2, 16], ids=["random mixtures", "all columns"])
def test_names_and_order_of_classes_change_no_number(most, monkeypatch):
    monkeypatch.setattr("condnum.probing.race.MOST_OUTPUTS", most)
    X, y = PROBLEMS["four classes"]
    codes, tables, few = np.unique(y, return_inverse=True)[1], [], AttackBudget(steps=200, dense_steps=50)
    names = [name for name in ATTACKERS if name not in ("lbfgs", "stacked", "fine_tune")]
    for labels in (y, np.array([*"zaby"])[codes]):
        held_out = X[60:], labels[60:]
        found = attack_panel(X, labels, turned(6), held_out=held_out, budget=few, attackers=names)
        tables.append(found.table.drop(columns="choice"))
    pd.testing.assert_frame_equal(*tables, rtol=1e-6)


@pytest.mark.parametrize("name", ["numbers", "two classes"])
def test_step_and_candidate_are_chosen_on_rows_that_do_not_judge(name):
    """The rows that choose are those that judge with the opposite answers: they choose what judges worst."""
    X, y = PROBLEMS[name]
    judges = np.flatnonzero(judging_rows(40, 0))
    opposite = np.where(y[:20] == "cat", "dog", "cat") if name == "two classes" else -3 * y[:20]
    both, answers = np.zeros((40, X.shape[1])), np.array([*y[:20], *y[:20]])
    order = np.r_[judges, np.flatnonzero(~judging_rows(40, 0))]
    both[order], answers[order] = np.r_[X[:20], X[:20]], np.r_[y[:20], opposite]
    honest = attack_panel(X, y, held_out=(X[:20], y[:20]), budget=SMALL, attackers=["gd", "ridge"]).table
    fooled = attack_panel(X, y, held_out=(both, answers), budget=SMALL, attackers=["gd", "ridge"]).table
    assert fooled["loss"][0] > 1.1 * honest["loss"][0]


@pytest.mark.parametrize("name", ["numbers", "two classes"])
def test_what_lies_below_every_tolerance_is_read_without_one(name):
    """θ keeps 3e-16 of the only direction that tells: a tolerance calls it round-off."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(400, 5)), rng.integers(0, 2, 400)
    X[:, 0] += 4 * labels - 2
    y = labels if name == "two classes" else 2.0 * labels - 1
    mixed = turned(5, 1)
    thetas = {"nearly": np.diag([3e-16, 1, 1, 1, 1]) @ mixed, "erased": np.diag([0.0, 1, 1, 1, 1]) @ mixed}
    names = ["whiten", "closed_form", "unfiltered"]
    kind = "auto" if name == "two classes" else "regression"
    found = attack_panel(
        X[:200], y[:200], thetas, held_out=(X[200:], y[200:]), budget=SMALL, attackers=names, kind=kind
    )
    read = found.table.drop_duplicates(["extractor", "attacker"]).pivot(
        index="extractor", columns="attacker", values="loss"
    )
    assert read.loc["nearly", "unfiltered"] < 0.5 * read.loc["nearly", "whiten"]
    assert read.loc["erased"].min() > 0.9 * read.loc["nearly", "whiten"]
    assert np.isinf([steps(found, "whiten", "nearly"), steps(found, "unfiltered", "erased")]).all()


def test_what_is_not_reached_is_never_a_number():
    few = AttackBudget(steps=40, dense_steps=40)
    found = panel("numbers", {"raw": None, "ill": turned(5, 1e-4)}, "gd", "adam", budget=few)
    rows = found.table[(found.table["extractor"] == "ill") & (found.table["epsilon"] < 0.005)]
    assert rows["steps"].isna().all()
    assert found.steps_table(epsilon=0.001)["ill"].tolist() == [">40", ">40"]
    bound = found.factors[(found.factors["attacker"] == "gd") & (found.factors["epsilon"] < 0.05)].iloc[0]
    assert bound["bound"] == "at least"
    assert bound["factor"] == pytest.approx(40 / bound["baseline_steps"])
    assert found.factor_table()["ill"].iloc[0].startswith(">")


@pytest.mark.parametrize("name", ["two outputs", "four classes"])
def test_an_erased_target_is_out_of_reach_for_all_but_those_who_train_theta(name):
    X, y = PROBLEMS[name]
    thetas = {key: erasure(X, y, strength=of).theta for key, of in {"s=0": 1.0, "s": 0.99}.items()}
    thetas["map"] = Eraser().fit(X, y)
    names = ["gd", "cg", "adam", "lbfgs", "whiten", "closed_form", "fine_tune"]
    found = panel(name, thetas, *names)
    table = found.steps_table().set_index("attacker")
    for erased in ("s=0", "map"):
        assert {*table[erased].drop("Fine-tuning of θ")} == {"∞"}
        assert table.loc["Fine-tuning of θ", erased] != "∞"
    assert "∞" not in {*table["s"]}  # invertible: the optimum stays, gradient descent alone is slowed
    assert steps(found, "whiten", "s") == steps(found, "whiten", "raw")
    assert not steps(found, "gd", "s") <= 10 * steps(found, "gd", "raw")
    own = found.extractors.set_index("extractor").loc["s=0"]
    assert own["optimum"] == pytest.approx(own["start_loss"], rel=1e-6)
    fixed = panel(name, {"s=0": thetas["s=0"]}, "gd", "whiten")
    assert np.isinf(fixed.worst_case("s=0")["factor"])
    assert "out of reach for every attacker of the panel" in repr(fixed)


def test_a_part_that_is_lost_moves_the_goal_for_nobody():
    lost = panel("numbers", {"lost": turned(5)[:, :3]}, "cg", "fine_tune")
    row = lost.extractors.set_index("extractor").loc["lost"]
    assert row["rank"] == 3
    assert row["optimum"] > 1.2 * row["raw_optimum"]
    assert np.isinf(steps(lost, "cg", "lost"))
    assert np.isfinite(steps(lost, "fine_tune", "lost", 0.1))


def test_any_extractor_is_met_as_it_answers_with_columns_by_name():
    X, words = PROBLEMS["two classes"]
    frame = pd.DataFrame(X, columns=[*"abcde"])
    immunizer = Immunizer().fit(frame[:40], frame[40:])
    matrix = torch.from_numpy(immunizer.theta_).float()
    linear = torch.nn.Linear(5, 5, bias=False)
    linear.load_state_dict({"weight": matrix.mT})
    net = torch.nn.Sequential(linear, torch.nn.Tanh())
    extractors = {"estimator": immunizer, "layer": linear, "tensor": matrix, "net": net}
    found = attack_panel(frame, words, extractors, attackers=["gd", "fine_tune"], budget=SMALL)
    assert steps(found, "gd", "layer") == steps(found, "gd", "tensor")
    assert steps(found, "gd", "tensor") == pytest.approx(steps(found, "gd", "estimator"), abs=1)  # float32
    assert found.skipped["extractor"].tolist() == ["net"]
    for turned_frame in (frame[[*"edcba"]], Task.of(frame[[*"edcba"]], words)):
        y = None if isinstance(turned_frame, Task) else words
        other = attack_panel(turned_frame, y, {"estimator": immunizer}, attackers=["gd"], budget=SMALL)
        assert steps(other, "gd", "estimator") == steps(found, "gd", "estimator")
    skipped = attack_panel(Task.of(X, words), extractors=immunizer, budget=SMALL).skipped
    assert skipped[skipped["extractor"] == "raw"]["attacker"].tolist() == [
        "sgd",
        "ridge",
        "logistic",
        "unfiltered",
    ]


X2, Y2 = PROBLEMS["two outputs"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: panel("numbers", np.eye(4)), r"has shape \(4, 4\), but the inputs have 5"),
        (lambda: panel("numbers", {"raw": turned(5)}), "'raw' is reserved for the baseline"),
        (lambda: panel("numbers", None, "adm"), "did you mean 'adam'"),
        (lambda: attack_panel(np.eye(2), [1, 1]), "all 2 labels are 1"),
        (lambda: attack_panel([[1.0], [-1.0]], [1.0, 1.0]), "no linear part in the raw inputs"),
        (lambda: attack_panel(np.eye(2)), "an attack needs targets: give"),
        (lambda: attack_panel(Task.of(X2, Y2), kind="regression"), "a Task has its targets"),
        (lambda: attack_panel(Task.of(X2, Y2), extractors=torch.nn.Tanh()), "a Task has no rows"),
        (lambda: attack_panel(X2, Y2, held_out=(X2, Y2[:, :1])), "held_out: y has 1 columns"),
        (lambda: attack_panel(X2[:4], [*"abab"], held_out=(X2[:2], [*"ac"])), "not among .* a, b"),
        (lambda: AttackBudget(epsilons=(0, 0.1)), "must lie between 0 and 1"),
        (lambda: AttackBudget(steps=2.5), "steps must be an integer"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, words):
    with pytest.raises((InvalidInputError, UnknownNameError), match=words):
        call()


#: As θ, rows, targets or those held out; an odd one can hide what an odd one beside it does.
PLACES = {"θ": [0], "X": [1], "y": [2], "X held": [3], "y held": [4], "X both": [1, 3], "y both": [2, 4]}
#: Answers of today that are neither finite nor an error of condnum's.
FAULTS = {
    ("θ", "least"), ("θ", "largest"), ("X", "least"), ("X both", "least"),
    ("X held", "largest"), ("y held", "largest"),
}  # fmt: skip


@pytest.mark.parametrize("given", ODD_ARRAYS)
@pytest.mark.parametrize("place", PLACES)
def test_any_array_is_taken_or_refused(place, given, request):
    if (place, given) in FAULTS:
        request.applymarker(pytest.mark.xfail(strict=True))
    rng = np.random.default_rng(4)
    X = rng.normal(size=(12, 2))
    y = X @ [1.0, 2.0] + rng.normal(size=12)
    arrays = [np.diag([1.0, 0.1]), X, y, X[:7], y[:7]]
    for i in PLACES[place]:
        arrays[i] = ODD_ARRAYS[given](arrays[i])
    theta, *rows, X_held, y_held = arrays
    names = ["gd", "cg", "closed_form"]
    with np.errstate(all="ignore"):
        try:
            budget = AttackBudget(steps=50, dense_steps=10)
            found = attack_panel(*rows, theta, held_out=(X_held, y_held), budget=budget, attackers=names)
        except CondnumError:
            return
    measured = found.extractors.select_dtypes("number")
    measured = measured.mask(measured["rank"] == 0, 0.0)  # without a rank there is no κ
    assert np.isfinite(measured).all(axis=None)
    assert (found.extractors["start_loss"] > 0).all()
    assert np.isfinite(found.table[["last_step", "loss"]]).all(axis=None)
