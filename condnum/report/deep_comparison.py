"""Tables of the deep-net report: Table 3 beside the obtained numbers, the probes, the evidence."""

import html

import pandas as pd

from condnum.report.tables import (
    GAP,
    RATIO_TITLES,
    Column,
    count_of,
    first,
    groups_of,
    label,
    lines,
    mean,
    number,
    published,
    reasons,
    rows_of,
    span,
    spread,
    with_spread,
)
from condnum.theory.spectra import Convention

#: Prefixes of the columns, and on which images they are measured.
_IMAGES = {"": "training images", "test_": "test images"}

#: Titles of the ratios: RIR is relative to θ₀.
NET_RATIOS = RATIO_TITLES | {"rir": "RIR<sub>θ0</sub> ↑"}


def net_label(name: object) -> str:
    """Return a method's label; `initial` is θ₀."""
    return "θ<sub>0</sub>" if name == "initial" else label(name)


def _text(name: object) -> str:
    return html.escape(str(name))


def net_table(summary: pd.DataFrame, *, convention: Convention) -> pd.DataFrame:
    """Format Table 3 in one convention: on training images, on test images, and as published."""

    def immunized(method: str, rate: float, seeds: int) -> str:
        return "—" if method == "initial" else count_of(rate * seeds, seeds)

    counts = ((images, (f"method {kind}success_rate seeds", immunized)) for kind, images in _IMAGES.items())
    backbone: Column = ("backbone", lambda name: f"<small>{_text(name)}</small>")
    columns = lines("method", ("", ("method", net_label)), ("backbone", backbone))
    columns |= lines("immunized", *counts)
    for name, title in NET_RATIOS.items():
        obtained = ((images, with_spread(f"{kind}{name}")) for kind, images in _IMAGES.items())
        columns |= lines(title, *obtained, published(name))
    columns |= lines("slowdown ↑", ("new head", with_spread("slowdown")))
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
                "results for the more similar architecture, <b>for orientation only</b>: backbone, data "
                "and image sizes differ, so agreement or disagreement with them means nothing."
            )
    return f"<p>{' '.join(words)}</p>"


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
