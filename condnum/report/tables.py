"""Tables of a page: numbers to the right, words to the left, whole columns at a time."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.methods import get_method, method_names
from condnum.probing import AttackReport
from condnum.theory.spectra import Convention

#: File that a run leaves, a row per correction.
CORRECTIONS_CSV = "corrections.csv"

_NUMBER = re.compile(
    r"^\s*(?:[<>≈≤≥~+−-]?\s*(?:[\d.,]+(?:\s*[eE][+−-]?\d+)?|nan|inf|∞)\s*[%×]?(?:\s*[±–(/].*)?|[—–-]?)\s*$",
    re.IGNORECASE,
)


def mark_words(soup: Any) -> None:
    """Give the class `words` to every cell of the columns that hold anything but numbers."""
    for table in soup.find_all("table"):
        rows = [row.find_all(["th", "td"], recursive=False) for row in table.find_all("tr")]
        if any(int(cell.get("colspan") or 1) > 1 for row in rows for cell in row):
            continue  # columns cannot be counted by position
        wordy = {
            column
            for row in rows
            for column, cell in enumerate(row)
            if cell.name == "td" and not is_number(cell.get_text())
        }
        for row in rows:
            for column, cell in enumerate(row):
                if column in wordy:
                    cell["class"] = [*cell.get("class", []), "words"]


def is_number(text: str) -> bool:
    """Tell whether a cell's text reads as a number, possibly with its uncertainty, or is empty.

    Examples:
        >>> [is_number(text) for text in ("1.5e-3", "40.1 ± 2", "—", "ours", "3 of 5 seeds")]
        [True, True, True, False, False]
    """
    return bool(_NUMBER.match(text))


# Tables for people: obtained beside published, and a verdict per method in words.


_GAP = "\u00a0"  # a space at which no line breaks

_RATIOS = {
    "harmful_ratio": "(i) ↑",
    "pretrain_ratio": "(ii) ↓",
    "rir": "RIR ↑",
}


def comparison_table(summary: pd.DataFrame, *, convention: Convention, gauge: str) -> pd.DataFrame:
    """Format one convention of a summary, published numbers beside the obtained ones."""
    rows = summary[(summary["convention"] == convention) & (summary["gauge"] == gauge)]
    table: dict[str, list[str]] = {"method": [_label(name) for name in rows["method"]]}
    for name, title in _RATIOS.items():
        table[title] = _pairs(rows[f"{name}_mean"], rows[f"{name}_std"])
        if rows[f"published_{name}"].notna().any():
            table[f"{title} published"] = _pairs(
                rows[f"published_{name}"], rows[f"published_{name}_std"], digits=4
            )
    if rows["rir_ceiling"].notna().any():
        table["RIR ceiling"] = [number(value) for value in rows["rir_ceiling"]]
        table["RIR / ceiling"] = [number(value) for value in rows["rir_share"]]
    counts = rows["seeds"] * rows.get("pairs", 1)
    table["immunized"] = [
        f"{round(rate * count)}{_GAP}of{_GAP}{count}"
        for rate, count in zip(rows["success_rate"], counts, strict=True)
    ]
    return pd.DataFrame(table)


def evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what a ratio rests on: ranks, κ(θ), the loss gap of clause (c), steps and seconds."""
    rows = []
    for name, group in results[results["convention"] == "compact"].groupby("method", sort=False):
        rows.append(
            {
                "method": _label(str(name)),
                "rank H_P": _span(group["rank_pretrain"]),
                "rank H_H": _span(group["rank_harmful"]),
                "κ(θ)": _span(group["theta_condition"]),
                "loss gap, clause (c)": _gap(group["loss_gap"].max()),
                "RIR ceiling": number(group["rir_ceiling"].iloc[0]),
                "steps": _span(group["steps"]),
                "seconds a seed": number(group["seconds"].mean()),
                "stopped by": ", ".join(sorted(set(group["stop_reason"]))).replace("_", " "),
            }
        )
    return pd.DataFrame(rows)


def probe_table(curves: pd.DataFrame, *, threshold: float = 1e-6) -> pd.DataFrame:
    """Format what Fig. 1 shows as numbers: the last norm ratio, and the steps to a small one."""
    table = curves[curves["quantity"] == "norm_ratio"]
    last = table["x"].max()
    rows = []
    for name, group in table.groupby("method", sort=False):
        row = {"method": _label(str(name))}
        for task, symbol in (("pretrain", "D_P"), ("harmful", "D_H")):
            part = group[group["task"] == task]
            row[f"{symbol}: ratio after {last:,.0f} steps"] = _span(part[part["x"] == last]["value"])
            row[f"{symbol}: steps to {number(threshold)}"] = _steps_to(part, threshold, last)
        rows.append(row)
    return pd.DataFrame(rows)


