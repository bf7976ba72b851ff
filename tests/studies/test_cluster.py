"""A cluster on this machine: a scheduler and two workers, each an operating-system process."""

import json
import signal
import subprocess
import sys

import pytest
from waiting import wait_until

from condnum.errors import CondnumError, MissingExtraError
from condnum.studies.frame import Cell
from condnum.studies.frame.executors import DaskExecutor


@pytest.fixture
def distributed():
    return pytest.importorskip("distributed", reason="needs dask: pip install -e '.[cluster]'")


class Cluster:
    """A scheduler and workers; all end with the test."""

    def __init__(self, folder):
        self.folder, self.processes, self.workers = folder, [], []
        self.file = folder / "scheduler.json"
        self.scheduler = self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        wait_until(lambda: self.file.exists() and self.file.read_text().endswith("}"), self.scheduler)
        self.address = json.loads(self.file.read_text())["address"]

    def start(self, what, *options):
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(self.file)]
        with open(self.folder / "log", "a") as log:
            process = subprocess.Popen([*command, *options], stdout=log, stderr=log, cwd=self.folder)
        self.processes.append(process)
        return process

    def start_worker(self):
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
        self.workers.append(self.start("worker", *options, "--local-directory", str(self.folder)))

    def stop(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def dask_cluster(distributed, tmp_path, squares):
    (tmp_path / "cluster").mkdir()
    started = Cluster(tmp_path / "cluster")
    yield started
    started.stop()


@pytest.mark.long
def test_a_worker_killed_in_mid_run_loses_nothing(distributed, dask_cluster, squares, tmp_path):
    dask_cluster.start_worker()
    dask_cluster.start_worker()
    with distributed.Client(dask_cluster.address, set_as_default=False) as client:
        client.wait_for_workers(2)
    seen = []

    def kill_one(progress):
        if progress["cell"] is not None:
            seen.append(progress["cell"]["x"])
        if progress["done"] == 8:
            dask_cluster.workers[0].send_signal(signal.SIGKILL)

    study = squares(count=30, trouble="odd")
    run = study.run({"scale": 2}, out=tmp_path, scheduler=dask_cluster.address, on_progress=kill_one)
    assert run.tables["results"]["y"].tolist() == [2 * x**2 for x in range(0, 30, 2)]
    assert dask_cluster.workers[0].wait() == -signal.SIGKILL
    assert run.where == dask_cluster.address
    assert run.tables["results"]["x"].tolist() == list(range(0, 30, 2))
    assert len(run.failures) == 15
    assert sorted(seen) == list(range(30))  # each arrives once
    assert run.cells[2].arrays["powers"].tolist() == [0, 1, 16, 81]

    (tmp_path / "log.repaired").touch()  # what failed is tried again, by the worker that is left
    again = study.run({"scale": 2}, out=tmp_path, scheduler=dask_cluster.address)
    assert (again.reused, again.computed, len(again.failures)) == (15, 15, 0)

    # The scheduler is lost: the run says so, and what was finished is kept.
    def kill_scheduler(progress):
        if progress["done"] == 2:
            dask_cluster.scheduler.kill()

    more = squares(count=40, power=5.0, trouble="held")
    executor = DaskExecutor(dask_cluster.address)
    with pytest.raises(CondnumError, match=r"is lost; .*finished cells are kept"):
        more.run(out=tmp_path / "lost", executor=executor, on_progress=kill_scheduler)
    assert len([*(tmp_path / "lost" / "cells").glob("*.npz")]) in (2, 3)


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"-e ..\[cluster\]"):
        next(DaskExecutor("tcp://127.0.0.1:1").run(len, [Cell({})]))
