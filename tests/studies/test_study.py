"""The frame: fields that check themselves, one load, resume, failures, processes, a study of one's own."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import pytest
import torch

from condnum.errors import CondnumError, DataFormatError, InvalidInputError, OutputError, UnknownNameError
from condnum.progress import PROGRESS_VARIABLE
from condnum.studies import cells as module
from condnum.studies.cells import Cell, ResultStore, cached, remember
from condnum.studies.executors import ProcessExecutor, SerialExecutor
from condnum.studies.study import Computation, Count, Names, Study, SweepError, at_least, some_of


@dataclass(frozen=True)
class Options(Study):
    """One field of each kind."""

    data: str = "auto"
    methods: Annotated[tuple[str, ...], some_of("method", lambda: ["ours", "imma"])] = ("ours",)
    words: Names = ()
    seeds: Count = 2
    rows: Annotated[int, at_least(4)] | None = None
    kind: Literal["big", "small"] = "big"
    share: float = 0.5
    quick: bool = False
    number: int = 0


class TestFields:
    def test_what_a_notebook_gives(self):
        made = Options.from_parameters(methods="imma, ours,imma", words="a,b", rows=0, share=1, seeds=3)
        assert made == Options(methods=("imma", "ours"), words=("a", "b"), seeds=3, share=1.0)
        assert Options.from_parameters(methods="", rows=5, number=0).methods == ("ours",)
        assert Options(methods=["ours"]) == Options()

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"seeds": 0}, InvalidInputError, "seeds must be an integer of at least 1, got 0"),
            ({"seeds": True}, InvalidInputError, "seeds must be an integer of at least 1, got True"),
            ({"seeds": None}, InvalidInputError, "got None"),
            ({"rows": 3}, InvalidInputError, "rows must be an integer of at least 4, got 3"),
            ({"methods": "our"}, UnknownNameError, "unknown method 'our'; did you mean 'ours'"),
            ({"kind": "smal"}, UnknownNameError, "unknown kind 'smal'; did you mean 'small'"),
            ({"share": float("nan")}, InvalidInputError, "share must be a finite number, got nan"),
            ({"share": "1"}, InvalidInputError, "share must be a finite number, got '1'"),
            ({"quick": 1}, InvalidInputError, "quick must be True or False, got 1"),
            ({"number": 1.0}, InvalidInputError, "number must be an integer, got 1.0"),
            ({"data": 7}, InvalidInputError, "data must be text, got 7"),
            ({"seed": 1}, UnknownNameError, "unknown parameter 'seed'; did you mean 'seeds'"),
        ],
        ids=str,
    )
    def test_a_wrong_value_names_field_value_and_fix(self, values, error, message):
        with pytest.raises(error, match=message) as caught:
            Options.from_parameters(**values)
        assert caught.value.field in (*values, "")


class TestCells:
    def test_the_key_knows_what_the_result_depends_on(self):
        cell = Cell({"method": "ours", "pair": (4, 7)}, {"steps": 9, "rate": 0.1})
        key = cell.named("a", "sum", "1").key
        same = Cell({"pair": [4, 7], "method": "ours"}, {"rate": 0.1, "steps": 9})
        assert same.named("a", "sum", "1", "elsewhere").key == key
        others = [
            cell.named("b", "sum", "1"),
            cell.named("a", "other", "1"),
            cell.named("a", "sum", "2"),
            Cell(cell.at, {"steps": 8, "rate": 0.1}).named("a", "sum", "1"),
            Cell({**cell.at, "pair": [7, 4]}, cell.settings).named("a", "sum", "1"),
            Cell(cell.at, cell.settings, after=Cell({"start": 0})).named("a", "sum", "1"),
        ]
        assert len({key, *(other.key for other in others)}) == 7

    @pytest.mark.parametrize(
        ("at", "message"),
        [
            ({"x": float("nan")}, r"at\['x'\] of a cell is nan, which JSON does not hold"),
            ({"x": np.float32(1)}, "which JSON does not hold"),
            ({1: 2}, "must have text for keys, got 1"),
            ("x", "must be a dictionary"),
        ],
        ids=["nan", "numpy", "key", "text"],
    )
    def test_what_json_does_not_hold(self, at, message):
        with pytest.raises(InvalidInputError, match=message):
            Cell(at)

    def test_the_cache_forgets_the_oldest_and_keeps_no_errors(self):
        module._cache.clear()
        first = cached(0, object)
        for key in range(1, module.CACHE_SIZE):
            cached(key, object)
        assert cached(0, object) is first  # used again, so not the oldest
        cached("one more", object)
        assert 1 not in module._cache
        with pytest.raises(ZeroDivisionError):
            cached("bad", lambda: 1 / 0)
        assert cached("bad", lambda: 3) == 3
        assert remember("bad", 4) == cached("bad", object) == 4


class TestRun:
    def test_rows_arrays_tables_and_facts(self, squares, tmp_path, started):
        told = []
        run = squares(count=3).run(out=tmp_path / "out", jobs=1, on_progress=told.append)
        assert run.results["y"].tolist() == [0, 1, 4]
        assert run.cells[2].arrays["powers"].tolist() == [0, 1, 4, 9]
        assert [(p.done, p.total, p.reused) for p in told] == [(0, 3, 0), (1, 3, 0), (2, 3, 0), (3, 3, 0)]
        assert (told[0].cell, told[0].eta_seconds, told[-1].eta_seconds) == (None, None, 0)
        assert told[-1].best[0] == 4
        facts = run.provenance_table.set_index("what")["value"]
        assert facts["cells"] == "3 computed, 0 from the store, 0 failed"
        assert facts["where"] == "1 process"
        assert {"SHA-256", "seconds", "peak memory", "versions"} <= set(facts.index)
        assert run.save(tmp_path / "out") == ["results.csv"]
        assert len(started("log.loads")) == 1
        with pytest.raises(AttributeError, match="a run has no table 'summary'; there are results"):
            run.summary  # ruff: ignore[useless-expression]

    def test_what_is_finished_is_not_computed_again(self, squares, tmp_path, started):
        squares(count=3).run(out=tmp_path, jobs=1)
        again = squares(count=5).run(out=tmp_path, jobs=1)
        assert (again.report.reused, again.report.computed) == (3, 2)
        assert again.results["x"].tolist() == [0, 1, 2, 3, 4]
        (damaged,) = [cell.key for cell, *_ in again.cells if cell["x"] == 1]
        (tmp_path / "cells" / f"{damaged}.npz").write_bytes(b"PK")
        assert squares(count=5).run(out=tmp_path, jobs=1).report.computed == 1
        assert started() == [0, 1, 2, 3, 4, 1]
        squares(count=2, sleep=0.01).run(out=tmp_path, jobs=1)  # other settings, other cells
        assert started()[-2:] == [0, 1]

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_failures_are_rows_and_are_tried_again(self, squares, tmp_path, started, jobs):
        study = squares(trouble="odd")
        run = study.run(out=tmp_path / "out", jobs=jobs)
        assert run.results["x"].tolist() == [0, 2]
        assert sorted(run.failures["error"]) == ["ValueError: 1 is odd", "ValueError: 3 is odd"]
        assert "squares: x=1" in set(run.failures["cell"])
        assert run.save(tmp_path / "out") == ["results.csv", "failures.csv"]
        with ResultStore(tmp_path / "out" / "cells", mode="read") as store:
            assert all("Traceback" in text and "in compute" in text for text in store.failures().values())
        (tmp_path / "log.repaired").touch()
        again = study.run(out=tmp_path / "out", jobs=jobs)
        assert (again.report.reused, again.report.computed, len(again.failures)) == (2, 2, 0)
        assert sorted(started()) == [0, 1, 2, 3]
        with ResultStore(tmp_path / "out" / "cells", mode="read") as store:
            assert store.failures() == {}

    def test_all_failed(self, tmp_path):
        @dataclass(frozen=True)
        class Broken(Study):
            def cells(self, data):
                start = Cell({"method": "initial", "seed": 0})
                return [start, Cell({"method": "ours", "seed": 0}, after=start)]

            def compute(self, data, cell):
                raise CondnumError(f"{cell['method']} is broken")

        with pytest.raises(SweepError, match=r"no cell succeeded: 2 failed, .*initial.*initial is broken"):
            Broken().run(jobs=1)

    def test_a_cell_waits_for_what_it_comes_after(self, tmp_path):
        @dataclass(frozen=True)
        class Chain(Study):
            def cells(self, data):
                starts = [Cell({"start": k}) for k in (1, 2)]
                return [Cell({"end": k}, after=start) for k, start in enumerate(starts)] + starts

            def compute(self, data, cell):
                file = Path(cell.folder) / f"{(cell.after or cell).key}.txt"
                if cell.after is None:
                    if cell["start"] == 2:
                        raise ValueError("no start")
                    file.write_text("made")
                return {"text": file.read_text()}

        run = Chain().run(out=tmp_path, jobs=1)
        assert [row["text"] for _, row, _ in run.cells] == ["made", "made"]
        assert run.failures["error"].tolist() == [
            "ValueError: no start",
            "CondnumError: the cell that it starts from (Chain) failed",
        ]

    def test_processes_load_once_and_change_nothing(self, squares, tmp_path, started):
        one, two = (squares(count=9).run(jobs=jobs) for jobs in (1, 2))
        pd.testing.assert_frame_equal(one.results.drop(columns="pid"), two.results.drop(columns="pid"))
        assert 1 <= two.results["pid"].nunique() <= 2
        loads = started("log.loads")
        assert len(loads) == len(set(loads)) + 1  # this process has run two studies
        assert two.report.memory.processes >= 2

    def test_other_data_are_refused(self, squares):
        computation = Computation(squares(), "0" * 64)
        with pytest.raises(DataFormatError, match=r"was planned with 0000.*the same files on every machine"):
            computation(squares().planned({"scale": 1})[0])
        run = squares(count=2).run({"scale": 3}, jobs=1)  # data that were loaded before are taken
        assert run.results["y"].tolist() == [0, 3]

    def test_interruption_keeps_what_is_finished(self, squares, tmp_path):
        with pytest.raises(KeyboardInterrupt):
            squares(count=6, trouble="stopped").run(out=tmp_path, jobs=1)
        assert squares(count=6).run(out=tmp_path, jobs=1).report.reused == 3

    def test_interruption_between_cells_stops_the_workers(self, squares, tmp_path, started):
        def interrupt(progress):
            if progress.done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            squares(count=40, sleep=0.05).run(out=tmp_path, jobs=2, on_progress=interrupt)
        count = len(started())
        assert count < 15
        time.sleep(0.2)
        assert len(started()) == count

    def test_a_full_disk_stops_the_run_and_keeps_what_is_there(self, squares, tmp_path, monkeypatch):
        put = ResultStore.put

        def full(store, *result):
            if store.count() == 2:
                raise OutputError("no space left on device")
            put(store, *result)

        monkeypatch.setattr(ResultStore, "put", full)
        with pytest.raises(OutputError, match="no space"):
            squares().run(out=tmp_path, jobs=1)
        monkeypatch.undo()
        with ResultStore(tmp_path / "cells", mode="read") as store:
            assert store.count() == 2

    def test_events(self, squares, tmp_path, monkeypatch):
        monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "events"))
        squares(trouble="odd").run(jobs=1)
        events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
        assert events[0] == {"done": 0, "total": 4, "failures": 0}
        last = {"stage": "squares", "done": 4, "total": 4, "failures": 2, "eta_seconds": 0}
        assert events[-1] == last | {"best": 4.0, "best_cell": "squares"}
        monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "no folder" / "events"))
        assert squares().run(jobs=1).report.computed == 4  # progress is no reason to fail


OWN = '''
import sys
from dataclasses import dataclass

import numpy as np

from condnum.studies.cells import Cell
from condnum.studies.study import Count, Study


@dataclass(frozen=True)
class Coin(Study):
    """How far a fair coin is from one half."""

    seeds: Count = 3
    tosses: Count = 100

    def load(self):
        return np.array([0.0, 1.0])

    def cells(self, data):
        return [Cell({"seed": seed}, {"tosses": self.tosses}) for seed in range(self.seeds)]

    def compute(self, data, cell):
        if cell["seed"] == 2:
            raise ValueError("an edge")
        tossed = np.random.default_rng(cell["seed"]).choice(data, cell.settings["tosses"])
        return {"far": abs(tossed.mean() - 0.5)}, {"tossed": tossed}


run = Coin.from_parameters(seeds=3).run(out=sys.argv[1], jobs=2)
print(run.report.computed, run.report.reused, len(run.results), run.failures["error"].tolist())
print(run.save(sys.argv[1]))
'''


def test_a_study_of_ones_own_runs_in_processes_from_a_script_or_notebook(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    found = []
    for _ in range(2):
        command = [sys.executable, "own.py", "out"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    assert found[0] == ["2 0 2 ['ValueError: an edge']", "['results.csv', 'failures.csv']"]
    assert found[1][0] == "0 2 2 ['ValueError: an edge']"


SWEEP = """
import sys, time
from dataclasses import dataclass
import numpy as np
from condnum.studies.cells import Cell
from condnum.studies.study import Study

