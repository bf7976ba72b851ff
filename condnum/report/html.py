"""An executed notebook as one HTML file that works without a network.

Code is folded, plotly.js is written in once, formulas are MathML, and widgets' state is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from condnum.extras import require
from condnum.files import write_text
from condnum.report.notebook import read_notebook
from condnum.report.offline import remove_remote
from condnum.report.tables import mark_words

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
    require("nbconvert", "notebooks")
    path = Path(notebook_path)
    return write_text(html_path, render_html(read_notebook(path), title=title, name=path.stem))


def render_html(notebook: Any, *, title: str | None = None, name: str = "report") -> str:
    """Return an executed notebook as one self-contained HTML page."""
    body = notebook_body(notebook, title=title, name=name)
    template = (
        require("jinja2", "notebooks").Environment(autoescape=True).from_string(read_asset("report.html.j2"))
    )
    site = files("condnum").joinpath("site", "assets", "site.css").read_text(encoding="utf-8")
    soup = require("bs4", "notebooks").BeautifulSoup(body.html, "html.parser")
    headings = soup.find_all("h2")
    for number, heading in enumerate(headings):
        heading["id"] = re.sub(r"\W+", "-", heading.get_text()).strip("-") or f"part-{number}"
    contents = [(heading["id"], heading.get_text()) for heading in headings]
    page = template.render(
        body=body, html=str(soup), contents=contents, css=f"{report_css()}\n{site}\n{_LIGHT_FIGURES}"
    )
    return _with_figures(page, body.figures)


def notebook_body(notebook: Any, *, title: str | None = None, name: str = "report") -> NotebookBody:
    """Convert the cells of an executed notebook: folded code, MathML, nothing from a network."""
    require("nbconvert", "notebooks")
    from condnum.report.exporter import ReportExporter, ReportPreprocessor

    heading = first_heading(notebook)
    preprocessor = ReportPreprocessor(enabled=True)
    cells, _ = ReportExporter(preprocessors=[preprocessor]).from_notebook_node(notebook)
    soup = require("bs4", "notebooks").BeautifulSoup(cells, "html.parser")
    remove_remote(soup)
    mark_words(soup)
    return NotebookBody(
        title=title or heading or name,
        has_heading=heading is not None,
        html=str(soup),
        figures=tuple(preprocessor.figures),
        parameters=_parameters(notebook),
        footer=_footer(notebook),
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
    from condnum.report.exporter import highlight_css

    return f"{read_asset('report.css')}\n{highlight_css()}"


def read_asset(name: str) -> str:
    """Return a file of this package as text."""
    return files("condnum.report").joinpath(name).read_text(encoding="utf-8")


def first_heading(notebook: Any) -> str | None:
    """Return the text of the first heading of level one, without Markdown's signs."""
    for cell in notebook.cells:
        match = (
            re.search(r"^# +(.+?)\s*#*$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        )
        if match:
            return re.sub(r"[`*$]|<[^>]+>", "", match.group(1))
    return None


def _parameters(notebook: Any) -> dict[str, Any]:
    """Return the parameters that a run used, as the runner or else papermill recorded them."""
    known = notebook.metadata.get("condnum", {}).get("parameters")
    return dict(known or notebook.metadata.get("papermill", {}).get("parameters", {}))


def _footer(notebook: Any) -> str:
    """Return one line: which condnum, and when."""
    started = str(notebook.metadata.get("papermill", {}).get("start_time", ""))[:19].replace("T", " ")
    return f"condnum {metadata.version('condnum')}" + (f", run on {started} UTC" if started else "")


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
