"""An executed notebook as one HTML file that works without a network.

Code is folded, plotly.js is written in once, formulas are MathML, and widgets' state is left out.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from jinja2 import Environment, pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor

from condnum.errors import require
from condnum.files import write_text
from condnum.report.notebook import PARAMETERS_TAG, first_heading, read_notebook
from condnum.report.tables import mark_words


def mathml(tex: str, *, display: bool = False) -> str:
    r"""Convert a formula, without its dollar signs, to MathML, which browsers draw without a script.

    Examples:
        >>> print(mathml(r"x_1"))
        <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><msub><mi>x</mi><mn>1</mn></msub></mrow></math>
        >>> mathml(r"\unknown{x}")
        '<code class="tex">\\unknown{x}</code>'
    """  # ruff: ignore[line-too-long]
    converter = require("latex2mathml.converter", "notebooks")
    limits = re.sub(r"\\(min|max|sup|inf|lim)(?=\s*_)", r"\\\1\\limits", tex) if display else tex
    try:
        found = converter.convert(limits, display="block" if display else "inline")
    except Exception:  # of many kinds, for half a formula
        found = "\\"
    found = re.sub(r"\\([{}])", r"\1", found)  # of \Bigl\{
    if "\\" in found:  # a command that it does not know stays one
        return f'<code class="tex">{escape(tex.strip())}</code>'
    return re.sub(r'<mi mathvariant="script">([A-Z])</mi>', _script_letter, found)


def _script_letter(match: re.Match[str]) -> str:
    """Return a script letter as its own character: browsers know no variant of another."""
    try:
        return f"<mi>{unicodedata.lookup(f'SCRIPT CAPITAL {match[1]}')}</mi>"
    except KeyError:  # Unicode keeps the oldest ones elsewhere
        return f"<mi>{unicodedata.lookup(f'MATHEMATICAL SCRIPT CAPITAL {match[1]}')}</mi>"


PLOTLY = "application/vnd.plotly.v1+json"

WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_NOTE = "An interactive control: open the notebook to use it."

#: Types that a page without a network cannot show.
_DEAD_TYPES = ("application/javascript", "text/vnd.mermaid")


class ReportPreprocessor(Preprocessor):
    """Takes plotly figures out, leaving numbered slots, and drops what only a live notebook shows.

    The figures go back in after the export: nbconvert parses its whole page once more, which is slow
    for 5 MB of plotly.js and might change it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.figures: list[dict[str, Any]] = []

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Change a copy of the notebook for the page."""
        nb.metadata.pop("widgets", None)
        nb.cells = [cell for cell in nb.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
        for cell in nb.cells:
            if PARAMETERS_TAG in cell.metadata.get("tags", []):
                cell.metadata["condnum_summary"] = "Code: default parameters"
            if "remove-input" in cell.metadata.get("tags", []):
                cell.source = ""
            if "outputs" in cell:
                cell.outputs = [output for output in cell.outputs if self._keep(output)]
        return nb, resources

    def _keep(self, output: Any) -> bool:
        """Reduce one output to a type that the page can show."""
        data = output.get("data")
        if not data:
            return output.output_type in ("stream", "error")
        if PLOTLY in data:
            figure = data[PLOTLY]
            self.figures.append(json.loads(figure) if isinstance(figure, str) else figure)
            data = {"text/html": f'<div class="figure" data-slot="{len(self.figures) - 1}"></div>'}
        elif WIDGET in data:
            data = {"text/html": f'<p class="note">{WIDGET_NOTE}</p>'}
        elif "text/latex" in data and "text/html" not in data:
            tex = data["text/latex"].strip()
            formula = tex.strip("$").replace(r"\displaystyle", "")
            data = {"text/html": mathml(formula, display=tex.startswith("$$"))}
        else:
            data = {kind: value for kind, value in data.items() if kind not in _DEAD_TYPES}
            if list(data) == ["text/plain"] and len(output.data) > 1:
                return False  # "<IPython.core.display.Javascript object>" tells a reader nothing
        output.data = type(output.data)(data)
        return bool(data)


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML."""

    def inline_math(self, body: str) -> str:
        """Render `$…$`."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """Render `$$…$$`."""
        return f"{mathml(body, display=True)}\n"


class ReportExporter(HTMLExporter):
    """HTML of a notebook's cells in this package's own template."""

    def __init__(self, **options: Any) -> None:
        template = read_asset("cells.html.j2")
        super().__init__(template_name="basic", raw_template=template, **options)
        self.exclude_anchor_links = True
        self.exclude_input_prompt = True
        self.exclude_output_prompt = True

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Render a Markdown cell."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = _Renderer(escape=False, attachments=attachments, exclude_anchor_links=True)
        return MarkdownWithMath(renderer=renderer).render(source)


def highlight_css() -> str:
    """Return the colours of code, light and dark."""
    formatter = require("pygments.formatters", "notebooks").HtmlFormatter

    def rules(style: str) -> Iterator[str]:
        for line in formatter(style=style).get_style_defs(".highlight").splitlines():
            # Only token colours: backgrounds come from the page.
            if line.startswith(".highlight ."):
                yield re.sub(r"background-color: [^;}]+;? ?", "", line)

    dark = "\n".join(rules("github-dark"))
    return "\n".join(rules("default")) + f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


#: Elements and the attribute through which they load something.
_LOADERS = {
    "script": "src", "link": "href", "img": "src", "iframe": "src", "video": "src", "audio": "src",
    "source": "src", "embed": "src", "object": "data", "track": "src", "input": "src", "image": "href",
    "use": "href", "frame": "src",
}  # fmt: skip
_REMOTE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_CSS_REMOTE = re.compile(r"@import\s+[^;]*//[^;]*;?|url\(\s*['\"]?(?:[a-z]+:)?//[^)]*\)", re.IGNORECASE)


def remove_remote(soup: Any) -> None:
    """Remove everything that a browser would fetch from elsewhere; ordinary links stay.

    A remote picture becomes a link to it. Scripts that import a remote module go as a whole.

    Examples:
        >>> from bs4 import BeautifulSoup
        >>> page = BeautifulSoup('<p>a<script src="//example.org/a.js"></script></p>', "html.parser")
        >>> remove_remote(page)
        >>> str(page)
        '<p>a</p>'
    """
    for name, attribute in _LOADERS.items():
        for element in soup.find_all(name):
            address = str(element.get(attribute) or element.get(f"xlink:{attribute}") or "")
            if not _REMOTE.match(address):
                continue
            if name == "img":
                link = soup.new_tag("a", href=address)
                link.string = element.get("alt") or address
                element.replace_with(link)
            else:
                element.decompose()
    for element in soup.find_all(attrs={"srcset": True}):
        if "//" in element["srcset"]:
            del element["srcset"]
    for element in soup.find_all("script"):
        if re.search(r"\bimport\b[^;]*['\"](?:[a-z]+:)?//", element.get_text(), re.IGNORECASE):
            element.decompose()
    for element in soup.find_all("style"):
        element.string = _CSS_REMOTE.sub("", element.get_text())
    for element in soup.find_all(style=True):
        element["style"] = _CSS_REMOTE.sub("", element["style"])


#: Figures follow the window's width; plotly's button that uploads a chart to its cloud is off.
FIGURE_CONFIG = {"responsive": True, "displaylogo": False, "showSendToCloud": False}

#: Height of a figure whose layout gives none.
FIGURE_HEIGHT = "450px"

#: Figures keep the colours that they were drawn with; the site draws its own anew.
_LIGHT_FIGURES = ".figure { background: #fff; color-scheme: light; }"

_SLOT = re.compile(r'<div class="figure" data-slot="(\d+)">\s*</div>')


@dataclass(frozen=True)
class NotebookBody:
    """What a page shows of an executed notebook; any shell can be put around it."""

    title: str
    has_heading: bool  # the cells begin with a heading of the first level
    html: str  # the cells, with a slot where each figure goes
    figures: tuple[Mapping[str, Any], ...]  # plotly's data and layout, by the number of the slot
    parameters: Mapping[str, Any]  # of the run
    footer: str  # which condnum, and when


def export_html(
    notebook_path: str | os.PathLike[str], html_path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write an executed notebook as one self-contained HTML page."""
    path = Path(notebook_path)
    return write_text(html_path, render_html(read_notebook(path), title=title, name=path.stem))


