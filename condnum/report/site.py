"""Building the whole site beside the old one, and swapping them when it is finished."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import CondnumError, DataNotFoundError, InvalidInputError, OutputError, require
from condnum.figures.attack_panel import attack_factor_heatmap
from condnum.figures.curves import norm_ratio_figure
from condnum.figures.pairs import pair_heatmaps
from condnum.figures.style import method_style
from condnum.files import folder_lock, output_folder, write_text
from condnum.probing import AttackReport
from condnum.probing.attackers import AttackBudget
from condnum.report import scoreboard as claims
from condnum.report import scoreboard as verdict
from condnum.report.html import NotebookBody, fill_slots, notebook_body, report_css
from condnum.report.notebook import read_notebook
from condnum.report.reproduce import RECORD, ReproductionRecord, read_record
from condnum.report.scoreboard import (
    REPORT,
    PublishedFile,
    Result,
    Section,
    duration,
    publish_files,
    read_result,
    revision_words,
    run_facts,
    scoreboard,
    tally,
)
from condnum.report.tables import CORRECTIONS_CSV, formula_html

# Anchors and a table of contents for a page's headings; tables in frames that scroll by themselves.


#: Ids that the site's own parts have.
RESERVED = frozenset({"main", "run", "contents", "top", "scoreboard", "experiments", "figures", "glossary"})


@dataclass(frozen=True)
class Heading:
    """An entry of a table of contents."""

    level: int  # 2 or 3
    anchor: str
    text: str


def add_anchors(soup: Any, taken: Iterable[str] = RESERVED) -> list[Heading]:
    """Give every heading of the second and third level an id of its own.

    Examples:
        >>> from bs4 import BeautifulSoup
        >>> page = BeautifulSoup("<h2>Why κ?</h2><h3>Run</h3>", "html.parser")
        >>> [(h.level, h.anchor) for h in add_anchors(page)]
        [(2, 'why-κ'), (3, 'run-2')]
    """
    used = {*taken, *(element["id"] for element in soup.find_all(id=True))}
    found = []
    for element in soup.find_all(["h2", "h3"]):
        text = " ".join(element.get_text().split())
        if not text:
            continue
        base = slug(text)
        anchor, count = base, 1
        while anchor in used:
            count += 1
            anchor = f"{base}-{count}"
        used.add(anchor)
        element["id"] = anchor
        found.append(Heading(int(element.name[1]), anchor, text))
    return found


def mark_indices(soup: Any, names: Iterable[str]) -> None:
    """Write `K_P` with an index in the text of some elements; code stays as it is.

    Examples:
        >>> from bs4 import BeautifulSoup
        >>> page = BeautifulSoup("<p>K_P <code>K_P</code></p>", "html.parser")
        >>> mark_indices(page, ["p"])
        >>> str(page)
        '<p>K<sub>P</sub> <code>K_P</code></p>'
    """
    parse = require("bs4", "notebooks").BeautifulSoup
    for element in soup.find_all(list(names)):
        for text in element.find_all(string=re.compile(r"_")):
            if text.find_parent(["code", "math"]) is None:
                text.replace_with(*parse(formula_html(str(text)), "html.parser").contents)


def slug(text: str) -> str:
    """Return a text as an anchor.

    Examples:
        >>> slug("Theorem 4.1 (1): R_ill"), slug("—")
        ('theorem-4-1-1-r-ill', 'part')
    """
    plain = unicodedata.normalize("NFC", text).lower()
    return re.sub(r"[^\w]+|_", "-", plain).strip("-") or "part"


def frame_tables(soup: Any, source: str = "") -> None:
    """Put each table into a frame that scrolls by itself, with a link to what made it."""
    for place, table in enumerate(soup.find_all("table"), start=1):
        frame = soup.new_tag(
            "div", attrs={"class": "scroll", "tabindex": "0", "role": "group", "aria-label": f"Table {place}"}
        )
        table.wrap(frame)
        if source:
            note = soup.new_tag("p", attrs={"class": "source"})
            link = soup.new_tag("a", href=source)
            link.string = "the run behind this table"
            note.append(link)
            frame.insert_after(note)


# Figures of the front page, drawn from the tables of the runs by the library's own functions.


#: Panels of Fig. 2; a run may have more methods.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")

#: Digits of a checksum that a subtitle shows.
_SHORT = 12


@dataclass(frozen=True)
class FrontFigure:
    """A figure of the front page."""

    key: str  # anchor
    title: str
    caption: str  # what the numbers say, HTML
    run: Result
    figure: dict[str, Any]  # plotly's data and layout


def front_figures(results: Sequence[Result]) -> list[FrontFigure]:
    """Draw what the front page shows: heatmaps, norm ratios and the attack panel, where these ran."""
    found = []
    for builder, studies in _BUILDERS:
        for result in results:
            if result.study in studies and result.folder is not None:
                figure = builder(result)
                if figure is not None:
                    found.append(figure)
    return found


def data_words(run: Result) -> str:
    """Return the data of a run with their checksums, for a subtitle."""
    data = run.provenance.get("data", {})
    return "; ".join(f"{name}, SHA-256 {str(checksum)[:_SHORT]}" for name, checksum in data.items())


def _norm_ratios(run: Result) -> FrontFigure | None:
    """Draw Fig. 1 and say where the curves of `ours` end."""
    curves = run.table("curves")
    if curves is None or not (curves["quantity"] == "norm_ratio").any():
        return None
    chosen = [name for name in (*PAPER_METHODS, "identity", "initial") if (curves["method"] == name).any()]
    figure = norm_ratio_figure(curves[curves["method"].isin(chosen)], data_words(run))
    ratios = curves[curves["quantity"] == "norm_ratio"]
    last = ratios[ratios["x"] == ratios["x"].max()]
    words = []
    for method in ("ours", "identity"):
        rows = last[last["method"] == method]
        if len(rows):
            good, bad = (_range(rows.loc[rows["task"] == task, "value"]) for task in ("pretrain", "harmful"))
            words.append(f"{method_style(method).label}: {good} on D<sub>P</sub>, {bad} on D<sub>H</sub>")
    steps = f"{int(ratios['x'].max()):,} steps of exact line search"
    caption = f"The norm ratio after {steps}, least to largest over seeds. {'; '.join(words)}."
    return FrontFigure(
        f"norm-ratio-{run.name}",
        "Convergence of linear probing (Figure 1)",
        caption,
        run,
        figure.to_plotly_json(),
    )


def _heatmaps(run: Result) -> FrontFigure | None:
    """Draw Fig. 2 and count the pairs that are immunized in every seed."""
    results = run.table("results")
    if results is None:
        return None
    names = [name for name in PAPER_METHODS if (results["method"] == name).any()]
    figure = pair_heatmaps(results, data_words(run), methods=names or None)
    cells = results[(results["convention"] == "ridge") & (results["gauge"] == "unit")]
    counts = [
        f"{method_style(name).label} {int(part['success'].sum())} of {len(part)}"
        for name in names
        for part in [cells[cells["method"] == name]]
    ]
    caption = f"Cells (pair × seed) that meet Definition 3.1, ridge, θ at unit scale: {', '.join(counts)}."
    pairs = len(results[["pretrain_digit", "harmful_digit"]].drop_duplicates())
    title = f"ln RIR of {pairs} ordered pairs of digits (Figure 2)"
    return FrontFigure(f"heatmaps-{run.name}", title, caption, run, figure.to_plotly_json())


def _attackers(run: Result) -> FrontFigure | None:
    """Draw the factor of each attacker; say who is slowed and who is not."""
    report = attack_report(run)
    if report is None:
        return None
    figure = attack_factor_heatmap(report, data_words(run))
    words = []
    for name in report.factors["extractor"].unique():
        known = report.at(report.factors, None)
        if known.loc[known["extractor"] == name, "factor"].notna().any():
            worst = report.worst_case(str(name))
            words.append(f"{name}: {worst['label']}, factor {worst['factor']:.3g}")
    caption = (
        "A factor above 1 means slowed, of 1 or less not slowed at all. The attacker whom each extractor "
        f"slows least: {'; '.join(words)}."
    )
    return FrontFigure(
        f"attackers-{run.name}", "What each attacker loses", caption, run, figure.to_plotly_json()
    )


def attack_report(run: Result) -> AttackReport | None:
    """Put the report of an attack panel together again from the tables of its run."""
    steps, curves, extractors = (run.table(name) for name in ("results", "curves", "extractors"))
    factors = run.table("factors")
    if steps is None or curves is None or extractors is None or factors is None:
        return None
    attacked = set(factors["extractor"])
    baseline = next(str(name) for name in extractors["extractor"] if name not in attacked)
    limits = {key: run.parameters[key] for key in ("steps", "dense_steps") if run.parameters.get(key)}
    logistic = bool(curves["accuracy"].notna().any()) if "accuracy" in curves else False
    return AttackReport(
        steps=steps,
        curves=curves,
        extractors=extractors,
        spectra=pd.DataFrame(columns=["extractor", "index", "sigma", "share"]),
        skipped=pd.DataFrame(columns=["extractor", "attacker", "reason"]),
        baseline=baseline,
        kind="classification" if logistic else "regression",
        budget=AttackBudget(epsilons=tuple(steps["epsilon"].unique().tolist()), **limits),
        held_out=False,
    )


def _range(values: pd.Series) -> str:
    """Return the least and the largest value in short."""
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


_BUILDERS: tuple[tuple[Callable[[Result], FrontFigure | None], tuple[str, ...]], ...] = (
    (_norm_ratios, ("house-prices",)),
    (_heatmaps, ("mnist", "digits")),
    (_attackers, ("attackers",)),
)


# Plotly figures as small JSON in a page: no template, float32 arrays, one shared script draws them.


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


# A small static picture of a plotly figure as SVG: the first panel's lines, marks or cells, no text.


#: Size of the picture in its own units; the page scales it.
WIDTH, TALL, MARGIN = 240, 120, 8

#: Points of a line that a picture of this size can show.
_MOST = 80

#: A colour that both backgrounds carry, where a figure has black.
_NEUTRAL = "#8A8A8A"
_DARK = ("#000000", "#222222", "black")


def thumbnail(figure: Mapping[str, Any]) -> str | None:
    """Draw the first panel of a figure in small.

    Examples:
        >>> picture = thumbnail({"data": [{"type": "scatter", "y": [1, 3, 2]}], "layout": {}})
        >>> picture.startswith("<svg") and "<polyline" in picture
        True
        >>> thumbnail({"data": [], "layout": {}}) is None
        True
    """
    layout = figure.get("layout", {})
    traces = [
        t for t in figure.get("data", []) if t.get("xaxis", "x") == "x" and t.get("visible", True) is True
    ]
    heatmaps = [t for t in traces if t.get("type") == "heatmap" and np.asarray(trace_array(t["z"])).ndim == 2]
    parts = _cells(heatmaps[-1], layout) if heatmaps else _lines(traces, layout)
    if not parts:
        return None
    return (
        f'<svg class="thumbnail" viewBox="0 0 {WIDTH} {TALL}" aria-hidden="true" focusable="false" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _lines(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> list[str]:
    """Return a polyline for each line, dots for each cloud of marks."""
    drawn = []
    for trace in traces:
        points = _points(trace, layout)
        if points is not None and len(points[0]):
            drawn.append((trace, *points))
    spans = (
        [np.concatenate([part[i] for part in ((x, y) for _, x, y in drawn)]) for i in (0, 1)] if drawn else []
    )
    if not drawn:
        return []
    low, high = [float(part.min()) for part in spans], [float(part.max()) for part in spans]
    parts = []
    for trace, x, y in drawn:
        chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST)).round().astype(int))
        across = MARGIN + (x[chosen] - low[0]) / ((high[0] - low[0]) or 1) * (WIDTH - 2 * MARGIN)
        down = TALL - MARGIN - (y[chosen] - low[1]) / ((high[1] - low[1]) or 1) * (TALL - 2 * MARGIN)
        color = _color(trace)
        if "lines" in str(trace.get("mode", "lines")) and len(chosen) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        else:
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{color}"/>'
                for a, b in zip(across, down, strict=True)
            ]
    return parts


def _points(
    trace: Mapping[str, Any], layout: Mapping[str, Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the finite points of a line or a cloud where the axes place them; None for anything else."""
    plain = trace.get("type", "scatter") in ("scatter", "scattergl") and not trace.get("fill")
    if not plain or trace.get("mode") == "text" or "y" not in trace:
        return None
    y = _scaled(trace_array(trace["y"]), layout.get("yaxis", {}))
    if y is None:
        return None
    x = _scaled(trace_array(trace["x"]), layout.get("xaxis", {})) if "x" in trace else np.arange(len(y)) + 0.0
    if x is None or len(x) != len(y):
        return None
    known = np.isfinite(x) & np.isfinite(y)
    return np.asarray(x[known]), np.asarray(y[known])


