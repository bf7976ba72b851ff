"""The explorers of notebook 2: presets, tables, and what the reading line claims."""

import numpy as np
import pytest

pytest.importorskip("ipywidgets", reason="the extra notebooks is not installed")
pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.aligned_tasks import aligned_tasks, aligned_tasks_figure
from condnum.lessons.alignment import AlignedTasksExplorer, AlignmentExplorer, rotated_alignment


def test_presets_are_one_click_and_one_drawing_away():
    explorer = AlignmentExplorer(angle=10.0, dimension=12, seed=4)
    explorer.buttons["By hand: D = 2, Eq. 10 fails"].click()
    assert (explorer.redraws, explorer.error) == (2, "")
    np.testing.assert_allclose(12 * explorer.result.sorted_prediction, [8, 2], rtol=1e-12)
    assert "its κ is 64.8% of the true one" in explorer.reading_line.value  # 4 / 6.172
    explorer.buttons["Aligned: Eq. 10 is exact"].click()
    assert "<b>Eq. 10 is exact</b>." in explorer.reading_line.value
    explorer.buttons["Generic: a Haar draw"].click()
    assert explorer.result.alignment.condition_ratio < 0.2
    assert "of Haar draws, 90 % lie in 0.050 … 0.221" in explorer.reading_line.value
    explorer.buttons["By at most 90°: not generic"].click()
    assert explorer.result.diagonal_overlap > 0.3
    explorer.buttons["Aligned: Eq. 10 is exact"].click()
    assert "<b>Eq. 10 is exact</b>." in explorer.reading_line.value
    explorer.buttons["Reset"].click()
    assert (explorer.angle, explorer.dimension, explorer.seed) == (10.0, 12, 4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"angle": 90.0, "rotation": "ends"}, "though not in the order of θ"),
        ({"angle": 20.0}, "majorisation and Ostrowski's bounds hold"),
        ({"theta_kappa": 1.0}, "θ has repeated singular values"),
        ({"data_spectrum": "clusters"}, "K has repeated eigenvalues"),
    ],
    ids=["permuted", "generic", "u", "q"],
)
def test_the_reading_line(settings, said):
    explorer = AlignmentExplorer(**settings)
    assert explorer.error == ""
    assert said in explorer.reading_line.value


def test_the_table_holds_every_number_of_the_figure():
    explorer = AlignmentExplorer(angle=25.0, dimension=4)
    run, table = rotated_alignment(angle=25.0, dimension=4), explorer.table()
    assert table["i"].tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(table["spectrum"], run.alignment.spectrum)
    np.testing.assert_array_equal(table["predicted"], run.alignment.predicted)
    np.testing.assert_array_equal(table["overlap_2"], run.alignment.overlaps[:, 1])


def test_the_remark_and_its_counter_example():
    explorer = AlignedTasksExplorer()
    assert "nothing is changed yet" in explorer.reading_line.value
    explorer.buttons["Counter-example to the remark"].click()
    assert explorer.redraws == 2
    drawn = aligned_tasks_figure(aligned_tasks(exponent=1.0))
    np.testing.assert_array_equal(explorer.view.data[1].y, drawn.data[1].y)
    assert "RIR = 2,500, which is the ceiling: <b>immunized</b>" in explorer.reading_line.value
    explorer.buttons["Where the remark is right"].click()
    assert "<b>not immunized</b>" in explorer.reading_line.value
    assert explorer.table()["rir"].to_numpy() == pytest.approx(1)
