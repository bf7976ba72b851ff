"""The panel as a whole: known factors, honest budgets, scales, both kinds of task, bad input."""

import numpy as np
import pandas as pd
import pytest

from condnum import erasure
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.figures.attack_panel import attack_factor_heatmap
from condnum.probing import (
    AttackBudget,
    Attacker,
    AttackTask,
    attack_panel,
    attack_sentences,
    attacker_names,
    get_attacker,
    register_attacker,
)

D = 5
SMALL = AttackBudget(steps=6000, dense_steps=150)


def regression(noise=0.3):
    generator = np.random.default_rng(5)
    X = generator.normal(size=(80, D)) * [2.0, 1.5, 1.0, 0.7, 0.5]
    return AttackTask(X[:60], (X @ np.ones(D) + noise * generator.normal(size=80))[:60],
                      X_test=X[60:], y_test=X[60:] @ np.ones(D), name="toy")  # fmt: skip


def classification(classes=2):
    generator = np.random.default_rng(6)
    X = generator.normal(size=(120, D))
    y = (X @ generator.normal(size=(D, classes)) + 1.5 * generator.normal(size=(120, classes))).argmax(axis=1)
    return AttackTask(X[:90], y[:90], "classification", X[90:], y[90:], "toy")


def ill(scale=0.05):
    """An invertible θ, not aligned with the data, that makes two directions small."""
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0]
    return Q @ np.diag([1, 1, 1, scale, scale])


@pytest.fixture(scope="module")
def report():
    return attack_panel({"raw": None, "ill": ill()}, regression(), budget=SMALL)


def steps(report, attacker, extractor, epsilon=0.01):
    table = report.steps
    rows = table[(table["attacker"] == attacker) & (table["extractor"] == extractor)]
    return rows.set_index("epsilon").loc[epsilon, "steps"]


def test_who_is_slowed_on_a_regression(report):
    assert set(report.steps["attacker"]) == set(attacker_names())
    assert report.skipped.empty
    for attacker in ("whiten", "closed_form"):
        assert (report.steps[report.steps["attacker"] == attacker]["steps"] == 1).all()
    said = " ".join(attack_sentences(report))
    assert "Whiten + GD needs one step on every extractor, down to ε = 0.001" in said
    assert steps(report, "gd", "ill") > 20 * steps(report, "gd", "raw")
    assert steps(report, "momentum", "ill") < steps(report, "gd", "ill")
    assert steps(report, "cg", "ill") <= D
    worst = report.worst_case("ill")
    assert worst["factor"] == report.at(report.factors, None)["factor"].min() <= 1


@pytest.mark.parametrize("name", ["raw", "pixels"])
def test_raw_inputs_are_the_baseline_wherever_they_stand(name):
    task = regression()
    gone = erasure(task.X, task.y, kind="regression", intercept=False).theta
    for other in (ill(), gone):
        first, last = (
            attack_panel(thetas, task, attackers=["gd", "cg"], budget=SMALL)
            for thetas in ({name: None, "x": other}, {"x": other, name: None})
        )
        assert first.baseline == last.baseline == name
        pd.testing.assert_frame_equal(first.factors, last.factors)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_an_orthogonal_extractor_has_factor_one(kind):
    task = regression() if kind == "regression" else classification()
    Q = np.linalg.qr(np.random.default_rng(2).normal(size=(D, D)))[0]
    names = [n for n in attacker_names() if n not in ("adam", "stacked", "fine_tune", "standardize")]
    found = attack_panel({"raw": None, "turned": 7 * Q}, task, attackers=names, budget=SMALL)
    known = found.factors[found.factors["bound"] == "exact"]
    assert len(known) >= 20
    np.testing.assert_allclose(known["factor"], 1)
    np.testing.assert_allclose(found.extractors["optimum"], found.extractors["baseline_optimum"], rtol=1e-6)


def test_losses_are_in_the_units_of_the_targets():
    task = regression()
    found = attack_panel({"raw": None}, task, attackers=["closed_form"], budget=SMALL)
    best = np.linalg.lstsq(task.X, task.y, rcond=None)
    assert found.extractors.loc[0, "optimum"] == pytest.approx(float(best[1][0]) / 60)
    assert found.extractors.loc[0, "start_loss"] == pytest.approx(float((task.y**2).mean()))
    last = found.curves.iloc[-1]
    assert last["loss"] == pytest.approx(found.extractors.loc[0, "optimum"], rel=1e-6)
    held = ((task.X_test @ best[0] - task.y_test) ** 2).mean()
    assert last["evaluation_loss"] == pytest.approx(held, rel=1e-5)