def render_html(notebook: Any, *, title: str | None = None, name: str = "report") -> str:
    """Return an executed notebook as one self-contained HTML page."""
    body = notebook_body(notebook, title=title, name=name)
    template = Environment(autoescape=True).from_string(read_asset("report.html.j2"))
    soup = BeautifulSoup(body.html, "html.parser")
    headings = soup.find_all("h2")
    for number, heading in enumerate(headings):
        heading["id"] = re.sub(r"\W+", "-", heading.get_text()).strip("-") or f"part-{number}"
    contents = [(heading["id"], heading.get_text()) for heading in headings]
    page = template.render(
        body=body,
        html=str(soup),
        contents=contents,
        css="\n".join([report_css(), read_asset("assets/site.css"), _LIGHT_FIGURES]),
    )
    return _with_figures(page, body.figures)


def notebook_body(notebook: Any, *, title: str | None = None, name: str = "report") -> NotebookBody:
    """Convert the cells of an executed notebook: folded code, MathML, nothing from a network."""
    heading = first_heading(notebook)
    preprocessor = ReportPreprocessor(enabled=True)
    cells, _ = ReportExporter(preprocessors=[preprocessor]).from_notebook_node(notebook)
    soup = BeautifulSoup(cells, "html.parser")
    remove_remote(soup)
    mark_words(soup)
    papermill = notebook.metadata.get("papermill", {})
    known = notebook.metadata.get("condnum", {}).get("parameters")  # as the runner recorded them
    started = str(papermill.get("start_time", ""))[:19].replace("T", " ")
    return NotebookBody(
        title=title or heading or name,
        has_heading=heading is not None,
        html=str(soup),
        figures=tuple(preprocessor.figures),
        parameters=dict(known or papermill.get("parameters", {})),
        footer=f"condnum {metadata.version('condnum')}" + (f", run on {started} UTC" if started else ""),
    )


