"""Explorers that play without a kernel: their own functions, evaluated on a lattice of their controls.

A recording holds every number and text of the figures once; `recording.js` puts the figure of a state
together again. Fractions keep five digits; whole numbers are exact.
"""

import base64
import gzip
import hashlib
import importlib
import itertools
import json
import math
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import condnum
from condnum.errors import CondnumError, InvalidInputError, check_known
from condnum.figures.style import described, honest_legend
from condnum.files import output_folder, write_text
from condnum.lessons.alignment_lab import RECORDED, recorded_lab
from condnum.lessons.explorer import Check, Choice, Control, Explorer, Slider
from condnum.machine import limited_threads, versions
from condnum.progress import OnProgress

#: Digits of a fraction that are kept, as figures show four; whole numbers below `WHOLE` are exact.
DIGITS, WHOLE = 5, 1 << 23
#: Numbers of a vector that is stored as it is.
FEW = 8
#: Parts of the package that a recording depends on.
SOURCES = ("audit", "data", "figures", "lessons", "methods", "probing", "studies", "theory")


# The lattice.


def marks(slider: Slider, wanted: Iterable[float], *, whole: bool) -> list[float]:
    """Return the recorded values of a slider: the wanted ones, and marks evenly spread over its scale.

    Examples:
        >>> marks(Slider("D", "", 2, 64, marks=3), [8], whole=True)
        [2, 8, 33, 64]
        >>> marks(Slider("κ", "", 1, 100, log=True, marks=5), [10.0], whole=False)
        [1.0, 3.16227766017, 10.0, 31.6227766017, 100.0]
    """
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


def _played(explorer: type[Explorer]) -> dict[str, Control]:
    """Return the controls that a recording has: all that take no path."""
    return {
        name: control
        for name, control in explorer.controls.items()
        if isinstance(control, Slider | Choice | Check)
    }


def _blocks(explorer: type[Explorer]) -> list[dict[str, Any]]:
    """Return the settings at the start and of each preset, as far as they differ in advanced controls."""
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    traits, played = explorer.class_traits(), _played(explorer)
    start = {name: traits[name].default_value for name in explorer.controls}
    for settings in ({}, *(preset.settings for preset in explorer.presets)):
        whole = start | {name: value for name, value in settings.items() if name in played}
        blocks.setdefault(tuple(whole[name] for name in played if played[name].advanced), whole)
    return list(blocks.values())


def recorded_values(explorer: type[Explorer]) -> dict[str, list[Any]]:
    """Return the values that a recording has of each control."""
    traits, found = explorer.class_traits(), {}
    for name, control in _played(explorer).items():
        named = [traits[name].default_value]
        named += [preset.settings[name] for preset in explorer.presets if name in preset.settings]
        if isinstance(control, Slider):
            whole = isinstance(named[0], int)
            found[name] = sorted(set(named)) if control.advanced else marks(control, named, whole=whole)
        else:
            every = [False, True] if isinstance(control, Check) else list(traits[name].values)
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
    """Return the recorded states: all values of the plain controls, for the start and for each preset.

    Advanced controls, and those that take paths, stay as the start or the preset has them. The last control
    changes fastest.
    """
    values = recorded_values(explorer)
    free = {name: kept for name, kept in values.items() if not explorer.controls[name].advanced}
    return [
        block | dict(zip(free, chosen, strict=True))
        for block in _blocks(explorer)
        for chosen in itertools.product(*free.values())
    ]


# What is recorded.


