"""The linear studies on the embedded data: settings, keys, what is measured."""

import dataclasses

import cloudpickle
import numpy as np
import pytest
import torch
from condnum.studies.house_prices import HousePrices, extractor_curves
from condnum.studies.measure import MEASURES

from condnum.data import load_diabetes_tasks
from condnum.methods import METHODS, get_method
from condnum.probing import linear_probe
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.limits import ridge_convention_limit, rir_limit

#: κ of the diabetes tasks is 500, before and after so few steps: eps·κ·D, with a margin of 1,000.
CLOSE = 1e-9
SHORT = HousePrices("embedded", seeds=2, steps=4, device="cpu")


@pytest.fixture(scope="module")
def finished():
    return SHORT.run(jobs=1)


@pytest.fixture(scope="module")
def problem(finished):
    return SHORT.problem(finished.data, finished.cells[0].cell)


class Half:
    """θ = I/2, any object with a name and a start."""

    name, seeded = "half-identity", False

    def initial(self, problem, generator):
        return {"theta": torch.eye(problem.dimension).double() / 2}


def test_a_method_of_ones_own_goes_to_the_workers():
    try:
        study = dataclasses.replace(SHORT, methods=(Half(), get_method("ours"), "algorithm1"), seeds=1)
        assert study.methods == ("ours", "half-identity")
        sent = cloudpickle.dumps(study)
        del METHODS["half-identity"]  # as in a process that has not seen it
        study = cloudpickle.loads(sent)
        results = study.run(jobs=1).tables["results"].set_index("method")
        assert results.loc["half-identity", "rir"].to_list() == pytest.approx([1] * len(MEASURES))
    finally:
        METHODS.pop("half-identity", None)


def test_keys():
    pair = load_diabetes_tasks()
    moved = dataclasses.replace(pair, provenance=dataclasses.replace(pair.provenance, location="/else"))
    assert SHORT.planned(pair) == SHORT.planned(moved)
    longer = dataclasses.replace(SHORT, steps=5).planned(pair)
    same = {a["method"] for a, b in zip(SHORT.planned(pair), longer, strict=True) if a == b}
    assert same == {"identity", "initial", "max_rir", "pareto", "erase"}
    options = [{"features": of, "rows": rows} for of in ("clean", "published") for rows in (None, 30)]
    studies = [dataclasses.replace(SHORT, **chosen) for chosen in options]
    assert len({study.planned(study.load())[0].key for study in studies}) == 4


def test_a_row_is_the_measure_of_its_cell(finished, problem):
    results = finished.tables["results"]
    K = problem.benign, problem.harmful
    for convention, theta_scale in MEASURES:
        chosen = results[(results["convention"] == convention) & (results["theta_scale"] == theta_scale)]
        for (_, row), cell in zip(chosen.iterrows(), finished.cells, strict=True):
            theta = torch.from_numpy(cell.arrays["theta"])
            features = theta[:, theta.any(dim=0)]  # columns of zeros are none
            expected = relative_immunization_ratio(
                features, *K, convention=convention, theta_scale=theta_scale
            )
            assert row["rir"] == pytest.approx(expected.rir, rel=CLOSE)
            assert bool(row["success"]) is expected.success
            kappa = np.inf if cell.cell["method"] == "erase" else np.linalg.cond(theta)
            assert row["theta_condition"] == pytest.approx(kappa, rel=1e-9)
            norm = None if theta_scale == "unit" else float((theta**2).sum())
            limit = ridge_convention_limit(*K, squared_norm=norm)
            limit = rir_limit(*K).value if convention == "compact" else limit
            assert row["rir_limit"] == pytest.approx(limit, rel=CLOSE)
            assert row["rir_share"] == pytest.approx(row["rir"] / limit)
            assert row["rir"] <= limit * (1 + 1e-9)


def test_curves(finished, problem):
    curves = extractor_curves(problem, finished.cells, probe_steps=50)
    both = {"norm_ratio", "excess_loss", "spectrum", "kappa"}
    for task, own in (("benign", {"r_well", "loss"}), ("harmful", {"r_ill"})):
        found = curves[curves["task"] == task].groupby(["method", "seed"])["quantity"].unique()
        assert len(found) == len(finished.cells)
        assert all(set(quantities) == both | own for quantities in found)
    found = next(c.arrays for c in finished.cells if (c.row["method"], c.row["seed"]) == ("ours", 1))
    theta = found["theta"]
    mine = curves[(curves["method"] == "ours") & (curves["seed"] == 1)].set_index(["task", "quantity"])
    for name, task in (("benign", problem.benign), ("harmful", problem.harmful)):
        expected = linear_probe(theta, task, steps=50)
        for quantity in ("norm_ratio", "excess_loss"):
            got = mine.loc[name, quantity]
            np.testing.assert_array_equal(got["x"], np.arange(51))
            np.testing.assert_allclose(got["value"], getattr(expected, quantity), rtol=1e-9)
    theta = theta * np.sqrt(len(theta)) / np.linalg.norm(theta)  # at unit scale
    sigma = np.linalg.eigvalsh(theta.T @ problem.harmful.covariance.numpy() @ theta)[::-1][:8]
    # Forming H keeps eps·σ₁; σ_k/σ₁ is above 1e-6 here.
    np.testing.assert_allclose(mine.loc["harmful", "spectrum"]["value"], sigma, rtol=1e-8)
    np.testing.assert_array_equal(mine.loc["harmful", "kappa"]["value"], found["history.kappa_harmful"])
