"""Recorded explorers in Chromium, from the disk: what a reader sees and does is what the functions return."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser.page_faults import FAULTS
from lessons.test_recording import assert_same

from condnum.files import asset
from condnum.lessons.alignment import ROTATIONS, AlignmentExplorer
from condnum.lessons.alignment_lab import alignment_lab
from condnum.lessons.condition_number import GradientDescentExplorer
from condnum.lessons.explorers import EXPLORERS
from condnum.lessons.frame import recording
from condnum.lessons.frame.recording import lattice, leaves, payload, record

pytestmark = pytest.mark.browser


def recorded_page(folder: Path, explorer: Any, settings: str = "{}") -> Path:
    """Write a page on which `PLAY` plays a recording, without a server."""
    from plotly.offline import get_plotlyjs

    scripts = asset("figures/paint.js", "lessons/frame/explorer.js", "lessons/frame/recording.js")
    (folder / "all.js").write_text(f"{get_plotlyjs()}\n{scripts}\n{record(explorer)}")
    (folder / "page.html").write_text(
        f"<!doctype html><meta charset=utf-8><style>{asset('lessons/frame/explorer.css')}</style>"
        f"<body data-theme=light><div id=column><div class=condnum-recorded "
        f"data-explorer={explorer.__name__} data-settings='{settings}'></div></div>"
        '<script src="all.js"></script>'
    )
    return folder / "page.html"


#: A few values of the first explorer's controls.
FEW: dict[str, list[Any]] = {
    "kappa": [10.0, 1000.0],
    "angle": [0.0, 45.0],
    "rule": ["exact", "constant"],
    "step": [5, 20],
}

PLAY = """async () => {
    const host = document.querySelector('.condnum-recorded');
    window.player = await condnum.play(host);
}"""


@pytest.fixture
def play(watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`play(explorer, few)`: the page of a recording with few values of each control."""

    def open_page(explorer: Any, few: dict[str, list[Any]], settings: str = "{}", address: str = "") -> Any:
        monkeypatch.setattr(recording, "recorded_values", lambda _: few)
        watched.goto(recorded_page(tmp_path, explorer, settings).as_uri() + address)
        watched.evaluate(PLAY)
        watched.locator(".js-plotly-plot .main-svg").first.wait_for()
        return watched

    return open_page


_DECODE = """async ([text, states]) => {
    const source = await condnum.decode(text);
    return Promise.all(states.map(state => source.ask(state)));
}"""


