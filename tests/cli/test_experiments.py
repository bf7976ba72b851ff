"""Each experiment from the command line: what a small run leaves, and what is refused before it starts."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import papermill
import pytest

from condnum.data.mnist import write_idx
from condnum.studies.cells import ResultStore

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"
REPORT = {"report.ipynb", "report.html", "provenance.json"}


@pytest.fixture
def files(tmp_path):
    """Two small tasks with an extractor and targets."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 5)) * np.arange(1, 6)
    np.save(tmp_path / "P.npy", X[:70].astype(np.float32))
    np.save(tmp_path / "H.npy", X[70:])
    X6 = np.column_stack([X, np.arange(120)])
    np.savez(tmp_path / "both.npz", P=X6[:70], H=X6[70:])
    (tmp_path / "excel.csv").write_text("a;b\n1,5;2\n")
    (tmp_path / "words.csv").write_text("name,a\nx,1\ny,2\n")
    (tmp_path / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
    np.save(tmp_path / "theta.npy", np.diag([1.0, 2, 3, 4, 5]))
    np.save(tmp_path / "y.npy", X[70:] @ np.ones(5))
    return tmp_path


#: Beside the golden runs: the command, what it leaves beside the report, figures and words of its page.
RUNS = {
    "audit": (
        "audit --pretrain both.npz --harmful both.npz --key P,H --theta theta.npy --drop x5 --standardise "
        "--bootstrap 20 --no-attackers",
        "audit.json",
        3,
        ">Verdict</h2>",
    ),
    "corrections": ("run corrections", "corrections.csv", 4, "counter-example"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_leaves(command, files, name):
    words, table, figures, text = RUNS[name]
    done = command(*words.split(), "--out", "o", cwd=files)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (files / "o").iterdir()} == {table, *REPORT}
    page = (files / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == figures
    assert text in page
    record = json.loads((files / "o" / "provenance.json").read_text())
    assert name != "audit" or set(record["data"]) == {"both.npz", "theta.npy"}


@pytest.mark.xdist_group("embedded_run")
class TestHousePrices:
    def test_files_and_page(self, embedded_run):
        assert {path.name for path in embedded_run.folder.iterdir()} == {
            "results.csv", "summary.csv", "curves.parquet", *REPORT,
        }  # fmt: skip
        assert embedded_run.stdout.splitlines()[-1] == "out/report.html"
        assert "done" in embedded_run.stderr
        assert "best RIR" in embedded_run.stderr
        page = (embedded_run.folder / "report.html").read_text(encoding="utf-8")
        assert "Table 1" in page
        assert page.count('class="plotly-graph-div"') == 4
        assert "cdn." not in page.split("<body", 1)[0]
        assert "<title>House prices: immunizing a linear feature extractor (diabetes, embedded)</t" in page

    def test_plain_papermill_runs_the_same_notebook(self, tmp_path):
        given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "epochs": 5}
        papermill.execute_notebook(
            NOTEBOOK, tmp_path / "plain.ipynb", parameters={**given, "out": str(tmp_path / "plain")},
            kernel_name="python3", progress_bar=False, cwd=tmp_path,
        )  # fmt: skip
        results = pd.read_csv(tmp_path / "plain" / "results.csv")
        assert list(dict.fromkeys(results["method"])) == ["ours", "identity"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run house-prices --data embedded --methods our", "unknown method 'our'; did you mean 'ours'?"),
        ("run house-prices --data nowhere.csv", "nowhere.csv"),
        ("run house-prices --data embedded --device cuda:7", "--device cpu"),
        ("run house-prices --data train.csv", "train.csv lacks 79 of the 81 columns"),
        ("run house-prices --data embedded --seeds 0", "seeds must be an integer of at least 1, got 0"),
        ("run house-prices --data embedded --seeds x", "'x' is no whole number of at least 0"),
        ("run house-prices --data embedded --features all", "unknown features 'all'"),
        ("run house-prices --data embedded --rows -1", "'-1' is no whole number of at least 0"),
        ("run house-prices --data embedded -j -1", "'-1' is no whole number of at least 0"),
        ("run house-prices --nonsense", "No such option"),
        ("run digits --pairs 4-4", "two different digits from 0 to 9"),
        ("run digits --pairs 1-2,4-10", "'4-10' is no pair of digits; write it as 4-7"),
        ("run digits --labels own", "unknown labels 'own'"),
        ("run digits --data nowhere", "condnum run mnist"),
        ("run digits --scheduler localhost", "tcp://host:8786"),
        ("run mnist --data nowhere", "nowhere"),
        ("run mnist --data embedded", "condnum run digits"),
        ("run limits --data svhn", "svhn"),
        ("run limits --data mnist --source nowhere", "nowhere"),
        ("run limits --source embedded --pairs 4-7", "house prices are one pair"),
        ("run limits --source embedded --ridge 0", "must be positive, got 0"),
        ("run limits --race-steps -1", "'-1' is no whole number of at least 0"),
        ("run attackers --data mnst:4-9", "did you mean 'mnist:4-9'"),
        ("run attackers --attackers adm", "did you mean 'adam'"),
        ("run attackers --source nowhere", "nowhere"),
        ("run reproduction-audit --data mnist", "come with a pair"),
        ("run reproduction-audit --data embedded --epochs ten", "no list of whole numbers"),
        ("run reproduction-audit --data embedded --epochs -1", "at least 1, got -1"),
        ("run deep --backbone resnet19", "unknown timm model 'resnet19'; did you mean 'resnet18'"),
        ("run deep --pretrain digits-8x8:0-4", "images of your own need both tasks"),
        ("run deep --pretrain nowhere --harmful digits-8x8:5-9", "no folder"),
        ("run deep --pretrain digits-8x8:3 --harmful digits-8x8:5-9", "one class only"),
        ("run deep --weights nowhere.pt", "--weights nowhere.pt: there is no such file"),
        ("run deep --group-size 800", "fewer than one group of 800"),
        ("run deep --preset resnet18-car", "unknown preset 'resnet18-car'; did you mean 'resnet18-cars'"),
        ("run deep --data mnst", "unknown data 'mnst'; did you mean 'mnist'"),
        ("audit", "--pretrain FILE and --harmful FILE"),
        ("audit --pretrain P.npy", "pretrain was given without harmful"),
        ("audit --pretrain P.npy --harmful none.npy", "cannot read none.npy"),
        ("audit --pretrain P.npy --harmful y.npy", "features are a matrix"),
        ("audit --pretrain P.npy --harmful H.npy --theta-0 theta.npy", "theta_0 was given without"),
        ("audit --pretrain P.npy --harmful H.npy --bootstrap 3", "at least 20"),
        ("audit --backbone test_resnet", "--pretrain-images"),
        ("audit --pretrain P.npy --harmful H.npy --drop x9", "unknown column to leave out (drop) 'x9'"),
        ("audit --pretrain . --harmful H.npy", "is a folder"),
        ("audit --pretrain excel.csv --harmful H.npy", "separates its cells by semicolons"),
        ("audit --pretrain words.csv --harmful words.csv", "do not hold numbers: name"),
        ("audit --pretrain P.npy --harmful H.npy --max-dimension 4", "above the limit of 4"),
    ],
)
def test_refused_before_a_kernel_starts(refused, files, words, message):
    assert message in refused(words)


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


def test_files_that_are_damaged_or_lack_a_digit(refused, raw):
    write_digits(raw, np.repeat(np.delete(np.arange(10), 7), 3))
    assert "3 image(s) of 4 and 0 of 7" in refused("run mnist --data data --pairs 4-7")
    (raw / IMAGES).write_bytes(gzip.compress(gzip.decompress((raw / IMAGES).read_bytes())[:-100]))
    assert "27×28×28 = 21168 bytes, 21068 follow" in refused("run mnist --data data")
    (raw / LABELS).unlink()
    assert LABELS in refused("run mnist --data data")


def test_all_options_come_through_and_an_unknown_checksum_is_told(command, raw, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        "condnum.report.notebook.run_report",
        lambda path, values, **options: given.append((path.stem, values, options)) or [],
    )
    words = "run mnist --data data --methods imma,ours --seeds 2 --epochs 7 --pairs 4-7 --labels published"
    done = command(*words.split(), *["--jobs", "3", "--device", "cpu", "--quiet"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is not one that this project knows" in " ".join(done.stderr.split())
    ((notebook, values, options),) = given
    assert notebook == "mnist_pairs"
    assert values == {
        "dataset": "mnist", "data": "data", "methods": "imma,ours", "seeds": 2, "epochs": 7, "static": True,
        "pairs": "4-7", "labels": "published", "jobs": 3, "scheduler": "", "device": "cpu",
    }  # fmt: skip
    assert (str(options["out"]), options["quiet"]) == ("runs/mnist-data", True)
    assert command("run", "digits", cwd=tmp_path).returncode == 0
    assert {k: given[1][1][k] for k in ("dataset", "seeds", "pairs", "data")} == {
        "dataset": "digits", "seeds": 3, "pairs": "", "data": "embedded",
    }  # fmt: skip
    assert str(given[1][2]["out"]) == "runs/digits-embedded"


def digits(command, folder, *options, methods="imma", pairs="4-7,9-0"):
    common = ("--methods", methods, "--seeds", "1", "--epochs", "3", "--pairs", pairs)
    return command("run", "digits", *common, *options, cwd=folder)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root on Linux")
def test_a_full_disk_loses_no_cell_and_the_same_command_goes_on(command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        pairs = ",".join(f"{p}-{h}" for p in range(4) for h in range(10) if p != h)
        done = digits(command, tmp_path, "--jobs", "1", "--out", "disk/o", pairs=pairs)
        assert done.returncode == 2
        message = " ".join(done.stderr.split())
        assert "disk/o" in message
        assert "No space left on device" in message or "disk is full" in message
        assert "free some space" in message
        subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True)
        with ResultStore(disk / "o.partial" / "cells", mode="read") as store:
            kept = store.count()
        assert 0 < kept < 36
        done = digits(command, tmp_path, "--jobs", "1", "--out", "disk/o", pairs=pairs)
        assert done.returncode == 0, done.stderr
        page = (disk / "o" / "report.html").read_text("utf-8")
        assert f"{36 - kept} computed, {kept} from the store, 0 failed" in page
    finally:
        subprocess.run(["umount", disk], check=True)


REPAIR = """
import condnum.studies.digit_pairs as cell
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
def test_cells_that_fail_end_with_status_1_and_are_tried_again(command, on_shared_kernel, tmp_path):
    options = {"methods": "ours,imma", "pairs": "4-7"}
    with on_shared_kernel.running(cwd=tmp_path):
        on_shared_kernel.execute(BREAK)
    try:
        done = digits(command, tmp_path, "--jobs", "1", "--out", "o", **options)
    finally:
        on_shared_kernel.execute(REPAIR)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "RankError: rank 0, as the test wants it" in done.stderr
    assert "method=imma" in pd.read_csv(tmp_path / "o" / "failures.csv")["cell"].item()
    assert "Cells that failed" in (tmp_path / "o" / "report.html").read_text("utf-8")
    again = digits(command, tmp_path, "--jobs", "1", "--out", "o", **options)
    assert again.returncode == 0, again.stderr
    assert not (tmp_path / "o" / "failures.csv").exists()
    page = (tmp_path / "o" / "report.html").read_text("utf-8")
    assert "1 computed, 1 from the store, 0 failed" in page
