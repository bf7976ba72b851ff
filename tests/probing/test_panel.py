"""The panel as a whole: known factors, honest budgets, both kinds of task, any extractor, bad input."""

import numpy as np
import pandas as pd
import pytest
import torch

from condnum import Eraser, Immunizer, Task, erasure
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.figures.attack_panel import attack_factor_heatmap
from condnum.probing import (
    AttackBudget,
    attack_panel,
    attacker_names,
)

D = 5
SMALL = AttackBudget(steps=6000, dense_steps=150)


def regression(noise=0.3):
    """Features, targets, and held-out rows."""
    generator = np.random.default_rng(5)
    X = generator.normal(size=(80, D)) * [2.0, 1.5, 1.0, 0.7, 0.5]
    y = X @ np.ones(D) + noise * generator.normal(size=80)
    return X[:60], y[:60], (X[60:], X[60:] @ np.ones(D))


def classification(classes=2):
    generator = np.random.default_rng(6)
    X = generator.normal(size=(120, D))
    y = (X @ generator.normal(size=(D, classes)) + 1.5 * generator.normal(size=(120, classes))).argmax(axis=1)
    return X[:90], y[:90], (X[90:], y[90:])


TASKS = {"regression": regression, "classification": classification}


def panel(task, extractors, *attackers, budget=SMALL, **options):
    X, y, held_out = task
    chosen = attackers or None
    return attack_panel(X, y, extractors, held_out=held_out, attackers=chosen, budget=budget, **options)


def ill(scale=0.05):
    """An invertible θ, not aligned with the data, that makes two directions small."""
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0]
    return Q @ np.diag([1, 1, 1, scale, scale])


@pytest.fixture(scope="module")
def report():
    return panel(regression(), {"raw": None, "ill": ill()})


def steps(report, attacker, extractor, epsilon=0.01):
    table = report.steps
    rows = table[(table["attacker"] == attacker) & (table["extractor"] == extractor)]
    return rows.set_index("epsilon").loc[epsilon, "steps"]


def same(steps, others):
    """Round-off may decide a step of each race."""
    return abs(steps - others) <= 1 + 0.02 * others


def test_who_is_slowed_on_a_regression(report):
    assert set(report.steps["attacker"]) == set(attacker_names())
    assert report.skipped.empty
    for attacker in ("whiten", "closed_form"):
        assert (report.steps[report.steps["attacker"] == attacker]["steps"] == 1).all()
    assert steps(report, "gd", "ill") > 20 * steps(report, "gd", "raw")
    assert steps(report, "momentum", "ill") < steps(report, "gd", "ill")
    assert steps(report, "cg", "ill") <= D
    worst = report.worst_case("ill")
    assert worst["factor"] == report.at(report.factors, None)["factor"].min() <= 1


def test_raw_inputs_are_the_baseline_wherever_they_stand():
    tried = {"pixels": None, "x": ill()}, {"x": ill(), "pixels": None}
    first, last = (panel(regression(), thetas, "gd", "cg") for thetas in tried)
    assert first.baseline == last.baseline == "pixels"
    pd.testing.assert_frame_equal(first.factors, last.factors)


@pytest.mark.parametrize("kind", TASKS)
def test_an_orthogonal_extractor_has_factor_one(kind):
    Q = np.linalg.qr(np.random.default_rng(2).normal(size=(D, D)))[0]
    names = [n for n in attacker_names() if n not in ("adam", "stacked", "fine_tune", "standardize")]
    found = panel(TASKS[kind](), {"raw": None, "turned": 7 * Q}, *names)
    known = found.factors[found.factors["bound"] == "exact"]
    assert len(known) >= 20
    assert same(known["steps"], known["baseline_steps"]).all()
    np.testing.assert_allclose(found.extractors["optimum"], found.extractors["baseline_optimum"], rtol=1e-6)


