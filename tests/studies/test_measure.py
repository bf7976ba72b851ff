"""From cells to tables: what a row holds, by hand, and that nothing is missing in it."""

import numpy as np
import pandas as pd
import pytest
import torch

from condnum.data import load_diabetes_tasks
from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import linear_probe
from condnum.studies.measure import (
    MEASURES,
    RESULT_COLUMNS,
    TABLE_1,
    Extractor,
    PairStudy,
    Published,
    curves_table,
    summary_table,
)
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio


@pytest.fixture(scope="module")
def study():
    pair = load_diabetes_tasks()
    problem = ImmunizationProblem.from_pair(pair)
    made = []
    for method, seed in (("identity", 0), ("optimal", 0), ("ours", 0), ("ours", 1)):
        options = {"steps": 5} if method == "ours" else {}
        made.append(Extractor.of(immunize(problem, method, seed=seed, **options)))
    return PairStudy(pair, problem, made)


def test_a_row_is_the_measure_of_its_cell(study):
    results = study.results
    K = study.problem.pretrain.covariance, study.problem.harmful.covariance
    assert list(results.columns) == RESULT_COLUMNS
    assert len(results) == len(study.extractors) * len(MEASURES)
    assert not results.isna().any().any()
    assert set(results["dataset"]) == {"diabetes"}
    for convention, gauge in MEASURES:
        chosen = results[(results["convention"] == convention) & (results["gauge"] == gauge)]
        for (_, row), cell in zip(chosen.iterrows(), study.extractors, strict=True):
            theta = torch.from_numpy(cell.theta)
            expected = relative_immunization_ratio(theta, *K, convention=convention, gauge=gauge)
            assert row["rir"] == pytest.approx(expected.rir, rel=1e-12)
            assert row["rir"] == pytest.approx(row["harmful_ratio"] / row["pretrain_ratio"], rel=1e-12)
            assert row["harmful_ratio"] == pytest.approx(expected.harmful_ratio, rel=1e-12)
            assert bool(row["success"]) is expected.success
            assert (row["rank_pretrain"], row["rank_harmful"]) == (8, 8)
            assert row["theta_condition"] == pytest.approx(np.linalg.cond(cell.theta), rel=1e-9)
            assert row["loss_gap"] == pytest.approx(0, abs=1e-9)
            assert (row["steps"], row["seconds"]) == (cell.steps, cell.seconds)
            norm = None if gauge == "unit" else float((theta**2).sum())
            ceiling = ridge_convention_ceiling(*K, squared_norm=norm)
            ceiling = rir_ceiling(*K).value if convention == "compact" else ceiling
            assert row["rir_ceiling"] == pytest.approx(ceiling, rel=1e-12)
            assert row["rir_share"] == pytest.approx(row["rir"] / ceiling)
            assert row["rir"] <= ceiling * (1 + 1e-9)
    identity = results[results["method"] == "identity"]
    np.testing.assert_allclose(identity["rir"], 1, rtol=1e-9)
    assert not identity["success"].any()
    optimal = results[(results["method"] == "optimal") & (results["convention"] == "compact")].iloc[0]
    assert optimal["rir"] == pytest.approx(optimal["rir_ceiling"], rel=1e-9)
    assert study.summary["seeds"].tolist() == [1] * 3 + [1] * 3 + [2] * 3  # a row per convention and gauge


class TestSummary:
    def table(self, **changes):
        base = {
            "dataset": "toy",
            "method": ["ours", "ours", "imma"],
            "convention": "compact",
            "gauge": "unit",
            "harmful_ratio": [2.0, 4.0, 5.0],
            "pretrain_ratio": [0.5, 0.5, 2.0],
            "rir": [4.0, 8.0, 2.5],
            "success": [True, False, False],
            "rir_ceiling": [10.0, 10.0, 10.0],
            "rir_share": [0.2, 0.4, 0.1],
            "loss_gap": [0.0, 0.001, 0.002],
            "seconds": [1.0, 3.0, 5.0],
        }
        return pd.DataFrame(base | changes)

    def test_mean_and_deviation_by_hand(self):
        ours = summary_table(self.table(), {}).iloc[0]
        assert (ours["method"], ours["seeds"]) == ("ours", 2)
        assert (ours["harmful_ratio_mean"], ours["rir_mean"]) == pytest.approx((3, 6))
        # Sample deviation of (2, 4) and of (4, 8).
        assert (ours["harmful_ratio_std"], ours["rir_std"]) == pytest.approx((2**0.5, 8**0.5))
        assert ours["pretrain_ratio_std"] == pytest.approx(0)
        assert (ours["success_rate"], ours["rir_ceiling"]) == pytest.approx((0.5, 10))
        assert ours["rir_share"] == pytest.approx(0.3)
        assert (ours["loss_gap_max"], ours["seconds_mean"]) == pytest.approx((0.001, 2))

        imma = summary_table(self.table(), {}).iloc[1]  # one seed has no deviation
        assert imma["seeds"] == 1
        assert np.isnan(imma["rir_std"])
        assert imma["rir_mean"] == pytest.approx(2.5)

    def test_published_numbers_stand_beside(self):
        summary = summary_table(self.table(method=["ours", "ours", "identity"]), TABLE_1).set_index("method")
        assert summary.loc["ours", "published_rir"] == pytest.approx(356.20)
        assert summary.loc["ours", "published_pretrain_ratio_std"] == pytest.approx(0.002)
        assert summary.loc["identity"].filter(like="published").isna().all()
        assert len(summary.filter(like="published_").columns) == len(Published._fields)