def fill_slots(page: str, drawn: Sequence[str]) -> str:
    """Put figures into their slots.

    Examples:
        >>> fill_slots('a <div class="figure" data-slot="0"></div>', ["<b>figure</b>"])
        'a <b>figure</b>'
    """
    return _SLOT.sub(lambda match: drawn[int(match.group(1))], page)


def report_css() -> str:
    """Return the style of a report: layout, tables, code in colours, light and dark."""
    return f"{read_asset('report.css')}\n{highlight_css()}"


def read_asset(name: str) -> str:
    """Return a file of this package as text."""
    return files("condnum.report").joinpath(name).read_text(encoding="utf-8")


def _with_figures(page: str, figures: Sequence[Mapping[str, Any]]) -> str:
    """Put the figures into their slots, and plotly.js once in front of the first."""
    if not figures:
        return page
    plotly_io = require("plotly.io", "viz")

    def drawn(number: int) -> str:
        html = plotly_io.to_html(
            dict(figures[number]),
            full_html=False,
            include_plotlyjs=number == 0,
            config=FIGURE_CONFIG,
            default_height=FIGURE_HEIGHT,
            validate=False,
            div_id=f"figure-{number}",
        )
        least = 760 if "xaxis2" in figures[number].get("layout", {}) else 300  # panels side by side scroll
        return f'<div class="figure"><div style="min-width:{least}px">{html}</div></div>'

    return fill_slots(page, [drawn(number) for number in range(len(figures))])