def _cells(trace: Mapping[str, Any], layout: Mapping[str, Any]) -> list[str]:
    """Return a rectangle for each cell of a heatmap, in its own colours."""
    z = np.asarray(trace_array(trace["z"]))
    values = np.array([[np.nan if v is None else float(v) for v in row] for row in z], dtype=np.float64)
    axis = layout.get("coloraxis", {}) if trace.get("coloraxis") else {}
    scale = trace.get("colorscale") or axis.get("colorscale")
    known = values[np.isfinite(values)]
    if scale is None or not len(known):
        return []
    limits = [trace.get("zmin", axis.get("cmin")), trace.get("zmax", axis.get("cmax"))]
    low, high = (
        float(v if v is not None else d) for v, d in zip(limits, (known.min(), known.max()), strict=True)
    )
    colors = require("plotly.colors", "viz").sample_colorscale(
        scale if isinstance(scale, str) else [[float(a), str(b)] for a, b in scale],
        np.clip((known - low) / ((high - low) or 1), 0, 1).tolist(),
    )
    rows, columns = values.shape
    side = min((WIDTH - 2 * MARGIN) / columns, (TALL - 2 * MARGIN) / rows)
    wide = (WIDTH - 2 * MARGIN) / columns if columns < rows / 2 else side
    left, top = (WIDTH - wide * columns) / 2, (TALL - side * rows) / 2
    upward = str(layout.get("yaxis", {}).get("autorange", "")) != "reversed" and not _reversed(layout)
    found = iter(colors)
    parts = []
    for i, j in np.argwhere(np.isfinite(values)):
        row = rows - 1 - i if upward else i
        parts.append(
            f'<rect x="{left + j * wide:.1f}" y="{top + row * side:.1f}" width="{wide - 0.6:.1f}" '
            f'height="{side - 0.6:.1f}" fill="{next(found)}"/>'
        )
    return parts


