"""Notebook 4 in a real browser: it runs, its sliders move the figures to what the library computes."""

import pytest

from condnum.lessons.ceiling import ceiling_demo, ceiling_plane_figure
from condnum.lessons.ridge_ceiling import ridge_ceiling_demo, ridge_ceiling_figure

NOTEBOOK = "4_ceiling"

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]


def test_in_jupyterlab(lab):
    notebook = lab(NOTEBOOK, figures=2)
    notebook.page.set_viewport_size({"width": 1280, "height": 1100})  # the whole explorer in one picture
    notebook.screenshot("4_ceiling_first_paint", 0)
    notebook.assert_shows(ceiling_plane_figure(ceiling_demo()))
    notebook.press("angle of K_H to K_P", "ArrowRight")
    notebook.assert_shows(ceiling_plane_figure(ceiling_demo(angle=46.0)))
    assert "angle=46.0" in notebook.code()
    before = notebook.figure_data()
    notebook.dropdown("last feature dead").select_option(label="in pre-training")
    notebook.changed(before)
    notebook.assert_shows(ceiling_plane_figure(ceiling_demo(angle=46.0, null="pretrain")))
    notebook.screenshot("4_ceiling_null", 0)
    notebook.press("ridge ε", "End", index=1)
    notebook.assert_shows(ridge_ceiling_figure(ridge_ceiling_demo(ridge=10.0)), 1)
    notebook.screenshot("4_ridge", 1)
    notebook.darken()
    notebook.screenshot("4_ceiling_dark", 0)
    notebook.screenshot("4_ridge_dark", 1)
    assert notebook.problems == []
