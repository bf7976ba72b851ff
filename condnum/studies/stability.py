"""Which claims stand: the verdicts of finished runs over everything that was chosen to reach them."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from condnum.deep.rir_convergence import rir_convergence
from condnum.errors import CondnumError, InvalidInputError
from condnum.studies.cells import Cell, CellResult
from condnum.studies.executors import Executor, core_count
from condnum.studies.measure import Published
from condnum.studies.run_verdicts import (
    AXES,
    FIXED,
    NET,
    ORDER,
    WORST_DRAW,
    KeptNets,
    RunFolder,
    feature_verdicts,
    run_verdicts,
)
from condnum.studies.study import Names, Result, Study, choose_executor

#: They do nothing, so that nothing is claimed of them.
_CONTROLS = ("identity", "initial")


class Claim(NamedTuple):
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


def published_claims(published: Mapping[str, Published], methods: Iterable[str]) -> list[Claim]:
    """Return what a published table says of methods: which RIR is the largest, and who meets Definition 3.1.

    Examples:
        >>> from condnum.studies.measure import TABLE_1
        >>> [claim.text for claim in published_claims(TABLE_1, ["imma", "ours"])][1:]
        ['imma misses (i) > 1 and (ii) ≤ 1', 'ours meets (i) > 1 and (ii) ≤ 1']
    """
    present = set(methods)
    rows = {name: row for name, row in published.items() if name in present}
    found = []
    if len(rows) > 1:
        best = max(rows, key=lambda name: rows[name].rir)
        found.append(Claim(best, "largest", rivals=tuple(name for name in rows if name != best)))
    met = {name: row.harmful_ratio > 1 and row.pretrain_ratio <= 1 for name, row in rows.items()}
    return [*found, *(Claim(name, "meets", expected) for name, expected in met.items())]


# Claims over settings.


def setting_verdicts(table: pd.DataFrame, claim: Claim) -> pd.DataFrame:
    """Return a claim's verdict in every setting.

    A setting has one cell, or many (pairs of digits): there a claim on a method `stands` if more than half of
    the `cells` `agree`, and one on the largest RIR is about the means.
    """
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
    """Return the values of an axis, neighbours next to each other."""
    known = set(table[axis])
    if axis in ORDER:
        return [value for value in ORDER[axis] if value in known]
    return sorted(known, key=lambda value: float("inf") if value == "own" else float(value))


def default_setting(table: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return the setting in which the run itself stands beside the paper, with θ at unit scale."""
    convention = "compact" if kind == "deep" else "ridge"
    at: dict[str, Any] = FIXED | {"convention": convention, "group_size": table["group_size"].iloc[0]}
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
    "group_size": "groups of {}",
    "draw": "draw {} of the groups",
    "budget": "{} epochs",
    "seed": "seed {}",
}
_VALUES = {
    ("scale", "unit"): "θ at unit scale",
    ("scale", "as_trained"): "θ as trained",
    ("draw", WORST_DRAW): "the worst draw of the groups",
    ("budget", "own"): "each method's own budget",
}


def in_words(axis: str, value: Any) -> str:
    """Say a value of an axis.

    Examples:
        >>> in_words("rtol", "1e-10"), in_words("scale", "as_trained"), in_words("draw", -1)
        ('rtol 1e-10 (compact)', 'θ as trained', 'the worst draw of the groups')
    """
    return _VALUES.get((axis, value)) or _WORDS[axis].format(value)


class Stability(NamedTuple):
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


def claim_stability(table: pd.DataFrame, claim: Claim, default: Mapping[str, Any]) -> Stability | None:
    """Judge a claim in every setting of a table of `run_verdicts`; None where no setting can.

    The setting nearest to the default has fewest axes changed, then fewest steps along them.
    """
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
    return Stability(verdicts, start, flip, changes)


def run_sentences(
    folder: Path, published: Mapping[str, Published], backbone: str = ""
) -> dict[tuple[str, str], str]:
    """Return the sentence of each published claim by method and kind, from what one run kept."""
    run = RunFolder.read(folder)
    table, _ = run_verdicts(run)
    table = table[table["cell"] == backbone] if backbone else table
    default = default_setting(table, run.kind)
    claims = published_claims(published, table["method"].unique())
    found = {(claim.method, claim.kind): claim_stability(table, claim, default) for claim in claims}
    return {key: stability.sentence for key, stability in found.items() if stability is not None}


# The study.