def _reversed(layout: Mapping[str, Any]) -> bool:
    """Whether the vertical axis runs downwards."""
    limits = layout.get("yaxis", {}).get("range")
    return limits is not None and float(limits[0]) > float(limits[1])


def _scaled(values: NDArray[Any], axis: Mapping[str, Any]) -> NDArray[np.float64] | None:
    """Return values as the axis places them: logarithms on a logarithmic one; None for words."""
    if values.dtype.kind not in "fiu":
        return None
    numbers = values.astype(np.float64)
    if axis.get("type") != "log":
        return numbers
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(numbers > 0, np.log10(numbers), np.nan)


def _color(trace: Mapping[str, Any]) -> str:
    """Return a trace's colour, black replaced by one that is seen on dark and on light."""
    for part in ("line", "marker"):
        color = (trace.get(part) or {}).get("color")
        if isinstance(color, str):
            return _NEUTRAL if color.lower() in _DARK else color
    return "#2E86C8"


# The pages of the site as HTML: the front, one for each experiment, the glossary.


#: From the site's folder to the front page, and back.
FRONT, HERE = "../index.html", "site/"


@dataclass(frozen=True)
class NotebookPage:
    """An executed notebook, ready for a page."""

    body: NotebookBody
    html: str
    headings: list[Heading]
    picture: str | None  # SVG of the first figure that can be drawn in small


