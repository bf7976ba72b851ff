"""What the published tables say about the order of the methods, checked on the cells of a run.

Numbers of other data cannot be compared; that one method immunizes and another does not, can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from condnum.experiments.published import Published, PublishedNet
from condnum.report.comparison import number
from condnum.report.deep_comparison import net_label

Standing = Literal["holds", "in part", "does not hold"]

#: Conventions in which a claim is checked, θ at unit scale.
CONVENTIONS = {"ridge": "ridge, ε = 1e-6", "compact": "compact"}

#: The rule in words, as every page states it.
RULE = (
    "A claim holds if it does so in every cell (method × seed, of the digits × pair) of both conventions; it "
    "does not hold if it fails in at least half of the cells of both; else it holds in part. θ at unit scale."
)


@dataclass(frozen=True)
class Claim:
    """One statement of a published table."""

    text: str  # HTML
    answers: Mapping[str, str]  # by convention: what the run says
    standing: Standing


def claims(published: Mapping[str, Published | PublishedNet], results: pd.DataFrame) -> list[Claim]:
    """Check the order of the methods and Definition 3.1 as a published table has them."""
    cells = results[results["gauge"] == "unit"]
    ran = set(cells["method"])
    rows = {name: row for name, row in published.items() if name in ran and name != "initial"}
    found = []
    if len(rows) > 1:
        best = max(rows, key=lambda name: rows[name].rir)
        text = f"{net_label(best)} has the largest RIR of {len(rows)} methods"
        found.append(_claim(text, {name: _largest(best, part, rows) for name, part in _parts(cells)}))
    for name, row in rows.items():
        met = row.harmful_ratio > 1 and row.pretrain_ratio <= 1
        means = f"published (i) = {number(row.harmful_ratio)}, (ii) = {number(row.pretrain_ratio)}"
        text = f"{net_label(name)} {'meets' if met else 'misses'} (i) > 1 and (ii) ≤ 1 ({means})"
        found.append(_claim(text, {key: _met(part, name, met) for key, part in _parts(cells)}))
    return found


def _parts(cells: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells of each convention that was measured."""
    parts = [(name, cells[cells["convention"] == name]) for name in CONVENTIONS]
    return [(name, part) for name, part in parts if len(part)]


def _largest(best: str, cells: pd.DataFrame, names: Mapping[str, object]) -> tuple[int, int, str]:
    """Count the seeds in which a method's mean RIR is the largest; name the runner-up or the winner."""
    known = cells[cells["method"].isin(names)]
    means = known.groupby(["seed", "method"])["rir"].mean().unstack().dropna()
    count = int((means.idxmax(axis=1) == best).sum())
    overall = known.groupby("method")["rir"].mean()
    other = str(overall.drop(best).idxmax())
    words = f"RIR {number(overall[best])} against {number(overall[other])} ({net_label(other)})"
    return count, len(means), f"{count} of {len(means)} seed{'s'[: len(means) != 1]}: {words}"


def _met(cells: pd.DataFrame, method: str, met: bool) -> tuple[int, int, str]:
    """Count the cells in which a method is immunized, or is not."""
    success = cells.loc[cells["method"] == method, "success"].astype(bool)
    count, total = int((success == met).sum()), len(success)
    return count, total, f"{count} of {total} cells"


def _claim(text: str, counts: Mapping[str, tuple[int, int, str]]) -> Claim:
    """Sum up the answers of the conventions."""
    shares = [count / total for count, total, _ in counts.values()]
    standing: Standing = "in part"
    if all(share == 1 for share in shares):
        standing = "holds"
    elif all(share <= 0.5 for share in shares):
        standing = "does not hold"
    return Claim(text, {name: words for name, (_, _, words) in counts.items()}, standing)
