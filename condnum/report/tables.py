"""Tables for people: how numbers, spans and labels are written; linear runs, attack panel, release."""

import html
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from condnum.methods import get_method, method_names
from condnum.probing import AttackReport
from condnum.theory.spectra import Convention

#: File that a run leaves, a row per correction.
CORRECTIONS_CSV = "corrections.csv"

#: A space at which no line breaks.
GAP = "\u00a0"

#: Titles of what every published table has.
RATIO_TITLES = {"harmful_ratio": "(i) ↑", "pretrain_ratio": "(ii) ↓", "rir": "RIR ↑"}

_NUMBER = re.compile(
    r"^\s*(?:[<>≈≤≥~+−-]?\s*(?:[\d.,]+(?:\s*[eE][+−-]?\d+|·10[⁻⁰¹²³⁴-⁹]+)?|nan|inf|∞)\s*[%×]?(?:\s*[±–(/].*)?|[—–-]?)\s*$",
    re.IGNORECASE,
)

#: Indices that Unicode has.
_SMALL = str.maketrans("0123456789PHIi", "₀₁₂₃₄₅₆₇₈₉ₚₕᵢᵢ")

#: A letter (or ‖, RIR) with an index: `K_P`, `σ_θ,i`, `‖S‖_F`; not the underscore of `test_vit`.
INDEX = re.compile(
    r"((?<![A-Za-zΑ-ω_])[A-Za-zΑ-ω]|‖|RIR)_([A-Za-z0-9θ]+(?:,[a-z](?![a-z]))?)(?![A-Za-z0-9_])"
)
_LOWER = r"\1<sub>\2</sub>"


def number(value: float) -> str:
    """Format a number for reading: three or four significant digits, powers of ten beyond 10⁶.

    Examples:
        >>> [number(v) for v in (356.2, 0.0532, 31967.99, 6852331.0, float("inf"), float("nan"), 0.0)]
        ['356.2', '0.0532', '31,968', '6.85e6', '∞', '—', '0']
    """
    if math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def rounded(value: float, digits: int = 2) -> str:
    """Format what is hardly known better than to two digits: a deviation, a factor."""
    return number(float(f"{value:.{digits}g}"))


def times(factor: float) -> str:
    """Format a factor in steps over those on raw inputs."""
    return rounded(factor, 3) if math.isnan(factor) or math.isinf(factor) else f"{rounded(factor, 3)}×"


def spread(mean: float, deviation: float, digits: int = 2) -> str:
    """Format `mean ± deviation`; one that is unknown is left out, one that is round-off of the mean is 0."""
    if math.isnan(deviation):
        return number(mean)
    known = 0.0 if deviation < 1e-9 * abs(mean) else deviation
    return f"{number(mean)}{GAP}±{GAP}{rounded(known, digits)}"


def span(values: Iterable[float], to: str = f"{GAP}–{GAP}") -> str:
    """Format the least and the largest value, once if they read alike."""
    known = pd.Series(values, dtype=float)
    low, high = number(known.min()), number(known.max())
    return low if low == high else f"{low}{to}{high}"


def count_of(count: float, total: int) -> str:
    """Format a count of something that was tried so often."""
    return f"{round(count)}{GAP}of{GAP}{total}"


def label(name: object) -> str:
    """Return a method's label on one line; a name from outside the registry is shown as text."""
    text = str(name)
    return (get_method(text).label if text in method_names() else html.escape(text)).replace(" ", GAP)


#: A column of a table for people: the columns that it is made of, and how a row's (or a group's) are written.
Column: TypeAlias = tuple[str, Callable[..., str]]


def rows_of(table: pd.DataFrame, columns: Mapping[str, Column]) -> pd.DataFrame:
    """Format a table row by row, by heading."""
    return pd.DataFrame(
        {
            heading: list(map(write, *(table[name] for name in names.split())))
            for heading, (names, write) in columns.items()
        }
    )


def groups_of(table: pd.DataFrame, by: str | list[str], columns: Mapping[str, Column]) -> pd.DataFrame:
    """Format a table with a row per group, by heading."""
    return pd.DataFrame(
        [
            {
                heading: write(*(group[name] for name in names.split()))
                for heading, (names, write) in columns.items()
            }
            for _, group in table.groupby(by, sort=False)
        ]
    )


