"""The notebook of the authors' release: both ends of the way, at small size."""

from pathlib import Path

import pandas as pd
import pytest

from condnum import ImmunizationProblem, immunize, load_house_prices, relative_immunization_ratio
from condnum.page.notebook import ParameterNotebook
from condnum.page.run import run_notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks/experiments/release.ipynb"


@pytest.mark.slow
def test_it_starts_at_the_release_and_ends_at_algorithm_1(tmp_path, on_shared_kernel):
    report = run_notebook(ParameterNotebook.find(NOTEBOOK), {"full": False, "out": str(tmp_path)}, tmp_path)
    assert "From 10 epochs of the release, RIR 1.926," in report.read_text("utf-8")
    table = pd.read_csv(tmp_path / "results.csv").set_index("setting")
    assert len(table) == 11
    assert 1.7 < table.loc["released", "floor"] < 2.2  # what the release's own loop gives
    problem = ImmunizationProblem.from_pair(load_house_prices(features="published"))
    ours = immunize(problem, "ours", settings="house-prices", steps=60)
    for name, convention in (("floor", "ridge"), ("compact", "compact")):
        K = problem.benign.covariance, problem.harmful.covariance
        measured = relative_immunization_ratio(
            ours.theta, *K, convention=convention, theta_scale="as_trained"
        )
        assert table.loc["updates", name] == pytest.approx(measured.rir, rel=1e-4)
