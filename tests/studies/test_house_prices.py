"""The house-price study and the same on tasks of one's own: settings, cells, a short run, failures."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from condnum.data import TaskPair, load_diabetes_tasks
from condnum.errors import CondnumError, InvalidInputError, RankError, UnknownNameError
from condnum.methods import DescentSettings, get_method, immunize, method_names
from condnum.studies import house_prices
from condnum.studies.cells import CellResult
from condnum.studies.house_prices import SETTINGS, HousePrices
from condnum.studies.measure import TABLE_1, compare_methods

SHORT = HousePrices("embedded", seeds=2, epochs=4, device="cpu")


@pytest.fixture(scope="module")
def finished():
    return SHORT.run(jobs=1)


class TestStudy:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"methods": ("our",)}, UnknownNameError, "unknown method 'our'; did you mean 'ours'"),
            ({"features": "clear"}, UnknownNameError, "unknown features 'clear'; did you mean 'clean'"),
            ({"rows": 1}, InvalidInputError, "rows must be an integer of at least 2, got 1"),
            ({"device": "gpu"}, InvalidInputError, "unknown device 'gpu'"),
            ({"device": "cuda:99"}, CondnumError, "cuda:99"),
        ],
        ids=str,
    )
    def test_refused(self, values, error, message):
        with pytest.raises(error, match=message):
            HousePrices(**values)

    def test_methods_and_settings(self):
        assert HousePrices().chosen_methods == tuple(method_names())
        assert HousePrices(methods=("imma", "ours")).chosen_methods == ("ours", "imma")
        assert HousePrices().settings("ours") == SETTINGS["ours"]
        assert HousePrices().settings("identity") is None
        assert HousePrices(epochs=7).settings("imma") == SETTINGS["imma"].with_overrides(steps=7)
        assert HousePrices("embedded").settings("imma") == SETTINGS["imma"]
        for name, settings in SETTINGS.items():
            assert isinstance(settings, type(get_method(name).defaults))

    def test_on_another_table_ours_tunes_itself_and_is_immunized(self):
        study = HousePrices("embedded", ("ours",), seeds=3)
        assert study.settings("ours").auto
        cells = study.run().results
        assert cells.loc[cells["convention"] == "compact", "success"].all()  # by fixed settings: in no seed

    def test_data(self, tmp_path):
        assert (SHORT.load().name, SHORT.load().dimension) == ("diabetes", 9)
        assert dataclasses.replace(SHORT, features="clean").load().dimension == 8
        assert dataclasses.replace(SHORT, rows=20).load().rows_harmful == 20

    def test_keys(self):
        pair = load_diabetes_tasks()
        moved = dataclasses.replace(pair, provenance=dataclasses.replace(pair.provenance, location="/else"))
        assert SHORT.planned(pair) == SHORT.planned(moved)
        longer = dataclasses.replace(SHORT, epochs=5).planned(pair)
        same = {a["method"] for a, b in zip(SHORT.planned(pair), longer, strict=True) if a == b}
        assert same == {"identity", "initial", "optimal", "front"}
        options = [
            {"features": features, "rows": rows} for features in ("clean", "published") for rows in (None, 30)
        ]
        studies = [dataclasses.replace(SHORT, **chosen) for chosen in options]
        assert len({study.planned(study.load())[0].key for study in studies}) == 4


class TestRun:
    def test_tables(self, finished):
        assert len(finished.cells) == 2 * len(method_names())
        assert len(finished.results) == 3 * len(finished.cells)
        assert not finished.results.isna().any().any()
        assert len(finished.summary) == 3 * len(method_names())
        # Table 1 is about other data.
        assert finished.summary.filter(like="published").isna().all().all()
        assert set(finished.curves["method"]) == set(method_names())
        measured = SHORT.measured(finished.data, finished.cells)
        assert (measured.ceiling_sweep["method"] == "ceiling").sum() == 25
        table = SHORT.settings_table
        assert table["method"].tolist() == [get_method(name).label for name in method_names()]
        assert table["settings"].str.contains("4 steps|at most 4").sum() == 4
        facts = finished.provenance_table.set_index("what")["value"]
        assert finished.data.checksum in facts["SHA-256"]
        assert (facts["rows"], facts["seeds"]) == ("235 (D_P), 207 (D_H)", "0, 1")

    def test_two_workers_change_nothing(self, finished):
        again = SHORT.run(jobs=2)
        timeless = [name for name in finished.results.columns if name != "seconds"]
        # One thread each in both cases; BLAS may still order its sums differently.
        pd.testing.assert_frame_equal(finished.results[timeless], again.results[timeless], rtol=1e-9)

    def test_a_cell_is_the_run_that_it_stands_for(self, finished):
        cell, row, arrays = next(c for c in finished.cells if (c.row["method"], c.row["seed"]) == ("ours", 1))
        result = immunize(SHORT.problem(finished.data), "ours", seed=1, settings=SHORT.settings("ours"))
        np.testing.assert_allclose(arrays["theta"], result.theta, rtol=1e-9, atol=1e-12)
        assert arrays["history.step"].tolist() == result.history["step"].tolist()
        assert (row["steps"], row["stop_reason"]) == (4, "steps")
        assert cell["features"] == "published"

    @pytest.mark.parametrize(("epochs", "jobs"), [(4, 1), (20_000, 7)], ids=["short", "long"])
    def test_workers_are_started_if_that_pays(self, epochs, jobs, monkeypatch):
        monkeypatch.setattr(house_prices, "core_count", lambda: 7)
        study = dataclasses.replace(SHORT, epochs=epochs)
        cells = study.planned(study.load())
        assert getattr(study.executor(None, cells, 0), "jobs", 1) == jobs
        steps = [cell.settings.get("steps", 0) for cell in sorted(cells, key=study.order)]
        assert steps[0] == 0
        assert steps[-1] == min(filter(None, steps))  # closed forms, then long cells before short ones

    def test_progress_shows_the_rir_of_the_tables(self, finished, tmp_path, monkeypatch):
        rows = finished.results.query("convention == 'ridge' and gauge == 'unit'")
        rir = [SHORT.score(finished.data, CellResult(*cell[1:])) for cell in finished.cells]
        np.testing.assert_allclose(rir, rows["rir"], rtol=1e-12)
        monkeypatch.setenv("CONDNUM_PROGRESS", str(tmp_path / "events"))
        dataclasses.replace(SHORT, methods=("ours",), seeds=1).run(jobs=1)
        events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
        assert {"stage": "ours", "seed": 0, "step": 0, "steps": 4} in events
        assert events[-1]["best_cell"] == "ours, seed 0"

    def test_a_cell_that_fails_is_listed_and_the_others_go_on(self, monkeypatch, tmp_path):
        def singular(problem, method, **options):
            if method == "imma":
                raise RankError("rank 0")
            return immunize(problem, method, **options)

        monkeypatch.setattr(house_prices, "immunize", singular)
        partly = dataclasses.replace(SHORT, methods=("ours", "imma"), seeds=1).run(jobs=1)
        assert partly.failures["error"].tolist() == ["RankError: rank 0"]
        assert "method=imma, seed=0" in partly.failures["cell"].item()
        assert set(partly.results["method"]) == {"ours"}
        assert partly.save(tmp_path) == ["results.csv", "summary.csv", "curves.parquet", "failures.csv"]
        again = pd.read_csv(tmp_path / "results.csv")
        np.testing.assert_allclose(again["rir"], partly.results["rir"], rtol=1e-12)


@pytest.mark.realdata
def test_real_house_prices(real_data):
    study = HousePrices(methods=("ours", "identity", "optimal"), seeds=1, epochs=30, device="cpu")
    finished = study.run(jobs=1)
    assert finished.data.name == "house-prices"
    results = finished.results
    assert not results.drop(columns="rir_share").isna().any().any()
    assert (results["rir_share"].isna() == np.isinf(results["rir_ceiling"])).all()  # no share of infinity
    assert (results["rir"] <= results["rir_ceiling"] * (1 + 1e-6)).all()
    compact = results[results["convention"] == "compact"].set_index("method")
    # rank 74 and 76 of 79, and the harmful task has directions of its own.
    assert (compact["rank_pretrain"] == 74).all()
    assert (compact["rank_harmful"] == 76).all()
    assert np.isinf(compact["rir_ceiling"]).all()
    assert compact.loc["identity", "rir"] == pytest.approx(1, rel=1e-9)
    assert bool(compact.loc["optimal", "success"])
    published = finished.summary.set_index("method")["published_rir"]
    assert published.loc["ours"].iloc[0] == pytest.approx(TABLE_1["ours"].rir)


class TestOwnTasks:
    @pytest.fixture(scope="class")
    def pair(self) -> TaskPair:
        rng = np.random.default_rng(0)
        X_P, X_H = rng.normal(size=(50, 4)), rng.normal(size=(40, 4)) * [3, 1, 1, 0.2]
        return TaskPair.from_arrays(X_P, X_P[:, 0], X_H, X_H @ [1, 2, 3, 4], name="toy")

    def test_arrays_become_a_pair_with_a_checksum_of_their_values(self, pair):
        again = TaskPair.from_arrays(pair.X_P, pair.y_P, pair.X_H, pair.y_H)
        other = TaskPair.from_arrays(pair.X_P + 1e-12, pair.y_P, pair.X_H, pair.y_H)
        assert again.checksum == pair.checksum != other.checksum
        assert pair.title().startswith("toy, given arrays: 50 rows D_P, 40 rows D_H, D = 4")
        for X_P, text in (
            ([1.0, 2.0], r"X_P must be \(N, D\)"),
            ([[np.nan, 1.0], [1.0, 0.0]], "non-finite"),
            ("abc", "real numbers"),
        ):
            with pytest.raises(CondnumError, match=text):
                TaskPair.from_arrays(X_P, [1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])

    def test_methods_seeds_and_tables(self, pair, tmp_path):
        settings = {"ours": DescentSettings(steps=20, learning_rate=0.05)}
        study = compare_methods(pair, ["ours", "identity", "optimal"], seeds=2, settings=settings)
        assert study.explanations == []
        assert [(e.method, e.seed, e.steps) for e in study.extractors] == [
            ("ours", 0, 20), ("ours", 1, 20), ("identity", 0, 0), ("optimal", 0, 0),
        ]  # fmt: skip
        optimal = study.results.query("method == 'optimal' and convention == 'compact'")
        assert optimal["rir_share"].item() == pytest.approx(1, rel=1e-9)  # θ* attains the ceiling
        assert study.summary["published_rir"].isna().all()
        assert study.save(tmp_path) == ["results.csv", "summary.csv", "curves.parquet"]

    def test_the_same_numbers_as_the_study(self, finished):
        settings = {"ours": SHORT.settings("ours")}
        again = compare_methods(finished.data, ["ours"], seeds=2, settings=settings)
        columns = ["harmful_ratio", "pretrain_ratio", "rir"]
        ours = finished.results.query("method == 'ours'")
        np.testing.assert_allclose(again.results[columns], ours[columns], rtol=1e-9)

    def test_nothing_to_compare(self, pair):
        for methods, seeds, message in (
            (["ours"], 0, "at least one seed"),
            ([], 1, "one method"),
            (["our"], 1, "did you mean 'ours'"),
        ):
            with pytest.raises(CondnumError, match=message):
                compare_methods(pair, methods, seeds=seeds)

    def test_ours_tunes_itself_and_says_what_came_of_it(self, pair):
        study = compare_methods(pair, ["ours", "front"], seeds=1)
        assert len(study.explanations) == 1
        assert study.explanations[0].startswith("ours, seed 0: Definition 3.1 is ")
        assert study.results.query("convention == 'compact'")["success"].all()
