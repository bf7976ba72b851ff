"""Recordings of explorers: which states, how they are packed, and when they are made anew.

A browser's reading of them is tested in tests/browser/test_recording.py.
"""

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

from condnum.errors import InvalidInputError, OutputError, UnknownNameError
from condnum.figures.style import figure_of
from condnum.lessons import recording
from condnum.lessons.explorer import Check, Choice, Explorer, Preset, Shown, Slider, checked
from condnum.lessons.own_data import PathField
from condnum.lessons.recording import RECORDABLE, five_digits, lattice, leaves, pack, record_all

#: Half of the last of five digits, and the rounding of an array's scale.
RELATIVE = 5.1e-5


@dataclass(frozen=True)
class Power(Shown):
    """The points (i, scale·(i + ⅓)ᵖ)."""

    power: int
    scale: float

    def figure(self) -> Any:
        x = np.arange(1, 21)
        curve = {"type": "scatter", "name": "power", "x": x, "y": self.scale * (x + 1 / 3) ** self.power}
        layout = {"title": {"text": f"p = {self.power}"}, "xaxis": {"range": [0, 21.5]}}
        return figure_of([curve], layout)

    def reading(self) -> str:
        return f"p = {self.power}, scale {self.scale:.4f}"


@checked(
    power=Slider("p", "", 1, 6, marks=3),
    scale=Slider("c", "", 0.1, 1000, log=True, marks=3),
    shape=Choice("shape", ""),
    odd=Check("odd", "", advanced=True),
    file=PathField("file", ""),
    seed=Slider("seed", "", 0, 9, advanced=True),
)
def power_points(
    *,
    power: int = 1,
    scale: float = 1.0,
    shape: Literal["round", "flat"] = "round",
    odd: bool = False,
    file: str = "",
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
        Preset("odd", "", {"odd": True, "seed": 3, "file": "no.csv"}),
    )


def read(text: str) -> tuple[dict[str, Any], list[dict[tuple[Any, ...], Any]]]:
    """Read a recording as recording.js does: what is packed, and the leaves of each state by their places."""
    packed = json.loads(gzip.decompress(base64.b64decode(text.split('"')[3])))

    def leaf(number: int) -> Any:
        one = packed["leaves"][number - 1]
        if isinstance(one, dict) and "of" in one:
            one = np.array(packed["leaves"][one["of"] - 1], dtype=float) * one["times"]
        return one

    count = max((len(numbers) for _, numbers in packed["moving"]), default=1)
    places = [(tuple(path), [number] * count) for path, number in packed["still"]]
    places += [(tuple(path), numbers) for path, numbers in packed["moving"]]
    states = ([(path, numbers[state]) for path, numbers in places] for state in range(count))
    return packed, [{path: leaf(number) for path, number in state if number} for state in states]


def assert_same(found: dict[tuple[Any, ...], Any], payload: Any) -> None:
    """Compare the leaves of a recorded state with a payload's: arrays to five digits, all else exactly."""
    wanted = dict(leaves(payload))
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            gaps = np.where(np.isfinite(value), value.astype(float), np.nan)
            exact = value.dtype.kind in "iu"
            given = np.reshape(np.asarray(found[path], float), gaps.shape)
            np.testing.assert_allclose(given, gaps, rtol=0 if exact else RELATIVE, err_msg=str(path))
        else:
            assert found[path] == five_digits(value), path


def test_each_explorer_has_a_lattice_that_holds_its_presets() -> None:
    """The start and each preset are recorded exactly, and no explorer has too many states."""
    for name, explorer in RECORDABLE.items():
        states = lattice(explorer)
        assert 100 <= len(states) <= 1500, name
        for settings in ({}, *(preset.settings for preset in explorer.presets)):
            assert explorer.spec()["state"] | settings in states, (name, settings)


def test_every_state_comes_back_or_its_error() -> None:
    """What is read is what the function gives; the page offers what is recorded, and stores it once."""
    text, states = recording.record(PowerExplorer), lattice(PowerExplorer)
    assert text.startswith('condnum.recordings["PowerExplorer"] = "')
    assert text.count("\n") == 1
    assert recording.record(PowerExplorer) == text  # no clock in it
    head, found = read(text)
    assert len(found) == len(states) == 3 * 5 * 2 * 2  # powers, scales, shapes, and both blocks
    held = {(state["odd"], state["seed"], state["file"]) for state in states}
    assert held == {(False, 0, ""), (True, 3, "")}
    for state, one in zip(states, found, strict=True):
        assert_same(one, recording.payload(PowerExplorer, state))
    refused = [one for one in found if one["error",]]
    assert len(refused) == 5 * 2  # scales times blocks
    said = "nothing can be drawn for these settings: flat has no power 6; choose another."
    assert all((one["figure",], one["reading",], one["error",]) == (None, "", said) for one in refused)
    controls = {control["name"]: control for control in head["spec"]["controls"]}
    assert list(controls) == ["power", "scale", "shape", "odd", "seed"]  # the file has one value
    assert controls["power"]["values"] == [1, 3, 6]
    assert controls["shape"]["options"] == [["round", "round"], ["flat", "flat"]]
    assert controls["seed"]["values"] == [0, 3]
    assert head["spec"]["state"] == states[0] | {"scale": 1.0}
    # A curve times a number is that curve: however many scales, there are three powers, and x.
    assert len([one for one in head["leaves"] if isinstance(one, list) and len(one) == 20]) == 4


def test_another_exception_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect ends the recording."""

    def broken(**_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(PowerExplorer, "compute", staticmethod(broken))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        recording.record(PowerExplorer)


def packed_and_read(*payloads: Any) -> Any:
    text = base64.b64encode(gzip.compress(pack(payloads, {}))).decode()
    return read(f'x["y"] = "{text}"')[1]


def test_all_kinds_of_values_come_back() -> None:
    """Gaps, signs, sizes, matrices, lists of anything, and places that only some states have."""
    payloads = [
        {
            "data": [{"x": np.arange(5), "y": np.array([1e-300, -1e300, np.nan, -0.1, 0.0])}, {}, []],
            "z": np.array([[0.1, np.inf], [-2.5e-7, 3.0]]),
            "mixed": [[0, "#00224E"], [0.01, "#123570"], None, True],
            "scalars": {"float": 0.1 + 0.2, "gap": float("nan"), "numpy": np.float64(2.5), "text": "κ"},
        },
        {"data": [{"x": [], "y": np.linspace(-1, 1, 50) ** 3}], "large": np.array([2**40, 7]), "only": 1},
        {"z": np.zeros((0, 3)), "data": [{"x": np.arange(1000) / 7}]},
    ]
    found = packed_and_read(*payloads)
    for one, payload in zip(found, payloads, strict=True):
        assert_same(one, payload)
    assert found[1]["large",][0] == 2**40  # exact, beyond the digits that are kept
    assert ("only",) not in found[0]


@given(
    arrays(
        np.float64,
        st.integers(1, 60),
        elements=st.floats(-1e250, 1e250, allow_subnormal=False) | st.just(np.nan),
    )
)
def test_numbers_come_back(values: Any) -> None:
    """Any vector of numbers, to the digits that are kept."""
    ((place),) = packed_and_read({"y": values})
    found = np.array([np.nan if value is None else value for value in np.ravel(place["y",])], float)
    least = np.nanmax(np.abs(values), initial=0.0) * 1e-300  # below it a share is no normal number
    tiny = np.abs(values) < least
    np.testing.assert_allclose(found[~tiny], values[~tiny], rtol=RELATIVE)


def test_a_file_is_made_anew_when_the_code_changes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code leaves a recording as it is; other code, and a damaged file, do not."""
    monkeypatch.setattr(recording, "RECORDABLE", {"PowerExplorer": PowerExplorer})
    events: list[Any] = []
    (path,) = record_all(tmp_path, jobs=1, progress=events.append)
    assert path == tmp_path / "PowerExplorer.js"
    assert events == [{"stage": "PowerExplorer", "done": 1, "total": 1}]
    text = path.read_text()
    assert text.splitlines(keepends=True)[1:] == [recording.record(PowerExplorer)]
    path.write_text(text + "// kept")
    assert record_all(tmp_path, jobs=1, progress=events.append) == [path]
    assert len(events) == 1
    assert path.read_text().endswith("// kept")
    monkeypatch.setattr(recording, "run_checksum", lambda: "other code")
    record_all(tmp_path, ["PowerExplorer"], jobs=1, progress=events.append)
    assert len(events) == 2
    assert path.read_text().startswith("// other code\n")


def test_what_cannot_be_recorded_is_refused(tmp_path: Any) -> None:
    """Unknown names, a file in the place of the folder."""
    with pytest.raises(UnknownNameError, match="NoExplorer"):
        record_all(tmp_path, ["NoExplorer"])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        record_all(tmp_path / "file", ["AlignmentExplorer"])
