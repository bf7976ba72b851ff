"""Tables of a page: numbers to the right, words to the left, whole columns at a time."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(
    r"^\s*(?:[<>≈≤≥~+−-]?\s*(?:[\d.,]+(?:\s*[eE][+−-]?\d+)?|nan|inf|∞)\s*[%×]?(?:\s*[±–(/].*)?|[—–-]?)\s*$",
    re.IGNORECASE,
)


def mark_words(soup: Any) -> None:
    """Give the class `words` to every cell of the columns that hold anything but numbers."""
    for table in soup.find_all("table"):
        rows = [row.find_all(["th", "td"], recursive=False) for row in table.find_all("tr")]
        if any(int(cell.get("colspan") or 1) > 1 for row in rows for cell in row):
            continue  # columns cannot be counted by position
        wordy = {
            column
            for row in rows
            for column, cell in enumerate(row)
            if cell.name == "td" and not is_number(cell.get_text())
        }
        for row in rows:
            for column, cell in enumerate(row):
                if column in wordy:
                    cell["class"] = [*cell.get("class", []), "words"]


def is_number(text: str) -> bool:
    """Tell whether a cell's text reads as a number, possibly with its uncertainty, or is empty.

    Examples:
        >>> [is_number(text) for text in ("1.5e-3", "40.1 ± 2", "—", "ours", "3 of 5 seeds")]
        [True, True, True, False, False]
    """
    return bool(_NUMBER.match(text))
