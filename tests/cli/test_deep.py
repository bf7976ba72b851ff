"""`condnum run deep` from the command line: what it leaves, and how it fails."""

import pandas as pd
import pytest

from condnum.deep import load_backbone
from condnum.deep.weights import read_metadata

SMALL = (
    "--backbone", "test_resnet", "--methods", "ours,r_ill_only", "--seeds", "1", "--epochs", "2",
    "--pretrain-epochs", "2", "--limit", "40", "--groups", "2", "--group-size", "40", "--image-size", "16",
    "--device", "cpu", "--jobs", "1",
)  # fmt: skip


def test_embedded_end_to_end(command, tmp_path):
    done = command("run", "deep", "--data", "embedded", *SMALL, "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "o/report.html"
    out = tmp_path / "o"
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
        "results.csv", "summary.csv", "curves.parquet", "report.ipynb", "report.html", "provenance.json",
        "test_resnet/seed-0/theta_0.safetensors",
        "test_resnet/seed-0/ours/theta_I.safetensors",
        "test_resnet/seed-0/r_ill_only/theta_I.safetensors",
    }  # fmt: skip
    results = pd.read_csv(out / "results.csv")
    assert set(results["method"]) == {"initial", "ours", "r_ill_only"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('class="plotly-graph-div"') == 2
    assert "for orientation only" in page
    model = out / "test_resnet" / "seed-0" / "ours" / "theta_I.safetensors"
    assert read_metadata(model)["method"] == "ours"
    row = results[results["method"] == "ours"].iloc[0]
    assert load_backbone(model).checksum == row["checksum"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backbone", "resnet19"), "unknown timm model 'resnet19'; did you mean 'resnet18'"),
        (("--methods", "our"), "unknown method 'our'; did you mean 'ours'"),
        (("--pretrain", "digits-8x8:0-4"), "images of your own need both tasks"),
        (("--pretrain", "nowhere", "--harmful", "digits-8x8:5-9"), "no folder"),
        (("--pretrain", "digits-8x8:3", "--harmful", "digits-8x8:5-9"), "one class only"),
        (("--weights", "nowhere.pt"), "--weights nowhere.pt: there is no such file"),
        (("--group-size", "800"), "fewer than one group of 800"),
        (("--preset", "resnet18-car"), "unknown preset 'resnet18-car'; did you mean 'resnet18-cars'"),
        (("--data", "mnst"), "unknown data 'mnst'; did you mean 'mnist'"),
        (("--seeds", "0"), "'0' is no whole number of at least 1"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_paragraph_before_a_kernel_starts(command, words, message, tmp_path):
    done = command("run", "deep", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_help_documents_the_layouts(command, tmp_path):
    done = command("run", "deep", "--help", cwd=tmp_path)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for layout in ("ROOT/train/<wnid>/*.JPEG", "cars_train", "ROOT/train/<country>"):
        assert layout in text
