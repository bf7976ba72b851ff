"""What a browser reads from a recording, without a server, is what the explorer's function returns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lessons.test_recording import assert_same

import condnum.lessons.frame
from condnum.files import asset
from condnum.lessons.aligned_tasks import EXPONENTS
from condnum.lessons.explorers import EXPLORERS
from condnum.lessons.frame import recording
from condnum.lessons.frame.recording import lattice, leaves, payload, record
from condnum.machine import limited_threads

SCRIPT = Path(condnum.lessons.frame.__file__).with_name("recording.js")
STATES = 4
_OPEN = """async (name) => {
    window.source = await condnum.decode(condnum.recordings[name]);
    return Object.fromEntries(window.source.spec.controls.map(({name, values}) => [name, values]));
}"""
_ASK = "states => Promise.all(states.map(state => window.source.ask(state)))"
_NEAREST = "([state, changed]) => window.source.nearest({...state, ...changed}, changed)"


@pytest.fixture
def opened(watched: Any, tmp_path: Path) -> Iterator[Any]:
    """`opened(explorer)`: a page from the disk with its recording decoded; returns the recorded values."""

    def open_page(explorer: Any) -> Any:
        (tmp_path / "recording.js").write_text(record(explorer), encoding="utf-8")
        scripts = "".join(f'<script src="{path}"></script>' for path in (SCRIPT.as_uri(), "recording.js"))
        page = tmp_path / "page.html"
        page.write_text(f'<meta charset="utf-8"><script>const condnum = {{}};</script>{scripts}')
        watched.goto(page.as_uri())
        return watched.evaluate(_OPEN, explorer.__name__)

    yield open_page
    assert watched.problems == []
    assert all(url.startswith("file:") for url in watched.fetched)


def test_states_are_those_of_the_functions(opened: Any, window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four random states of each explorer: every number to five digits, every text.

    To be quick, two random ones of the recorded values of each control are recorded here.
    """
    generator, recorded_values = np.random.default_rng(0), recording.recorded_values
    for explorer in EXPLORERS.values():
        thinned = {
            control: values
            if explorer.controls[control].advanced or len(values) <= 2
            # indices, since NumPy would make its own types of the values
            else [values[i] for i in sorted(generator.choice(len(values), 2, replace=False))]
            for control, values in recorded_values(explorer).items()
        }
        monkeypatch.setattr(recording, "recorded_values", lambda _, thinned=thinned: thinned)
        several = {control: values for control, values in thinned.items() if len(values) > 1}
        assert opened(explorer) == several, explorer
        states = lattice(explorer)
        chosen = generator.choice(len(states), min(STATES, len(states)), replace=False).tolist()
        found = window.evaluate(_ASK, [states[number] for number in chosen])
        with limited_threads(1):
            for number, one in zip(chosen, found, strict=True):
                assert one.pop("state") == states[number]
                assert_same(dict(leaves(one)), payload(explorer, states[number]))


def test_what_lies_between_goes_to_the_nearest_state(
    opened: Any, window: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moved control keeps its mark; advanced controls go together, as a preset has them."""
    explorer = EXPLORERS["AlignmentExplorer"]
    monkeypatch.setattr(recording, "payload", lambda *_: {"figure": None, "caption": "", "error": ""})
    opened(explorer)
    start, (_, by_hand, *_) = lattice(explorer)[0], explorer.presets
    near = window.evaluate(_NEAREST, [start, {"angle": 43.0, "data_kappa": 40.0}])
    assert near == start | {"angle": 45.0, "data_kappa": 100.0}  # κ on its logarithmic scale
    hand = window.evaluate(_NEAREST, [start, by_hand.settings])
    assert hand == start | by_hand.settings
    small, large = (window.evaluate(_NEAREST, [at, {"dimension": to}]) for at, to in ((start, 3), (hand, 9)))
    assert small == start | {"dimension": 2, "theta_kappa": 2.0}
    assert large == hand | {"dimension": 8, "theta_kappa": 3.0}
    assert window.evaluate(_NEAREST, [hand, {"angle": 0.0}]) == hand | {"angle": 0.0}


def recorded_page(folder: Path, explorer: Any, settings: str = "{}") -> Path:
    """Write a page on which `PLAY` plays a recording, without a server."""
    from plotly.offline import get_plotlyjs

    scripts = asset("figures/paint.js", "lessons/frame/explorer.js", "lessons/frame/recording.js")
    (folder / "all.js").write_text(f"{get_plotlyjs()}\n{scripts}\n{record(explorer)}")
    (folder / "page.html").write_text(
        f"<!doctype html><meta charset=utf-8><style>{asset('lessons/frame/explorer.css')}</style><body>"
        f"<div class=condnum-recorded data-explorer={explorer.__name__} data-settings='{settings}'></div>"
        '<script src="all.js"></script>'
    )
    return folder / "page.html"


PLAY = """async () => {
    const host = document.querySelector('.condnum-recorded'), player = await condnum.play(host);
    window.shown = () => ({ state: player.state(), said: host.querySelector('.condnum-verdict').innerText });
}"""


def test_a_page_plays_by_keyboard_and_by_its_address(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, explorer = watched, EXPLORERS["AlignedTasksExplorer"]
    few = {"exponent": [0.0, 0.5, 1.0], "pretrain_kappa": [100.0, 1000.0], "harmful_kappa": [2.0, 100.0]}
    monkeypatch.setattr(recording, "recorded_values", lambda _: few)
    page = recorded_page(tmp_path, explorer, '{"exponent": 1.0}')
    window.goto(f"{page.as_uri()}#pretrain_kappa=1000")
    window.evaluate(PLAY)
    said = window.locator(".condnum-verdict")
    said.get_by_text("immunized").wait_for()
    assert window.evaluate("shown().state") == {"exponent": 1, "pretrain_kappa": 1000, "harmful_kappa": 2}
    window.get_by_role("slider", name="exponent s").focus()
    window.keyboard.press("Home")
    said.get_by_text("nothing is changed yet").wait_for()
    assert window.evaluate("location.hash") == "#pretrain_kappa=1000&exponent=0"
    assert explorer.compute(exponent=0.0, pretrain_kappa=1000.0).caption().split("<")[0] in said.inner_text()
    with window.expect_download() as caught:
        window.get_by_role("button", name="Data as CSV").click()
    drawn = pd.read_csv(caught.value.path()).query("trace == 'RIR, Eq. 15' and panel == 2")
    wanted = explorer.compute(exponent=0.0, pretrain_kappa=1000.0)
    np.testing.assert_allclose(drawn[["x", "y"]], np.c_[EXPONENTS, wanted.ratios], rtol=1e-4)
    window.evaluate("location.hash = '#exponent=0.5'")
    window.wait_for_function("shown().state.exponent === 0.5 && shown().state.pretrain_kappa === 100")
    window.get_by_role("button", name="Where the remark is right").click()
    window.wait_for_function("location.hash.includes('harmful_kappa=100')")
    window.get_by_role("button", name="Reset", exact=True).click()
    window.wait_for_function("location.hash === ''")
    window.set_viewport_size({"width": 390, "height": 800})
    window.wait_for_function("document.querySelector('.js-plotly-plot')._fullLayout.xaxis.domain[1] === 1")
    assert window.evaluate("document.documentElement.scrollWidth") <= 390
    assert window.problems == []