def first(write: Callable[[Any], str]) -> Callable[[pd.Series], str]:
    """Write the first value of a group, of what is the same in all of it."""
    return lambda values: write(values.iloc[0])


def mean(values: pd.Series) -> str:
    """Write the mean of a group."""
    return number(values.mean())


def reasons(values: pd.Series) -> str:
    """Name what ended the descents of a group."""
    return ", ".join(sorted(set(values))).replace("_", " ")


def formula_html(text: str) -> str:
    """Return plain text as HTML, `K_P` and `K_P^(-1/2)` with their indices and exponents.

    Examples:
        >>> formula_html("θ = K_P^(-1/2) < ‖S‖_F")
        'θ = K<sub>P</sub><sup>−1/2</sup> &lt; ‖S‖<sub>F</sub>'
        >>> formula_html("σ_θ,i u_iᵀq_j of test_vit, RIR_θ0")
        'σ<sub>θ,i</sub> u<sub>i</sub>ᵀq<sub>j</sub> of test_vit, RIR<sub>θ0</sub>'
    """
    lowered = INDEX.sub(_LOWER, html.escape(text))
    return re.sub(r"\^\(-([^)]*)\)", r"<sup>−\1</sup>", lowered)


def bullets(items: Iterable[str]) -> str:
    """Return sentences of HTML as a list."""
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def sentence_list(sentences: Sequence[str]) -> str:
    """Return plain sentences as an HTML list."""
    return bullets(map(html.escape, sentences))


def as_html(table: pd.DataFrame) -> str:
    """Return a table of strings as HTML; cells and headings may hold markup and `K_P`."""
    heads = [INDEX.sub(_LOWER, str(name)) for name in table]
    cells = table.map(lambda cell: INDEX.sub(_LOWER, cell) if isinstance(cell, str) else cell)
    return cells.set_axis(heads, axis=1).to_html(index=False, escape=False, border=0)


def mark_tables(soup: Any) -> None:
    """Mark columns that hold anything but numbers, and of wide tables each cell with its heading.

    Where there is no room for a wide table (class `cards`), its rows are cards, without headings in sight.
    """
    for style in soup.find_all("style", scoped=True):  # of a table that pandas shows: it holds for the page
        style.decompose()
    for table in soup.find_all("table"):
        rows = [row.find_all(["th", "td"], recursive=False) for row in table.find_all("tr")]
        if any(int(cell.get("colspan") or 1) > 1 for row in rows for cell in row):
            continue  # columns cannot be counted by position
        columns = [[cell for cell in cells if cell is not None] for cells in itertools.zip_longest(*rows)]
        wide = table.thead is not None and len(columns) > 2
        if wide:
            table["class"] = [*table.get("class", []), "cards"]
        for place, column in enumerate(columns):
            if any(cell.name == "td" and not is_number(cell.get_text()) for cell in column):
                for cell in column:
                    cell["class"] = [*cell.get("class", []), "words"]
            for cell in column[1:] if wide and place else ():
                cell["data-label"] = _plain(column[0])


def _plain(heading: Any) -> str:
    """Return a heading without markup, with small letters for indices."""
    words = ""
    for part in heading.descendants:
        if part.name is None:  # a text
            words += str(part).translate(_SMALL) if part.parent.name == "sub" else str(part)
        words += " " * (part.name == "br")
    return " ".join(words.split())


def is_number(text: str) -> bool:
    """Tell whether a cell's text reads as a number, possibly with its uncertainty, or is empty.

    Examples:
        >>> [is_number(text) for text in ("1.5e-3", "4.5·10¹¹", "40.1 ± 2", "—", "ours", "3 of 5 seeds")]
        [True, True, True, True, False, False]
    """
    return bool(_NUMBER.match(text))


def with_spread(name: str) -> Column:
    """Return a column of means over seeds ± their deviation."""
    return f"{name}_mean {name}_std", spread


def published(name: str) -> tuple[str, Column]:
    """Return the line of published numbers, with the digits of the paper."""
    columns = f"published_{name} published_{name}_std"
    return "(published)", (columns, lambda mean, deviation: in_brackets(spread(mean, deviation, 4)))


