"""A fault right before each change of the folder: the old results stand, or the new, or a note says so."""

import errno
import os
import shutil
import sys

import pytest

from condnum.cli.staging import staging
from condnum.errors import OutputError
from condnum.files import atomic_write, write_json, write_text
from condnum.studies.store import ResultStore

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

OLD = {"results.csv": "old", "report.html": "old", "figures/a.png": "old", "gone/b.png": "old"}
NEW = {
    "results.csv": "new",
    "report.html": "new",
    "figures/a.png": "new",
    "figures/c.png": "new",
    "more.csv": "new",
}


@pytest.fixture
def stride(long):
    """Every change in the long run, each seventh in the short one."""
    return 1 if long else 7


def kill():
    os.kill(os.getpid(), 9)


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only():
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def interrupt():
    raise KeyboardInterrupt


def run(out, files, failed=False):
    """Do what a command does with its folder, without the notebook."""
    with staging(out) as stage:
        for name, text in files.items():
            (stage.path / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(stage.path / name, text)
        with ResultStore(stage.cells) as store:
            store.put("a", {"rir": 2.0})
        if failed:
            write_text(stage.path / "failures.csv", "cell,error\nb,singular\n")
        write_json(stage.path / "provenance.json", {"files": stage.checksums()})
        stage.promote()


def seen(out):
    """Return what a reader finds: texts by name, without the record and hidden files."""
    files = [p for p in out.rglob("*") if p.is_file() and ".partial" not in p.parts and p.name[0] != "."]
    return {p.relative_to(out).as_posix(): p.read_text() for p in files if p.name != "provenance.json"}


def verdict(out, failed):
    """Name what a reader finds, or fail."""
    found, new = seen(out), {**NEW, "failures.csv": "cell,error\nb,singular\n"} if failed else NEW
    if "INCOMPLETE.txt" in found:
        assert "the next command" in found["INCOMPLETE.txt"]
        return "marked incomplete"
    assert found in (OLD, new), found
    return "old results" if found == OLD else "new results"


@pytest.mark.parametrize("failed", [False, True], ids=["all cells", "some failed"])
@pytest.mark.parametrize("fault", [kill, full, read_only, interrupt], ids=lambda f: f.__name__)
def test_replacing_results(tmp_path, faulty, outcome, fault, failed, stride):
    step, came, seen_verdicts = 0, True, set()
    while came:
        step += stride
        out = tmp_path / f"{step}"
        run(out, OLD)
        status, came = faulty(lambda out=out: run(out, NEW, failed), out, step, fault)
        what = verdict(out, failed)
        if fault is interrupt:
            assert what != "marked incomplete"  # Ctrl-C waits for the end
        with staging(out):  # the next command, whatever it does
            later = verdict(out, failed)
            assert later == "new results" or later == what == "old results"
        if came:
            outcome(f"{fault.__name__} before each change of the folder", "promotion", what)
            assert status != 0 or fault is not kill
            seen_verdicts.add(what)
        run(out, NEW)
        assert verdict(out, False) == "new results"
        assert not (out / ".partial").exists()
    assert status == 0
    assert step > 20
    assert stride > 1 or {"old results", "new results"} <= seen_verdicts


@pytest.fixture(scope="module")
def half_done(tmp_path_factory, faulty):
    """A folder in which a kill has left half of the old results and half of the new."""
    step, out = 20, tmp_path_factory.mktemp("half")
    while not (out / "INCOMPLETE.txt").exists() or seen(out).get("results.csv") != "new":
        step, out = step + 3, tmp_path_factory.mktemp("half")
        run(out, OLD)
        faulty(lambda out=out: run(out, NEW), out, step, kill)
    assert "old" in seen(out).values()
    return out


def test_a_second_fault_while_a_replacement_is_completed(tmp_path, faulty, outcome, half_done):
    step, came = 0, True
    while came:
        step += 1
        out = tmp_path / f"{step}"
        shutil.copytree(half_done, out)

        def start(out=out):
            with staging(out):
                pass

        _, came = faulty(start, out, step, kill)
        what = verdict(out, False)
        if came:
            outcome("kill while a stopped promotion is completed", "promotion", what)
        start()
        assert verdict(out, False) == "new results"
    assert step > 8


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
        outcome(
            f"{fault.__name__} before each change of the folder",
            "one file",
            path.read_text()[:3] + " results",
        )
    assert status == 0
    assert path.read_text() == "new" * 2000


def test_a_full_disk_is_an_error_of_ours(tmp_path, monkeypatch):
    real = os.replace

    def limited(source, target):
        if target == tmp_path / "out" / "report.html":
            full()
        real(source, target)

    run(tmp_path / "out", OLD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", limited)
        with pytest.raises(OutputError, match="the same command moves them once that is mended"):
            run(tmp_path / "out", NEW)
    with staging(tmp_path / "out"):
        pass
    assert seen(tmp_path / "out")["report.html"] == "new"


def test_the_lock_that_another_run_removes_is_not_ours(tmp_path, monkeypatch):
    import fcntl

    take, removed = fcntl.flock, []

    def late(handle, how):
        """Take the lock just after the run before has removed its file."""
        if not removed:
            removed.append((tmp_path / "out" / ".partial" / ".lock").unlink())
        return take(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with staging(tmp_path / "out") as stage:
        monkeypatch.undo()
        assert (stage.path / ".lock").exists()
        with pytest.raises(OutputError, match="another run is writing"), staging(tmp_path / "out"):
            pass


def test_two_at_once_of_many(tmp_path, faulty):
    """Sixteen processes that open one folder at the same moment: never two of them are inside."""
    out, inside = tmp_path / "out", tmp_path / "inside"
    children = []
    for _ in range(16):
        child = os.fork()
        if child == 0:
            status = 0
            try:
                for _ in range(20):
                    try:
                        with staging(out):
                            os.mkdir(inside)  # fails if somebody is inside
                            os.rmdir(inside)
                    except OutputError:
                        pass
            except BaseException:
                status = 1
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 16
