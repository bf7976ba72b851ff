"""A fault right before each change of the folder: a reader finds the old results or the new ones, whole."""

import errno
import os
import sys

import pytest

from condnum.errors import OutputError
from condnum.files import atomic_write, results_folder, write_json, write_text
from condnum.report.notebook import abandoned
from condnum.studies.cells import ResultStore

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

OLD = {"results.csv": "old", "report.html": "old", "figures/a.png": "old", "gone/b.png": "old"}
NEW = {"results.csv": "new", "report.html": "new", "figures/a.png": "new", "failures.csv": "b,singular"}


def kill():
    """End this process as `kill -9` and a power cut do: nothing runs after it."""
    os.kill(os.getpid(), 9)


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt():
    raise KeyboardInterrupt


def run(out, files):
    """Do what a command does with its folder, without the notebook."""
    with results_folder(out) as held:
        for name, text in files.items():
            (held.path / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(held.path / name, text)
        with ResultStore(held.cells) as store:
            store.put("a", {"rir": 2.0})
        write_json(held.path / "provenance.json", {"files": held.checksums()})
        held.replace()


def look(out):
    """Only open the folder, as the next command does first."""
    with results_folder(out):
        pass


def seen(out):
    """Return what a reader finds: texts by name, without the record and cells."""
    files = [p for p in out.rglob("*") if p.is_file() and p.relative_to(out).parts[0] != "cells"]
    return {p.relative_to(out).as_posix(): p.read_text() for p in files if p.name != "provenance.json"}


@pytest.mark.parametrize("fault", [kill, full, interrupt], ids=lambda f: f.__name__)
def test_replacing_results(tmp_path, faulty, outcome, long, fault):
    step, came, found = 0, True, set()
    while came:
        step += 1 if long else 5
        out = tmp_path / f"{step}" / "out"
        run(out, OLD)
        write_text(out / "notes.txt", "mine")
        status, came = faulty(lambda out=out: run(out, NEW), out.parent, step, fault)
        what, note = seen(out), ""
        if what:  # else it came between the two renames
            note = what.pop("notes.txt", "")
            assert what in (OLD, NEW), step
            assert note == "mine" or what == NEW  # it comes along before the next command is done
        else:
            assert fault is kill
        look(out)
        later = seen(out)
        assert later.pop("notes.txt") == "mine"
        assert later == NEW or later == what == OLD
        if came:
            whole = "old results" if what == OLD else "new results"
            name = whole if what and note else "completed by the next"
            outcome(f"{fault.__name__} before each change of the folder", "replacement", name)
            found.add(name)
        run(out, NEW)
        assert seen(out) == NEW | {"notes.txt": "mine"}
        assert sorted(path.name for path in out.parent.iterdir()) == [".out.lock", "out"]
    assert status == 0
    assert step > 20
    assert not long or {"old results", "new results"} <= found


def test_a_second_kill_while_a_replacement_is_completed(tmp_path, faulty, outcome):
    step, came = 0, True
    while came:
        step += 1
        out = tmp_path / f"{step}" / "out"
        run(out, OLD)
        write_text(out / "notes.txt", "mine")
        with results_folder(out) as held:
            for name, text in {**NEW, "provenance.json": "{}"}.items():
                (held.path / name).parent.mkdir(parents=True, exist_ok=True)
                write_text(held.path / name, text)
            out.rename(held.old)  # and killed here
        _, came = faulty(lambda out=out: look(out), out.parent, step, kill)
        look(out)
        assert seen(out) == NEW | {"notes.txt": "mine"}
        if came:
            outcome("kill while a stopped replacement is completed", "replacement", "new results")
    assert step > 4


@pytest.mark.parametrize("fault", [kill, full], ids=lambda f: f.__name__)
def test_one_file(tmp_path, faulty, fault, outcome):
    step, came = 0, True
    while came:
        step += 1
        path = tmp_path / f"{step}" / "kappa.txt"
        path.parent.mkdir()
        write_text(path, "old" * 1000)

        def write(path=path):
            with atomic_write(path) as temporary:
                temporary.write_text("new" * 2000)

        status, came = faulty(write, path.parent, step, fault)
        assert path.read_text() in ("old" * 1000, "new" * 2000)
        outcome(f"{fault.__name__} before each change of the folder", "one file", path.read_text()[:3])
    assert status == 0
    assert path.read_text() == "new" * 2000


def test_folders_that_cannot_be_renamed_are_told(tmp_path, monkeypatch):
    run(tmp_path / "out", OLD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: full())
        with pytest.raises(OutputError, match=r"cannot put the results .*No space left.*mend that"):
            run(tmp_path / "out", NEW)
    assert seen(tmp_path / "out") == OLD


@pytest.mark.parametrize("cells", ["finished", "failed", "foreign"])
def test_what_a_run_that_ends_early_keeps(tmp_path, cells):
    with results_folder(tmp_path / "out") as held:
        write_text(held.path / "results.csv", "half")
        write_text(held.path / "report.failed.ipynb", "why")
        if cells == "foreign":
            held.cells.mkdir()
            write_text(held.cells / "results.sqlite", "another program's")
        else:
            with ResultStore(held.cells) as store:
                store.put("a", {"rir": 2.0}) if cells == "finished" else store.fail("a", "ValueError")
        assert abandoned(held) == {"finished": 1, "failed": 0, "foreign": None}[cells]
    assert held.cells.exists() == (cells != "failed")
    assert held.path.exists() == (cells != "failed")
    assert seen(tmp_path / "out") == {"report.failed.ipynb": "why"}


def test_two_at_once_of_many(tmp_path):
    """Eight processes that open one folder at the same moment: never two of them are inside."""
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            status = 0
            try:
                for _ in range(20):
                    try:
                        with results_folder(tmp_path / "out"):
                            os.mkdir(tmp_path / "inside")  # fails if somebody is inside
                            os.rmdir(tmp_path / "inside")
                    except OutputError:
                        pass
            except BaseException:
                status = 1
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
