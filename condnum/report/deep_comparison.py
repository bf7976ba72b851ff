"""Tables and words of the deep-net report: Table 3 beside the obtained numbers, the probes, a verdict."""

from __future__ import annotations

import html

import pandas as pd

from condnum.report.tables import (
    GAP,
    RATIOS,
    bullets,
    count_of,
    label,
    number,
    published_spreads,
    rounded,
    span,
    spreads,
    stopped_by,
)
from condnum.theory.spectra import Convention

#: Prefixes of the columns, and on which images they are measured.
_IMAGES = {"": "training images", "test_": "test images"}

#: Titles of the ratios: RIR is relative to θ₀.
NET_RATIOS = RATIOS | {"rir": "RIR<sub>θ0</sub> ↑"}

#: What the paper loses at most of D_P's test accuracy on ResNet18 and Cars (Table 3), in points.
PUBLISHED_LOSS = 5.9


def net_label(name: object) -> str:
    """Return a method's label; `initial` is θ₀.

    Examples:
        >>> net_label("initial")
        'θ<sub>0</sub>'
    """
    return "θ<sub>0</sub>" if name == "initial" else label(name)


def net_table(summary: pd.DataFrame, *, convention: Convention) -> pd.DataFrame:
    """Format Table 3 in one convention: on training images, on test images, and as published."""
    rows = in_percent(summary[summary["convention"] == convention])
    table = _names(rows)
    for name, title in NET_RATIOS.items():
        lines = [spreads(rows, f"{kind}{name}") for kind in _IMAGES]
        head = f"{title}<br><small>{'<br>'.join([*_IMAGES.values(), 'published'])}</small>"
        table[head] = _stacked(*lines, _small(published_spreads(rows, name)))
    table["D<sub>P</sub> test acc. (%) ↑<br><small>published</small>"] = _stacked(
        spreads(rows, "accuracy"), _small(published_spreads(rows, "accuracy"))
    )
    counts = [
        [
            "—" if method == "initial" else count_of(rate * seeds, seeds)
            for method, rate, seeds in zip(
                rows["method"], rows[f"{kind}success_rate"], rows["seeds"], strict=True
            )
        ]
        for kind in _IMAGES
    ]
    table[f"immunized<br><small>{'<br>'.join(_IMAGES.values())}</small>"] = _stacked(*counts)
    return pd.DataFrame(table)


