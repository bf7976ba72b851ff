"""The base of the explorers, through a small one of its own; and the two of notebook 1."""

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ipywidgets", reason="the extra notebooks is not installed")
pytest.importorskip("plotly", reason="the extra notebooks is not installed")

import ipywidgets
import plotly.graph_objects as go
import traitlets

from condnum.errors import InvalidInputError, MissingExtraError, UnknownNameError
from condnum.figures.style import teaching_layout
from condnum.lessons import figure_view
from condnum.lessons.condition_number import (
    GradientDescentExplorer,
    SpectrumDescentExplorer,
    spectrum_descent,
    spectrum_descent_figure,
    zigzag,
    zigzag_figure,
)
from condnum.lessons.explorer import Check, Choice, Explorer, LogSlider, Stepper
from condnum.lessons.figure_view import shown_figure


@dataclass(frozen=True)
class Power:
    x: np.ndarray
    y: np.ndarray
    exponent: int


def power(*, exponent, scale, kind, negative):
    if exponent == 13:
        raise ValueError("no <13>")
    if exponent == 14:
        raise InvalidInputError("exponent 14 is not drawn; choose another.")
    sign = -1 if negative else 1
    x = np.arange(3.0)
    return Power(x, sign * scale * x**exponent + (kind == "shifted"), exponent)


def power_figure(run, *, marker):
    figure = go.Figure()
    figure.add_scatter(x=run.x, y=run.y, name="power", mode="lines+markers", marker={"symbol": marker})
    return teaching_layout(figure, f"x<sup>{run.exponent}</sup>")


class PowerExplorer(Explorer):
    exponent = traitlets.Int(2, min=0, max=20, help="of x")
    scale = traitlets.Float(1.0, min=0.1, max=100.0, help="in front")
    kind = traitlets.Enum(["plain", "shifted"], "plain", help="which")
    negative = traitlets.Bool(False, help="upside down")
    marker = traitlets.Enum(["circle", "cross"], "circle", help="looks")
    controls = (
        Stepper("exponent", "exponent"),
        LogSlider("scale", "scale", "metres", continuous=False),
        Choice("kind", "kind", labels={"shifted": "shifted by 1"}),
        Check("negative", "upside down"),
        Choice("marker", "marker"),
    )
    view_settings = ("marker",)
    compute = staticmethod(power)
    figure = staticmethod(power_figure)
    data = staticmethod(lambda run: pd.DataFrame({"x": run.x, "y": run.y}))
    reading = staticmethod(lambda run: f"The last value is {run.y[-1]:g}.")


@pytest.fixture
def explorer():
    pytest.importorskip("anywidget")
    return PowerExplorer(scale=2.0)


class Page:
    """Collects what a courier would send to the browser."""

    def __init__(self, explorer):
        self.sent = []
        explorer.courier.send = lambda content, buffers=(): self.sent.append((content, list(buffers)))


def test_the_first_drawing_is_there_at_once(explorer):
    assert (explorer.redraws, explorer.error) == (1, "")
    assert list(explorer.view.data[0].y) == [0, 2, 8]
    assert "The last value is 8." in explorer.reading_line.value
    assert 'role="status"' in explorer.reading_line.value


def test_setting_a_trait_redraws_in_place_before_it_returns(explorer):
    trace = explorer.view.data[0]
    explorer.exponent = 3
    assert explorer.redraws == 2
    assert explorer.view.data[0] is trace
    assert list(trace.y) == [0, 2, 16]
    assert explorer.result.exponent == 3
    assert explorer.view.layout.title.text == "x<sup>3</sup>"
    assert "16" in explorer.reading_line.value


def test_setting_the_same_value_draws_nothing(explorer):
    explorer.exponent = 2
    assert explorer.redraws == 1


def test_controls_and_traits_follow_each_other(explorer):
    explorer.inputs["exponent"].value = 4
    assert explorer.exponent == 4
    explorer.kind = "shifted"
    assert explorer.inputs["kind"].value == "shifted"
    explorer.inputs["negative"].value = True
    assert list(explorer.view.data[0].y) == [1, -1, -31]
    assert explorer.redraws == 4


def test_a_view_setting_changes_the_drawing_alone(explorer):
    explorer.marker = "cross"
    assert explorer.view.data[0].marker.symbol == "cross"
    assert list(explorer.view.data[0].y) == [0, 2, 8]


def test_several_settings_draw_once(explorer):
    explorer.change(exponent=1, scale=3.0)
    assert explorer.redraws == 2
    assert list(explorer.view.data[0].y) == [0, 3, 6]


