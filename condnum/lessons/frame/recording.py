"""Explorers that play without a kernel: their own functions, evaluated on a lattice of their controls."""

import base64
import gzip
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from condnum.errors import CondnumError
from condnum.lessons.frame.explorer import Explorer, Slider
from condnum.lessons.frame.widget import plotly_lists
from condnum.machine import limited_threads

#: Digits of a fraction that are kept, as figures show four; integers below `EXACT` are exact.
DIGITS, EXACT = 5, 1 << 53


def marks(slider: Slider, wanted: Iterable[float], *, whole: bool) -> list[float]:
    """Return the recorded values of a slider: the wanted ones, and marks evenly spread over its scale.

    Examples:
        >>> marks(Slider("D", "", 2, 64, marks=3), [8], whole=True)
        [2, 8, 33, 64]
        >>> marks(Slider("κ", "", 1, 100, log=True, marks=5), [10.0], whole=False)
        [1.0, 3.16227766017, 10.0, 31.6227766017, 100.0]
        >>> marks(Slider("φ", "", 0, 90), [0.0], whole=False)  # on the slider's steps
        [0.0, 22.0, 45.0, 68.0, 90.0]
        >>> marks(Slider("s", "", 0, 1, values=(1.0, 0.1, 0.0)), [0.5], whole=False)  # falling, on no scale
        [1.0, 0.1, 0.0]
    """
    if slider.values:
        return list(slider.values)
    to, back = (math.log10, lambda x: 10**x) if slider.log else (float, float)
    low, high, step = to(slider.low), to(slider.high), slider.step or (0.1 if slider.log else 1)
    kind = round if whole else float
    kept = {kind(value) for value in (*wanted, slider.low, slider.high)}
    room = (high - low) / (slider.marks - 1) / 3  # nearer to a wanted value a mark tells nothing new
    for even in np.linspace(low, high, slider.marks)[1:-1].tolist():
        on_step = low + step * round((even - low) / step)
        value = float(f"{back(on_step):.12g}")
        if all(abs(on_step - to(other)) > room for other in kept):
            kept.add(kind(value))
    return sorted(kept)


def _blocks(explorer: type[Explorer]) -> list[dict[str, Any]]:
    """Return the settings at the start and of each preset, as far as they differ in advanced controls."""
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    values, start = recorded_values(explorer), explorer.spec()["state"]
    held = [name for name in values if explorer.controls[name].advanced]
    for settings in ({}, *(preset.settings for preset in explorer.presets)):
        whole = start | {name: value for name, value in settings.items() if name in values}
        blocks.setdefault(tuple(whole[name] for name in held), whole)
    return list(blocks.values())


def recorded_values(explorer: type[Explorer]) -> dict[str, list[Any]]:
    """Return the values that a recording has of each control."""
    start, found = explorer.spec()["state"], dict[str, list[Any]]()
    for name, control in explorer.controls.items():
        named = [one[name] for one in (start, *(of.settings for of in explorer.presets)) if name in one]
        if isinstance(control, Slider):
            whole = isinstance(named[0], int)
            found[name] = sorted(set(named)) if control.advanced else marks(control, named, whole=whole)
        else:
            every = getattr(explorer.class_traits()[name], "values", [False, True])
            found[name] = [value for value in every if value in named or not control.advanced]
    return found


def recorded_spec(explorer: type[Explorer]) -> dict[str, Any]:
    """Return an explorer's spec with the recorded values of its controls, without those that have one."""
    spec, values = explorer.spec(), recorded_values(explorer)
    controls = [one | {"values": values.get(one["name"], [])} for one in spec["controls"]]
    for one in controls:
        if "options" in one:
            one["options"] = [option for option in one["options"] if option[0] in one["values"]]
    return spec | {"controls": [one for one in controls if len(one["values"]) > 1]}


def lattice(explorer: type[Explorer]) -> list[dict[str, Any]]:
    """Return the recorded states: all values of plain controls, for the start and for each preset."""
    values = recorded_values(explorer)
    free = {name: kept for name, kept in values.items() if not explorer.controls[name].advanced}
    return [
        block | dict(zip(free, chosen, strict=True))
        for block in _blocks(explorer)
        for chosen in itertools.product(*free.values())
    ]


def payload(explorer: type[Explorer], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return figure and sentence of a state, or the words of the error that it raises."""
    try:
        shown = explorer.compute(**explorer.effective(state))
        return {"figure": plotly_lists(shown.figure()), "caption": shown.caption(), "error": ""}
    except CondnumError as error:
        return {"figure": None, "caption": "", "error": f"nothing can be drawn for these settings: {error}"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each value of nested JSON with its place; a list is one value unless it holds mappings."""
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from leaves(part, (*path, name))
    elif isinstance(value, list | tuple) and any(isinstance(part, Mapping) for part in value):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    else:
        yield path, value


def five_digits(value: Any) -> Any:
    """Return a value as JSON has it: null for a gap, whole numbers exactly, others to `DIGITS` digits.

    Examples:
        >>> five_digits(np.array([0.1234567, np.nan, 1e-9 / 3, 1234567.0]))
        [0.12346, None, 3.3333e-10, 1234567]
    """
    value = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(value, list | tuple):
        return [five_digits(part) for part in value]
    if not isinstance(value, float) or not math.isfinite(value):
        return None if isinstance(value, float) else value
    exact = value.is_integer() and abs(value) < EXACT
    return int(value) if exact else float(f"{value:.{DIGITS}g}")


def pack(payloads: Iterable[Mapping[str, Any]], head: Mapping[str, Any]) -> bytes:
    """Return states as JSON: the distinct leaves, and for each place the number of its leaf in each state.

    Numbers begin at 1; 0 is a state that lacks the place.
    """
    texts: dict[str, int] = {}
    known: dict[Any, int] = {}  # most leaves of a state are those of the state before

    def numbered(leaf: Any) -> int:
        array = isinstance(leaf, np.ndarray) and leaf.dtype.kind != "O"
        key = (leaf.dtype.str, leaf.shape, leaf.tobytes()) if array else (type(leaf), repr(leaf))
        if key not in known:
            known[key] = texts.setdefault(json.dumps(five_digits(leaf), ensure_ascii=False), len(texts) + 1)
        return known[key]

    states = [{path: numbered(leaf) for path, leaf in leaves(one)} for one in payloads]
    paths = dict.fromkeys(itertools.chain.from_iterable(states))
    packed = dict(head) | {
        "leaves": [json.loads(text) for text in texts],
        "places": [[path, [state.get(path, 0) for state in states]] for path in paths],
    }
    return json.dumps(packed, ensure_ascii=False, separators=(",", ":")).encode()


def record(explorer: type[Explorer]) -> str:
    """Return a line of JavaScript with all states of an explorer: `condnum.recordings["Name"] = "…";`."""
    head = {"spec": recorded_spec(explorer), "blocks": _blocks(explorer)}
    with limited_threads(1):
        packed = pack((payload(explorer, state) for state in lattice(explorer)), head)
    text = base64.b64encode(gzip.compress(packed, 9, mtime=0)).decode()
    return f'condnum.recordings["{explorer.__name__}"] = "{text}";\n'
