"""The explorers of notebook 4: they draw what the library computes, and say what it means."""

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.ceiling import (
    CeilingExplorer,
    RidgeCeilingExplorer,
    ceiling_demo,
    ceiling_reading,
    ceiling_table,
    ridge_reading,
    ridge_table,
)
from condnum.lessons.ridge_ceiling import ridge_ceiling_demo


@pytest.mark.parametrize("explorer", [CeilingExplorer, RidgeCeilingExplorer])
def test_its_defaults_are_drawn_and_every_choice_works(explorer):
    shown = explorer()
    assert shown.error == ""
    for null in ("none", "both", "harmful", "pretrain"):
        shown.null = null
        shown.angle = 0.0
        shown.angle = 90.0
        assert shown.error == ""
    shown.change(kappa_pretrain=1.0, kappa_harmful=1.0)
    assert shown.error == ""


def test_a_slider_moves_the_plane():
    explorer = CeilingExplorer(step=10)
    explorer.angle = 60.0
    wanted = ceiling_demo(angle=60.0, step=10)
    names = [trace.name for trace in explorer.view.data]
    path = explorer.view.data[names.index("Algorithm 1")]
    np.testing.assert_array_equal(path.y, wanted.path[:, 1])
    assert (
        f"the largest (i) with (ii) ≤ 1 is {wanted.plane.ceiling.value:,.0f}" in explorer.reading_line.value
    )


def test_the_table_holds_every_point():
    demo = ceiling_demo(null="pretrain")
    table = ceiling_table(demo)
    assert table.groupby("kind").size().to_dict() == {
        "algorithm_1": 101, "family": 30, "optimum": 1, "random": 90
    }  # fmt: skip
    path = table[table["kind"] == "algorithm_1"]
    np.testing.assert_array_equal(path["rir"], demo.rir)
    assert path["step"].tolist() == list(range(101))
    assert table.loc[table["kind"] == "random", "step"].isna().all()


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({}, "Of 90 random θ, none lies beyond the front"),
        ({"null": "pretrain"}, "RIR grows without end"),
        ({"kappa_pretrain": 1.0, "learning_rate": 1.0}, "The step size is too large: the path ends at step"),
    ],
    ids=["finite", "infinite", "diverged"],
)
def test_what_the_plane_s_line_says(arguments, phrase):
    assert phrase in ceiling_reading(ceiling_demo(**arguments))


@pytest.mark.parametrize(
    ("null", "phrase"),
    [
        ("none", "both ceilings tend to the compact one"),
        ("both", "<i>not</i> to the compact 3,066"),
        ("pretrain", "grows like 1/ε²"),
    ],
)
def test_what_the_ridge_s_line_says(null, phrase):
    assert phrase in ridge_reading(ridge_ceiling_demo(null=null))


def test_the_table_of_ridges():
    demo = ridge_ceiling_demo(null="both")
    table = ridge_table(demo)
    np.testing.assert_array_equal(table["bound_of_measure"], demo.of_measure)
    assert (table["compact_ceiling"] == demo.compact).all()
