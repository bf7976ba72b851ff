"""An audit in words: sentences are macros of `words.j2`, the card with the verdict is `card.html.j2`."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from condnum.auditing.lights import MEANING
from condnum.auditing.measures import AS_IS, CLOSED, LABEL_OF
from condnum.data.feature_pair import odd_columns
from condnum.probing.report import attack_sentences
from condnum.report.tables import bullets, formula_html, number, rounded
from condnum.theory.immunization import LOSS_TOLERANCE


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


def label(name: str) -> str:
    """Return how an extractor is called."""
    return LABEL_OF.get(name, name)


_FILES = PackageLoader("condnum.auditing", ".")
_TEMPLATES = Environment(loader=_FILES, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
_FILTERS: dict[str, Any] = {
    "count": "{:,d}".format,
    "filename": lambda path: Path(path).name,
    "formula_html": formula_html,
    "is_finite": math.isfinite,
    "label": label,
    "number": number,
    "rounded": rounded,
}
_TEMPLATES.filters |= _FILTERS
_TEMPLATES.globals |= {
    "CLOSED": CLOSED,
    "MEANING": MEANING,
    "LOSS_TOLERANCE": LOSS_TOLERANCE,
    "AS_IS": AS_IS,
    "as_page": as_page,
    "attack_sentences": lambda report: attack_sentences(report, LABEL_OF | {AS_IS: "the raw input"}),
    "odd_columns": odd_columns,
    "paragraphs": paragraphs,
}
