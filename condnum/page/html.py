"""An executed notebook as one HTML file that works without a network.

Code is folded, plotly.js is written in once, formulas are MathML, and widgets' state is left out.
"""

import base64
import copy
import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from jinja2 import Environment, pass_context
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from condnum.errors import require
from condnum.files import asset, write_text
from condnum.page.notebook import PARAMETERS_TAG, PLOTLY, RECORDING, RUN_TYPE, first_heading, read_notebook
from condnum.page.tables import mark_tables


def mathml(tex: str, *, display: bool = False) -> str:
    """Convert a formula, without its dollar signs, to MathML, which browsers draw without a script."""
    converter = require("latex2mathml.converter", "notebooks")
    limits = re.sub(r"\\(min|max|sup|inf|lim)(?=\s*_)", r"\\\1\\limits", tex) if display else tex
    try:
        found = converter.convert(limits, display="block" if display else "inline")
    except Exception:  # of many kinds, for half a formula
        found = "\\"
    found = re.sub(r"\\([{}])", r"\1", found)  # of \Bigl\{
    # As the base of an exponent alone, \bigr) hangs low.
    found = re.sub(r"(<ms(?:up|ub|ubsup)>)(<mo [^>]*minsize[^>]*>[^<]*</mo>)", r"\1<mrow>\2</mrow>", found)
    found = found.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')  # as it does for |
    if "\\" in found:  # a command that it does not know stays one
        return f'<code class="tex">{escape(tex.strip())}</code>'
    for letter in re.findall(r'<mi mathvariant="script">([A-Z])</mi>', found):
        older = "" if letter in "BEFHILMR" else "MATHEMATICAL "  # Unicode keeps the oldest ones elsewhere
        script = unicodedata.lookup(f"{older}SCRIPT CAPITAL {letter}")  # browsers know no variant of another
        found = found.replace(f'<mi mathvariant="script">{letter}</mi>', f"<mi>{script}</mi>")
    return found


WIDGET = "application/vnd.jupyter.widget-view+json"

#: A warning as Python prints it: the file and line, what it says, the line of code.
_WARNED = re.compile(r"(?m)^(/|\w:\\).*?\.py:\d+: (\w+: .*\n?)(?:  .*\n?)?")
#: The last line of a progress bar.
_PROGRESS = re.compile(r"(?m)^.*\|.*\| *\d+/\d+ \[.*\n?")  # of a narrow terminal without its end
_OF_LIBRARIES = re.compile(_WARNED.pattern.replace(r"\w+:", r"(?:Future|\w*Deprecation)Warning:"))


def answer_cell(notebook: Any) -> Any:
    """Return the cell that shows the run of an experiment, or has the tag `answer`; None if none does."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    runs = [cell for cell in cells if any(RUN_TYPE in of.get("data", {}) for of in cell.outputs)]
    return next(iter([*runs, *(cell for cell in cells if "answer" in cell.metadata.get("tags", []))]), None)


def answer_of(path: str | os.PathLike[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the answer of an executed notebook as text, and the record of its run; empty if it has none."""
    cell = answer_cell(read_notebook(Path(path)))
    found = [output["data"] for output in cell.outputs if "data" in output] if cell else []
    data = found[0] if found else {}
    return str(data.get("text/plain", "")), data.get(RUN_TYPE, {}).get("record", {})


