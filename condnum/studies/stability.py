"""Which claims stand: the verdicts of finished runs over everything that was chosen to reach them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError
from condnum.files import write_tables
from condnum.studies.frame.record import write_record
from condnum.studies.measure import Published
from condnum.studies.run_verdicts import AXES, FIXED, ORDER, WORST_DRAW, RunFolder, run_verdicts

#: They do nothing, so that nothing is claimed of them.
_CONTROLS = ("identity", "initial")


class MethodClaim(NamedTuple):
    """One statement about a method that a setting confirms or refutes."""

    method: str
    kind: Literal["largest", "meets"]  # RIR; (i) > 1 and (ii) ≤ 1, with the loss on D_P kept
    expected: bool = True  # False: the method is said to miss (i) > 1 and (ii) ≤ 1
    rivals: tuple[str, ...] = ()  # for `largest`

    @property
    def text(self) -> str:
        """The statement, which begins with the name of the method."""
        if self.kind == "largest":
            return f"{self.method} has the largest RIR of {1 + len(self.rivals)} methods"
        return f"{self.method} {'meets' if self.expected else 'misses'} (i) > 1 and (ii) ≤ 1"


def published_claims(published: Mapping[str, Published], methods: Iterable[str]) -> list[MethodClaim]:
    """Return what a published table says: which RIR is the largest, and who meets Definition 3.1."""
    present = set(methods)
    rows = {name: row for name, row in published.items() if name in present}
    found = []
    if len(rows) > 1:
        best = max(rows, key=lambda name: rows[name].rir)
        found.append(MethodClaim(best, "largest", rivals=tuple(name for name in rows if name != best)))
    met = {name: row.harmful_ratio > 1 and row.pretrain_ratio <= 1 for name, row in rows.items()}
    return [*found, *(MethodClaim(name, "meets", expected) for name, expected in met.items())]


# Claims over settings.


def setting_verdicts(table: pd.DataFrame, claim: MethodClaim) -> pd.DataFrame:
    """Return a claim's verdict in every setting: of most cells, or of means for the largest RIR."""
    axes = list(AXES)
    if claim.kind == "meets":
        own = table[(table["method"] == claim.method) & table["success"].notna()]
        agree = own["success"].astype(bool) == claim.expected
        found = own.assign(agree=agree).groupby(axes, sort=False)["agree"].agg(agree="sum", cells="size")
    else:
        own = table[table["method"].isin([claim.method, *claim.rivals])]
        rival = own["rival"].fillna(own["rir"]) if "rival" in own else own["rir"]
        groups = own.assign(rival=rival).groupby([*axes, "method"], sort=False)
        means = groups[["rir", "rival"]].mean().unstack("method").dropna()
        best = means["rir"][claim.method] > means["rival"][list(claim.rivals)].max(axis=1)
        found = pd.DataFrame({"agree": best.astype(int), "cells": 1})
    return found.assign(stands=2 * found["agree"] > found["cells"]).reset_index()


def axis_values(table: pd.DataFrame, axis: str) -> list[Any]:
    """Return the values of an axis, neighbors next to each other."""
    known = set(table[axis])
    return [value for value in ORDER[axis] if value in known] if axis in ORDER else sorted(known)


