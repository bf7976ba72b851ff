"""The frame of the explorers, through a small one of its own; and what holds for every explorer."""

import sys
from typing import Literal

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

import plotly.graph_objects as go
import traitlets

from condnum.errors import InvalidInputError, MissingExtraError, UnknownNameError
from condnum.lessons.aligned_tasks import AlignedTasksExplorer
from condnum.lessons.alignment import AlignmentExplorer
from condnum.lessons.ceiling import CeilingExplorer, RidgeCeilingExplorer
from condnum.lessons.condition_number import (
    GradientDescentExplorer,
    SpectrumDescentExplorer,
    Zigzag,
    plateau,
    spectrum,
    zigzag,
)
from condnum.lessons.explorer import Between, Explorer, Slider, checked
from condnum.lessons.figure_view import shown_figure
from condnum.lessons.own_data import OwnDataExplorer
from condnum.lessons.regularizer_paths import JointStepsExplorer, RegularizerPathExplorer
from condnum.lessons.regularizers import RegularizerExplorer, counter_example
from condnum.lessons.two_tasks import two_tasks, whiten

EXPLORERS = [
    *(GradientDescentExplorer, SpectrumDescentExplorer, AlignmentExplorer, AlignedTasksExplorer),
    *(RegularizerExplorer, RegularizerPathExplorer, JointStepsExplorer),
    *(CeilingExplorer, RidgeCeilingExplorer, OwnDataExplorer),
]
PICTURE = "application/vnd.plotly.v1+json"


@pytest.mark.parametrize("kind", EXPLORERS, ids=lambda kind: kind.__name__)
def test_every_explorer_works_at_the_ends_of_every_control(kind):
    """One make-up of traces, also on a phone; a table, a sentence, presets; a code line that comes back."""
    explorer = kind()
    traces = len(explorer.view.data)

    def holds():
        assert explorer.error == ""
        assert len(explorer.view.data) == traces
        assert len(explorer.result.table())
        assert len(explorer.reading_line.value) > 100
        assert all(0 <= end <= 1 for axis in explorer.view.select_yaxes() for end in axis.domain or ())

    for name, control in kind.controls.items():
        trait = explorer.traits()[name]
        ends = getattr(trait, "values", None) or [getattr(trait, end, None) for end in ("min", "max")]
        for end in ends:
            if end is not None:
                setattr(explorer, name, end)
                holds()
        if isinstance(control, Slider):
            beyond = {name: type(trait.default_value)(2 * trait.max + 1)}
            with pytest.raises(InvalidInputError, match=f"{name} must lie between"):
                kind.compute(**beyond)
            with pytest.raises(traitlets.TraitError):
                explorer.change(**beyond)
        explorer.reset()
    explorer.courier.narrow = True
    holds()
    for preset in kind.presets:
        explorer.buttons[preset.label].click()
        holds()
        assert preset.settings.items() <= explorer.settings.items()
    assert eval(explorer.code.value, {kind.__name__: kind}).settings == explorer.settings


