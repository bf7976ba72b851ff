"""Plotly figures as small JSON in a page: no template, float32 arrays, one shared script draws them."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from condnum.extras import require

#: Height in pixels of a figure whose layout gives none.
HEIGHT = 450

#: Width in pixels below which a figure of one and of two panels side by side scrolls in its frame.
LEAST_WIDTH = {1: 340, 2: 900}

#: A float32 holds numbers between these without loss of its seven digits.
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38

#: Digits kept of floats in lists.
_DIGITS = 7


def figure_html(figure: Mapping[str, Any], name: str) -> str:
    """Return a figure as an empty frame and its data, which the site's script draws."""
    slim = slim_figure(figure)
    layout = slim["layout"]
    height = int(layout.get("height") or HEIGHT)
    axes = [key for key in layout if re.fullmatch(r"xaxis\d*", key)]
    width = int(layout.get("width") or LEAST_WIDTH[2 if len(axes) > 1 else 1])
    text = json.dumps(slim, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return (
        f'<div class="figure" tabindex="0" role="group" aria-label="{html.escape(figure_title(figure))}">'
        f'<div id="{name}" class="plot-frame" style="min-height:{height}px;min-width:{width}px"></div>'
        f'<script type="application/json" data-for="{name}">{text}</script>'
        f"<noscript>This figure needs JavaScript.</noscript></div>"
    )


def figure_title(figure: Mapping[str, Any]) -> str:
    """Return the first line of a figure's title as plain text.

    Examples:
        >>> figure_title({"layout": {"title": {"text": "κ of <b>H</b><br><sup>diabetes</sup>"}}})
        'κ of H'
    """
    title = figure.get("layout", {}).get("title") or ""
    text = title.get("text") or "" if isinstance(title, Mapping) else str(title)
    first = re.split(r"<br\s*/?>", text)[0]
    return html.unescape(re.sub(r"<[^>]+>", "", first)).strip() or "figure"


def slim_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure that a page can hold: what the eye cannot see is left out.

    The template goes (the page has both, light and dark), float64 arrays become float32 where that keeps
    seven digits, floats in lists are cut to seven digits, what is not finite becomes a gap.

    Examples:
        >>> import numpy as np
        >>> slim_figure({"data": [{"y": [1 / 3, float("nan")]}], "layout": {"template": {}, "height": 9}})
        {'data': [{'y': [0.3333333, None]}], 'layout': {'height': 9}}
        >>> slim_figure({"data": [{"y": np.array([1.0, 2.0])}], "layout": {}})["data"][0]["y"]
        {'dtype': 'f4', 'bdata': 'AACAPwAAAEA='}
    """
    layout = {key: value for key, value in dict(figure.get("layout", {})).items() if key != "template"}
    return {"data": [_slim(dict(trace)) for trace in figure.get("data", [])], "layout": _slim(layout)}


def trace_array(value: Any) -> np.ndarray:
    """Return the values of a trace's attribute, typed or in a list.

    Examples:
        >>> trace_array({"dtype": "f4", "bdata": "AACAPwAAAEA="})
        array([1., 2.], dtype=float32)
    """
    if isinstance(value, Mapping) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
        shape = value.get("shape")
        return array.reshape([int(n) for n in str(shape).split(",")]) if shape else array
    array = np.asarray(value)
    if array.dtype == object:
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError):
            return array
    return array


def templates_script() -> str:
    """Return the script with both of plotly's templates, without colours that the page's style decides."""
    templates = require("plotly.io", "viz").templates
    both = {
        "light": templates["plotly_white"].to_plotly_json(),
        "dark": templates["plotly_dark"].to_plotly_json(),
    }
    return f"window.condnumTemplates = {json.dumps(_slim(both), separators=(',', ':'))};\n"


def _slim(value: Any) -> Any:
    """Return a value of plain types; arrays typed and small."""
    if isinstance(value, Mapping):
        if "bdata" in value:
            return _typed(trace_array(value))
        return {str(key): _slim(part) for key, part in value.items() if part is not None}
    if isinstance(value, np.ndarray):
        return (
            _typed(value) if value.dtype.kind in "fiu" and np.isfinite(value).all() else _slim(value.tolist())
        )
    if isinstance(value, list | tuple):
        return [_slim(part) for part in value]
    if isinstance(value, np.generic):
        return _slim(value.item())
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
    return value


def _typed(array: np.ndarray) -> dict[str, Any] | list[Any]:
    """Return an array as plotly's base64 object."""
    if array.dtype == np.float64:
        size = np.abs(array[np.isfinite(array) & (array != 0)])
        if not len(size) or (size.min() > _SMALLEST and size.max() < _LARGEST):
            array = array.astype(np.float32)
    elif array.dtype in (np.int64, np.uint64):  # browsers have no arrays of these
        return list(_slim(array.tolist()))
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    typed: dict[str, Any] = {"dtype": kind, "bdata": base64.b64encode(array.tobytes()).decode()}
    return typed | ({"shape": ",".join(map(str, array.shape))} if array.ndim > 1 else {})