def test_losses_are_in_the_units_of_the_targets():
    X, y, (X_test, y_test) = task = regression()
    found = panel(task, {"raw": None}, "closed_form")
    w, residual, *_ = np.linalg.lstsq(X, y, rcond=None)
    assert found.extractors.loc[0, "optimum"] == pytest.approx(float(residual[0]) / 60)
    assert found.extractors.loc[0, "start_loss"] == pytest.approx(float((y**2).mean()))
    last = found.curves.iloc[-1]
    assert last["loss"] == pytest.approx(found.extractors.loc[0, "optimum"], rel=1e-6)
    assert last["evaluation_loss"] == pytest.approx(((X_test @ w - y_test) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize("kind", TASKS)
def test_step_and_candidate_are_chosen_on_rows_that_do_not_judge(kind):
    """The choosing rows are the judging ones with the opposite answers: they choose what judges worst."""
    X, y, (X_test, y_test) = TASKS[kind]()
    opposite = 1 - y_test if kind == "classification" else -y_test
    both = np.concatenate([X_test, X_test]), np.concatenate([opposite, y_test])
    names = ["gd", "whiten", "unfiltered", "closed_form"]
    one = panel((X, y, (X_test, y_test)), None, *names).reached
    own = panel((X, y, both), None, *names, choosing=len(X_test)).reached
    if kind == "classification":
        assert (one["accuracy"] > 0.5).all()
        assert (own["accuracy"] < 0.5).all()
    else:
        assert (own["loss"] > 1.2 * one["loss"]).all()
    with pytest.raises(InvalidInputError, match="choosing=20 of 20 held-out rows leaves none"):
        panel(regression(), None, "gd", choosing=20)


@pytest.mark.parametrize("kind", TASKS)
def test_what_lies_below_every_tolerance_is_read_without_one(kind):
    """θ keeps 1e-14 of the only direction that tells: NumPy and whitening call it round-off."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(400, D)), rng.integers(0, 2, 400)
    X[:, 0] += 4 * labels - 2
    y, held_out = (labels, None) if kind == "classification" else (2.0 * labels - 1, np.array([[-1.0, 1.0]]))
    thetas = {"nearly": np.diag([1e-14, 1, 1, 1, 1]), "erased": np.eye(D)[:, 1:]}
    found = attack_panel(
        X[:200], y[:200], thetas, held_out=(X[200:], y[200:]), budget=SMALL, kind=kind,
        decode=None if held_out is None else (labels[200:], held_out),
        attackers=["whiten", "closed_form", "unfiltered"],
    )  # fmt: skip
    read = found.reached.pivot(index="extractor", columns="attacker", values="accuracy")
    assert read.loc["nearly", "unfiltered"] > 0.9 > 0.65 > read.loc["nearly", "whiten"]
    assert read.loc["erased"].max() < 0.65
    assert not np.isinf(steps(found, "unfiltered", "nearly"))
    assert np.isinf([steps(found, "whiten", "nearly"), steps(found, "unfiltered", "erased")]).all()


def test_what_is_not_reached_is_never_a_number():
    few = AttackBudget(steps=40, dense_steps=40)
    found = panel(regression(0), {"raw": None, "ill": ill(1e-4)}, "gd", "adam", budget=few)
    rows = found.steps[(found.steps["extractor"] == "ill") & (found.steps["epsilon"] < 0.005)]
    assert rows["steps"].isna().all()
    assert found.steps_table(epsilon=0.001)["ill"].tolist() == [">40", ">40"]
    bound = found.factors[(found.factors["attacker"] == "gd") & (found.factors["epsilon"] < 0.005)].iloc[0]
    assert bound["bound"] == "at least"
    assert bound["factor"] == pytest.approx(40 / bound["baseline_steps"])
    assert found.factor_table(epsilon=0.001)["ill"].iloc[0].startswith(">")


def test_a_rank_deficient_theta_reports_both_optima():
    found = panel(regression(), {"raw": None, "lost": ill()[:, :3]})
    row = found.extractors.set_index("extractor").loc["lost"]
    assert row["rank"] == 3
    assert row["optimum"] > 1.2 * row["baseline_optimum"]
    assert "is lost, and targets ε below it are out of reach" in repr(found)
    assert np.isinf(steps(found, "cg", "lost"))
    own = found.steps[(found.steps["extractor"] == "lost") & (found.steps["attacker"] == "fine_tune")]
    np.testing.assert_allclose(own["optimum"], row["baseline_optimum"])


@pytest.mark.parametrize(("kind", "classes"), [("regression", 3), ("classification", 2)])
def test_an_erased_target_is_out_of_reach_for_all_but_those_who_train_theta(kind, classes):
    X, labels, _ = classification(classes)
    X -= X.mean(axis=0)  # erasure has an intercept, and the panel's probes have none
    y = labels if kind == "classification" else np.eye(classes)[labels] - 0.5
    strengths = {"s=0": 1.0, "s": 0.99}
    thetas = {name: erasure(X, y, strength=of, kind=kind).theta for name, of in strengths.items()}
    names = ["gd", "cg", "adam", "lbfgs", "whiten", "closed_form", "fine_tune"]
    found = attack_panel(X, y, thetas, kind=kind, attackers=names, budget=SMALL)
    table = found.steps_table().set_index("attacker")
    assert {*table["s=0"].drop("Fine-tuning of θ")} == {"∞"}
    assert table.loc["Fine-tuning of θ", "s=0"] != "∞"
    assert "∞" not in {*table["s"]}  # invertible: the optimum stays, gradient descent alone is slowed
    assert same(steps(found, "whiten", "s"), steps(found, "whiten", "raw"))
    assert steps(found, "gd", "s") > 10 * steps(found, "gd", "raw") or np.isnan(steps(found, "gd", "s"))
    own = found.extractors.set_index("extractor").loc["s=0"]
    assert own["optimum"] == pytest.approx(own["start_loss"], rel=1e-6)
    fixed = attack_panel(X, y, {"s=0": thetas["s=0"]}, kind=kind, attackers=["gd", "whiten"], budget=SMALL)
    assert np.isinf(fixed.worst_case("s=0")["factor"])
    assert "out of reach for every attacker of the panel" in repr(fixed)
    assert attack_factor_heatmap(fixed, "").data[0].text[-1] == "<b>∞</b>"


@pytest.mark.parametrize("classes", [2, 3])
def test_labels_are_learned_as_signs_and_measured_by_accuracy(classes):
    X, y, (X_test, y_test) = task = classification(classes)
    found = panel(task, {"raw": None, "ill": ill()})
    assert found.kind == "classification"
    assert found.skipped.empty
    W = np.linalg.lstsq(X, 2 * np.eye(classes)[y] - 1)[0]
    solved = panel(task, {"raw": None}, "closed_form").evaluation["accuracy"].item()
    assert solved == pytest.approx(((X_test @ W).argmax(axis=1) == y_test).mean())
    last = found.curves.dropna(subset="accuracy").groupby(["extractor", "attacker"])["accuracy"].last()
    assert last.between(0, 1).all()
    assert last["raw", "lbfgs"] > 0.6
    assert same(steps(found, "whiten", "ill"), steps(found, "whiten", "raw"))
    assert found.at(found.factors, None).set_index("attacker").loc["gd", "factor"] > 5


def test_a_task_stands_for_the_rows_where_no_attacker_needs_them():
    X, y, _ = regression()
    of_rows = attack_panel(X, y, ill(), budget=SMALL)
    skipped, inexact = {"sgd", "standardize", "unfiltered"}, {"adam", "stacked", "fine_tune"}
    for task in (Task.of_covariance(X.T @ X, X.T @ y), Task.of(X, y)):
        found = attack_panel(task, extractors=ill(), budget=SMALL)
        assert set(found.skipped["attacker"]) == skipped
        for name in {*attacker_names()} - skipped - inexact:
            assert same(steps(found, name, "theta"), steps(of_rows, name, "theta")), name


def test_a_task_of_labels_has_an_intercept():
    X, labels, _ = classification()
    found = attack_panel(Task.of(X, labels), extractors=ill(), attackers=["gd", "cg"], budget=SMALL)
    centered = attack_panel(X - X.mean(axis=0), labels, ill(), attackers=["gd", "cg"], budget=SMALL)
    for name in ("gd", "cg"):
        assert same(steps(found, name, "theta"), steps(centered, name, "theta")), name


def test_any_extractor_and_text_labels_are_taken_in_the_order_of_named_columns():
    X, labels, _ = classification()
    frame = pd.DataFrame(X, columns=[*"abcde"])
    words = np.array(["cat", "dog"])[labels]
    immunizer = Immunizer().fit(frame[:40], frame[40:])
    matrix = torch.from_numpy(immunizer.theta_).float()
    linear = torch.nn.Linear(D, D, bias=False)
    linear.load_state_dict({"weight": matrix.mT})
    net = torch.nn.Sequential(linear, torch.nn.Tanh())
    eraser = Eraser().fit(frame, words)
    extractors = {"estimator": immunizer, "layer": linear, "tensor": matrix, "net": net, "erased": eraser}
    found = attack_panel(frame, words, extractors, attackers=["gd", "fine_tune"], budget=SMALL)
    for name in ("layer", "tensor"):
        assert same(steps(found, "gd", name), steps(found, "gd", "estimator"))
    assert found.skipped["extractor"].tolist() == ["net"]
    assert "fine_tune was skipped on 1 extractor(s)" in repr(found)
    assert steps(found, "gd", "erased", 0.1) == np.inf
    assert np.isfinite(steps(found, "fine_tune", "erased", 0.1))  # from θ with its bias
    turned = attack_panel(frame[[*"edcba"]], words, {"estimator": immunizer}, attackers=["gd"], budget=SMALL)
    assert same(steps(turned, "gd", "estimator"), steps(found, "gd", "estimator"))
    of_tasks = (
        attack_panel(Task.of(of, words), None, {"estimator": immunizer}, attackers=["gd"], budget=SMALL)
        for of in (frame, frame[[*"edcba"]])
    )
    assert same(*(steps(of, "gd", "estimator") for of in of_tasks))


def with_held_out(y, y_test, **options):
    X = np.arange(12.0).reshape(6, 2) ** 2
    return lambda: attack_panel(X, y, held_out=(X[:4], y_test), **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: panel(regression(), np.eye(4)), r"has shape \(4, 4\), but the inputs have 5"),
        (lambda: panel(regression(), {"raw": ill()}), "'raw' is reserved for the baseline"),
        (lambda: panel(regression(), None, "adm"), "did you mean 'adam'"),
        (lambda: attack_panel(np.eye(2), [1, 1]), "all 2 labels"),
        (lambda: attack_panel(np.eye(2), [1.5]), r"targets of shape \(1,\) for 2 rows"),
        (lambda: attack_panel([[1.0], [-1.0]], [1.0, 1.0]), "nothing to attack"),
        (lambda: attack_panel(np.eye(2), [1e160, 0]), "targets of size .* rescale"),
        (lambda: attack_panel(Task.of(np.eye(2))), "has no targets: there is nothing to learn"),
        (with_held_out(["a", "b"] * 3, ["a", "c", "b", "a"]), "the label c, .* are a to b"),
        (with_held_out(np.ones((6, 1)), np.ones((4, 2))), r"must have the columns of the others"),
        (lambda: panel(regression(), None, only=[]), "no extractor was chosen"),
        (lambda: attack_panel(np.eye(2)), r"an attack needs targets: give attack_panel\(X, y\), or a Task"),
        (lambda: AttackBudget(epsilons=(0.1, 0.1), reported_epsilon=0.1), "must be distinct"),
        (lambda: AttackBudget(reported_epsilon=0.5), "reported_epsilon 0.5"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((InvalidInputError, UnknownNameError), match=words):
        call()


def test_names_are_checked(report):
    with pytest.raises(UnknownNameError, match="epsilon"):
        report.steps_table(epsilon=0.5)
    with pytest.raises(UnknownNameError, match="extractor 'raw'"):
        report.worst_case("raw")