def test_what_is_not_reached_is_never_a_number():
    few = AttackBudget(steps=40, dense_steps=40)
    found = attack_panel({"raw": None, "ill": ill(1e-4)}, regression(0), attackers=["gd", "adam"], budget=few)
    rows = found.steps[(found.steps["extractor"] == "ill") & (found.steps["epsilon"] < 0.005)]
    assert rows["steps"].isna().all()
    assert found.steps_table(epsilon=0.001)["ill"].tolist() == [">40", ">40"]
    bound = found.factors[(found.factors["attacker"] == "gd") & (found.factors["epsilon"] < 0.005)].iloc[0]
    assert bound["bound"] == "at least"
    assert bound["factor"] == pytest.approx(40 / bound["baseline_steps"])
    assert found.factor_table(epsilon=0.001)["ill"].iloc[0].startswith(">")
    predicted = found.steps.loc[rows.index, "predicted_spectrum"].dropna()
    assert (predicted > 40).all()


def test_a_rank_deficient_theta_reports_both_optima():
    lost = ill().copy()[:, :3]
    found = attack_panel({"raw": None, "lost": lost}, regression(), budget=SMALL)
    row = found.extractors.set_index("extractor").loc["lost"]
    assert row["rank"] == 3
    assert row["optimum"] > 1.2 * row["baseline_optimum"]
    assert "is lost, and targets ε below it are out of reach" in " ".join(attack_sentences(found))
    assert np.isinf(steps(found, "cg", "lost"))
    own = found.steps[(found.steps["extractor"] == "lost") & (found.steps["attacker"] == "fine_tune")]
    np.testing.assert_allclose(own["optimum"], row["baseline_optimum"])


@pytest.mark.parametrize("kind", ["regression", "classification"])
@pytest.mark.parametrize("classes", [2, 3])
def test_an_erased_target_is_out_of_reach_for_all_but_those_who_train_theta(kind, classes):
    task = classification(classes)
    task = AttackTask(task.X, task.y if kind == "classification" else np.eye(classes)[task.y] - 0.5, kind)
    strengths, kinds = {"s=0": 1.0, "s": 0.99}, {"kind": kind, "intercept": False}
    thetas = {name: erasure(task.X, task.y, strength=of, **kinds).theta for name, of in strengths.items()}
    found = attack_panel(thetas, task, budget=SMALL)
    table = found.steps_table().set_index("attacker")
    assert {*table["s=0"].drop("Fine-tuning of θ")} == {"∞"}
    assert table.loc["Fine-tuning of θ", "s=0"] != "∞"
    assert "∞" not in {*table["s"]}  # invertible: the optimum stays, gradient descent alone is slowed
    assert steps(found, "whiten", "s") == steps(found, "whiten", "raw")
    assert steps(found, "gd", "s") > 10 * steps(found, "gd", "raw") or np.isnan(steps(found, "gd", "s"))
    own = found.extractors.set_index("extractor").loc["s=0"]
    assert own["optimum"] == pytest.approx(own["start_loss"], rel=1e-6)
    fixed = attack_panel({"s=0": thetas["s=0"]}, task, attackers=["gd", "whiten"], budget=SMALL)
    assert np.isinf(fixed.worst_case("s=0")["factor"])
    assert "out of reach for every attacker of the panel" in " ".join(attack_sentences(fixed))
    assert attack_factor_heatmap(fixed, "").data[0].text[-1] == "<b>∞</b>"


def test_a_classification_skips_what_is_quadratic_and_measures_accuracy():
    found = attack_panel({"raw": None, "ill": ill()}, classification(), budget=SMALL)
    assert set(found.skipped["attacker"]) == {"line_search"}
    last = found.curves.dropna(subset="accuracy").groupby(["extractor", "attacker"])["accuracy"].last()
    assert last.between(0, 1).all()
    assert last["raw", "lbfgs"] > 0.6
    assert "line_search was skipped on 2 extractor(s)" in " ".join(attack_sentences(found))
    assert steps(found, "whiten", "ill") == steps(found, "whiten", "raw")
    assert found.at(found.factors, None).set_index("attacker").loc["gd", "factor"] > 5


def test_an_attacker_is_registered_once_but_a_cell_may_run_again(monkeypatch):
    monkeypatch.setattr("condnum.probing.registry._ATTACKERS", {"gd": get_attacker("gd")})
    with pytest.raises(InvalidInputError, match="'gd' is the name of a built-in attacker"):
        register_attacker(get_attacker("gd"))
    with pytest.raises(InvalidInputError, match="is not an attacker"):
        register_attacker(object())

    class Mine(Attacker):
        name, label, summary = "mine", "Mine", ""

        def run(self, problem, budget): ...

    register_attacker(Mine())
    again = Mine()
    register_attacker(again)
    assert get_attacker("mine") is again


