"""Notebook 2 in a real browser: it runs, its sliders and presets move the figures to the library's values."""

import pytest

from condnum.lessons.aligned_tasks import aligned_tasks, aligned_tasks_figure
from condnum.lessons.alignment import alignment_figure, rotated_alignment

NOTEBOOK = "2_alignment"

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]


def test_in_jupyterlab(lab):
    notebook = lab(NOTEBOOK, figures=2)
    notebook.page.set_viewport_size({"width": 1280, "height": 1200})  # a whole explorer in one picture
    notebook.assert_shows(alignment_figure(rotated_alignment(angle=45.0)))
    notebook.screenshot("2_alignment_first_paint", 0)
    notebook.press("angle of U to Q", "ArrowRight")
    notebook.assert_shows(alignment_figure(rotated_alignment(angle=46.0)))
    before = notebook.figure_data()
    notebook.button("By hand: D = 2, Eq. 10 fails").click()
    notebook.changed(before)
    by_hand = rotated_alignment(angle=45.0, dimension=2, data_kappa=3.0, theta_kappa=2.0)
    notebook.assert_shows(alignment_figure(by_hand))
    before = notebook.figure_data()
    notebook.button("Generic: a Haar draw").click()
    notebook.changed(before)
    notebook.assert_shows(alignment_figure(rotated_alignment(angle=45.0, rotation="haar")))
    notebook.screenshot("2_alignment", 0)
    before = notebook.figure_data(1)
    notebook.button("Counter-example to the remark", 1).click()
    notebook.changed(before, 1)
    notebook.assert_shows(aligned_tasks_figure(aligned_tasks(exponent=1.0)), 1)
    assert "exponent=1.0" in notebook.code(1)
    notebook.screenshot("2_aligned_tasks", 1)
    notebook.darken()
    notebook.screenshot("2_alignment_dark", 0)
    assert notebook.problems == []
