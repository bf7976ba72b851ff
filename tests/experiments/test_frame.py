"""The frame: what is kept and tried again, what a cell depends on, processes, a cluster."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import psutil
import pytest
from joblib import parallel_config
from waiting import wait_until

from condnum.experiments import frame, house_prices
from condnum.experiments.frame import ExperimentError
from condnum.experiments.outcome import RUN_TYPE
from condnum.methods import METHODS

QUIET = {"quiet": True, "jobs": 1}


def kept(folder):
    """The files of finished cells."""
    return sorted((Path(folder) / "cells").glob("[!.]*.npz"))


def test_rows_arrays_table_sentence_and_record(squares, log, tmp_path):
    run = frame.run(squares, out=tmp_path / "out", log=str(log), count=3, **QUIET)
    assert run.rows["y"].tolist() == [0, 1, 4]
    assert run.arrays[2]["file"].tolist() == [0, 1, 4, 9]
    assert run.table.to_dict("list") == {"x": [0, 1, 2], "y": [0, 1, 4]}
    assert run.sentence == repr(run).partition("\n")[0] == "3 squares. They are whole."
    assert run.record["cells"] == {"computed": 3, "kept": 0, "failed": 0}
    shown = run._repr_mimebundle_()
    assert shown[RUN_TYPE]["table"] == "x,y\n0,0\n1,1\n2,4\n"
    assert "<b>3 squares. </b>They are whole." in shown["text/html"]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"cells", "results.csv", "table.csv", "provenance.json"}
    assert run.about.set_index("what").at["cells", "value"] == "computed: 3, kept: 0, failed: 0"


def test_finished_cells_are_kept_and_more_cells_change_no_other(squares, log, tmp_path, started):
    def run(**parameters):
        return frame.run(squares, out=tmp_path / "out", log=str(log), **parameters, **QUIET)

    run(count=3)
    before = {path: path.read_bytes() for path in kept(tmp_path / "out")}
    again = run(count=5)
    assert again.record["cells"] == {"computed": 2, "kept": 3, "failed": 0}
    assert again.rows["y"].tolist() == [0, 1, 4, 9, 16]
    assert {path: path.read_bytes() for path in before} == before
    next(iter(before)).write_bytes(b"PK")  # a damaged file is no finished cell
    assert run(count=5).record["cells"]["computed"] == 1
    run(count=2, power=3)  # another setting, other cells
    assert len(started()) == 5 + 1 + 2


def test_failures_are_rows_and_are_tried_again(squares, log, tmp_path):
    Path(f"{log}.odd").touch()
    run = frame.run(squares, out=tmp_path / "out", log=str(log), **QUIET)
    assert run.rows["x"].tolist() == [0, 2]
    assert run.failures["error"].tolist() == ["ValueError: 1 is odd", "ValueError: 3 is odd"]
    assert run.failures["cell"].str.startswith("x=1, power=2").tolist() == [True, False]
    assert "ValueError: 1 is odd" in run._repr_mimebundle_()["text/html"]
    assert len(list((tmp_path / "out" / "cells").glob("*.failed"))) == 2
    Path(f"{log}.odd").unlink()
    again = frame.run(squares, out=tmp_path / "out", log=str(log), **QUIET)
    assert again.record["cells"] == {"computed": 2, "kept": 2, "failed": 0}
    assert again.failures.empty
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
    run = frame.run(Chain(), out=tmp_path, **QUIET)
    assert run.table["text"].tolist() == ["aa", "bb", "a", "b"]
    assert run.table["arrays"].tolist() == [0, 0, 1, 1]
    assert {"after", "beside"}.isdisjoint(run.rows)
    assert {path.stem for path in (tmp_path / "cells").glob("*.half")} < {of.stem for of in kept(tmp_path)}
    half = frame.run(Chain(), broken="b", **QUIET)
    assert half.rows["at"].tolist() == ["aa", "a"]
    assert half.failures["error"].tolist() == [
        "CondnumError: the cell that it starts from failed (at=b, broken=b)",
        "ValueError: no start",
    ]
    with pytest.raises(ExperimentError, match=r"no cell of chain succeeded: 4 failed, the first one \(at=aa"):
        frame.run(Chain(), broken="a,b", **QUIET)


@pytest.mark.parametrize(
    ("found", "words"),
    [({"y": [1, 2]}, "a row holds scalars, not a list"), (({}, {"a": np.array([{}])}), "'a' .* objects")],
)
def test_what_no_file_can_keep_is_refused(squares, log, monkeypatch, found, words):
    monkeypatch.setattr(squares, "compute", lambda **_: found)
    with pytest.raises(ExperimentError, match=f"InvalidInputError: .*{words}"):
        frame.run(squares, log=str(log), count=1, **QUIET)


@pytest.mark.slow
def test_processes_and_threads_are_those_that_were_asked_for(squares, log):
    def pids():
        found = {int(line.split()[1]) for line in log.read_text().splitlines()}
        log.unlink()
        return found

    one = frame.run(squares, log=str(log), count=6, **QUIET)
    assert pids() == {os.getpid()}
    two = frame.run(squares, log=str(log), count=6, jobs=2, quiet=True)
    workers = pids()
    assert 1 <= len(workers) <= 2
    assert os.getpid() not in workers
    assert two.table.equals(one.table)
    assert set(one.rows["threads"]) == set(two.rows["threads"]) == {1}
    assert set(frame.run(squares, log=str(log), threads=2, **QUIET).rows["threads"]) == {2}
    pids()
    frame.run(squares, log=str(log), threads=None, quiet=True)  # a cell with all threads runs alone
    assert pids() == {os.getpid()}


def test_a_change_of_data_or_code_computes_anew(squares, log, tmp_path):
    def run():
        return frame.run(squares, out=tmp_path / "out", log=str(log), count=3, **QUIET)

    assert run().rows["y"].tolist() == [0, 1, 4]
    Path(f"{log}.data").write_text("10")  # although the module has cached them
    changed = run()
    assert (changed.record["cells"]["kept"], changed.rows["y"].tolist()) == (0, [0, 10, 40])
    file = Path(squares.__file__)
    file.write_text(file.read_text().replace("scale(log) *", "-scale(log) *"))
    importlib.invalidate_caches()
    squares = importlib.reload(squares)
    edited = frame.run(squares, out=tmp_path / "out", log=str(log), count=3, **QUIET)
    assert (edited.record["cells"]["kept"], edited.rows["y"].tolist()) == (0, [0, -10, -40])


def test_what_has_no_source_is_never_taken_for_another(squares, log, tmp_path, monkeypatch):
    for factor in (1, 2):
        typed = ModuleType("typed")  # as the module of what is typed at a prompt
        monkeypatch.setitem(sys.modules, "typed", typed)
        text = f"class Typed:\n def compute(self, *, x, **_):\n  return {{'y': {factor} * x}}\n"
        exec(text, vars(typed))
        for name in ("cells", "checksum", "table", "sentence"):
            setattr(typed.Typed, name, staticmethod(getattr(squares, name)))
        run = frame.run(typed.Typed(), out=tmp_path / "out", log=str(log), count=2, **QUIET)
        assert run.rows["y"].tolist() == [0, factor]


METHOD = """
import torch


