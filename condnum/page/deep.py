"""Tables and words on deep nets: Table 3 beside the obtained numbers, and what attacks on them need."""

import html
import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.deep.attacks.attackers import DeepAttacker
from condnum.deep.attacks.report import cheapest_attack
from condnum.numbers import num
from condnum.page.tables import (
    RATIO_TITLES,
    Column,
    count_of,
    formula_html,
    label,
    lines,
    number,
    published,
    shown,
    with_spread,
)
from condnum.studies.deep_measures import HORIZONS

#: Prefixes of the columns, and on which images they are measured.
_IMAGES = {"": "training images", "test_": "test images"}

#: Titles of the ratios: RIR is relative to θ₀.
NET_RATIOS = RATIO_TITLES | {"rir": "RIR<sub>θ0</sub> ↑"}


def net_label(name: object) -> str:
    """Return a method's label; `initial` is θ₀."""
    return "θ<sub>0</sub>" if name == "initial" else label(name)


def net_table(summary: pd.DataFrame, *, convention: str) -> pd.DataFrame:
    """Format Table 3 in one convention: on training images, on test images, and as published."""

    def immunized(method: str, rate: float, seeds: int) -> str:
        return "—" if method == "initial" else count_of(rate * seeds, seeds)

    backbone: Column = ("backbone", lambda name: f"<small>{html.escape(str(name))}</small>")
    columns = lines("method", ("", ("method", net_label)), ("backbone", backbone))
    counts = ((images, (f"method {kind}success_rate seeds", immunized)) for kind, images in _IMAGES.items())
    columns |= lines("immunized", *counts)
    for name, title in NET_RATIOS.items():
        obtained = ((images, with_spread(name, kind)) for kind, images in _IMAGES.items())
        columns |= lines(title, *obtained, published(name))
    columns |= lines("slowdown ↑", ("new head", with_spread("slowdown")))
    columns |= lines("D<sub>P</sub> test acc. (%) ↑", ("", with_spread("accuracy")), published("accuracy"))
    return shown(in_percent(summary[summary["convention"] == convention]), columns)


def horizon_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format what an attacker reaches after some epochs of SGD and in the end, beside θ₀'s."""
    columns = lines("method", ("", ("method", net_label)), ("backbone", ("backbone", html.escape)))
    for epoch in HORIZONS:
        columns |= lines(
            f"after {epoch} epoch{'s' * (epoch > 1)}",
            ("accuracy (%)", with_spread(f"probe_{epoch}")),
            ("SGRC (%)", with_spread(f"sgrc_{epoch}")),
        )
    columns |= lines("last one again", ("accuracy (%)", with_spread("probe_again")))
    solved = ("accuracy (%)", with_spread("convex")), ("SGRC (%)", with_spread("sgrc_convex"))
    columns |= lines("solved", *solved)
    return shown(in_percent(summary[summary["convention"] == "compact"]), columns)


