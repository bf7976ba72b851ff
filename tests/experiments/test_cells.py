"""Cells: saved whole, found again by what they depend on, recomputed when damaged."""

import json

import numpy as np
import pytest
import torch

from condnum.experiments import cells as module
from condnum.experiments.cells import Cell, CellPlan, run_cells
from condnum.methods import DescentSettings, ImmaSettings, immunize
from condnum.tasks import ImmunizationProblem

SETTINGS = DescentSettings(steps=4, learning_rate=0.01)


def plan(method="ours", seed=0, settings=SETTINGS, data_key="toy"):
    return CellPlan(method, seed, settings, data_key)


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    return ImmunizationProblem.from_data(*(rng.normal(size=shape) for shape in ((9, 3), 9, (8, 3), 8)))


@pytest.fixture
def computed(monkeypatch):
    """The (method, seed) of every call of `immunize`, in order."""
    calls = []

    def counting(problem, method, **options):
        calls.append((method, options["seed"]))
        return immunize(problem, method, **options)

    monkeypatch.setattr(module, "immunize", counting)
    return calls


def same(first, second):
    """Tell whether two cells hold the same numbers, whatever they took."""
    return (
        (first.method, first.seed, first.steps, first.stop_reason)
        == (second.method, second.seed, second.steps, second.stop_reason)
        and np.array_equal(first.theta, second.theta)
        and first.history.keys() == second.history.keys()
        and all(np.array_equal(first.history[k], second.history[k], equal_nan=True) for k in first.history)
    )


class TestKey:
    def test_same_plan_same_key(self):
        assert plan().key == plan(settings=DescentSettings(steps=4, learning_rate=0.01)).key
        assert plan().filename == f"ours-0-{plan().key}.npz"

    @pytest.mark.parametrize(
        "other",
        [
            plan(method="r_ill_only"),
            plan(seed=1),
            plan(settings=SETTINGS.with_overrides(steps=5)),
            plan(settings=SETTINGS.with_overrides(batch_size=3)),
            plan(settings=None),
            plan(settings=ImmaSettings(steps=4, learning_rate=0.01)),
            plan(data_key="other"),
        ],
        ids=["method", "seed", "steps", "batch", "closed-form", "settings-class", "data"],
    )
    def test_anything_that_matters_changes_it(self, other):
        assert other.key != plan().key

    def test_a_new_code_version_changes_it(self, monkeypatch):
        before = plan().key
        monkeypatch.setattr(module, "CODE_VERSION", module.CODE_VERSION + 1)
        assert plan().key != before


class TestFiles:
    def test_round_trip(self, problem, tmp_path):
        (cell,) = run_cells(problem, [plan()], None)
        cell.save(tmp_path / "cell.npz")
        loaded = Cell.load(tmp_path / "cell.npz")
        assert same(cell, loaded)
        assert loaded.seconds == pytest.approx(cell.seconds)
        assert [path.name for path in tmp_path.iterdir()] == ["cell.npz"]

    def test_missing(self, tmp_path):
        assert Cell.load(tmp_path / "none.npz") is None

    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"",
            lambda data: b"not a zip",
            lambda data: data[: len(data) // 2],
            lambda data: data[:-30],
            lambda data: data[:400] + bytes(b ^ 0xFF for b in data[400:440]) + data[440:],
        ],
        ids=["empty", "text", "half", "no-end", "flipped-bits"],
    )
    def test_damaged(self, damage, problem, tmp_path):
        (cell,) = run_cells(problem, [plan()], tmp_path)
        path = tmp_path / plan().filename
        path.write_bytes(damage(path.read_bytes()))
        assert Cell.load(path) is None
        assert same(run_cells(problem, [plan()], tmp_path)[0], cell)
        assert Cell.load(path) is not None

    @pytest.mark.parametrize(
        "arrays",
        [
            {"theta": np.eye(2)},
            {"theta": np.eye(2), "meta": np.array("{")},
            {"theta": np.eye(2), "meta": np.array('{"method": "ours"}')},
            {"theta": np.eye(2), "meta": np.array("[1]")},
            {"meta": np.array('{"method": "ours", "seed": 0, "steps": 1, "seconds": 0, "stop_reason": ""}')},
        ],
        ids=["no-meta", "bad-json", "lacks-fields", "not-a-record", "no-theta"],
    )
    def test_of_another_make(self, arrays, tmp_path):
        np.savez(tmp_path / "cell.npz", **arrays)
        assert Cell.load(tmp_path / "cell.npz") is None

    def test_pickles_are_refused(self, tmp_path):
        np.savez(tmp_path / "cell.npz", theta=np.array([{}], dtype=object), meta=np.array("{}"))
        assert Cell.load(tmp_path / "cell.npz") is None


