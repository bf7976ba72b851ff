"""Each experiment from the command line: what a small run leaves, and what is refused before it starts."""

import ctypes
import gzip
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import papermill
import pytest

from condnum.data.mnist import write_idx
from condnum.deep import load_backbone
from condnum.deep.weights import read_metadata
from condnum.methods import method_names
from condnum.studies.cells import ResultStore
from condnum.studies.measure import RESULT_COLUMNS

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


RUNS = {
    "attackers": (
        "run attackers --source embedded --epochs 20 --attackers gd,whiten --steps 500",
        {"results.csv", "factors.csv", "extractors.csv", "immunization.csv", "curves.parquet"},
        4,
        "Whiten + GD needs one step on every extractor",
    ),
    "limits": (
        "run limits --data embedded --methods ours,identity --seeds 1 --epochs 20 --race-steps 20 -j 1",
        {
            "results.csv",
            "summary.csv",
            "ridged.csv",
            "ceilings.csv",
            "null_spaces.csv",
            "points.csv",
            "overshoots.csv",
            "directions.csv",
            "race.csv",
        },
        4,
        "lies beyond it",
    ),
    "reproduction-audit": (
        "run reproduction-audit --data embedded --seeds 2 --epochs 3 --ends 5 --jobs 1",
        {"results.csv", "waterfall.csv", "landing.csv"},
        2,
        "how it is here",
    ),
    "digits": (
        "run digits --methods ours,imma --seeds 1 --epochs 4 --pairs 4-7 --jobs 64",
        {"results.csv", "summary.csv", "rtol_sensitivity.csv", "ridge_sensitivity.csv"},
        3,
        "2 cells keep 2 of the 64 workers busy",
    ),
    "audit": (
        "audit --pretrain both.npz --harmful both.npz --key P,H --theta theta.npy --drop x5 --standardise "
        "--bootstrap 20 --no-attackers",
        {"audit.json"},
        3,
        ">Verdict</h2>",
    ),
    "corrections": ("run corrections", {"corrections.csv"}, 4, "counter-example"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_leaves(command, files, name):
    words, tables, figures, text = RUNS[name]
    done = command(*words.split(), "--out", "o", cwd=files)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    assert "Traceback" not in done.stderr
    assert name != "digits" or ("2/2 done" in done.stderr and "best RIR" in done.stderr)
    assert {path.name for path in (files / "o").iterdir()} == tables | REPORT
    page = (files / "o" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == figures
    assert text in page
    record = json.loads((files / "o" / "provenance.json").read_text())
    assert all(len(checksum) == 64 for checksum in record["data"].values())
    assert name != "audit" or set(record["data"]) == {"both.npz", "theta.npy"}


@pytest.mark.slow
def test_deep_nets_leave_their_models(command, tmp_path):
    words = (
        "run deep --backbone test_resnet --methods ours,r_ill_only --seeds 1 --epochs 2 --pretrain-epochs 2 "
        "--limit 40 --groups 2 --group-size 40 --image-size 16 --device cpu --jobs 1 --out o"
    )
    done = command(*words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "o"
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
        "results.csv", "summary.csv", "curves.parquet", *REPORT,
        "test_resnet/seed-0/theta_0.safetensors",
        "test_resnet/seed-0/ours/theta_I.safetensors",
        "test_resnet/seed-0/r_ill_only/theta_I.safetensors",
    }  # fmt: skip
    results = pd.read_csv(out / "results.csv").set_index("method")
    model = out / "test_resnet" / "seed-0" / "ours" / "theta_I.safetensors"
    assert read_metadata(model)["method"] == "ours"
    assert load_backbone(model).checksum == results.loc["ours", "checksum"].iloc[0]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 2
    assert "for orientation only" in page


@pytest.mark.xdist_group("embedded_run")
class TestHousePrices:
    def test_files_and_page(self, embedded_run):
        assert {path.name for path in embedded_run.folder.iterdir()} == {
            "results.csv", "summary.csv", "curves.parquet", *REPORT,
        }  # fmt: skip
        assert embedded_run.stdout.splitlines()[-1] == "out/report.html"
        page = (embedded_run.folder / "report.html").read_text(encoding="utf-8")
        assert "Table 1" in page
        assert page.count('class="plotly-graph-div"') == 4
        assert "cdn." not in page.split("<body", 1)[0]
        assert "<title>House prices: immunizing a linear feature extractor (diabetes, embedded)</t" in page

    def test_tables(self, embedded_run):
        results = pd.read_csv(embedded_run.folder / "results.csv")
        assert list(results.columns) == RESULT_COLUMNS
        assert len(results) == len(method_names()) * 2 * 3
        # θ = I is the yardstick itself: exactly 1, and therefore no success.
        identity = results[results["method"] == "identity"]
        assert (identity[["harmful_ratio", "pretrain_ratio", "rir"]] == 1).all(axis=None)
        assert not identity["success"].any()
        compact = results[results["convention"] == "compact"]
        assert (compact["rir"] <= compact["rir_ceiling"] * (1 + 1e-9)).all()
        best = compact[compact["method"] == "optimal"]
        np.testing.assert_allclose(best["rir"], best["rir_ceiling"], rtol=1e-8)
        summary = pd.read_csv(embedded_run.folder / "summary.csv").set_index(
            ["method", "convention", "gauge"]
        )
        chosen = results.set_index(["method", "convention", "gauge"]).loc[("ours", "ridge", "unit"), "rir"]
        assert summary.loc[("ours", "ridge", "unit"), "rir_mean"] == pytest.approx(chosen.mean())
        assert summary.loc[("ours", "ridge", "unit"), "rir_std"] == pytest.approx(chosen.std(ddof=1))
        assert summary["published_rir"].isna().all()
        curves = pd.read_parquet(embedded_run.folder / "curves.parquet")
        assert set(curves["quantity"]) == {
            "norm_ratio", "excess_loss", "spectrum", "kappa", "loss", "r_well", "r_ill",
        }  # fmt: skip

    def test_plain_papermill_runs_the_same_notebook(self, tmp_path):
        given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "epochs": 5}
        papermill.execute_notebook(
            NOTEBOOK, tmp_path / "plain.ipynb", parameters={**given, "out": str(tmp_path / "plain")},
            kernel_name="python3", progress_bar=False, cwd=tmp_path,
        )  # fmt: skip
        results = pd.read_csv(tmp_path / "plain" / "results.csv")
        assert list(dict.fromkeys(results["method"])) == ["ours", "identity"]

    def test_the_real_table_is_read(self, command, real_data, tmp_path):
        words = "run house-prices --methods ours --seeds 1 --epochs 3 --rows 40 --out o"
        assert command(*words.split(), cwd=tmp_path).returncode == 0
        assert set(pd.read_csv(tmp_path / "o" / "results.csv")["dataset"]) == {"house-prices"}
        assert set(pd.read_csv(tmp_path / "o" / "summary.csv")["published_rir"]) == {356.20}


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


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, lambda body: body[:-100], "30×28×28 = 23520 bytes, 23420 follow"),
        (IMAGES, lambda body: b"\1" + body[1:], "it starts with 0x01000803, not 0x000008"),
        (LABELS, lambda body: body[:7] + b"\x0a" + body[8:18], "(10,)"),
        (LABELS, lambda body: body[:-1] + b"\x0b", "index 29: 11"),
    ],
    ids=["truncated", "magic", "other-count", "no-digit"],
)
def test_damaged_images(refused, raw, name, damage, message):
    body = gzip.decompress((raw / name).read_bytes())
    (raw / name).write_bytes(gzip.compress(damage(body)))
    assert message in refused("run mnist --data data")


