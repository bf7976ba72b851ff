"""The audit against the dense functions of the library, its intervals, lights, what it says and refuses."""

import dataclasses
import json
import math
import re
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

import condnum
from condnum.auditing import audit, card, lights
from condnum.auditing.lights import attack_rows, made_from
from condnum.auditing.rows import read_rows
from condnum.data.files import as_stream
from condnum.errors import CondnumError
from condnum.probing.panel import RAW
from condnum.probing.race import AttackBudget
from condnum.theory.kappa import fit_lost
from condnum.theory.task import Task, rank_tolerance

D = 6
TEXT_OR_OBJECTS = ("thetas", "maps", "notes")
QUICK = AttackBudget(steps=20, dense_steps=5)


def unwrapped(found):
    """The card for a terminal, without its line breaks."""
    return " ".join(repr(found).split())


def paragraphs(found):
    """The card's sentences."""
    return [block for block in card.blocks(found) if isinstance(block, str)]


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(D, D))
    return generator.normal(size=(300, D)) @ mixing, generator.normal(size=(200, D)) * np.arange(1, D + 1)


@pytest.fixture(scope="module")
def theta():
    return np.random.default_rng(1).normal(size=(D, D))


@pytest.fixture(scope="module")
def found(data, theta):
    y, budget = data[1] @ np.ones(D), AttackBudget(steps=200, dense_steps=50)
    return audit(*data, theta=theta, y_harmful=y, budget=budget)


def test_ratios_in_both_conventions_are_the_dense_library_s(found, data, theta):
    K_P, K_H = (X.T @ X for X in data)
    for row in found.measures[found.measures["extractor"] == "theta"].to_dict("records"):
        dense = condnum.relative_immunization_ratio(theta, K_P, K_H, convention=row["convention"])
        assert row["rir"] == pytest.approx(dense.rir, rel=1e-9)
        assert row["harmful_ratio"] == pytest.approx(dense.harmful_ratio, rel=1e-9)
    row = found.row(RAW, "compact")
    for task, K in (("benign", K_P), ("harmful", K_H)):
        assert row[f"kappa_{task}"] == pytest.approx(np.linalg.cond(K), rel=1e-8)
        assert row[f"rank_{task}"] == D
    assert found.limit.value == pytest.approx(condnum.rir_limit(K_P, K_H).value, rel=1e-8)
    best = audit(*data, method="max_rir", attackers=False).row("max_rir", "compact")
    assert best["share"] == pytest.approx(1, rel=1e-8)


def test_a_theta_that_meets_the_definition_and_slows_the_benign_task_says_so_first():
    """y_P lies along the strong direction, which θ makes the weak one: 1 step on raw features, 114 with θ."""
    X, theta = (np.diag([10.0, 1.0]), np.eye(2)), np.diag([5000**-0.5, 1.0])
    options = {"theta": theta, "attackers": False}
    slow = audit(*X, y_benign=np.array([0.5, 0.0]), y_harmful=np.array([0.0, 0.5]), **options)
    assert slow.clauses("theta", "compact").met
    first = "The benign task pays: gradient descent takes 114 times as many steps."
    assert first in paragraphs(slow)[0]
    row = slow.row("theta", "compact")
    assert row[["benign_steps_raw", "benign_steps", "benign_slowdown"]].tolist() == [1, 114, 114]
    assert row["harmful_slowdown"] == 1
    assert "benign not known without targets" in unwrapped(audit(*X, **options))


def test_clause_c_is_the_gap_of_the_rows_or_not_known(data):
    theta, y = np.eye(D)[:, :3], np.random.default_rng(2).normal(size=(300, 2))
    options = {"theta": theta, "attackers": False}
    known, unknown = audit(*data, y_benign=y, **options), audit(*data, **options)
    gap = known.row("theta", "compact")["fit_lost"]
    assert gap == pytest.approx(fit_lost(Task.of(data[0], y).through(theta)), rel=1e-8)
    assert gap > 0.01
    assert known.clauses("theta", "compact").fit_kept is False
    assert unknown.clauses("theta", "compact").fit_kept is None


