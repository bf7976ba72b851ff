"""The base of the explorers, through a small one of its own; and what holds for every explorer."""

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

import ipywidgets
import plotly.graph_objects as go
import traitlets

from condnum.errors import InvalidInputError, MissingExtraError, UnknownNameError
from condnum.figures.style import teaching_layout
from condnum.lessons import figure_view
from condnum.lessons.aligned_tasks import AlignedTasksExplorer
from condnum.lessons.alignment import AlignmentExplorer
from condnum.lessons.ceiling import CeilingExplorer
from condnum.lessons.condition_number import GradientDescentExplorer, SpectrumDescentExplorer
from condnum.lessons.explorer import (
    Between,
    Check,
    Choice,
    Explorer,
    LogSlider,
    Preset,
    Slider,
    Stepper,
    checked,
)
from condnum.lessons.figure_view import shown_figure
from condnum.lessons.own_data import OwnDataExplorer
from condnum.lessons.regularizer_paths import JointStepsExplorer, RegularizerPathExplorer
from condnum.lessons.regularizers import RegularizerExplorer
from condnum.lessons.ridge_ceiling import RidgeCeilingExplorer

EXPLORERS = [
    GradientDescentExplorer, SpectrumDescentExplorer, AlignmentExplorer, AlignedTasksExplorer,
    RegularizerExplorer, RegularizerPathExplorer, JointStepsExplorer, CeilingExplorer, RidgeCeilingExplorer,
    OwnDataExplorer,
]  # fmt: skip
PICTURE = "application/vnd.plotly.v1+json"


@pytest.mark.parametrize("kind", EXPLORERS, ids=lambda kind: kind.__name__)
def test_every_explorer_works_at_the_ends_of_every_control(kind):
    """One make-up of traces, also on a phone; a table, a sentence, presets; a code line that comes back."""
    explorer = kind()
    traces = len(explorer.view.data)
    scope = {kind.__name__: kind}

    def holds():
        assert explorer.error == ""
        assert len(explorer.view.data) == traces
        assert len(explorer.table())
        assert len(explorer.reading_line.value) > 100
        assert all(0 <= end <= 1 for axis in explorer.view.select_yaxes() for end in axis.domain or ())

    for control in kind.controls:
        trait = explorer.traits()[control.name]
        ends = getattr(trait, "values", None) or [getattr(trait, end, None) for end in ("min", "max")]
        for end in ends:
            if end is not None:
                setattr(explorer, control.name, end)
                holds()
        if isinstance(control, Slider):
            beyond = {control.name: type(trait.default_value)(2 * trait.max + 1)}
            with pytest.raises(InvalidInputError, match=f"{control.name} must lie between"):
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
    assert eval(explorer.code.value, scope).settings == explorer.settings