READINGS = [
    (GradientDescentExplorer, {}, "0.6694 of the excess loss, exactly Kantorovich"),
    (GradientDescentExplorer, {"kappa": 1.0}, "one step arrives"),
    (GradientDescentExplorer, {"rule": "constant"}, "With the constant step"),
    (SpectrumDescentExplorer, {"kappa": 1e6, "start": "worst"}, "not within 1,000 steps; Eq. 2 grants"),
    (AlignmentExplorer, 1, "its κ is 64.8% of the true one"),  # 4 / 6.172
    (AlignmentExplorer, 2, "of Haar draws, 90 % lie in 0.050 … 0.221"),
    (AlignmentExplorer, {"angle": 90.0, "rotation": "ends"}, "though not in the order of θ"),
    (AlignmentExplorer, {"theta_kappa": 1.0}, "θ has repeated singular values"),
    (AlignmentExplorer, {"data_spectrum": "clusters"}, "K has repeated eigenvalues"),
    (AlignedTasksExplorer, {}, "nothing is changed yet"),
    (AlignedTasksExplorer, 0, "RIR = 2,500, which is the ceiling: <b>immunized"),
    (RegularizerExplorer, 0, "annihilated (rank 2 → 1)"),
    (RegularizerExplorer, {"regularizer": "ill", "dimension": 2, "top": 100.0}, "printed bound is neg"),
    (RegularizerExplorer, {"regularizer": "ill", "dimension": 2}, "allows every step (k = 2)"),
    (RegularizerPathExplorer, {"sizes": "constant"}, "steps κ does not fall"),
    (RegularizerPathExplorer, {"regularizer": "ill"}, "leave float64"),
    (JointStepsExplorer, {"angle": 90.0}, ": immunized by"),
    (CeilingExplorer, {}, "Of 90 random θ, none lies beyond the front"),
    (CeilingExplorer, {"null": "pretrain"}, "RIR grows without end"),
    (CeilingExplorer, {"kappa_pretrain": 1.0, "learning_rate": 1.0}, "The step size is too large"),
    (RidgeCeilingExplorer, {"null": "none"}, "both ceilings tend to the compact one"),
    (RidgeCeilingExplorer, {"null": "both"}, "<i>not</i> to the compact 3,066"),
    (RidgeCeilingExplorer, {"null": "pretrain"}, "grows like 1/ε²"),
]


@pytest.mark.parametrize(("kind", "settings", "said"), READINGS, ids=lambda value: str(value)[:40])
def test_what_is_said(kind, settings, said):
    """A number is that of a preset."""
    chosen = settings if isinstance(settings, dict) else kind.presets[settings].settings
    assert said in kind.compute(**chosen).reading()


@pytest.mark.parametrize(
    ("call", "arguments", "match"),
    [
        (zigzag, {"rule": "exat"}, "unknown rule 'exat'; did you mean 'exact'"),
        (spectrum, {"shape": "linear", "dimension": 1, "kappa": 2.0}, "lie between 2 and ∞, got 1"),
        (plateau, {"kappa": 1.0}, "kappa must be above 1, got 1"),
        (two_tasks, {"null": "both", "dimension": 2}, "at least 3 with null space 'both'"),
        (whiten, {"theta": np.zeros((2, 2)), "covariance": np.eye(2)}, "rank 0"),
    ],
)
def test_bad_arguments(call, arguments, match):
    with pytest.raises(InvalidInputError, match=match):
        call(**arguments)


@checked(kappa=Slider("condition number κ", "σ₁/σ₂", 1, 1000))
def failing(*, kappa: float = 10.0) -> Zigzag:
    if kappa == 13:
        raise ValueError("no <13>")
    return zigzag(kappa=kappa)


class FailingExplorer(Explorer):
    compute = staticmethod(failing)

    @traitlets.validate("kappa")
    def _lucky(self, proposal):
        if proposal["value"] == 17:
            raise traitlets.TraitError("not this one")
        return proposal["value"]


@pytest.fixture
def explorer():
    """An explorer whose messages to the page are kept in `sent`."""
    explorer = GradientDescentExplorer(kappa=20.0)
    explorer.sent = []
    explorer.courier.send = lambda content, buffers=(): explorer.sent.append((content, list(buffers)))
    return explorer


def test_checked_takes_what_was_declared():
    @checked(share=Between(0, 1))
    def cut(share: float, side: Literal["left", "right"] = "left") -> float:
        return share

    assert cut(0.5, "right") == cut(share=0.5)
    for share in (-0.1, 1.5, np.nan):
        with pytest.raises(InvalidInputError, match=f"share must lie between 0 and 1, got {share}"):
            cut(share)
    with pytest.raises(UnknownNameError, match="unknown side 'rigt'; did you mean 'right'"):
        cut(0.5, side="rigt")
    with pytest.raises(UnknownNameError, match=r"of GradientDescentExplorer 'kapa'; did you mean 'kappa'"):
        GradientDescentExplorer(kapa=3)