def _steps_to(curves: pd.DataFrame, threshold: float, last: float) -> str:
    """Format the first recorded step at or below a threshold, over seeds."""
    reached = curves[curves["value"] <= threshold].groupby("seed")["x"].min()
    missing = curves["seed"].nunique() - len(reached)
    if not len(reached):
        return f"> {last:,.0f}"
    return _span(reached) + (
        f" ({missing} of {curves['seed'].nunique()} seeds: > {last:,.0f})" if missing else ""
    )


def sensitivity_table(sensitivity: pd.DataFrame) -> pd.DataFrame:
    """Format the compact convention at several rank tolerances."""
    rows = []
    for (name, rtol), group in sensitivity.groupby(["method", "rtol"], sort=False):
        rows.append(
            {
                "method": _label(str(name)),
                "rtol": number(float(rtol)),
                "mean RIR": number(group["rir"].mean()),
                "median RIR": number(group["rir"].median()),
                "immunized": f"{int(group['success'].sum())}{_GAP}of{_GAP}{len(group)}",
                "rank H_P": _span(group["rank_pretrain"]),
                "rank H_H": _span(group["rank_harmful"]),
            }
        )
    return pd.DataFrame(rows)


def as_html(table: pd.DataFrame) -> str:
    """Return a table of strings as HTML; its cells may hold markup from the registry's labels.

    Args:
        table: Of strings.

    Returns:
        An HTML `<table>`.
    """
    return table.to_html(index=False, escape=False, border=0)


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


def verdict(summary: pd.DataFrame) -> str:
    """Say in words what the conventions agree and disagree on, from the numbers of this run alone."""
    items = [f"<li>{_room(summary)}</li>"]
    for name in dict.fromkeys(summary["method"]):
        rows = summary[summary["method"] == name].set_index(["convention", "gauge"])
        compact, ridge = rows.loc["compact", "unit"], rows.loc["ridge", "unit"]
        items.append(
            f"<li><b>{_label(str(name))}</b>: {_judgement(compact, 'compact')}; "
            f"{_judgement(ridge, 'ridge')}.</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def _room(summary: pd.DataFrame) -> str:
    """Say how much immunization this pair of tasks allows at all."""
    measured = summary.set_index(["convention", "gauge"])["rir_ceiling"]
    compact, ridge = (
        number(float(measured.loc[[key]].iloc[0])) for key in (("compact", "unit"), ("ridge", "unit"))
    )
    if compact == "∞":
        return (
            "<b>Room</b>: the harmful task has directions that the pre-training task lacks, so no "
            "extractor is the best one: compact RIR has no upper limit"
            f" (ridge, ε = 1e-6: at most {ridge})."
        )
    return (
        f"<b>Room</b>: no linear extractor can have an RIR above {compact} (compact) or {ridge} "
        "(ridge, ε = 1e-6) on this pair of tasks."
    )


def _judgement(row: pd.Series, convention: str) -> str:
    """Say for one convention how many seeds are immunized and which ratio fails on average."""
    count = int(row["seeds"])
    good = round(float(row["success_rate"]) * count)
    if good == count:
        return f"{convention}: immunized in all {count} seeds (mean RIR {number(row['rir_mean'])})"
    failing = []
    if not row["harmful_ratio_mean"] > 1:
        failing.append(f"(i) = {number(row['harmful_ratio_mean'])} is not above 1")
    if row["pretrain_ratio_mean"] > 1:
        failing.append(f"(ii) = {number(row['pretrain_ratio_mean'])} is above 1")
    why = f", on average {' and '.join(failing)}" if failing else ""
    return f"{convention}: immunized in {good} of {count} seeds{why}"


def _gap(value: float) -> str:
    """Format a loss gap: below 1e-9 it is round-off."""
    return "0 (to round-off)" if abs(value) < 1e-9 else number(value)


def _label(name: str) -> str:
    """Return a method's label; a name from outside the registry is shown as text."""
    return (get_method(name).label if name in method_names() else html.escape(name)).replace(" ", _GAP)


def _pairs(means: pd.Series, deviations: pd.Series, *, digits: int = 2) -> list[str]:
    """Format `mean ± std` for every row, the deviation to some significant digits."""
    texts = []
    for mean, deviation in zip(means, deviations, strict=True):
        if math.isnan(deviation):
            texts.append(number(mean))
        else:  # a deviation that is round-off of the mean is none
            spread = 0.0 if deviation < 1e-9 * abs(mean) else float(f"{deviation:.{digits}g}")
            texts.append(f"{number(mean)}{_GAP}±{_GAP}{number(spread)}")
    return texts


def _span(values: pd.Series) -> str:
    """Format the least and the largest value, once if they agree."""
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low}{_GAP}–{_GAP}{high}"


