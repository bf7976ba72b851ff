"""Sweeps of thousands of cells: planned, computed here or on a cluster, kept, resumed."""

from condnum.sweep.batches import BatchComputation, BatchExecutor
from condnum.sweep.choice import choose_executor
from condnum.sweep.cluster import DaskExecutor, SchedulerError
from condnum.sweep.data import DataReference, cached
from condnum.sweep.executors import Executor, ProcessExecutor, SerialExecutor, core_count
from condnum.sweep.memory import PeakMemory, ProcessPeak, own_peak
from condnum.sweep.outcome import CellError, Compute, Outcome, evaluate
from condnum.sweep.plan import CellPlan
from condnum.sweep.progress import Best, Failure, Score, SweepProgress
from condnum.sweep.result import CellResult
from condnum.sweep.run import SweepError, SweepReport, run_sweep
from condnum.sweep.store import ResultStore, cells_folder

__all__ = [
    # what to compute
    "CellPlan",
    "DataReference",
    "cached",
    "cells_folder",
    # where
    "Executor",
    "SerialExecutor",
    "ProcessExecutor",
    "DaskExecutor",
    "BatchExecutor",
    "BatchComputation",
    "SchedulerError",
    "choose_executor",
    "core_count",
    # what comes of it
    "Compute",
    "evaluate",
    "CellResult",
    "CellError",
    "Outcome",
    "ResultStore",
    # all together
    "run_sweep",
    "SweepProgress",
    "SweepReport",
    "SweepError",
    "Failure",
    "Best",
    "Score",
    # what it took
    "PeakMemory",
    "ProcessPeak",
    "own_peak",
]
