"""Each experiment from the command line: what a small run leaves, and what is refused before it starts."""

from pathlib import Path

import numpy as np
import pandas as pd
import papermill
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "experiments" / "house_prices.ipynb"


@pytest.fixture
def files(tmp_path):
    """Two small tasks, and a table that lacks columns."""
    for name in ("P", "H"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).normal(size=(50, 5)))
    (tmp_path / "train.csv").write_text("Id,MSZoning\n1,RL\n2,FV\n")
    return tmp_path


@pytest.mark.slow
def test_plain_papermill_runs_the_same_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # papermill takes paths as format strings
    given = {"data": "embedded", "methods": "ours,identity", "seeds": 1, "steps": 5}
    papermill.execute_notebook(
        NOTEBOOK, "plain.ipynb", parameters={**given, "out": str(tmp_path / "plain")},
        kernel_name="python3", progress_bar=False,
    )  # fmt: skip
    results = pd.read_csv(tmp_path / "plain" / "results.csv")
    assert list(dict.fromkeys(results["method"])) == ["ours", "identity"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run house-prices --data train.csv", "train.csv lacks 79 of the 81 columns"),
        ("run house-prices --data embedded --seeds x", "'x' is not an integer ≥ 0"),
        ("run mnist --data nowhere", "nowhere"),
        ("run deep --backbone resnet19", "unknown timm model 'resnet19'; did you mean 'resnet18'"),
        ("run stability --runs nowhere,.", "nowhere has no results.csv"),
        ("reproduce --scale huge", "unknown scale 'huge'"),
        ("reproduce --only mnits", "did you mean 'mnist'"),
        ("reproduce --jobs -1", "'-1' is not an integer ≥ 0"),
        ("audit", "--pretrain FILE and --harmful FILE"),
        ("audit --pretrain P.npy", "--pretrain was given without --harmful"),
        ("audit --pretrain P.npy --harmful H.npy --bootstrap 3", "at least 20"),
        ("audit --backbone test_resnet", "--pretrain-images"),
    ],
)
def test_refused_before_a_kernel_starts(refused, files, words, message):
    assert message in refused(words)


@pytest.fixture
def raw(tmp_path):
    """A folder with a small MNIST: 3 images of each digit."""
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images, labels = bytes.fromhex("00000803 0000001e 0000001c 0000001c"), bytes.fromhex("00000801 0000001e")
    (folder / "train-images-idx3-ubyte").write_bytes(images + bytes(30 * 28 * 28))
    (folder / "train-labels-idx1-ubyte").write_bytes(labels + bytes(range(10)) * 3)


def test_all_options_come_through_and_an_unknown_checksum_is_told(condnum, raw, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        "condnum.report.run.run_report",
        lambda book, *words, **options: given.append((book.path.stem, *words, options)) or [],
    )
    words = "run mnist --data data --methods imma,ours --seeds 2 --steps 7 --pairs 4-7 --labels published"
    done = condnum(*words.split(), *["--jobs", "3", "--device", "cpu", "--quiet"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is unknown; the results describe these files" in " ".join(done.stderr.split())
    ((notebook, values, folder, options),) = given
    assert notebook == "mnist_pairs"
    assert values == {
        "data": "data", "methods": "imma,ours", "seeds": 2, "steps": 7, "static": True,
        "pairs": "4-7", "labels": "published", "jobs": 3, "scheduler": "", "device": "cpu",
    }  # fmt: skip
    assert (str(folder), options["quiet"]) == ("runs/mnist-data", True)
    assert options["title"].endswith("(mnist, 30 training images, given path)")
    assert condnum("run", "digits", cwd=tmp_path).returncode == 0
    assert {k: given[1][1][k] for k in ("seeds", "pairs", "data")} == {
        "seeds": 3, "pairs": "", "data": "digits",
    }  # fmt: skip
    assert str(given[1][2]) == "runs/digits"