@pytest.mark.parametrize("explorer", EXPLORERS.values(), ids=EXPLORERS)
def test_states_are_those_of_the_functions(
    explorer: Any, window: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of the first three controls, in all presets: all numbers, all texts."""
    every, start = recording.recorded_values(explorer), explorer.spec()["state"]
    free = [name for name in every if not explorer.controls[name].advanced]
    ends = {name: [every[name][0], every[name][-1]] for name in free[:3]}
    few = every | {name: [start[name]] for name in free} | ends
    once = cache(lambda text: payload(explorer, json.loads(text)))
    monkeypatch.setattr(recording, "recorded_values", lambda _: few)
    monkeypatch.setattr(recording, "payload", lambda _, state: once(json.dumps(state)))
    window.add_script_tag(content=f"const condnum = {{}};{asset('lessons/frame/recording.js')}")
    states = lattice(explorer)
    found = window.evaluate(_DECODE, [record(explorer).split('"')[3], states])
    for state, one in zip(states, found, strict=True):
        assert one.pop("state") == state
        assert_same(dict(leaves(one)), once(json.dumps(state)))


def test_a_page_plays_by_keyboard_and_by_its_address(play: Any) -> None:
    few = FEW | {"kappa": [1.0, 10.0, 1000.0]}
    window = play(GradientDescentExplorer, few, '{"angle": 0.0}', "#step=20")
    said = window.locator(".condnum-verdict")
    said.get_by_text("one step arrives").wait_for()
    start = {"kappa": 10, "angle": 0, "rule": "exact", "step": 20}
    assert window.evaluate("player.state()") == start
    window.get_by_role("slider", name="start angle φ (degrees)").focus()
    window.keyboard.press("End")
    said.get_by_text("exactly Kantorovich's worst case").wait_for()
    assert window.evaluate("location.hash") == "#step=20&angle=45"
    wanted = GradientDescentExplorer.compute(step=20)
    assert wanted.caption().split("<")[0] in said.inner_text()
    with window.expect_download() as caught:
        window.get_by_role("button", name="Data as CSV").click()
    drawn = pd.read_csv(caught.value.path()).query("trace == 'iterates' and panel == 1")
    np.testing.assert_allclose(drawn[["x", "y"]], np.asarray(wanted.path)[:21, ::-1], rtol=1e-4)
    window.get_by_role("button", name="Reset", exact=True).click()
    window.wait_for_function("location.hash === ''")
    box = window.locator(".condnum-number").first
    box.fill("0.4")  # an answer to an earlier question leaves what is being typed
    window.evaluate("player.draw({ state: player.state() })")
    assert box.input_value() == "0.4"
    assert window.problems == []


def test_what_is_typed_is_taken_at_enter_and_what_is_not_recorded_is_said(play: Any) -> None:
    """JupyterLab cancels what a browser does at Enter."""
    page = play(GradientDescentExplorer, FEW)
    cancel = "addEventListener('beforeinput', e => e.inputType === 'insertLineBreak' && e.preventDefault())"
    page.evaluate(f"document.body.{cancel}")
    box, alert = page.get_by_role("textbox", name="condition number κ"), page.get_by_role("alert")
    box.fill("1e9")
    box.press("Enter")
    alert.get_by_text("must be a number from").wait_for()
    box.fill("900")
    box.press("Enter")
    alert.get_by_text("1,000 is the nearest value to 900 that this page has recorded").wait_for()
    assert box.input_value() == "1,000"
    box.fill("1,000")
    box.press("Enter")
    page.wait_for_function("[...document.querySelectorAll('[role=alert]')].every(one => !one.textContent)")
    assert page.problems == []


def test_an_address_with_what_no_control_takes_says_so(play: Any) -> None:
    page = play(GradientDescentExplorer, FEW)
    for text in ("abc", "null", "[]", "", "1e9", "NaN"):
        page.evaluate("text => { location.hash = text; }", f"kappa={text}&step=20")
        words = f"The address has kappa={text}: it takes a number from 1"
        page.get_by_role("alert").get_by_text(words).wait_for()
        state = {"kappa": 10, "angle": 45, "rule": "exact", "step": 20}
        assert page.evaluate("player.state()") == state
    assert page.problems == []


_LAYOUT = """() => {
    const [side, plot] = [".condnum-side", ".js-plotly-plot"].map(name => document.querySelector(name));
    const [left, right] = [side, plot].map(element => element.getBoundingClientRect());
    const {yaxis, yaxis2} = plot._fullLayout;
    return {beside: left.right <= right.left, stacked: yaxis.domain[0] > yaxis2.domain[1],
            width: Math.round(plot._fullLayout.width - right.width)};
}"""


def test_the_column_and_not_the_window_decides_what_is_beside_what(play: Any) -> None:
    few = {"angle": [0.0, 90.0], "rotation": list(ROTATIONS), "data_kappa": [100.0, 1000.0]}
    few |= {"seed": [0, 5], "dimension": [8]}
    page = play(AlignmentExplorer, few)
    page.set_viewport_size({"width": 1400, "height": 1000})
    for width, beside, stacked in ((1280, True, False), (920, False, False), (390, False, True)):
        page.evaluate("width => { document.getElementById('column').style.width = `${width}px`; }", width)
        arranged = f"({_LAYOUT})()"
        page.wait_for_function(
            f"() => {{ const found = {arranged}; return found.width === 0"
            f" && found.beside === {str(beside).lower()} && found.stacked === {str(stacked).lower()}; }}"
        )
        assert page.evaluate(FAULTS) == []
    near = page.evaluate("player.change({ angle: 43, data_kappa: 400 }), player.state()")
    assert (near["angle"], near["data_kappa"]) == (0, 1000)  # κ on its logarithmic scale
    rotation = page.get_by_label("rotation", exact=True)
    for index, idle in enumerate((False, False, True)):  # a Haar draw has no angle
        rotation.select_option(str(index))
        assert page.get_by_label("angle of U to Q (degrees)").first.is_disabled() == idle


_CELL = """(plot, [i, j]) => {
    const {xaxis, yaxis} = plot._fullLayout;
    return {x: xaxis._offset + xaxis.d2p(j), y: yaxis._offset + yaxis.d2p(i)};
}"""


def test_a_click_on_a_cell_of_a_map_chooses_it(play: Any) -> None:
    lab = alignment_lab("embedded", methods="max_rir")
    few = {"i": [1, 3], "j": [1, 2], "extractor": ["max_rir"], "training": [40]}
    page = play(lab, few | {"side": ["pretrain"]})
    plot = page.locator(".js-plotly-plot")
    plot.click(position=plot.evaluate(_CELL, [3, 2]))
    page.locator(".condnum-below", has_text="|u3ᵀq").wait_for()