# Extractors.


def test_any_kind_is_judged_as_its_matrix(data, theta, tmp_path, found):
    layer = torch.nn.Linear(D, D, bias=False, dtype=torch.float64)
    layer.load_state_dict({"weight": torch.from_numpy(theta).mT})
    np.save(tmp_path / "theta.npy", theta)
    named = {"layer": layer, "tensor": torch.from_numpy(theta), "frame": pd.DataFrame(theta)}
    both = audit(*data, theta=named | {"file": tmp_path / "theta.npy"}, attackers=False)
    assert both.judged == ("layer", "tensor", "frame", "file")
    for name in both.given:
        assert both.row(name, "compact")["rir"] == pytest.approx(found.row("theta", "compact")["rir"])


def test_saved_estimators_and_their_columns(data, tmp_path):
    pytest.importorskip("safetensors", reason="needs safetensors: pip install -e '.[deep]'")
    P, H = (pd.DataFrame(X, columns=[*"abcdef"]) for X in data)
    immunizer = condnum.Immunizer().fit(P[[*"fbdeca"]], H)
    eraser = condnum.Eraser().fit(H[[*"fbdeca"]], np.arange(200) % 2)
    thetas = {}
    for name, estimator in (("imm", immunizer), ("era", eraser)):
        estimator.save(tmp_path / f"{name}.safetensors")
        thetas[name] = str(tmp_path / f"{name}.safetensors")
    found = audit(P, H, theta=thetas, attackers=False)
    assert found.row("imm", "compact")["rir"] == pytest.approx(immunizer.verdict_.rir)
    np.testing.assert_array_equal(found.maps["era"].transform(H), eraser.transform(H))
    assert found.row("era", "compact")["rank_harmful"] == D - 1


def test_attackers_meet_the_map_and_not_its_matrix():
    """Two layers pass on what lies below every tolerance of their product, and columns have names."""
    rng = np.random.default_rng(0)
    H, y = rng.normal(size=(400, 3)), rng.integers(0, 2, 400)
    H[:, 0] += 4 * y - 2
    eraser = condnum.Eraser().fit(pd.DataFrame(H[:200], columns=[*"abc"])[[*"cba"]], y[:200])
    named = {"nearly": np.diag([1e-14, 1.0, 1.0]), "map": eraser}
    frames = pd.DataFrame(H[200:], columns=[*"abc"])
    found = audit(frames, frames, theta=named, y_harmful=y[200:], budget=AttackBudget(50, 50))
    score = found.attack.table.pivot(index="attacker", columns="extractor", values="score")
    solved = ["unfiltered", "closed_form"]
    assert score.loc[solved, "nearly"].min() > 0.9
    assert score.loc[["whiten", *solved], "map"].max() < 0.75
    light = card.lights_of(found, "nearly").set_index("group")["light"]
    assert light["closed form"] == "gets through"
    assert "closed form" in card.headline(found, "nearly")


def test_erasure_is_judged_and_saved_with_rows_that_no_attacker_has(data, tmp_path):
    pytest.importorskip("safetensors", reason="needs safetensors: pip install -e '.[deep]'")
    y, path = (data[1][:, 0] > 0).astype(int), str(tmp_path / "t.safetensors")
    erased = audit(*data, y_harmful=y, method="erase", budget=QUICK)
    attack = erased.attack
    assert (erased.judged, attack.own_rows) == (["erase"], [])
    assert attack.training + attack.choosing + attack.judging == 100
    erased.maps["erase"].save(path)
    again = audit(*data, y_harmful=y, theta=path, budget=QUICK)
    expected = erased.maps["erase"].transform(data[1])
    np.testing.assert_array_equal(again.maps["t"].transform(data[1]), expected)


