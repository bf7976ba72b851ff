"""A real command, killed: the old results stand whole; the next run has the undisturbed run's numbers."""

import ctypes
import hashlib
import json
import shutil
import signal
import subprocess
import sys

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

WORDS = "audit --pretrain P.npy --harmful H.npy --theta theta.npy --bootstrap 20 --no-attackers"
COMMAND = [*WORDS.split(), "--out", "out", "--quiet"]


def launch(folder, before=None):
    words = [sys.executable, "-m", "condnum", *COMMAND]
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
    flat = pd.json_normalize(json.loads((out / "audit.json").read_text())).astype(str)
    tables["audit.json"] = flat.drop(columns=[c for c in flat if "memory" in c])
    return {name: t.drop(columns=[c for c in t if "seconds" in str(c)]) for name, t in tables.items()}


@pytest.fixture(scope="module")
def undisturbed(condnum, tmp_path_factory):
    """The results of a run that nothing stops."""
    folder = tmp_path_factory.mktemp("undisturbed")
    inputs(folder)
    done = condnum(*COMMAND, cwd=folder)
    assert done.returncode == 0, done.stderr
    whole(folder / "out")
    return folder / "out"


def prepared(folder, reference):
    """A folder with the inputs and the results of an earlier run."""
    inputs(folder)
    shutil.copytree(reference, folder / "out")
    return whole(folder / "out")


#: A notebook has this once for each cell that has run.
RAN = '"status": "completed"'


def ran(partial):
    """Return how many cells of a run's notebook have run by now."""
    return max((path.read_text().count(RAN) for path in partial.glob(".report-*.ipynb")), default=0)


@pytest.mark.long
def test_a_killed_run_leaves_the_old_results_and_resumes(tmp_path, undisturbed):
    old, partial = prepared(tmp_path, undisturbed), tmp_path / "out.partial"
    process = launch(tmp_path)
    wait_until(lambda: partial.exists() and ran(partial) > 2, process)
    process.send_signal(signal.SIGSTOP)  # so that it is stopped below, and not after its end
    second, message = finished(launch(tmp_path))
    assert second == 2
    assert "another run is writing to out; wait for it, or choose another folder" in message
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    finished(process)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)  # a kernel ends after its parent
    assert not alive
    assert whole(tmp_path / "out") == old
    status, message = finished(launch(tmp_path))
    assert status == 0, message
    whole(tmp_path / "out")
    assert not list(tmp_path.glob("out.*"))
    found, wanted = numbers(tmp_path / "out"), numbers(undisturbed)
    assert found.keys() == wanted.keys() != set()
    for table, values in wanted.items():
        pd.testing.assert_frame_equal(found[table], values, check_exact=True)


def without_root_rights():
    """Let file permissions count for this process even if it is root's."""
    drop, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)


def test_a_folder_that_is_read_only(tmp_path, undisturbed):
    old, out = prepared(tmp_path, undisturbed), tmp_path / "out"
    out.chmod(0o555)
    status, message = finished(launch(tmp_path, before=without_root_rights))
    out.chmod(0o755)
    assert status == 2, message
    assert "make it writable" in message
    assert whole(out) == old
