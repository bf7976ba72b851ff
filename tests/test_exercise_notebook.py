"""Notebook 6 by papermill: unanswered as committed, all right with the solutions filled in."""

from pathlib import Path

import pytest

pytest.importorskip("papermill", reason="the extra notebooks is not installed")

from condnum.report.notebook import read_notebook, run_notebook

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "6_exercises.ipynb"


@pytest.mark.slow
@pytest.mark.parametrize(("solutions", "status"), [(False, "not answered yet"), (True, "right")])
def test_the_checks(on_shared_kernel, solutions, status, tmp_path):
    report = run_notebook(
        NOTEBOOK, {"solutions": solutions, "static": True}, tmp_path / "out", quiet=True, timeout=600
    )
    said = [
        output["data"]["text/plain"]
        for cell in read_notebook(report).cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result"
    ]
    assert len(said) == 11
    assert all(text.startswith(status) for text in said), said


def test_solutions_are_hidden_and_depend_on_the_switch():
    cells = read_notebook(NOTEBOOK).cells
    hidden = [cell for cell in cells if "solution" in cell.metadata.get("tags", [])]
    assert len(hidden) == 11
    for cell in hidden:
        assert cell.metadata["jupyter"]["source_hidden"] is True
        assert cell.source.startswith("if solutions:\n")
    prose = [cell for cell in cells if cell.cell_type == "markdown" and "Solution</b>" in cell.source]
    assert len(prose) == 11
    assert all(cell.source.startswith("<details>") for cell in prose)
