"""Each experiment from the command line: what a small run leaves, and what is refused before it starts."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import papermill
import pytest

from condnum.data.mnist import write_idx

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"


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
    (tmp_path / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
    np.save(tmp_path / "theta.npy", np.diag([1.0, 2, 3, 4, 5]))
    np.save(tmp_path / "y.npy", X[70:] @ np.ones(5))
    return tmp_path


@pytest.mark.slow
def test_an_audit_of_an_extractor_on_scaled_columns_of_an_archive(condnum, files):
    words = (
        "audit --pretrain both.npz --harmful both.npz --key P,H --theta theta.npy --drop x5 --standardise "
        "--bootstrap 20 --no-attackers --out o"
    )
    done = condnum(*words.split(), cwd=files)
    assert done.returncode == 0, done.stderr
    record = json.loads((files / "o" / "provenance.json").read_text())
    assert set(record["data"]) == {"both.npz", "theta.npy"}
    assert set(record["files"]) == {"audit.json", "report.ipynb", "report.html"}


@pytest.mark.slow
def test_plain_papermill_runs_the_same_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # papermill takes paths as format strings
    given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "epochs": 5}
    papermill.execute_notebook(
        NOTEBOOK, "plain.ipynb", parameters={**given, "out": str(tmp_path / "plain")},
        kernel_name="python3", progress_bar=False,
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
        ("run house-prices --data embedded --seeds x", "'x' is not an integer of at least 0"),
        ("run house-prices --nonsense", "No such option"),
        ("run digits --data nowhere", "condnum run mnist"),
        ("run digits --scheduler localhost", "tcp://host:8786"),
        ("run mnist --data embedded", "condnum run digits"),
        ("run limits --data mnist --source nowhere", "nowhere"),
        ("run limits --source embedded --ridge 0", "must be positive, got 0"),
        ("run attackers --data mnst:4-9", "did you mean 'mnist:4-9'"),
        ("run reproduction-audit --data mnist:4-7", "unknown data 'mnist:4-7'"),
        ("run reproduction-audit --data embedded --epochs ten", "no list of whole numbers"),
        ("run deep --backbone resnet19", "unknown timm model 'resnet19'; did you mean 'resnet18'"),
        ("run deep --pretrain digits-8x8:0-4", "images of your own need both tasks"),
        ("run deep --weights nowhere.pt", "--weights nowhere.pt: there is no such file"),
        ("run deep --preset resnet18-car", "unknown preset 'resnet18-car'; did you mean 'resnet18-cars'"),
        ("run stability", "give their folders, such as --runs"),
        ("run stability --runs nowhere,.", "nowhere holds no results.csv"),
        ("audit", "--pretrain FILE and --harmful FILE"),
        ("audit --pretrain P.npy", "--pretrain was given without --harmful"),
        ("audit --pretrain P.npy --harmful y.npy", "expected a matrix"),
        ("audit --pretrain P.npy --harmful H.npy --bootstrap 3", "at least 20"),
        ("audit --backbone test_resnet", "--pretrain-images"),
        ("audit --pretrain excel.csv --harmful H.npy", "separates its cells by semicolons"),
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


def test_all_options_come_through_and_an_unknown_checksum_is_told(condnum, raw, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        "condnum.report.run.run_report",
        lambda book, *words, **options: given.append((book.path.stem, *words, options)) or [],
    )
    words = "run mnist --data data --methods imma,ours --seeds 2 --epochs 7 --pairs 4-7 --labels published"
    done = condnum(*words.split(), *["--jobs", "3", "--device", "cpu", "--quiet"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is not one that this project knows" in " ".join(done.stderr.split())
    ((notebook, values, folder, options),) = given
    assert notebook == "mnist_pairs"
    assert values == {
        "dataset": "mnist", "data": "data", "methods": "imma,ours", "seeds": 2, "epochs": 7, "static": True,
        "pairs": "4-7", "labels": "published", "jobs": 3, "scheduler": "", "device": "cpu",
    }  # fmt: skip
    assert (str(folder), options["quiet"]) == ("runs/mnist-data", True)
    assert options["title"].endswith("(mnist, 30 training images, given path)")
    assert condnum("run", "digits", cwd=tmp_path).returncode == 0
    assert {k: given[1][1][k] for k in ("dataset", "seeds", "pairs", "data")} == {
        "dataset": "digits", "seeds": 3, "pairs": "", "data": "embedded",
    }  # fmt: skip
    assert str(given[1][2]) == "runs/digits-embedded"
