"""Explorers: through one of lesson 1 and small ones; what holds for each; and their recordings."""

import base64
import gzip
import importlib
import json
import sys

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons import condition_number
from condnum.lessons.condition_number import ZIGZAG_STEPS, exact_line_search, zigzag
from condnum.lessons.draw import Panel, figure
from condnum.lessons.explore import Choice, Explorer, Log, Slider, explore
from condnum.lessons.record import MOST, pack, plain, recording, states
from condnum.page.notebook import PLOTLY, RECORDING

MODULES = ("condition_number", "alignment", "regularizers", "limit", "own_data", "slowing")
EXPLORERS = {
    name: found
    for module in MODULES
    for name, found in vars(importlib.import_module(f"condnum.lessons.{module}")).items()
    if isinstance(found, Explorer)
}


@pytest.mark.parametrize("explorer", EXPLORERS.values(), ids=EXPLORERS)
def test_every_explorer_draws_at_the_ends_of_each_control_and_fits_a_page(explorer):
    grid = states(explorer)
    assert 20 <= len(grid) <= MOST
    wanted = [explorer.start, *(explorer.state(settings) for settings in explorer.presets.values())]
    live = {name for name, control in explorer.controls.items() if control.live}
    assert all(state in grid for state in wanted if all(state[name] == explorer.start[name] for name in live))
    for name, control in explorer.controls.items():
        values = control.recorded([])
        wanted += [explorer.start | {name: value} for value in (values[0], values[-1])]
    for state in wanted:
        drawn = explorer.draw(state)
        assert len(drawn["sentence"]) > 40
        assert len(drawn["figure"]["data"]) > 1
        assert json.loads(json.dumps(plain(drawn["figure"])))["layout"]["xaxis"]
    widget = eval(explorer.code(wanted[-1], {}), {explorer.name: explorer})
    assert widget.state == wanted[-1]
    assert widget.error == ""


def payload(widget):
    """What the page draws."""
    return json.loads(widget.payload)


def ask(widget, number=1, **settings):
    """What the page does when its reader moves controls."""
    widget._on_message(None, {"kind": "state", "id": number, "state": widget.state | settings}, [])


def test_the_page_asks_and_is_answered():
    widget = zigzag.show(kappa=20)
    ask(widget, 7, t=4)
    assert (widget.state["t"], payload(widget)["id"], payload(widget)["state"]) == (4, 7, widget.state)
    assert payload(widget)["sentence"].startswith("κ = 20: the first step")
    assert payload(widget)["code"] == "zigzag.show(kappa=20.0, t=4)"
    ask(widget, 8)  # the same once more
    assert payload(widget)["id"] == 8
    for settings, words in (
        ({"kappa": 5000}, "condition number κ must be a number from 1 to 1,000, got 5000."),
        ({"t": 2.5}, "step t must be a whole number from 0 to 40, got 2.5."),
        ({"rule": "fast"}, "rule must be one of 'exact', 'constant', got 'fast'."),
        ({"kapa": 3}, "unknown setting of zigzag 'kapa'; did you mean 'kappa'?"),
    ):
        ask(widget, 9, **settings)
        assert payload(widget)["error"].startswith(f"the settings stay as they are: {words}"), settings
        assert (widget.state["t"], widget.state["kappa"]) == (4, 20.0)
        with pytest.raises(InvalidInputError):
            zigzag.show(**settings)
    again = zigzag.show(kappa=20)  # its cell ran again: the reader's sliders stay
    assert again.state == widget.state
    with pytest.raises(UnknownNameError, match="'kapa'"):
        widget.change(kapa=3)


def half(e, H):
    return e - 0.5 * (e - exact_line_search(e, H))


def same(e, H):
    return exact_line_search(e, H).tolist()


def away(e, H):
    return 3 * e


def spoiling(e, H):
    H[:] = 1  # its own copy
    return H @ e


