import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import wait_until

from condnum import progress
from condnum.progress import Lines, Pace, _line, following, terminal_progress


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


def test_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with terminal_progress("houses", stream=stream) as report:
        report({"stage": "ours", "step": 1, "steps": 9})
        report({"stage": "ours", "seed": 0, "done": 1, "total": 4})
        report({"stage": "ours", "seed": 0, "step": 5, "done": 1, "total": 4})
        report({"stage": "imma", "done": 2, "total": 4})
    assert stream.getvalue().splitlines() == [
        "houses: 1/4 done (ours, seed 0)", "houses: 2/4 done (imma)",
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "told"), [(1000, ["1/100", "50/100", "100/100"]), (0, None)])
def test_a_log_is_not_flooded_but_failures_and_the_end_are_told_at_once(seconds, told, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    stream = io.StringIO()
    lines = Lines("mnist", stream)
    for done in range(1, 101):
        lines({"stage": "ours", "done": done, "total": 100, "failures": done // 50})
    lines.finish()
    shown = [line.split()[1] for line in stream.getvalue().splitlines()]
    assert shown == (told or [f"{done}/100" for done in range(1, 101)])
    assert "1 failed" in stream.getvalue()


def test_steps_have_a_time_left_and_long_ones_a_line(monkeypatch) -> None:
    """A piece that takes hours is seen without a terminal too; two that alternate keep their paces."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines, pace = Lines("nets", stream), Pace()
    lines(pace({"done": 0, "total": 2}))
    for step in range(1, 41):
        now[0] += 2.0
        for seed in (0, 1):
            lines(pace({"stage": "immunize", "seed": seed, "step": step, "steps": 100}))
    lines(pace({"done": 1, "total": 2}))
    assert stream.getvalue().splitlines() == [
        "nets: 0/2 done (running)",
        "nets: 0/2 done (immunize, seed 0, step 15 of 100 (about 2 min 50 s left))",
        "nets: 0/2 done (immunize, seed 0, step 30 of 100 (about 2 min 20 s left))",
        "nets: 1/2 done (running)",
    ]
    assert "seconds_left" not in pace({"stage": "immunize", "seed": 0, "step": 1, "steps": 100})  # anew


def test_a_live_bar_in_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with terminal_progress("houses", stream=stream) as report:
        report({"stage": "ours", "seed": 0, "step": 5, "steps": 10})
        report({"stage": "ours", "done": 1, "total": 4, "failures": 2, "eta_seconds": 75.0})
        report({"stage": "imma"})
    shown = stream.getvalue()
    assert "houses |" in shown
    assert "0/?" in shown
    assert "ours, seed 0, step 5 of 10" in shown
    assert "1/4" in shown
    assert "imma, 2 failed, about 1 min 15 s left" in shown


def test_the_line_of_a_notebook_ends_without_a_stage(monkeypatch) -> None:
    written = []
    handle = SimpleNamespace(update=lambda text: written.append(text.data))
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: handle)
    report = _line("nets")
    report({"stage": "ours", "done": 1, "total": 2})
    report({"done": 2, "total": 2})
    assert written == ["nets: 1 of 2 (ours)", "nets: 2 of 2"]
