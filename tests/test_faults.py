"""A command that is killed, a disk that is full: old results stand whole, and the next run goes on."""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pandas as pd
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.errors import OutputError
from condnum.files import results_folder, write_json, write_text

WORDS = "run house-prices --data embedded --seeds 3 --steps 3000 --jobs 2"
COMMAND = [*WORDS.split(), "--out", "out", "--quiet"]


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
    """Return all tables without times."""
    tables = {path.name: pd.read_csv(path) for path in out.glob("*.csv")}
    return {name: t.drop(columns=[c for c in t if "seconds" in c]) for name, t in tables.items()}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="signals as on Linux")
def test_a_killed_run_leaves_the_old_results_and_resumes(condnum, tmp_path):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    done = condnum(*COMMAND, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((out / "provenance.json").read_text()) | {"key": "of other code"}
    (out / "provenance.json").write_text(json.dumps(record))
    old, undisturbed = whole(out), shutil.copytree(out, tmp_path / "undisturbed")
    process = launch(tmp_path)
    wait_until(lambda: len(list(partial.glob("cells/[!.]*.npz"))) > 5, process)
    process.send_signal(signal.SIGSTOP)  # so that it is stopped below, and not after its end
    second, message = finished(launch(tmp_path))
    assert second == 2
    assert "another run is writing to out; wait for it, or choose another folder" in message
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    finished(process)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)  # kernel and workers end after their parent
    assert not alive
    assert whole(out) == old
    status, message = finished(launch(tmp_path))
    assert status == 0, message
    assert whole(out) != old
    assert not list(tmp_path.glob("out.*"))
    (reused,) = re.findall(r"(\d+) from the store, 0 failed", (out / "report.html").read_text("utf-8"))
    assert int(reused) > 5
    found, wanted = numbers(out), numbers(undisturbed)
    assert found.keys() == wanted.keys() != set()
    for table, values in wanted.items():
        pd.testing.assert_frame_equal(found[table], values, check_exact=True)


def test_a_disk_that_is_full_at_a_write_leaves_the_old_results(tmp_path, monkeypatch):
    out = tmp_path / "out"

    def run(text):
        with results_folder(out) as held:
            write_text(held.path / "results.csv", text)
            write_json(held.path / "provenance.json", {"files": held.checksums()})
            held.replace()

    def full(stream):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="free some space there"):
            run("new")
    assert (out / "results.csv").read_text() == "old"
    run("new")
    assert (out / "results.csv").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.lock", "out"]