class Half:
    name = "half_of_the_tests"

    def initial(self, problem, generator):
        return {"theta": torch.diag(torch.arange(1.0, problem.dimension + 1)) ** POWER}

POWER = 1
"""


@pytest.mark.slow
def test_methods_of_ones_own_reach_the_workers_and_their_code_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "half_of_the_tests.py"
    options = {"data": "embedded", "methods": f"{file}", "seeds": 2, "steps": 0, "features": "published"}
    options |= {"rows": 0, "device": "cpu", "full": True}
    found = []
    for power in (1, 1, 2):
        file.write_text(METHOD.replace("POWER = 1", f"POWER = {power}"))
        for names in (sys.modules, METHODS):
            names.pop("half_of_the_tests", None)  # as in another process
        importlib.invalidate_caches()
        run = frame.run(house_prices, out=tmp_path / "out", jobs=2, quiet=True, **options)
        found.append((run.record["cells"]["kept"], run.rows["compact_rir"].tolist()))
    METHODS.pop("half_of_the_tests")
    assert [kept for kept, _ in found] == [0, 2, 0]
    assert found[0][1] == found[1][1] != found[2][1]


@pytest.mark.slow
def test_a_killed_worker_is_a_clear_error_and_finished_cells_are_kept(squares, log, tmp_path):
    Path(f"{log}.killed").touch()
    with pytest.raises(ExperimentError, match=r"a worker process died .* finished cells are kept"):
        frame.run(squares, out=tmp_path / "out", log=str(log), jobs=2, quiet=True)
    finished = len(kept(tmp_path / "out"))
    again = frame.run(squares, out=tmp_path / "out", log=str(log), jobs=2, quiet=True)
    assert again.record["cells"] == {"computed": 4 - finished, "kept": finished, "failed": 0}


#: An experiment that a notebook defines, and one that it imports.
DEFINED = """
import {module} as squares


class Mine:
    name = "mine"
    cells, checksum, table, sentence = map(
        staticmethod, (squares.cells, squares.checksum, squares.table, squares.sentence)
    )

    def compute(self, **cell):
        return squares.compute(**cell)


experiment = Mine()
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [DEFINED, "import {module} as experiment"], ids=["defined", "imported"])
def test_a_notebook_that_was_killed_goes_on_with_the_finished_cells(squares, log, tmp_path, started, code):
    run = f"from condnum.experiments import frame\nframe.run(experiment, out='out', log={str(log)!r}, jobs=1)"
    cells = [nbformat.v4.new_code_cell(text) for text in (code.format(module=squares.__name__), run)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "run.ipynb")
    command = [sys.executable, "-m", "papermill", "run.ipynb", "done.ipynb", "--no-progress-bar"]
    Path(f"{log}.held").touch()
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: started() == [0, 1, 2], process)
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            one.kill()
    Path(f"{log}.held").unlink()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    record = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert record["cells"] == {"computed": 2, "kept": 2, "failed": 0}
    assert started() == [0, 1, 2, 2, 3]


@pytest.mark.slow
def test_a_cluster_computes_the_same_though_a_worker_is_killed(squares, log, tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs dask: pip install -e '.[cluster]'")
    options = {"processes": True, "dashboard_address": None, "local_directory": tmp_path / "dask"}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster),
        parallel_config("dask"),
    ):
        whole = frame.run(squares, log=str(log), count=12, quiet=True)
        Path(f"{log}.killed").touch()
        run = frame.run(squares, out=tmp_path / "out", log=str(log), count=12, quiet=True)
    assert not Path(f"{log}.killed").exists()
    assert run.table.equals(whole.table)
    assert run.table["y"].tolist() == [x**2 for x in range(12)]
    assert len(kept(tmp_path / "out")) == 12
    assert os.getpid() not in {int(line.split()[1]) for line in log.read_text().splitlines()}
