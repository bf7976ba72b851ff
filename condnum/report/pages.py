"""The pages of the site: templates, headings with anchors, tables in frames, figures as small JSON."""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from bs4 import BeautifulSoup
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from nbformat.v4 import new_markdown_cell, new_notebook

from condnum.errors import require
from condnum.progress import duration
from condnum.report.html import NotebookBody, fill_slots, label_room, notebook_body, read_asset
from condnum.report.notebook import read_notebook
from condnum.report.tables import formula_html


@lru_cache(maxsize=1)
def _templates() -> Environment:
    """Return the templates; a missing value is an error."""
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("condnum.report", "assets"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "formula": lambda text: Markup(formula_html(text)),
        "duration": duration,
        "headings": headings,
    }
    return environment


def render(template: str, **values: Any) -> str:
    """Fill a template of the site."""
    return _templates().get_template(template).render(values)


def headings(page: str) -> list[tuple[str, str, Markup]]:
    """List a page's headings with an id for its contents: name, id, text (`data-short`, where it has one)."""
    found = BeautifulSoup(page, "html.parser").select("h2[id], h3[id]")
    return [
        (one.name, str(one["id"]), Markup(one.get("data-short") or one.decode_contents())) for one in found
    ]


@lru_cache(maxsize=64)
def notebook_page(path: Path, title: str, changed: int) -> tuple[NotebookBody, str]:
    """Convert an executed notebook: framed tables with links to the run, figures' data.

    Once a process for each time of change: a site that grows is built after every experiment.
    """
    body = notebook_body(read_notebook(path), name=title)
    soup = BeautifulSoup(body.html, "html.parser")
    mark_indices(soup, ["h1", "h2", "h3"])
    for place, table in enumerate(soup.find_all("table"), start=1):
        frame = {"class": "scroll", "tabindex": "0", "role": "group", "aria-label": f"Table {place}"}
        framed = table.wrap(soup.new_tag("div", attrs=frame))
        link = '<p class="source"><a href="#run">the run behind this table</a></p>'
        framed.insert_after(BeautifulSoup(link, "html.parser"))
    drawn = [figure_html(figure, f"figure-{place}") for place, figure in enumerate(body.figures)]
    return body, fill_slots(str(soup), drawn)


def glossary_html(footer: str) -> str:
    """Return the page of terms."""
    cells = [new_markdown_cell(read_asset("assets/glossary.md"))]
    soup = BeautifulSoup(notebook_body(new_notebook(cells=cells)).html, "html.parser")
    mark_indices(soup, ["h3", "p"])
    return render("glossary.html.j2", html=str(soup), footer=footer)


def mark_indices(soup: Any, names: Iterable[str]) -> None:
    """Write `K_P` with an index in the text of some elements; code stays as it is."""
    for element in soup.find_all(list(names)):
        for text in element.find_all(string=re.compile(r"_")):
            if text.find_parent(["code", "math"]) is None:
                text.replace_with(*BeautifulSoup(formula_html(str(text)), "html.parser").contents)


def figure_html(figure: Mapping[str, Any], name: str) -> str:
    """Return plotly's JSON of a figure as an empty frame and its data, which the site's script draws.

    The template goes: the page has both, light and dark.
    """
    layout = {key: value for key, value in figure.get("layout", {}).items() if key != "template"}
    height = int(layout.get("height") or 450)
    axes = [key for key in layout if re.fullmatch(r"xaxis\d*", key)]
    width = int(
        layout.get("width") or label_room(layout) + (900 if len(axes) > 1 else 340)
    )  # then it scrolls
    title = re.split(r"<br\s*/?>", (layout.get("title") or {}).get("text") or "figure")[0]
    label = html.escape(Markup(title).striptags())
    slim = _in_float32({"data": figure.get("data", []), "layout": layout})
    text = json.dumps(slim, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return (
        f'<div class="figure" tabindex="0" role="group" aria-label="{label}">'
        f'<div id="{name}" class="plot-frame" style="min-height:{height}px;min-width:{width}px"></div>'
        f'<script type="application/json" data-for="{name}">{text}</script>'
        f"<noscript>This figure needs JavaScript.</noscript></div>"
    )


def _in_float32(value: Any) -> Any:
    """Halve plotly's float64 arrays, which are most of a page, where that keeps seven digits."""
    if isinstance(value, list):
        return [_in_float32(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if value.get("dtype") == "f8":
        array = np.frombuffer(base64.b64decode(value["bdata"]))
        with np.errstate(over="ignore", under="ignore"):
            small = array.astype(np.float32)
        if np.allclose(small, array, rtol=1e-7, atol=0.0, equal_nan=True):
            return {**value, "dtype": "f4", "bdata": base64.b64encode(small.tobytes()).decode()}
    return {key: _in_float32(part) for key, part in value.items()}


def templates_script() -> str:
    """Return the script with both of plotly's templates."""
    templates = require("plotly.io", "viz").templates
    both = {"light": "plotly_white", "dark": "plotly_dark"}
    known = {look: templates[name].to_plotly_json() for look, name in both.items()}
    return f"window.condnumTemplates = {json.dumps(known, separators=(',', ':'))};\n"
