"""The audit against the library's dense functions, and what it says and refuses."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import condnum
from condnum.audit import FeatureAudit, audit
from condnum.audit.attacks import attack_section
from condnum.audit.intervals import bootstrap, estimates, intervals
from condnum.audit.measures import (
    RAW,
    Comparison,
    TaskSpectra,
    clause_c,
    covariance_rtol,
    target_moments,
)
from condnum.audit.moments import second_moments
from condnum.audit.tables import evaluation_words
from condnum.data.feature_stream import array_stream
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, RankError, UnknownNameError
from condnum.methods.problem import LinearTask
from condnum.probing.attackers import AttackBudget
from condnum.report.tables import number
from condnum.studies.study import SweepError
from condnum.theory.spectra import CovarianceRange

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
    X_P, X_H = data
    y = X_H @ np.ones(D)
    budget = AttackBudget(steps=200, dense_steps=50)
    return audit(X_P, X_H, theta=theta, targets=y, replicates=40, budget=budget, threads=1)


class TestAgainstTheDenseLibrary:
    def test_ratios_in_every_convention_and_gauge(self, found, data, theta):
        K_P, K_H = (X.T @ X for X in data)
        for row in found.measures[found.measures["extractor"] == "theta"].to_dict("records"):
            dense = condnum.relative_immunization_ratio(
                theta, K_P, K_H, convention=row["convention"], gauge=row["gauge"]
            )
            assert row["rir"] == pytest.approx(dense.rir, rel=1e-9)
            assert row["harmful_ratio"] == pytest.approx(dense.harmful_ratio, rel=1e-9)
            assert (row["clause_a"], row["clause_b"]) == (dense.clauses["a"], dense.clauses["b"])

    def test_condition_numbers_and_ceiling(self, found, data):
        K_P, K_H = (X.T @ X for X in data)
        for task, K in (("pretrain", K_P), ("harmful", K_H)):
            row = found.kappa_of(task, RAW, "compact")
            assert row["kappa"] == pytest.approx(np.linalg.cond(K), rel=1e-8)
            assert row["rank"] == D
        assert found.ceiling.value == pytest.approx(condnum.rir_ceiling(K_P, K_H).value, rel=1e-8)
        optimal = found.row(Comparison("optimal", RAW), "compact")
        assert optimal["share"] == pytest.approx(1, rel=1e-8)

    def test_the_pair_against_its_first_extractor(self, data, theta):
        X_P, X_H = data
        both = audit(X_P, X_H, theta_0=np.diag(np.arange(1.0, D + 1)), theta_i=theta, replicates=0)
        assert both.main == Comparison("theta_i", "theta_0")
        first, second = (both.row(Comparison(name, RAW), "compact")["rir"] for name in ("theta_i", "theta_0"))
        row = both.row(both.main, "compact")
        assert row["rir"] == pytest.approx(first / second, rel=1e-9)
        assert row["rir_ceiling"] == pytest.approx(both.ceiling.value / second, rel=1e-9)

    @pytest.mark.parametrize(("sweep", "convention"), [("rtol", "compact"), ("ridge", "ridge")])
    def test_the_sweeps_hold_the_audit_s_own_settings(self, found, sweep, convention):
        table = getattr(found, f"{sweep}_sweep")
        own = table[(table[sweep] == getattr(found, sweep)) & (table["extractor"] == "theta")]
        assert own["rir"].item() == pytest.approx(found.row(found.main, convention)["rir"], rel=1e-9)


def resampled(moments, extractors, compared, **options):
    """The intervals of these moments."""
    conventions = {"rtol": 1e-14, "ridge": 1e-6}
    ranges = (CovarianceRange.of(torch.from_numpy(task.covariance), rtol=1e-14) for task in moments)
    known = estimates(TaskSpectra.of(*ranges, extractors, rtol=1e-14), compared, 1e-6)
    draws = bootstrap(moments, extractors, compared, count=len(known), **conventions, **options)
    return intervals(draws, known, "rows").table


class TestBootstrap:
    def test_the_same_for_any_number_of_threads(self, data, theta):
        moments = tuple(second_moments(array_stream(X)) for X in data)
        one, two = (
            resampled(
                moments,
                {RAW: None, "theta": theta},
                [Comparison("theta", RAW)],
                threads=t,
                replicates=range(20),
            )
            for t in (1, 2)
        )
        pd.testing.assert_frame_equal(one, two, check_exact=False, rtol=1e-12)

    @pytest.mark.slow
    def test_it_covers_the_truth_about_as_often_as_it_says(self):
        """κ of N(0, diag(4, 1)) is 4; 95 % intervals from 200 rows should hold it most of the time."""
        hits = 0
        for seed in range(40):
            X = np.random.default_rng(seed).normal(size=(200, 2)) * [2.0, 1.0]
            moments = second_moments(array_stream(X))
            table = resampled(
                (moments, moments), {RAW: None}, [], replicates=range(100), seed=seed, threads=1
            )
            row = table[(table["quantity"] == "kappa") & (table["task"] == "pretrain")].iloc[0]
            hits += row["low"] <= 4 <= row["high"]
        # Binomial(40, 0.95) is at least 33 with probability 0.997; percentile intervals are a bit short.
        assert hits >= 32

    def test_groups_and_rows_give_similar_intervals(self):
        X = np.random.default_rng(0).normal(size=(4000, 3)) * [3.0, 2.0, 1.0]
        widths = []
        for kept in (0, 1 << 30):
            moments = second_moments(array_stream(X), kept_bytes=kept)
            table = resampled((moments, moments), {RAW: None}, [], replicates=range(300))
            row = table[table["quantity"] == "kappa"].iloc[0]
            widths.append(math.log(row["high"] / row["low"]))
        # 63 degrees of freedom: the spread itself is known to 9 %, its percentiles to about twice that.
        assert widths[0] == pytest.approx(widths[1], rel=0.4)


class TestResuming:
    """An audit that was stopped goes on from its finished stages and says the same."""

    @pytest.fixture
    def study(self, data, tmp_path):
        np.save(tmp_path / "P.npy", data[0])
        np.save(tmp_path / "H.npy", data[1])
        np.save(tmp_path / "y.npy", data[1] @ np.ones(D))
        P, H, y = (str(tmp_path / f"{name}.npy") for name in "PHy")
        return FeatureAudit(pretrain=P, harmful=H, targets=y, standardise=True, bootstrap=60, seed=3)

    @pytest.fixture
    def quick_attackers(self, monkeypatch):
        monkeypatch.setattr("condnum.audit.study.PANEL_BUDGET", AttackBudget(steps=20, dense_steps=5))

    @staticmethod
    def record(found):
        """What an audit says, without times."""
        record = found.as_json()
        for row in record["attackers"]["steps"] + record["attackers"]["factors"]:
            row.update({name: None for name in row if "seconds" in name})
        return record | {"seconds": None, "peak_memory_mib": None}

    @pytest.mark.parametrize("last", ["columns", "rows of D_H", "spectra", "bootstrap"])
    def test_after_each_stage(self, study, tmp_path, monkeypatch, quick_attackers, last):
        whole = study.found(study.run(out=tmp_path / "whole").cells)

        def stop(progress):
            if progress.cell is not None and progress.cell["stage"] == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            study.run(out=tmp_path / "out", on_progress=stop)
        again = study.run(out=tmp_path / "out")
        stages = ["columns", "rows of D_P", "rows of D_H", "spectra", "bootstrap"]
        assert again.report.reused == stages.index(last) + 1
        assert again.report.reused + again.report.computed == 7  # the bootstrap has two batches
        assert self.record(study.found(again.cells)) == self.record(whole)
        assert again.save(tmp_path / "out") == ["audit.json"]

    def test_a_stage_that_fails_is_named(self, study, tmp_path, monkeypatch):
        def broken(*_, **__):
            raise MemoryError("too large")

        monkeypatch.setattr("condnum.audit.study.attack_section", broken)
        run = study.run(out=tmp_path / "out")
        found = study.found(run.cells)
        assert found.attack.reason == "the panel failed"
        assert run.save(tmp_path / "out") == ["failures.csv", "audit.json"]
        monkeypatch.setattr("condnum.audit.study.task_facts", broken)
        with pytest.raises(SweepError, match="ended at its stage 'spectra' with MemoryError: too large"):
            study.run()


class TestClauseC:
    def test_moments_alone_give_the_gap_of_the_rows(self, data):
        X, _ = data
        theta = np.eye(D)[:, :3]
        y = np.random.default_rng(2).normal(size=(len(X), 2))
        task = LinearTask(torch.from_numpy(X.T @ X), torch.from_numpy(X), torch.from_numpy(y))
        part = CovarianceRange.of(task.covariance)
        clause = clause_c(part, theta, target_moments(array_stream(X), y), (y**2).sum())
        assert clause.gap == pytest.approx(task.loss_gap(torch.from_numpy(theta)), rel=1e-8)
        assert clause.gap > 0.001
        assert not clause.kept

    def test_without_targets_a_lost_rank_is_not_known(self, data):
        found = audit(*data, theta=np.eye(D)[:, :3], replicates=0)
        assert found.clause_c["theta"].kept is None
        assert "none were given" in found.clause_c["theta"].reason


class TestAttackers:
    def test_the_panel_runs_on_rows_and_is_measured_on_others(self, found):
        attack, report = found.attack, found.attack.report
        assert (attack.rows, attack.held_out) == (160, 40)
        assert report.held_out
        assert "measured on 40 others" in attack.sentences[0]
        factors = report.factors
        whitened = factors[(factors["attacker"] == "whiten") & np.isclose(factors["epsilon"], 0.01)]
        assert whitened["factor"].item() == 1
        assert set(report.evaluation["attacker"]) == set(report.steps["attacker"])
        assert (report.evaluation["evaluation_loss"] > 0).all()
        words = evaluation_words(found)
        assert len(words) == report.evaluation["attacker"].nunique()
        assert any("held-out" in name for name in words.columns)
        assert found.as_json()["attackers"]["held_out_rows"] == 40

    def test_few_rows_are_all_trained_on(self, data):
        X_P, X_H = data
        found = audit(X_P, X_H[:15], targets=np.arange(15.0), replicates=0)
        assert (found.attack.rows, found.attack.held_out) == (15, 0)

    def test_a_class_that_only_held_out_rows_have_is_left_out(self, data):
        X_H = data[1]
        labels = np.arange(200) % 2
        labels[7] = 2  # in the training rows or in none
        kept = set()
        for seed in range(8):
            section = attack_section(
                array_stream(X_H), 200, labels, {"theta": np.eye(D)}, kind="classification", seed=seed,
                budget=AttackBudget(steps=2, dense_steps=2),
            )  # fmt: skip
            assert section.rows == 160
            kept.add(section.held_out)
        assert kept == {39, 40}

    def test_skipped_and_said_so(self, data):
        found = audit(*data, replicates=0)
        assert found.attack.report is None
        assert "no targets" in found.attack.sentences[0]
        assert any("no targets" in sentence for sentence in found.sentences)
        found = audit(*data, targets=np.zeros(200, dtype=int), replicates=0)
        assert "one class" in found.attack.reason


class TestWhatIsSaid:
    def test_json_is_strict_and_whole(self, found, tmp_path):
        assert found.save(tmp_path) == ["audit.json"]

        def refuse(name):
            raise AssertionError(f"{name} is not strict JSON")

        record = json.loads((tmp_path / "audit.json").read_text(), parse_constant=refuse)
        assert record["tasks"]["D_P"]["rows"] == 300
        assert record["bootstrap"]["replicates"] == 40
        assert {row["convention"] for row in record["measures"]} == {"compact", "ridge"}
        assert record["summary"] == found.sentences

    def test_sentences_hold_the_numbers(self, data):
        X_P, X_H = data
        K_P = X_P.T @ X_P
        values, vectors = np.linalg.eigh(K_P)
        star = vectors / np.sqrt(values)  # θ* up to an orthogonal factor
        found = audit(X_P, X_H, theta=star, replicates=0)
        row = found.row(found.main, "compact")
        said = " ".join(found.sentences)
        assert f"RIR {number(row['rir'])}" in said
        assert "100 % of the ceiling" in said
        verdict = "meets all clauses" if row["clause_a"] else "is not immunized: (a) fails"
        assert f"Compact convention: θ {verdict}" in said

    def test_odd_columns_and_short_data_are_warned_of(self):
        X = np.random.default_rng(0).normal(size=(5, 7))
        X[:, 1], X[:, 2], X[:, 4] = 0, 3, X[:, 0]
        said = " ".join(audit(X, X, replicates=0).warnings)
        for words in (
            "fewer rows than columns (5 < 7)",
            "column(s) of zeros (x1)",
            "constant column(s) (x2)",
            "x0 = x4",
        ):
            assert words in said

    def test_directions_of_the_harmful_task_alone_make_the_ceiling_infinite(self):
        found = audit(np.diag([3.0, 2.0, 0.0]), np.eye(3), replicates=0)
        assert math.isinf(found.ceiling.value)
        assert any("compact RIR has no ceiling" in sentence for sentence in found.sentences)


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"harmful": np.ones((9, 4))}, InvalidInputError, "has 6 columns and features has 4"),
            ({"theta": np.ones((2, D))}, InvalidInputError, r"theta has shape \(2, 6\).*looks transposed"),
            ({"theta_0": np.eye(D)}, InvalidInputError, "theta_0 was given without theta_i"),
            ({"theta": np.full((D, D), np.nan)}, InvalidInputError, "theta .* has NaN or infinite entries"),
            ({"theta": np.zeros((D, D))}, RankError, "theta is the zero matrix"),
            ({"pretrain": np.zeros((5, D))}, RankError, "rank 0"),
            ({"pretrain": np.ones((2, 20_001), np.float32)}, InvalidInputError, r"20,001 columns.*3\.0 GiB"),
            ({"targets": np.arange(9.0)}, InvalidInputError, "has 200 rows, but there are 9 targets"),
            ({"pretrain_targets": np.ones(9)}, InvalidInputError, "has 300 rows, but there are 9 targets"),
            (
                {"targets": np.arange(200), "kind": "words"},
                UnknownNameError,
                "unknown kind 'words'",
            ),
            ({"replicates": 5}, InvalidInputError, r"replicates must be 0 .* got 5"),
        ],
    )
    def test_refused(self, data, settings, error, message):
        given = {"pretrain": data[0], "harmful": data[1], "replicates": 0} | settings
        with pytest.raises(error, match=message):
            audit(**given)

    def test_rows_with_gaps_go_with_their_targets(self, data):
        X_P, X_H = data
        y = X_H @ np.ones(D)
        holes, targets = np.insert(X_H, 7, np.nan, axis=0), np.insert(y, 7, 1e9)
        budget = AttackBudget(steps=5, dense_steps=5)
        one, two = (
            audit(X_P, X, targets=t, replicates=0, budget=budget) for X, t in ((X_H, y), (holes, targets))
        )
        assert two.harmful.rows == 200
        assert any("1 of 201 rows has missing entries" in note for note in two.warnings)
        pd.testing.assert_frame_equal(one.measures, two.measures)
        steps = [found.attack.report.steps.drop(columns="seconds") for found in (one, two)]
        pd.testing.assert_frame_equal(*steps)

    def test_the_answer_among_the_features_is_a_warning(self, data):
        labels = np.arange(200) % 3
        X_P, X_H = (
            np.column_stack([X, column]) for X, column in zip(data, (np.ones(300), labels), strict=True)
        )
        found = audit(X_P, X_H, targets=labels, attackers=False, replicates=0)
        assert any("the answer may be among the features" in note for note in found.warnings)
        left = audit(X_P, X_H, targets=labels, drop=f"x{D}", attackers=False, replicates=0)
        assert left.warnings == []
        plain = audit(*data, replicates=0)
        pd.testing.assert_frame_equal(left.measures, plain.measures)

    def test_standardised_columns_have_no_units(self, data):
        X_P, X_H = data
        plain, scaled = (
            audit(X_P * units, X_H * units, standardise=True, replicates=0).ceiling.value
            for units in (1, np.geomspace(1e-3, 1e4, D))
        )
        assert scaled == pytest.approx(plain, rel=1e-8)

    def test_pickles_and_missing_files(self, data, tmp_path):
        np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
        for settings in ({"pretrain": tmp_path / "objects.npy"}, {"targets": tmp_path / "objects.npy"}):
            with pytest.raises(DataFormatError, match="Pickled objects are never loaded"):
                audit(**{"pretrain": data[0], "harmful": data[1]} | settings)
        with pytest.raises(DataNotFoundError, match=r"none\.npy"):
            audit(tmp_path / "none.npy", data[1])


def test_the_tolerance_of_float32_features_is_above_their_round_off():
    """Two equal directions, stored with rounding: the null direction must stay below the tolerance."""
    X = np.random.default_rng(0).normal(size=(500, 8))
    X[:, 7] = X[:, :7] @ np.random.default_rng(1).normal(size=7)
    found = audit(X.astype(np.float32), X.astype(np.float32), replicates=0)
    assert found.pretrain.rank == 7
    assert found.rtol == covariance_rtol(8, 2.0**-23)
