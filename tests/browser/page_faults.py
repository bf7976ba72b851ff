"""What is wrong with a page at the widths of a phone, a tablet, a laptop and a large screen, light and dark.

`figures.js` looks at what is shown: texts upon each other, what is wider than its box, raw TeX and outputs,
controls that a text names and the page lacks.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).with_name("figures.js").read_text(encoding="utf-8")
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
#: A phone and a desk; these, a tablet and a large screen.
VIEWS = ((390, "dark"), (1280, "light"))
FOUR_VIEWS = (*VIEWS, (768, "light"), (1920, "dark"))

#: Whether all figures are drawn at the width of their place, in the colours of the page.
_SETTLED = """dark => !document.querySelector('.condnum-recorded:not(:has(.main-svg))')
    && [...document.querySelectorAll('.plot-frame, .js-plotly-plot')].every(plot =>
    !plot.checkVisibility() || (plot._fullLayout && plot.querySelector('.main-svg')
        && (plot._fullLayout.paper_bgcolor === '#14181e') === dark
        && (!plot._fullLayout.autosize || Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)))"""
#: JupyterLab does not follow the reader's system: what is live in it follows this.
_THEME = "light => { if (document.body.dataset.jpThemeLight) document.body.dataset.jpThemeLight = light; }"
#: Lets observers of sizes and of colours do their work.
_PAINTED = """() => new Promise(done =>
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"""


def faults_of(
    page: Any, name: str, views: Iterable[tuple[int, str]] = VIEWS
) -> dict[tuple[str, str], list[str]]:
    """Return what is wrong with an open page: the windows of each fault, by page and fault."""
    found = dict[tuple[str, str], list[str]]()
    for width, theme in views:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.evaluate(_THEME, theme == "light")
        page.evaluate(_PAINTED)
        page.wait_for_function(_SETTLED, arg=theme == "dark")
        for fault in page.evaluate(FAULTS):
            found.setdefault((name, fault), []).append(f"{width} px, {theme}")
    return found