def read_asset(name: str) -> str:
    """Return a file of the site's assets as text."""
    return files("condnum.report").joinpath("assets", name).read_text(encoding="utf-8")


def notebook_page(run: Result) -> NotebookPage:
    """Convert the executed notebook of a run: anchors, framed tables with links to the run, figures' data."""
    if run.folder is None:
        raise InvalidInputError(f"'{run.name}' has no result to show; run: {run.record.command}.")
    body = notebook_body(read_notebook(run.folder / REPORT), name=run.record.title)
    soup = require("bs4", "notebooks").BeautifulSoup(body.html, "html.parser")
    headings = add_anchors(soup)
    mark_indices(soup, ["h1", "h2", "h3"])
    frame_tables(soup, "#run")
    drawn = [figure_html(figure, f"figure-{place}") for place, figure in enumerate(body.figures)]
    picture = next(filter(None, (thumbnail(figure) for figure in body.figures)), None)
    headings += [
        Heading(2, "run", "What made this page"),
        Heading(3, "files", "Files"),
        Heading(3, "again", "Run it yourself"),
    ]
    return NotebookPage(body, fill_slots(str(soup), drawn), headings, picture)


def experiment_html(
    page: NotebookPage,
    run: Result,
    published: Sequence[PublishedFile],
    before: Result | None = None,
    after: Result | None = None,
) -> str:
    """Return the page of an experiment."""
    return _render(
        "experiment.html.j2",
        {"here": "", "front": FRONT, "headings": page.headings, "figures": bool(page.body.figures)},
        body=page.body,
        html=page.html,
        run=run,
        files=published,
        facts=run_facts(run),
        before=before,
        after=after,
    )