@dataclass(frozen=True, eq=False)
class FinishedRuns:
    """Folders of finished runs, and the nets that deep ones kept."""

    runs: tuple[RunFolder, ...]
    nets: Mapping[str, KeptNets]  # by the run's name
    missing: dict[str, str]  # why the nets of a run are not used

    @property
    def label(self) -> str:
        """Names of the runs."""
        return ", ".join(run.name for run in self.runs)

    @property
    def checksum(self) -> str:
        """SHA-256 of their results and records."""
        return hashlib.sha256("".join(run.checksum for run in self.runs).encode()).hexdigest()


class Experiment(NamedTuple):
    """What runs that differ in their budget alone say; of deep runs, of one backbone."""

    run: RunFolder  # the first
    backbone: str  # "" of linear runs
    verdicts: pd.DataFrame

    @property
    def name(self) -> str:
        """Name of the first run, and the backbone."""
        return f"{self.run.name}: {self.backbone}" if self.backbone else self.run.name


@dataclass(frozen=True)
class StabilityStudy(Study, name="stability"):
    """Every claim about the methods of finished runs, in every setting that their folders hold enough for."""

    runs: Names = ()
    nets: bool = True  # run the nets of deep runs over their images again, for what results do not hold

    def check(self) -> None:
        """Refuse to judge nothing."""
        if not self.runs:
            raise InvalidInputError(
                "stability judges finished runs: give their folders, such as --runs runs/mnist,runs/digits; "
                "condnum run house-prices (mnist, digits, deep) leaves one."
            )

    def load(self) -> FinishedRuns:
        """Read the folders."""
        paths = [Path(word) for word in self.runs]
        short = [path.resolve().name for path in paths]
        runs = tuple(
            RunFolder.read(path, name if short.count(name) == 1 else str(path))
            for path, name in zip(paths, short, strict=True)
        )
        nets, missing = {}, {}
        for run in runs:
            if run.kind != "deep":
                continue
            if not self.nets:
                missing[run.name] = "they were not asked for (--nets)"
                continue
            try:
                nets[run.name] = KeptNets.of(run)
            except CondnumError as error:
                missing[run.name] = str(error)
        return FinishedRuns(runs, nets, missing)

    def cells(self, data: FinishedRuns) -> list[Cell]:
        """List the runs, then each net of theirs that is run over its images again.

        What they depend on, results and records of the runs, is in the checksum of the data.
        """
        found = [Cell({"run": run.name}) for run in data.runs]
        for name, nets in data.nets.items():
            found += [Cell({"run": name, **dict(zip(NET, net, strict=True))}) for net in nets.methods]
        return found

    def compute(self, data: FinishedRuns, cell: Cell) -> CellResult:
        """Judge a run by what it stored, or one of its nets by its features."""
        if "backbone" not in cell.at:
            (run,) = (run for run in data.runs if run.name == cell["run"])
            table, said = run_verdicts(run)
            return CellResult({"said": "\n".join(said)}, _as_arrays("verdicts", table))
        nets, (backbone, seed, method) = data.nets[cell["run"]], (cell[name] for name in NET)
        sizes = {"groups": nets.study.groups, "group_size": nets.study.group_size}
        tables, settled = [], []
        for images, features in nets.features(backbone, seed, method).items():
            tables.append(feature_verdicts(features, **sizes, seed=seed).assign(images=images))
            settled.append(rir_convergence(features, seed=seed).assign(images=images))
        at = {"method": method, "seed": seed, "cell": backbone, "budget": nets.run.budget}
        verdicts, convergence = pd.concat(tables).assign(**at), pd.concat(settled)
        return CellResult({}, _as_arrays("verdicts", verdicts) | _as_arrays("convergence", convergence))

    def tables(self, data: FinishedRuns, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return the claims with their sentences, their verdicts in each setting, and how RIR_θ0 settles."""
        claims, settings, defaults = [], [], dict[str, dict[str, Any]]()
        for experiment in self.experiments(data, results):
            (run, backbone, table), name = experiment, experiment.name
            default = defaults[name] = default_setting(table, run.kind)
            for claim in _all_claims(run.published(backbone), table, default):
                found = claim_stability(table, claim, default)
                if found is None:
                    continue
                rirs = table[table["method"] == claim.method].groupby(list(AXES))["rir"].mean()
                claims.append(
                    {
                        "experiment": name,
                        "method": claim.method,
                        "claim": claim.text,
                        "settings": len(found.verdicts),
                        "stands": found.stands,
                        "share": found.stands / len(found.verdicts),
                        "by_default": bool(found.default["stands"]),
                        "axes_to_flip": np.nan if found.flip is None else len(found.changes),
                        "flips_at": found.turn,
                        "rir_least": rirs.min(),
                        "rir_largest": rirs.max(),
                        "sentence": found.sentence,
                    }
                )
                settings.append(found.verdicts.assign(experiment=name, claim=claim.text))
        if not claims:
            raise InvalidInputError(
                f"nothing is claimed of the methods in {data.label}, all of them controls; run others too."
            )
        verdicts = pd.concat(settings, ignore_index=True)
        tables = {
            "claims": pd.DataFrame(claims),
            "settings": verdicts,
            "by_axis": by_axis(verdicts, defaults),
        }
        settled = [
            _from_arrays("convergence", arrays).assign(**cell.at)
            for cell, _, arrays in results
            if "backbone" in cell.at
        ]
        return tables | ({"convergence": pd.concat(settled, ignore_index=True)} if settled else {})

    def experiments(self, data: FinishedRuns, results: Sequence[Result]) -> list[Experiment]:
        """Return the verdicts of each experiment; those of nets that were run again replace their results."""
        again, tables = _run_again(data, results), defaultdict[str, list[pd.DataFrame]](list)
        for cell, _, arrays in results:
            if ("backbone" in cell.at) == (cell["run"] in again):
                tables[cell["run"]].append(_from_arrays("verdicts", arrays))
        joined = defaultdict[tuple[str, str], list[tuple[RunFolder, pd.DataFrame]]](list)
        for run in data.runs:
            for table in tables[run.name]:
                backbones = np.where(run.kind == "deep", table["cell"], "")
                for backbone, rows in table.groupby(backbones, sort=False):
                    known = joined[run.experiment, str(backbone)]
                    if any(other.budget == run.budget and other is not run for other, _ in known):
                        known = joined[run.name, str(backbone)]  # the same once more
                    known.append((run, rows))
        return [
            Experiment(runs[0][0], backbone, pd.concat([rows for _, rows in runs], ignore_index=True))
            for (_, backbone), runs in joined.items()
        ]

    def executor(self, data: FinishedRuns, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Start workers for nets only: what is stored is read in a second."""
        return choose_executor(jobs or (core_count() if data.nets else 1), scheduler, len(cells), threads=1)

    def left_out(self, data: FinishedRuns, results: Sequence[Result]) -> list[str]:
        """Say which settings no folder holds enough for."""
        again = _run_again(data, results)
        said = [
            f"{cell['run']}: {text}"
            for cell, row, _ in results
            if cell["run"] not in again and "backbone" not in cell.at
            for text in str(row["said"]).splitlines()
        ]
        missing = {name: "some of them failed" for name in data.nets if name not in again} | data.missing
        return said + [f"{name}: its nets are not run again: {why}" for name, why in missing.items()]

    def facts(self, data: FinishedRuns) -> dict[str, str]:
        """Return what was judged."""
        return {"runs": data.label, "SHA-256 of their results": data.checksum}


def _run_again(data: FinishedRuns, results: Sequence[Result]) -> set[str]:
    """Name the runs whose nets were all run over their images again."""
    done = Counter(cell["run"] for cell, *_ in results if "backbone" in cell.at)
    return {name for name, nets in data.nets.items() if done[name] == len(nets.methods)}


def _all_claims(
    published: Mapping[str, Published], table: pd.DataFrame, default: Mapping[str, Any]
) -> list[Claim]:
    """Return the published claims; of every other method, what the default setting says of it."""
    methods = list(dict.fromkeys(table["method"]))
    found = published_claims(published, methods)
    for method in methods:
        if method not in (*published, *_CONTROLS):
            stability = claim_stability(table, Claim(method, "meets"), default)
            if stability is not None:
                found.append(Claim(method, "meets", bool(stability.default["stands"])))
    return found


def by_axis(verdicts: pd.DataFrame, defaults: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Count, for each value of each axis, the cells that agree with a claim, whatever the other axes.

    A rank tolerance is about the compact convention, ε and the scale of θ are about ridge. An axis with one
    value is left out.
    """
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


def _as_arrays(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a table as a cell keeps them."""
    return {f"{name}.{column}": np.array(table[column].tolist()) for column in table}


def _from_arrays(name: str, arrays: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table that `_as_arrays` took apart."""
    own = f"{name}."
    return pd.DataFrame({key.removeprefix(own): of for key, of in arrays.items() if key.startswith(own)})