def lines(title: str, *parts: tuple[str, Column]) -> dict[str, Column]:
    """Return a column whose cells have several lines, each of a column of its own; the heading names them."""
    counts = [len(names.split()) for _, (names, _) in parts]

    def write(*values: Any) -> str:
        cells, rest = [], list(values)
        for (_, (_, of_line)), count in zip(parts, counts, strict=True):
            cells.append(of_line(*rest[:count]))
            del rest[:count]
        return "<br>".join(cells)

    heading = "".join(f"<br><small>{name}</small>" for name, _ in parts if name)
    return {f"{title}{heading}": (" ".join(names for _, (names, _) in parts), write)}


def comparison_table(summary: pd.DataFrame, *, convention: Convention, theta_scale: str) -> pd.DataFrame:
    """Format one convention of a summary: the verdict, the ratios above the published ones, the ceiling."""
    rows = summary[(summary["convention"] == convention) & (summary["theta_scale"] == theta_scale)]
    columns: dict[str, Column] = {
        "method": ("method", label),
        "immunized": ("success_rate lost_rate cells", immunized),
    }
    probes = ("benign ↓", ("benign_slowdown", times)), ("harmful ↑", ("harmful_slowdown", times))
    columns |= lines("probe steps", *probes)
    for name, title in RATIO_TITLES.items():
        paper = [published(name)] if rows[f"published_{name}"].notna().any() else []
        columns |= lines(title, ("", with_spread(name)), *paper)
    if np.isfinite(rows["rir_ceiling"]).any():
        ceiling = ("(ceiling)", ("rir_ceiling", in_brackets))
        columns |= lines("RIR / ceiling", ("", ("rir_share", number)), ceiling)
    return rows_of(rows.assign(cells=rows["seeds"] * rows.get("pairs", 1)), columns)


def immunized(rate: float, lost: float, cells: int) -> str:
    """Count the cells that meet Definition 3.1, and those of them that lose the benign task."""
    met = count_of(rate * cells, cells)
    return f"{met}<br>{in_brackets(f'benign task lost: {round(lost * cells)}')}" if lost else met


def in_brackets(value: float | str) -> str:
    """Write a number below the one that it belongs to."""
    text = value if isinstance(value, str) else number(value)
    return "<small>—</small>" if text == "—" else f"<small style='white-space: nowrap'>({text})</small>"


def folded(summary: str, table: pd.DataFrame) -> str:
    """Return a table that opens on a click: what the verdict rests on, for those who ask."""
    return f"<details><summary>{formula_html(summary)}</summary>{as_html(table)}</details>"


