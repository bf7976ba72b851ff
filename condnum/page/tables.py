"""Tables for people: how numbers, spans, labels and whole tables are written."""

import html
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.files import asset
from condnum.numbers import number

#: A space at which no line breaks.
GAP = "\u00a0"

_NUMBER = re.compile(
    r"^\s*(?:[<>≈≤≥~+−-]?\s*(?:[\d.,]+(?:\s*[eE][+−-]?\d+|·10[⁻⁰¹²³⁴-⁹]+)?|nan|inf|∞)\s*[%×]?(?:\s*[±–(/].*)?|[—–-]?)\s*$",
    re.IGNORECASE,
)

#: Indices that Unicode has.
_SMALL = str.maketrans("0123456789PHIi", "₀₁₂₃₄₅₆₇₈₉ₚₕᵢᵢ")

#: A letter (or ‖, RIR) with an index: `K_P`, `σ_θ,i`, `‖S‖_F`; not the underscore of `test_vit`.
INDEX = re.compile(
    r"((?<![A-Za-zΑ-ω_])[A-Za-zΑ-ω]|‖|RIR)_([A-Za-z0-9θ]+(?:,[a-z](?![a-z]))?)(?![A-Za-z0-9_])"
)
_LOWER = r"\1<sub>\2</sub>"


def rounded(value: float, digits: int = 2) -> str:
    """Format what is hardly known better than to two digits: a deviation, a factor."""
    return number(float(f"{value:.{digits}g}"))


def times(factor: float) -> str:
    """Format a factor in steps over those on raw inputs."""
    return rounded(factor, 3) if math.isnan(factor) or math.isinf(factor) else f"{rounded(factor, 3)}×"


def spread(mean: float, deviation: float, digits: int = 2) -> str:
    """Format `mean ± deviation`; one that is unknown is left out, one that is round-off of the mean is 0."""
    if math.isnan(deviation):
        return number(mean)
    known = 0.0 if deviation < 1e-9 * abs(mean) else deviation
    return f"{number(mean)}{GAP}±{GAP}{rounded(known, digits)}"


def span(values: Iterable[float], to: str = f"{GAP}–{GAP}") -> str:
    """Format the least and the largest value, once if they read alike."""
    known = pd.Series(values, dtype=float)
    low, high = number(known.min()), number(known.max())
    return low if low == high else f"{low}{to}{high}"


def count_of(count: float, total: int) -> str:
    """Format a count of something that was tried so often."""
    return f"{round(count)}{GAP}of{GAP}{total}"


def label(name: object) -> str:
    """Return a method's label on one line; other text as it is, with the indices of `K_P`."""
    from condnum.methods import get_method, method_names  # with torch, which a page does not need

    text = str(name)
    known = text in method_names() and getattr(get_method(text), "label", None)
    return known.replace(" ", GAP) if known else formula_html(text)


