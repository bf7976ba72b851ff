"""A cluster on this machine: a scheduler and two workers, each an operating-system process."""

import json
import signal
import socket
import subprocess
import sys

import nbformat
import pandas as pd
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.errors import InvalidInputError, MissingExtraError
from condnum.studies import executors
from condnum.studies.cells import Cell, ResultStore
from condnum.studies.executors import DaskExecutor, SchedulerError
from condnum.studies.study import Computation


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


@pytest.mark.slow
def test_a_worker_killed_in_mid_run_loses_nothing(dask_cluster, squares, started, tmp_path):
    executor = DaskExecutor(dask_cluster.address, worker_timeout=0.5)
    with pytest.raises(SchedulerError, match=r"no worker for 0\.5 s; start some with `dask worker tcp://127"):
        next(executor.run(len, [Cell({})]))
    dask_cluster.start_worker()
    dask_cluster.start_worker()
    client = executor.client()
    client.wait_for_workers(2)
    seen = []

    def kill_one(progress):
        if progress.cell is not None:
            seen.append(progress.cell["x"])
        if progress.done == 8:
            dask_cluster.workers[0].send_signal(signal.SIGKILL)

    study = squares(count=30, trouble="odd")
    run = study.run(out=tmp_path, scheduler=dask_cluster.address, on_progress=kill_one)
    assert dask_cluster.workers[0].wait() == -signal.SIGKILL
    assert run.where == dask_cluster.address
    assert run.results["x"].tolist() == list(range(0, 30, 2))
    assert len(run.failures) == 15
    assert sorted(seen) == list(range(30))  # each arrives once
    assert run.cells[2].arrays["powers"].tolist() == [0, 1, 16, 81]

    (tmp_path / "log.repaired").touch()  # what failed is tried again, by the worker that is left
    again = study.run(out=tmp_path, scheduler=dask_cluster.address)
    assert (again.report.reused, again.report.computed, len(again.failures)) == (15, 15, 0)

    # Stopping early cancels what has not begun.
    more = squares(count=40, power=3.0, trouble="held")
    outcomes = DaskExecutor(dask_cluster.address).run(Computation(more, more.checksum(more.load())),
                                                      more.planned(more.load()))  # fmt: skip
    before = len(started())
    next(outcomes)
    wait_until(lambda: len(started()) == before + 4)  # the worker is held in the fourth
    outcomes.close()
    wait_until(lambda: client.run_on_scheduler(lambda dask_scheduler: not dask_scheduler.tasks))
    wait_until(lambda: not any(client.run(lambda dask_worker: len(dask_worker.state.ready)).values()))
    client.close()
    (tmp_path / "log.free").touch()
    squares(count=1, power=4.0).run(scheduler=dask_cluster.address)
    assert started()[before:] == [0, 1, 2, 3, 0]
    (tmp_path / "log.free").unlink()

    # The scheduler is lost: the run says so, and what was finished is kept.
    def kill_scheduler(progress):
        if progress.done == 2:
            dask_cluster.scheduler.kill()

    more = squares(count=40, power=5.0, trouble="held")
    executor = DaskExecutor(dask_cluster.address)
    with pytest.raises(SchedulerError, match=r"is lost; .*finished cells are kept"):
        more.run(out=tmp_path / "lost", executor=executor, on_progress=kill_scheduler)
    with ResultStore(tmp_path / "lost" / "cells", mode="read") as store:
        assert store.count() in (2, 3)


@pytest.mark.parametrize("silent", [True, False], ids=["silent port", "nobody there"])
def test_a_scheduler_that_does_not_answer(distributed, silent):
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        if silent:
            place.listen()
        address = f"tcp://127.0.0.1:{place.getsockname()[1]}"
        message = rf"no scheduler answers at {address} within 1 s .*`dask scheduler`"
        with pytest.raises(SchedulerError, match=message):
            next(DaskExecutor(address, connect_timeout=1).run(len, [Cell({})]))


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"-e ..\[cluster\]"):
        next(DaskExecutor("tcp://127.0.0.1:1").run(len, [Cell({})]))


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "tcp://host", "", "://host:1"])
def test_addresses(address):
    with pytest.raises(InvalidInputError, match=r"must look like tcp://host:8786, got '"):
        DaskExecutor(address)