def test_a_cell_keeps_a_picture_beside_the_widget(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    for live in (AlignedTasksExplorer(), shown_figure(go.Figure().add_scatter(y=[1, 2]))):
        shown.clear()
        live._ipython_display_()
        assert "application/vnd.jupyter.widget-view+json" in shown[0]
        assert len(shown[1][PICTURE]["data"]) >= 1
    shown.clear()
    explorer = PowerExplorer(exponent=13)
    explorer._ipython_display_()
    assert len(shown) == 1  # nothing is drawn
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    AlignedTasksExplorer()._ipython_display_()
    assert len(shown) == 2


def test_checked_takes_what_the_annotations_allow():
    @checked
    def cut(share: Annotated[float, Between(0, 1)], side: Literal["left", "right"] = "left") -> float:
        return share

    assert cut(0.5, "right") == cut(share=0.5)
    for share in (-0.1, 1.5, np.nan):
        with pytest.raises(InvalidInputError, match=f"share must lie between 0 and 1, got {share}"):
            cut(share)
    with pytest.raises(UnknownNameError, match="unknown side 'rigt'; did you mean 'right'"):
        cut(0.5, side="rigt")


@dataclass(frozen=True)
class Power:
    x: np.ndarray
    y: np.ndarray
    exponent: int


def power(
    *,
    exponent: Annotated[int, Between(0, 20)] = 2,
    scale: Annotated[float, Between(0.1, 100)] = 1.0,
    kind: Literal["plain", "shifted"] = "plain",
    negative: bool = False,
):
    if exponent == 13:
        raise ValueError("no <13>")
    if exponent == 14:
        raise InvalidInputError("exponent 14 is not drawn; choose another.")
    sign = -1 if negative else 1
    x = np.arange(3.0)
    return Power(x, sign * scale * x**exponent + (kind == "shifted"), exponent)


def power_figure(run, *, marker: Literal["circle", "cross"] = "circle"):
    figure = go.Figure()
    figure.add_scatter(x=run.x, y=run.y, name="power", mode="lines+markers", marker={"symbol": marker})
    return teaching_layout(figure, f"x<sup>{run.exponent}</sup>")


class PowerExplorer(Explorer):
    controls = (
        Stepper("exponent", "exponent", "of x"),
        LogSlider("scale", "scale", "in front", "metres", continuous=False),
        Choice("kind", "kind", "which", labels={"shifted": "shifted by 1"}),
        Check("negative", "upside down", "upside down"),
        Choice("marker", "marker", "looks"),
    )
    presets = (Preset("Cube", "The third power", {"exponent": 3, "scale": 1.0}),)
    compute = staticmethod(power)
    figure = staticmethod(power_figure)
    data = staticmethod(lambda run: pd.DataFrame({"x": run.x, "y": run.y}))
    reading = staticmethod(lambda run: f"The last value is {run.y[-1]:g}.")


@pytest.fixture
def explorer():
    return PowerExplorer(scale=2.0)


class Page:
    """Collects what a courier would send to the browser."""

    def __init__(self, explorer):
        self.sent = []
        explorer.courier.send = lambda content, buffers=(): self.sent.append((content, list(buffers)))


def test_setting_a_trait_redraws_in_place_before_it_returns(explorer):
    trace = explorer.view.data[0]
    assert (explorer.redraws, explorer.error, list(trace.y)) == (1, "", [0, 2, 8])
    explorer.exponent = 2
    assert explorer.redraws == 1  # nothing is new
    explorer.exponent = 3
    assert explorer.redraws == 2
    assert explorer.view.data[0] is trace
    assert list(trace.y) == [0, 2, 16]
    assert explorer.result.exponent == 3
    assert explorer.view.layout.title.text == "x<sup>3</sup>"
    assert "16" in explorer.reading_line.value


def test_controls_and_traits_follow_each_other(explorer):
    explorer.inputs["exponent"].value = 4
    assert explorer.exponent == 4
    explorer.kind = "shifted"
    assert explorer.inputs["kind"].value == "shifted"
    explorer.inputs["negative"].value = True
    assert list(explorer.view.data[0].y) == [1, -1, -31]
    assert explorer.redraws == 4
    explorer.change(exponent=1, scale=3.0, marker="cross")
    assert explorer.redraws == 5
    assert explorer.view.data[0].marker.symbol == "cross"


def test_controls_carry_label_unit_help_and_bounds(explorer):
    scale = explorer.inputs["scale"]
    assert (scale.description, scale.tooltip) == ("scale (metres)", "in front")
    assert (scale.min, scale.max) == pytest.approx((-1, 2))
    assert explorer.courier.tips["scale (metres)"] == "in front"
    assert (scale.continuous_update, explorer.inputs["exponent"].continuous_update) == (False, True)
    assert explorer.inputs["kind"].options == (("plain", "plain"), ("shifted by 1", "shifted"))
    widths = {control.style.description_width for control in explorer.inputs.values()}
    assert len(widths) == 1
    assert int(widths.pop().removesuffix("ch")) >= 0.8 * len("scale (metres)")


def test_an_error_is_seen_kept_and_passes(explorer):
    explorer.exponent = 13
    assert explorer.error == "nothing can be drawn for these settings: ValueError: no <13>"
    assert 'role="alert"' in explorer.alert.value
    assert "no &lt;13&gt;" in explorer.alert.value
    with pytest.raises(InvalidInputError, match="nothing to export"):
        explorer.export("csv")
    assert (explorer.children[1].layout.display, explorer.code.value, explorer.reading_line.value) == (
        "none",
        "",
        "",
    )
    assert explorer.buttons["Data as CSV"].disabled
    assert not explorer.buttons["Reset"].disabled
    explorer.exponent = 14
    assert explorer.error.endswith("settings: exponent 14 is not drawn; choose another.")
    explorer.exponent = 3
    assert (explorer.error, explorer.alert.value) == ("", "")
    assert (explorer.children[1].layout.display, explorer.code.value) == ("block", explorer.settings_code)
    assert not explorer.buttons["Data as CSV"].disabled


def test_values_that_are_forbidden_are_refused(explorer):
    explorer.buttons["Cube"].click()
    assert (explorer.redraws, explorer.settings_code[:40]) == (2, "PowerExplorer(exponent=3, scale=1.0, kin")
    explorer.reset()
    with pytest.raises(traitlets.TraitError):
        explorer.exponent = -1
    with pytest.raises(traitlets.TraitError):
        explorer.kind = "other"
    assert explorer.redraws == 3
    with pytest.raises(
        UnknownNameError, match=r"setting of PowerExplorer 'exponet'; did you mean 'exponent'"
    ):
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


class EvenExplorer(PowerExplorer):
    @traitlets.validate("exponent")
    def _even(self, proposal):
        if proposal["value"] % 2:
            raise traitlets.TraitError("only even ones")
        return proposal["value"]


def test_a_control_that_is_refused_says_so_and_goes_back():
    explorer = EvenExplorer()
    explorer.inputs["exponent"].value = 3
    assert (explorer.exponent, explorer.inputs["exponent"].value) == (2, 2)
    assert explorer.error == "exponent stays 2: TraitError: only even ones"


def test_reset_goes_back_to_where_it_started(explorer):
    explorer.change(exponent=5, scale=9.0, negative=True, marker="cross")
    explorer.buttons["Reset"].click()
    assert explorer.settings == {
        "exponent": 2, "scale": 2.0, "kind": "plain", "negative": False, "marker": "circle",
    }  # fmt: skip
    assert list(explorer.view.data[0].y) == [0, 2, 8]


def test_copying_is_confirmed_by_the_page(explorer):
    page = Page(explorer)
    explorer.buttons["Copy settings as code"].click()
    assert page.sent == [({"kind": "copy", "text": explorer.settings_code}, [])]
    explorer.courier._msg_callbacks(explorer.courier, {"copied": False}, [])
    assert "press Ctrl+C" in explorer.reading_line.value
    explorer.courier._msg_callbacks(explorer.courier, {"copied": True}, [])
    assert "Copied" in explorer.reading_line.value


def test_exports_go_to_the_browser(explorer):
    page = Page(explorer)
    explorer.buttons["Data as CSV"].click()
    explorer.buttons["Figure as HTML"].click()
    (csv, (table,)), (web, (text,)) = page.sent
    assert (csv["name"], csv["type"], table) == (
        "PowerExplorer.csv",
        "text/csv",
        b"x,y\n0.0,0.0\n1.0,2.0\n2.0,8.0\n",
    )
    assert web["name"] == "PowerExplorer.html"
    assert b"plotly.js v" in text
    assert b'src="http' not in text
    assert "PowerExplorer.html" in explorer.reading_line.value


def test_without_kaleido_a_picture_says_what_to_do(explorer, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    explorer.buttons["Figure as PNG"].click()
    assert "pip install 'condnum[viz]'" in explorer.error
    with pytest.raises(MissingExtraError):
        explorer.export("png")
    with pytest.raises(UnknownNameError, match="unknown export 'pdf'"):
        explorer.export("pdf")


def test_a_browser_that_does_not_start_is_named(explorer, monkeypatch):
    def broken(self, **_):
        raise RuntimeError("no chromium")

    monkeypatch.setattr(go.Figure, "to_image", broken)
    explorer.buttons["Figure as PNG"].click()
    assert "a Chromium or Chrome that starts (no chromium)" in explorer.error


def test_the_theme_follows_the_page_until_it_is_chosen(explorer):
    def paper():
        return explorer.view.layout.template.layout.paper_bgcolor

    assert paper() == "white"
    explorer.courier.dark = True
    assert (explorer.dark, paper()) == (True, "rgb(17,17,17)")
    explorer.theme = "light"
    assert paper() == "white"
    assert "theme" not in explorer.settings_code


def test_a_figure_without_controls_follows_the_page():
    figure = go.Figure(layout={"template": "plotly_white"}).add_scatter(y=[1, 2])
    assert shown_figure(figure, static=True) is figure
    view, guide = shown_figure(figure).children
    guide.dark = True
    assert view.layout.template.layout.paper_bgcolor == "rgb(17,17,17)"


def test_without_anywidget(monkeypatch, tmp_path):
    def missing(_):
        raise ImportError("Please install anywidget")

    monkeypatch.setattr(figure_view.go, "FigureWidget", missing)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr("condnum.lessons.explorer.courier", lambda: None)
    monkeypatch.chdir(tmp_path)
    explorer = PowerExplorer()
    assert isinstance(explorer.view, ipywidgets.Output)
    explorer.exponent = 3
    (shown,) = explorer.view.outputs
    assert shown["data"]["text/plain"] == "x<sup>3</sup>"
    explorer.buttons["Data as CSV"].click()
    assert str(tmp_path / "exports" / "PowerExplorer.csv") in explorer.reading_line.value
    assert (tmp_path / "exports" / "PowerExplorer.csv").read_text().endswith("2.0,8.0\n")
    explorer.buttons["Copy settings as code"].click()
    assert "press Ctrl+C" in explorer.reading_line.value


def test_static_is_a_plain_figure():
    figure = PowerExplorer.show(static=True, exponent=3)
    assert type(figure) is go.Figure
    assert list(figure.data[0].y) == [0, 1, 8]
    assert isinstance(PowerExplorer.show(exponent=3), PowerExplorer)
    with pytest.raises(InvalidInputError, match="no <13>"):
        PowerExplorer.show(static=True, exponent=13)