def front_html(
    record: ReproductionRecord, results: Sequence[Result], pictures: Mapping[str, str], footer: str
) -> str:
    """Return the front page."""
    sections, drawn = scoreboard(results), front_figures(results)
    lesson = next((run for run in results if run.folder and run.table(_CORRECTIONS) is not None), None)
    table = None if lesson is None else lesson.table(_CORRECTIONS)
    return _render(
        "index.html.j2",
        {"here": HERE, "front": "", "headings": _front_headings(sections, drawn), "figures": bool(drawn)},
        record=record,
        results=results,
        tally=_tally(results),
        failures=[run for run in results if run.record.status == "failed"],
        waiting=[run for run in results if run.record.status == "waiting"],
        unrun=[run for run in results if run.record.status == "not run" and not run.page],
        sections=[section for section in sections if section.comparable],
        stand_ins=[section for section in sections if not section.comparable],
        tally_words=tally(sections),
        rule=verdict.AGREEMENT,
        claim_rule=claims.RULE,
        conventions=claims.CONVENTIONS,
        audit=next((run for run in results if run.study == "reproduction-audit" and run.page), None),
        pictures=pictures,
        durations={run.name: duration(run.record.seconds) for run in results},
        drawn=drawn,
        figure_html={one.key: figure_html(one.figure, f"plot-{one.key}") for one in drawn},
        corrections=[] if table is None else table.to_dict("records"),
        corrections_page="" if lesson is None else lesson.page,
        environment=_environment(record),
        footer=footer,
    )