# Tables of the attack panel for people: strings, a row per extractor or attacker.


def sentence_list(sentences: Sequence[str]) -> str:
    """Return sentences as an HTML list.

    Examples:
        >>> sentence_list(["κ < 2"])
        '<ul><li>κ &lt; 2</li></ul>'
    """
    return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in sentences)}</ul>"


def extractor_table(report: AttackReport, immunization: pd.DataFrame) -> pd.DataFrame:
    """Format spectra, optima and RIR, a row per extractor."""
    rows = []
    for facts in report.extractors.to_dict("records"):
        row = {
            "extractor": facts["extractor"],
            "κ of the attacker's Hessian": number(facts["kappa"]),
            f"acts like, ε = {100 * report.budget.headline:g} %": number(facts["effective_condition"]),
            "rank": f"{facts['rank']} of {facts['features']}",
            "L₀": number(facts["start_loss"]),
            "L* on its features": number(facts["optimum"]),
            "L* on raw inputs": number(facts["baseline_optimum"]),
        }
        for measured in immunization.to_dict("records"):
            if measured["extractor"] == facts["extractor"]:
                text = f"{number(measured['rir'])} ({number(measured['harmful_ratio'])}, "
                row[f"RIR ((i), (ii)), {measured['convention']}"] = (
                    text + f"{number(measured['pretrain_ratio'])})"
                )
        rows.append(row)
    return pd.DataFrame(rows).fillna("—")


def prediction_table(report: AttackReport) -> pd.DataFrame:
    """Format predicted against observed steps to the headline target, where there are predictions."""
    table = report.at(report.steps, None)
    known = table[table["predicted_kappa"].notna()]
    return pd.DataFrame(
        {
            "attacker": known["label"],
            "extractor": known["extractor"],
            "observed": [_steps(row) for row in known.to_dict("records")],
            "from the spectrum": [_whole(value) for value in known["predicted_spectrum"]],
            "from κ alone": [_whole(value) for value in known["predicted_kappa"]],
        }
    )


def choice_table(report: AttackReport) -> pd.DataFrame:
    """Format the best hyper-parameters, passes and seconds to the headline target."""
    table = report.at(report.steps, None).sort_values("label", kind="stable", key=_order(report))
    return pd.DataFrame(
        {
            "attacker": table["label"],
            "extractor": table["extractor"],
            "choice": table["choice"] + np.where(table["at_edge"], " (edge)", ""),
            "steps": [_steps(row) for row in table.to_dict("records")],
            "passes": [number(float(value)) for value in table["passes"]],
            "seconds": [number(float(f"{value:.2g}")) for value in table["seconds"]],
        }
    )


def _order(report: AttackReport) -> Callable[[pd.Series], pd.Series]:
    """Return a sort key that keeps the panel's order of attackers."""
    place = {label: i for i, label in enumerate(dict.fromkeys(report.steps["label"]))}
    return lambda labels: labels.map(place)


def _steps(row: dict[str, float]) -> str:
    """Return steps as text, `>N` if they did not suffice."""
    return f"{row['steps']:,.0f}" if np.isfinite(row["steps"]) else f">{row['last_step']:,.0f}"


def _whole(value: float) -> str:
    """Return a predicted number of steps as text."""
    return f"{value:,.0f}" if np.isfinite(value) and value < 1e6 else number(float(value))


#: A letter (or ‖, RIR) with an index: `K_P`, `σ_θ,i`, `‖S‖_F`; not the underscore of `a_name`.
_INDEX = re.compile(
    r"((?<![A-Za-zΑ-ω_])[A-Za-zΑ-ω]|‖|RIR)_([A-Za-z0-9θ]+(?:,[a-z](?![a-z]))?)(?![A-Za-z0-9_])"
)


def formula_html(text: str) -> str:
    """Return plain text as HTML, `K_P` and `K_P^(-1/2)` with their indices and exponents.

    Examples:
        >>> formula_html("θ = K_P^(-1/2) < ‖S‖_F")
        'θ = K<sub>P</sub><sup>−1/2</sup> &lt; ‖S‖<sub>F</sub>'
        >>> formula_html("σ_θ,i u_iᵀq_j")
        'σ<sub>θ,i</sub> u<sub>i</sub>ᵀq<sub>j</sub>'
        >>> formula_html("RIR_θ0 of test_vit")
        'RIR<sub>θ0</sub> of test_vit'
    """
    lowered = _INDEX.sub(r"\1<sub>\2</sub>", html.escape(text))
    return re.sub(r"\^\(-([^)]*)\)", r"<sup>−\1</sup>", lowered)