def committed_tables(summary: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the tables of a committed run; those of older revisions lack the columns."""
    known = "probe_1_mean" in summary
    return [net_table(summary, convention="compact"), horizon_table(summary)] if known else []


def in_percent(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a summary with its accuracies in percent; the published ones are."""
    shares = ("accuracy_", "probe_", "convex_", "chance")
    return summary.assign(**{name: 100 * summary[name] for name in summary if str(name).startswith(shares)})


def published_note(summary: pd.DataFrame) -> str:
    """Say for each backbone what the published columns are."""
    words = list[str]()
    for same, rows in summary.groupby("published_same", sort=False):
        names = ", ".join(html.escape(str(name)) for name in dict.fromkeys(rows["backbone"]))
        words.append(
            f"{names}: the published columns are those of Table 3 for this backbone and data set."
            if same
            else f"{names}: the paper has no such experiment. The published columns are its ImageNet–Cars "
            "results for the more similar architecture, <b>for orientation only</b>: backbone, data and "
            "image sizes differ, so agreement or disagreement with them means nothing."
        )
    return f"<p>{' '.join(words)}</p>"


# Attacks.

#: Fraction of the way from chance to the best attacker's accuracy on θ₀ of which tables and sentences speak.
HEADLINE = 0.8

_NETS = {"theta_0": "θ<sub>0</sub>", "theta_0 again": "θ<sub>0</sub> again", "scratch": "from scratch"}
_THREE = ("theta_0", "theta_i", "scratch")


_WHO: dict[str, Column] = {
    "attacker<br><small>net</small>": (
        "label backbone method",
        lambda attacker, net, method: f"{attacker}<br><small>{html.escape(net)}, {label(method)}</small>",
    ),
    "examples per class": ("shots", lambda shots: str(shots or "all")),
}


def factor_table(factors: pd.DataFrame, fraction: float = HEADLINE) -> pd.DataFrame:
    """Format the factors at a fraction, the cheapest attack that succeeds first; ≥ and ≤ mark bounds."""
    table = factors[np.isclose(factors["fraction"], fraction)].copy()
    missed = {net: table[f"reached_{net}"] < table["attacks"] for net in _THREE}
    for net in _THREE:
        table[f"more_{net}"] = np.where(missed[net], "> ", "")
    table["least"], table["most"] = (
        np.where(missed["theta_i"], "≥ ", ""),
        np.where(missed["scratch"], "≤ ", ""),
    )

    def needs(*values: Any) -> str:
        pairs = zip(values[::2], values[1::2], strict=True)
        return ", ".join("—" if math.isnan(steps) else f"{more}{num(steps)}" for steps, more in pairs)

    def interval(sign: str, value: float, low: float, high: float) -> str:
        if math.isnan(value):
            return "—"
        ends = f"{num(low)} to {num(high)}"
        return f"{sign}{num(value)}<br><small style='white-space: nowrap'>({ends})</small>"

    def factor(noise: float, *values: Any) -> str:
        between = "" if math.isnan(noise) else f"{num(1 / noise)} to {num(noise)}"
        return f"{interval(*values)}<br><small>{between}</small>"

    columns: dict[str, Column] = {
        "examples seen until the goal on θ<sub>I</sub>": (
            "examples_theta_i", lambda seen: "missed" if math.isnan(seen) else number(round(seen))
        ),
        "steps<br><small>θ<sub>0</sub>, θ<sub>I</sub>, scratch</small>": (
            " ".join(f"needs_{net} more_{net}" for net in _THREE), needs
        ),
        "factor<br><small>(95 %), A against A</small>": ("noise least factor factor_low factor_high", factor),
        "effect": "effect",
        "protection score<br><small>0 none, 1 full</small>": (
            "least most protection protection_low protection_high",
            lambda least, most, *values: interval(least + most, *values),
        ),
    }  # fmt: skip
    return shown(table, _WHO | columns)


def defense_table(results: pd.DataFrame) -> pd.DataFrame:
    """Format every attacker's accuracy in the end on every net, mean ± standard deviation over seeds."""

    def of_seeds(values: Any) -> str:
        mean, count = f"{100 * values.mean():.1f}", len(values)
        return f"{mean} ± {100 * values.std():.1f}" if count > 1 else f"{mean} <small>(one seed)</small>"

    keys = ["backbone", "shots", "net"]
    seeds = results.groupby([*keys, "label", "seed"], sort=False)["final_accuracy"].mean()
    table = seeds.groupby([*keys, "label"], sort=False).agg(of_seeds).unstack("label", sort=False).fillna("—")
    found = table.reset_index()
    found["net"] = found["net"].map(lambda net: _NETS.get(net, label(net)))
    found["shots"] = found["shots"].map(lambda shots: str(shots or "all"))
    return found.rename(columns={"shots": "examples per class"}).rename_axis(columns=None)


def pass_table(sgrc: pd.DataFrame) -> pd.DataFrame:
    """Format D_H's accuracy on θ₀ and on each net after `HORIZONS` passes, and SGRC, where training lasts."""
    keys = ["backbone", "attacker", "shots", "net"]
    solved = sgrc["attacker"].map(lambda name: DeepAttacker.named(name).closed_form)
    trained, parts = sgrc[(sgrc["step"] > 0) & ~solved], []
    for passes in HORIZONS:
        off = (trained["epochs"] / passes - 1).abs()
        near = trained.assign(off=off)[off < 0.1].sort_values("off", kind="stable")
        parts.append(near.drop_duplicates(keys).sort_index().assign(passes=passes))
    at = pd.concat(parts)
    at["net"] = [
        f"{html.escape(name)}, {_NETS.get(net, label(net))}"
        for name, net in zip(at["backbone"], at["net"], strict=True)
    ]
    at["attacker"] = [DeepAttacker.named(name).label for name in at["attacker"]]
    at["examples per class"] = [str(shots or "all") for shots in at["shots"]]
    at["text"] = [
        f"{100 * start:.1f} → {100 * end:.1f}<br><small>SGRC {num(round(value))}</small>"
        for start, end, value in at[["accuracy_theta_0", "accuracy", "sgrc"]].to_numpy()
    ]
    where = ["attacker", "examples per class", "net"]
    wide = at.set_index([*where, "passes"])["text"].unstack("passes", sort=False).fillna("—")
    return (
        wide.rename(columns={1: "after 1 pass"} | {n: f"after {n} passes" for n in HORIZONS[1:]})
        .rename_axis(columns=None)
        .reset_index()
    )


def verdict(factors: pd.DataFrame, immunization: pd.DataFrame, fraction: float = HEADLINE) -> str:
    """Say for each backbone and method which is the cheapest attack that succeeds."""
    most = 0 if 0 in set(factors["shots"]) else factors["shots"].max()
    table = factors[(factors["shots"] == most) & np.isclose(factors["fraction"], fraction)]
    words = ""
    for (backbone, method), rows in table.groupby(["backbone", "method"], sort=False):
        known = immunization.query("backbone == @backbone and method == @method").set_index("convention")
        rir = ", ".join(f"{number(known.at[name, 'rir_mean'])} ({name})" for name in ("compact", "ridge"))
        words += f"<p><b>{html.escape(str(backbone))}, {label(method)}</b>: RIR<sub>θ0</sub> {rir}. "
        words += f"<b>{formula_html(cheapest_attack(rows))}</b></p>"
    return words
