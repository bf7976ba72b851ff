"""A command that is killed, a disk that is full: old results stand whole, and the next run goes on."""

import errno
import os
import subprocess
import sys

import pandas as pd
import psutil
import pytest
from waiting import PATIENCE, wait_until

from condnum.errors import OutputError
from condnum.files import write_text

COMMAND = ["run", "house-prices", "--data", "embedded", "--methods", "identity,ours", "--seeds", "3"]
COMMAND += ["--steps", "300", "--jobs", "1", "--quiet", "--out"]


def numbers(out):
    """Return the rows without times."""
    rows = pd.read_csv(out / "results.csv")
    return rows.drop(columns=[name for name in rows if "seconds" in name])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals as on Linux")
def test_a_killed_run_leaves_its_cells_and_no_process_and_the_next_one_resumes(condnum, tmp_path):
    out = tmp_path / "out"
    words, options = [sys.executable, "-m", "condnum", *COMMAND, "out"], {"stderr": subprocess.PIPE}
    process = subprocess.Popen(words, cwd=tmp_path, text=True, start_new_session=True, **options)
    wait_until(lambda: len(list(out.glob("cells/[!.]*.npz"))) > 1, process)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]  # the kernel ends after its parent
    kept = {path: path.stat().st_mtime_ns for path in out.glob("cells/[!.]*.npz")}
    for folder in ("out", "other"):  # `other` is undisturbed
        done = condnum(*COMMAND, folder, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # not computed again
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
