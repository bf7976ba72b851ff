"""Notebook 1 in a real browser: it runs, its sliders move the figures to what the library computes."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

from condnum.lessons.condition_number import spectrum_descent, spectrum_descent_figure, zigzag, zigzag_figure

NOTEBOOK = "1_condition_number"

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]


def move_kappa(notebook):
    """Press the arrow on κ: from 10 to the next mark of the logarithmic slider."""
    notebook.assert_shows(zigzag_figure(zigzag(kappa=10.0, step=5)))
    notebook.press("condition number κ", "ArrowRight")
    notebook.assert_shows(zigzag_figure(zigzag(kappa=10**1.1, step=5)))
    assert notebook.code().startswith("GradientDescentExplorer(kappa=12.589254117941")


def test_in_jupyterlab(lab):
    notebook = lab(NOTEBOOK, figures=2)
    notebook.screenshot("1_zigzag_first_paint", 0)
    move_kappa(notebook)
    notebook.screenshot("1_zigzag", 0)
    notebook.press("dimension D", "End", index=1)
    notebook.assert_shows(spectrum_descent_figure(spectrum_descent(dimension=256)), 1)
    notebook.screenshot("1_spectrum", 1)
    reset(notebook)
    use_the_tools(notebook)
    reset(notebook)
    assert notebook.problems == []


def reset(notebook):
    """Press the button; everything is as at the start."""
    before = notebook.figure_data(0)
    notebook.button("Reset").click()
    notebook.changed(before)
    notebook.assert_shows(zigzag_figure(zigzag(step=5)))


def use_the_tools(notebook):
    """Copy the settings, download data and figures."""
    notebook.press("step t", "End")
    notebook.button("Copy settings as code").click()
    notebook.page.get_by_text("Copied the line below").wait_for()
    code = notebook.page.evaluate("navigator.clipboard.readText()")
    assert code == "GradientDescentExplorer(kappa=10.0, angle=45.0, rule='exact', step=40, axes='equal')"
    with notebook.page.expect_download() as caught:
        notebook.button("Data as CSV").click()
    table = np.genfromtxt(caught.value.path(), delimiter=",", names=True)
    np.testing.assert_allclose(table["norm_ratio"], zigzag().norm_ratio, rtol=1e-12)
    for label, start in (("Figure as HTML", b"<!doctype html>"), ("Figure as PNG", b"\x89png")):
        with notebook.page.expect_download() as caught:
            notebook.button(label).click()
        with open(caught.value.path(), "rb") as stream:
            assert stream.read(20).lower().startswith(start)


def test_in_jupyterlab_s_dark_theme(lab):
    notebook = lab(NOTEBOOK, figures=2, dark=True)
    notebook.assert_dark()
    notebook.screenshot("1_zigzag_dark", 0)


def test_in_voila(voila):
    notebook = voila(NOTEBOOK, figures=2)
    assert notebook.figures_when_text_appeared == 0
    move_kappa(notebook)
    notebook.screenshot("1_voila")
    notebook.screenshot("1_voila_zigzag", 0)
    with notebook.page.expect_download() as caught:
        notebook.button("Data as CSV").click()
    assert caught.value.suggested_filename == "GradientDescentExplorer.csv"
    assert notebook.problems == []
    kernel = json.loads(notebook.page.locator("#jupyter-config-data").text_content())["kernelId"]
    server, query = notebook.page.url.split("/voila")[0], notebook.page.url.split("?")[1]
    address = f"{server}/api/kernels/{kernel}?{query}"
    assert answers(address)
    notebook.page.goto("about:blank")  # opened by its address, without the list of notebooks: no _xsrf cookie
    for _ in range(60):
        if not answers(address):
            return
        notebook.page.wait_for_timeout(500)
    raise AssertionError("the kernel of a page that is closed still runs after 30 s")


def answers(address):
    """Tell whether something answers at an address other than 404."""
    try:
        urllib.request.urlopen(address).close()
    except urllib.error.HTTPError as error:
        return error.code != 404
    return True


def test_on_a_phone(voila):
    notebook = voila(NOTEBOOK, figures=2, width=390)
    notebook.page.wait_for_function(
        """() => Array.from(document.querySelectorAll(".js-plotly-plot")).slice(0, 2).every(plot =>
            plot._fullLayout.xaxis2.domain[0] === 0
            && Math.abs(plot._fullLayout.width - plot.clientWidth) <= 1)"""
    )
    assert notebook.page.evaluate("document.body.scrollWidth") <= 390
    assert notebook.explorer().get_by_role("slider", name="condition number κ").count() == 1
    assert notebook.explorer().get_by_role("button", name="Play or pause").count() == 1
    assert notebook.explorer().get_by_title("How the step size is chosen.").count() >= 1
    box = notebook.explorer().get_by_role("textbox", name="condition number κ")
    box.fill("37")
    box.press("Enter")
    notebook.page.wait_for_timeout(1000)
    assert "(kappa=37.0," in notebook.code()
    box.fill("1e6")
    box.press("Enter")
    notebook.page.get_by_text("must be a number from 1 to 1,000, got '1e6'").wait_for()
    assert "(kappa=37.0," in notebook.code()
    notebook.screenshot("1_phone", 0)


def test_idle_kernels_end():
    from condnum.lessons.serve import IDLE, Lessons

    app = Lessons()
    app.initialize(["notebooks"])
    assert (app.ip, app.auto_token) == ("127.0.0.1", True)
    app.init_settings()
    assert app.kernel_manager.cull_idle_timeout == IDLE
    assert not app.kernel_manager.cull_connected
