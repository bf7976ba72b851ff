"""Answers: the sentence and the table of each experiment, and names that its numbers bear out."""

import re

import nbformat
import pytest

from condnum.methods import get_method, method_names
from condnum.numbers import number
from condnum.page.answer import answer
from condnum.page.html import answer_of, render_html
from condnum.page.linear import MEASURES, comparison_table
from condnum.page.notebook import ParameterNotebook, experiment_names
from condnum.page.tables import sortable
from condnum.site.results import committed_runs

RUNS = {run.name: run for run in committed_runs()}


@pytest.mark.parametrize("name", RUNS)
def test_a_committed_page_begins_with_its_answer(name):
    run = RUNS[name]
    found = answer(run.experiment.run, run.table)
    assert str(found) == found.sentence
    assert len(found.table)
    assert not re.search(r"nan|inf\b|\d[eE][+-]?\d|<|\(\d+, \d", found.sentence.replace("\u00a0", " "))


def test_the_answer_has_the_published_number_beside_the_obtained_one():
    run = RUNS["house-prices"]
    (ours,) = (
        run.table("summary")
        .query("method == 'ours' and convention == 'ridge' and theta_scale == 'as_trained'")
        .itertuples()
    )
    found = answer("house-prices", run.table)
    for text in (found.sentence, " ".join(found.table.iloc[0])):
        assert f"{number(ours.rir_mean)}\u00a0±" in text
        assert "356.2" in text
        assert "5\u00a0of\u00a05" in text


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


def test_published_ratios_stand_in_their_own_convention_alone():
    table = comparison_table(RUNS["house-prices"].table("summary").assign(rir_share=0.5))
    published = table["RIR ↑<br><small>(published)</small>"].str.contains("356.2")
    assert table.loc[published, "κ"].tolist() == [MEASURES["ridge", "as_trained"]]
    assert 'data-filters="[0, 1]"' in sortable(table, "κ", "method")
