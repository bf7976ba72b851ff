"""Making sure that a page loads nothing from a network."""

from __future__ import annotations

import re
from typing import Any

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
            if _REMOTE.match(_address(element, attribute)):
                _replace(soup, element, _address(element, attribute))
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


def _address(element: Any, attribute: str) -> str:
    """Return where an element loads from, or an empty text."""
    return str(element.get(attribute) or element.get(f"xlink:{attribute}") or "")


def _replace(soup: Any, element: Any, address: str) -> None:
    """Remove an element; a picture leaves a link behind."""
    if element.name != "img":
        element.decompose()
        return
    link = soup.new_tag("a", href=address)
    link.string = element.get("alt") or address
    element.replace_with(link)
