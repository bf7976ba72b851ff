"""The house-price study and the same on tasks of one's own: settings, cells, what is measured, failures."""

import dataclasses

import numpy as np
import pytest
import torch

from condnum.data import TaskPair, load_diabetes_tasks
from condnum.errors import CondnumError
from condnum.methods import SelfTunedSettings, immunize, method_names
from condnum.probing import linear_probe
from condnum.studies import study as study_module
from condnum.studies.house_prices import HOUSE_SETTINGS, HousePrices
from condnum.studies.measure import (
    MEASURES,
    TABLE_1,
    extractor_curves,
)
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio

SHORT = HousePrices("embedded", seeds=2, epochs=4, device="cpu")


@pytest.fixture(scope="module")
def finished():
    return SHORT.run(jobs=1)


@pytest.fixture(scope="module")
def problem(finished):
    return SHORT.problem(finished.data)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"features": "clear"}, "unknown features 'clear'; did you mean 'clean'"),
        ({"rows": 1}, "rows must be an integer of at least 2, got 1"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
    ids=str,
)
def test_refused(values, message):
    with pytest.raises(CondnumError, match=message):
        HousePrices(**values)


def test_methods_settings_and_data():
    assert HousePrices().chosen_methods == tuple(method_names())
    assert HousePrices(methods=("imma", "ours")).chosen_methods == ("ours", "imma")
    assert HousePrices().settings("ours") == HOUSE_SETTINGS["ours"]
    assert HousePrices().settings("identity") is None
    assert HousePrices(epochs=7).settings("imma") == HOUSE_SETTINGS["imma"].with_overrides(steps=7)
    assert HousePrices("embedded").settings("imma") == HOUSE_SETTINGS["imma"]
    assert (SHORT.load().name, SHORT.load().dimension) == ("diabetes", 9)
    assert dataclasses.replace(SHORT, features="clean").load().dimension == 8
    assert dataclasses.replace(SHORT, rows=20).load().rows_harmful == 20


@pytest.mark.long
def test_on_another_table_ours_tunes_itself_and_is_immunized():
    study = HousePrices("embedded", ("ours",), seeds=2)
    assert study.settings("ours") == SelfTunedSettings()
    cells = study.run().tables["results"]
    assert cells.loc[cells["convention"] == "compact", "success"].all()  # by fixed settings: in no seed


def test_keys():
    pair = load_diabetes_tasks()
    moved = dataclasses.replace(pair, provenance=dataclasses.replace(pair.provenance, location="/else"))
    assert SHORT.planned(pair) == SHORT.planned(moved)
    longer = dataclasses.replace(SHORT, epochs=5).planned(pair)
    same = {a["method"] for a, b in zip(SHORT.planned(pair), longer, strict=True) if a == b}
    assert same == {"identity", "initial", "max_rir", "pareto"}
    options = [{"features": of, "rows": rows} for of in ("clean", "published") for rows in (None, 30)]
    studies = [dataclasses.replace(SHORT, **chosen) for chosen in options]
    assert len({study.planned(study.load())[0].key for study in studies}) == 4


@pytest.mark.parametrize(("epochs", "jobs"), [(4, 1), (20_000, 7)], ids=["short", "long"])
def test_workers_are_started_if_that_pays(epochs, jobs, monkeypatch):
    monkeypatch.setattr(study_module, "core_count", lambda: 7)
    study = dataclasses.replace(SHORT, epochs=epochs)
    cells = study.planned(study.load())
    assert getattr(study.executor(None, cells, 0), "jobs", 1) == jobs
    steps = [cell.settings.get("steps", 0) for cell in sorted(cells, key=study.order)]
    assert steps[0] == 0
    assert steps[-1] == min(filter(None, steps))  # closed forms, then long cells before short ones


def test_a_row_is_the_measure_of_its_cell(finished, problem):
    results = finished.tables["results"]
    K = problem.pretrain.covariance, problem.harmful.covariance
    for convention, theta_scale in MEASURES:
        chosen = results[(results["convention"] == convention) & (results["theta_scale"] == theta_scale)]
        for (_, row), cell in zip(chosen.iterrows(), finished.cells, strict=True):
            theta = torch.from_numpy(cell.arrays["theta"])
            expected = relative_immunization_ratio(theta, *K, convention=convention, theta_scale=theta_scale)
            assert row["rir"] == pytest.approx(expected.rir, rel=1e-12)
            assert row["rir"] == pytest.approx(row["harmful_ratio"] / row["pretrain_ratio"], rel=1e-12)
            assert bool(row["success"]) is expected.success
            assert row["theta_condition"] == pytest.approx(np.linalg.cond(theta), rel=1e-9)
            norm = None if theta_scale == "unit" else float((theta**2).sum())
            ceiling = ridge_convention_ceiling(*K, squared_norm=norm)
            ceiling = rir_ceiling(*K).value if convention == "compact" else ceiling
            assert row["rir_ceiling"] == pytest.approx(ceiling, rel=1e-12)
            assert row["rir_share"] == pytest.approx(row["rir"] / ceiling)
            assert row["rir"] <= ceiling * (1 + 1e-9)