def in_percent(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a summary with its accuracies in percent; the published ones are."""
    shares = ("accuracy_", "probe_", "convex_", "chance")
    return summary.assign(**{name: 100 * summary[name] for name in summary if str(name).startswith(shares)})


def published_note(summary: pd.DataFrame) -> str:
    """Say for each backbone what the published columns are."""
    words = list[str]()
    for same, rows in summary.groupby("published_same", sort=False):
        names = ", ".join(html.escape(str(name)) for name in dict.fromkeys(rows["backbone"]))
        if same:
            words.insert(
                0, f"{names}: the published columns are those of Table 3 for this backbone and data set."
            )
        else:
            words.append(
                f"{names}: the paper has no such experiment. The published columns are its ImageNet–Cars "
                "ones for the nearer architecture, <b>for orientation only</b>: another backbone, other "
                "data, other image sizes. Agreement or disagreement with them means nothing."
            )
    return f"<p>{' '.join(words)}</p>"


def probe_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format what Fig. 3 shows as numbers, in percent."""
    rows = in_percent(summary[summary["convention"] == "compact"])
    return pd.DataFrame(
        _names(rows)
        | {
            "GD probe, last epoch (%)": spreads(rows, "probe_final"),
            "GD probe, mean over epochs (%)": spreads(rows, "probe_mean"),
            "convex probe (%)": spreads(rows, "convex"),
            "commonest class (%)": [number(value) for value in rows["chance"]],
        }
    )


def evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what the ratios rest on: ranks, condition numbers, steps, seconds."""
    rows = []
    compact = results[results["convention"] == "compact"]
    for (backbone, method), group in compact.groupby(["backbone", "method"], sort=False):
        drawn = []
        for kind in _IMAGES:
            deviation = rounded(group[f"{kind}rir_group_std"].mean())
            low, high = group[f"{kind}rir_least_draw"].min(), group[f"{kind}rir_largest_draw"].max()
            drawn.append(
                f"{number(group[f'{kind}rir'].mean())}{GAP}±{GAP}{deviation}, "
                f"{number(low)}{GAP}–{GAP}{number(high)}"
            )
        rows.append(
            {
                "backbone": html.escape(str(backbone)),
                "method": net_label(method),
                "samples × features": f"{group['group_size'].iloc[0]}{GAP}×{GAP}{group['dimension'].iloc[0]}",
                "rank H_P": span(group["rank_pretrain"]),
                "rank H_H": span(group["rank_harmful"]),
                "κ H_P": span(group["kappa_pretrain_after"]),
                "κ H_H": span(group["kappa_harmful_after"]),
                "RIR ± over groups, draws": drawn[0],
                "the same, test images": drawn[1],
                "steps": span(group["steps"]),
                "kept at step": span(group["best_step"]),
                "seconds a seed": number(group["seconds"].mean()),
                "stopped by": stopped_by(group),
            }
        )
    return pd.DataFrame(rows)


def net_verdict(summary: pd.DataFrame) -> str:
    """Say in words what the numbers of this run say, from these numbers alone."""
    items = []
    for backbone, rows in in_percent(summary).groupby("backbone", sort=False):
        net = html.escape(str(backbone))
        compact, ridge = (
            rows[rows["convention"] == name].set_index("method") for name in ("compact", "ridge")
        )
        for name in compact.index.drop("initial", errors="ignore"):
            cost = _cost_words(
                compact.loc[name, "accuracy_mean"] - compact.loc[name, "accuracy_theta_0_mean"]
            )
            items.append(
                f"<b>{net}, {net_label(name)}</b> {cost}.<br>compact: {_measured_words(compact.loc[name])}"
                f"<br>ridge: {_measured_words(ridge.loc[name])}"
            )
        items.append(f"<b>{net}, attackers</b>: {_attack_words(compact)}")
    return bullets(items)


def _cost_words(change: float) -> str:
    """Say what a method costs on D_P, in points of accuracy."""
    if abs(change) < 0.05:
        return "keeps D<sub>P</sub> test accuracy to within 0.05 points"
    words = f"{'loses' if change < 0 else 'gains'} {abs(change):.1f} points of D<sub>P</sub> test accuracy"
    return words + (f", more than the {PUBLISHED_LOSS} of the paper" if change < -PUBLISHED_LOSS else "")


def _measured_words(row: pd.Series) -> str:
    """Return (i), (ii) and RIR on training and on test images, each with its spread and its verdict."""
    words, count = [], int(row["seeds"])
    for kind, images in _IMAGES.items():
        harmful, pretrain = row[f"{kind}harmful_ratio_mean"], row[f"{kind}pretrain_ratio_mean"]
        missed = ["(i) is not above 1"] * (not harmful > 1) + ["(ii) is above 1"] * (not pretrain <= 1)
        words.append(
            f"on {images} (i) = {number(harmful)}, (ii) = {number(pretrain)}, RIR "
            f"{number(row[f'{kind}rir_mean'])} (± {rounded(row[f'{kind}rir_group_std_mean'])} over groups, "
            f"{number(row[f'{kind}rir_least_draw'])} to {number(row[f'{kind}rir_largest_draw'])} over "
            f"draws of the groups): immunized in {round(row[f'{kind}success_rate'] * count)} of {count} "
            f"seed{'s'[: count != 1]}" + (f", <b>{' and '.join(missed)}</b>" if missed else "")
        )
    return "; ".join(words) + "."


def _attack_words(compact: pd.DataFrame) -> str:
    """Return what immunization leaves to each attacker."""
    if "initial" not in compact.index or len(compact) < 2:
        return "nothing to compare."
    final, best = compact["probe_final_mean"], compact["convex_mean"]
    lowest = str(final.drop("initial").idxmin())
    words = (
        f"no method lowers what plain gradient descent reaches ({final['initial']:.1f} % on θ<sub>0</sub>)"
    )
    if final[lowest] < final["initial"]:
        words = (
            f"plain gradient descent reaches {final['initial']:.1f} % on θ<sub>0</sub> and is lowest on "
            f"{net_label(lowest)}, {final[lowest]:.1f} %"
        )
    change = best[lowest] - best["initial"]
    informed = "no less than on θ<sub>0</sub>: an informed attacker loses nothing"
    if change < -0.05:
        informed = (
            f"{-change:.1f} points below θ<sub>0</sub>'s: so much is lost information, not slow convergence"
        )
    return (
        f"{words}. A convex solver on standardised features of {net_label(lowest)} reaches "
        f"{best[lowest]:.1f} %, {informed}."
    )


def _names(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Start a table with the names of nets and methods."""
    return {
        "backbone": [html.escape(str(name)) for name in rows["backbone"]],
        "method": [net_label(name) for name in rows["method"]],
    }


def _small(texts: list[str]) -> list[str]:
    return [f"<small>{text}</small>" for text in texts]


def _stacked(*lines: list[str]) -> list[str]:
    """Return cells with a line of each list."""
    return ["<br>".join(cell) for cell in zip(*lines, strict=True)]