class TestRun:
    def test_finished_cells_are_not_computed_again(self, problem, computed, tmp_path):
        plans = [plan(seed=seed) for seed in (0, 1)] + [plan("identity", settings=None)]
        first = run_cells(problem, plans, tmp_path / "new" / "folder")
        assert sorted(computed) == [("identity", 0), ("ours", 0), ("ours", 1)]
        computed.clear()
        second = run_cells(problem, plans, tmp_path / "new" / "folder")
        assert computed == []
        assert all(same(a, b) for a, b in zip(first, second, strict=True))

    def test_only_what_is_missing_is_computed(self, problem, computed, tmp_path):
        run_cells(problem, [plan(seed=0)], tmp_path)
        computed.clear()
        cells = run_cells(problem, [plan(seed=seed) for seed in (0, 1, 2)], tmp_path)
        assert computed == [("ours", 1), ("ours", 2)]
        assert [cell.seed for cell in cells] == [0, 1, 2]

    def test_a_damaged_cell_is_computed_again(self, problem, computed, tmp_path):
        plans = [plan(seed=0), plan(seed=1)]
        run_cells(problem, plans, tmp_path)
        computed.clear()
        (tmp_path / plans[1].filename).write_bytes(b"PK")
        run_cells(problem, plans, tmp_path)
        assert computed == [("ours", 1)]

    def test_other_settings_and_data_are_computed_anew(self, problem, computed, tmp_path):
        run_cells(problem, [plan()], tmp_path)
        run_cells(problem, [plan(settings=SETTINGS.with_overrides(steps=3))], tmp_path)
        run_cells(problem, [plan(data_key="other")], tmp_path)
        assert len(computed) == len(list(tmp_path.iterdir())) == 3

    def test_without_a_folder_nothing_is_kept(self, problem, computed):
        run_cells(problem, [plan()], None)
        run_cells(problem, [plan()], None)
        assert len(computed) == 2

    def test_what_was_finished_before_an_interruption_is_kept(self, problem, monkeypatch, tmp_path):
        def interrupted(problem, method, **options):
            if options["seed"] == 1:
                raise KeyboardInterrupt
            return immunize(problem, method, **options)

        monkeypatch.setattr(module, "immunize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_cells(problem, [plan(seed=seed) for seed in (0, 1)], tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [plan(seed=0).filename]

    def test_order_of_the_plans_and_progress(self, problem, tmp_path, monkeypatch):
        events = tmp_path / "events"
        monkeypatch.setenv("CONDNUM_PROGRESS", str(events))
        seen = []
        # Long cells are computed first; the answer keeps the order of the plans.
        plans = [
            plan(seed=0),
            plan(seed=1, settings=SETTINGS.with_overrides(steps=6)),
            plan("identity", 0, None),
        ]
        cells = run_cells(problem, plans, None, on_cell=lambda *told: seen.append(told))
        assert [(cell.method, cell.seed) for cell in cells] == [("ours", 0), ("ours", 1), ("identity", 0)]
        assert [(cell.method, cell.seed, done, total) for cell, done, total in seen] == [
            ("identity", 0, 1, 3),
            ("ours", 1, 2, 3),
            ("ours", 0, 3, 3),
        ]
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        assert [line["done"] for line in lines if "done" in line] == [1, 2, 3]
        assert {"stage": "ours", "seed": 1, "step": 0, "steps": 6} in lines

    def test_a_cell_is_the_run_it_stands_for(self, problem):
        (cell,) = run_cells(problem, [plan(seed=3)], None)
        result = immunize(problem, "ours", seed=3, settings=SETTINGS)
        np.testing.assert_array_equal(cell.theta, result.theta)
        np.testing.assert_array_equal(cell.history["kappa_harmful"], result.history["kappa_harmful"])
        assert (cell.steps, cell.stop_reason) == (4, "steps")

    def test_short_runs_do_not_wait_for_workers(self, problem, tmp_path, monkeypatch):
        monkeypatch.setattr(module.joblib, "Parallel", lambda **options: pytest.fail("started workers"))
        plans = [plan(seed=0), plan("imma", 1, ImmaSettings(steps=4)), plan("optimal", 0, None)]
        alone = run_cells(problem, plans, None, jobs=1)
        together = run_cells(problem, plans, tmp_path, jobs=2)
        assert all(same(a, b) for a, b in zip(alone, together, strict=True))
        assert len(list(tmp_path.iterdir())) == 3

    def test_the_callers_threads_are_given_back(self, problem):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            run_cells(problem, [plan()], None)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