out, log = sys.argv[1:]

@dataclass(frozen=True)
class Roots(Study):
    def load(self):
        return [True]

    def checksum(self, data):
        return "none"

    def cells(self, data):
        return [Cell({"x": x}) for x in range(60)]

    def compute(self, data, cell):
        x = cell["x"]
        if data.pop():
            print("ready", flush=True)
        data.append(False)
        with open(log, "a") as stream:
            stream.write(f"{x}\\n")
        time.sleep(0.01 + 0.02 * (x * 7 % 10) / 10)
        return {"root": x ** 0.5}, {"powers": np.arange(500.0) ** (x / 60)}

report = Roots().run(out=out, jobs=1).report
print(report.reused, report.computed)
"""


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    script, log = tmp_path / "sweep.py", tmp_path / "log"
    script.write_text(SWEEP)
    log.touch()

    def start(name, log):
        command = [sys.executable, str(script), str(tmp_path / name), str(log)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    def rows(name):
        with ResultStore(tmp_path / name / "cells", mode="read") as store:
            return {path.stem: store.get(path.stem) for path in store.folder.glob("[!.]*.npz")}

    undisturbed = start("whole", tmp_path / "other log")
    assert undisturbed.communicate(timeout=120)[0] == "0 60\n"
    rng, finished = random.Random(0), []  # after each kill: length of the log, and cells finished by then
    for _ in range(4):
        sweep = start("killed", log)
        time.sleep(rng.uniform(0.05, 0.3))
        sweep.send_signal(signal.SIGKILL)
        sweep.communicate(timeout=60)
        assert sweep.returncode == -signal.SIGKILL
        done = {round(found.row["root"] ** 2) for found in rows("killed").values()}
        finished.append((len(log.read_text().split()), done))
    reused, computed = map(int, start("killed", log).communicate(timeout=120)[0].split())
    assert reused == len(finished[-1][1])
    assert reused + computed == 60
    assert 0 < reused < 60
    calls = [int(x) for x in log.read_text().split()]
    for position, done in finished:  # what was finished is never computed again
        assert not done & set(calls[position:])
    for x in range(60):  # and what was not, only because a kill hit it
        hits = sum(position > 0 and calls[position - 1] == x for position, _ in finished)
        assert 1 <= calls.count(x) <= 1 + hits
    killed, whole = rows("killed"), rows("whole")
    assert killed.keys() == whole.keys()
    for key, found in whole.items():
        assert killed[key].row == found.row
        np.testing.assert_array_equal(killed[key].arrays["powers"], found.arrays["powers"])


class TestExecutors:
    def test_a_cell_that_kills_its_worker_fails_alone(self, squares):
        run = squares(count=12, trouble="killed").run(jobs=2)
        assert run.results["x"].tolist() == [x for x in range(12) if x != 7]
        assert "worker process died" in run.failures["error"].item()

    def test_threads(self, squares):
        def threads(cell):
            return {"torch": torch.get_num_threads()}

        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            (outcome,) = SerialExecutor(threads=1).run(threads, [Cell({})])
            assert (outcome.result.row["torch"], torch.get_num_threads()) == (1, 2)
            (outcome,) = SerialExecutor().run(threads, [Cell({})])
            assert outcome.result.row["torch"] == 2
        finally:
            torch.set_num_threads(before)
        (outcome,) = ProcessExecutor(1, threads=3).run(threads, [Cell({})])
        assert outcome.result.row["torch"] == 3

    def test_a_function_that_carries_data_or_cannot_be_sent(self, tmp_path):
        data = np.zeros(200_000)
        with pytest.raises(InvalidInputError, match="would travel with every cell; load the data inside"):
            next(ProcessExecutor(2).run(lambda cell: {"y": data[0]}, [Cell({})]))
        with (
            open(tmp_path / "file", "w") as stream,
            pytest.raises(InvalidInputError, match="cannot be sent to another process"),
        ):
            next(ProcessExecutor(2).run(lambda cell: {"y": stream.name}, [Cell({})]))

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            ({"y": [1, 2]}, "column 'y' of a cell is a list"),
            ({3: 1}, "named by text, got 3"),
            (({}, {"x": np.array([{}])}), r"array 'x' of a cell holds Python objects \(shape \(1,\)\)"),
        ],
        ids=["list", "name", "objects"],
    )
    def test_a_result_that_cannot_be_kept_is_the_cells_error(self, result, message):
        (outcome,) = SerialExecutor().run(lambda cell: result, [Cell({})])
        with pytest.raises(InvalidInputError, match=message):
            raise InvalidInputError(outcome.error.message)


def test_importing_loads_nothing_optional_and_not_torch():
    names = ["dask", "distributed", "torch", "joblib", "filelock"]
    code = f"import sys, condnum.studies.study; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
