"""`make gpu`, its device played by the CPU and its sizes tiny, without what a bare machine lacks."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from condnum.studies import digit_cells

REPOSITORY = Path(__file__).parents[1]
SCRIPT = REPOSITORY / "tests/benchmarks/gpu.py"
ENVIRONMENT = {"CONDNUM_DATA": "nothing", "XDG_CACHE_HOME": "nothing", "LOKY_MAX_CPU_COUNT": "1"}
MISSING = [
    "papermill",
    "plotly",
    "ipywidgets",
    "IPython",
    "nbformat",
    "nbconvert",
    "pyarrow",
    "dask",
    "jinja2",
]
#: The script as make starts it, where these modules cannot be imported.
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING!r}))
sys.argv = sys.argv[1:]
sys.path.insert(0, {str(SCRIPT.parent)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ON_CPU = ["--device", "cpu", "--tiny", "--out", "gpu"]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """`run("--tiny")`: the script in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SCRIPT.parent)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def call(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return call


@pytest.mark.long
@pytest.mark.slow
def test_every_table_on_a_cpu(tmp_path):
    command = [sys.executable, "-c", BARE, str(SCRIPT), *ON_CPU, "--seconds", "100000"]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "gpu").glob("*.csv")}
    page = (tmp_path / "gpu/README.md").read_text()
    failed = [name for name, table in tables.items() if name != "sweep" and "note" in table]
    assert not failed, page
    assert "Table 2 on digits-8x8" in page
    assert torch.__version__ in page

    steps = tables["steps"].set_index("D")
    assert steps.index.tolist() == [8, 16]
    ratios = steps["cpu_step_ms"] / steps["device_step_ms"]
    assert steps["times_one_core"].tolist() == pytest.approx(ratios.tolist())

    table_2 = tables["table2"].set_index(["method", "convention", "theta_scale"])
    assert len(table_2) == 4 * 3
    assert set(table_2["pairs"]) == {2}

    agreement = tables["agreement"]
    ends = agreement[agreement["steps"].isin(["4", "Table 2"])]
    assert ends["method"].value_counts().tolist() == [2] * 4  # two pairs by hand, and all cells
    assert (agreement["cells"] == 2).all()
    assert (agreement[["rir_ridge", "rir_compact"]] < 1e-8).all(axis=None)
    assert (agreement["theta"].dropna() < 1e-8).all()
    assert (agreement[["theta", "rir_ridge", "rir_compact"]] > 0).any(axis=None)  # two ways of computing

    (net,) = tables["resnet18"].to_dict("records")
    speeds = net["fine_tuning_images_per_s"] / net["immunization_images_per_s"]
    assert net["overhead"] == pytest.approx(speeds - 1)
    assert len(tables["attacks"]) == 7
    assert (tables["attacks"]["images_per_s"] > 0).all()

    device, cpu = tables["sweep"].to_dict("records")
    assert (device["cells"], cpu["cells"]) == (8, 8)
    phases = [device[f"{phase}_s"] for phase in ("tasks", "descents", "measuring", "storing")]
    assert min(phases) > 0
    assert sum(phases) == pytest.approx(device["seconds"])


def test_time_that_has_run_out_is_said_in_each_table(run, tmp_path):
    run(*ON_CPU, "--seconds", "1")
    for name in ("steps", "table2", "agreement", "resnet18", "attacks", "sweep"):
        (note,) = pd.read_csv(tmp_path / f"gpu/{name}.csv")["note"]
        assert note.startswith("left out: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_card_it_says_so(run, tmp_path, capsys):
    run()
    assert "sees no CUDA device here: nothing was measured" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_table_that_fails_is_a_line_and_ends_no_other(run, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(digit_cells, "immunize_batch", fail)
    run(*ON_CPU, "--seconds", "100000")
    tables = {path.stem: pd.read_csv(path) for path in (tmp_path / "gpu").glob("*.csv")}
    assert tables["table2"]["note"].tolist() == ["RuntimeError: no kernel image"]
    assert "timm" in tables["resnet18"]["note"][0]
    assert tables["sweep"]["note"][0] == "Table 2 did not come to its end"
    assert tables["sweep"]["cells"][1] == 8
    assert len(tables["agreement"]) == 8  # with an `immunize_batch` of its own