# Attackers.


def test_an_attacker_who_runs_out_of_steps_is_not_called_stopped(data):
    """Raw features take two steps; five are fewer than the twenty of which a light speaks."""
    theta, rows = np.diag([1, 1, 1, 1, 1, 1e-3]), read_rows(as_stream(data[1]))
    for steps, light in ((5, "not known"), (100, "stopped")):
        budget = AttackBudget(steps=steps, dense_steps=5)
        found = attack_rows(rows, data[1][:, 5], {"t": theta}, budget=budget, attackers=["gd"])
        assert found.table["light"].tolist() == [light]


# Intervals: the delete-a-group jackknife of log κ and of log ratios.


def test_an_interval_is_that_of_numpy_on_rows_without_each_group():
    """Groups of rows whose factors are known: those that `read_rows` drew."""
    X, theta = np.random.default_rng(0).normal(size=(300, 4)) * [1, 2, 3, 4], np.diag([1, 1, 2, 5.0])
    rows = read_rows(as_stream(X))
    own = [of.products[0].numpy() for of in rows.groups]
    logs = []
    for g in range(10):
        left = np.concatenate([of for k, of in enumerate(own) if k != g])
        logs.append(2 * np.log(np.linalg.cond(left @ theta) / np.linalg.cond(left)))
    size = scipy.stats.t(9).ppf(0.975) * np.sqrt(0.9 * np.square(np.array(logs) - np.mean(logs)).sum())
    found = audit(X, X, theta=theta, attackers=False).row("theta", "compact")
    value = found["harmful_ratio"]
    ends = found[["harmful_ratio_low", "harmful_ratio_high"]].tolist()
    assert ends == pytest.approx([value * np.exp(-size), value * np.exp(size)], rel=1e-8)


@pytest.mark.parametrize("standardize", [False, True])
def test_a_number_lies_inside_its_interval_and_the_word_follows_from_both(standardize):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        P, H = (rng.normal(size=(150, 3)) * rng.uniform(0.5, 2, 3) for _ in range(2))
        theta = np.diag(rng.uniform(0.7, 1.4, 3))
        found = audit(P, H, theta=theta, attackers=False, standardize=standardize)
        for row in found.measures[found.measures["extractor"] == "theta"].to_dict("records"):
            for name, clause in (("harmful_ratio", "a"), ("benign_ratio", "b"), ("rir", None)):
                low, value, high = (row[f"{name}{end}"] for end in ("_low", "", "_high"))
                assert low < value < high
                above = True if low > 1 + 1e-6 else False if high <= 1 + 1e-6 else None
                if clause:
                    assert row[f"clause_{clause}"] is (above if clause == "a" or above is None else not above)


def test_there_is_no_interval_for_few_rows_a_lone_row_or_an_extractor_made_from_them(data):
    few = audit(data[0][:12], data[1], theta=np.diag(np.arange(1.0, D + 1)), attackers=False)
    row = few.row("theta", "compact")
    assert math.isnan(row["benign_ratio_low"])
    assert row["harmful_ratio_low"] < row["harmful_ratio"]
    assert "D_P has 12 rows for 6 columns" in unwrapped(few)
    closed = audit(*data, attackers=False)
    assert math.isnan(closed.row("pareto", "compact")["rir_low"])
    assert "the closed form on the Pareto front was made from them" in unwrapped(closed)
    X = np.tile(np.random.default_rng(0).normal(size=(50, 3)), (40, 1))
    alone = np.c_[X, np.arange(len(X)) == 7]  # this direction is gone without its row
    none = audit(alone, alone, theta=np.diag([1, 2, 3, 4]), attackers=False)
    row = none.row("theta", "compact")
    assert math.isnan(row["harmful_ratio_low"])
    assert row["clause_a"] is bool(row["harmful_ratio"] > 1)
    assert "about these rows alone, as a rank changes with the rows" in unwrapped(none)