def test_curves(finished, problem):
    curves = extractor_curves(problem, finished.cells, probe_steps=50)
    assert list(curves.columns) == ["method", "seed", "task", "quantity", "x", "value"]
    both = {"norm_ratio", "excess_loss", "spectrum", "kappa"}
    for task, own in (("pretrain", {"r_well", "loss"}), ("harmful", {"r_ill"})):
        found = curves[curves["task"] == task].groupby(["method", "seed"])["quantity"].unique()
        assert len(found) == len(finished.cells)
        assert all(set(quantities) == both | own for quantities in found)
    found = next(c.arrays for c in finished.cells if (c.row["method"], c.row["seed"]) == ("ours", 1))
    theta = found["theta"]
    mine = curves[(curves["method"] == "ours") & (curves["seed"] == 1)].set_index(["task", "quantity"])
    for name, task in (("pretrain", problem.pretrain), ("harmful", problem.harmful)):
        expected = linear_probe(theta, task.covariance, task.features.mT @ task.targets, steps=50)
        for quantity in ("norm_ratio", "excess_loss"):
            got = mine.loc[name, quantity]
            np.testing.assert_array_equal(got["x"], np.arange(51))
            np.testing.assert_allclose(got["value"], getattr(expected, quantity), rtol=1e-9)
    theta = theta * np.sqrt(len(theta)) / np.linalg.norm(theta)  # at unit scale
    sigma = np.linalg.eigvalsh(theta.T @ problem.harmful.covariance.numpy() @ theta)[::-1][:8]
    # Forming H keeps eps·σ₁; σ_k/σ₁ is above 1e-6 here.
    np.testing.assert_allclose(mine.loc["harmful", "spectrum"]["value"], sigma, rtol=1e-8)
    got = mine.loc["harmful", "kappa"]
    np.testing.assert_array_equal(got["value"], found["history.kappa_harmful"])
    np.testing.assert_array_equal(got["x"], found["history.step"])


def test_a_cell_is_the_run_that_it_stands_for(finished):
    _, _, arrays = next(c for c in finished.cells if (c.row["method"], c.row["seed"]) == ("ours", 1))
    result = immunize(SHORT.problem(finished.data), "ours", seed=1, settings=SHORT.settings("ours"))
    np.testing.assert_allclose(arrays["theta"], result.theta, rtol=1e-9, atol=1e-12)


@pytest.mark.realdata
def test_real_house_prices(real_data):
    study = HousePrices(methods=("ours", "identity", "max_rir"), seeds=1, epochs=30, device="cpu")
    finished = study.run(jobs=1)
    assert finished.data.name == "house-prices"
    results = finished.tables["results"]
    assert (results["rir_share"].isna() == np.isinf(results["rir_ceiling"])).all()  # no share of infinity
    compact = results[results["convention"] == "compact"].set_index("method")
    # rank 74 and 76 of 79, and the harmful task has directions of its own.
    assert (compact["rank_pretrain"] == 74).all()
    assert (compact["rank_harmful"] == 76).all()
    assert np.isinf(compact["rir_ceiling"]).all()
    published = finished.tables["summary"].set_index("method")["published_rir"]
    assert published.loc["ours"].iloc[0] == pytest.approx(TABLE_1["ours"].rir)


@pytest.fixture(scope="module")
def pair():
    rng = np.random.default_rng(0)
    X_P, X_H = rng.normal(size=(50, 4)), rng.normal(size=(40, 4)) * [3, 1, 1, 0.2]
    return TaskPair.from_arrays(X_P, X_P[:, 0], X_H, X_H @ [1, 2, 3, 4], name="toy")


def test_arrays_become_a_pair_with_a_checksum_of_their_values(pair):
    again = TaskPair.from_arrays(pair.X_P, pair.y_P, pair.X_H, pair.y_H)
    other = TaskPair.from_arrays(pair.X_P + 1e-12, pair.y_P, pair.X_H, pair.y_H)
    assert again.checksum == pair.checksum != other.checksum
    with pytest.raises(CondnumError, match=r"X_P must be \(N, D\)"):
        TaskPair.from_arrays([1.0, 2.0], [1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
