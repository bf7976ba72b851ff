"""Explorers without a kernel: the numbers of all states, which `record.js` plays on a page."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from condnum.errors import CondnumError, InvalidInputError
from condnum.lessons.draw import Json
from condnum.lessons.explore import Explorer, Slider, split
from condnum.machine import limited_threads
from condnum.page.notebook import PLOTLY, RECORDING

#: States of an explorer that a page may have.
MOST = 500
#: Digits of a number that are kept, as figures show four.
DIGITS = 5


class Recorded:
    """What a notebook shows of an explorer that becomes a page: a figure, and all states beside it."""

    def __init__(self, explorer: Explorer, state: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        with limited_threads(1):
            if explorer.draw(state, others)["agrees"]:  # a page has no "your"
                others = {name: value for name, value in others.items() if name not in explorer.library}
            self.drawn = explorer.draw(state, others)
        self.explorer, self.state, self.others = explorer, state, others

    def _repr_mimebundle_(self, **options: Any) -> Any:
        figure = plain(self.drawn["figure"], DIGITS)
        figure["layout"] |= {"title": {"text": self.drawn["sentence"], "font": {"size": 14}}}
        return {PLOTLY: figure, RECORDING: recording(self.explorer, self.state, self.others)}


def stops(explorer: Explorer) -> dict[str, list[Any]]:
    """Return the values that a recording has of each control, with those of the start and of presets."""
    found = {}
    for name, control in explorer.controls.items():
        wanted = [explorer.start[name], *(one[name] for one in explorer.presets.values() if name in one)]
        found[name] = [explorer.start[name]] if control.live else control.recorded(wanted)
    return found


def states(explorer: Explorer) -> list[dict[str, Any]]:
    """Return the recorded states, the last control changing first."""
    values = stops(explorer)
    grid = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    if len(grid) > MOST:
        raise InvalidInputError(
            f"{explorer.name} has {len(grid):,d} states; a page has at most {MOST}: give fewer stops, fewer "
            "controls, or live=True to some."
        )
    return grid


def recording(explorer: Explorer, state: Mapping[str, Any], others: Mapping[str, Any]) -> Json:
    """Return what a page needs to play an explorer: its controls, and the states as packed text."""
    with limited_threads(1):
        drawn = [one_state(explorer, one, others) for one in states(explorer)]
    values, spec = stops(explorer), explorer.spec()
    for one in spec["controls"]:
        one["values"] = values[one["name"]]
        if "options" in one:
            one["options"] = [option for option in one["options"] if option[0] in one["values"]]
    nearest = {
        name: min(values[name], key=lambda one: _distance(explorer, name, one, at))
        for name, at in state.items()
    }
    return {"spec": plain(spec) | {"state": nearest}, "states": pack(drawn)}


def _distance(explorer: Explorer, name: str, one: Any, other: Any) -> float:
    control = explorer.controls[name]
    if isinstance(control, Slider) and control.log:
        return abs(math.log(one / other))
    return abs(one - other) if isinstance(control, Slider) else float(one != other)


def one_state(explorer: Explorer, state: Mapping[str, Any], others: Mapping[str, Any]) -> Json:
    """Return what a state shows, or the words of its error."""
    try:
        return explorer.draw(state, others)
    except CondnumError as error:
        words = f"nothing can be drawn for these settings: {error}"
        return {"figure": None, "sentence": "", "table": "", "error": words}


def pack(drawn: list[Json]) -> str:
    """Return states as text: the distinct frames and numbers once, and for each state which it has."""
    kept: dict[Any, int] = {}
    parts: list[str] = []

    def number_of(key: Any, make: Any) -> int:
        if key not in kept:
            kept[key] = len(parts)
            parts.append(make())
        return kept[key]

    rows = []
    for one in drawn:
        words = json.dumps([one["sentence"], one["table"], one.get("error", "")], ensure_ascii=False)
        row = [number_of(words, lambda words=words: words)]
        if one["figure"]:
            frame, numbers = split(one["figure"])
            text = json.dumps(plain(frame), ensure_ascii=False)
            row.append(number_of(text, lambda text=text: text))
            for of in numbers:
                key: Any = tuple((name, str(of[name].dtype), of[name].tobytes()) for name in of)
                if any(value.dtype.kind == "O" for value in of.values()):
                    key = (json.dumps(plain(of)),)
                row.append(number_of(key, lambda of=of: json.dumps(plain(of, DIGITS), ensure_ascii=False)))
        rows.append(row)
    text = f'{{"parts":[{",".join(parts)}],"rows":{json.dumps(rows)}}}'
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def plain(value: Any, digits: int = 0) -> Any:
    """Return what JSON has: lists for arrays, null for gaps; numbers to so many digits, unless that is 0.

    Examples:
        >>> plain({"y": np.array([0.1234567, np.nan, 1234567.0])}, 5)
        {'y': [0.12346, None, 1234600.0]}
    """
    if isinstance(value, Mapping):
        return {key: plain(part, digits) for key, part in value.items()}
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":  # most numbers by far
        form = f"%.{digits}g" if digits else "%r"
        return [number(form % one) if one - one == 0 else None for one in value.tolist()]
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part, digits) for part in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return number(f"{value:.{digits}g}") if digits else value


def number(text: str) -> float | int:
    """Return a number, whole ones as JSON writes them shortest."""
    return int(text) if text.lstrip("-").isdigit() else float(text)
