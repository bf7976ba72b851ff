"""The frame of the explorers, through a small one of its own; and what holds for every explorer."""

import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
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
    plateau,
    spectrum,
    zigzag,
)
from condnum.lessons.explorer import Between, Check, Choice, Explorer, Preset, Shown, Slider, checked
from condnum.lessons.figure_view import shown_figure
from condnum.lessons.own_data import OwnDataExplorer
from condnum.lessons.regularizer_paths import JointStepsExplorer, RegularizerPathExplorer
from condnum.lessons.regularizers import RegularizerExplorer, bent_spectrum, counter_example
from condnum.lessons.sheet import Sheet
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
        (
            spectrum,
            {"shape": "linear", "dimension": 1, "kappa": 2.0},
            "dimension must lie between 2 and ∞, got 1",
        ),
        (plateau, {"kappa": 1.0}, "kappa must be above 1, got 1"),
        (bent_spectrum, {"kappa": 1.0, "dimension": 2}, "kappa must lie between"),
        (two_tasks, {"null": "both", "dimension": 2}, "at least 3 with null space 'both'"),
        (whiten, {"theta": np.zeros((2, 2)), "covariance": np.eye(2)}, "rank 0"),
    ],
)
def test_bad_arguments(call, arguments, match):
    with pytest.raises(InvalidInputError, match=match):
        call(**arguments)


@dataclass(frozen=True)
class Power(Shown):
    x: np.ndarray
    y: np.ndarray
    exponent: int
    marker: str

    def figure(self):
        sheet = Sheet()
        sheet.panels[0].marks("power", self.x, self.y, self.marker, 9, "#000000")
        return sheet.finish(f"x<sup>{self.exponent}</sup>")

    def reading(self):
        return f"The last value is {self.y[-1]:g}."

    def table(self):
        return pd.DataFrame({"x": self.x, "y": self.y})


@checked(
    exponent=Slider("exponent", "of x", 0, 20, play=400),
    scale=Slider("scale (metres)", "in front", 0.1, 100, log=True, continuous=False),
    kind=Choice("kind", "which", {"shifted": "shifted by 1"}),
    negative=Check("upside down", "upside down"),
    marker=Choice("marker", "looks"),
)
def power(
    *,
    exponent: int = 2,
    scale: float = 1.0,
    kind: Literal["plain", "shifted"] = "plain",
    negative: bool = False,
    marker: Literal["circle", "cross"] = "circle",
) -> Power:
    if exponent == 13:
        raise ValueError("no <13>")
    if exponent == 14:
        raise InvalidInputError("exponent 14 is not drawn; choose another.")
    x = np.arange(3.0)
    return Power(x, (-1 if negative else 1) * scale * x**exponent + (kind == "shifted"), exponent, marker)


class PowerExplorer(Explorer):
    compute = staticmethod(power)
    presets = (Preset("Cube", "The third power", {"exponent": 3, "scale": 1.0}),)

    @traitlets.validate("exponent")
    def _lucky(self, proposal):
        if proposal["value"] == 17:
            raise traitlets.TraitError("not this one")
        return proposal["value"]


@pytest.fixture
def explorer():
    """An explorer whose messages to the page are kept in `sent`."""
    explorer = PowerExplorer(scale=2.0)
    explorer.sent = []
    explorer.courier.send = lambda content, buffers=(): explorer.sent.append((content, list(buffers)))
    return explorer


def drawn(explorer):
    return list(explorer.view.data[0].y)


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


