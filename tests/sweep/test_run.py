"""Sweeps: what is done is not done again, what failed is, and a stop loses nothing that was committed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from condnum.errors import OutputError, RankError
from condnum.progress import PROGRESS_VARIABLE
from condnum.studies.cell import CellPlan
from condnum.studies.executors import ProcessExecutor, SerialExecutor
from condnum.studies.store import ResultStore
from condnum.studies.sweep import SweepError, run_sweep


@pytest.fixture
def store(tmp_path):
    with ResultStore(tmp_path / "store") as opened:
        yield opened


def test_finished_cells_are_reused(cells, plans, store, started):
    first = run_sweep(plans(3), cells.square, store, SerialExecutor())
    assert (first.reused, first.computed, first.complete) == (0, 3, True)
    second = run_sweep(plans(5), cells.square, store, SerialExecutor())
    assert (second.reused, second.computed) == (3, 2)
    assert second.rows == [{"x": x, "y": x * x} for x in range(5)]
    assert started() == [0, 1, 2, 3, 4]
    assert second.seconds > 0
    assert store.get(plans(5)[4].key).arrays["powers"].tolist() == [0, 1, 16, 81]


def test_rows_come_in_the_order_of_the_plans_each_once(cells, plans, store, started):
    made = plans(3)
    run_sweep([made[1]], cells.square, store, SerialExecutor())
    report = run_sweep([made[2], made[1], made[0], made[2]], cells.square, store, SerialExecutor())
    assert [row["x"] for row in report.rows] == [2, 1, 0]
    assert started() == [1, 2, 0]


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(2)], ids=["serial", "processes"])
def test_failures_are_recorded_and_tried_again(cells, plans, store, started, tmp_path, executor):
    report = run_sweep(plans(4), cells.odd_fails, store, executor)
    assert [row["x"] for row in report.rows] == [0, 2]
    assert sorted(str(f.error) for f in report.failures) == ["ValueError: 1 is odd", "ValueError: 3 is odd"]
    assert {f.plan.payload["x"] for f in report.failures} == {1, 3}
    assert not report.complete
    assert store.failures().keys() == {f.plan.key for f in report.failures}
    assert all("Traceback" in text for text in store.failures().values())

    (tmp_path / "repaired").touch()
    report = run_sweep(plans(4), cells.odd_fails, store, executor)
    assert (report.reused, report.computed, report.failures) == (2, 2, [])
    assert [row["x"] for row in report.rows] == [0, 1, 2, 3]
    assert store.failures() == {}
    assert sorted(started()) == [0, 1, 2, 3]


def test_a_cell_with_damaged_arrays_is_computed_again(cells, plans, store, started):
    made = plans(3)
    run_sweep(made, cells.square, store, SerialExecutor())
    (store.folder / "arrays" / f"{made[1].key}.npz").unlink()
    report = run_sweep(made, cells.square, store, SerialExecutor())
    assert (report.reused, report.computed) == (2, 1)
    assert started() == [0, 1, 2, 1]
    assert store.done(made[1].key)


def test_progress(cells, plans, store, tmp_path, monkeypatch):
    run_sweep(plans(1), cells.square, store, SerialExecutor())
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "events"))
    seen = []
    run_sweep(plans(4), cells.odd_fails, store, SerialExecutor(), on_progress=seen.append)
    assert [(p.done, p.total, p.reused, p.failures) for p in seen] == [
        (1, 4, 1, 0),
        (2, 4, 1, 1),
        (3, 4, 1, 1),
        (4, 4, 1, 2),
    ]
    assert seen[0].plan is None
    assert seen[0].eta_seconds is None
    assert seen[1].plan.payload == {"x": 1}
    assert seen[1].eta_seconds == pytest.approx(2 * seen[1].seconds)
    assert seen[3].eta_seconds == 0
    assert all(p.best is None for p in seen)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert events[0] == {"done": 1, "total": 4, "failures": 0}
    assert events[3] == {"stage": "squares", "done": 4, "total": 4, "failures": 2, "eta_seconds": 0}


def test_the_best_result_so_far_old_or_new(cells, plans, store, tmp_path, monkeypatch):
    made = plans(5)
    run_sweep([made[3]], cells.square, store, SerialExecutor())
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "events"))

    def score(result):
        y = result.row["y"]
        if y == 0:
            raise RankError("rank 0")  # has no score
        return float("nan") if y == 1 else y

    seen = []
    run_sweep(made, cells.square, store, SerialExecutor(), on_progress=seen.append, score=score)
    assert [p.best.plan.payload["x"] for p in seen] == [3, 3, 3, 3, 4]
    assert seen[-1].best.score == 16
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert events[0]["best"] == 9
    assert events[-1]["best_cell"] == "squares"


def test_events_that_cannot_be_written_stop_nothing(cells, plans, store, tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "no folder" / "events"))
    assert run_sweep(plans(2), cells.square, store, SerialExecutor()).computed == 2


def test_a_sweep_of_which_all_failed_has_nothing_to_show(cells, plans, store):
    report = run_sweep(plans(2)[1:], cells.odd_fails, store, SerialExecutor())
    with pytest.raises(
        SweepError, match=r"no cell succeeded: 1 failed, .*squares: x=1.* with ValueError: 1 is odd"
    ):
        report.check()
    assert report.failure_rows == [{"cell": "squares: x=1", "error": "ValueError: 1 is odd"}]
    run_sweep(plans(2), cells.odd_fails, store, SerialExecutor()).check()  # one of two is something


def test_events_name_method_and_seed_as_the_steps_of_a_cell_do(store, tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "events"))
    plan = CellPlan("digit-pairs", {"method": "ours", "seed": 3, "pretrain": 1}, {}, "", "1")
    run_sweep([plan], lambda plan: ({"y": 1}, {}), store, SerialExecutor())
    last = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert last == {
        "stage": "ours", "seed": 3, "done": 1, "total": 1, "failures": 0, "eta_seconds": 0,
    }  # fmt: skip


def test_nothing_to_do(cells, store):
    report = run_sweep([], cells.square, store, SerialExecutor())
    assert (report.rows, report.failures, report.reused, report.computed) == ([], [], 0, 0)


def test_interruption_inside_a_cell_keeps_the_others(cells, plans, store):
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plans(6), cells.interrupted, store, SerialExecutor())
    assert [row["x"] for row in store.rows().values()] == [0, 1, 2]
    report = run_sweep(plans(6), cells.square, store, SerialExecutor())
    assert (report.reused, report.computed) == (3, 3)


def test_interruption_between_cells_stops_the_workers(cells, plans, store, started):
    def interrupt(progress):
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plans(40, sleep=0.05), cells.square, store, ProcessExecutor(2), on_progress=interrupt)
    count = len(started())
    assert len(store.rows()) == 3
    assert count < 15
    time.sleep(0.2)
    assert len(started()) == count
    report = run_sweep(plans(40, sleep=0.0), cells.square, store, SerialExecutor())
    assert report.computed == 40  # other settings, other cells


def test_a_full_disk_stops_the_sweep_and_keeps_what_is_there(cells, plans, store):
    pages = store._db.execute("PRAGMA page_count").fetchone()[0] + 2
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OutputError, match="disk is full"):
        run_sweep(plans(100), cells.square, store, SerialExecutor())
    kept = len(store.rows())
    assert 0 < kept < 100
    store._db.execute("PRAGMA max_page_count = 100000")
    assert run_sweep(plans(100), cells.square, store, SerialExecutor()).reused == kept


def test_a_store_opened_to_read_is_refused(cells, plans, store):
    with ResultStore(store.folder, mode="read") as reader, pytest.raises(OutputError, match="readonly"):
        run_sweep(plans(2), cells.square, reader, SerialExecutor())


SWEEP = """
import sys, time
from pathlib import Path
import numpy as np
from condnum.studies.cell import CellPlan
from condnum.studies.executors import SerialExecutor
from condnum.studies.store import ResultStore
from condnum.studies.sweep import run_sweep