# Lights.


@pytest.mark.parametrize("worst", lights.LIGHTS)
def test_the_headline_is_the_worst_light(found, worst):
    """Every light that is better stands beside it, and changes nothing."""
    better = lights.LIGHTS[lights.LIGHTS.index(worst) :]
    table = found.attack.table.assign(light=lambda of: np.resize(better, len(of)))
    changed = dataclasses.replace(found, attack=dataclasses.replace(found.attack, table=table))
    opens = dict(zip(lights.LIGHTS, ("Not safe", "Hindered", "Not known", "Stopped"), strict=True))
    assert card.headline(changed, "theta").startswith(opens[worst])


def judged(scores, within=None, *, raw=0.9, chance=0.5, rows=100, labels=True):
    """Return the lights of attackers who take 10 steps on raw features, in one class.

    `within` is what they reach in 50 steps, `scores` in the end.
    """
    names = [str(i) for i in range(len(scores))]
    table = pd.DataFrame({"attacker": names, "label": "", "extractor": "θ", "score": scores})
    both = pd.concat([table, table.assign(extractor="raw", score=raw)])
    curves = table.assign(step=200, choice=1.0)
    if within is not None:
        curves = pd.concat([curves, table.assign(step=50, score=within, choice=0.5)])
    on_raw = pd.Series(10.0, index=names)
    with mock.patch.dict(lights.CLASSES, {"gradient descent": tuple(names)}):
        return lights.attacker_lights(both, curves, on_raw, chance=chance, rows=rows, labels=labels)


@pytest.mark.parametrize(
    ("score", "settings", "light"),
    [
        (0.9, {}, "gets through"),
        (0.9, {"within": 0.8}, "gets through"),
        (0.9, {"within": 0.65}, "hindered"),  # what is printed is what colors
        (0.9, {"within": 0.52}, "stopped"),
        (0.65, {}, "hindered"),
        (0.52, {}, "stopped"),
        (0.58, {}, "not known"),  # a fifth of what raw features give, or chance
        (0.6, {"raw": 0.6}, "not known"),  # what raw features give is chance
        (0.55, {"raw": 0.55, "rows": 4000}, "gets through"),  # here it is not
        (0.5, {"rows": 5}, "not known"),
        (np.nan, {}, "not known"),
        (0.4, {"raw": 0.45}, "not known"),
        (0.9, {"raw": 0.45}, "gets through"),  # more than raw features allow
        (0.45, {"raw": 0.45, "chance": 0.0, "labels": False}, "gets through"),
        (-3.0, {"raw": 0.45, "chance": 0.0, "labels": False}, "stopped"),
    ],
)
def test_an_attacker_is_judged_by_what_it_reaches_in_ten_times_the_steps(score, settings, light):
    found = judged([score], **settings)
    assert found["light"].tolist() == [light]
    assert found["score"].item() == pytest.approx(settings.get("within", score), nan_ok=True)


@pytest.mark.parametrize("labels", [True, False], ids=["accuracy", "R²"])
def test_intervals_hold_for_all_attackers_together(labels):
    """Scores of chance, drawn for 20 attackers: in 57 of 60 audits none is above chance."""
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(60):
        scores = rng.binomial(100, 0.5, 20) / 100 if labels else rng.beta(0.5, 48, 20)
        found = judged(scores, chance=0.5 * labels, labels=labels)
        alarms += not found["light"].isin(["stopped", "not known"]).all()
    assert alarms <= 3


@pytest.mark.parametrize("labels", [True, False], ids=["accuracy", "R²"])
@pytest.mark.parametrize("rows", [4, 40, 4000])
@pytest.mark.parametrize("raw", [0.3, 0.5, 0.58, 0.95])
def test_no_light_is_milder_than_that_of_an_attacker_who_does_worse(labels, rows, raw):
    """More score is never a milder light; the headline is the worst of all."""
    scores, options = np.linspace(0.3, 1, 36), {"raw": raw, "rows": rows, "labels": labels}
    found = judged(scores, chance=0.5 * labels, **options)
    rank = found["light"].map(lights.LIGHTS.index).to_numpy()  # 0 is the worst
    assert lights.worst_light(lights.class_lights(found)) == lights.LIGHTS[rank.min()]
    assert (np.diff(rank) <= 0).all()


def test_what_only_trees_read_is_not_called_stopped():
    """The label is the parity of a column: no linear head and no kernel reads it, and trees do."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    X[:, 0] = rng.integers(0, 8, 600)
    found = audit(X, X, y_harmful=X[:, 0].astype(int) % 2, theta=np.eye(3), budget=AttackBudget(50, 20))
    light = card.lights_of(found, "theta").set_index("group")["light"]
    assert light["nonlinear head"] == "gets through"
    assert light["closed form"] != "gets through"


def test_an_invertible_theta_is_not_safe_whatever_condition_numbers_say(found):
    worst = min(lights.worst_light(card.lights_of(found, name)) for name in found.judged)
    assert worst == "gets through"
    first = paragraphs(found)[0]
    assert first.startswith("Not safe")
    assert "closed form" in first
    html = found._repr_html_()
    assert html.index("Not safe") < html.index("Definition 3.1")
    assert "kernel" in set(found.attack.table["attacker"])


# An extractor made from the audited rows says nothing about others.


@pytest.mark.parametrize("numbers", [False, True])
def test_what_erases_more_than_chance_was_made_from_these_rows_and_what_others_made_was_not(numbers):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(480, 6)) @ rng.normal(size=(6, 6))
        y = X[:, 0] + np.sin(X[:, 1]) if numbers else (X[:, 0] > 0.5).astype(int)
        Z, fit = y[:, None] if numbers else np.eye(2)[y], condnum.Eraser().fit
        own, fresh = (fit(X[of], y[of]).transform(X)[:240] for of in (slice(240), slice(240, None)))
        assert made_from(own, X[:240], Z[:240])
        for F in (fresh, X[:240], X[:240, :2]):
            assert not made_from(F, X[:240], Z[:240])
            assert not made_from(F[:8], X[:8], Z[:8])
    design = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]] * 50, dtype=float)  # knows nothing of its parity
    assert not made_from(design, design, np.eye(2)[(design.prod(axis=1) > 0).astype(int)])


def test_the_first_line_says_so_and_nothing_counts_as_stopped():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6))
    y = (X[:, 0] > 0.5).astype(int)
    halves = {"own": slice(200), "fresh": slice(200, None)}
    thetas = {name: condnum.Eraser().fit(X[of], y[of]) for name, of in halves.items()}
    found = audit(X, X[:200], theta=thetas, y_harmful=y[:200], budget=AttackBudget(50, 50))
    assert found.attack.own_rows == ["own"]
    assert paragraphs(found)[0].startswith("own was made from these rows")
    table = found.attack.table
    assert "stopped" not in {*table.loc[table["extractor"] == "own", "light"]}
    assert card.headline(found, "fresh").startswith(("Not safe", "Hindered", "Not known"))


# What is said.


def words_of(value):
    """All text in a record."""
    if isinstance(value, dict | list):
        return [
            word for item in (value.values() if isinstance(value, dict) else value) for word in words_of(item)
        ]
    return [value] if isinstance(value, str) else []


def test_json_is_strict_and_whole(found, tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is not strict JSON")

    assert found.save(tmp_path) == ["audit.json"]
    record = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
    assert (record["benign"]["rows"], record["attack"]["judging"]) == (300, 40)
    assert [*record] == [of.name for of in dataclasses.fields(found) if of.name not in TEXT_OR_OBJECTS]
    assert max(len(word) for word in words_of(record)) < 40  # names, and no sentence


def test_the_front_is_judged_by_every_class_of_attackers_and_drawn(data):
    found = audit(*data, y_harmful=data[1][:, 0], budget=QUICK)
    assert found.judged == ["pareto"]
    assert card.lights_of(found, "pareto")["group"].tolist() == list(lights.CLASSES)
    table, drawn = found.attack.table, card.attackers_figure(found).data
    assert {name for trace in drawn for name in trace.y} == {*table["label"]}
    assert sum(len(trace.x) for trace in drawn) == 2 * len(table)  # and raw features


def test_page_and_terminal_say_the_same_within_its_width(found):
    text, page = unwrapped(found), " ".join(re.sub(r"<[^>]+>", " ", found._repr_html_()).split())
    for block in card.blocks(found):
        if isinstance(block, str):
            assert block in text
        else:
            for word, cell in (cell for row in block for cell in row.values()):
                assert word in page
                assert f"{word} {cell}".strip() in text
    assert max(map(len, repr(found).splitlines())) <= card.WIDTH


def test_targets_beside_features_in_one_file_are_read_and_named(data, tmp_path):
    y = np.arange(200) % 3
    np.savez(tmp_path / "H.npz", X=data[1].astype(np.float16), y=y)
    np.savez(tmp_path / "P.npz", X=data[0])
    found = audit(tmp_path / "P.npz", tmp_path / "H.npz", theta=np.eye(D), budget=QUICK)
    assert (found.attack.classes, found.price.obstacle) == (3, "no targets")
    said = f"y_harmful: 1 column(s) of {tmp_path / 'H.npz'} as labels of 3 classes: 0, 1, 2."
    assert said in found.notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"theta": np.ones((2, D))}, r"theta has shape \(2, 6\).*looks transposed"),
        ({"theta": np.full((D, D), np.nan)}, "theta holds 36 non-finite value"),
        ({"theta": torch.nn.Sequential(torch.nn.Linear(D, D), torch.nn.Tanh())}, "which has no matrix"),
        ({"theta": {"pareto": np.eye(D)}}, "the name 'pareto' is that of an extractor of the audit"),
        ({"benign": np.zeros((5, D))}, "rank 0"),
        ({"benign": np.ones((2, 20_001), np.float32)}, r"20,001 columns.*3\.0 GiB"),
        ({"y_harmful": np.array(["a", "b"])}, "200 rows, but there are 2 targets"),
        ({"method": "erase"}, "erasure needs the targets"),
        ({"budget": AttackBudget()}, "budget has no effect without attackers"),
    ],
)
def test_refused(data, settings, message):
    with pytest.raises(CondnumError, match=message):
        audit(**{"benign": data[0], "harmful": data[1]} | settings)


def test_rows_with_gaps_go_with_their_targets_which_the_first_lines_say(data):
    X_P, X_H = data
    y = X_H @ np.ones(D)
    holes, targets = np.insert(X_H, 7, np.nan, axis=0), np.insert(y, 7, 1e9)
    one, two = (audit(X_P, X, y_harmful=t, budget=QUICK) for X, t in ((X_H, y), (holes, targets)))
    said = "1 of 201 rows has missing entries"
    assert said in two._repr_html_().partition("<table")[0]
    assert f"D_H: {said}" in unwrapped(two)
    pd.testing.assert_frame_equal(one.measures, two.measures)
    pd.testing.assert_frame_equal(*(found.attack.table for found in (one, two)))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_tensors_with_gradients_are_audited(data, kind):
    P, H = (torch.tensor(X, dtype=kind, requires_grad=True) for X in data)
    found = audit(P, H, theta=torch.eye(D, dtype=kind, requires_grad=True))
    assert found.rtol == rank_tolerance(D, 2.0**-23) ** 2  # half precision counts as float32
    assert found.row("theta", "compact")["rir"] == pytest.approx(1)
    assert audit(P, H, y_harmful=np.zeros(200, dtype=int)).attack.obstacle == "one class"