def test_a_cell_keeps_a_picture_beside_the_widget(explorer, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    for live in (explorer, shown_figure(go.Figure().add_scatter(y=[1, 2]))):
        shown.clear()
        live._ipython_display_()
        assert "application/vnd.jupyter.widget-view+json" in shown[0]
        assert len(shown[1][PICTURE]["data"]) == 1
    shown.clear()
    PowerExplorer(exponent=13)._ipython_display_()
    assert len(shown) == 1  # nothing is drawn
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    explorer._ipython_display_()
    assert len(shown) == 2


def test_controls_and_traits_follow_each_other_and_redraw_in_place(explorer):
    trace = explorer.view.data[0]
    assert (explorer.redraws, explorer.error, drawn(explorer)) == (1, "", [0, 2, 8])
    explorer.exponent = 2
    assert explorer.redraws == 1  # nothing is new
    explorer.inputs["exponent"].value = 4
    assert (explorer.exponent, explorer.redraws, drawn(explorer)) == (4, 2, [0, 2, 32])
    assert explorer.view.data[0] is trace
    assert explorer.view.layout.title.text == "x<sup>4</sup>"
    assert "32" in explorer.reading_line.value
    explorer.kind = "shifted"
    assert explorer.inputs["kind"].value == "shifted"
    explorer.inputs["negative"].value = True
    assert drawn(explorer) == [1, -1, -31]
    explorer.change(exponent=1, scale=3.0, marker="cross")
    assert (explorer.redraws, trace.marker.symbol) == (5, "cross")
    explorer.buttons["Reset"].click()
    assert (explorer.settings["scale"], drawn(explorer)) == (2.0, [0, 2, 8])
    explorer.buttons["Cube"].click()
    assert explorer.settings_code.startswith("PowerExplorer(exponent=3, scale=1.0, kind='plain', neg")


def test_controls_carry_label_help_and_bounds(explorer):
    scale = explorer.inputs["scale"]
    assert (scale.description, scale.tooltip) == ("scale (metres)", "in front")
    assert (scale.min, scale.max) == pytest.approx((-1, 2))
    assert explorer.courier.tips["scale (metres)"] == "in front"
    assert (scale.continuous_update, explorer.inputs["exponent"].continuous_update) == (False, True)
    assert explorer.inputs["kind"].options == (("plain", "plain"), ("shifted by 1", "shifted"))
    (width,) = {control.style.description_width for control in explorer.inputs.values()}
    assert int(width.removesuffix("ch")) >= 0.8 * len("scale (metres)")


def test_an_error_is_seen_kept_and_passes(explorer):
    explorer.exponent = 13
    assert explorer.error == "nothing can be drawn for these settings: ValueError: no <13>"
    assert 'role="alert"' in explorer.alert.value
    assert "no &lt;13&gt;" in explorer.alert.value
    with pytest.raises(InvalidInputError, match="nothing to export"):
        explorer.export("csv")
    with pytest.raises(InvalidInputError, match="no <13>"):
        PowerExplorer.show(static=True, exponent=13)
    shown = (explorer.place.layout.display, explorer.code.value, explorer.reading_line.value)
    assert shown == ("none", "", "")
    assert explorer.buttons["Data as CSV"].disabled
    assert not explorer.buttons["Reset"].disabled
    explorer.exponent = 14
    assert explorer.error.endswith("settings: exponent 14 is not drawn; choose another.")
    explorer.exponent = 3
    assert (explorer.error, explorer.alert.value) == ("", "")
    assert (explorer.place.layout.display, explorer.code.value) == ("block", explorer.settings_code)
    assert not explorer.buttons["Data as CSV"].disabled


def test_values_that_are_forbidden_are_refused(explorer):
    with pytest.raises(traitlets.TraitError):
        explorer.exponent = -1
    with pytest.raises(traitlets.TraitError):
        explorer.kind = "other"
    assert explorer.redraws == 1
    explorer.inputs["exponent"].value = 17
    assert (explorer.exponent, explorer.inputs["exponent"].value) == (2, 2)
    assert explorer.error == "exponent stays 2: TraitError: not this one"
    with pytest.raises(UnknownNameError, match=r"of PowerExplorer 'exponet'; did you mean 'exponent'"):
        PowerExplorer(exponet=3)


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
    assert (csv["name"], csv["type"]) == ("PowerExplorer.csv", "text/csv")
    assert table == b"x,y\n0.0,0.0\n1.0,2.0\n2.0,8.0\n"
    assert web["name"] == "PowerExplorer.html"
    assert b"plotly.js v" in text
    assert b'src="http' not in text
    assert "PowerExplorer.html" in explorer.reading_line.value
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
    figure = PowerExplorer.show(static=True, exponent=3)
    assert type(figure) is go.Figure
    assert list(figure.data[0].y) == [0, 1, 8]
    assert isinstance(PowerExplorer.show(exponent=3), PowerExplorer)
    assert shown_figure(figure, static=True) is figure
