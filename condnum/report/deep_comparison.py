"""Tables and words of the deep-net report: Table 3 beside the obtained numbers, the probes, a verdict."""

from __future__ import annotations

import html
import math

import pandas as pd

from condnum.methods import get_method, method_names
from condnum.report.tables import number
from condnum.theory.spectra import Convention

_GAP = "\u00a0"  # a space at which no line breaks
_START = "θ<sub>0</sub>"
#: Prefixes of the columns, and on which images they are measured.
_IMAGES = {"": "training images", "test_": "test images"}
_RATIOS = {"harmful_ratio": "(i) ↑", "pretrain_ratio": "(ii) ↓", "rir": "RIR<sub>θ0</sub> ↑"}

#: What the paper loses at most of D_P's test accuracy on ResNet18 and Cars (Table 3), in points.
PUBLISHED_LOSS = 5.9


def net_table(summary: pd.DataFrame, *, convention: Convention) -> pd.DataFrame:
    """Format Table 3 in one convention: on training images, on test images, and as published."""
    rows = summary[summary["convention"] == convention]
    table: dict[str, list[str]] = {
        "backbone": [html.escape(str(name)) for name in rows["backbone"]],
        "method": [net_label(str(name)) for name in rows["method"]],
    }
    for name, title in _RATIOS.items():
        lines = [_pairs(rows, f"{kind}{name}_mean", f"{kind}{name}_std") for kind in _IMAGES]
        table[f"{title}<br><small>{'<br>'.join([*_IMAGES.values(), 'published'])}</small>"] = _stacked(
            *lines, published=_pairs(rows, f"published_{name}", f"published_{name}_std", digits=4)
        )
    table["D<sub>P</sub> test acc. (%) ↑<br><small>published</small>"] = _stacked(
        _pairs(rows, "accuracy_mean", "accuracy_std", factor=100.0),
        published=_pairs(rows, "published_accuracy", "published_accuracy_std", digits=4),
    )
    counts = [
        ["—" if m == "initial" else f"{round(rate * n)}{_GAP}of{_GAP}{n}" for m, rate, n in zip(
            rows["method"], rows[f"{kind}success_rate"], rows["seeds"], strict=True)]
        for kind in _IMAGES
    ]  # fmt: skip
    table[f"immunized<br><small>{'<br>'.join(_IMAGES.values())}</small>"] = _stacked(*counts)
    return pd.DataFrame(table)


def published_note(summary: pd.DataFrame) -> str:
    """Say for each backbone what the published columns are."""
    same = [str(n) for n in dict.fromkeys(summary.loc[summary["published_same"], "backbone"])]
    other = [str(n) for n in dict.fromkeys(summary.loc[~summary["published_same"], "backbone"])]
    words = []
    if same:
        words.append(
            f"{_listed(same)}: the published columns are those of Table 3 for this backbone and data set."
        )
    if other:
        words.append(
            f"{_listed(other)}: the paper has no such experiment. The published columns are its "
            "ImageNet–Cars ones for the nearer architecture, <b>for orientation only</b>: another backbone, "
            "other data, other image sizes. Agreement or disagreement with them means nothing."
        )
    return f"<p>{' '.join(words)}</p>"


def probe_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format what Fig. 3 shows as numbers, in percent."""
    rows = summary[summary["convention"] == "compact"]
    return pd.DataFrame(
        {
            "backbone": [html.escape(str(name)) for name in rows["backbone"]],
            "method": [net_label(str(name)) for name in rows["method"]],
            "GD probe, last epoch (%)": _pairs(rows, "probe_final_mean", "probe_final_std", factor=100),
            "GD probe, mean over epochs (%)": _pairs(rows, "probe_mean_mean", "probe_mean_std", factor=100),
            "convex probe (%)": _pairs(rows, "convex_mean", "convex_std", factor=100),
            "commonest class (%)": [number(100 * value) for value in rows["chance"]],
        }
    )


def evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what the ratios rest on: ranks, condition numbers, steps, seconds."""
    rows = []
    compact = results[results["convention"] == "compact"]
    for (backbone, method), group in compact.groupby(["backbone", "method"], sort=False):
        rows.append(
            {
                "backbone": html.escape(str(backbone)),
                "method": net_label(str(method)),
                "samples × features": _shape(group),
                "rank H_P": _span(group["rank_pretrain"]),
                "rank H_H": _span(group["rank_harmful"]),
                "κ H_P": _span(group["kappa_pretrain_after"]),
                "κ H_H": _span(group["kappa_harmful_after"]),
                "RIR ± over groups, draws": _drawn(group, ""),
                "the same, test images": _drawn(group, "test_"),
                "steps": _span(group["steps"]),
                "kept at step": _span(group["best_step"]),
                "seconds a seed": number(group["seconds"].mean()),
                "stopped by": ", ".join(sorted(set(group["stop_reason"]))).replace("_", " "),
            }
        )
    return pd.DataFrame(rows)


def net_verdict(summary: pd.DataFrame) -> str:
    """Say in words what the numbers of this run say, from these numbers alone."""
    items = []
    for backbone, rows in summary.groupby("backbone", sort=False):
        compact = rows[rows["convention"] == "compact"].set_index("method")
        ridge = rows[rows["convention"] == "ridge"].set_index("method")
        for name in compact.index:
            if name != "initial":
                items.append(_method_words(str(backbone), str(name), compact.loc[name], ridge.loc[name]))
        items.append(_attack_words(str(backbone), compact))
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def net_label(name: str) -> str:
    """Return a method's label; `initial` is θ₀.

    Examples:
        >>> net_label("initial")
        'θ<sub>0</sub>'
    """
    if name == "initial":
        return _START
    return (get_method(name).label if name in method_names() else html.escape(name)).replace(" ", _GAP)


