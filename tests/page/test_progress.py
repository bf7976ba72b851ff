import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from waiting import wait_until

from condnum import Immunizer, progress
from condnum.methods import DescentSettings
from condnum.progress import following, step_line, sweep_line, terminal_progress


def test_following_a_growing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    path, seen = tmp_path / "events", []
    with following(path, seen.append), path.open("w") as stream:
        for done in range(3):
            stream.write(json.dumps({"done": done}) + "\n")
            stream.write('{"stage": "ha')
            stream.flush()
            wait_until(lambda count=2 * done + 1: len(seen) == count)
            stream.write('lf"}\n')
        stream.write("not json\n[1]\n")
        stream.write('{"done": 9}\n{"done": 10')
        stream.flush()
    assert [event["done"] for event in seen if "done" in event] == [0, 1, 2, 9]
    assert [event["stage"] for event in seen if "stage" in event] == ["half"] * 3


def test_a_log_is_not_flooded_and_has_the_end(monkeypatch) -> None:
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with terminal_progress("nets", stream=stream) as report:
        for step in range(99):
            now[0] += 1.0
            report({"stage": "immunize", "seed": 0, "step": step})
        report({"stage": "immunize", "seed": 0, "done": 1, "total": 1, "failures": 2})
    *lines, last = stream.getvalue().splitlines()
    assert len(lines) == 9
    assert all(line.startswith("nets: 0/? [") and "immunize, seed 0, step" in line for line in lines)
    assert last.startswith("nets: 1/1 [")
    assert "immunize, seed 0, 2 failed" in last


def test_pieces_that_were_found_finished_took_no_time() -> None:
    stream = io.StringIO()
    with terminal_progress("houses", stream=stream) as report:
        report({"done": 8, "total": 10})
    assert stream.getvalue().startswith("houses: 8/10 [00:00<?, running]")


def test_the_line_of_a_descent(capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    settings = DescentSettings(steps=3)
    immunizer = Immunizer("ours", settings=settings, callback=step_line())
    immunizer.fit([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]])
    assert "steps: 3/3 [" in (line := capsys.readouterr().err)
    assert "ours, seed 0]" in line


def test_the_line_of_a_notebook_is_live() -> None:
    assert sweep_line(quiet=True) is None
    with redirect_stdout(io.StringIO()) as stream:
        report = sweep_line()
        report({"stage": "ours", "done": 1, "total": 2})
        report({"stage": "ours", "done": 2, "total": 2})
    assert "cells: |" in stream.getvalue()
    assert "1/2" in stream.getvalue()
    assert not stream.getvalue().rsplit("\r", 2)[1].strip()  # a finished page shows no progress


def test_the_time_left_is_not_told_where_it_is_over(monkeypatch) -> None:
    """Nine quick pieces promised 00:00 for a slow tenth."""
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with terminal_progress("cells", stream=stream) as report:
        report({"done": 0, "total": 10})
        now[0] = 18.0
        report({"done": 9, "total": 10})
        now[0] = 19.0
        report({"stage": "ours", "step": 1})
        now[0] = 31.0
        report({"stage": "ours", "step": 2})
    assert [line.split("<")[1][:5] for line in stream.getvalue().splitlines()] == ["00:02", "?, ou"]
