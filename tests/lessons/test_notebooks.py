"""Every teaching notebook runs by papermill without error; two of them with plain figures too."""

import re
from pathlib import Path

import pytest

pytest.importorskip("papermill", reason="the extra notebooks is not installed")
pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.cli import main
from condnum.report.notebook import ParameterNotebook, read_notebook
from condnum.report.run import run_notebook

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[1-8]_*.ipynb"))
WIDGET, PLOTLY = "application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json"
#: What makes a lesson of half a minute one of seconds, and leaves nothing behind.
FASTER = {"7_alignment_lab": {"data": "embedded", "steps": 30, "out": ""}}
ALIVE = '<div class="condnum-grab"'  # HTML that needs no kernel

EXERCISES = FOLDER / "6_exercises.ipynb"


def test_the_start_shows_every_notebook_and_its_commands_and_links_exist():
    start = FOLDER / "0_start.ipynb"
    assert len(NOTEBOOKS) == 8
    cells = read_notebook(start).cells
    assert {cell.cell_type for cell in cells} == {"markdown"}  # nothing to wait for, nothing to download
    text = "\n".join(cell.source for cell in cells)
    pictures = [Path(name).stem for cell in cells for name in cell.get("attachments", {})]
    assert sorted(re.findall(r"!\[.+?\]\(attachment:(.+?)\.png\)", text)) == sorted(pictures)
    experiments = [path.stem for path in FOLDER.glob("experiments/*.ipynb")]
    assert sorted(pictures) == sorted([path.stem for path in NOTEBOOKS] + experiments)
    assert start.stat().st_size < 300_000
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
@pytest.mark.parametrize(
    ("path", "static"),
    [*((path, False) for path in NOTEBOOKS), (NOTEBOOKS[1], True)],
    ids=lambda of: getattr(of, "stem", "static" if of else "widgets"),
)
def test_it_runs_and_its_cells_keep_a_picture(path, static, tmp_path, on_shared_kernel):
    book = ParameterNotebook.find(path)
    assert book.defaults["static"] is False
    assert all(not cell.get("outputs") for cell in book.node.cells)
    parameters = {"static": static, **FASTER.get(path.stem, {})}
    report = run_notebook(book, parameters, tmp_path / "out", quiet=True)
    drawn = [cell for cell in read_notebook(report).cells if "static=static" in cell.source]
    assert drawn
    for cell in drawn:
        kinds = [kind for output in cell.outputs for kind in output.data]
        alive = [output for output in cell.outputs if output.data.get("text/html", "").startswith(ALIVE)]
        # Beside a widget it is what a reader without a kernel sees.
        assert kinds.count(PLOTLY) + len(alive) == 1
        assert kinds.count(WIDGET) == (not static)


@pytest.mark.slow
def test_the_solutions_of_the_exercises_are_right(on_shared_kernel, tmp_path):
    parameters = {"solutions": True, "static": True}
    report = run_notebook(ParameterNotebook.find(EXERCISES), parameters, tmp_path / "out", quiet=True)
    outputs = [output for cell in read_notebook(report).cells for output in cell.get("outputs", [])]
    said = [one["data"]["text/plain"] for one in outputs if one.output_type == "execute_result"]
    assert len(said) == 11
    assert all(text.startswith("right") for text in said), said


def test_solutions_are_hidden_and_depend_on_the_switch():
    cells = read_notebook(EXERCISES).cells
    hidden = [cell for cell in cells if "solution" in cell.metadata.get("tags", [])]
    assert len(hidden) == 11
    for cell in hidden:
        assert cell.metadata["jupyter"]["source_hidden"] is True
        assert cell.source.startswith("if solutions:\n")
    prose = [cell for cell in cells if cell.cell_type == "markdown" and "Solution</b>" in cell.source]
    assert len(prose) == 11
    assert all(cell.source.startswith("<details>") for cell in prose)
