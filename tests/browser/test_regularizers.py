"""Notebook 3 in a real browser: its sliders and counter-examples show what the library computes."""

import pytest

from condnum.lessons.regularizer_paths import (
    joint_steps,
    joint_steps_figure,
    regularizer_path,
    regularizer_path_figure,
)
from condnum.lessons.regularizers import counter_example, regularizer_step, regularizer_step_figure

NOTEBOOK = "3_regularizers"

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.slow]


def test_in_jupyterlab(lab):
    notebook = lab(NOTEBOOK, figures=3)
    notebook.assert_shows(regularizer_step_figure(regularizer_step()))
    notebook.screenshot("3_step_first_paint", 0)
    notebook.press("dimension k = D", "ArrowRight")
    notebook.assert_shows(regularizer_step_figure(regularizer_step(dimension=9)))
    for number, name, scale in ((1, "well", "decades"), (2, "ill", "near")):
        before = notebook.figure_data()
        notebook.button(f"Counter-example to printed bound ({number})").click()
        notebook.changed(before)
        example = regularizer_step(**counter_example(name))
        notebook.assert_shows(regularizer_step_figure(example, scale=scale))
        assert f"step={example.step!r}" in notebook.code()  # the sliders have not rounded it
        notebook.screenshot(f"3_counter_example_{number}", 0)

    notebook.screenshot("3_path_first_paint", 1)
    before = notebook.figure_data(1)
    notebook.dropdown("step sizes", 1).select_option(label="constant η")
    notebook.changed(before, 1)
    notebook.assert_shows(regularizer_path_figure(regularizer_path(share=0.2, sizes="constant")), 1)
    notebook.screenshot("3_path", 1)

    notebook.screenshot("3_joint_first_paint", 2)
    notebook.press("angle of the tasks", "End", index=2)
    notebook.assert_shows(joint_steps_figure(joint_steps(angle=90.0)), 2)
    notebook.screenshot("3_joint", 2)
    assert notebook.problems == []
