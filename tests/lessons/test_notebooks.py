"""The teaching notebooks: each runs once, without widgets; the site of the browser tests takes that run."""

import re
from pathlib import Path

import pytest

pytest.importorskip("papermill", reason="the extra notebooks is not installed")
pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.cli import main
from condnum.page.html import WIDGET
from condnum.page.notebook import PLOTLY, RECORDING, ParameterNotebook, read_notebook

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[1-8]_*.ipynb"))
#: What makes a lesson of half a minute one of seconds, and leaves nothing behind; and the exercises solved.
FASTER = {
    "7_alignment_lab": {"data": "embedded", "steps": 30},
    "later_defenses": {"steps": 3, "linear_steps": 3, "epochs": 3},
}
PARAMETERS = FASTER | {"6_exercises": {"solutions": True}}


def test_the_start_shows_every_notebook_and_its_commands_and_links_exist():
    start = FOLDER / "0_start.ipynb"
    cells = read_notebook(start).cells
    assert {cell.cell_type for cell in cells} == {"markdown"}  # nothing to wait for, nothing to download
    text = "\n".join(cell.source for cell in cells)
    pictures = [Path(name).stem for cell in cells for name in cell.get("attachments", {})]
    assert sorted(re.findall(r"!\[.+?\]\(attachment:(.+?)\.png\)", text)) == sorted(pictures)
    experiments = [path.stem for path in FOLDER.glob("experiments/*.ipynb")]
    drawn = {path.stem for path in NOTEBOOKS} | set(experiments)
    assert set(pictures) == drawn - {"release"}  # its page is a table
    for link in re.findall(r"\]\((?!attachment)(.+?)\)", text):
        assert (FOLDER / link).is_file(), link
    commands = re.findall(r"`condnum (.+?)(?: --.*)?`", text)
    assert len(commands) > len(experiments)
    for command in commands:
        assert main([*command.split(), "--help"]) == 0, command


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_the_site_reads_every_formula_as_one(path):
    """JupyterLab finds `$$` anywhere; the site's parser wants a paragraph of its own for it."""
    markdown = pytest.importorskip("markdown_it", reason="the extra site is not installed")
    dollars = pytest.importorskip("mdit_py_plugins.dollarmath")
    parser = markdown.MarkdownIt("commonmark").enable("table").use(dollars.dollarmath_plugin)
    cells = [cell.source for cell in read_notebook(path).cells if cell.cell_type == "markdown"]
    parts = [part for cell in cells for token in parser.parse(cell) for part in token.children or ()]
    assert any(part.type == "text" for part in parts)
    assert [part.content for part in parts if part.type == "text" and re.search(r"[$\\]", part.content)] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_becomes_a_page_without_a_kernel(path, lesson_run):
    """Every explorer is recorded, every figure drawn, and nothing waits for a widget."""
    book = ParameterNotebook.find(path)
    assert book.defaults["static"] is False
    assert all(not cell.get("outputs") for cell in book.node.cells)
    cells = read_notebook(lesson_run(path.stem) / "report.ipynb").cells
    kinds = [{*one.get("data", {})} for cell in cells for one in cell.get("outputs", [])]
    assert not any(WIDGET in of for of in kinds)
    recorded = [of for of in kinds if RECORDING in of]
    assert recorded
    assert all(PLOTLY in of for of in recorded)
    for cell in cells:
        if cell.cell_type == "code" and re.search(
            r"^(?!Grab)\w+(\.show\(.*\))?$", cell.source.splitlines()[-1]
        ):
            assert [
                one for one in cell.outputs if {RECORDING, PLOTLY, "text/html"} & {*one.get("data", {})}
            ], cell.id


@pytest.mark.slow
def test_the_solutions_of_the_exercises_are_right_hidden_and_explained(lesson_run):
    cells = read_notebook(lesson_run("6_exercises") / "report.ipynb").cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    results = [one["data"] for one in outputs if one.output_type == "execute_result"]
    said = [data["text/plain"] for data in results if RECORDING not in data]
    assert [text[:5] for text in said] == ["right"] * 11
    hidden = [cell for cell in cells if "solution" in cell.metadata.get("tags", [])]
    assert [cell.metadata["jupyter"]["source_hidden"] for cell in hidden] == [True] * 11
    assert all(cell.source.startswith("if solutions:\n") for cell in hidden)
    prose = [cell.source for cell in cells if cell.cell_type == "markdown" and "Solution</b>" in cell.source]
    assert [text[:9] for text in prose] == ["<details>"] * 11


@pytest.mark.slow
def test_the_later_defenses_show_what_is_proved_and_what_came_out(lesson_run):
    """With the squared loss Eq. 4 is log 2 without a gradient; a contraction along the path is no bound."""
    run = read_notebook(lesson_run("later_defenses") / "report.ipynb")
    cells = {cell.get("id"): cell for cell in run.cells}

    def said(name):
        outputs = cells[name].outputs
        return "".join(one.get("text") or one["data"].get("text/plain", "") for one in outputs)

    rows = {line.split()[0]: line.split() for line in said("zero").splitlines() if "Eq. 4" in line}
    assert rows["squared"][-2] == "0.693147"
    gradient = rows["squared"][-1]
    assert gradient == "0" or "·10⁻¹" in gradient  # round-off
    assert rows["cross-entropy"][-1] != "0"
    assert "·10⁻¹" not in rows["cross-entropy"][-1]
    assert "estimate for all steps: 0.0150; truth: 1.0000" in said("counter")
    table = next(one["data"]["text/html"] for one in cells["claims-table"].outputs if "data" in one)
    assert table.count("<tr>") == 12  # a header and eleven claims
    assert "nan" not in table
    assert "—" not in table