def default_setting(table: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return the setting in which the run itself stands beside the paper, with θ at unit scale."""
    at: dict[str, Any] = FIXED | {"convention": "compact" if kind == "deep" else "ridge"}
    for axis in AXES:
        values = axis_values(table, axis)
        if at.get(axis) not in values:
            at[axis] = values[0]
    return at


_WORDS = {
    "convention": "{} convention",
    "rtol": "rtol {} (compact)",
    "epsilon": "ε {} (ridge)",
    "images": "{} images",
    "draw": "draw {} of the groups",
    "seed": "seed {}",
}
_VALUES = {
    ("scale", "unit"): "θ at unit scale",
    ("scale", "as_trained"): "θ as trained",
    ("draw", WORST_DRAW): "the worst draw of the groups",
}


def in_words(axis: str, value: Any) -> str:
    """Say a value of an axis."""
    return _VALUES.get((axis, value)) or _WORDS[axis].format(value)


class ClaimStability(NamedTuple):
    """How far a claim carries."""

    verdicts: pd.DataFrame  # in each setting, of `setting_verdicts`
    default: pd.Series  # the verdict in the default setting, or the one nearest to it
    flip: pd.Series | None  # the nearest setting with the opposite verdict
    changes: tuple[str, ...]  # axes that differ there from the default

    @property
    def stands(self) -> int:
        """In how many settings it stands."""
        return int(self.verdicts["stands"].sum())

    @property
    def turn(self) -> str:
        """What differs at the flip, in words; a tolerance or ε names the convention too."""
        if self.flip is None:
            return ""
        named = {"convention"} if {"rtol", "epsilon"} & {*self.changes} else set()
        return ", ".join(in_words(axis, self.flip[axis]) for axis in self.changes if axis not in named)

    @property
    def sentence(self) -> str:
        """The result in words."""
        settings = len(self.verdicts)
        if self.flip is None:
            return f"stands in {'all' if self.stands else 'none of'} {settings} settings"
        percent = 100 * self.stands / settings
        share = f"{percent:.0f}" if 1 <= percent <= 99 else f"{percent:.3g}"
        turn = "; flips at" if self.default["stands"] else ", not in the default one; it does at"
        agree, cells = self.flip[["agree", "cells"]]
        count = f": {agree} of {cells} cells agree" if cells > 1 else ""
        return f"stands in {share} % of {settings} settings{turn} {self.turn}{count}"

    def row(self, table: pd.DataFrame, claim: MethodClaim) -> dict[str, Any]:
        """Return the claim as a row of a table, with the range of RIR over the settings."""
        rirs = table[table["method"] == claim.method].groupby(list(AXES))["rir"].mean()
        return {
            "claim": claim.text,
            "settings": len(self.verdicts),
            "stands": self.stands,
            "rir_least": rirs.min(),
            "rir_largest": rirs.max(),
            "sentence": self.sentence,
        }


def claim_stability(
    table: pd.DataFrame, claim: MethodClaim, default: Mapping[str, Any]
) -> ClaimStability | None:
    """Judge a claim in every setting; the flip has fewest axes changed, then fewest steps along them."""
    verdicts = setting_verdicts(table, claim)
    if verdicts.empty:
        return None
    changed, steps = np.zeros((2, len(verdicts)), dtype=int)
    for axis in AXES:
        place = {value: k for k, value in enumerate(axis_values(verdicts, axis))}
        changed += (verdicts[axis] != default[axis]).to_numpy()
        steps += np.abs(verdicts[axis].map(place) - place.get(default[axis], 0)).to_numpy()
    ranked = verdicts.iloc[np.lexsort((steps, changed))]
    start = ranked.iloc[0]
    opposite = ranked[ranked["stands"] != start["stands"]]
    flip = None if opposite.empty else opposite.iloc[0]
    changes = tuple(axis for axis in AXES if flip is not None and flip[axis] != default[axis])
    return ClaimStability(verdicts, start, flip, changes)


# The report.


@dataclass(frozen=True)
class StabilityReport:
    """Every claim about the methods of finished runs, in every setting that the runs cover."""

    label: str  # names of the runs
    checksums: dict[str, str]  # SHA-256 of the results of each run
    tables: dict[str, pd.DataFrame]  # claims, settings, by_axis
    left_out: list[str]  # settings of which no run holds enough

    def save(self, folder: str | Path) -> list[str]:
        """Write the tables and the record of the run; return their names."""
        written = write_tables(folder, {f"{name}.csv": table for name, table in self.tables.items()})
        return [*written, write_record(folder, self.checksums)]


def stability(runs: str | Sequence[str | Path]) -> StabilityReport:
    """Judge the claims of finished runs, given by their folders; nothing is computed.

    An experiment is a run, or a backbone of it.

    Raises:
        InvalidInputError: No folder, or one without methods about which there are claims.
    """
    paths = [Path(word) for word in (filter(None, runs.split(",")) if isinstance(runs, str) else runs)]
    if not paths:
        raise InvalidInputError(
            "runs is empty; give folders of finished runs of house-prices, mnist, digits or deep, "
            "such as --runs runs/mnist,runs/digits."
        )
    short = [path.absolute().name for path in paths]
    names = [name if short.count(name) == 1 else str(path) for path, name in zip(paths, short, strict=True)]
    claims, settings, left_out, defaults = [], [], list[str](), dict[str, dict[str, Any]]()
    found = list(map(RunFolder.read, paths, names))
    for run in found:
        verdicts, unknown = run_verdicts(run)
        left_out += [f"{run.name}: {text}" for text in unknown]
        backbones = np.where(run.kind == "deep", verdicts["cell"], "")
        for backbone, table in verdicts.groupby(backbones, sort=False):
            name = f"{run.name}: {backbone}" if backbone else run.name
            default = defaults[name] = default_setting(table, run.kind)
            for claim in _all_claims(run.published(str(backbone)), table, default):
                checked = claim_stability(table, claim, default)
                if checked is not None:
                    claims.append({"experiment": name, "method": claim.method} | checked.row(table, claim))
                    settings.append(checked.verdicts.assign(experiment=name, claim=claim.text))
    if not claims:
        raise InvalidInputError(
            f"{', '.join(names)} has only controls, about which there are no claims; run other methods too."
        )
    verdicts = pd.concat(settings, ignore_index=True)
    tables = {"claims": pd.DataFrame(claims), "settings": verdicts, "by_axis": by_axis(verdicts, defaults)}
    checksums = {run.name: run.checksum for run in found}
    return StabilityReport(", ".join(names), checksums, tables, left_out)


def _all_claims(
    published: Mapping[str, Published], table: pd.DataFrame, default: Mapping[str, Any]
) -> list[MethodClaim]:
    """Return the published claims; of every other method, what the default setting says of it."""
    methods = list(dict.fromkeys(table["method"]))
    found = published_claims(published, methods)
    for method in methods:
        if method not in (*published, *_CONTROLS):
            stability = claim_stability(table, MethodClaim(method, "meets"), default)
            if stability is not None:
                found.append(MethodClaim(method, "meets", bool(stability.default["stands"])))
    return found


def by_axis(verdicts: pd.DataFrame, defaults: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Count the cells that agree with a claim for each value of each axis, in the convention it is about."""
    tables = []
    for name, rows in verdicts.groupby("experiment", sort=False):
        for axis in AXES:
            values = axis_values(rows, axis)
            if len(values) < 2:
                continue
            about = {"rtol": "compact", "epsilon": "ridge", "scale": "ridge"}.get(axis)
            part = rows if about is None else rows[rows["convention"] == about]
            counts = part.groupby(["claim", axis], sort=False).agg(
                agree=("agree", "sum"),
                cells=("cells", "sum"),
                stands=("stands", "sum"),
                settings=("stands", "size"),
            )
            counts["share"] = counts["agree"] / counts["cells"]
            found = counts.rename_axis(["claim", "value"]).reset_index()
            order, default = found["value"].map(values.index), found["value"] == defaults[str(name)][axis]
            found.insert(1, "axis", axis)
            found.insert(0, "experiment", name)
            tables.append(found.assign(order=order, default=default, value=found["value"].astype(str)))
    return pd.concat(tables, ignore_index=True)
