"""Tables for people: obtained beside published, and a verdict per method in words."""

from __future__ import annotations

import html
import math

import pandas as pd

from condnum.methods import get_method, method_names
from condnum.spectra import Convention

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