def test_a_digit_that_is_absent(refused, raw):
    write_digits(raw, np.repeat(np.delete(np.arange(10), 7), 3))
    assert "3 image(s) of 4 and 0 of 7" in refused("run mnist --data data --pairs 4-7")
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


def paragraph(done):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer(command, tmp_path):
    pytest.importorskip("distributed", reason="needs dask: pip install 'condnum[cluster]'")
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        message = paragraph(digits(command, tmp_path, "--scheduler", address, "--out", "o"))
    assert time.monotonic() - started < 60
    assert f"no scheduler answers at {address} within 10 s" in message
    assert "start one with `dask scheduler`" in message
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["report.failed.ipynb"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root on Linux")
def test_a_full_disk_loses_no_cell_and_the_same_command_goes_on(command, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        pairs = ",".join(f"{p}-{h}" for p in range(4) for h in range(10) if p != h)
        message = paragraph(digits(command, tmp_path, "--jobs", "1", "--out", "disk/o", pairs=pairs))
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


def without_root_rights():
    """Let file permissions count for this process even if it is root's."""
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="root ignores permissions; Linux can take that away")
def test_a_store_that_is_read_only(tmp_path):
    cells = tmp_path / "o.partial" / "cells"
    with ResultStore(cells) as store:
        store.put("a", {"rir": 2.0})
    cells.chmod(0o555)
    words = "run digits --methods imma --seeds 1 --epochs 3 --pairs 4-7 --jobs 1 --out o --quiet"
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, "check": False}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "condnum", *words.split()], preexec_fn=without_root_rights, **options
        )
    finally:
        cells.chmod(0o755)
    message = paragraph(done)
    assert "o.partial/cells" in message
    assert "make it writable, or choose another folder" in message
    with ResultStore(cells, mode="read") as store:
        assert store.get("a").row == {"rir": 2.0}


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