class FakeClient:
    """A cluster without workers, on which a cell fails in the cluster, not in itself; or nothing comes."""

    key, released = "", []

    def __init__(self, status="error"):
        self.status = status

    def wait_for_workers(self, *_, **__):
        pass

    def submit(self, *_, key, **__):
        self.key = key
        return self

    def add_done_callback(self, put):
        if self.status == "error":
            put(self)

    def exception(self):
        return RuntimeError("three workers died")

    def scheduler_info(self, **_):
        return {"workers": {}}

    def release(self):
        self.released.append(self.key)

    cancel = wait_for_workers
    close = release


def test_errors_of_the_cluster_are_failures_and_waiting_ends(monkeypatch):
    monkeypatch.setattr(executors, "_POLL_SECONDS", 0.05)
    executor = DaskExecutor("tcp://127.0.0.1:1", worker_timeout=0.1)
    monkeypatch.setattr(DaskExecutor, "client", lambda _: FakeClient())
    (outcome,) = executor.run(len, [Cell({})])
    assert outcome.error == "RuntimeError: three workers died"
    for status, message in (("running", "has had no worker for 0.1 s"), ("closed", "is lost")):
        monkeypatch.setattr(DaskExecutor, "client", lambda _, status=status: FakeClient(status))
        with pytest.raises(SchedulerError, match=message):
            next(executor.run(len, [Cell({})]))


NOTEBOOK = """
import time
from pathlib import Path
from dataclasses import dataclass
from condnum.studies.cells import Cell
from condnum.studies.study import Count, Study

@dataclass(frozen=True)
class Roots(Study):
    seeds: Count = 1

    def cells(self, data):
        return [Cell({{"seed": seed, "x": x}}, {{}}) for seed in range(self.seeds) for x in range(-1, 15)]

    def compute(self, data, cell):
        while cell["x"] > 6 and not Path({free!r}).exists():
            time.sleep(0.01)
        if cell["x"] < 0:
            raise ValueError(f"no root of {{cell['x']}}")
        return {{"root": cell["x"] ** 0.5}}

run = Roots.from_parameters(seeds=seeds).run(out=out, jobs=jobs, scheduler=scheduler)
print(f"{{run.report.computed}} computed, {{run.report.reused}} from the store")
run.save(out)
"""
PARAMETERS = """
# Roots of my own.
seeds: int = 1  # N: how often
jobs: int = 1
scheduler: str = ""
out: str = ""
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_notebook_of_ones_own_killed_in_processes_goes_on_on_the_cluster(
    condnum, start, dask_cluster, tmp_path
):
    book = nbformat.v4.new_notebook()
    parameters = nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    body = NOTEBOOK.format(free=str(tmp_path / "free"))
    book.cells = [parameters, nbformat.v4.new_code_cell(body)]
    nbformat.write(book, tmp_path / "my_notebook.ipynb")
    words = ["run", "my_notebook.ipynb", "--seeds", "2", "--out", "out"]
    assert "--seeds N How often." in " ".join(condnum(*words, "--help", cwd=tmp_path).stdout.split())
    process = start([sys.executable, "-m", "condnum", *words, "--jobs", "2"], cwd=tmp_path)
    cells = tmp_path / "out.partial" / "cells"
    wait_until(lambda: len(list(cells.rglob("*.npz"))) >= 5, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)  # an orphaned kernel ends by itself
    assert not alive
    (tmp_path / "free").touch()
    with ResultStore(cells, mode="read") as store:
        kept = store.count()
    assert 5 <= kept < 30
    dask_cluster.start_worker()
    done = condnum(*words, "--scheduler", dask_cluster.address, cwd=tmp_path)
    assert done.returncode == 1, done.stderr  # two cells have no result
    out = tmp_path / "out"
    assert f"{30 - kept} computed, {kept} from the store" in (out / "report.html").read_text("utf-8")
    assert pd.read_csv(out / "results.csv")["root"].sum() == pytest.approx(2 * sum(x**0.5 for x in range(15)))
    failures = pd.read_csv(out / "failures.csv")
    assert failures["error"].str.contains("no root of -1").tolist() == [True, True]
    assert json.loads((out / "provenance.json").read_text())["parameters"]["seeds"] == 2