def cell(value: Any) -> str:
    """Write a value: a method by its label, other text as it is, numbers as `number` does."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | np.integer) else label(value)


#: Headings of columns of numbers; of the others, words for underscores.
HEADINGS = {
    "rir": "RIR ↑",
    "rir_median": "median RIR",
    "published_rir": "published RIR",
    "harmful_ratio": "(i) ↑",
    "benign_ratio": "(ii) ↓",
    "immunized_ridge": "immunized, ridge κ",
    "immunized_compact": "immunized, compact κ",
    "immunized_test": "immunized, test images",
    "test_rir": "RIR, test images",
    "pair": "D_P → D_H",
    "slowdown": "slowdown of a new head",
    "accuracy": "D_P accuracy (%)",
    "sgd": "D_H by SGD (%)",
    "solved": "D_H solved (%)",
    "label": "attacker",
    **{f"after_{passes}": f"after {passes} passes (%)" for passes in (1, 5, 10, 50)},
    "final": "in the end (%)",
    "final_initial": "θ_0 (%)",
    "final_again": "θ_0 again (%)",
    "final_scratch": "from scratch (%)",
    "benign_after": "D_P after (%)",
    "averaged_rir": "RIR, averaged K",
    "rfd": "RFD (%)",
    "rfd_signed": "RFD, signed (%)",
    "sgrc_again": "SGRC, A against A (%)",
    "sgrc": "SGRC (%)",
    "rir_share": "RIR / limit",
    "rir_limit": "limit of RIR",
    "limit_without": "limit at ε = 0",
    "limit_ridge": "ε of the limit",
    "benign_loss": "benign loss, clause (c)",
    "benign_steps": "benign steps, × raw",
    "harmful_steps": "harmful steps, × raw",
}
#: Columns that are counts out of the column `of`, and those that are fractions.
_COUNTS, _PERCENT = ("immunized", "reached"), ("benign_loss", "kept", "price")


def written(table: pd.DataFrame) -> pd.DataFrame:
    """Write a table of numbers for people: `x_mean` and `x_std` are one column, counts are out of `of`.

    Where `x_least` is true, `x` is a lower bound.

    Examples:
        >>> numbers = {"method": "ours", "rir_mean": 9293.4, "rir_std": 1126.6, "immunized": 5, "of": 5}
        >>> written(pd.DataFrame([numbers])).iloc[0].str.replace(GAP, " ").tolist()
        ['Ours (Algorithm 1)', '9,293 ± 1,100', '5 of 5']
        >>> written(pd.DataFrame({"ours": [20000.0], "ours_least": [True]})).iloc[0, 0].replace(GAP, " ")
        '> 20,000'
    """
    columns = {}
    for name in table:
        base, ending = str(name).removesuffix("_mean"), str(name).rpartition("_")
        known = f"{ending[0]}_mean" in table if ending[2] == "std" else ending[0] in table
        if name == "of" or (ending[2] in ("std", "least") and known):
            continue
        values, percent = table[name], base.startswith(_PERCENT)
        if base != name:
            deviations = table[f"{base}_std"]
            if percent:
                pairs = zip(100 * values, 100 * deviations, strict=True)
                written = ["—" if math.isnan(of) else f"{spread(round(of, 1), by)}{GAP}%" for of, by in pairs]
            else:
                written = list(map(spread, values, deviations))
        elif base.startswith(_COUNTS):
            written = list(map(count_of, values, table["of"]))
        elif percent:
            written = [
                "—" if math.isnan(of) else f"{number(100 * of if abs(of) > 1e-9 else 0.0)} %" for of in values
            ]
        else:
            least = table.get(f"{base}_least", [False] * len(table))
            written = [f">{GAP}" * bool(low) + cell(of) for low, of in zip(least, values, strict=True)]
        columns[HEADINGS.get(base) or label(base).replace("_", " ")] = written
    return pd.DataFrame(columns)


def plain(table: pd.DataFrame) -> str:
    """Return a table of strings, which may hold markup, for a terminal."""

    def bare(cell: Any) -> str:
        return html.unescape(re.sub(r"<[^>]+>", "", str(cell)))

    return str(table.map(bare).rename(columns=bare).to_string(index=False))


def label_text(name: object) -> str:
    """Return a method's label as plain text, for a sentence or a dropdown.

    Examples:
        >>> label_text("r_ill_only"), label_text("initial")
        ('Rᵢₗₗ only', 'Initial')
    """
    from condnum.page.style import method_style, option_text

    return option_text(method_style(str(name)).label)


def formula_html(text: str) -> str:
    """Return plain text as HTML, `K_P` and `K_P^(-1/2)` with their indices and exponents.

    Examples:
        >>> formula_html("θ = K_P^(-1/2) < ‖S‖_F")
        'θ = K<sub>P</sub><sup>−1/2</sup> &lt; ‖S‖<sub>F</sub>'
        >>> formula_html("σ_θ,i u_iᵀq_j of test_vit, RIR_θ0")
        'σ<sub>θ,i</sub> u<sub>i</sub>ᵀq<sub>j</sub> of test_vit, RIR<sub>θ0</sub>'
    """
    lowered = INDEX.sub(_LOWER, html.escape(text))
    return re.sub(r"\^\(-([^)]*)\)", r"<sup>−\1</sup>", lowered)


def bullets(items: Iterable[str]) -> str:
    """Return sentences of HTML as a list."""
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def sentence_list(sentences: Sequence[str]) -> str:
    """Return plain sentences as an HTML list."""
    return bullets(map(html.escape, sentences))


def as_html(table: pd.DataFrame) -> str:
    """Return a table of strings as HTML; cells and headings may hold markup and `K_P`."""
    heads = [INDEX.sub(_LOWER, str(name)) for name in table]
    cells = table.map(lambda cell: INDEX.sub(_LOWER, cell) if isinstance(cell, str) else cell)
    return cells.set_axis(heads, axis=1).to_html(index=False, escape=False, border=0)


def sortable(table: pd.DataFrame, *filters: str) -> str:
    """Return a table as HTML whose headings sort it; columns named in `filters` have dropdowns."""
    places = [list(table).index(name) for name in filters]
    marked = as_html(table).replace("<table", f'<table data-filters="{places}"', 1)
    marked = marked.replace('class="dataframe"', 'class="dataframe sortable"', 1)
    return f"<div>{marked}<script>{asset('page/sort.js')}</script></div>"


def mark_tables(soup: Any) -> None:
    """Mark columns that hold anything but numbers, and of wide tables each cell with its heading.

    Where there is no room for a wide table (class `cards`), its rows are cards, without headings in sight.
    """
    for style in soup.find_all("style", scoped=True):  # of a table that pandas shows: it holds for the page
        style.decompose()
    for table in soup.find_all("table"):
        rows = [row.find_all(["th", "td"], recursive=False) for row in table.find_all("tr")]
        if any(int(cell.get("colspan") or 1) > 1 for row in rows for cell in row):
            continue  # columns cannot be counted by position
        columns = [[cell for cell in cells if cell is not None] for cells in itertools.zip_longest(*rows)]
        wide = table.thead is not None and len(columns) > 2
        if wide:
            table["class"] = [*table.get("class", []), "cards"]
        for place, column in enumerate(columns):
            if any(cell.name == "td" and not is_number(cell.get_text()) for cell in column):
                for cell in column:
                    cell["class"] = [*cell.get("class", []), "words"]
            for cell in column[1:] if wide and place else ():
                cell["data-label"] = _plain(column[0])


def _plain(heading: Any) -> str:
    """Return a heading without markup, with small letters for indices."""
    words = ""
    for part in heading.descendants:
        if part.name is None:  # a text
            words += str(part).translate(_SMALL) if part.parent.name == "sub" else str(part)
        words += " " * (part.name == "br")
    return " ".join(words.split())


def is_number(text: str) -> bool:
    """Tell whether a cell's text reads as a number, possibly with its uncertainty, or is empty.

    Examples:
        >>> [is_number(text) for text in ("1.5e-3", "4.5·10¹¹", "40.1 ± 2", "—", "ours", "3 of 5 seeds")]
        [True, True, True, True, False, False]
    """
    return bool(_NUMBER.match(text))


def folded(summary: str, table: pd.DataFrame) -> str:
    """Return a table that opens on a click: what the verdict rests on, for those who ask."""
    return f"<details><summary>{formula_html(summary)}</summary>{as_html(table)}</details>"
