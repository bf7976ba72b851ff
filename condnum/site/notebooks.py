"""Executed notebooks on pages: folded code, figures as small JSON, explorers where they are recorded."""

import html
import json
from collections.abc import Collection, Mapping
from typing import Any

from bs4 import BeautifulSoup

from condnum.page.html import figure_html, fill_slots, shown_notebook
from condnum.page.tables import INDEX, formula_html, mark_tables


def page_notebook(notebook: Any, name: str, recorded: Collection[str] = ()) -> Any:
    """Return an executed notebook as its page shows it; `recorded` names explorers that play on the page.

    Cells with the tag `remove-cell` are for readers with a kernel: MyST-NB leaves them out.
    """
    page, figures = shown_notebook(notebook)
    drawn = [figure_place(figure, f"{name}-{number}", recorded) for number, figure in enumerate(figures)]
    for cell in page.cells:
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.setdefault("tags", [])
        if "idea" not in tags:  # what a lesson is about stands open
            tags.append("hide-input" if cell.source else "remove-input")
        if words := cell.metadata.get("condnum_summary"):
            cell.metadata["mystnb"] = {"code_prompt_show": words}
        cell.source = cell.source or "pass"  # MyST-NB leaves out cells without a source
        if "solution" in tags:
            cell.metadata["mystnb"] = {"code_prompt_show": "Solution in Python"}
        for output in cell.outputs:
            if "text/html" in output.get("data", {}):
                soup = BeautifulSoup(output.data["text/html"], "html.parser")
                mark_tables(soup)
                for text in soup.find_all(string=INDEX):
                    if not text.find_parent(["code", "script", "style"]):
                        text.replace_with(BeautifulSoup(formula_html(text), "html.parser"))
                for table in soup.find_all("table"):
                    table.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
                output.data["text/html"] = fill_slots(str(soup), drawn)
    return page


def figure_place(figure: Mapping[str, Any], name: str, recorded: Collection[str]) -> str:
    """Return a figure for a page; one of a recorded explorer becomes the place where that plays."""
    meta = figure.get("layout", {}).get("meta") or {}
    if meta.get("explorer") not in recorded:
        return figure_html(figure, name)
    settings = html.escape(json.dumps(meta["settings"], ensure_ascii=False))
    told = f'data-explorer="{meta["explorer"]}" data-settings="{settings}"'
    return f'<div class="condnum-recorded" {told}></div>'
