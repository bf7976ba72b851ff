"""The page of `condnum audit` as a reader sees it, on a desk and on a phone."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_verdict_comes_first_and_is_complete(audit_page, window, width):
    window.set_viewport_size({"width": width, "height": 900})
    window.goto(audit_page.as_uri())
    window.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 12")
    top = {
        name: window.locator(place).first.bounding_box()["y"]
        for name, place in (("card", "article.score"), ("chart", ".figure"), ("words", "#in-words"))
    }
    assert top["card"] < top["chart"] < top["words"]
    assert top["card"] < 300
    card = window.locator("article.score").inner_text()
    for part in ("immunized", "Weakest attacker", "of at most", "What to do next", "--drop label"):
        assert part in card
    links = window.locator("nav.contents a").all_text_contents()
    assert links[0] == "Verdict"
    assert {"How to read these numbers", "Columns", "Attackers"} <= set(links)
    text = window.locator("main").inner_text()
    for raw in ("D_P", "D_H", "K_P", "Without paths", "RuntimeWarning", " *\n"):
        assert raw not in text
    chip = window.locator("article.score .chip").first
    assert chip.evaluate("chip => getComputedStyle(chip).backgroundColor") != "rgba(0, 0, 0, 0)"
    card = window.locator("main table").first
    assert card.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
