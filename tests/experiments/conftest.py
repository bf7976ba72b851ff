"""An experiment of quick cells, in a module that worker processes can import."""

import importlib
import os
import sys

import pytest

MODULE = '''
"""x² for x = 0 … count − 1; each cell is noted in a log, and files beside the log make trouble."""

import os
import signal
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch


def cells(*, log, count=4, power=2):
    return [{"x": x, "power": power, "log": log} for x in range(count)]


@cache
def scale(log):
    file = Path(log + ".data")
    return int(file.read_text()) if file.exists() else 1


def checksum(*, log, **_):
    return str(scale(log))


def compute(*, x, power, log):
    with open(log, "a") as stream:
        stream.write(f"{x} {os.getpid()}\\n")
    if x % 2 and Path(log + ".odd").exists():
        raise ValueError(f"{x} is odd")
    if x == 2 and Path(log + ".killed").exists():
        Path(log + ".killed").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    while x >= 2 and Path(log + ".held").exists():
        time.sleep(0.01)
    row = {"y": scale(log) * np.int64(x) ** power, "threads": torch.get_num_threads()}
    return row, {"file": np.arange(4.0) ** x}


def table(rows):
    return rows[["x", "y"]]


def sentence(table):
    return f"{len(table)} squares. They are whole."
'''

NAME = "squares_of_the_tests"


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """The module; processes that are started meanwhile can import it too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{NAME}.py").write_text(MODULE)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop(NAME, None)
    return importlib.import_module(NAME)


@pytest.fixture
def log(tmp_path):
    """The path of the log."""
    return tmp_path / "log"


@pytest.fixture
def started(log):
    """`started()`: x of every cell that was computed, in order."""
    return lambda: [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []
