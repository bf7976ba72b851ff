"""Recordings of explorers: which states, how they are packed, and when they are made anew."""

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from condnum.errors import InvalidInputError
from condnum.lessons import explorers
from condnum.lessons.explorers import EXPLORERS, is_current, record_file
from condnum.lessons.frame import recording
from condnum.lessons.frame.explorer import (
    Check,
    Choice,
    Explorer,
    ExplorerResult,
    Preset,
    Slider,
    with_controls,
)
from condnum.lessons.frame.recording import five_digits, lattice, leaves, pack
from condnum.page.style import figure_of


@dataclass(frozen=True)
class Power(ExplorerResult):
    """The points (i, scale·(i + ⅓)ᵖ)."""

    power: int
    scale: float

    def figure(self) -> Any:
        x = np.arange(1, 21)
        curve = {"type": "scatter", "name": "power", "x": x, "y": self.scale * (x + 1 / 3) ** self.power}
        return figure_of([curve], {"title": {"text": f"p = {self.power}"}, "xaxis": {"range": [0, 21.5]}})

    def caption(self) -> str:
        return f"p = {self.power}, scale {self.scale:.4f}"


@with_controls(
    power=Slider("p", "", 1, 6, marks=3),
    scale=Slider("c", "", 0.1, 1000, log=True, marks=3),
    shape=Choice("shape", ""),
    odd=Check("odd", "", advanced=True),
    seed=Slider("seed", "", 0, 9, advanced=True),
)
def power_points(
    *,
    power: int = 1,
    scale: float = 1.0,
    shape: Literal["round", "flat"] = "round",
    odd: bool = False,
    seed: int = 0,
) -> Power:
    if shape == "flat" and power == 6:
        raise InvalidInputError("flat has no power 6; choose another.")
    return Power(power, scale * (2 if odd else 1) + seed)


class PowerExplorer(Explorer):
    """Powers."""

    compute = staticmethod(power_points)
    presets = (
        Preset("large", "", {"scale": 777.7, "power": 1}),
        Preset("odd", "", {"odd": True, "seed": 3}),
    )


def read(packed: dict[str, Any]) -> list[dict[tuple[Any, ...], Any]]:
    """Read what is packed as recording.js does: the leaves of each state by their places."""
    states = zip(*(numbers for _, numbers in packed["places"]), strict=True)
    paths = [tuple(path) for path, _ in packed["places"]]
    return [
        {path: packed["leaves"][number - 1] for path, number in zip(paths, state, strict=True) if number}
        for state in states
    ]


def assert_same(found: dict[tuple[Any, ...], Any], payload: Any) -> None:
    """Compare the leaves of a recorded state with a payload's: fractions to five digits, all else exactly."""
    wanted = dict(leaves(payload))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        assert found[path] == json.loads(json.dumps(five_digits(value))), path


def test_each_explorer_has_a_lattice_that_holds_its_presets() -> None:
    """The start and each preset are recorded exactly, and no explorer has too many states."""
    for name, explorer in EXPLORERS.items():
        states = lattice(explorer)
        assert 100 <= len(states) <= 1500, name
        for settings in ({}, *(preset.settings for preset in explorer.presets)):
            assert explorer.spec()["state"] | settings in states, (name, settings)


def test_every_state_comes_back_or_its_error() -> None:
    """What is read is what the function gives; the page offers what is recorded."""
    text, states = recording.record(PowerExplorer), lattice(PowerExplorer)
    assert text.startswith('condnum.recordings["PowerExplorer"] = "')
    assert recording.record(PowerExplorer) == text  # no clock in it
    packed = json.loads(gzip.decompress(base64.b64decode(text.split('"')[3])))
    found = read(packed)
    assert len(found) == len(states) == 3 * 5 * 2 * 2  # powers, scales, shapes, and both blocks
    assert {(state["odd"], state["seed"]) for state in states} == {(False, 0), (True, 3)}
    for state, one in zip(states, found, strict=True):
        assert_same(one, recording.payload(PowerExplorer, state))
    refused = [one for one in found if one["error",]]
    assert len(refused) == 5 * 2  # scales times blocks
    words = "nothing can be drawn for these settings: flat has no power 6; choose another."
    assert all((one["figure",], one["caption",], one["error",]) == (None, "", words) for one in refused)
    controls = {control["name"]: control for control in packed["spec"]["controls"]}
    assert list(controls) == ["power", "scale", "shape", "odd", "seed"]
    assert controls["power"]["values"] == [1, 3, 6]
    assert controls["shape"]["options"] == [["round", "round"], ["flat", "flat"]]
    assert controls["seed"]["values"] == [0, 3]


@given(
    arrays(
        np.float64,
        st.integers(1, 60),
        elements=st.floats(-1e250, 1e250, allow_subnormal=False) | st.just(np.nan),
    )
)
def test_numbers_come_back(values: Any) -> None:
    """Any vector of numbers to five digits, and places that only some states have."""
    one, other = read(json.loads(pack([{"y": values, "of": [{"k": None}]}, {"y": 2**53 - 1}], {})))
    found = np.array([np.nan if value is None else value for value in one["y",]], float)
    np.testing.assert_allclose(found, values, rtol=5e-6 * 10, atol=0)
    assert (one["of", 0, "k"], other) == (None, {("y",): 2**53 - 1})


def test_a_file_is_made_anew_when_the_code_changes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorers, "EXPLORERS", {"PowerExplorer": PowerExplorer})
    monkeypatch.setattr(explorers, "CODE", "this code")
    path = tmp_path / "PowerExplorer.js"
    assert not is_current(path)
    record_file("PowerExplorer", path)
    assert is_current(path)
    assert path.read_text() == f"// this code\n{recording.record(PowerExplorer)}"
    monkeypatch.setattr(explorers, "CODE", "other code")
    assert not is_current(path)
