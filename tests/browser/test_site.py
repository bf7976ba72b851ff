"""One walk through the pages of the site in Chromium, without a server."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.long]

#: Whether every figure that is to be seen is drawn.
_DRAWN = """() => !document.querySelector('.condnum-recorded:not(:has(.main-svg))')
    && [...document.querySelectorAll('.plot-frame, .js-plotly-plot')].every(plot =>
        !plot.checkVisibility() || plot.querySelector('.main-svg'))"""


def test_every_page_is_drawn_and_fits_a_phone_and_a_desk(site: Path, watched: Any) -> None:
    """Pages of the site, and the page of a run; scripts complain of nothing and fetch nothing."""
    pages, wide = [*site.rglob("*.html")], list[str]()
    assert len(pages) > 30
    for path in sorted(pages):
        for width in (1280, 390):
            watched.set_viewport_size({"width": width, "height": 900})
            if width == 1280:
                watched.goto(path.as_uri())
            watched.wait_for_function(_DRAWN)
            if watched.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
                wide.append(f"{path.relative_to(site)} at {width} px")
        assert watched.problems == [], path
    assert not wide
    strangers = [url for url in watched.fetched if not url.startswith(("file:", "data:", "blob:"))]
    assert not strangers
