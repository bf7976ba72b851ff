"""`make gpu`, its device played by the CPU and its sizes tiny, without what a bare machine lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

REPOSITORY = Path(__file__).parents[1]
SCRIPT = REPOSITORY / "tests/benchmarks/gpu.py"
NAMES = "papermill plotly ipywidgets IPython nbformat nbconvert pyarrow dask jinja2"
MISSING = NAMES.split()
#: The script as make starts it, where these modules cannot be imported.
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({MISSING!r}))
sys.argv = sys.argv[1:]
sys.path.insert(0, {str(SCRIPT.parent)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def measured(folder, *words):
    """Run the script there; return what it prints and its tables."""
    environment = {"CONDNUM_DATA": "nothing", "XDG_CACHE_HOME": "nothing", "LOKY_MAX_CPU_COUNT": "1"}
    environment |= {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", BARE, str(SCRIPT), *words]
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, {path.stem: pd.read_csv(path) for path in (folder / "gpu").glob("*.csv")}


@pytest.mark.long
@pytest.mark.slow
def test_every_table_on_a_cpu(tmp_path):
    _, tables = measured(tmp_path, "--device", "cpu", "--tiny", "--out", "gpu", "--seconds", "100000")
    page = (tmp_path / "gpu/README.md").read_text()
    assert not [name for name, table in tables.items() if name != "sweep" and "note" in table], page
    assert torch.__version__ in page
    assert tables["steps"]["D"].tolist() == [8, 16]
    assert set(tables["table2"]["pairs"]) == {2}
    agreement = tables["agreement"]
    assert (agreement[["rir_ridge", "rir_compact"]] < 1e-8).all(axis=None)
    assert (agreement["theta"].dropna() < 1e-8).all()
    assert (agreement[["theta", "rir_ridge", "rir_compact"]] > 0).any(axis=None)  # two ways of computing
    assert (tables["attacks"]["images_per_s"] > 0).all()
    device, cpu = tables["sweep"].to_dict("records")
    assert (device["cells"], cpu["cells"]) == (8, 8)
    phases = [device[f"{phase}_s"] for phase in ("tasks", "descents", "measuring", "storing")]
    assert sum(phases) == pytest.approx(device["seconds"])


def test_time_that_has_run_out_is_said_in_each_table(tmp_path):
    _, tables = measured(tmp_path, "--device", "cpu", "--tiny", "--out", "gpu", "--seconds", "1")
    notes = [table["note"].item() for table in tables.values()]
    assert len(notes) == 6
    assert all(note.startswith("left out: ") for note in notes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_card_it_says_so(tmp_path):
    said, tables = measured(tmp_path)
    assert "sees no CUDA device here: nothing was measured" in said
    assert not tables