@pytest.fixture(scope="module")
def curves(study):
    return curves_table(study.problem, study.extractors, probe_steps=50)


class TestCurves:
    def test_every_curve_is_there(self, curves, study):
        assert list(curves.columns) == ["method", "seed", "task", "quantity", "x", "value"]
        expected = {
            (cell.method, cell.seed, task, quantity)
            for cell in study.extractors
            for task, quantities in (
                ("pretrain", ("norm_ratio", "excess_loss", "spectrum", "kappa", "r_well", "loss")),
                ("harmful", ("norm_ratio", "excess_loss", "spectrum", "kappa", "r_ill")),
            )
            for quantity in quantities
        }
        found = set(curves[["method", "seed", "task", "quantity"]].itertuples(index=False, name=None))
        assert found == expected
        without = curves[curves["quantity"] != "loss"]  # a closed form has no ω, so no loss
        assert not without.isna().any().any()
        P, H = study.problem.pretrain.covariance, study.problem.harmful.covariance
        bare = ImmunizationProblem.from_covariances(P, H)  # without targets there are no probe curves
        quantities = set(curves_table(bare, study.extractors, probe_steps=5)["quantity"])
        assert not {"norm_ratio", "excess_loss"} & quantities

    def one(self, curves, **where):
        for name, value in where.items():
            curves = curves[curves[name] == value]
        return curves

    def test_each_is_what_its_name_says(self, curves, study):
        for name, task in (("pretrain", study.problem.pretrain), ("harmful", study.problem.harmful)):
            XY = task.features.mT @ task.targets
            expected = linear_probe(study.extractors[3].theta, task.covariance, XY, steps=50)
            for quantity in ("norm_ratio", "excess_loss"):
                got = self.one(curves, method="ours", seed=1, task=name, quantity=quantity)
                np.testing.assert_array_equal(got["x"], np.arange(51))
                np.testing.assert_allclose(got["value"], getattr(expected, quantity), rtol=1e-9)
        cell = study.extractors[2]
        got = self.one(curves, method="ours", seed=0, task="harmful", quantity="spectrum")
        theta = cell.theta * np.sqrt(8) / np.linalg.norm(cell.theta)  # the unit gauge
        sigma = np.linalg.eigvalsh(theta.T @ study.problem.harmful.covariance.numpy() @ theta)[::-1]
        # Forming H keeps eps·σ₁; σ_k/σ₁ is above 1e-6 here.
        np.testing.assert_allclose(got["value"], sigma, rtol=1e-8)
        assert got["x"].tolist() == list(range(1, 9))
        got = self.one(curves, method="ours", seed=0, task="harmful", quantity="kappa")
        np.testing.assert_array_equal(got["value"], cell.history["kappa_harmful"])
        np.testing.assert_array_equal(got["x"], cell.history["step"])


def test_no_method_exceeds_the_ceiling_at_any_ridge(study):
    sweep = study.ceiling_sweep
    assert list(sweep.columns) == ["method", "seed", "ridge", "rir"]
    assert len(sweep) == 25 * (1 + len(study.extractors))
    largest = float(torch.linalg.eigvalsh(study.problem.pretrain.covariance)[-1])
    assert (sweep["ridge"].min(), sweep["ridge"].max()) == pytest.approx((1e-6, largest))
    ceilings = sweep[sweep["method"] == "ceiling"].set_index("ridge")["rir"]
    assert ceilings.is_monotonic_decreasing
    assert (sweep["rir"] <= ceilings[sweep["ridge"]].to_numpy() * (1 + 1e-9)).all()
    optimal = sweep[(sweep["method"] == "optimal") & (sweep["ridge"] < 2e-6)]["rir"].iloc[0]
    assert optimal == pytest.approx(ceilings.iloc[0], rel=1e-6)
