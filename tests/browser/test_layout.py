"""Figures and explorers at the widths that pages give them: what lies beside what, and no overlaps."""

import json
from pathlib import Path
from typing import Any

import pytest

from condnum.files import asset
from condnum.lessons.alignment import ROTATIONS, AlignmentExplorer
from condnum.lessons.condition_number import GradientDescentExplorer

pytestmark = pytest.mark.browser
UNREADABLE = Path(__file__).with_name("figures.js").read_text(encoding="utf-8")
_LAYOUT = """() => {
    const [side, plot] = [".condnum-side", ".js-plotly-plot"].map(name => document.querySelector(name));
    const [left, right] = [side, plot].map(element => element.getBoundingClientRect());
    const {yaxis, yaxis2} = plot._fullLayout;
    return {beside: left.right <= right.left, stacked: yaxis.domain[0] > yaxis2.domain[1],
            width: Math.round(plot._fullLayout.width - right.width)};
}"""


@pytest.fixture
def mounted(window: Any, tmp_path: Path) -> Any:
    """`mounted(explorer, width)`: a page with one explorer, in a column of this width."""
    from plotly.offline import get_plotlyjs

    def show(explorer: Any, width: int) -> Any:
        (tmp_path / "plotly.js").write_text(get_plotlyjs(), encoding="utf-8")
        style, scripts = (
            asset("lessons/frame/explorer.css"),
            asset("figures/paint.js", "lessons/frame/explorer.js"),
        )
        given = f"{json.dumps(explorer.declaration)}, {{now: {explorer.payload}, ask: () => null}}"
        page = tmp_path / "page.html"
        page.write_text(
            f"<meta charset='utf-8'><style>{style}</style><script src='plotly.js'></script>"
            f"<body data-theme='light'><div id='column' style='width:{width}px'><div id='host'></div></div>"
            f"<script>{scripts}\nconst now = {explorer.payload};"
            f"const explorer = condnum.mount(document.getElementById('host'), {given})</script>",
            encoding="utf-8",
        )
        window.set_viewport_size({"width": 1400, "height": 1000})
        window.goto(page.as_uri())
        window.wait_for_function("document.querySelector('.js-plotly-plot .main-svg')")
        return window

    return show


def test_the_column_and_not_the_window_decides_what_is_beside_what(mounted: Any) -> None:
    page = mounted(GradientDescentExplorer(), 1280)
    for width, beside, stacked in ((1280, True, False), (920, False, False), (390, False, True)):
        page.evaluate("width => { document.getElementById('column').style.width = `${width}px`; }", width)
        wanted = json.dumps({"beside": beside, "stacked": stacked, "width": 0}, separators=(",", ":"))
        page.wait_for_function(f"wanted => JSON.stringify(({_LAYOUT})()) === wanted", arg=wanted)
        assert page.evaluate(UNREADABLE) == []


def test_what_is_being_typed_survives_an_answer(mounted: Any) -> None:
    """A slow kernel answers an earlier question while a number is being typed."""
    page = mounted(GradientDescentExplorer(), 920)
    box = page.locator(".condnum-number").first
    box.focus()
    box.fill("37")
    page.evaluate("explorer.draw({...now, state: explorer.state()})")
    assert box.input_value() == "37"
    box.press("Enter")
    assert page.evaluate("explorer.state().kappa") == 37


def test_a_control_without_effect_is_disabled(mounted: Any) -> None:
    """A Haar draw has no angle, and a plane no random draw."""
    page = mounted(AlignmentExplorer(), 920)
    page.locator("summary").first.click()
    for rotation, idle in (("haar", {"angle of U"}), ("ends", {"random draw"}), ("random", set())):
        index = ROTATIONS.index(rotation)
        page.get_by_label("rotation", exact=True).select_option(str(index))
        for label in ("angle of U", "random draw"):
            for part in page.locator(".condnum-row", has_text=label).locator("input").all():
                assert part.is_disabled() == (label in idle), (rotation, label)
