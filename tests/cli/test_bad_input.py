"""What goes wrong with a sweep from the command line: one clear message, and nothing is lost."""

import ctypes
import gzip
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from condnum.cli import main
from condnum.cli.digit_pairs import run_report as _run_report  # ruff: ignore[unused-import]
from condnum.data.mnist import write_idx
from condnum.studies.store import ResultStore

digit_command = sys.modules["condnum.cli.digit_pairs"]
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.fixture
def raw(tmp_path):
    """A folder with a small MNIST: 3 images of each digit."""
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    write_digits(folder, np.repeat(np.arange(10, dtype=np.uint8), 3))
    return folder


def write_digits(folder, labels):
    rng = np.random.default_rng(0)
    write_idx(folder / IMAGES, rng.integers(0, 256, (len(labels), 28, 28)).astype(np.uint8))
    write_idx(folder / LABELS, labels.astype(np.uint8))


@pytest.fixture
def mnist(raw, tmp_path, monkeypatch, capsys):
    """`mnist(*options)`: status and message of `condnum run mnist` on the small MNIST, without the run."""
    started = []
    monkeypatch.setattr(digit_command, "run_report", lambda *_, **__: started.append(1))
    monkeypatch.chdir(tmp_path)

    def call(*options):
        status = main(["run", "mnist", "--data", "data", "--device", "cpu", "--out", "o", *options])
        message = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert "Traceback" not in message
        assert started == ([1] if status == 0 else [])
        started.clear()
        assert not (tmp_path / "o").exists()
        return status, message

    return call


def refused(answer, *words):
    status, message = answer
    assert status == 2, message
    for word in words:
        assert word in message
    assert message.count("condnum: ") <= 1  # one paragraph


