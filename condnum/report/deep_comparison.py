"""Tables and words of the deep-net report: Table 3 beside the obtained numbers, the probes, a verdict."""

import html
import math

import pandas as pd

from condnum.report.tables import (
    GAP,
    RATIOS,
    Column,
    bullets,
    count_of,
    first,
    groups_of,
    label,
    lines,
    mean,
    number,
    published,
    reasons,
    rounded,
    rows_of,
    span,
    spread,
    with_spread,
)
from condnum.studies.deep_cells import Chance
from condnum.theory.spectra import Convention

#: Prefixes of the columns, and on which images they are measured.
_IMAGES = {"": "training images", "test_": "test images"}

#: Titles of the ratios: RIR is relative to θ₀.
NET_RATIOS = RATIOS | {"rir": "RIR<sub>θ0</sub> ↑"}

#: What the paper loses at most of D_P's test accuracy on ResNet18 and Cars (Table 3), in points.
PUBLISHED_LOSS = 5.9


def net_label(name: object) -> str:
    """Return a method's label; `initial` is θ₀."""
    return "θ<sub>0</sub>" if name == "initial" else label(name)


def _text(name: object) -> str:
    return html.escape(str(name))


#: What every table begins with.
_NAMES: dict[str, Column] = {"backbone": ("backbone", _text), "method": ("method", net_label)}


def net_table(summary: pd.DataFrame, *, convention: Convention) -> pd.DataFrame:
    """Format Table 3 in one convention: on training images, on test images, and as published."""

    def immunized(method: str, rate: float, seeds: int) -> str:
        return "—" if method == "initial" else count_of(rate * seeds, seeds)

    counts = ((images, (f"method {kind}success_rate seeds", immunized)) for kind, images in _IMAGES.items())
    columns = _NAMES | lines("immunized", *counts)
    for name, title in NET_RATIOS.items():
        obtained = ((images, with_spread(f"{kind}{name}")) for kind, images in _IMAGES.items())
        columns |= lines(title, *obtained, published(name))
    columns |= lines("D<sub>P</sub> test acc. (%) ↑", ("", with_spread("accuracy")), published("accuracy"))
    return rows_of(in_percent(summary[summary["convention"] == convention]), columns)


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
    columns: dict[str, Column] = {
        "GD probe, last epoch (%)": with_spread("probe_final"),
        "GD probe, mean over epochs (%)": with_spread("probe_mean"),
        "convex probe (%)": with_spread("convex"),
        "commonest class (%)": ("chance", number),
    }
    return rows_of(in_percent(summary[summary["convention"] == "compact"]), _NAMES | columns)


def evidence_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format what the ratios rest on: ranks, condition numbers, steps, seconds."""

    def draws(rir: pd.Series, deviation: pd.Series, least: pd.Series, largest: pd.Series) -> str:
        over_groups = spread(rir.mean(), deviation.mean())
        return f"{over_groups}, {number(least.min())}{GAP}–{GAP}{number(largest.max())}"

    drawn = "{0}rir {0}rir_group_std {0}rir_least_draw {0}rir_largest_draw".format
    return groups_of(
        results[results["convention"] == "compact"],
        ["backbone", "method"],
        {
            "backbone": ("backbone", first(_text)),
            "method": ("method", first(net_label)),
            "samples × features": ("group_size dimension", lambda n, d: f"{n.iloc[0]}{GAP}×{GAP}{d.iloc[0]}"),
            "rank H_P": ("rank_pretrain", span),
            "rank H_H": ("rank_harmful", span),
            "κ H_P": ("kappa_pretrain_after", span),
            "κ H_H": ("kappa_harmful_after", span),
            "RIR ± over groups, draws": (drawn(""), draws),
            "the same, test images": (drawn("test_"), draws),
            "steps": ("steps", span),
            "kept at step": ("best_step", span),
            "seconds a seed": ("seconds", mean),
            "stopped by": ("stop_reason", reasons),
        },
    )


def net_verdict(summary: pd.DataFrame, pretrain: Chance, harmful: Chance) -> str:
    """Say in words what the numbers of this run say, from these numbers and what guessing reaches.

    Where θ₀ does no better than guessing there is nothing else to say.
    """
    items = []
    for backbone, rows in in_percent(summary).groupby("backbone", sort=False):
        net = html.escape(str(backbone))
        compact, ridge = (
            rows[rows["convention"] == name].set_index("method") for name in ("compact", "ridge")
        )
        start = compact["accuracy_theta_0_mean"].mean()
        if start <= 100 * pretrain.most:
            items.append(
                f"<b>{net}</b>: θ<sub>0</sub> does not solve D<sub>P</sub>: its test accuracy is "
                f"{start:.1f} %, and {pretrain}. Its features say nothing about immunization."
            )
            continue
        for name in compact.index.drop("initial", errors="ignore"):
            change = compact.loc[name, "accuracy_mean"] - compact.loc[name, "accuracy_theta_0_mean"]
            verb = "loses" if change < 0 else "gains"
            cost = f"{verb} {abs(change):.1f} points of D<sub>P</sub> test accuracy"
            if abs(change) < 0.05:
                cost = "keeps D<sub>P</sub> test accuracy to within 0.05 points"
            elif change < -PUBLISHED_LOSS:
                cost += f", more than the {PUBLISHED_LOSS} of the paper"
            items.append(
                f"<b>{net}, {net_label(name)}</b> {cost}.<br>compact: {_measured_words(compact.loc[name])}"
                f"<br>ridge: {_measured_words(ridge.loc[name])}"
            )
        items.append(f"<b>{net}, attackers</b>: {_attack_words(compact, harmful)}")
    return bullets(items)


def _measured_words(row: pd.Series) -> str:
    """Return (i), (ii) and RIR on training and on test images, each with its spread and its verdict."""
    words, count = [], int(row["seeds"])
    for kind, images in _IMAGES.items():
        harmful, pretrain = row[f"{kind}harmful_ratio_mean"], row[f"{kind}pretrain_ratio_mean"]
        missed = ["(i) is not above 1"] * (not harmful > 1) + ["(ii) is above 1"] * (not pretrain <= 1)
        words.append(
            f"on {images} (i) = {number(harmful)}, (ii) = {number(pretrain)}, RIR "
            f"{number(row[f'{kind}rir_mean'])} ({_over_groups(row[f'{kind}rir_group_std_mean'])}, "
            f"{number(row[f'{kind}rir_least_draw'])} to {number(row[f'{kind}rir_largest_draw'])} over "
            f"draws of the groups): immunized in {round(row[f'{kind}success_rate'] * count)} of {count} "
            f"seed{'s'[: count != 1]}" + (f", <b>{' and '.join(missed)}</b>" if missed else "")
        )
    return "; ".join(words) + "."


def _over_groups(deviation: float) -> str:
    """Return the spread over groups; NaN where all of them are the same images."""
    return "one group" if math.isnan(deviation) else f"± {rounded(deviation)} over groups"


def _attack_words(compact: pd.DataFrame, chance: Chance) -> str:
    """Return what immunization leaves to each attacker."""
    if "initial" not in compact.index or len(compact) < 2:
        return "nothing to compare."
    final, best = compact["probe_final_mean"], compact["convex_mean"]
    if best["initial"] <= 100 * chance.most:
        return (
            f"θ<sub>0</sub> does not solve D<sub>H</sub>: a convex solver on its features reaches "
            f"{best['initial']:.1f} %, and {chance}. There is nothing to defend."
        )
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