def test_a_function_of_the_readers_is_drawn_beside_the_librarys_and_the_axes_follow():
    found = payload(zigzag.show(descend=half))
    gray = [one for one in found["figure"]["data"] if one["name"] == "the library's"]
    assert [one["showlegend"] for one in gray].count(True) == 1
    assert "Your <b>half</b>: the library's is drawn in gray." in found["sentence"]
    own = payload(zigzag.show())["figure"]
    assert payload(zigzag.show(descend=same))["figure"] == own
    assert "<b>same</b> draws what the library's does" in payload(zigzag.show(descend=same))["sentence"]
    assert "half" not in payload(zigzag.show(descend=half, rule="constant"))["sentence"]  # it is not called
    low, high = payload(zigzag.show(descend=away))["figure"]["layout"]["yaxis2"]["range"]
    assert (own["layout"]["yaxis2"]["range"][0], high > 2 * ZIGZAG_STEPS * np.log10(3) - 1) == (low, True)
    assert payload(zigzag.show(descend=spoiling))["error"] == ""


WRONG = [
    (lambda e, H: e[:1], "returned an array of shape (1,); for these"),
    (lambda e, H: None, "returned nothing yet; end it with return"),
    (lambda e, H: e * np.inf, "expected finite real numbers"),
    (lambda e, H: "w", "returned 'w'; expected"),
    (lambda e, H: e / undefined, "NameError: name 'undefined' is not defined"),  # ruff: ignore[undefined-name]
]


@pytest.mark.parametrize(("function", "words"), WRONG, ids=[words[:30] for _, words in WRONG])
def test_a_wrong_function_is_explained_and_nothing_old_stays_in_view(function, words):
    found = payload(zigzag.show(descend=function))
    assert words in found["error"]
    assert (found["figure"], found.get("sentence")) == (None, None)
    with pytest.raises(InvalidInputError, match="descend must be a function, got 3; give its name"):
        zigzag.show(descend=3)


def test_a_cell_that_ran_again_is_heeded(monkeypatch):
    """The explorer of another cell draws with the new function at once."""
    monkeypatch.setattr(half, "__module__", "__main__")
    widget = zigzag.show(descend=half)
    assert "gray" in payload(widget)["sentence"]
    monkeypatch.setitem(globals(), "half", same)
    widget.redraw()
    assert "<b>same</b> draws what" in payload(widget)["sentence"]


def test_abbreviations_are_those_of_ipywidgets():
    @explore(base=(0.0, 10.0, 0.5), up=(1, 9), shape=["x", "y"], both=True, size={"large": 2.0}, x=10)
    def power(base=2.0, up=3, *, shape="x", both=True, size=2.0, x):
        return Panel().line(shape, [0, 1], [both, base**up * size + x]), f"{base:g} to the {up}"

    kinds = [(one["name"], one["kind"]) for one in power.spec()["controls"]]
    assert kinds == [
        *zip(power.start, ("slider", "slider", "choice", "check", "choice", "slider"), strict=True)
    ]
    assert power.start == {"base": 2.0, "up": 3, "shape": "x", "both": True, "size": 2.0, "x": 10}
    assert (power.controls["x"].low, power.controls["x"].high) == (-10, 30)
    assert power.draw(power.start)["figure"]["data"][0]["y"][1] == 26
    assert power(x=1)[1] == "2 to the 3"
    with pytest.raises(UnknownNameError, match="unknown argument of f 'bse'; did you mean 'base'"):
        explore(bse=(0, 1))(lambda_of("base"))
    with pytest.raises(InvalidInputError, match=r"control of base must be \(low, high\)"):
        explore(base="large")(lambda_of("base"))
    for wrong in (3, (Panel(), Panel(), "two panels without a list")):
        with pytest.raises(InvalidInputError, match="returns a Panel or a list of them"):
            explore(base=(0, 1))(lambda base=0, wrong=wrong: wrong).show(static=True)
    for preset, words in (({"bse": 1}, "in a preset 'bse'"), ({"base": 7}, "base must be a whole number")):
        with pytest.raises(InvalidInputError, match=words):
            explore(base=(0, 1), presets={"far": preset})(lambda_of("base"))
    for slider, step in ((Slider(2, 30, 2), 2), (Slider(0.0, 0.95, 0.05), 0.05), (Slider(0, 10, 4), 4)):
        kept = (np.array(slider.recorded([])) - slider.low) / step
        assert len(kept) > 2
        np.testing.assert_allclose(kept, kept.round(), atol=1e-9)  # a recording keeps to the steps
    assert Log(12.345, 9876.5).recorded([])[::6] == [12.345, 9876.5]  # rounded, both ends lie outside