class TestFiles:
    @pytest.mark.parametrize("name", [IMAGES, LABELS])
    def test_missing(self, mnist, raw, name):
        (raw / name).unlink()
        refused(mnist(), "mnist", name, "data")

    def test_no_such_folder(self, mnist):
        refused(mnist("--data", "nowhere"), "--data nowhere", "give an existing path")

    @pytest.mark.parametrize(
        ("name", "damage", "words"),
        [
            (IMAGES, lambda body: body[:-100], ("is truncated", "30×28×28 = 23520 bytes, 23420 follow")),
            (IMAGES, lambda body: body + b"\0", ("has trailing bytes", "23521 follow")),
            (
                IMAGES,
                lambda body: b"\1" + body[1:],
                (IMAGES, "it starts with 0x01000803, not 0x000008", "fetch it again"),
            ),
            (IMAGES, lambda body: body[:9], (IMAGES, "fetch it again")),
            (LABELS, lambda body: body[:7] + b"\x0a" + body[8:18], ("labels (N,)", "(10,)")),
            (LABELS, lambda body: body[:-1] + b"\x0b", ("labels must be 0 to 9", "index 29: 11")),
        ],
        ids=["truncated", "too-long", "magic", "header", "other-count", "no-digit"],
    )
    def test_damaged(self, mnist, raw, name, damage, words):
        body = gzip.decompress((raw / name).read_bytes())
        (raw / name).write_bytes(gzip.compress(damage(body)))
        refused(mnist(), *words)

    def test_half_a_gzip(self, mnist, raw):
        content = (raw / IMAGES).read_bytes()
        (raw / IMAGES).write_bytes(content[: len(content) // 2])
        refused(mnist(), IMAGES, "truncated or damaged gzip", "fetch it again")

    def test_an_unknown_checksum_is_a_warning(self, mnist):
        status, message = mnist()
        assert status == 0
        assert message.startswith("condnum: warning: SHA-256 ")
        assert "is not one that this project knows" in message


class TestDigits:
    def test_one_is_absent(self, mnist, raw):
        write_digits(raw, np.repeat(np.delete(np.arange(10), 7), 3))
        refused(mnist("--pairs", "4-7"), "3 image(s) of 4 and 0 of 7", "2 or more", "other pairs")
        refused(mnist(), "3 image(s) of 0 and 0 of 7")  # all pairs
        assert mnist("--pairs", "4-6")[0] == 0

    def test_one_has_a_single_image(self, mnist, raw):
        write_digits(raw, np.append(np.repeat(np.delete(np.arange(10), 7), 3), 7))
        refused(mnist("--pairs", "7-4"), "mnist has 1 image(s) of 7 and 3 of 4", "2 or more")

    @pytest.mark.parametrize("pair", ["4-10", "10-4", "4--1", "a-b", "4", "4-7-1"])
    def test_no_pair(self, mnist, pair):
        refused(mnist("--pairs", f"1-2,{pair}"), f"'{pair}' is no pair of digits", "write it as 4-7")

    def test_the_same_digit_twice(self, mnist):
        refused(mnist("--pairs", "4-4"), "pair (4, 4)", "two different digits from 0 to 9")


class TestOptions:
    @pytest.mark.parametrize("epochs", ["0", "-3", "many"])
    def test_epochs(self, mnist, epochs):
        refused(mnist("--epochs", epochs), "--epochs", f"'{epochs}' is no whole number of at least 1")

    @pytest.mark.parametrize("jobs", ["-1", "two"])
    def test_jobs(self, mnist, jobs):
        refused(mnist("--jobs", jobs), "--jobs", f"'{jobs}' is no whole number of at least 0")

    def test_no_address(self, mnist):
        refused(mnist("--scheduler", "localhost"), "'localhost'", "tcp://host:8786")


def digits(command, tmp_path, *options, methods="imma", pairs="4-7,9-0"):
    common = ("--methods", methods, "--seeds", "1", "--epochs", "3", "--pairs", pairs)
    return command("run", "digits", *common, *options, cwd=tmp_path)


def paragraph(done, status=2):
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer(command, tmp_path):
    pytest.importorskip("distributed", reason="needs dask: pip install 'condnum[cluster]'")
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        done = digits(command, tmp_path, "--scheduler", address, "--out", "o")
    assert time.monotonic() - started < 60
    message = paragraph(done)
    assert f"no scheduler answers at {address} within 10 s" in message
    assert "start one with `dask scheduler`" in message
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["report.failed.ipynb"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root on Linux")
def test_a_full_disk_loses_no_cell_and_the_same_command_goes_on(command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        pairs = ",".join(f"{p}-{h}" for p in range(4) for h in range(10) if p != h)
        message = paragraph(digits(command, tmp_path, "--jobs", "1", "--out", "disk/o", pairs=pairs))
        assert "disk/o" in message
        assert "No space left on device" in message or "disk is full" in message
        assert "free some space" in message
        subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True)
        with ResultStore(disk / "o" / ".partial" / "cells", mode="read") as store:
            kept = store.count()
        assert 0 < kept < 36
        done = digits(command, tmp_path, "--jobs", "1", "--out", "disk/o", pairs=pairs)
        assert done.returncode == 0, done.stderr
        page = (disk / "o" / "report.html").read_text("utf-8")
        assert f"{36 - kept} computed, {kept} from the store, 0 failed" in page
    finally:
        subprocess.run(["umount", disk], check=True)


def without_root_rights():
    """Let file permissions count for this process even if it is root's."""
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="root ignores permissions; Linux can take that away")
def test_a_store_that_is_read_only(tmp_path):
    cells = tmp_path / "o" / ".partial" / "cells"
    with ResultStore(cells) as store:
        store.put("a", {"rir": 2.0})
    cells.chmod(0o555)
    command = [sys.executable, "-m", "condnum", "run", "digits", "--methods", "imma", "--seeds", "1"]
    command += ["--epochs", "3", "--pairs", "4-7", "--jobs", "1", "--out", "o", "--quiet"]
    try:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            preexec_fn=without_root_rights,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        cells.chmod(0o755)
    message = paragraph(done)
    assert "results cannot be written" in message
    assert "o/.partial/cells" in message
    assert "make it writable, or choose another folder" in message
    with ResultStore(cells, mode="read") as store:
        assert list(store.rows()) == ["a"]


@pytest.mark.slow
def test_a_foreign_store_is_refused_and_left_as_it_is(command, tmp_path):
    content = b"no database at all, just text" * 50
    path = tmp_path / "o" / ".partial" / "cells" / "results.sqlite"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    message = paragraph(digits(command, tmp_path, "--jobs", "1", "--out", "o", "--quiet"))
    assert "results.sqlite is no sound SQLite file" in message
    assert "Move it away to start anew" in message
    assert path.read_bytes() == content


@pytest.mark.slow
def test_house_prices_refuse_a_foreign_store_too(command, tmp_path):
    path = tmp_path / "o" / ".partial" / "cells" / "results.sqlite"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no database at all, just text" * 50)
    options = ("--data", "embedded", "--methods", "imma", "--seeds", "1", "--epochs", "2", "--out", "o")
    message = paragraph(command("run", "house-prices", *options, "--quiet", cwd=tmp_path))
    assert "results.sqlite is no sound SQLite file" in message
    assert path.read_bytes() == b"no database at all, just text" * 50


REPAIR = """
import condnum.studies.{module} as cell
from condnum.methods import immunize
cell.immunize = immunize
"""
BREAK = (
    REPAIR
    + """
from condnum.errors import RankError

def singular(problem, method, *, immunize=immunize, RankError=RankError, **options):
    if method == "imma":
        raise RankError("rank 0, as the test wants it")
    return immunize(problem, method, **options)

cell.immunize = singular
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "module"), [("digits", "digit_cells"), ("house-prices", "pair_study")], ids=str
)
def test_cells_that_fail_end_with_status_1_and_are_tried_again(
    command, on_shared_kernel, tmp_path, experiment, module
):
    options = ["--seeds", "1", "--epochs", "3", "--jobs", "1", "--out", "o", "--methods", "ours,imma"]
    options += ["--pairs", "4-7"] if experiment == "digits" else ["--data", "embedded"]
    with on_shared_kernel.running(cwd=tmp_path):
        on_shared_kernel.execute(BREAK.format(module=module))
    try:
        done = command("run", experiment, *options, cwd=tmp_path)
    finally:
        on_shared_kernel.execute(REPAIR.format(module=module))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "1 cell failed:" in done.stderr
    assert "RankError: rank 0, as the test wants it" in done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    failures = pd.read_csv(tmp_path / "o" / "failures.csv")
    assert "method=imma" in failures["cell"].item()
    assert "Cells that failed" in (tmp_path / "o" / "report.html").read_text("utf-8")
    assert set(pd.read_csv(tmp_path / "o" / "results.csv")["method"]) == {"ours"}

    again = command("run", experiment, *options, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert not (tmp_path / "o" / "failures.csv").exists()
    assert not (tmp_path / "o" / ".partial").exists()
    page = (tmp_path / "o" / "report.html").read_text("utf-8")
    assert "1 computed, 1 from the store, 0 failed" in page
