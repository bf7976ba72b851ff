"""Executors on one machine: the same results, each once; a broken cell breaks nothing else."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from condnum.errors import InvalidInputError
from condnum.machine import limit_threads
from condnum.studies import executors
from condnum.studies.cell import CellPlan
from condnum.studies.executors import (
    DaskExecutor,
    ProcessExecutor,
    SerialExecutor,
    choose_executor,
    core_count,
)


def by_x(outcomes):
    found = {}
    for outcome in outcomes:
        x = outcome.plan.payload["x"]
        assert x not in found
        found[x] = outcome
    return found


class TestSerial:
    def test_order_and_results(self, cells, plans):
        outcomes = list(SerialExecutor().run(cells.square, plans(4)))
        assert [o.row for o in outcomes] == [{"x": x, "y": x * x} for x in range(4)]
        assert outcomes[3].arrays["powers"].tolist() == [0, 1, 8, 27]
        assert all(o.error is None and o.seconds > 0 for o in outcomes)

    def test_an_error_is_an_outcome(self, cells, plans):
        outcomes = by_x(SerialExecutor().run(cells.odd_fails, plans(3)))
        assert [outcomes[x].error is None for x in range(3)] == [True, False, True]
        error = outcomes[1].error
        assert str(error) == "ValueError: 1 is odd"
        assert "in odd_fails" in error.traceback
        assert (outcomes[1].row, outcomes[1].arrays) == ({}, {})

    def test_a_row_that_cannot_be_stored_is_the_cells_error(self, plans):
        (outcome,) = SerialExecutor().run(lambda plan: ({"y": [1, 2]}, {}), plans(1))
        assert outcome.error.type == "InvalidInputError"
        assert "column 'y' of a cell is a list" in outcome.error.message

    def test_threads_are_limited_inside_cells_only(self, cells, plans):
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            for outcome in SerialExecutor(threads=1).run(cells.threads, plans(1)):
                assert outcome.row["torch"] == 1
                assert torch.get_num_threads() == 2
            for outcome in SerialExecutor().run(cells.threads, plans(1)):
                assert outcome.row["torch"] == 2
        finally:
            torch.set_num_threads(before)

    def test_interruption_passes(self, cells, plans):
        outcomes = SerialExecutor().run(cells.interrupted, plans(5))
        assert [next(outcomes).row["x"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyboardInterrupt):
            next(outcomes)

    def test_a_worker_keeps_its_limit(self):
        import torch
        from threadpoolctl import threadpool_info

        before = torch.get_num_threads()
        try:
            limit_threads(1)
            assert torch.get_num_threads() == 1
            assert {library["num_threads"] for library in threadpool_info()} == {1}
        finally:
            limit_threads(before)


class TestProcesses:
    def test_equal_to_serial_even_with_errors(self, cells, plans):
        serial = by_x(SerialExecutor().run(cells.odd_fails, plans(12)))
        parallel = by_x(ProcessExecutor(2).run(cells.odd_fails, plans(12)))
        assert serial.keys() == parallel.keys()
        for x, outcome in serial.items():
            other = parallel[x]
            assert other.plan == outcome.plan
            assert other.row == outcome.row
            assert str(other.error) == str(outcome.error)
            assert other.arrays.keys() == outcome.arrays.keys()
            assert all(np.array_equal(other.arrays[k], outcome.arrays[k]) for k in outcome.arrays)
        assert "in odd_fails" in parallel[1].error.traceback

    @pytest.mark.slow
    def test_a_worker_may_keep_data_for_its_next_cells(self, cells, plans):
        outcomes = by_x(ProcessExecutor(1).run(cells.hoards, plans(4)))
        assert len({outcomes[x].row["pid"] for x in range(4)}) == 1

    def test_inner_threads(self, cells, plans):
        outcomes = list(ProcessExecutor(1, threads=3).run(cells.threads, plans(2)))
        assert {(o.row["torch"], o.row["omp"]) for o in outcomes} == {(3, "3")}
        assert os.getpid() not in {o.row["pid"] for o in outcomes}

    def test_cores_are_shared(self, monkeypatch):
        monkeypatch.setattr(executors, "core_count", lambda: 8)
        assert [ProcessExecutor(jobs).inner_threads for jobs in (1, 3, 8, 20)] == [8, 2, 1, 1]

    def test_a_function_without_a_module(self, plans):
        scale = 3
        outcomes = by_x(ProcessExecutor(2).run(lambda plan: ({"y": scale * plan.payload["x"]}, {}), plans(3)))
        assert [outcomes[x].row["y"] for x in range(3)] == [0, 3, 6]

    def test_a_cell_that_kills_its_worker_fails_alone(self, cells, plans):
        outcomes = by_x(ProcessExecutor(2).run(cells.seven_kills_its_process, plans(12)))
        assert len(outcomes) == 12
        assert [x for x, o in outcomes.items() if o.error is not None] == [7]
        assert "worker process died" in str(outcomes[7].error)

    def test_a_worker_ends_when_its_parent_was_killed(self, monkeypatch):
        parents, codes = iter([5, 5, 1]), []
        monkeypatch.setattr(executors.os, "getppid", lambda: next(parents))
        monkeypatch.setattr(executors.os, "_exit", codes.append)
        monkeypatch.setattr(executors, "_WATCH_SECONDS", 0)
        executors._end_with(5)
        assert codes == [1]
        assert next(parents, None) is None

    def test_closing_early_stops_the_rest(self, cells, plans, started):
        outcomes = ProcessExecutor(2).run(cells.square, plans(40, sleep=0.1))
        next(outcomes)
        outcomes.close()
        count = len(started())
        assert count < 10
        assert len(started()) == count

    def test_nothing_to_do(self, cells):
        assert list(ProcessExecutor(2).run(cells.square, [])) == []

    def test_a_function_that_carries_data(self, plans):
        data = np.zeros(200_000)
        with pytest.raises(
            InvalidInputError, match="would travel with every cell; give the plan a DataReference"
        ):
            next(ProcessExecutor(2).run(lambda plan: ({"y": data[0]}, {}), plans(1)))

    def test_a_function_that_cannot_be_sent(self, plans, tmp_path):
        with (
            open(tmp_path / "file", "w") as stream,
            pytest.raises(InvalidInputError, match="cannot be sent to another process"),
        ):
            next(ProcessExecutor(2).run(lambda plan: ({"y": stream.name}, {}), plans(1)))

    @pytest.mark.parametrize("jobs", [0, -1, 1.5, True])
    def test_jobs(self, jobs):
        with pytest.raises(
            InvalidInputError, match=f"at least 1, got {jobs}; this machine has {core_count()} "
        ):
            ProcessExecutor(jobs)

    def test_threads(self):
        with pytest.raises(InvalidInputError, match="threads must be at least 1, got 0"):
            ProcessExecutor(2, threads=0)


class TestChoice:
    def test_one_job_computes_here(self):
        assert choose_executor() == SerialExecutor()
        assert choose_executor(1, cells=100, threads=1) == SerialExecutor(1)

    def test_processes(self):
        chosen = choose_executor(4, cells=100)
        assert (chosen, chosen.note) == (ProcessExecutor(4), "")

    def test_no_more_workers_than_cells(self):
        chosen = choose_executor(8, cells=3)
        assert (chosen, chosen.note) == (
            ProcessExecutor(3),
            "3 cells keep 3 of the 8 workers busy: 3 are started.",
        )
        chosen = choose_executor(8, cells=1)
        assert chosen == SerialExecutor()
        assert chosen.note == "1 cell keeps 1 of the 8 workers busy: 1 is started."
        assert choose_executor(8, cells=0) == SerialExecutor()

    def test_a_cluster(self):
        chosen = choose_executor(1, "tcp://127.0.0.1:8786", 5)
        assert (chosen, chosen.note) == (DaskExecutor("tcp://127.0.0.1:8786"), "")
        assert "jobs=4 is ignored" in choose_executor(4, "tcp://127.0.0.1:8786", 5).note

    def test_refusals(self):
        with pytest.raises(InvalidInputError, match="jobs must be an integer of at least 1, got 0"):
            choose_executor(0)
        with pytest.raises(InvalidInputError, match="like tcp://host:8786, got 'localhost'"):
            choose_executor(1, "localhost")


def test_importing_loads_nothing_optional_and_not_torch():
    names = ["dask", "distributed", "torch", "joblib"]
    code = f"import sys, condnum.studies.executors; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_plan_is_small(plans):
    assert len(pickle.dumps(plans(1)[0])) < 1000
    assert isinstance(plans(1)[0], CellPlan)
