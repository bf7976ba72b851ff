"""The house-price experiment as a library call: configuration, plans, a short run."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from condnum.data import load_diabetes_tasks
from condnum.errors import CondnumError, DataNotFoundError, InvalidInputError, RankError, UnknownNameError
from condnum.methods import get_method, immunize, method_names
from condnum.studies import house_prices
from condnum.studies import pair_study as house_cell
from condnum.studies.house_prices import SETTINGS, HousePricesConfig, load, plans, run
from condnum.studies.measure import current_rir
from condnum.studies.store import cells_folder
from condnum.studies.sweep import SweepError

SHORT = HousePricesConfig("embedded", seeds=2, epochs=4, device="cpu")


@pytest.fixture(scope="module")
def finished():
    return run(SHORT, jobs=1)


class TestConfig:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"methods": ("our",)}, UnknownNameError, "unknown method 'our'; did you mean 'ours'"),
            ({"features": "clear"}, UnknownNameError, "unknown feature set 'clear'; did you mean 'clean'"),
            ({"seeds": 0}, InvalidInputError, "seeds must be an integer of at least 1, got 0"),
            ({"seeds": None}, InvalidInputError, "seeds must be an integer of at least 1, got None"),
            ({"seeds": 2.0}, InvalidInputError, "seeds must be an integer"),
            ({"epochs": 0}, InvalidInputError, "epochs must be an integer of at least 1, got 0"),
            ({"epochs": True}, InvalidInputError, "epochs must be an integer"),
            ({"rows": 1}, InvalidInputError, "rows must be an integer of at least 2, got 1"),
            ({"device": "gpu"}, InvalidInputError, "unknown device 'gpu'"),
            ({"device": "cuda:99"}, CondnumError, "cuda:99"),
        ],
        ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else None,
    )
    def test_refused(self, values, error, message):
        with pytest.raises(error, match=message):
            HousePricesConfig(**values)

    def test_all_methods_by_default_in_display_order(self):
        assert HousePricesConfig().chosen_methods == tuple(method_names())
        assert HousePricesConfig(methods=("imma", "ours")).chosen_methods == ("ours", "imma")

    def test_settings_of_this_experiment(self):
        config = HousePricesConfig()
        assert config.settings("ours") == SETTINGS["ours"]
        assert config.settings("identity") is None
        assert HousePricesConfig(epochs=7).settings("imma") == SETTINGS["imma"].with_overrides(steps=7)
        assert HousePricesConfig(epochs=7).settings("optimal") is None
        for name, settings in SETTINGS.items():
            assert isinstance(settings, type(get_method(name).defaults))

    def test_on_another_table_ours_tunes_itself_and_is_immunized(self):
        config = HousePricesConfig("embedded", ("ours",), seeds=3)
        assert config.settings("ours").auto
        cells = run(config).results
        assert cells.loc[cells["convention"] == "compact", "success"].all()  # by fixed settings: in no seed
        assert HousePricesConfig("embedded").settings("imma") == SETTINGS["imma"]

    def test_from_parameters(self):
        values = {"data": "embedded", "methods": "", "seeds": 1, "epochs": 0, "features": "clean", "rows": 0}
        config = HousePricesConfig.from_parameters(**values, device="cpu")
        assert config == HousePricesConfig("embedded", (), 1, None, "clean", None, "cpu")
        with pytest.raises(UnknownNameError, match="unknown method 'xyz'"):
            HousePricesConfig.from_parameters(**values | {"methods": "ours,xyz"}, device="cpu")

    def test_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            SHORT.seeds = 3

    def test_cells_folder(self, tmp_path):
        assert cells_folder("") is None
        assert cells_folder(str(tmp_path)) == tmp_path / "cells"


class TestLoad:
    def test_embedded(self):
        assert load(SHORT).name == "diabetes"
        assert load(SHORT).dimension == 9
        assert load(dataclasses.replace(SHORT, features="clean")).dimension == 8

    def test_rows(self):
        pair = load(dataclasses.replace(SHORT, rows=20))
        assert (pair.rows_pretrain, pair.rows_harmful) == (20, 20)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(DataNotFoundError):
            load(HousePricesConfig(str(tmp_path / "none")))


class TestPlans:
    def test_seed_by_seed(self):
        planned = plans(dataclasses.replace(SHORT, methods=("ours", "identity")), load_diabetes_tasks())
        assert [(p.payload["method"], p.payload["seed"]) for p in planned] == [
            ("ours", 0),
            ("identity", 0),
            ("ours", 1),
            ("identity", 1),
        ]
        assert planned[0].settings["steps"] == 4
        assert planned[1].settings == {}

    def test_keys_do_not_know_where_the_data_lie(self):
        pair = load_diabetes_tasks()
        moved = dataclasses.replace(pair, provenance=dataclasses.replace(pair.provenance, location="/else"))
        assert plans(SHORT, pair) == plans(SHORT, moved)

    def test_keys_know_the_settings(self):
        pair = load_diabetes_tasks()
        short, longer = (plans(dataclasses.replace(SHORT, epochs=n), pair) for n in (4, 5))
        same = [a.payload["method"] for a, b in zip(short, longer, strict=True) if a == b]
        assert set(same) == {"identity", "initial", "optimal", "front"}

    def test_keys_know_the_data(self):
        keys = set()
        for features in ("clean", "published"):
            for rows in (None, 30):
                config = dataclasses.replace(SHORT, features=features, rows=rows)
                keys.add(plans(config, load(config))[0].key)
        assert len(keys) == 4


class TestRun:
    def test_tables(self, finished):
        assert len(finished.extractors) == 2 * len(method_names())
        assert len(finished.results) == 3 * len(finished.extractors)
        assert not finished.results.isna().any().any()
        assert len(finished.summary) == 3 * len(method_names())
        # Table 1 is about other data.
        assert finished.summary.filter(like="published").isna().all().all()
        assert set(finished.curves["method"]) == set(method_names())
        assert (finished.ceiling_sweep["method"] == "ceiling").sum() == 25

    def test_settings_and_provenance(self, finished):
        table = finished.settings_table
        assert table["method"].tolist() == [get_method(name).label for name in method_names()]
        assert table["settings"].str.contains("4 steps|at most 4").sum() == 4
        facts = finished.provenance_table.set_index("what")["value"]
        assert finished.pair.checksum in facts["SHA-256"]
        assert facts["rows"] == "235 (D_P), 207 (D_H)"
        assert facts["seeds"] == "0, 1"

    def test_two_workers_change_nothing(self, finished):
        again = run(SHORT, jobs=2)
        timeless = [name for name in finished.results.columns if name != "seconds"]
        pd.testing.assert_frame_equal(finished.results[timeless], again.results[timeless], rtol=1e-9)
        for first, second in zip(finished.extractors, again.extractors, strict=True):
            # One thread each in both cases; BLAS may still order its sums differently.
            np.testing.assert_allclose(first.theta, second.theta, rtol=1e-9, atol=1e-12)

    def test_an_extractor_is_the_run_it_stands_for(self, finished):
        made = next(x for x in finished.extractors if (x.method, x.seed) == ("ours", 1))
        result = immunize(finished.problem, "ours", seed=1, settings=SHORT.settings("ours"))
        np.testing.assert_allclose(made.theta, result.theta, rtol=1e-9, atol=1e-12)
        assert made.history["step"].tolist() == result.history["step"].tolist()

    @pytest.mark.parametrize("epochs", [4, 20_000], ids=["short", "long"])
    def test_workers_are_started_if_that_pays(self, epochs, monkeypatch):
        asked = []

        def refuse(jobs, **options):
            asked.append(jobs)
            raise InvalidInputError("enough seen")

        monkeypatch.setattr(house_prices, "choose_executor", refuse)
        monkeypatch.setattr(house_prices, "core_count", lambda: 7)
        with pytest.raises(InvalidInputError, match="enough seen"):
            run(dataclasses.replace(SHORT, epochs=epochs))
        assert asked == [1 if epochs == 4 else 7]

    def test_a_run_resumes_from_its_store(self, tmp_path):
        config = dataclasses.replace(SHORT, methods=("ours", "optimal"), seeds=1)
        told = []
        run(config, folder=tmp_path, jobs=1, on_progress=told.append)
        assert [(p.done, p.total) for p in told] == [(0, 2), (1, 2), (2, 2)]
        assert told[1].plan.payload["method"] == "optimal"  # closed forms first
        assert told[2].best.plan.payload["method"] in ("ours", "optimal")
        told.clear()
        more = run(dataclasses.replace(config, seeds=2), folder=tmp_path, jobs=1, on_progress=told.append)
        assert [(p.done, p.total) for p in told] == [(2, 4), (3, 4), (4, 4)]
        assert [(x.method, x.seed) for x in more.extractors] == [
            ("ours", 0),
            ("optimal", 0),
            ("ours", 1),
            ("optimal", 1),
        ]
        facts = more.provenance_table.set_index("what")["value"]
        assert facts["cells"] == "2 computed, 2 from the store, 0 failed"
        assert facts["peak memory"].endswith("MiB (peak resident memory of the process)")

    def test_progress_shows_the_rir_of_the_tables(self, finished):
        results = finished.results
        chosen = results[(results["convention"] == "ridge") & (results["gauge"] == "unit")]
        rir = [current_rir(finished.problem, extractor) for extractor in finished.extractors]
        np.testing.assert_allclose(rir, chosen["rir"], rtol=1e-12)

    def test_a_cell_that_fails_is_listed_and_the_others_go_on(self, monkeypatch, tmp_path):
        def singular(problem, method, **options):
            if method == "imma":
                raise RankError("rank 0")
            return immunize(problem, method, **options)

        monkeypatch.setattr(house_cell, "immunize", singular)
        config = dataclasses.replace(SHORT, methods=("ours", "imma"), seeds=1)
        partly = run(config, jobs=1)
        assert partly.failures["error"].tolist() == ["RankError: rank 0"]
        assert "method=imma, seed=0" in partly.failures["cell"].item()
        assert set(partly.results["method"]) == {"ours"}
        assert partly.save(tmp_path)[-1] == "failures.csv"
        with pytest.raises(SweepError, match=r"no cell succeeded: 1 failed, .*RankError: rank 0"):
            run(dataclasses.replace(config, methods=("imma",)), jobs=1)

    def test_steps_are_reported(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CONDNUM_PROGRESS", str(tmp_path / "events"))
        run(dataclasses.replace(SHORT, methods=("ours",), seeds=1), jobs=1)
        events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
        assert {"stage": "ours", "seed": 0, "step": 0, "steps": 4} in events
        assert events[-1]["done"] == 1
        assert events[-1]["best_cell"] == "ours, seed 0"

    def test_save(self, finished, tmp_path):
        names = finished.save(tmp_path / "out")
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
        results = pd.read_csv(tmp_path / "out" / "results.csv")
        np.testing.assert_allclose(results["rir"], finished.results["rir"], rtol=1e-12)
        assert len(pd.read_parquet(tmp_path / "out" / "curves.parquet")) == len(finished.curves)


@pytest.mark.realdata
def test_real_house_prices(real_data):
    config = HousePricesConfig(methods=("ours", "identity", "optimal"), seeds=1, epochs=30, device="cpu")
    finished = run(config, jobs=1)
    assert finished.pair.name == "house-prices"
    assert finished.problem.dimension == 79
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
    assert published.loc["ours"].iloc[0] == pytest.approx(356.2)
