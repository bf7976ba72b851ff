"""Anchors and a table of contents for a page's headings; tables in frames that scroll by themselves."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from condnum.extras import require
from condnum.report.correction_tables import formula_html

#: Ids that the site's own parts have.
RESERVED = frozenset({"main", "run", "contents", "top", "scoreboard", "experiments", "figures", "glossary"})


@dataclass(frozen=True)
class Heading:
    """An entry of a table of contents."""

    level: int  # 2 or 3
    anchor: str
    text: str


def add_anchors(soup: Any, taken: Iterable[str] = RESERVED) -> list[Heading]:
    """Give every heading of the second and third level an id of its own.

    Examples:
        >>> from bs4 import BeautifulSoup
        >>> page = BeautifulSoup("<h2>Why κ?</h2><h3>Run</h3>", "html.parser")
        >>> [(h.level, h.anchor) for h in add_anchors(page)]
        [(2, 'why-κ'), (3, 'run-2')]
    """
    used = {*taken, *(element["id"] for element in soup.find_all(id=True))}
    found = []
    for element in soup.find_all(["h2", "h3"]):
        text = " ".join(element.get_text().split())
        if not text:
            continue
        base = slug(text)
        anchor, count = base, 1
        while anchor in used:
            count += 1
            anchor = f"{base}-{count}"
        used.add(anchor)
        element["id"] = anchor
        found.append(Heading(int(element.name[1]), anchor, text))
    return found


def mark_indices(soup: Any, names: Iterable[str]) -> None:
    """Write `K_P` with an index in the text of some elements; code stays as it is.

    Examples:
        >>> from bs4 import BeautifulSoup
        >>> page = BeautifulSoup("<p>K_P <code>K_P</code></p>", "html.parser")
        >>> mark_indices(page, ["p"])
        >>> str(page)
        '<p>K<sub>P</sub> <code>K_P</code></p>'
    """
    parse = require("bs4", "notebooks").BeautifulSoup
    for element in soup.find_all(list(names)):
        for text in element.find_all(string=re.compile(r"_")):
            if text.find_parent(["code", "math"]) is None:
                text.replace_with(*parse(formula_html(str(text)), "html.parser").contents)


def slug(text: str) -> str:
    """Return a text as an anchor.

    Examples:
        >>> slug("Theorem 4.1 (1): R_ill"), slug("—")
        ('theorem-4-1-1-r-ill', 'part')
    """
    plain = unicodedata.normalize("NFC", text).lower()
    return re.sub(r"[^\w]+|_", "-", plain).strip("-") or "part"


def frame_tables(soup: Any, source: str = "") -> None:
    """Put each table into a frame that scrolls by itself, with a link to what made it."""
    for place, table in enumerate(soup.find_all("table"), start=1):
        frame = soup.new_tag(
            "div", attrs={"class": "scroll", "tabindex": "0", "role": "group", "aria-label": f"Table {place}"}
        )
        table.wrap(frame)
        if source:
            note = soup.new_tag("p", attrs={"class": "source"})
            link = soup.new_tag("a", href=source)
            link.string = "the run behind this table"
            note.append(link)
            frame.insert_after(note)
