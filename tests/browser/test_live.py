"""Lessons in JupyterLab: keys, choices and exports show what the library computes."""

import re

import pytest
from browser.conftest import LESSONS

from condnum.lessons.condition_number import zigzag
from condnum.report.notebook import read_notebook

pytestmark = [pytest.mark.browser, pytest.mark.long]

#: A machine on which every widget is late: anywidget gives up on one that is not there after two seconds.
_SLOW = """{
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    AbortSignal.timeout = time => (time === 2000 ? {addEventListener: (_, act) => act()} : timeout(time));
}"""
_GIVEN_UP = "[anywidget] Failed to initialize model."
_RESTART = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
_THEME = "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"


def explorers():
    """How many explorers are shown."""
    cells = [cell for path in LESSONS for cell in read_notebook(path).cells if cell.cell_type == "code"]
    shown = r"(?m)^[A-Z]\w+\.show\(static=static"  # a class, not what no control changes
    return sum(re.search(shown, cell.source) is not None for cell in cells)


def test_in_jupyterlab(lab, window):
    """Every figure, keys that are the slider's alone, choices, typed numbers, exports, both themes."""
    window.add_init_script(_SLOW)
    live = lab(explorers())
    live.turn_to("step size")
    live.press("condition number κ", "ArrowRight")
    live.assert_draws(zigzag(kappa=10**1.1).figure())
    box = live.explorer.get_by_role("textbox", name="condition number κ")
    box.fill("37")
    live.change(lambda: box.press("Enter"))
    live.assert_draws(zigzag(kappa=37.0).figure())
    assert "(kappa=37.0," in live.code()  # the slider has not rounded it
    rule = live.explorer.locator(".condnum-row", has_text="step size").locator("select")
    live.change(lambda: rule.select_option(label="constant, 1/σ₁"))
    live.assert_draws(zigzag(kappa=37.0, rule="constant").figure())
    with live.page.expect_download() as caught:
        live.button("Figure as PNG").click()
    with open(caught.value.path(), "rb") as stream:
        assert stream.read(4) == b"\x89PNG"
    live.page.evaluate(_THEME)
    assert live.problems
    assert set(live.problems) == {_GIVEN_UP}
    live.page.evaluate(_RESTART)
    told = live.explorer.get_by_text("The kernel restarted: run this cell again.")
    told.wait_for()
    box.fill("40")
    box.press("Enter")
    live.page.wait_for_function("one => one.value === '37'", arg=box.element_handle())
    assert live.explorer.get_attribute("aria-busy") == "false"
