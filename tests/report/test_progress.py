import io
import json
import time
from pathlib import Path

import pytest

from condnum.progress import SweepFacts
from condnum.report import progress
from condnum.report.progress import (
    Lines,
    ProgressEvent,
    Tally,
    describe_event,
    following,
    parse_event,
    terminal_progress,
)


@pytest.mark.parametrize("line", ["", "[1]", "{", '"x"', b"\xff"])
def test_lines_that_are_no_events(line: str | bytes) -> None:
    assert parse_event(line) is None


def test_unknown_keys_and_wrong_types_are_dropped() -> None:
    assert parse_event('{"stage": null, "seed": "x", "done": 2.0, "new": 1}') == ProgressEvent(done=2)


def test_following_a_growing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    path, seen = tmp_path / "events", []
    with following(path, seen.append):
        time.sleep(0.03)  # not there yet
        with path.open("w") as stream:
            for done in range(3):
                stream.write(json.dumps({"done": done}) + "\n")
                stream.write('{"stage": "ha')
                stream.flush()
                time.sleep(0.03)
                stream.write('lf"}\n')
            stream.write("not json\n")
            stream.write('{"done": 9}\n{"done": 10')
    assert [event.done for event in seen if event.done is not None] == [0, 1, 2, 9]
    assert [event.stage for event in seen if event.stage] == ["half"] * 3


def test_facts_of_a_sweep_are_read() -> None:
    event = parse_event(
        '{"done": 1, "failures": 0, "eta_seconds": 9.5, "best": Infinity, "best_cell": "ours"}'
    )
    assert event is not None
    assert event.facts == SweepFacts(0, 9.5, float("inf"), "ours")
    wrong = parse_event('{"done": 1, "failures": "many", "best": null}')
    assert wrong == ProgressEvent(done=1)


def test_a_tally_keeps_the_newest_facts() -> None:
    tally = Tally()
    tally.add(ProgressEvent(done=1, total=9, facts=SweepFacts(1, 80.0)))
    tally.add(ProgressEvent("ours", step=3, steps=5))
    assert str(tally.facts) == "1 failed, about 1 min 20 s left"


def test_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with terminal_progress("houses", stream=stream) as report:
        report(ProgressEvent("ours", step=1, steps=9))
        report(ProgressEvent("ours", seed=0, done=1, total=4))
        report(ProgressEvent("ours", seed=0, step=5, done=1, total=4))
        report(ProgressEvent("imma", done=2, facts=SweepFacts(best=2.5, best_cell="imma")))
    assert stream.getvalue() == (
        "houses: 1/4 done (ours, seed 0)\nhouses: 2/4 done (imma), best RIR 2.5 (imma)\n"
    )


def test_a_log_is_not_flooded_but_failures_and_the_end_are_told_at_once() -> None:
    stream = io.StringIO()
    lines = Lines("mnist", stream, seconds=1000)
    for done in range(1, 101):
        lines(ProgressEvent("ours", done=done, total=100, facts=SweepFacts(failures=done // 50)))
    lines.finish()
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/100", "50/100", "100/100"]
    assert "1 failed" in stream.getvalue().splitlines()[1]


def test_lines_come_again_after_a_while() -> None:
    stream = io.StringIO()
    lines = Lines("mnist", stream, seconds=0)
    for done in range(3):
        lines(ProgressEvent(done=done, total=9))
    assert len(stream.getvalue().splitlines()) == 3


def test_a_live_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with terminal_progress("houses", stream=stream) as report:
        report(ProgressEvent("ours", seed=0, step=5, steps=10, done=1, total=4))
        report(ProgressEvent("ours", seed=0, step=5, steps=10, facts=SweepFacts(2, 75.0, 131.5, "ours, 4-7")))
        time.sleep(0.2)
    assert "houses" in stream.getvalue()
    assert "ours, seed 0, step 5 of 10" in stream.getvalue()
    assert "2 failed, about 1 min 15 s left, best RIR 131.5 (ours, 4-7)" in stream.getvalue()


def test_description_of_an_empty_event() -> None:
    assert describe_event(ProgressEvent(step=3)) == "running, step 3"
