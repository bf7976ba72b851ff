"""The explorers of notebook 3: controls, counter-examples, tables and what the reading says."""

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")
pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.lessons.regularizer_paths import JointStepsExplorer, RegularizerExplorer, RegularizerPathExplorer
from condnum.lessons.regularizers import counter_example, regularizer_step


@pytest.mark.parametrize("explorer", [RegularizerExplorer, RegularizerPathExplorer, JointStepsExplorer])
@pytest.mark.parametrize("end", ["min", "max"])
def test_every_control_works_at_its_ends(explorer, end):
    shown = explorer()
    assert shown.error == ""
    for control in shown.controls:
        trait = shown.traits()[control.trait]
        values = trait.values if hasattr(trait, "values") else [getattr(trait, end)]
        for value in values:
            shown.change(**{control.trait: value})
            assert shown.error == "", (control.trait, value)
        shown.reset()


@pytest.mark.parametrize(
    ("number", "name", "seen"),
    [
        (1, "well", "annihilated (rank 2 → 1)"),
        (2, "ill", "κ falls from 1.631 to 1.562: <b>the wrong way</b>"),
    ],
)
def test_a_counter_example_is_one_click_away(number, name, seen):
    explorer = RegularizerExplorer()
    drawn = explorer.redraws
    explorer.buttons[f"Counter-example to printed bound ({number})"].click()
    assert explorer.error == ""
    assert explorer.redraws == drawn + 1
    np.testing.assert_array_equal(
        explorer.result.next_sigma, regularizer_step(**counter_example(name)).next_sigma
    )
    assert seen in explorer.reading_line.value
    assert "within" in explorer.reading_line.value  # the printed bound
    assert "beyond" in explorer.reading_line.value  # the corrected one


def test_the_reading_names_a_negative_bound_and_an_infinite_one():
    explorer = RegularizerExplorer(regularizer="ill", kappa=3.0, dimension=2, top=100.0)
    assert "the printed bound is negative" in explorer.reading_line.value
    assert "allows every step (k = 2)" in explorer.reading_line.value


def test_tables():
    explorer = RegularizerExplorer()
    table = explorer.table()
    np.testing.assert_array_equal(table["kappa"], explorer.result.curve)
    path = RegularizerPathExplorer()
    assert path.table().columns[-1] == "sigma_6"
    assert len(path.table()) == len(path.result.kappa)
    joint = JointStepsExplorer()
    np.testing.assert_array_equal(joint.table()["i"], joint.result.ratio_harmful)
    assert joint.table()["within_both_bounds"].iloc[:-1].sum() == joint.result.within.sum()


def test_the_readings_of_paths():
    assert "Monotone is not convergent" in RegularizerPathExplorer().reading_line.value
    assert "steps κ does not fall" in RegularizerPathExplorer(sizes="constant").reading_line.value
    assert "leave float64" in RegularizerPathExplorer(regularizer="ill").reading_line.value


def test_the_verdict_of_a_joint_run():
    assert "<b>not immunized</b>" in JointStepsExplorer(share_ill=0.8).reading_line.value
    assert ": immunized by" in JointStepsExplorer(angle=90.0).reading_line.value


def test_a_slider_rounded_by_the_page_leaves_the_state_alone():
    explorer = RegularizerExplorer(**counter_example("ill"))
    step = explorer.step
    explorer.inputs["step"].value = 10**1.08  # the mark next to 12.12: what the page reports
    assert explorer.step == step
    explorer.inputs["step"].value = 10**1.10  # one mark up from there: the reader's move
    assert explorer.step == pytest.approx(10**1.10)
    explorer.inputs["step"].value = 12.7  # typed
    assert explorer.step == pytest.approx(12.7)