def payload(explorer: type[Explorer], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return figure and sentence of a state, or the words of the error that it raises."""
    try:
        shown = explorer.compute(**explorer.acting(state))
        with described():
            figure = honest_legend(shown.figure())
        if not isinstance(figure, dict):  # whose own JSON would have arrays in base 64
            data, layout = [trace.to_plotly_json() for trace in figure.data], figure.layout.to_plotly_json()
            figure = {"data": data, "layout": layout}
        figure["layout"].pop("template", None)  # the page has its own colours
        return {"figure": figure, "reading": shown.reading(), "error": ""}
    except CondnumError as error:
        return {"figure": None, "reading": "", "error": f"nothing can be drawn for these settings: {error}"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each array of numbers, and each other value, with its place in nested JSON."""
    if isinstance(value, list | tuple | np.ndarray) and len(value):
        array = _numbers(value)
        if array is not None:
            yield path, array
            return
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from leaves(part, (*path, name))
    elif isinstance(value, list | tuple | np.ndarray) and len(value):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    else:
        value = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
        gap = isinstance(value, float) and not math.isfinite(value)
        yield path, None if gap else list(value) if isinstance(value, tuple) else value


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return a vector or a matrix of numbers, or None."""
    if not isinstance(value, np.ndarray):
        rows = (row if isinstance(row, list | tuple | np.ndarray) else [row] for row in value)
        kinds = {type(part) for row in rows for part in row}
        if bool in kinds or not all(issubclass(kind, float | int | np.number | None) for kind in kinds):
            return None
    try:
        array = np.asarray(value)
        array = array.astype(np.float64) if array.dtype.kind == "O" else array  # None is a gap
    except (ValueError, TypeError):
        return None
    fits = array.dtype.kind == "f" or (array.dtype.kind in "iu" and abs(array).max(initial=0) < WHOLE)
    return array if fits and array.size and array.ndim <= 2 else None


# How it is stored.


def five_digits(numbers: NDArray[Any]) -> list[Any]:
    """Return numbers as JSON has them: null for a gap, whole ones exactly, others to `DIGITS` digits.

    Examples:
        >>> five_digits(np.array([0.1234567, np.nan, 1e-9 / 3, 1234567.0]))
        [0.12346, None, 3.3333e-10, 1234567]
    """
    if numbers.ndim > 1:
        return [five_digits(row) for row in numbers]
    kept = [float(f"{one:.{DIGITS}g}") if one % 1 else one for one in numbers.tolist()]
    return [
        int(one) if one % 1 == 0 and abs(one) < WHOLE else one if math.isfinite(one) else None for one in kept
    ]


def pack(payloads: Iterable[Mapping[str, Any]], head: Mapping[str, Any]) -> bytes:
    """Return states as JSON: the distinct leaves, and which of them is where.

    `still` are the places that have the same leaf in all states, `moving` the others, with the number of a
    leaf for each state, from 1 on; 0 where there is none. A vector of more than `FEW` fractions is its
    largest one times a leaf, which others may share.
    """
    texts: dict[str, int] = {}

    def number(leaf: Any) -> int:
        return texts.setdefault(json.dumps(leaf, ensure_ascii=False), len(texts) + 1)

    def stored(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        finite = leaf[np.isfinite(leaf)]
        if leaf.ndim > 1 or leaf.size <= FEW or not (finite % 1).any():
            return five_digits(leaf)
        scale = float(f"{np.abs(finite).max():.9g}")
        return {"of": number(five_digits(leaf / scale)), "times": scale}

    places: dict[tuple[Any, ...], list[int]] = {}
    known: dict[Any, int] = {}  # most leaves of a state are those of the state before
    count = 0
    for count, one in enumerate(payloads, 1):
        for path, leaf in leaves(one):
            array = isinstance(leaf, np.ndarray)
            key = (leaf.dtype.str, leaf.shape, leaf.tobytes()) if array else (type(leaf), repr(leaf))
            if key not in known:
                known[key] = number(stored(leaf))
            column = places.setdefault(path, [])
            column += [0] * (count - 1 - len(column)) + [known[key]]
    for column in places.values():
        column += [0] * (count - len(column))
    packed = dict(head) | {
        "leaves": [json.loads(text) for text in texts],
        "still": [[path, column[0]] for path, column in places.items() if len(set(column)) == 1],
        "moving": [[path, column] for path, column in places.items() if len(set(column)) > 1],
    }
    return json.dumps(packed, ensure_ascii=False, separators=(",", ":")).encode()


def record(explorer: type[Explorer], *, progress: OnProgress | None = None) -> str:
    """Return a line of JavaScript with all states of an explorer: `condnum.recordings["Name"] = "…";`."""
    states, name = lattice(explorer), explorer.__name__

    def shown() -> Iterator[dict[str, Any]]:
        for step, state in enumerate(states, 1):
            if progress is not None and (step % 50 == 0 or step == len(states)):
                progress({"stage": name, "step": step, "steps": len(states)})
            yield payload(explorer, state)

    head = {"spec": recorded_spec(explorer), "blocks": _blocks(explorer)}
    with limited_threads(1):
        packed = pack(shown(), head)
    text = base64.b64encode(gzip.compress(packed, 9, mtime=0)).decode()
    return f'condnum.recordings["{name}"] = "{text}";\n'


# All of them.


@cache
def recordable() -> dict[str, type[Explorer]]:
    """Return the explorers of the lessons, by their names."""
    here = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(here.__path__, f"{__package__}."):
        if not module.ispkg:
            importlib.import_module(module.name)
    found = {one.__name__: one for one in Explorer.__subclasses__() if one.__module__.startswith(__package__)}
    declared = {  # and not a lab of some data, which another process does not have
        name: one for name, one in found.items() if getattr(sys.modules[one.__module__], name, None) is one
    }
    return dict(sorted(declared.items()))


@cache
def recording_fingerprint() -> str:
    """Return a SHA-256 of what recordings depend on: code, and versions of the libraries."""
    package, digest = Path(condnum.__file__).parent, hashlib.sha256()
    for path in sorted(path for part in SOURCES for path in (package / part).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr(sorted(versions().items())).encode())
    return digest.hexdigest()


def _record_file(name: str, path: Path, labs: str | Path) -> None:
    """Write one recording, with what it was made of in its first line."""
    explorer = recorded_lab(name, labs) if name in RECORDED else recordable()[name]
    write_text(path, f"// {recording_fingerprint()}\n{record(explorer)}")


def is_current(path: Path) -> bool:
    """Tell whether this code has written a recording."""
    if not path.exists():
        return False
    with path.open(encoding="utf-8") as stream:
        return stream.readline() == f"// {recording_fingerprint()}\n"


def record_all(
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    jobs: int = 2,
    labs: str | Path = "runs/alignment-lab",
    progress: OnProgress | None = None,
) -> list[Path]:
    """Write the recording of each explorer, or of those named, as `NAME.js`; return the files.

    A file that this code has written before stays as it is. Labs of real data (`RECORDED`) are recorded where
    they are named: the folder `labs` keeps their trainings, which take minutes.

    Raises:
        UnknownNameError: No explorer of the lessons has this name.
        InvalidInputError: `jobs` is below 1.
        OutputError: The folder cannot be written to.
    """
    if jobs < 1:
        raise InvalidInputError(f"jobs must be at least 1, got {jobs}.")
    for name in names:
        check_known("explorer", name, [*recordable(), *RECORDED])
    target = output_folder(folder)
    files = {name: target / f"{name}.js" for name in names or recordable()}

    missing = {name: path for name, path in files.items() if not is_current(path)}
    done = itertools.count(len(files) - len(missing) + 1)

    def tell(name: str) -> None:
        if progress is not None:
            progress({"stage": name, "done": next(done), "total": len(files)})

    if jobs == 1 or len(missing) < 2:
        for name, path in missing.items():
            _record_file(name, path, labs)
            tell(name)
    else:
        with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=get_context("spawn")) as pool:
            running = {pool.submit(_record_file, name, path, labs): name for name, path in missing.items()}
            for future in as_completed(running):
                future.result()
                tell(running[future])
    return list(files.values())