def linear_evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what a ratio rests on: ranks, κ(θ), the loss gap of clause (c), steps and seconds."""

    def gap(values: pd.Series) -> str:
        return "0 (to round-off)" if abs(values.max()) < 1e-9 else number(values.max())

    return groups_of(
        results[results["convention"] == "compact"],
        "method",
        {
            "method": ("method", first(label)),
            "rank H_P": ("rank_pretrain", span),
            "rank H_H": ("rank_harmful", span),
            "κ(θ)": ("theta_condition", span),
            "loss gap, clause (c)": ("loss_gap", gap),
            "RIR ceiling": ("rir_ceiling", first(number)),
            "steps": ("steps", span),
            "seconds a seed": ("seconds", mean),
            "stopped by": ("stop_reason", reasons),
        },
    )


def sensitivity_table(sensitivity: pd.DataFrame) -> pd.DataFrame:
    """Format the compact convention at several rank tolerances."""
    return groups_of(
        sensitivity,
        ["method", "rtol"],
        {
            "method": ("method", first(label)),
            "rtol": ("rtol", first(number)),
            "mean RIR": ("rir", mean),
            "median RIR": ("rir", lambda values: number(values.median())),
            "immunized": ("success", lambda verdicts: count_of(verdicts.sum(), len(verdicts))),
            "rank H_P": ("rank_pretrain", span),
            "rank H_H": ("rank_harmful", span),
        },
    )


def extractor_table(report: AttackReport, immunization: pd.DataFrame) -> pd.DataFrame:
    """Format spectra, optima and RIR of an attack panel, a row per extractor."""
    rows, epsilon = [], 100 * report.budget.reported_epsilon
    for facts in report.extractors.to_dict("records"):
        row = {
            "extractor": facts["extractor"],
            "κ of the attacker's Hessian": number(facts["kappa"]),
            f"acts like, ε = {epsilon:g} %": number(facts["effective_condition"]),
            "rank": f"{facts['rank']} of {facts['features']}",
            "L₀": number(facts["start_loss"]),
            "L* on its features": number(facts["optimum"]),
            "L* on raw inputs": number(facts["baseline_optimum"]),
        }
        for measured in immunization[immunization["extractor"] == facts["extractor"]].to_dict("records"):
            rir, *parts = (number(measured[name]) for name in ("rir", "harmful_ratio", "pretrain_ratio"))
            row[f"RIR ((i), (ii)), {measured['convention']}"] = f"{rir} ({', '.join(parts)})"
        rows.append(row)
    return pd.DataFrame(rows).fillna("—")


def prediction_table(report: AttackReport) -> pd.DataFrame:
    """Format predicted against observed steps to the reported ε, where there are predictions."""
    table = report.at(report.steps, None)
    known = table[table["predicted_kappa"].notna()]

    def whole(value: float) -> str:
        return f"{value:,.0f}" if value < 1e6 else number(float(value))

    return rows_of(
        known,
        {
            "attacker": ("label", str),
            "extractor": ("extractor", str),
            "observed": ("steps last_step", _observed),
            "from the spectrum": ("predicted_spectrum", whole),
            "from κ alone": ("predicted_kappa", whole),
        },
    )


def choice_table(report: AttackReport) -> pd.DataFrame:
    """Format the best hyper-parameters and passes to the reported ε."""
    place = {name: i for i, name in enumerate(dict.fromkeys(report.steps["label"]))}  # order of the panel
    table = report.at(report.steps, None)
    return rows_of(
        table.sort_values("label", kind="stable", key=lambda labels: labels.map(place)),
        {
            "attacker": ("label", str),
            "extractor": ("extractor", str),
            "choice": ("choice at_edge", lambda choice, edge: f"{choice}{' (edge)' * edge}"),
            "steps": ("steps last_step", _observed),
            "passes": ("passes", number),
        },
    )


def _observed(steps: float, last: float) -> str:
    """Format steps, `>N` where they did not suffice."""
    return f"{steps:,.0f}" if np.isfinite(steps) else f">{last:,.0f}"


def stability_table(claims: pd.DataFrame) -> pd.DataFrame:
    """Return what is claimed, how far that carries, and between which RIR, as it is shown."""
    columns: dict[str, Column] = {
        "run": ("experiment", html.escape),
        "claim": ("claim method", lambda text, method: text.replace(method, label(method), 1)),
        "how far it carries": ("sentence", html.escape),
        "RIR in all settings": ("rir_least rir_largest", lambda *ends: span(ends)),
    }
    return rows_of(claims, columns)


def switch_table(waterfall: pd.DataFrame) -> pd.DataFrame:
    """Format RIR switch by switch, and the factor by which each switch changes it, in both conventions."""
    rows = []
    for (start, _, switch), both in waterfall.groupby(["start_epochs", "index", "switch"], sort=False):
        setting = f"released, {start} epochs" if switch == "released" else f"+{GAP}{switch}"
        cells = {"setting": setting, "updates": f"{both['updates'].max():,}"}
        for row in both.to_dict("records"):
            name = {"ridge": "floor", "compact": "compact"}[row["convention"]]
            ends = f"<br><small>{span([row['rir_min'], row['rir_max']])}</small>" if row["seeds"] > 1 else ""
            change = "" if math.isnan(row["factor"]) else f"<br><small>× {rounded(row['factor'])}</small>"
            cells[f"immunized, {name}"] = count_of(row["immunized"], row["seeds"])
            cells[f"RIR, {name}<br><small>change</small>"] = number(row["rir"]) + ends + change
        rows.append(cells)
    return pd.DataFrame(rows)
