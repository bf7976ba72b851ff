"""An audit in words: sentences are macros of `words.j2`, the card with the verdict is `card.html.j2`."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from condnum.audit.measures import AS_IS, CLOSED, LABEL_OF, PARETO
from condnum.data.feature_pair import odd_columns
from condnum.report.tables import bullets, formula_html, number, rounded


def as_page(sentences: Sequence[str]) -> str:
    """Return sentences as a list in HTML, `D_P` with its index."""
    option = r'<code style="white-space:nowrap">\1</code>'
    typed = (formula_html(text).replace("drop=", "--drop ") for text in sentences)
    return bullets(re.sub(r"(--[a-z][a-z-]+)", option, text) for text in typed)


def paragraphs(macro: str, found: Any) -> list[str]:
    """Return what a macro of `words.j2` says of an audit, or of its layers: a string per paragraph."""
    text = getattr(_TEMPLATES.get_template("words.j2").module, macro)(found)
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def card(found: Any) -> str:
    """Return the verdict in HTML."""
    return _TEMPLATES.get_template("card.html.j2").render(found=found)


_FILES = PackageLoader("condnum.audit", ".")
_TEMPLATES = Environment(loader=_FILES, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
_FILTERS: dict[str, Any] = {
    "count": "{:,d}".format,
    "filename": lambda path: Path(path).name,
    "formula_html": formula_html,
    "is_finite": math.isfinite,
    "number": number,
    "rounded": rounded,
}
_TEMPLATES.filters |= _FILTERS
_TEMPLATES.globals |= {
    "CLOSED": CLOSED,
    "PARETO": PARETO,
    "LABEL_OF": LABEL_OF,
    "AS_IS": AS_IS,
    "as_page": as_page,
    "odd_columns": odd_columns,
    "paragraphs": paragraphs,
}
