"""Notebook 5 in a real browser: the example, a slider, an upload, a bad upload, paths that are missing."""

import numpy as np
import pytest

from condnum.lessons.own_data import own_data, own_data_figure

NOTEBOOK = "5_bring_your_own"
TALL = {"width": 1280, "height": 1500}  # the whole explorer in one picture

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]


def upload(notebook, label, path):
    """Press an upload button and choose a file."""
    with notebook.page.expect_file_chooser() as chooser:
        notebook.explorer().get_by_role("button", name=label).click()
    chooser.value.set_files(path)


def test_in_jupyterlab(lab, tmp_path):
    notebook = lab(NOTEBOOK)
    notebook.page.set_viewport_size(TALL)
    notebook.assert_shows(own_data_figure(own_data()))
    notebook.screenshot("5_own_data_first_paint", 0)
    notebook.press("ridge ε", "ArrowRight")
    notebook.assert_shows(own_data_figure(own_data(ridge=10**-5.9)))
    before = notebook.figure_data()
    notebook.dropdown("example").select_option(label="digits 4 and 7")
    notebook.changed(before)
    notebook.assert_shows(own_data_figure(own_data(ridge=10**-5.9, example="digits")))
    notebook.screenshot("5_own_data_digits", 0)

    rng = np.random.default_rng(0)
    P, H = rng.normal(size=(60, 12)) * np.geomspace(1, 0.05, 12), rng.normal(size=(40, 12))
    np.save(tmp_path / "mine_P.npy", P)
    np.save(tmp_path / "mine_H.npy", H)
    (tmp_path / "bad.csv").write_text("name" + ",a,b,c,d,e,f,g,h,i,j,k\nx" + ",1" * 11 + "\n")
    upload(notebook, "Upload X_P", tmp_path / "mine_P.npy")
    notebook.page.get_by_text("X_H is still missing").wait_for()
    before = notebook.figure_data()
    upload(notebook, "Upload X_H", tmp_path / "mine_H.npy")
    notebook.changed(before)
    paths = {"pretrain": str(tmp_path / "mine_P.npy"), "harmful": str(tmp_path / "mine_H.npy")}
    notebook.assert_shows(own_data_figure(own_data(**paths, ridge=10**-5.9)))
    assert notebook.explorer().locator("[role=alert]").count() == 0
    notebook.screenshot("5_own_data_upload", 0)

    upload(notebook, "Upload X_H", tmp_path / "bad.csv")
    message = notebook.page.get_by_role("alert").get_by_text("do not hold numbers: name")
    message.wait_for()
    field = notebook.explorer().locator(".widget-text", has_text="X_H from path")
    gap = message.bounding_box()["y"] - field.bounding_box()["y"]
    assert 0 < gap < 120  # beside the field at fault: right below its button
    assert not notebook.explorer().locator(".js-plotly-plot").is_visible()
    assert notebook.explorer().get_by_text("RIR ≤").count() == 0
    assert notebook.code() == ""
    assert notebook.button("Data as CSV").is_disabled()
    notebook.screenshot("5_own_data_bad_upload", 0)
    notebook.button("Reset").click()
    notebook.explorer().get_by_text("RIR ≤").wait_for()
    assert notebook.explorer().locator(".js-plotly-plot").is_visible()
    notebook.darken()
    notebook.screenshot("5_own_data_dark", 0)
    assert notebook.problems == []
