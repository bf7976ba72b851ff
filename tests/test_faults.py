"""A command that is killed, a disk that is full: old results stand whole, and the next run goes on."""

import errno
import os
import signal
import subprocess
import sys

import nbformat
import pandas as pd
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.errors import OutputError
from condnum.files import write_text

WORDS = "run house-prices --data embedded --seeds 3 --steps 3000 --jobs 2"
COMMAND = [*WORDS.split(), "--out", "out", "--quiet"]


def launch(folder):
    words = [sys.executable, "-m", "condnum", *COMMAND]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(words, cwd=folder, text=True, **options)


def numbers(out):
    """Return the rows without times."""
    rows = pd.read_csv(out / "results.csv")
    return rows.drop(columns=[name for name in rows if "seconds" in name])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="signals as on Linux")
def test_a_killed_run_leaves_its_cells_and_no_process_and_the_next_one_resumes(condnum, tmp_path):
    out = tmp_path / "out"
    process = launch(tmp_path)
    wait_until(lambda: len(list(out.glob("cells/[!.]*.npz"))) > 5, process)
    process.send_signal(signal.SIGSTOP)  # so that it is killed below, and not after its end
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]  # kernel and workers end after their parent
    assert not (out / "report.ipynb").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("cells/[!.]*.npz")}
    done = condnum(*COMMAND, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # not computed again
    assert nbformat.read(out / "report.ipynb", as_version=4).cells
    undisturbed = [word if word != "out" else "other" for word in COMMAND]
    assert condnum(*undisturbed, cwd=tmp_path).returncode == 0
    pd.testing.assert_frame_equal(numbers(out), numbers(tmp_path / "other"), check_exact=True)


def test_a_disk_that_is_full_at_a_write_leaves_the_old_file(tmp_path, monkeypatch):
    def full(stream):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_text(tmp_path / "results.csv", "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="free some space there"):
            write_text(tmp_path / "results.csv", "new")
    assert (tmp_path / "results.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]
