"""A fault right before each change of the folder: a reader finds the old results or the new ones, whole."""

import errno
import os
import sys
import tempfile
import traceback

import pytest

from condnum.errors import OutputError
from condnum.files import results_folder, write_json, write_text
from condnum.studies.frame import ResultStore

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

#: Changes of a file system, as Python announces them before it makes them.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.chmod", "os.truncate"}


def in_child(action, folder, step, fault):
    """Run an action in a forked process that meets a fault right before its k-th change inside a folder.

    Return the exit status (negative: the signal), and whether the fault came.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        count = 0

        def watch(event, arguments):
            nonlocal count
            flags = arguments[2] if event == "open" else 0
            written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if (written or event in CHANGES) and str(folder) in str(arguments[0]):
                count += 1
                if count == step:
                    os.write(writing, b"x")
                    fault()

        status = 1
        try:
            sys.addaudithook(watch)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        came = bool(pipe.read())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), came


OLD = {"results.csv": "old", "report.html": "old", "figures/a.png": "old", "gone/b.png": "old"}
NEW = {"results.csv": "new", "report.html": "new", "figures/a.png": "new", "failures.csv": "b,singular"}


def kill():
    """End this process as `kill -9` and a power cut do: nothing runs after it."""
    os.kill(os.getpid(), 9)


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run(out, files, meanwhile=lambda: None):
    """Do what a command does with its folder, without the notebook."""
    with results_folder(out) as held:
        for name, text in files.items():
            (held.path / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(held.path / name, text)
        with ResultStore(held.cells) as store:
            store.put("a", {"rir": 2.0})
        write_json(held.path / "provenance.json", {"files": held.checksums()})
        meanwhile()
        held.replace()


def look(out):
    """Only open the folder, as the next command does first."""
    with results_folder(out):
        pass


def seen(out):
    """Return what a reader finds: texts by name, without the record and cells."""
    files = [p for p in out.rglob("*") if p.is_file() and p.relative_to(out).parts[0] != "cells"]
    return {p.relative_to(out).as_posix(): p.read_text() for p in files if p.name != "provenance.json"}


@pytest.mark.parametrize("fault", [kill, full], ids=lambda f: f.__name__)
def test_replacing_results(tmp_path, fault):
    step, came, found = 0, True, []
    while came:
        step += 1
        out = tmp_path / f"{step}" / "out"
        run(out, OLD)
        status, came = in_child(lambda out=out: run(out, NEW), out.parent, step, fault)
        what = seen(out)
        assert what in (OLD, NEW) or (fault is kill and not what), step  # or between the two renames
        look(out)
        assert seen(out) == NEW or seen(out) == what == OLD
        found += [what] if came else []
        run(out, NEW)
        assert seen(out) == NEW
        assert sorted(path.name for path in out.parent.iterdir()) == [".out.lock", "out"]
    assert status == 0
    assert step > 20
    assert OLD in found
    assert NEW in found


@pytest.mark.parametrize("late", [False, True], ids=["before the run", "during the run"])
def test_files_that_no_run_wrote_are_never_replaced(tmp_path, late):
    out = tmp_path / "out"
    run(out, OLD)
    (out / ".ipynb_checkpoints").mkdir()
    write_text(out / ".ipynb_checkpoints" / "report-checkpoint.ipynb", "of JupyterLab")
    run(out, OLD)

    def note():
        write_text(out / "notes.txt", "mine")

    if not late:
        note()
    said = r"out holds notes\.txt, which was not written by condnum.*move that"
    with pytest.raises(OutputError, match=said):
        run(out, NEW, meanwhile=note)
    assert seen(out) == OLD | {"notes.txt": "mine"}


def test_a_folder_that_is_read_only_is_told_before_the_run(tmp_path, monkeypatch):
    run(tmp_path / "out", OLD)
    really = tempfile.TemporaryFile

    def refuse(dir):  # as permissions do, which do not count for root
        return full() if dir.name == "out" else really(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OutputError, match="make it writable"):
        run(tmp_path / "out", NEW, meanwhile=pytest.fail)
    assert seen(tmp_path / "out") == OLD