def glossary_html(footer: str) -> str:
    """Return the page of terms."""
    nbformat = require("nbformat", "notebooks")
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(read_asset("glossary.md"))])
    soup = require("bs4", "notebooks").BeautifulSoup(notebook_body(node).html, "html.parser")
    headings = add_anchors(soup)
    mark_indices(soup, ["h3", "p"])
    frame = {"here": "", "front": FRONT, "headings": headings, "figures": False}
    return _render("glossary.html.j2", frame, html=str(soup), active="glossary", footer=footer)


_CORRECTIONS = CORRECTIONS_CSV.removesuffix(".csv")


def _front_headings(sections: Sequence[Section], drawn: Sequence[FrontFigure]) -> list[Heading]:
    """Return the contents of the front page."""
    compared = [section for section in sections if section.comparable]
    others = [section for section in sections if not section.comparable]
    return [
        Heading(2, "scoreboard", "Obtained against published"),
        *(Heading(3, section.key, section.short) for section in compared),
        *([Heading(2, "claims", "Claims about the methods")] if compared else []),
        *([Heading(2, "figures", "Figures")] if drawn else []),
        *(Heading(3, one.key, one.title) for one in drawn),
        Heading(2, "corrections", "Theoretical corrections"),
        Heading(2, "experiments", "Experiments"),
        *([Heading(2, "stand-ins", "Stand-ins on other data")] if others else []),
        *(Heading(3, section.key, section.short) for section in others),
        Heading(2, "environment", "Environment and provenance"),
        Heading(2, "limits", "What this page cannot know"),
    ]


