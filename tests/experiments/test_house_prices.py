"""The linear experiments on the embedded table: methods, what is measured, Figure 1, the published table."""

import json

import numpy as np
import pytest
import torch

from condnum.errors import CondnumError, DataNotFoundError, InvalidInputError
from condnum.experiments import frame, house_prices, linear
from condnum.methods import METHODS
from condnum.probing import linear_probe
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.limits import ridge_convention_limit, rir_limit

#: κ of the diabetes tasks is 500, before and after so few steps: eps·κ·D, with a margin of 1,000.
CLOSE = 1e-9
SHORT = {
    "data": "embedded", "methods": "", "seeds": 2, "steps": 4, "features": "published", "rows": 0,
    "device": "cpu", "full": True,
}  # fmt: skip


def run(**changes):
    return frame.run(house_prices, jobs=1, quiet=True, **SHORT | changes)


@pytest.fixture(scope="module")
def finished():
    return run()


@pytest.fixture(scope="module")
def problem(finished):
    return house_prices.tasks("embedded", "published", 0, "cpu")


class Half:
    """θ = I/2, any object with a name and a start."""

    name, seeded = "half-identity", False

    def initial(self, problem, generator):
        return {"theta": torch.eye(problem.dimension).double() / 2}


def test_a_row_is_the_measure_of_its_cell(finished, problem):
    K = problem.benign, problem.harmful
    for name, (convention, scale) in linear.CONVENTIONS.items():
        for (_, row), kept in zip(finished.rows.iterrows(), finished.arrays, strict=True):
            theta = torch.from_numpy(kept["theta"])
            features = theta[:, theta.any(dim=0)]  # columns of zeros are none
            expected = relative_immunization_ratio(features, *K, convention=convention, theta_scale=scale)
            assert row[f"{name}_rir"] == pytest.approx(expected.rir, rel=CLOSE)
            assert row[f"{name}_success"] is expected.success
            kappa = np.inf if row["method"] == "erase" else np.linalg.cond(theta)
            assert row["theta_condition"] == pytest.approx(kappa, rel=CLOSE)
            norm = None if scale == "unit" else float((theta**2).sum())
            limit = ridge_convention_limit(*K, squared_norm=norm)
            limit = rir_limit(*K).value if convention == "compact" else limit
            assert row[f"{name}_limit"] == pytest.approx(limit, rel=CLOSE)
            assert row[f"{name}_rir"] <= limit * (1 + CLOSE)


def test_the_figure_has_the_norm_ratios_of_both_probes_but_of_erasure(finished, problem):
    drawn = {}
    for trace in house_prices.figure(finished).data:
        if trace.fill is None:
            drawn[trace.name, trace.xaxis] = np.asarray(trace.x), np.asarray(trace.y)
    assert len(drawn) == 2 * (len(set(finished.rows["method"])) - 1)
    places = finished.rows.index[finished.rows["method"] == "max_rir"]
    for axis, task in (("x", problem.benign), ("x2", problem.harmful)):
        steps, values = drawn["Maximum RIR (K<sub>P</sub><sup>−1/2</sup>)", axis]
        expected = linear_probe(finished.arrays[places[0]]["theta"], task, steps=50).norm_ratio
        at = steps <= 50
        wanted = np.maximum(expected[steps[at].astype(int)], house_prices.FLOOR)
        np.testing.assert_allclose(np.log(values[at]), np.log(wanted), atol=0.1)  # of the mean over one seed


@pytest.mark.parametrize(
    "changes",
    [
        {"methods": "identity"},
        {"methods": "initial"},
        {"methods": "erase"},
        {"full": False, "methods": "ours,identity"},
    ],
    ids=str,
)
def test_each_part_works_with_one_method(changes):
    found = run(seeds=1, **changes)
    assert found.sentence.endswith(".")
    house_prices.figure(found)
    assert json.dumps(found._repr_mimebundle_())
    if not changes.get("full", True):
        assert set(found.rows["steps"]) == {0, linear.QUICK_STEPS}


def test_the_table_has_the_paper_beside_it_only_where_the_data_are_its():
    rows = run(methods="ours,identity").rows
    assert linear.table_of(rows, 1)["published_rir_mean"].iloc[0] == pytest.approx(356.2)
    table = linear.table_of(rows, 0).set_index("method")
    assert table["published_rir_mean"].isna().all()
    assert (table.loc["ours", "of"], table.loc["identity", "of"]) == (2, 1)
    assert table.loc["identity", ["rir_mean", "benign_steps", "harmful_steps"]].tolist() == pytest.approx(
        [1, 1, 1]
    )


def test_a_method_of_ones_own_is_an_object_or_a_file(tmp_path, monkeypatch):
    for name in ("half-identity", "one"):  # takes away what the experiment puts there
        monkeypatch.setitem(METHODS, name, None)
        monkeypatch.delitem(METHODS, name)
    found = run(methods=[Half(), "algorithm1"], seeds=1).rows.set_index("method")
    assert list(found.index) == ["half-identity", "ours"]
    for name in linear.CONVENTIONS:
        assert found.loc["half-identity", f"{name}_rir"] == pytest.approx(1)


ONE = 'class One:\n    name = "one"\n\n    def initial(self, problem, generator):\n        return {}\n'


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("mine", None, DataNotFoundError, "mine.py does not exist"),
        ("mine_0", "", InvalidInputError, "must define one method.* found 0"),
        ("mine_2", ONE.replace('"one"', '"pareto"'), InvalidInputError, "built-in method"),
        ("json", "", InvalidInputError, "another module is called json; rename"),
    ],
)
def test_files_that_are_refused(tmp_path, name, text, error, message):
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        linear.read_methods(f"ours,{tmp_path / name}.py", ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "nowhere"}, "got 'nowhere'"),
        ({"methods": "oors"}, "did you mean 'ours'"),
        ({"seeds": 0}, "seeds must be an integer ≥ 1"),
        ({"steps": -1}, "steps must be an integer ≥ 0"),
        ({"features": "all"}, "unknown features 'all'"),
        ({"device": "gpu"}, "gpu"),
        ({"rows": -1}, "rows must be"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_before_anything_is_computed(changes, message):
    with pytest.raises(CondnumError, match=message):
        house_prices.cells(**SHORT | changes)
