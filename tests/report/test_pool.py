"""Commands side by side: how they end, and that none outlives an interruption or this process."""

import psutil
import pytest

from condnum.report.pool import Task, run_tasks


def test_each_task_ends_with_what_it_said_of_its_failure(tmp_path):
    ended, begun = {}, []
    tasks = [Task("good", ("--version",)), Task("bad", ("run", "nothing"))]
    run_tasks(
        tasks, 2, lambda task, error: ended.update({task.name: error}), heard=lambda *e: begun.append(e)
    )
    assert ended["good"] == ""
    assert ended["bad"].startswith("condnum: ")
    assert "nothing" in ended["bad"]
    assert {task.name for task, _ in begun} == {"good", "bad"}


def test_an_interruption_stops_those_that_run(tmp_path, write_notebook):
    """The long one is in a kernel by the time that another's end interrupts; nothing is left of either."""
    marker = tmp_path / "begun"
    cell = f"import pathlib, time\npathlib.Path({str(marker)!r}).touch()\ntime.sleep(900)"
    path = str(write_notebook("# Long", cell))
    long = Task("long", ("run", path, "--out", str(tmp_path / "out"), "--quiet"))
    ended = []

    def stop(task, error):
        ended.append(task.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks([long, Task("short", ("--version",))], 2, stop)
    assert ended == ["short"]
    assert not [child for child in psutil.Process().children(recursive=True) if "condnum" in child.cmdline()]
    assert not (tmp_path / "out").exists()