def _tally(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Count the experiments by what became of them."""
    counts = {
        "finished": sum(run.record.ok for run in results),
        "failed": sum(run.record.status == "failed" for run in results),
        "still to come": sum(run.record.status == "waiting" for run in results),
    }
    seconds = sum(run.record.seconds for run in results if run.record.ok)
    told = [(str(count), words) for words, count in counts.items() if count or words == "finished"]
    return [*told, (duration(seconds), "of computing")]


def _environment(record: ReproductionRecord) -> list[tuple[str, str]]:
    """Return where the reproduction ran, as titles and HTML."""
    escape = require("markupsafe", "notebooks").escape
    names = ", ".join(f"{name} {value}" for name, value in record.versions.items())
    return [
        ("Scale", str(escape(record.scale))),
        ("Started", str(escape(record.started_utc.replace("T", " ").replace("+00:00", " UTC")))),
        ("Duration", duration(record.seconds)),
        ("Code", revision_words(record.source)),
        ("Device", str(escape(record.device.get("name", "not recorded")))),
        ("Versions", str(escape(names))),
    ]


def _render(template: str, frame: Mapping[str, Any], **values: Any) -> str:
    """Fill a template."""
    jinja2 = require("jinja2", "notebooks")
    loader = jinja2.FunctionLoader(read_asset)
    environment = jinja2.Environment(
        autoescape=True, loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["formula"] = lambda text: require("markupsafe", "notebooks").Markup(
        formula_html(text)
    )
    macros = environment.get_template("macros.html.j2").module
    given = {"active": "", "footer": "", "macros": macros, **frame, **values}
    return str(environment.get_template(template).render(given))


#: The front page, and the folder of everything else.
INDEX, SITE = "index.html", "site"

#: Start of the name of a folder in which a site grows.
_HIDDEN = ".site-"

#: Converted notebooks by path and time of change.
_pages: dict[tuple[Path, int], NotebookPage] = {}


def build_site(root: Path, target: Path) -> Path:
    """Write the site of a reproduction: static, offline, plotly once.

    `target/index.html` is the front page; `target/site/` holds a page for each experiment that has a
    result, the glossary, the scripts, and of each run its notebook, provenance and tables. The site is
    built in a hidden folder beside the old one and takes its place when it is whole; other files of
    `target` are not touched.

    Args:
        root: A reproduction's folder, with `reproduction.json`.
        target: Where the site goes; created if missing.

    Returns:
        The front page.

    Raises:
        DataNotFoundError: `root` holds no reproduction.
        InvalidInputError: Its record is damaged or names a folder elsewhere.
        DataFormatError: A table of a run is damaged.
        OutputError: The site cannot be written, or another process is writing it; the old one is as it was.
        MissingExtraError: nbconvert or plotly is not installed.
    """
    record = read_record(Path(root))
    if record is None:
        raise DataNotFoundError(f"{root} holds no {RECORD}; make a reproduction first: condnum reproduce.")
    results = [read_result(entry, Path(root)) for entry in record.experiments]
    folder = output_folder(target)
    with folder_lock(folder), _scratch(folder) as scratch:
        _write(record, results, scratch)
        _swap(scratch, folder)
    return folder / INDEX


def _write(record: ReproductionRecord, results: Sequence[Result], scratch: Path) -> None:
    """Write every file of the site into a folder."""
    site = scratch / SITE
    site.mkdir()
    write_text(site / "site.css", f"{report_css()}\n{read_asset('site.css')}")
    write_text(site / "site.js", read_asset("site.js"))
    write_text(site / "templates.js", templates_script())
    write_text(site / "plotly.min.js", require("plotly.offline", "viz").get_plotlyjs())
    footer = f"condnum {metadata.version('condnum')}, reproduction of {record.started_utc[:10]}"
    write_text(site / "glossary.html", glossary_html(footer))
    shown = [run for run in results if run.folder is not None]
    pictures = {}
    for place, run in enumerate(shown):
        page = _converted(run)
        files = publish_files(run, site / "runs" / run.name)
        before = shown[place - 1] if place else None
        after = shown[place + 1] if place + 1 < len(shown) else None
        write_text(site / str(run.page), experiment_html(page, run, files, before, after))
        if page.picture is not None:
            pictures[run.name] = page.picture
    write_text(scratch / INDEX, front_html(record, results, pictures, footer))


def _converted(run: Result) -> NotebookPage:
    """Convert each notebook once a process: a site that grows is built after every experiment."""
    path = Path(run.folder or "") / REPORT
    key = path, path.stat().st_mtime_ns
    if key not in _pages:
        _pages[key] = notebook_page(run)
    return _pages[key]


@contextmanager
def _scratch(folder: Path) -> Generator[Path]:
    """Give a hidden folder on the same disk; it is removed, and so are those that killed builds left."""
    for stale in folder.glob(f"{_HIDDEN}*"):  # the lock is ours: nobody works there
        shutil.rmtree(stale, ignore_errors=True)
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=_HIDDEN))
    except OSError as error:
        raise OutputError(_words(folder, error)) from error
    try:
        yield scratch
    except CondnumError:
        raise  # some of them are OSErrors too
    except OSError as error:
        raise OutputError(_words(folder, error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(scratch: Path, folder: Path) -> None:
    """Put the new site in the place of the old one; if that fails, put the old one back."""
    old, site = scratch / "old", folder / SITE
    had = site.exists()
    if had:
        os.replace(site, old)
    try:
        os.replace(scratch / SITE, site)
        os.replace(scratch / INDEX, folder / INDEX)
    except OSError:
        if had:
            shutil.rmtree(site, ignore_errors=True)
            with suppress(OSError):
                os.replace(old, site)
        raise
    for path in (site, folder / INDEX):
        path.chmod(path.stat().st_mode | 0o044 | (0o011 if path.is_dir() else 0))


def _words(folder: Path, error: OSError) -> str:
    """Say why the site could not be written."""
    return (
        f"the site cannot be written to {folder}: {error.strerror or error}; free some space there, make it "
        "writable, or choose another folder. The old site is as it was."
    )