def test_a_cell_keeps_a_picture_beside_the_widget(explorer, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    for live in (explorer, shown_figure(go.Figure().add_scatter(y=[1, 2]))):
        shown.clear()
        live._ipython_display_()
        assert "application/vnd.jupyter.widget-view+json" in shown[0]
        assert len(shown[1][PICTURE]["data"]) >= 1
    shown.clear()
    FailingExplorer(kappa=13)._ipython_display_()
    assert len(shown) == 1  # nothing is drawn
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    explorer._ipython_display_()
    assert len(shown) == 2


def test_controls_and_traits_follow_each_other_and_redraw_in_place(explorer):
    iterates = explorer.view.data[2]
    assert (explorer.redraws, explorer.error, len(iterates.x)) == (1, "", 6)
    explorer.step = 5
    assert explorer.redraws == 1  # nothing is new
    explorer.inputs["step"].value = 4
    assert (explorer.step, explorer.redraws) == (4, 2)
    assert explorer.view.data[2] is iterates
    assert len(iterates.x) == 5
    assert explorer.view.layout.title.text.endswith("κ = 20, t = 4")
    assert "After 4 steps" in explorer.reading_line.value
    explorer.rule = "constant"
    assert explorer.inputs["rule"].value == "constant"
    explorer.change(step=1, kappa=3.0, axes="fit")
    assert explorer.redraws == 4
    explorer.buttons["Reset"].click()
    assert explorer.settings_code.startswith("GradientDescentExplorer(kappa=20.0, angle=45.0, rule='exact'")


def test_controls_carry_label_help_and_bounds(explorer):
    kappa = explorer.inputs["kappa"]
    assert (kappa.description, kappa.tooltip[:16]) == ("condition number κ", "Condition number")
    assert (kappa.min, kappa.max) == pytest.approx((0, 3))
    assert explorer.courier.tips["condition number κ"] == kappa.tooltip
    assert explorer.inputs["axes"].options == (("equal", "equal"), ("stretched to the path", "fit"))
    (width,) = {control.style.description_width for control in explorer.inputs.values()}
    assert int(width.removesuffix("ch")) >= 0.8 * len("start angle φ (degrees)")


def test_an_error_is_seen_kept_and_passes():
    explorer = FailingExplorer()
    explorer.kappa = 13
    assert explorer.error == "nothing can be drawn for these settings: ValueError: no <13>"
    assert 'role="alert"' in explorer.alert.value
    assert "no &lt;13&gt;" in explorer.alert.value
    with pytest.raises(InvalidInputError, match="nothing to export"):
        explorer.export("csv")
    with pytest.raises(InvalidInputError, match="no <13>"):
        FailingExplorer.show(static=True, kappa=13)
    shown = (explorer.place.layout.display, explorer.code.value, explorer.reading_line.value)
    assert shown == ("none", "", "")
    assert explorer.buttons["Data as CSV"].disabled
    assert not explorer.buttons["Reset"].disabled
    explorer.kappa = 3
    assert (explorer.error, explorer.alert.value) == ("", "")
    assert (explorer.place.layout.display, explorer.code.value) == ("block", explorer.settings_code)
    assert not explorer.buttons["Data as CSV"].disabled
    explorer.inputs["kappa"].value = 17
    assert (explorer.kappa, explorer.inputs["kappa"].value) == (3, 3)
    assert explorer.error == "kappa stays 3.0: TraitError: not this one"


@pytest.mark.parametrize("typed", ["37", " 37.256 ", "1,000", "1e2"])
def test_typed_numbers_are_taken_as_they_are(typed):
    explorer = GradientDescentExplorer()
    explorer.typed["kappa"].value = typed
    assert explorer.kappa == pytest.approx(float(typed.replace(",", "")), rel=0, abs=0)
    assert (explorer.typed["kappa"].value, explorer.error) == (typed, "")
    explorer.inputs["kappa"].value = 10**1.1  # the slider is moved
    assert (explorer.kappa, explorer.typed["kappa"].value) == (10**1.1, "12.59")


@pytest.mark.parametrize(
    ("trait", "typed", "said"),
    [
        ("kappa", "1e6", "condition number κ must be a number from 1 to 1,000, got '1e6'."),
        ("kappa", "1,5", "got '1,5'."),
        ("kappa", "nan", "got 'nan'."),
        ("step", "3.5", "step t must be a whole number from 0 to 40, got '3.5'."),
    ],
)
def test_typed_numbers_that_cannot_be_are_refused(trait, typed, said):
    explorer = GradientDescentExplorer()
    before, shown = getattr(explorer, trait), explorer.typed[trait].value
    explorer.typed[trait].value = typed
    assert (getattr(explorer, trait), explorer.typed[trait].value) == (before, shown)
    assert said in explorer.error
    assert explorer.redraws == 1


def test_a_slider_rounded_by_the_page_leaves_the_state_alone():
    explorer = RegularizerExplorer(**counter_example("ill"))
    step = explorer.step
    explorer.inputs["step"].value = 10**1.08  # the mark next to 12.12: what the page reports
    assert explorer.step == step
    explorer.inputs["step"].value = 10**1.10  # one mark up from there: the reader's move
    assert explorer.step == pytest.approx(10**1.10)


def test_settings_data_and_figure_go_to_the_browser(explorer):
    for button in ("Copy settings as code", "Data as CSV", "Figure as HTML"):
        explorer.buttons[button].click()
    copied, (csv, (table,)), (web, (text,)) = explorer.sent
    assert copied == ({"kind": "copy", "text": explorer.settings_code}, [])
    assert (csv["name"], csv["type"]) == ("GradientDescentExplorer.csv", "text/csv")
    assert table.startswith(b"step,steep,flat,norm_ratio,")
    assert web["name"] == "GradientDescentExplorer.html"
    assert b"plotly.js v" in text
    assert b'src="http' not in text
    assert "GradientDescentExplorer.html" in explorer.reading_line.value
    explorer.courier._msg_callbacks(explorer.courier, {"copied": False}, [])
    assert "press Ctrl+C" in explorer.reading_line.value
    explorer.courier._msg_callbacks(explorer.courier, {"copied": True}, [])
    assert "Copied" in explorer.reading_line.value


def test_a_picture_that_cannot_be_made_says_what_to_do(explorer, monkeypatch):
    def broken(self, **_):
        raise RuntimeError("no chromium")

    monkeypatch.setattr(go.Figure, "to_image", broken)
    explorer.buttons["Figure as PNG"].click()
    assert "a Chromium or Chrome that starts (no chromium)" in explorer.error
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'condnum\[viz\]'"):
        explorer.export("png")


def test_the_theme_follows_the_page_until_it_is_chosen(explorer):
    def paper():
        return explorer.view.layout.template.layout.paper_bgcolor

    assert paper() == "white"
    explorer.courier.dark = True
    assert (explorer.dark, paper()) == (True, "rgb(17,17,17)")
    explorer.theme = "light"
    assert paper() == "white"
    assert "theme" not in explorer.settings_code
    view, guide = shown_figure(go.Figure(layout={"template": "plotly_white"}).add_scatter(y=[1, 2])).children
    guide.dark = True
    assert view.layout.template.layout.paper_bgcolor == "rgb(17,17,17)"


def test_static_is_a_plain_figure():
    figure = GradientDescentExplorer.show(static=True, step=3)
    assert type(figure) is go.Figure
    assert len(figure.data[2].y) == 4
    assert isinstance(GradientDescentExplorer.show(), GradientDescentExplorer)
    assert shown_figure(figure, static=True) is figure
