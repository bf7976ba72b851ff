"""Real commands, stopped: old or new results stand whole; the next run has the undisturbed run's numbers."""

import ctypes
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import numpy as np
import pandas as pd
import psutil
import pytest
from waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="signals, permissions and mounts as on Linux"),
]

COMMANDS = {
    "house-prices": "run house-prices --data embedded --methods ours,imma --seeds 2 --steps 50 --jobs 1",
    "digits": "run digits --methods imma --seeds 1 --steps 3 --pairs 4-7,9-0 --jobs 2",
    "audit": "audit --pretrain P.npy --harmful H.npy --theta theta.npy --bootstrap 20 --no-attackers",
}
LONG = bool(os.environ.get("CONDNUM_FAULTS_LONG"))
#: A real run takes 10 s and more: `make test` has one kill and what goes beside it, `make faults` everything.
NAMES = sorted(COMMANDS) if LONG else ["audit"]
#: How often each command is stopped.
STOPS = {
    "Ctrl-C": {"house-prices": 10, "digits": 4, "audit": 4},
    "kill -9": {"house-prices": 5, "digits": 3, "audit": 3},
}
if not LONG:
    STOPS = {"kill -9": {"audit": 1}}
slow_sweep = pytest.mark.skipif(not LONG, reason="part of the long sweep: make faults")


def heed():
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def launch(name, folder, before=heed):
    words = [sys.executable, "-m", "condnum", *COMMANDS[name].split(), "--out", "out", "--quiet"]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(words, cwd=folder, text=True, preexec_fn=before, **options)


def finished(process):
    """Return the status, and what was said on one line."""
    _, err = process.communicate()
    assert "Traceback" not in err, err
    return process.returncode, " ".join(err.split())


def inputs(folder):
    rng = np.random.default_rng(0)
    np.save(folder / "P.npy", rng.normal(size=(60, 5)) * [3, 2, 1, 1, 1])
    np.save(folder / "H.npy", rng.normal(size=(50, 5)) * [1, 1, 2, 3, 4])
    np.save(folder / "theta.npy", rng.normal(size=(5, 4)))


def whole(out):
    """Check every file against the record of the run; return the record."""
    record = json.loads((out / "provenance.json").read_text())
    found = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert found - {"report.failed.ipynb"} == {*record["files"], "provenance.json"}
    for name, digest in record["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest, name
    assert record["duration_seconds"] >= 0
    return record


def numbers(out):
    """Return all tables without times and memory."""
    tables = {path.name: pd.read_csv(path) for path in out.glob("*.csv")}
    tables |= {path.name: pd.read_parquet(path) for path in out.glob("*.parquet")}
    if (out / "audit.json").exists():
        flat = pd.json_normalize(json.loads((out / "audit.json").read_text()))
        tables["audit.json"] = flat.drop(columns=[c for c in flat if "seconds" in c or "memory" in c]).astype(
            str
        )
    return {name: t.drop(columns=[c for c in t if "seconds" in str(c)]) for name, t in tables.items()}


@pytest.fixture(scope="module")
def undisturbed(condnum, tmp_path_factory):
    """One run of each command: its results."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp("undisturbed")
        inputs(folder)
        done = condnum(*COMMANDS[name].split(), "--out", "out", "--quiet", cwd=folder)
        assert done.returncode == 0, done.stderr
        whole(folder / "out")
        return folder / "out"

    return run


def prepared(folder, reference):
    """A folder with the inputs and the results of an earlier run."""
    inputs(folder)
    shutil.copytree(reference, folder / "out")
    return whole(folder / "out")


def resumed(name, folder, reference):
    """Run the command again; compare the numbers."""
    status, message = finished(launch(name, folder))
    assert status == 0, message
    whole(folder / "out")
    assert not (folder / "out.partial").exists()
    assert not (folder / "out.old").exists()
    found, wanted = numbers(folder / "out"), numbers(reference)
    assert found.keys() == wanted.keys() != set()
    for table, values in wanted.items():
        pd.testing.assert_frame_equal(found[table], values, check_exact=True)


def left(out, old):
    """Name what a stopped run leaves to a reader."""
    if not out.exists():
        return "between the two renames"
    return "old results" if whole(out) == old else "new results"


#: A notebook has this once for each cell that has run.
RAN = '"status": "completed"'


def ran(partial):
    """Return how many cells of a run's notebook have run by now."""
    return max((path.read_text().count(RAN) for path in partial.glob(".report-*.ipynb")), default=0)


def stops():
    """Commands, how they are stopped, and at which random share of their cells."""
    rng = np.random.default_rng(7)
    for how, counts in STOPS.items():
        for name, count in counts.items():
            for share in rng.uniform(0.1, 1.0, count):
                yield pytest.param(how, name, share, id=f"{how}-{name}-{share:.2f}")


@pytest.mark.long
@pytest.mark.parametrize(("how", "name", "share"), list(stops()))
def test_a_stopped_run_leaves_old_or_new_results_and_resumes(
    tmp_path, undisturbed, outcome, how, name, share
):
    """Ctrl-C goes to the group; `kill -9` to the command alone, in half of the cases to its family too."""
    reference = undisturbed(name)
    old, partial = prepared(tmp_path, reference), tmp_path / "out.partial"
    cells = (reference / "report.ipynb").read_text().count(RAN)
    process = launch(name, tmp_path)
    wait_until(lambda: partial.exists() and ran(partial) >= int(share * cells), process)
    process.send_signal(signal.SIGSTOP)  # so that it is stopped below, and not after its end
    second, message = finished(launch(name, tmp_path))
    assert second == 2
    assert "another run is writing to out; wait for it, or choose another folder" in message
    outcome("two runs into one folder", name, "second refused")
    family = psutil.Process(process.pid).children(recursive=True)
    if how == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGCONT)
    else:
        process.kill()
        for child in family if round(100 * share) % 2 else []:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    status, message = finished(process)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)  # a kernel ends after its parent
    assert not alive
    what = left(tmp_path / "out", old)
    if how == "Ctrl-C":
        assert status in (0, 130, -signal.SIGINT), message  # -2: before Python could listen
        assert what == "old results" or status == 0 or "are complete" in message
    resumed(name, tmp_path, reference)
    outcome(f"{how} at a random moment, then again", name, what)


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]).returncode
    ):
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@slow_sweep
@pytest.mark.parametrize("room", [0.05, 0.5, 0.9], ids=["a store", "the notebook", "almost all"])
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(tmp_path, undisturbed, outcome, name, room):
    reference = undisturbed(name)
    need = sum(path.stat().st_size for path in reference.rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", round((1.1 + room) * need)):
        old = prepared(tmp_path / "disk", reference)
        status, message = finished(launch(name, tmp_path / "disk"))
        assert status == 2, message
        assert "free some space" in message
        what = left(tmp_path / "disk" / "out", old)
        assert what == "old results"
        outcome("disk full", name, what)
        subprocess.run(["mount", "-o", "remount,size=200m", tmp_path / "disk"], check=True)
        resumed(name, tmp_path / "disk", reference)


def without_root_rights():
    """Let file permissions count for this process even if it is root's."""
    heed()
    drop, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_is_read_only(tmp_path, undisturbed, outcome, name):
    reference = undisturbed(name)
    old, out = prepared(tmp_path, reference), tmp_path / "out"
    out.chmod(0o555)
    status, message = finished(launch(name, tmp_path, before=without_root_rights))
    out.chmod(0o755)
    assert status == 2, message
    assert "make it writable" in message
    what = left(out, old)
    assert what == "old results"
    outcome("read-only output", name, what)