def shown_notebook(notebook: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return what a page without a kernel shows of a notebook, with numbered slots, and what goes there.

    That is plotly's JSON of a figure, or the recording of an explorer.

    The figures go back in after the export: nbconvert parses its whole page once more, which is slow
    for 5 MB of plotly.js and might change it.
    """
    shown, figures = copy.deepcopy(notebook), list[dict[str, Any]]()
    shown.metadata.pop("widgets", None)
    hidden = {("injected-parameters", "code"), ("remove-cell", "markdown")}
    shown.cells = [
        cell
        for cell in shown.cells
        if hidden.isdisjoint((tag, cell.cell_type) for tag in cell.metadata.get("tags", []))
    ]
    if answer_cell(shown):  # the answer first, the code last
        code = [cell for cell in shown.cells if cell.cell_type == "code"]
        source = "\n\n".join(cell.source for cell in code)
        for cell in code:
            cell.source, cell.metadata["tags"] = "", []
        words = {"condnum_summary": "Parameters and code"}
        shown.cells.append(nbformat.v4.new_code_cell(source, id="code", metadata=words))
    for cell in shown.cells:
        if PARAMETERS_TAG in cell.metadata.get("tags", []):
            cell.metadata["condnum_summary"] = "Code: default parameters"
        if "remove-input" in cell.metadata.get("tags", []):
            cell.source = ""
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = type(output.data)(_page_data(output.data, figures))
            if "text" in output:  # without what a line of progress has overwritten
                output.text = re.sub(r"(?m)^.*\r(?!\n)", "", output.text)
            if output.get("name") == "stderr":
                output.text = _PROGRESS.sub("", _WARNED.sub(r"\2", _OF_LIBRARIES.sub("", output.text)))
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("data", output.get("text", True))]
    return shown, figures


def _page_data(data: Mapping[str, Any], figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduce an output to the types that a page can show; collect its figure."""
    if kept := [data[kind] for kind in (RECORDING, PLOTLY) if kind in data]:
        figure = kept[0]
        figures.append(json.loads(figure) if isinstance(figure, str) else figure)
        return {"text/html": f'<div class="figure" data-slot="{len(figures) - 1}"></div>'}
    if WIDGET in data:
        note = "This is an interactive control; open the notebook to use it."
        return {"text/html": f'<p class="note">{note}</p>'}
    if "text/latex" in data and "text/html" not in data:
        tex = data["text/latex"].strip()
        formula = tex.strip("$").replace(r"\displaystyle", "")
        return {"text/html": mathml(formula, display=tex.startswith("$$"))}
    dead = ("application/javascript", "text/vnd.mermaid")
    live = {kind: value for kind, value in data.items() if kind not in dead}
    # "<IPython.core.display.Javascript object>" tells a reader nothing.
    return {} if list(live) == ["text/plain"] and len(data) > 1 else live


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML."""

    def inline_math(self, body: str) -> str:
        """Render `$…$`."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """Render `$$…$$`."""
        return f"{mathml(body, display=True)}\n"


class ReportExporter(HTMLExporter):
    """HTML of a notebook's cells, formulas as MathML."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Render a Markdown cell."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = _Renderer(escape=False, attachments=attachments, exclude_anchor_links=True)
        return MarkdownWithMath(renderer=renderer).render(source)


def export_html(
    notebook_path: str | os.PathLike[str],
    html_path: str | os.PathLike[str],
    *,
    title: str | None = None,
) -> Path:
    """Write an executed notebook as one self-contained HTML page."""
    path = Path(notebook_path)
    return write_text(html_path, render_html(read_notebook(path), title=title, name=path.stem))


def render_html(notebook: Any, *, title: str | None = None, name: str = "report") -> str:
    """Return an executed notebook as one self-contained HTML page: folded code, MathML, no network."""
    own_title = first_heading(notebook)
    shown, figures = shown_notebook(notebook)
    options: dict[str, Any] = {"template_name": "basic", "raw_template": asset("page/cells.html.j2")}
    for part in ("anchor_links", "input_prompt", "output_prompt"):
        options[f"exclude_{part}"] = True
    cells, _ = ReportExporter(**options).from_notebook_node(shown)
    soup = BeautifulSoup(cells, "html.parser")
    mark_tables(soup)
    for place, heading in enumerate(soup.find_all("h2"), 1):  # headings of two parts may read alike
        heading["id"] = f"part-{place}"
    papermill = notebook.metadata.get("papermill", {})
    known = notebook.metadata.get("condnum", {}).get("parameters")  # as the runner recorded them
    started = str(papermill.get("start_time", ""))[:19].replace("T", " ")
    scripts: list[str] = []
    if figures:  # as on the site: plotly.js, and what draws with it into the frames of a page
        scripts.append(require("plotly.offline", "viz").get_plotlyjs())
        scripts.append(asset("page/paint.js", "page/frames.js"))
    if plays := any("states" in figure for figure in figures):
        scripts.append(asset("lessons/explore.js", "lessons/record.js"))
    html = page_of(
        str(soup),
        title=title or own_title or name,
        has_heading=own_title is not None,
        contents=[(element["id"], element.get_text()) for element in soup.find_all("h2")],
        parameters=dict(known or papermill.get("parameters", {})),
        made=f", run on {started} UTC" if started else "",
        css=(math_css() if soup.math else "") + (asset("lessons/explore.css") if plays else ""),
        scripts=scripts,
    )
    return fill_slots(html, [figure_html(figure, f"figure-{n}") for n, figure in enumerate(figures)])


def page_of(
    body: str, *, title: str, has_heading: bool = True, made: str = "", css: str = "", **parts: Any
) -> str:
    """Return a page that needs no network, of HTML that is right."""
    page = Environment(autoescape=True).from_string(asset("page/report.html.j2"))
    footer = f"condnum {metadata.version('condnum')}{made}"
    return page.render(
        {"contents": [], "parameters": {}, "scripts": []} | parts, body=body, title=title,
        has_heading=has_heading, footer=footer, css=report_css() + css,
    )  # fmt: skip


def fill_slots(page: str, drawn: Sequence[str]) -> str:
    """Put figures into their slots."""
    slot = r'<div class="figure" data-slot="(\d+)">\s*</div>'
    return re.sub(slot, lambda match: drawn[int(match[1])], page)


def figure_html(figure: Mapping[str, Any], name: str) -> str:
    """Return plotly's JSON of a figure as an empty frame and its data, which `frames.js` draws.

    The recording of an explorer becomes the place where `record.js` plays it.
    """
    if "states" in figure:
        label, text = escape(figure["spec"]["doc"].split("\n")[0]), _as_script(figure)
        return (
            f'<div class="condnum-recorded" role="group" aria-label="{label}">'
            f'<script type="application/json">{text}</script>'
            "<noscript>This explorer needs JavaScript.</noscript></div>"
        )
    layout = {key: value for key, value in figure.get("layout", {}).items() if key != "template"}
    height = int(layout.get("height") or 450)
    lines = {trace.get("type", "scatter") for trace in figure.get("data", [])} <= {"scatter", "scattergl"}
    if "xaxis2" in layout or lines:  # else, on a phone, half a figure, or a legend with a sliver of one
        layout["meta"] = {**(layout.get("meta") or {}), "stack": True}
    # Long labels on the left make a figure wider: the cells beside them hold numbers.
    labels = 2 * max(0, int(layout.get("margin", {}).get("l", 0)) - 80)
    width = int(layout.get("width") or labels + 340)
    title = re.split(r"<br\s*/?>", (layout.get("title") or {}).get("text") or "figure")[0]
    label = escape(Markup(title).striptags())
    slim = {"data": figure.get("data", []), "layout": layout}
    text = _as_script(slim)
    return (
        f'<div class="figure" tabindex="0" role="group" aria-label="{label}">'
        f'<div id="{name}" class="plot-frame" style="min-height:{height}px;min-width:{width}px"></div>'
        f'<script type="application/json" data-for="{name}">{text}</script>'
        "<noscript>This figure needs JavaScript.</noscript></div>"
    )


def _as_script(value: Any) -> str:
    """Return JSON that may stand in a script of a page."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("</", "<\\/")


def report_css() -> str:
    """Return the style of a report: layout, tables, code in colors, light and dark."""
    formatter, looks = require("pygments.formatters", "notebooks").HtmlFormatter, []
    for style in ("default", "github-dark"):
        lines = formatter(style=style).get_style_defs(".highlight").splitlines()
        tokens = "\n".join(line for line in lines if line.startswith(".highlight ."))
        looks.append(re.sub(r"background-color: [^;}]+;? ?", "", tokens))  # that is the page's
    dark = f"@media (prefers-color-scheme: dark) {{\n{looks[1]}\n}}"
    return "\n".join([asset("page/report.css", "page/cards.css"), looks[0], dark])


def math_css() -> str:
    """Return the style of formulas with its font: without one of mathematics, fences do not stretch.

    The font is inside the style: a page that is a file may read no other.
    """
    font = resources.files("condnum").joinpath("page/font/math.woff2").read_bytes()
    source = f'url("data:font/woff2;base64,{base64.b64encode(font).decode()}") format("woff2")'
    face = f'font-family: "condnum-math"; src: {source};'
    look = 'math { font-family: "condnum-math", math; font-size: 1.15em; }'
    # The gap of display style asks for a sign half as tall again, of which all that is too much hangs below.
    return f"@font-face {{ {face} }}\n{look}\nmsqrt, mroot {{ math-style: compact; }}\n"
