"""Executed notebooks on pages: folded code, figures as small JSON, explorers where they are recorded."""

import base64
import html
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from bs4 import BeautifulSoup
from markupsafe import Markup

from condnum.report.html import fill_slots, label_room, shown_notebook
from condnum.report.tables import INDEX, formula_html, mark_words


def page_notebook(notebook: Any, name: str, recorded: Collection[str] = ()) -> Any:
    """Return an executed notebook as its page shows it; `recorded` names explorers that play on the page.

    Cells with the tag `remove-cell` are for readers with a kernel: MyST-NB leaves them out.
    """
    page, figures = shown_notebook(notebook)
    drawn = [figure_html(figure, f"{name}-{place}", recorded) for place, figure in enumerate(figures)]
    for cell in page.cells:
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.setdefault("tags", [])
        tags.append("hide-input" if cell.source else "remove-input")
        cell.source = cell.source or "pass"  # MyST-NB leaves out cells without a source
        if "solution" in tags:
            cell.metadata["mystnb"] = {"code_prompt_show": "Solution in Python"}
        for output in cell.outputs:
            if "text/html" in output.get("data", {}):
                soup = BeautifulSoup(output.data["text/html"], "html.parser")
                mark_words(soup)
                for text in soup.find_all(string=INDEX):
                    if not text.find_parent(["code", "script", "style"]):
                        text.replace_with(BeautifulSoup(formula_html(text), "html.parser"))
                for table in soup.find_all("table"):
                    table.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
                output.data["text/html"] = fill_slots(str(soup), drawn)
    return page


def figure_html(figure: Mapping[str, Any], name: str, recorded: Collection[str] = ()) -> str:
    """Return plotly's JSON of a figure as an empty frame and its data, which the site's script draws.

    A figure of a recorded explorer becomes the place where it plays, with the settings of the figure.
    """
    layout = {key: value for key, value in figure.get("layout", {}).items() if key != "template"}
    meta = layout.get("meta") or {}
    if meta.get("explorer") in recorded:
        settings = html.escape(json.dumps(meta["settings"], ensure_ascii=False))
        return (
            f'<div class="condnum-recorded" data-explorer="{meta["explorer"]}" data-settings="{settings}">'
            "</div>"
        )
    height = int(layout.get("height") or 450)
    lines = {trace.get("type", "scatter") for trace in figure.get("data", [])} <= {"scatter", "scattergl"}
    if "xaxis2" in layout or lines:  # else, on a phone, half a figure, or a legend with a sliver of one
        layout["meta"] = {**meta, "stack": True}
    width = int(layout.get("width") or label_room(layout) + 340)
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
