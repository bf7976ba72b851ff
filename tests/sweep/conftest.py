"""Cells for the tests of sweeps, in a module that worker processes can import."""

import importlib
import os
import sys
from pathlib import Path

import pytest

CELLS = '''
"""Quick cells: each notes in a file that it was started."""

import os
import signal
import time
from pathlib import Path

import numpy as np


def note(plan):
    with open(plan.settings["log"], "a") as stream:
        stream.write(f"{plan.payload['x']}\\n")


def square(plan):
    note(plan)
    time.sleep(plan.settings.get("sleep", 0.0))
    x = plan.payload["x"]
    return {"x": x, "y": x * x}, {"powers": np.arange(4.0) ** x}


def odd_fails(plan):
    if plan.payload["x"] % 2 and not Path(plan.settings["repaired"]).exists():
        raise ValueError(f"{plan.payload['x']} is odd")
    return square(plan)


_hoard = []


def hoards(plan):
    """Keep 160 MB a cell for the cells to come, over several of loky's looks at the memory."""
    _hoard.append(np.ones(20_000_000))
    time.sleep(1.2)
    return {"x": plan.payload["x"], "pid": os.getpid()}, {}


def seven_kills_its_process(plan):
    if plan.payload["x"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(plan)


def threads(plan):
    import torch

    omp = os.environ.get("OMP_NUM_THREADS")
    return {"torch": torch.get_num_threads(), "omp": omp, "pid": os.getpid()}, {}


def unpicklable(plan):
    return {"x": plan.payload["x"]}, {"f": (lambda: 0)}


def interrupted(plan):
    if plan.payload["x"] == 3:
        raise KeyboardInterrupt
    return square(plan)


def digits(plan):
    return {"rows": len(plan.data.load()), "again": plan.data.load() is plan.data.load()}, {}
'''

NAME = "cells_of_the_sweep_tests"


@pytest.fixture(scope="session")
def cells_folder(tmp_path_factory):
    """The folder of the module, to be put on the path of other processes."""
    folder = tmp_path_factory.mktemp("cells")
    (folder / f"{NAME}.py").write_text(CELLS)
    return folder


@pytest.fixture
def cells(cells_folder, monkeypatch):
    """The module; processes that are started meanwhile can import it too."""
    paths = [str(cells_folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(cells_folder)
    sys.modules.pop(NAME, None)
    return importlib.import_module(NAME)


@pytest.fixture
def plans(tmp_path):
    """`plans(n)`: cells x = 0 … n − 1, which note their starts in `log` and sleep if told to."""
    from condnum.studies.cell import CellPlan

    def make(count, **settings):
        common = {"log": str(tmp_path / "log"), "repaired": str(tmp_path / "repaired"), **settings}
        return [CellPlan("squares", {"x": x}, common, "", "1") for x in range(count)]

    return make


@pytest.fixture
def started(tmp_path):
    """`started()`: x of every cell that was started, in order."""

    def read():
        path = Path(tmp_path / "log")
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    return read