folder, log = sys.argv[1:]

def cell(plan):
    x = plan.payload["x"]
    with open(log, "a") as stream:
        stream.write(f"{x}\\n")
    time.sleep(0.01 + 0.02 * (x * 7 % 10) / 10)
    return {"x": x, "root": x ** 0.5}, {"powers": np.arange(500.0) ** (x / 60)}

plans = [CellPlan("roots", {"x": x}, {}, "", "1") for x in range(60)]
with ResultStore(folder) as store:
    print("ready", flush=True)
    report = run_sweep(plans, cell, store, SerialExecutor())
print(report.reused, report.computed)
"""


def test_killed_ten_times_at_random_moments(tmp_path):
    script, log = tmp_path / "sweep.py", tmp_path / "log"
    script.write_text(SWEEP)
    log.touch()

    def start(folder, log):
        command = [sys.executable, str(script), str(folder), str(log)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    undisturbed = start(tmp_path / "undisturbed", tmp_path / "other log")
    output, errors = undisturbed.communicate(timeout=60)
    assert output == "ready\n0 60\n", errors

    rng = random.Random(0)
    finished = []  # after each kill: length of the log, and the cells that were committed by then
    for _ in range(10):
        sweep = start(tmp_path / "killed", log)
        assert sweep.stdout.readline() == "ready\n", sweep.stderr.read()
        time.sleep(rng.uniform(0.01, 0.14))
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.communicate(timeout=60)
        assert sweep.returncode == -signal.SIGKILL
        with ResultStore(tmp_path / "killed", mode="read") as store:
            rows = store.rows()
        finished.append((len(log.read_text().split()), {row["x"] for row in rows.values()}))
    sweep = start(tmp_path / "killed", log)
    output, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, errors
    reused, computed = map(int, output.split()[1:])
    assert reused == len(finished[-1][1])
    assert reused + computed == 60
    assert 0 < reused < 60

    calls = [int(x) for x in log.read_text().split()]
    for position, done in finished:  # what was committed is never computed again
        assert not done & set(calls[position:])
    for x in range(60):  # and what was not, only because a kill hit it
        hits = sum(position > 0 and calls[position - 1] == x for position, _ in finished)
        assert 1 <= calls.count(x) <= 1 + hits
    with (
        ResultStore(tmp_path / "killed") as killed,
        ResultStore(tmp_path / "undisturbed", mode="read") as whole,
    ):
        assert killed.rows() == whole.rows()
        for key in whole.rows():
            assert (killed.get(key).arrays["powers"] == whole.get(key).arrays["powers"]).all()
    assert sorted(p.name for p in (tmp_path / "killed").iterdir() if p.suffix != ".lock") == [
        "arrays",
        "results.sqlite",
    ]
