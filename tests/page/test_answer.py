"""Answers: the sentence and the table of each experiment, and names that its numbers bear out."""

import re

import nbformat
import numpy as np
import pandas as pd
import pytest

from condnum.methods import get_method, method_names
from condnum.page.answer import answer
from condnum.page.html import answer_of, render_html
from condnum.page.notebook import ParameterNotebook, experiment_names
from condnum.site.results import committed_runs

RUNS = {run.name: run for run in committed_runs()}


@pytest.mark.parametrize("name", RUNS)
def test_a_committed_page_begins_with_its_answer(name):
    run = RUNS[name]
    found = answer(run.experiment.run, run.table)
    assert str(found) == found.sentence
    assert len(found.table)
    assert not re.search(r"nan|inf\b|\d[eE][+-]?\d|<|\(\d+, \d", found.sentence.replace("\u00a0", " "))


@pytest.mark.parametrize("name", experiment_names())
def test_a_notebook_answers_before_it_explains(name):
    cells = ParameterNotebook.find(name).node.cells
    tags = [cell.metadata.get("tags", []) for cell in cells if cell.cell_type == "code"]
    assert (tags[0], tags[2]) == (["parameters"], ["answer"])
    first = next(place for place, cell in enumerate(cells) if "answer" in cell.metadata.get("tags", []))
    assert [cell.cell_type for cell in cells[:first]] == ["markdown", "code", "code"]


def test_a_page_has_the_answer_first_and_the_code_last(tmp_path):
    said = nbformat.v4.new_output("display_data", data={"text/plain": "42.", "text/html": "<p>42.</p>"})
    node = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell("# Title"),
        nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("show(x)", metadata={"tags": ["answer"]}, outputs=[said]),
        nbformat.v4.new_markdown_cell("## Method"),
    ])  # fmt: skip
    nbformat.write(node, tmp_path / "report.ipynb")
    assert answer_of(tmp_path / "report.ipynb") == "42."
    page = render_html(node)
    places = [page.index(text) for text in ("Title</h1>", "<p>42.</p>", "Method</h2>", "Parameters and code")]
    assert places == sorted(places)
    assert page.count('<details class="code"') == 1


def test_names_of_methods_promise_no_numbers():
    """Labels promise no numbers."""
    for name in method_names():
        assert not re.search(r"[<>≤≥]|below|above|attain", re.sub(r"<[^>]+>", "", get_method(name).label))


def test_the_answer_about_attackers_is_of_the_target_that_their_loss_is_reported_at() -> None:
    for start, goal in ((float(np.log(2)), "10 %"), (1.0, "1 %")):  # the loss of zero weights
        factors = pd.DataFrame(
            {
                "attacker": "gd", "label": "Gradient descent", "extractor": "ours", "bound": "exact",
                "epsilon": [0.1, 0.01], "factor": [3.0, 4.0],
            }
        )  # fmt: skip
        tables = {"factors": factors, "extractors": pd.DataFrame({"start_loss": [start]})}
        found = answer("attackers", tables.get)
        assert f"needs {3 if goal == '10 %' else 4}× as many steps" in found.sentence
        assert f"(to {goal} of the excess loss)" in found.sentence