def lambda_of(name):
    """A function of that argument, called f."""
    space = {}
    exec(f"def f({name}=1): return {name}", space)
    return space["f"]


@explore(
    power=Slider(1, 6, stops=[1, 3, 6]),
    scale=Log(0.1, 1000, stops=3),
    shape=Choice(["round", "flat"]),
    s=Slider(0, 1, stops={"raw": 1.0, "half": 0.5, "erased": 0.0}),
    seed=Slider(0, 9, live=True),
    presets={"large": {"scale": 777.7}, "seeded": {"seed": 3}},
)
def curve(power=1, scale=1.0, shape="round", s=1.0, seed=0):
    if shape == "flat" and power == 6:
        raise InvalidInputError("flat has no power 6; choose another.")
    x = np.arange(20) + 1 / 3
    return Panel(xlim=(0, 21)).line("power", x, np.where(x > 2, scale * x**power, np.nan)), f"{s} {scale:.4f}"


def test_a_recording_holds_every_state_to_five_digits_or_its_error():
    found, grid = recording(curve, curve.start | {"scale": 3.0}, {}), states(curve)
    assert recording(curve, curve.start, {})["states"] == found["states"]  # no clock in it
    kept = json.loads(gzip.decompress(base64.b64decode(found["states"])))
    assert len(kept["rows"]) == len(grid) == 3 * 5 * 2 * 3
    spec = {one["name"]: one for one in found["spec"]["controls"]}
    assert spec["scale"]["values"] == [0.1, 1, 10.0, 777.7, 1000]
    assert (spec["s"]["values"], spec["s"]["names"]) == ([1.0, 0.5, 0.0], ["raw", "half", "erased"])
    assert spec["seed"]["values"] == [0]
    assert found["spec"]["state"]["scale"] == pytest.approx(1.0)  # the nearest
    for state, row in zip(grid, kept["rows"], strict=True):
        words, *parts = (kept["parts"][number] for number in row)
        if state["shape"] == "flat" and state["power"] == 6:
            assert words == [
                "",
                "",
                "nothing can be drawn for these settings: flat has no power 6; choose another.",
            ]
            assert parts == []
            continue
        drawn = curve.draw(state)
        assert words == [drawn["sentence"], "", ""]
        frame, line = parts
        assert frame["data"][0] == plain(
            {k: v for k, v in drawn["figure"]["data"][0].items() if k not in "xy"}
        )
        y = np.array([np.nan if value is None else value for value in line["y"]])
        np.testing.assert_allclose(y, drawn["figure"]["data"][0]["y"], rtol=5e-5)
    with pytest.raises(InvalidInputError, match="states; a page has at most 500: give fewer"):
        states(explore(kappa=Log(1, 1000, 1000))(zigzag.function))


def test_what_becomes_a_page_has_figure_and_recording(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "static", True, raising=False)
    shown = curve.show(power=3)._repr_mimebundle_()
    assert shown[PLOTLY]["layout"]["title"]["text"] == "1.0 1.0000"
    assert shown[RECORDING]["spec"]["state"]["power"] == 3
    agreeing = zigzag.show(descend=same)._repr_mimebundle_()
    assert agreeing == zigzag.show()._repr_mimebundle_()


def test_numbers_that_repeat_are_kept_once():
    drawn = [condition_number.zigzag.draw(zigzag.start | {"t": t}) for t in (1, 2)]
    two, one = (len(base64.b64decode(pack(part))) for part in (drawn, drawn[:1]))
    assert two < 1.5 * one


def test_the_legend_lists_what_is_to_be_seen():
    panel = Panel(ylim=(1e-3, 1), log="y")
    lines = {
        "inside": [1, 0.1],
        "crosses": [10, 1e-9],
        "below": [1e-8, 1e-9],
        "gaps": [np.nan] * 2,
        "none": [],
    }
    for name, y in lines.items():
        panel.line(name, [0, 1][: len(y)], y)
    panel.marks("never listed", [0], [1], legend=False)
    assert [one["name"] for one in figure([panel])["data"] if one["showlegend"]] == ["inside", "crosses"]
