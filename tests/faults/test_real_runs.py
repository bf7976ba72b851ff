"""A real command, killed: the old results stand whole; the next run has the undisturbed run's numbers."""

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
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="signals as on Linux"),
]

WORDS = "audit --pretrain P.npy --harmful H.npy --theta theta.npy --bootstrap 20 --no-attackers"
COMMAND = [*WORDS.split(), "--out", "out", "--quiet"]
#: A notebook has this once for each cell that has run.
RAN = '"status": "completed"'


def launch(folder):
    words = [sys.executable, "-m", "condnum", *COMMAND]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(words, cwd=folder, text=True, **options)


def finished(process):
    """Return the status, and what was said on one line."""
    _, err = process.communicate()
    assert "Traceback" not in err, err
    return process.returncode, " ".join(err.split())


def whole(out):
    """Check every file against the record of the run; return the record."""
    record = json.loads((out / "provenance.json").read_text())
    found = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert found == {*record["files"], "provenance.json"}
    for name, digest in record["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest, name
    return record


def numbers(out):
    """Return all tables without times and memory."""
    tables = {path.name: pd.read_csv(path) for path in out.glob("*.csv")}
    flat = pd.json_normalize(json.loads((out / "audit.json").read_text())).astype(str)
    tables["audit.json"] = flat.drop(columns=[c for c in flat if "memory" in c])
    return {name: t.drop(columns=[c for c in t if "seconds" in str(c)]) for name, t in tables.items()}


def ran(partial):
    """Return how many cells of a run's notebook have run by now."""
    return max((path.read_text().count(RAN) for path in partial.glob(".report-*.ipynb")), default=0)


def test_a_killed_run_leaves_the_old_results_and_resumes(condnum, tmp_path):
    rng, out, partial = np.random.default_rng(0), tmp_path / "out", tmp_path / "out.partial"
    np.save(tmp_path / "P.npy", rng.normal(size=(60, 5)) * [3, 2, 1, 1, 1])
    np.save(tmp_path / "H.npy", rng.normal(size=(50, 5)) * [1, 1, 2, 3, 4])
    np.save(tmp_path / "theta.npy", rng.normal(size=(5, 4)))
    done = condnum(*COMMAND, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    old, undisturbed = whole(out), shutil.copytree(out, tmp_path / "undisturbed")
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
    assert whole(out) == old
    status, message = finished(launch(tmp_path))
    assert status == 0, message
    assert whole(out) != old
    assert not list(tmp_path.glob("out.*"))
    found, wanted = numbers(out), numbers(undisturbed)
    assert found.keys() == wanted.keys() != set()
    for table, values in wanted.items():
        pd.testing.assert_frame_equal(found[table], values, check_exact=True)