@pytest.mark.parametrize("y", [["b", "a", "b"], [[7], [-2], [7]], [True, False, True]], ids=str)
def test_a_task_numbers_its_labels(y):
    task = AttackTask(np.eye(3), y, X_test=np.eye(3)[:2], y_test=y[:2])
    assert (task.kind, task.y.tolist(), task.y_test.tolist()) == ("classification", [1, 0, 1], [1, 0])


def test_a_task_keeps_its_numbers_when_the_callers_arrays_change():
    X, y = np.eye(3), np.array([0.0, 1.0, 2.0])
    task = AttackTask(X, y)
    X[0] = y[:] = 7
    np.testing.assert_array_equal(task.X, np.eye(3))
    assert task.y[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("power", [-160, 160])
def test_the_units_of_the_inputs_are_not_seen(power):
    X = np.random.default_rng(0).normal(size=(30, 2))
    y, named = X @ [1.0, 2.0], ["gd", "cg", "closed_form"]
    plain, scaled = (
        attack_panel(np.diag([1.0, 0.1]), AttackTask(F, y), attackers=named, budget=SMALL)
        for F in (X, X * 10.0**power)
    )
    assert plain.steps["steps"].tolist() == scaled.steps["steps"].tolist()


def held_out(kind, y, y_test):
    X = np.arange(12.0).reshape(6, 2) ** 2
    return lambda: AttackTask(X, y, kind, X[:4], y_test)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attack_panel(np.eye(4), regression()), "theta has 4 rows, but the inputs have 5"),
        (lambda: attack_panel({"a": None, "b": None}, regression()), "several extractors are None"),
        (lambda: attack_panel({"raw": ill()}, regression()), "'raw' is reserved for the baseline"),
        (lambda: attack_panel({"a": None, "raw": ill()}, regression()), "'raw' is reserved for the baseline"),
        (lambda: attack_panel(np.eye(D), regression(), attackers=["adm"]), "did you mean 'adam'"),
        (lambda: AttackTask(np.eye(3), [0, 1, 2.5], "classification"), "labels .*, got 2.5"),
        (lambda: AttackTask(np.eye(3), np.ones(3), X_test=np.eye(3)), "X_test and y_test must be given"),
        (lambda: AttackTask(np.eye(2), [1, 2], "clustering"), "unknown kind 'clustering'"),
        (lambda: attack_panel(np.eye(2), AttackTask(np.eye(2), [1, 1], "classification")), "all 2 labels"),
        (lambda: attack_panel({"raw": None}, AttackTask(np.eye(2), [0.0, 0.0])), "targets are all zero"),
        (lambda: attack_panel({"raw": None}, AttackTask([[1.0], [-1.0]], [1.0, 1.0])), "nothing to attack"),
        (held_out("classification", [0, 1] * 3, [0, 1, 2, 0]), "y_test holds label 2, .* are 0 to 1"),
        (held_out("classification", [0, 1, 2] * 2, [0, 7, 2, 0]), "y_test holds label 7, .* are 0 to 2"),
        (held_out("auto", ["a", "b"] * 3, ["a", "c", "b", "a"]), "y_test holds label c, .* are a to b"),
        (held_out("regression", np.ones((6, 1)), np.ones((4, 2))), r"y_test has 2 output\(s\)"),
        (lambda: AttackTask(np.eye(2), [1, 2], X_test=np.eye(3), y_test=[1, 2, 3]), "the same columns"),
        (lambda: attack_panel(np.eye(D), regression(), extractors=["nope"]), "unknown extractor 'nope'"),
        (lambda: attack_panel(np.eye(D), regression(), extractors=[]), "no extractor was chosen"),
        (lambda: attack_panel(np.eye(D), regression(), attackers=[]), "no attacker was chosen"),
        (lambda: attack_panel(np.eye(2), AttackTask(np.eye(2), [1e160, 0])), "targets of size .* rescale"),
        (lambda: AttackBudget(epsilons=(0.1, 0.1), headline=0.1), "must be distinct"),
        (lambda: AttackBudget(steps=0), "steps must be an integer ≥ 1, got 0"),
        (lambda: AttackBudget(headline=0.5), "headline 0.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_named(call, words):
    with pytest.raises((InvalidInputError, UnknownNameError), match=words):
        call()


def test_names_are_checked(report):
    with pytest.raises(UnknownNameError, match="epsilon"):
        report.steps_table(epsilon=0.5)
    with pytest.raises(UnknownNameError, match="extractor 'raw'"):
        report.worst_case("raw")
