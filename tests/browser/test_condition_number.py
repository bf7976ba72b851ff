"""Notebook 1 in a real browser: it runs, its sliders move the figures to what the library computes."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

from condnum.plots.quadratic import spectrum_descent_figure, zigzag_figure
from condnum.teaching.quadratic import spectrum_descent, zigzag

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


def test_idle_kernels_end():
    from condnum.teaching.serve import IDLE, Lessons

    app = Lessons()
    app.initialize(["notebooks"])
    assert (app.ip, app.auto_token) == ("127.0.0.1", True)
    app.init_settings()
    assert app.kernel_manager.cull_idle_timeout == IDLE
    assert not app.kernel_manager.cull_connected
