"""Peak memory: of this process as the system says it, and summed over processes, each once."""

import os
import sys

import numpy as np
import pytest

from condnum import machine as memory
from condnum.machine import PeakMemory, ProcessPeak, own_peak
from condnum.studies.executors import ProcessExecutor
from condnum.studies.store import ResultStore
from condnum.studies.sweep import run_sweep


def test_the_sum_takes_the_largest_of_each_process():
    peaks = [ProcessPeak(("a", 1), 100.0), ProcessPeak(("a", 1), 80.0), ProcessPeak(("b", 1), 50.0)]
    assert PeakMemory.of(peaks) == PeakMemory(150.0, 2)
    assert str(PeakMemory.of(peaks[:1])) == "100 MiB (peak resident memory of the process)"


def test_a_large_array_is_seen():
    before = own_peak().mib
    block = np.ones((int(before) + 200, 2**17))  # 1 MiB a row
    after = own_peak()
    assert after.process[1] == os.getpid()
    assert after.mib >= block.nbytes / 2**20
    assert own_peak().mib >= after.mib  # a peak stays


def test_without_proc_the_system_is_asked_through_getrusage(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    unit = 1 if sys.platform == "darwin" else 1024
    expected = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    assert own_peak().mib == pytest.approx(expected, rel=0.01)


def test_a_system_that_counts_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert own_peak().mib == 0


def test_workers_report_their_own(cells, plans, tmp_path):
    with ResultStore(tmp_path / "store") as store:
        report = run_sweep(plans(6, sleep=0.05), cells.square, store, ProcessExecutor(2, threads=1))
    assert 2 <= report.memory.processes <= 3
    # Workers import NumPy only; were the parent's pages counted as theirs, they would be as large.
    assert own_peak().mib < report.memory.mib < report.memory.processes * own_peak().mib
