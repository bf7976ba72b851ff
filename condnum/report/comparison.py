"""Tables for people: obtained beside published, and a verdict per method in words."""

from __future__ import annotations

import html
import math

import pandas as pd

from condnum.methods import get_method, method_names
from condnum.spectra import Convention

_RATIOS = {
    "harmful_ratio": "(i) ↑",
    "pretrain_ratio": "(ii) ↓",
    "rir": "RIR ↑",
}


def comparison_table(summary: pd.DataFrame, *, convention: Convention, gauge: str) -> pd.DataFrame:
    """Format one convention of a summary, published numbers beside the obtained ones.

    Args:
        summary: Of `experiments.measure.summary_table`.
        convention: `compact` or `ridge`.
        gauge: `unit` or `as_trained`.

    Returns:
        Strings `mean ± std`, a row per method; published columns only where there are any.
    """
    rows = summary[(summary["convention"] == convention) & (summary["gauge"] == gauge)]
    table: dict[str, list[str]] = {"method": [_label(name) for name in rows["method"]]}
    for name, title in _RATIOS.items():
        table[title] = _pairs(rows[f"{name}_mean"], rows[f"{name}_std"])
        if rows[f"published_{name}"].notna().any():
            table[f"{title} published"] = _pairs(rows[f"published_{name}"], rows[f"published_{name}_std"])
    table["Definition 3.1"] = [
        f"{round(rate * count)} of {count} seeds"
        for rate, count in zip(rows["success_rate"], rows["seeds"], strict=True)
    ]
    return pd.DataFrame(table)


def evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what a ratio rests on: ranks, κ(θ), the loss gap of clause (c), steps and seconds.

    Args:
        results: Of `experiments.measure.results_table`.

    Returns:
        Strings, a row per method, for the compact convention.
    """
    rows = []
    for name, group in results[results["convention"] == "compact"].groupby("method", sort=False):
        rows.append(
            {
                "method": _label(str(name)),
                "rank H_P": _span(group["rank_pretrain"]),
                "rank H_H": _span(group["rank_harmful"]),
                "κ(θ)": _span(group["theta_condition"]),
                "loss gap, clause (c)": f"≤ {number(max(0.0, group['loss_gap'].max()))}",
                "RIR ceiling": number(group["rir_ceiling"].iloc[0]),
                "steps": _span(group["steps"]),
                "seconds a seed": number(group["seconds"].mean()),
                "stopped by": ", ".join(sorted(set(group["stop_reason"]))).replace("_", " "),
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
    """Format a number for reading: three or four significant digits, powers of ten beyond 10⁵.

    Args:
        value: Any float.

    Returns:
        A short text.

    Examples:
        >>> [number(v) for v in (356.2, 0.0532, 6852331.0, float("inf"), float("nan"), 0.0)]
        ['356.2', '0.0532', '6.85e6', '∞', '—', '0']
    """
    if math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-4 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def verdict(summary: pd.DataFrame) -> str:
    """Say in words what the conventions agree and disagree on, from the numbers of this run alone.

    Args:
        summary: Of `experiments.measure.summary_table`.

    Returns:
        An HTML list, an item per method.
    """
    items = []
    for name in dict.fromkeys(summary["method"]):
        rows = summary[summary["method"] == name].set_index(["convention", "gauge"])
        compact, ridge = rows.loc["compact", "unit"], rows.loc["ridge", "unit"]
        items.append(
            f"<li><b>{_label(str(name))}</b>: {_judgement(compact, 'compact')}; "
            f"{_judgement(ridge, 'ridge')}.</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


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


def _label(name: str) -> str:
    """Return a method's label; a name from outside the registry is shown as text."""
    return get_method(name).label if name in method_names() else html.escape(name)


def _pairs(means: pd.Series, deviations: pd.Series) -> list[str]:
    """Format `mean ± std` for every row."""
    texts = []
    for mean, deviation in zip(means, deviations, strict=True):
        texts.append(number(mean) if math.isnan(deviation) else f"{number(mean)} ± {number(deviation)}")
    return texts


def _span(values: pd.Series) -> str:
    """Format the least and the largest value, once if they agree."""
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low} – {high}"
