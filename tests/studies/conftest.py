"""A study of quick cells, in a module that worker processes can import."""

import importlib
import os
import sys
from pathlib import Path

import pytest

MODULE = '''
"""Quick cells: each notes in a file that it was started."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from condnum.studies.frame import Cell
from condnum.studies.frame import Count, Study


@dataclass(frozen=True)
class Squares(Study, name="squares"):
    """x² for x = 0 … count − 1; what `trouble` names happens in some of them."""

    log: str
    count: Count = 4
    power: float = 2.0
    trouble: str = ""

    def load(self):
        with open(self.log + ".loads", "a") as stream:
            stream.write(f"{os.getpid()}\\n")
        return {"scale": 1}

    def cells(self, data):
        return [Cell({"x": x}, {"power": self.power}) for x in range(self.count)]

    def compute(self, data, cell):
        x = cell["x"]
        if self.trouble == "odd" and x % 2 and not Path(self.log + ".repaired").exists():
            raise ValueError(f"{x} is odd")
        if self.trouble == "killed" and x == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(self.log, "a") as stream:
            stream.write(f"{x}\\n")
        with open(self.log + ".pids", "a") as stream:
            stream.write(f"{os.getpid()}\\n")
        while self.trouble == "held" and x >= 3 and not Path(self.log + ".free").exists():
            time.sleep(0.01)
        y = data["scale"] * x ** cell.settings["power"]
        return {"y": y, "pid": os.getpid()}, {"powers": np.arange(4.0) ** x}
'''

NAME = "study_of_the_tests"


@pytest.fixture
def squares(tmp_path_factory, tmp_path, monkeypatch):
    """`squares(count=…, …)`: the study; processes that are started meanwhile can import its module too."""
    folder = tmp_path_factory.mktemp("module")
    (folder / f"{NAME}.py").write_text(MODULE)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop(NAME, None)
    module = importlib.import_module(NAME)
    return lambda **fields: module.Squares(str(tmp_path / "log"), **fields)


@pytest.fixture
def started(tmp_path):
    """`started()`: x of every cell that was computed, in order; of another log with its name."""

    def read(name="log"):
        path = Path(tmp_path / name)
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    return read
