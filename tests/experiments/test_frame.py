"""The frame: what is kept and tried again, what a cell depends on, processes, a cluster."""

import importlib
import math
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from joblib import delayed, parallel_config

from condnum.experiments import frame, house_prices
from condnum.experiments.frame import ExperimentError
from condnum.experiments.outcome import RUN_TYPE
from condnum.methods import METHODS

MODULE = '''
"""x² for x = 0 … count − 1; each cell is noted in a log, and files beside the log make trouble."""

import os
import signal
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
    return tmp_path / "log"


@pytest.fixture
def run(squares, log, tmp_path):
    """`run(count=3)`: the squares, in this process, into one folder."""

    def squared(experiment=squares, **given):
        options = {"out": tmp_path / "out", "log": str(log), "jobs": 1, "quiet": True}
        return frame.run(experiment, **options | given)

    return squared


def kept(folder):
    """The files of finished cells."""
    return sorted((Path(folder) / "cells").glob("[!.]*.npz"))


def noted(log):
    """The x and the process of every cell that was computed, in order."""
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()]


def test_rows_arrays_table_sentence_and_record(run, tmp_path):
    found = run(count=3)
    assert found.arrays[2]["file"].tolist() == [0, 1, 4, 9]
    assert found.table.to_dict("list") == {"x": [0, 1, 2], "y": [0, 1, 4]}
    assert found.sentence == repr(found).partition("\n")[0] == "3 squares. They are whole."
    assert found.record["cells"] == {"computed": 3, "kept": 0, "failed": 0}
    shown = found._repr_mimebundle_()
    assert shown[RUN_TYPE]["table"] == "x,y\n0,0\n1,1\n2,4\n"
    assert "<b>3 squares. </b>They are whole." in shown["text/html"]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"cells", "results.csv", "table.csv", "provenance.json"}


def test_finished_cells_are_kept_and_more_cells_change_no_other(run, log, tmp_path):
    run(count=3)
    before = {path: path.read_bytes() for path in kept(tmp_path / "out")}
    again = run(count=5)
    assert again.record["cells"] == {"computed": 2, "kept": 3, "failed": 0}
    assert again.rows["y"].tolist() == [0, 1, 4, 9, 16]
    assert {path: path.read_bytes() for path in before} == before
    next(iter(before)).write_bytes(b"PK")  # a damaged file is no finished cell
    assert run(count=5).record["cells"]["computed"] == 1
    run(count=2, power=3)  # another setting, other cells
    assert len(noted(log)) == 5 + 1 + 2


def test_failures_are_rows_and_are_tried_again(run, log, tmp_path):
    Path(f"{log}.odd").touch()
    found = run()
    assert found.rows["x"].tolist() == [0, 2]
    assert found.failures["error"].tolist() == ["ValueError: 1 is odd", "ValueError: 3 is odd"]
    assert "ValueError: 1 is odd" in found._repr_mimebundle_()["text/html"]
    Path(f"{log}.odd").unlink()
    again = run()
    assert again.record["cells"] == {"computed": 2, "kept": 2, "failed": 0}
    assert not list((tmp_path / "out" / "cells").glob("*.failed"))


class Chain:
    """Two ends that start from two others, of which one may be broken; the first cells share a file."""

    name = "chain"

    def cells(self, *, broken=""):
        starts = [{"at": at, "broken": broken, "beside": ""} for at in "ab"]
        return [{"at": at["at"] * 2, "after": at} for at in starts] + starts

    def checksum(self, **_):
        return ""

    def compute(self, *, at, broken="", beside=None, after=None):
        if at in broken.split(","):
            raise ValueError("no start")
        if beside is not None:
            beside.with_suffix(".half").write_text(at)
            return {"text": at}, {"letters": np.array([at])}
        return {"text": after[0]["text"] + str(after[1]["letters"][0])}

    def table(self, rows, arrays):
        return rows.assign(arrays=[len(of) for of in arrays])


def test_a_cell_gets_the_outcome_of_the_one_that_it_comes_after(tmp_path):
    quiet = {"quiet": True, "jobs": 1}
    found = frame.run(Chain(), out=tmp_path, **quiet)
    assert found.table["text"].tolist() == ["aa", "bb", "a", "b"]
    assert found.table["arrays"].tolist() == [0, 0, 1, 1]
    assert {"after", "beside"}.isdisjoint(found.rows)
    assert {path.stem for path in (tmp_path / "cells").glob("*.half")} < {of.stem for of in kept(tmp_path)}
    half = frame.run(Chain(), broken="b", **quiet)
    assert half.rows["at"].tolist() == ["aa", "a"]
    assert half.failures["error"].tolist() == [
        "CondnumError: the cell that it starts from failed (at=b, broken=b)",
        "ValueError: no start",
    ]
    with pytest.raises(ExperimentError, match=r"no cell of chain succeeded: 4 failed, the first one \(at=aa"):
        frame.run(Chain(), broken="a,b", **quiet)


@pytest.mark.parametrize(
    ("found", "words"),
    [({"y": [1, 2]}, "a row holds scalars, not a list"), (({}, {"a": np.array([{}])}), "'a' .* objects")],
)
def test_what_no_file_can_keep_is_refused(run, squares, monkeypatch, found, words):
    monkeypatch.setattr(squares, "compute", lambda **_: found)
    with pytest.raises(ExperimentError, match=f"InvalidInputError: .*{words}"):
        run(count=1)


def test_a_change_of_data_or_code_computes_anew(run, squares, log):
    run(count=3)
    Path(f"{log}.data").write_text("10")  # although the module has cached them
    changed = run(count=3)
    assert (changed.record["cells"]["kept"], changed.rows["y"].tolist()) == (0, [0, 10, 40])
    file = Path(squares.__file__)
    file.write_text(file.read_text().replace("scale(log) *", "-scale(log) *"))
    importlib.invalidate_caches()
    edited = run(importlib.reload(squares), count=3)
    assert (edited.record["cells"]["kept"], edited.rows["y"].tolist()) == (0, [0, -10, -40])


TYPED = """
class Typed:
    def compute(self, *, x, **_):
        return {'y': FACTOR * x}
"""


def test_what_is_typed_is_kept_by_its_source_and_computed_anew_without_one(run, squares, monkeypatch):
    """A class of a notebook's cell has a source, one of a prompt has none."""
    import linecache

    found = []
    for factor, source in ((1, True), (1, True), (2, True), (1, False), (1, False)):
        typed, text, file = ModuleType("typed"), TYPED.replace("FACTOR", str(factor)), f"<cell {factor}>"
        monkeypatch.setitem(sys.modules, "typed", typed)
        if source:
            linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        exec(compile(text, file if source else "<prompt>", "exec"), vars(typed))
        for name in ("cells", "checksum", "table", "sentence"):
            setattr(typed.Typed, name, staticmethod(getattr(squares, name)))
        done = run(typed.Typed(), count=2)
        found.append((done.record["cells"]["kept"], done.rows["y"].tolist()[1]))
    assert found == [(0, 1), (2, 1), (0, 2), (0, 1), (0, 1)]


METHOD = """
import torch


class Half:
    name = "half_of_the_tests"

    def initial(self, problem, generator):
        return {"theta": torch.diag(torch.arange(1.0, problem.dimension + 1)) ** POWER}
"""


@pytest.mark.slow
def test_methods_of_ones_own_reach_the_workers_and_their_code_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "half_of_the_tests.py"
    options = {"data": "embedded", "methods": f"{file}", "seeds": 2, "steps": 0, "features": "published"}
    options |= {"rows": 0, "device": "cpu", "full": True}
    found = []
    for power, jobs in ((1, 2), (1, 1), (2, 1)):
        file.write_text(METHOD.replace("POWER", str(power)))
        for names in (sys.modules, METHODS):
            names.pop("half_of_the_tests", None)  # as in another process
        importlib.invalidate_caches()
        run = frame.run(house_prices, out=tmp_path / "out", jobs=jobs, quiet=True, **options)
        found.append((run.record["cells"]["kept"], run.rows["compact_rir"].tolist()))
    METHODS.pop("half_of_the_tests")
    assert [kept for kept, _ in found] == [0, 2, 0]
    assert found[0][1] == found[1][1] != found[2][1]


@pytest.mark.slow
def test_processes_are_those_that_were_asked_for_and_a_killed_one_is_a_clear_error(run, log, tmp_path):
    Path(f"{log}.killed").touch()
    with pytest.raises(ExperimentError, match=r"a worker process died .* finished cells are kept"):
        run(jobs=2)
    workers, finished = {pid for _, pid in noted(log)}, len(kept(tmp_path / "out"))
    assert 1 <= len(workers) <= 2
    assert os.getpid() not in workers
    log.unlink()
    again = run()
    assert again.record["cells"] == {"computed": 4 - finished, "kept": finished, "failed": 0}
    assert {pid for _, pid in noted(log)} == {os.getpid()}
    assert set(again.rows["threads"]) == {1}
    assert set(run(threads=2, out="").rows["threads"]) == {2}


@pytest.mark.slow
def test_a_cluster_computes_the_same_though_a_worker_is_killed(run, log, tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs dask: pip install -e '.[cluster]'")
    options = {"processes": True, "dashboard_address": None, "local_directory": tmp_path / "dask"}
    Path(f"{log}.killed").touch()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster) as client,
        parallel_config("dask"),
    ):
        found = run(count=12, jobs=0)
        ((index, outcome, error),) = frame._on_cluster(client, [delayed(math.sqrt)(-1)])
    assert (index, outcome) == (-1, ({}, {}))  # what dask cannot compute is a failure, not an endless wait
    assert error == "ValueError: math domain error"
    assert not Path(f"{log}.killed").exists()
    assert found.table["y"].tolist() == [x**2 for x in range(12)]
    assert len(kept(tmp_path / "out")) == 12
    assert os.getpid() not in {pid for _, pid in noted(log)}
