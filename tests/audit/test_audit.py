"""The audit against the library's dense functions, its stages, and what it says and refuses."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import condnum
from condnum.audit import FeatureAudit, audit
from condnum.audit.attacks import attack_section
from condnum.audit.figures import attack_figure
from condnum.audit.measures import AS_IS, clause_c, target_moments
from condnum.audit.tables import attack_words
from condnum.data.feature_stream import as_stream
from condnum.errors import DataNotFoundError, InvalidInputError, RankError, UnknownNameError
from condnum.methods.problem import LinearTask
from condnum.probing.race import AttackBudget
from condnum.report.tables import number
from condnum.studies.frame import SweepError
from condnum.theory.covariances import CovarianceRange
from condnum.theory.spectra import squared_rtol

D = 6


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
    return audit(*data, theta=theta, targets=y, bootstrap=40, budget=budget, threads=1)


def test_ratios_in_every_convention_and_scale_are_the_dense_library_s(found, data, theta):
    K_P, K_H = (X.T @ X for X in data)
    for row in found.measures[found.measures["extractor"] == "theta"].to_dict("records"):
        measure = {name: row[name] for name in ("convention", "theta_scale")}
        dense = condnum.relative_immunization_ratio(theta, K_P, K_H, **measure)
        assert row["rir"] == pytest.approx(dense.rir, rel=1e-9)
        assert row["harmful_ratio"] == pytest.approx(dense.harmful_ratio, rel=1e-9)
        assert (row["clause_a"], row["clause_b"]) == (
            dense.clauses.harmful_slower,
            dense.clauses.pretrain_no_slower,
        )
    for task, K in (("pretrain", K_P), ("harmful", K_H)):
        row = found.kappa_of(task, AS_IS, "compact")
        assert (row["kappa"], row["rank"]) == (pytest.approx(np.linalg.cond(K), rel=1e-8), D)
    assert found.ceiling.value == pytest.approx(condnum.rir_ceiling(K_P, K_H).value, rel=1e-8)
    assert found.row("max_rir", "compact")["share"] == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize(("sweep", "convention"), [("rtol", "compact"), ("epsilon", "ridge")])
def test_the_sweeps_hold_the_audit_s_own_settings(found, sweep, convention):
    table = getattr(found, f"{sweep}_sweep")
    own = table[(table[sweep] == getattr(found, sweep)) & (table["extractor"] == "theta")]
    assert own["rir"].item() == pytest.approx(found.row(found.main, convention)["rir"], rel=1e-9)


def test_met_and_useless_is_said_beside_the_clauses(found):
    """y_P lies along the strong direction, which θ makes the weak one: 1 step on raw features, 114 with θ."""
    X, theta = (np.diag([10.0, 1.0]), np.eye(2)), np.diag([5000**-0.5, 1.0])
    options = {"theta": theta, "bootstrap": 0, "attackers": False}
    lost = audit(*X, pretrain_targets=np.array([0.5, 0.0]), targets=np.array([0.0, 0.5]), **options)
    said = "The definition is met, but the benign task is lost (more than 10 times as many steps)."
    assert all(said in text for text in (repr(lost), lost._repr_html_(), lost.as_json()["verdict"][1]))
    assert [(of["raw"], of["fixed"]) for of in lost.as_json()["probes"]["theta"]] == [(1, 114), (1, 1)]
    row = lost.row("theta", "compact")
    assert (row["benign_slowdown"], row["harmful_slowdown"]) == (114, 1)
    assert audit(*X, **options).probe_sentence == ""
    assert found.probes["theta"][0] is None
    assert found.probe_sentence.startswith("Gradient descent on the actual targets")


def test_clause_c_from_moments_is_the_gap_of_the_rows(data):
    X, _ = data
    theta, y = np.eye(D)[:, :3], np.random.default_rng(2).normal(size=(len(X), 2))
    task = LinearTask(torch.from_numpy(X.T @ X), torch.from_numpy(X), torch.from_numpy(y))
    part = CovarianceRange.of(task.covariance)
    clause = clause_c(part, theta, target_moments(as_stream(X), y), (y**2).sum())
    assert clause.gap == pytest.approx(task.loss_gap(torch.from_numpy(theta)), rel=1e-8)
    assert clause.gap > 0.001
    assert not clause.kept
    unknown = clause_c(part, theta)
    assert unknown.kept is None
    assert "which were not given" in unknown.reason


class TestStages:
    @pytest.fixture
    def study(self, data, tmp_path, monkeypatch):
        monkeypatch.setattr("condnum.audit.stages.PANEL_BUDGET", AttackBudget(steps=20, dense_steps=5))
        for name, values in (("P", data[0]), ("H", data[1]), ("y", data[1] @ np.ones(D))):
            np.save(tmp_path / f"{name}.npy", values)
        P, H, y = (str(tmp_path / f"{name}.npy") for name in "PHy")
        return FeatureAudit(pretrain=P, harmful=H, targets=y, standardize=True, bootstrap=60, seed=3)

    def test_each_is_announced_and_one_that_fails_is_named(self, study, tmp_path, monkeypatch):
        def broken(*_, **__):
            raise MemoryError("too large")

        monkeypatch.setattr("condnum.audit.stages.attack_section", broken)
        events = []
        found = study.run(on_progress=events.append)
        assert [event["done"] for event in events] == [0, 1, 2, 3, 4, 5, 6]
        assert events[-1]["failures"] == 1
        assert found.attack.reason == "the panel failed"
        assert found.failures == {"attackers": "MemoryError: too large"}
        assert found.intervals.replicates == 60
        assert found.save(tmp_path / "out") == ["failures.csv", "audit.json"]
        monkeypatch.setattr("condnum.audit.stages.task_facts", broken)
        with pytest.raises(SweepError, match="failed in its stage 'spectra' with MemoryError: too large"):
            study.run()


class TestAttackers:
    def test_the_panel_runs_on_rows_and_is_measured_on_others(self, found):
        attack, report = found.attack, found.attack.report
        assert (attack.rows, attack.held_out) == (160, 40)
        assert "measured on 40 others" in attack.sentences[0]
        whitened = report.factors.query("attacker == 'whiten' and epsilon == 0.01")
        assert whitened["factor"].item() == 1
        assert set(report.evaluation["attacker"]) == set(report.steps["attacker"])
        words = attack_words(found)
        assert len(words) == report.evaluation["attacker"].nunique()
        assert any("held-out" in name for name in words.columns)

    def test_a_class_that_only_held_out_rows_have_is_left_out(self, data):
        labels = np.arange(200) % 2
        labels[7] = 2  # in the training rows or in none
        budget, kept = AttackBudget(steps=2, dense_steps=2), set()
        for seed in range(8):
            section = attack_section(
                as_stream(data[1]), 200, labels, {"theta": np.eye(D)}, kind="classification", seed=seed,
                budget=budget,
            )  # fmt: skip
            assert section.rows == 160
            kept.add(section.held_out)
        assert kept == {39, 40}
        stream = as_stream(data[1][:15])
        few = attack_section(stream, 15, np.eye(15)[:, :1], {"theta": np.eye(D)}, budget=budget)
        assert (few.rows, few.held_out) == (15, 0)

    def test_skipped_and_said_so(self, data):
        none = audit(*data, bootstrap=0)
        assert any("no targets" in sentence for sentence in none.sentences)
        assert "one class" in audit(*data, targets=np.zeros(200, dtype=int), bootstrap=0).attack.reason


class TestWhatIsSaid:
    def test_json_is_strict_and_whole(self, found, tmp_path):
        assert found.save(tmp_path) == ["audit.json"]

        def refuse(name):
            raise AssertionError(f"{name} is not strict JSON")

        record = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
        assert record["pretrain"]["rows"] == 300
        assert record["intervals"]["replicates"] == record["attack"]["held_out"] == 40
        assert {row["convention"] for row in record["measures"]} == {"compact", "ridge"}
        assert record["summary"] == found.sentences

    def test_sentences_hold_the_numbers(self, data):
        values, vectors = np.linalg.eigh(data[0].T @ data[0])
        found = audit(*data, theta=vectors / np.sqrt(values), bootstrap=0)  # θ* up to an orthogonal factor
        row, said = found.row(found.main, "compact"), " ".join(found.sentences)
        assert f"RIR {number(row['rir'])}" in said
        assert "100 % of the theoretical limit" in said
        verdict = "meets all clauses" if row["clause_a"] else "is not immunized: (a) fails"
        assert f"Compact convention: θ {verdict}" in said

    def test_the_verdict_the_attackers_and_the_figure_are_about_one_extractor(self, data):
        y, budget = data[1] @ np.ones(D), AttackBudget(steps=200, dense_steps=50)
        found = audit(*data, targets=y, bootstrap=0, budget=budget, threads=1)
        assert found.judged == "pareto"
        assert found.attack.report is not None
        assert set(found.attack.report.factors["extractor"]) == {"pareto"}
        assert "Pareto front (closed form)" in attack_figure(found).layout.title.text
        assert "Pareto front (closed form) as on" in found._repr_html_().partition("Weakest attacker")[2]

    def test_erasure_is_attacked_with_rows_that_did_not_make_it(self):
        rng = np.random.default_rng(0)
        data = rng.normal(size=(100, 6)) * np.arange(1, 7), rng.normal(size=(3200, 6))  # 2,500 are attacked
        y = data[1][:, 0] + 0.1 * rng.normal(size=len(data[1]))
        budget = AttackBudget(steps=200, dense_steps=50)
        found = audit(*data, targets=y, bootstrap=0, budget=budget, threads=1)
        at = found.attack.report.extractors.set_index("extractor")
        learned = (at["start_loss"] - at["optimum"]) / at["start_loss"]
        assert learned["pareto"] > 0.9
        assert 0 < learned["erase"] < 0.5  # what sampling leaves, never nothing at all
        assert "∞" in {*attack_words(found)["steps, erasure, from other rows"]}
        assert attack_figure(found) is not None

    def test_the_front_is_written_and_judged_again(self, data, tmp_path):
        for name, X in zip("PH", data, strict=True):
            np.save(tmp_path / f"{name}.npy", X)
        files = {"pretrain": str(tmp_path / "P.npy"), "harmful": str(tmp_path / "H.npy")}
        study = FeatureAudit(**files, bootstrap=0, attackers=False, save_theta=str(tmp_path / "pareto.npy"))
        first = study.run()
        again = audit(*data, theta=np.load(tmp_path / "pareto.npy"), bootstrap=0)
        assert again.row(again.main, "compact")["rir"] == first.row(first.judged, "compact")["rir"]
        with pytest.raises(InvalidInputError, match=r"must end in \.npy"):
            FeatureAudit(save_theta="pareto.csv")

    def test_directions_of_the_harmful_task_alone_make_the_ceiling_infinite(self):
        found = audit(np.diag([3.0, 2.0, 0.0]), np.eye(3), bootstrap=0)
        assert math.isinf(found.ceiling.value)
        assert any("compact RIR is unbounded" in sentence for sentence in found.sentences)


class TestInput:
    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"harmful": np.ones((9, 4))}, InvalidInputError, "pretrain has 6 columns and harmful has 4"),
            ({"pretrain": np.empty((0, 3))}, InvalidInputError, r"is empty: its shape is \(0, 3\)"),
            ({"theta": np.ones((2, D))}, InvalidInputError, r"theta has shape \(2, 6\).*looks transposed"),
            ({"theta": np.full((D, D), np.nan)}, InvalidInputError, "theta has NaN or infinite entries"),
            ({"theta": np.zeros((D, D))}, RankError, "theta is the zero matrix"),
            ({"pretrain": np.zeros((5, D))}, RankError, "rank 0"),
            ({"pretrain": np.ones((2, 20_001), np.float32)}, InvalidInputError, r"20,001 columns.*3\.0 GiB"),
            ({"targets": np.arange(9.0)}, InvalidInputError, "has 200 rows, but there are 9 targets"),
            ({"pretrain_targets": np.ones(9)}, InvalidInputError, "has 300 rows, but there are 9 targets"),
            ({"targets": np.arange(200), "kind": "words"}, UnknownNameError, "unknown kind 'words'"),
            ({"bootstrap": 5}, InvalidInputError, r"bootstrap must be 0 .* got 5"),
            (
                {"kind": "classification"},
                InvalidInputError,
                "kind classification has no effect without targets",
            ),
            ({"budget": AttackBudget()}, InvalidInputError, "budget has no effect without attackers"),
            (
                {"budget": AttackBudget(), "targets": np.arange(200.0), "attackers": False},
                InvalidInputError,
                "budget has no effect without attackers",
            ),
            ({"save_theta": "t.npy"}, TypeError, "'save_theta'"),
            ({"backbone": "resnet18"}, TypeError, "'backbone'"),
            ({"epsilon": 0.0}, InvalidInputError, "epsilon must be positive"),
            ({"rtol": 1.0}, InvalidInputError, r"rtol must lie in \[0, 1\), got 1"),
            ({"targets": np.array(["a", "b"])}, InvalidInputError, "200 rows, but there are 2 targets"),
            ({"pretrain": "none.npy"}, DataNotFoundError, r"none\.npy"),
        ],
    )
    def test_refused(self, data, settings, error, message):
        with pytest.raises(error, match=message):
            audit(**{"pretrain": data[0], "harmful": data[1], "bootstrap": 0} | settings)

    def test_rows_with_gaps_go_with_their_targets_which_the_first_lines_say(self, data):
        X_P, X_H = data
        y = X_H @ np.ones(D)
        holes, targets = np.insert(X_H, 7, np.nan, axis=0), np.insert(y, 7, 1e9)
        options = {"bootstrap": 0, "budget": AttackBudget(steps=5, dense_steps=5)}
        one, two = (audit(X_P, X, targets=t, **options) for X, t in ((X_H, y), (holes, targets)))
        said = "1 of 201 rows has missing entries"
        assert two.dropped[0].startswith(f"D_H: {said}")
        assert said in two._repr_html_().partition("<table")[0]
        assert f"D_H: {said}" in repr(two)
        assert any(said in note for note in two.warnings)
        pd.testing.assert_frame_equal(one.measures, two.measures)
        steps = [found.attack.report.steps for found in (one, two)]
        pd.testing.assert_frame_equal(*steps)

    def test_tables_are_matched_by_name_whatever_their_kind(self, data, tmp_path):
        P, H = (pd.DataFrame(X, columns=[*"abcdef"]) for X in data)
        turned = H[[*"fbdcae"]]
        turned.to_csv(tmp_path / "H.csv")  # with its index
        turned.to_parquet(tmp_path / "H.parquet")
        right = audit(*data, bootstrap=0).ceiling.value
        for other in (turned, tmp_path / "H.csv", tmp_path / "H.parquet"):
            found = audit(P, other, bootstrap=0)
            assert found.ceiling.value == pytest.approx(right, rel=1e-8)
            assert (found.columns["look"] == "").all()
        with pytest.raises(
            InvalidInputError, match="harmful has no column 'a' and pretrain has no column 'z'"
        ):
            audit(P, H.rename(columns={"a": "z"}), bootstrap=0)

    def test_targets_with_their_index_are_one_target(self, data, tmp_path):
        y = pd.Series(data[1] @ np.ones(D), name="price")
        y.to_csv(tmp_path / "y.csv")
        options = {"bootstrap": 0, "budget": AttackBudget(steps=5, dense_steps=5)}
        one, two = (audit(*data, targets=of, **options) for of in (y.to_numpy(), tmp_path / "y.csv"))
        pd.testing.assert_frame_equal(one.attack.report.steps, two.attack.report.steps)
        assert any("y.csv: the first column has no name" in note for note in two.notes)

    @pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
    def test_tensors_with_gradients_are_audited(self, data, kind):
        P, H = (torch.tensor(X, dtype=kind, requires_grad=True) for X in data)
        found = audit(P, H, theta=torch.eye(D, dtype=kind, requires_grad=True), bootstrap=0)
        assert found.rtol == squared_rtol(D, torch.finfo(kind).eps)
        assert found.row("theta", "compact")["rir"] == pytest.approx(1)

    def test_standardized_columns_have_no_units(self, data):
        plain, scaled = (
            audit(*(X * units for X in data), standardize=True, bootstrap=0).ceiling.value
            for units in (1, np.geomspace(1e-3, 1e4, D))
        )
        assert scaled == pytest.approx(plain, rel=1e-8)

    def test_the_tolerance_of_float32_features_is_above_their_round_off(self):
        """Two equal directions, stored with rounding: the null direction must stay below the tolerance."""
        X = np.random.default_rng(0).normal(size=(500, 8))
        X[:, 7] = X[:, :7] @ np.random.default_rng(1).normal(size=7)
        found = audit(X.astype(np.float32), X.astype(np.float32), bootstrap=0)
        assert (found.pretrain.rank, found.rtol) == (7, squared_rtol(8, 2.0**-23))

    def test_without_files_the_embedded_digits_are_audited(self):
        study = FeatureAudit(bootstrap=0, attackers=False)
        found = study.run()
        assert (found.pretrain.rows, found.harmful.rows, found.pretrain.dimension) == (901, 896, 64)
        assert found.clause_c["max_rir"].kept