def test_controls_carry_label_unit_help_and_bounds(explorer):
    scale = explorer.inputs["scale"]
    assert (scale.description, scale.tooltip) == ("scale (metres)", "in front")
    assert (scale.min, scale.max) == pytest.approx((-1, 2))
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


def test_an_error_at_the_start_leaves_an_explorer_that_recovers():
    explorer = PowerExplorer(exponent=13)
    assert "no <13>" in explorer.error
    explorer.exponent = 1
    assert explorer.error == ""
    assert list(explorer.view.data[0].y) == [0, 1, 2]


def test_values_that_are_forbidden_are_refused(explorer):
    with pytest.raises(traitlets.TraitError):
        explorer.exponent = -1
    with pytest.raises(traitlets.TraitError):
        explorer.kind = "other"
    assert explorer.redraws == 1
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


def test_thousands_are_apart_in_titles():
    assert "κ = 1,000, t" in GradientDescentExplorer(kappa=1000.0).view.layout.title.text


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


def test_the_code_line_makes_the_same_explorer(explorer):
    explorer.change(exponent=5, kind="shifted")
    assert explorer.code.value == explorer.settings_code
    again = eval(explorer.code.value)
    assert again.settings == explorer.settings
    assert list(again.view.data[0].y) == list(explorer.view.data[0].y)


def test_copying_is_confirmed_by_the_page(explorer):
    page = Page(explorer)
    explorer.buttons["Copy settings as code"].click()
    assert page.sent == [({"kind": "copy", "text": explorer.settings_code}, [])]
    explorer._on_courier(None, {"copied": False}, [])
    assert "press Ctrl+C" in explorer.reading_line.value
    explorer._on_courier(None, {"copied": True}, [])
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


def test_a_phone_stacks_the_panels_and_back():
    pytest.importorskip("anywidget")
    explorer = GradientDescentExplorer()
    wide = explorer.view.layout.xaxis2.domain
    explorer.courier.narrow = True
    assert explorer.view.layout.xaxis2.domain == (0, 1)
    assert explorer.view.layout.yaxis.domain[0] > explorer.view.layout.yaxis2.domain[1]
    explorer.courier.narrow = False
    assert explorer.view.layout.xaxis2.domain == wide


def test_the_courier_knows_the_help_of_every_control(explorer):
    assert explorer.courier.tips["kind"] == "which"
    assert explorer.courier.tips["scale (metres)"] == "in front"


def test_a_figure_without_controls_follows_the_page():
    pytest.importorskip("anywidget")
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


def test_the_zigzag_draws_what_the_library_computes():
    explorer = GradientDescentExplorer(kappa=50.0)
    explorer.step = 12
    wanted = zigzag_figure(zigzag(kappa=50.0, step=12))
    for shown, computed in zip(explorer.view.data, wanted.data, strict=True):
        np.testing.assert_array_equal(shown.y, computed.y)
    assert list(explorer.table()["norm_ratio"]) == list(zigzag(kappa=50.0).norm_ratio)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "0.6694 of the excess loss, exactly Kantorovich"),
        ({"angle": 20.0}, "the worst case is 0.6694"),
        ({"kappa": 1.0}, "one step arrives"),
        ({"angle": 90.0}, "one step arrives"),
        ({"rule": "constant"}, "With the constant step"),
    ],
    ids=["worst", "better", "circle", "axis", "constant"],
)
def test_readings_of_the_zigzag(settings, text):
    explorer = GradientDescentExplorer(**settings)
    assert explorer.error == ""
    assert text in explorer.reading_line.value


@pytest.mark.parametrize("shape", ["geometric", "linear", "clusters", "outlier"])
def test_the_spectrum_draws_what_the_library_computes(shape):
    explorer = SpectrumDescentExplorer(shape=shape, dimension=16)
    explorer.kappa = 30.0
    wanted = spectrum_descent_figure(spectrum_descent(shape=shape, dimension=16, kappa=30.0))
    for shown, computed in zip(explorer.view.data, wanted.data, strict=True):
        np.testing.assert_array_equal(shown.y, computed.y)
    assert "Eq. 2 grants" in explorer.reading_line.value
    assert list(explorer.table().columns) == [
        "step",
        "norm_ratio",
        "norm_bound",
        "energy_ratio",
        "energy_bound",
    ]


def test_readings_of_a_slow_spectrum():
    explorer = SpectrumDescentExplorer(kappa=1e6, start="worst")
    assert "not within 1,000 steps; Eq. 2 grants more than 1,000." in explorer.reading_line.value
