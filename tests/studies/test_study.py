"""The frame: fields that check themselves, one load, resume, failures, processes, a study of one's own."""

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import psutil
import pytest
from waiting import wait_until

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.progress import PROGRESS_VARIABLE
from condnum.studies.frame import Cell, Count, Names, Study, SweepError, at_least, some_of
from condnum.studies.frame.study import Computation


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


def test_fields_as_a_notebook_gives_them():
    made = Options(methods="imma, ours,imma", words="a,b", rows=0, share=1, seeds=3)
    assert made == Options(methods=("imma", "ours"), words=("a", "b"), seeds=3, share=1.0)
    assert (Options(methods="", rows=5).methods, Options(rows="").rows, Options(number=0).number) == (
        (),
        None,
        0,
    )
    assert Options(methods=["ours"]) == Options()
    numbers = {"share": np.float32(0.5), "number": np.int64(0), "quick": np.bool_(False)}
    assert repr(Options(**numbers)) == repr(Options())  # NumPy's are as good
    with pytest.raises(UnknownNameError, match="unknown kind 'smal'; did you mean 'small'"):
        Options(kind="smal")


def test_the_key_knows_what_the_result_depends_on():
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


def test_rows_arrays_tables_facts_and_progress(squares, tmp_path, started, monkeypatch):
    told = []
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "events"))
    run = squares(count=3).run(out=tmp_path / "out", jobs=1, on_progress=told.append)
    assert run.tables["results"]["y"].tolist() == [0, 1, 4]
    assert run.cells[2].arrays["powers"].tolist() == [0, 1, 4, 9]
    assert [(event["done"], event["total"]) for event in told] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert told[0]["cell"] is None
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    last = {"stage": "squares", "done": 3, "total": 3, "failures": 0}
    assert events[-1] == last
    facts = run.provenance_table.set_index("what")["value"]
    assert facts["cells"] == "3 computed, 0 from the store, 0 failed"
    assert facts["where"] == "1 process, threads each: 1"
    assert run.save(tmp_path / "out") == ["results.csv", "provenance.json"]
    assert len(started("log.loads")) == 1
    monkeypatch.setenv(PROGRESS_VARIABLE, str(tmp_path / "no folder" / "events"))
    assert squares().run(jobs=1).computed == 4  # progress is no reason to fail


def test_what_is_finished_is_not_computed_again(squares, tmp_path, started):
    squares(count=3).run(out=tmp_path, jobs=1)
    again = squares(count=5).run(out=tmp_path, jobs=1)
    assert (again.reused, again.computed) == (3, 2)
    assert again.tables["results"]["x"].tolist() == [0, 1, 2, 3, 4]
    (damaged,) = [cell.key for cell, *_ in again.cells if cell["x"] == 1]
    (tmp_path / "cells" / f"{damaged}.npz").write_bytes(b"PK")
    assert squares(count=5).run(out=tmp_path, jobs=1).computed == 1
    assert started() == [0, 1, 2, 3, 4, 1]
    squares(count=2, power=3.0).run(out=tmp_path, jobs=1)  # other settings, other cells
    assert started()[-2:] == [0, 1]


def test_failures_are_rows_and_are_tried_again(squares, tmp_path, started):
    study = squares(trouble="odd")
    run = study.run(out=tmp_path / "out", jobs=1)
    assert run.tables["results"]["x"].tolist() == [0, 2]
    assert sorted(run.failures["error"]) == ["ValueError: 1 is odd", "ValueError: 3 is odd"]
    assert "squares: x=1" in set(run.failures["cell"])
    assert run.save(tmp_path / "out") == ["results.csv", "failures.csv", "provenance.json"]
    texts = [path.read_text() for path in (tmp_path / "out" / "cells").glob("*.failed")]
    assert [("Traceback" in text, "in compute" in text) for text in texts] == [(True, True)] * 2
    (tmp_path / "log.repaired").touch()
    again = study.run(out=tmp_path / "out", jobs=1)
    assert (again.reused, again.computed, len(again.failures)) == (2, 2, 0)
    assert sorted(started()) == [0, 1, 2, 3]
    assert not list((tmp_path / "out" / "cells").glob("*.failed"))


@dataclass(frozen=True)
class Chain(Study):
    """Two cells that start from two others; a start may be broken."""

    broken: Names = ()

    def cells(self, data):
        starts = [Cell({"start": k}) for k in "ab"]
        return [Cell({"end": start["start"]}, after=start) for start in starts] + starts

    def compute(self, data, cell):
        file = Path(cell.folder) / f"{(cell.after or cell).key}.txt"
        if cell.after is None:
            if cell["start"] in self.broken:
                raise ValueError("no start")
            file.write_text("made")
        return {"text": file.read_text()}


def test_a_cell_waits_for_what_it_comes_after(tmp_path):
    run = Chain(broken="b").run(out=tmp_path, jobs=1)
    assert [row["text"] for _, row, _ in run.cells] == ["made", "made"]
    failed = "CondnumError: the cell from which it starts (Chain) failed"
    assert run.failures["error"].tolist() == ["ValueError: no start", failed]
    with pytest.raises(SweepError, match=r"no cell succeeded: 4 failed, .*start=a.*no start"):
        Chain(broken="a,b").run(jobs=1)


def test_processes_load_once_and_change_nothing(squares, started):
    one, two = (squares(count=9).run(jobs=jobs) for jobs in (1, 2))
    first, second = one.tables["results"], two.tables["results"]
    pd.testing.assert_frame_equal(first.drop(columns="pid"), second.drop(columns="pid"))
    assert 1 <= second["pid"].nunique() <= 2
    assert started("log.loads") == [os.getpid()] * 2


def test_a_worker_with_other_code_is_refused(squares):
    sent = pickle.dumps(Computation(squares(), {"scale": 1}, "other"))
    with pytest.raises(InvalidInputError, match=r"the code of squares in a worker .* is not that of the run"):
        pickle.loads(sent)


def test_interruption_keeps_what_is_finished_and_stops_the_workers(squares, tmp_path, started):
    def interrupt(progress):
        if progress["done"] == 3:
            raise KeyboardInterrupt

    before = len(started())
    with pytest.raises(KeyboardInterrupt):
        squares(count=40, trouble="held").run(out=tmp_path, jobs=2, on_progress=interrupt)
    assert len([*(tmp_path / "cells").glob("*.npz")]) == 3
    assert len(started()) <= before + 3 + 2  # two workers: each was held in a cell
    workers = set(started("log.pids")) - {os.getpid()}
    assert workers
    wait_until(lambda: not any(map(psutil.pid_exists, workers)))
