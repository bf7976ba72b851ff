"""`condnum audit` from end to end on small files, and how it refuses others."""

import json

import numpy as np
import pytest

from condnum.report.notebook import read_notebook

FILES = {"audit.json", "provenance.json", "report.html", "report.ipynb"}


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
    np.save(tmp_path / "theta.npy", np.diag([1.0, 2, 3, 4, 5]))
    np.save(tmp_path / "y.npy", X[70:] @ np.ones(5))
    return tmp_path


@pytest.mark.slow
def test_what_an_audit_leaves(command, files):
    done = command(
        "audit", "--pretrain", "both.npz", "--harmful", "both.npz", "--key", "P,H", "--theta", "theta.npy",
        "--drop", "x5", "--standardise", "--bootstrap", "20", "--no-attackers", "--out", "out", cwd=files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "out/report.html"
    assert {path.name for path in (files / "out").iterdir()} == FILES
    record = json.loads((files / "out" / "audit.json").read_text())
    assert record["tasks"]["D_P"]["rows"] == 70
    assert record["attackers"] is None
    assert any("switched off" in sentence for sentence in record["summary"])
    page = (files / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 3
    assert page.index(">Verdict</h2>") < page.index(">Condition numbers</h2>")
    assert record["columns"][0]["column"] == "x0"
    checksums = json.loads((files / "out" / "provenance.json").read_text())["data"]
    assert set(checksums) == {"both.npz", "theta.npy"}
    outputs = [
        o for cell in read_notebook(files / "out" / "report.ipynb").cells for o in cell.get("outputs", [])
    ]
    assert not [output for output in outputs if output["output_type"] in ("error", "stream")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--pretrain FILE and --harmful FILE"),
        (("--pretrain", "P.npy"), "pretrain was given without harmful"),
        (("--pretrain", "P.npy", "--harmful", "none.npy"), "cannot read none.npy"),
        (("--pretrain", "P.npy", "--harmful", "y.npy"), "features are a matrix"),
        (
            ("--pretrain", "P.npy", "--harmful", "H.npy", "--theta-0", "theta.npy"),
            "theta_0 was given without",
        ),
        (("--pretrain", "P.npy", "--harmful", "H.npy", "--bootstrap", "3"), "at least 20"),
        (("--backbone", "test_resnet"), "--pretrain-images"),
        (
            ("--pretrain", "P.npy", "--harmful", "H.npy", "--drop", "x9"),
            "unknown column to leave out (drop) 'x9'",
        ),
        (("--pretrain", ".", "--harmful", "H.npy"), "is a folder"),
        (("--pretrain", "excel.csv", "--harmful", "H.npy"), "separates its cells by semicolons"),
        (("--pretrain", "words.csv", "--harmful", "words.csv"), "do not hold numbers: name"),
        (("--pretrain", "P.npy", "--harmful", "H.npy", "--max-dimension", "4"), "above the limit of 4"),
    ],
)
def test_refused_before_a_kernel_starts(arguments, message, command, files):
    done = command("audit", *arguments, "--out", "out", cwd=files)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not (files / "out").exists()