def _method_words(backbone: str, name: str, compact: pd.Series, ridge: pd.Series) -> str:
    """Return a method's verdict in both conventions, and what it costs on D_P."""
    count = int(compact["seeds"])
    verdicts = []
    for convention, row in (("compact", compact), ("ridge", ridge)):
        verdicts.append(f"<br>{convention}: {_measured_words(row, count)}")
    change = 100 * (compact["accuracy_mean"] - compact["accuracy_theta_0_mean"])
    cost = (
        "keeps D<sub>P</sub> test accuracy to within 0.05 points"
        if abs(change) < 0.05
        else f"{'loses' if change < 0 else 'gains'} {abs(change):.1f} points of D<sub>P</sub> test accuracy"
        + (f", more than the {PUBLISHED_LOSS} of the paper" if change < -PUBLISHED_LOSS else "")
    )
    return f"<b>{html.escape(backbone)}, {net_label(name)}</b> {cost}.{''.join(verdicts)}"


def _measured_words(row: pd.Series, count: int) -> str:
    """Return (i), (ii) and RIR on training and on test images, each with its spread and its verdict."""
    words = []
    for prefix, images in _IMAGES.items():
        good = round(float(row[f"{prefix}success_rate"]) * count)
        missed = [
            text
            for text, met in (
                ("(i) is not above 1", row[f"{prefix}harmful_ratio_mean"] > 1),
                ("(ii) is above 1", row[f"{prefix}pretrain_ratio_mean"] <= 1),
            )
            if not met
        ]
        words.append(
            f"on {images} (i) = {number(row[f'{prefix}harmful_ratio_mean'])}, (ii) = "
            f"{number(row[f'{prefix}pretrain_ratio_mean'])}, RIR {number(row[f'{prefix}rir_mean'])} "
            f"(± {_rounded(row[f'{prefix}rir_group_std_mean'])} over groups, "
            f"{number(row[f'{prefix}rir_least_draw'])} to {number(row[f'{prefix}rir_largest_draw'])} over "
            f"draws of the groups): immunized in {good} of {count} seed{'s'[: count != 1]}"
            + (f", <b>{' and '.join(missed)}</b>" if missed else "")
        )
    return "; ".join(words) + "."


def _attack_words(backbone: str, compact: pd.DataFrame) -> str:
    """Return what immunization leaves to each attacker."""
    start = f"<b>{html.escape(backbone)}, attackers</b>: "
    if "initial" not in compact.index or len(compact) < 2:
        return f"{start}nothing to compare."
    methods = compact.drop(index="initial")
    final, best = methods["probe_final_mean"], compact["convex_mean"]
    lowest, theta_0 = str(final.idxmin()), float(compact.loc["initial", "probe_final_mean"])
    words = (
        f"plain gradient descent reaches {100 * theta_0:.1f} % on θ<sub>0</sub> and is lowest on "
        f"{net_label(lowest)}, {100 * float(final[lowest]):.1f} %"
        if final[lowest] < theta_0
        else f"no method lowers what plain gradient descent reaches ({100 * theta_0:.1f} % on θ<sub>0</sub>)"
    )
    change = 100 * float(best[lowest] - best["initial"])
    informed = (
        f"{-change:.1f} points below θ<sub>0</sub>'s: so much is lost information, not slow convergence"
        if change < -0.05
        else "no less than on θ<sub>0</sub>: an informed attacker loses nothing"
    )
    return (
        f"{start}{words}. A convex solver on standardised features of {net_label(lowest)} reaches "
        f"{100 * float(best[lowest]):.1f} %, {informed}."
    )


def _pairs(
    rows: pd.DataFrame, mean: str, deviation: str, *, factor: float = 1.0, digits: int = 2
) -> list[str]:
    """Format `mean ± std` of every row, the deviation to some significant digits."""
    texts = []
    for value, spread in zip(factor * rows[mean], factor * rows[deviation], strict=True):
        if math.isnan(spread) or spread < 1e-9 * abs(value):
            texts.append(number(value))
        else:
            texts.append(f"{number(value)}{_GAP}±{_GAP}{_rounded(spread, digits)}")
    return texts


def _stacked(*lines: list[str], published: list[str] | None = None) -> list[str]:
    """Return cells with a line of each list, the published ones small."""
    small = [] if published is None else [[f"<small>{text}</small>" for text in published]]
    return ["<br>".join(cell) for cell in zip(*lines, *small, strict=True)]


def _drawn(group: pd.DataFrame, prefix: str) -> str:
    """Return RIR with its deviation over groups and its span over draws of the groups."""
    mean, spread = (float(group[f"{prefix}rir{part}"].mean()) for part in ("", "_group_std"))
    low, high = group[f"{prefix}rir_least_draw"].min(), group[f"{prefix}rir_largest_draw"].max()
    return f"{number(mean)}{_GAP}±{_GAP}{_rounded(spread)}, {number(low)}{_GAP}–{_GAP}{number(high)}"


def _rounded(deviation: float, digits: int = 2) -> str:
    """Format a deviation to some significant digits."""
    return number(float(f"{deviation:.{digits}g}"))


def _span(values: pd.Series) -> str:
    """Format the least and the largest value, once if they agree."""
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low}{_GAP}–{_GAP}{high}"


def _shape(group: pd.DataFrame) -> str:
    """Return `100 × 512`."""
    return f"{group['group_size'].iloc[0]}{_GAP}×{_GAP}{group['dimension'].iloc[0]}"


def _listed(names: list[str]) -> str:
    """Return names with commas, as text."""
    return ", ".join(html.escape(name) for name in names)
