"""The reproduction audit as a whole: its stages, its store, its tables."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from condnum.errors import InvalidInputError
from condnum.studies.cells import CellResult
from condnum.studies.release import (
    OTHER_RIDGES,
    RESULT_COLUMNS,
    ReproductionAudit,
    landing_table,
    results_table,
    waterfall_table,
)
from condnum.studies.release_cells import ProtocolSwitches

DIGITS = ReproductionAudit("digits:4-7", seeds=2, epochs=(1,), ends=(2,))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return DIGITS.run(out=tmp_path_factory.mktemp("audit"), jobs=1)


def hand_made(rirs):
    """Results with given RIRs: {(path, index): one a seed}, κ's of 1 but for the harmful task."""
    rows = []
    for (path, index), values in rirs.items():
        for seed, value in enumerate(values):
            stage = {"dataset": "t", "path": path, "start_epochs": 10, "index": index, "seed": seed}
            facts = {"switch": "released" if index == 0 else "rows", "convention": "ridge", "rir": value}
            rows.append(stage | facts | {"success": value > 3, "updates": 40})
    return pd.DataFrame(rows)


def test_paths_go_from_one_protocol_to_the_other():
    for text in ("house-prices", "embedded", "mnist:4-7", "digits:4-7"):
        config = ReproductionAudit(text, epochs=(10,))
        stages = list(config.stages())
        path = [stage for stage in stages if stage.path == "cumulative"]
        assert path[0].switches.turned() == tuple(
            name for name in config.released(10).as_payload() if name not in config.tasks.switches
        )
        assert path[-1].switches == ProtocolSwitches.preset("corrected")
        assert [stage.switch for stage in path[1:]] == list(config.tasks.switches)
        for before, after in pairwise(path):
            assert after.switches == before.switches.turn(after.switch)
        for stage in stages:
            if stage.path == "alone":
                assert stage.switches == path[0].switches.turn(stage.switch)
        ridges = [stage.ridge for stage in stages if stage.path == "ridge" and stage.start == 10]
        assert ridges == list(OTHER_RIDGES)


def test_equal_settings_are_one_cell(digits):
    stages = list(DIGITS.stages())
    plans = [cell.key for cell in DIGITS.planned(digits.data)]
    assert len(plans) == 2 * len(stages)
    assert len(set(plans)) < len(plans)  # the first switch alone is the second row of the waterfall
    assert digits.report.computed == len(set(plans))
    assert len(digits.results) == 2 * len(plans)  # two conventions


def test_tables_and_files(digits, tmp_path):
    assert list(digits.results.columns) == RESULT_COLUMNS
    assert digits.results.notna().all().all()
    assert digits.save(tmp_path) == ["results.csv", "waterfall.csv", "landing.csv"]
    assert len(pd.read_csv(tmp_path / "waterfall.csv")) == len(digits.waterfall)
    assert digits.landing["epochs"].tolist() == [1, 2]
    assert digits.landing["reported_min"].isna().all()  # nothing is reported for these data
    assert "digit 4 (D_P) and 7 (D_H)" in DIGITS.title(digits.data)
    assert digits.failures.empty


def test_the_last_row_is_the_corrected_protocol_at_its_own_length(digits):
    end = digits.waterfall[(digits.waterfall["path"] == "cumulative")].sort_values("index").iloc[-1]
    assert end["switch"] == "epochs"
    assert end["updates"] == DIGITS.tasks.registered.steps
    others = digits.results[digits.results["switch"] != "epochs"]
    assert set(others.loc[others["path"] != "released", "updates"]) == {2}  # 178 rows in full batches of 64


def test_a_finished_study_is_not_computed_again(tmp_path):
    study = ReproductionAudit("digits:9-0", seeds=1, epochs=(1,))
    first, again = (study.run(out=tmp_path, jobs=1) for _ in range(2))
    assert again.report.computed == 0
    assert again.report.reused == first.report.computed > 0
    pd.testing.assert_frame_equal(first.results, again.results)


def test_changes_are_paired_by_seed_and_add_up():
    results = hand_made(
        {
            ("cumulative", 0): [1.0, 4.0],
            ("cumulative", 1): [10.0, 40.0],
            ("cumulative", 2): [10.0, 10.0],
            ("alone", 1): [100.0, 4.0],
        }
    )
    table = waterfall_table(results).set_index(["path", "index"])
    assert table.loc[("cumulative", 1), "change"] == pytest.approx(1)
    assert table.loc[("cumulative", 1), "change_std"] == pytest.approx(0)  # though RIR itself varies
    assert table.loc[("cumulative", 1), "rir"] == pytest.approx(20)
    assert table.loc[("cumulative", 2), "factor"] == pytest.approx(0.5)
    assert table.loc[("alone", 1), "change"] == pytest.approx(1)  # against the release: 100 and 1
    assert np.isnan(table.loc[("cumulative", 0), "change"])
    path = table.loc["cumulative"]
    assert path["change"].sum() == pytest.approx(path["log10_rir"].iloc[-1] - path["log10_rir"].iloc[0])
    assert table["immunized"].tolist() == [1, 2, 2, 2]


def test_results_are_measured_from_spectra():
    stage = next(ReproductionAudit("embedded").stages())
    arrays = {
        "pretrain_before": np.array([4.0, 1.0]),
        "pretrain_after": np.array([2.0, 1.0]),
        "harmful_before": np.array([3.0, 1.0]),
        "harmful_after": np.array([60.0, 2.0]),
    }
    row = {"dimension": 3, "rows_pretrain": 5, "rows_harmful": 6, "updates": 1, "seconds": 0.1}
    cell = CellResult(row | {"stop_reason": "steps"}, arrays)
    table = results_table("t", [(stage, 7, cell)]).set_index("convention")
    assert table.loc["compact", "rir"] == pytest.approx((30 / 3) / (2 / 4))
    # Rank 2 of 3: at the floor only the largest values count.
    assert table.loc["ridge", "rir"] == pytest.approx((60 / 3) / (2 / 4), rel=1e-5)
    assert table.loc["compact", "seed"] == 7


def test_landing_holds_the_releases_end_against_the_report():
    results = hand_made({("cumulative", 0): [1.0, 2.0], ("cumulative", 1): [50.0, 60.0]})
    (row,) = landing_table(waterfall_table(results), results, {10: (1.8, 2.2)}).to_dict("records")
    assert (row["epochs"], row["inside"], row["seeds"]) == (10, 1, 2)
    assert row["miss"] == pytest.approx(1.5 / 1.8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"epochs": "10,ten"}, "epochs='10,ten' is no list"),
        ({"epochs": "10,0"}, "epochs must be an integer of at least 1, got 0"),
        ({"ends": "-1"}, "ends must be an integer of at least 1, got -1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_parameters(change, words):
    parameters = {"data": "embedded", "source": "auto", "seeds": 1, "epochs": "", "ends": ""}
    with pytest.raises(InvalidInputError, match=words):
        ReproductionAudit.from_parameters(**parameters | change)


def test_ends_of_house_prices_unless_told_otherwise():
    parameters = {"data": "house-prices", "source": "auto", "seeds": 1, "epochs": "5"}
    assert ReproductionAudit.from_parameters(**parameters, ends="").ends == (1000,)
    assert ReproductionAudit.from_parameters(**parameters, ends="0").ends == ()
    assert ReproductionAudit.from_parameters(**parameters, ends="").epochs == (5,)
