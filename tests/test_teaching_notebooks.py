"""Every teaching notebook runs by papermill, as it is and with plain figures, without error and in time.

As it is on a kernel of its own, imports included in its time; with plain figures on the shared kernel.
"""

import time
from pathlib import Path

import pytest

pytest.importorskip("papermill", reason="the extra notebooks is not installed")
pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.report.notebook import read_notebook, run_notebook
from condnum.report.parameters import declared_parameters

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("[1-6]_*.ipynb"))
BUDGET = 60  # seconds for a whole notebook with its default parameters
WIDGET, PLOTLY = "application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks_to_test():
    assert any(path.stem == "1_condition_number" for path in NOTEBOOKS)


@each_notebook
def test_it_declares_the_switch_static(path):
    node = read_notebook(path)
    static = declared_parameters(node)["static"]
    assert (static.annotation, static.default) == ("bool", False)
    assert all(not cell.get("outputs") for cell in node.cells)


@each_notebook
@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True], ids=["widgets", "static"])
def test_it_runs_in_time(path, static, tmp_path, request):
    if static:
        request.getfixturevalue("on_shared_kernel")
    started = time.perf_counter()
    report = run_notebook(path, {"static": static}, tmp_path / "out", quiet=True, timeout=BUDGET)
    seconds = time.perf_counter() - started
    print(f"\n{path.stem}, static={static}: {seconds:.1f} s by papermill")
    shown = [
        kind
        for cell in read_notebook(report).cells
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    ]
    assert (WIDGET in shown) == (not static and "static=static" in path.read_text(encoding="utf-8"))
    if static and "static=static" in path.read_text(encoding="utf-8"):
        assert PLOTLY in shown
    assert seconds <= BUDGET
