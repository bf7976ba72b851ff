import io
import json
import time
from pathlib import Path

import pytest

from condnum.report import progress
from condnum.report.progress import ProgressEvent, describe_event, following, parse_event, terminal_progress


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


def test_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with terminal_progress("houses", stream=stream) as report:
        report(ProgressEvent("ours", step=1, steps=9))
        report(ProgressEvent("ours", seed=0, done=1, total=4))
        report(ProgressEvent("ours", seed=0, step=5, done=1, total=4))
        report(ProgressEvent("imma", done=2))
    assert stream.getvalue() == "houses: 1/4 done (ours, seed 0)\nhouses: 2 done (imma)\n"


def test_a_live_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with terminal_progress("houses", stream=stream) as report:
        report(ProgressEvent("ours", seed=0, step=5, steps=10, done=1, total=4))
        time.sleep(0.2)
    assert "houses" in stream.getvalue()
    assert "ours, seed 0, step 5 of 10" in stream.getvalue()


def test_description_of_an_empty_event() -> None:
    assert describe_event(ProgressEvent(step=3)) == "running, step 3"
