"""Which claims stand: the verdicts of finished runs over everything that was chosen to reach them."""

import hashlib
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

    A setting has one cell, or many (pairs of digits): there a claim on a method stands if more than half of
    them agree, and one on the largest RIR is about the means.

    Returns:
        A row per setting: the columns of `AXES`, `agree` of `cells`, and whether it `stands`.
    """
    axes = list(AXES)
    if claim.kind == "meets":
        own = table[(table["method"] == claim.method) & table["success"].notna()]
        own = own.assign(agree=own["success"].astype(bool) == claim.expected)
        found = own.groupby(axes, sort=False)["agree"].agg(agree="sum", cells="size").reset_index()
        return found.assign(stands=2 * found["agree"] > found["cells"])
    own = table[table["method"].isin([claim.method, *claim.rivals])]
    own = own.assign(rival=own["rival"].fillna(own["rir"]) if "rival" in own else own["rir"])
    means = own.groupby([*axes, "method"], sort=False)[["rir", "rival"]].mean().unstack("method").dropna()
    stands = means["rir"][claim.method] > means["rival"][list(claim.rivals)].max(axis=1)
    return means.index.to_frame(index=False).assign(
        agree=stands.to_numpy(int), cells=1, stands=stands.to_numpy()
    )


def axis_values(table: pd.DataFrame, axis: str) -> list[Any]:
    """Return the values of an axis, neighbours next to each other."""
    known = set(table[axis])
    if axis in ORDER:
        return [value for value in ORDER[axis] if value in known]
    numbered = axis == "budget"
    return sorted(known, key=lambda v: (v == "own", float(v) if v != "own" else 0.0) if numbered else v)


def default_setting(table: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return the setting in which the run itself stands beside the paper, with θ at unit scale."""
    convention = "compact" if kind == "deep" else "ridge"
    at: dict[str, Any] = FIXED | {"convention": convention}
    for axis in AXES:
        values = axis_values(table, axis)
        if at.get(axis) not in values:
            at[axis] = values[0] if axis != "group_size" else table[axis].iloc[0]
    return at


def smallest_flip(verdicts: pd.DataFrame, default: Mapping[str, Any]) -> tuple[pd.Series, pd.Series | None]:
    """Return a claim's verdict nearest to the default setting, and the nearest one that is the opposite.

    Nearest: fewest axes changed, then fewest steps along them.
    """
    changed, steps = np.zeros((2, len(verdicts)), dtype=int)
    for axis in AXES:
        order = {value: place for place, value in enumerate(axis_values(verdicts, axis))}
        apart = np.abs(verdicts[axis].map(order) - order.get(default[axis], 0)).to_numpy()
        changed, steps = changed + (verdicts[axis] != default[axis]).to_numpy(), steps + apart
    ranked = verdicts.iloc[np.lexsort((steps, changed))]
    start = ranked.iloc[0]
    other = ranked[ranked["stands"] != start["stands"]]
    return start, None if other.empty else other.iloc[0]


_WORDS = {
    "convention": "{} convention",
    "rtol": "rtol {} (compact)",
    "epsilon": "ε {} (ridge)",
    "scale": "{}",
    "images": "{} images",
    "group_size": "groups of {}",
    "draw": "draw {} of the groups",
    "budget": "{} epochs",
    "seed": "seed {}",
}


def in_words(axis: str, value: Any) -> str:
    """Say a value of an axis.

    Examples:
        >>> in_words("rtol", "1e-10"), in_words("scale", "as_trained"), in_words("draw", -1)
        ('rtol 1e-10 (compact)', 'θ as trained', 'the worst draw of the groups')
    """
    if axis == "scale":
        return "θ as trained" if value == "as_trained" else "θ at unit scale"
    if axis == "draw" and value == WORST_DRAW:
        return "the worst draw of the groups"
    if axis == "budget" and value == "own":
        return "each method's own budget"
    return _WORDS[axis].format(value)


class Stability(NamedTuple):
    """How far a claim carries."""

    settings: int
    stands: int  # settings in which it does
    default: pd.Series  # the verdict in the default setting, or the one nearest to it
    flip: pd.Series | None  # the nearest setting with the opposite verdict
    changes: tuple[str, ...]  # axes that differ there from the default

    @property
    def turn(self) -> str:
        """What differs at the flip, in words; a tolerance or ε names the convention too."""
        told = [
            axis for axis in self.changes if axis != "convention" or not {"rtol", "epsilon"} & {*self.changes}
        ]
        return "" if self.flip is None else ", ".join(in_words(axis, self.flip[axis]) for axis in told)

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.flip is None:
            return f"stands in {'all' if self.stands else 'none of'} {self.settings} settings"
        percent = 100 * self.stands / self.settings
        share = f"{percent:.0f}" if 1 <= percent <= 99 else f"{percent:.3g}"
        count = (
            f": {self.flip['agree']} of {self.flip['cells']} cells agree" if self.flip["cells"] > 1 else ""
        )
        turn = "; flips at" if self.default["stands"] else ", not in the default one; it does at"
        return f"stands in {share} % of {self.settings} settings{turn} {self.turn}{count}"


def claim_stability(table: pd.DataFrame, claim: Claim, default: Mapping[str, Any]) -> Stability | None:
    """Judge a claim in every setting of a table of verdicts; None where no setting can.

    Args:
        table: Rows of `run_verdicts`.
        claim: The claim.
        default: The setting to start from, as `default_setting` gives it.
    """
    verdicts = setting_verdicts(table, claim)
    if verdicts.empty:
        return None
    start, flip = smallest_flip(verdicts, default)
    changes = tuple(axis for axis in AXES if flip is not None and flip[axis] != default[axis])
    return Stability(len(verdicts), int(verdicts["stands"].sum()), start, flip, changes)


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

#: Coordinates of an immunized net.
_NET = ("backbone", "seed", "method")


@dataclass(frozen=True, eq=False)
class FinishedRuns:
    """Folders of finished runs, and the nets that deep ones kept."""

    runs: tuple[RunFolder, ...]
    nets: Mapping[str, KeptNets]  # by the run's name
    missing: Mapping[str, str]  # why the nets of a run are not used

    @property
    def label(self) -> str:
        """Names of the runs."""
        return ", ".join(run.name for run in self.runs)

    @property
    def checksum(self) -> str:
        """SHA-256 of their results and records."""
        return hashlib.sha256("".join(run.checksum for run in self.runs).encode()).hexdigest()


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
            if run.kind == "deep":
                try:
                    if not self.nets:
                        raise InvalidInputError("they were not asked for (--nets)")
                    nets[run.name] = KeptNets.of(run)
                except CondnumError as error:
                    missing[run.name] = str(error)
        return FinishedRuns(runs, nets, missing)

    def cells(self, data: FinishedRuns) -> list[Cell]:
        """List the runs, then each net of theirs that is run over its images again."""
        found = [Cell({"run": run.name}, {"results": run.checksum}) for run in data.runs]
        for name, nets in data.nets.items():
            sums = nets.run.results.set_index(["backbone", "seed", "method"])["checksum"]
            for net in nets.methods:
                at = dict(zip(_NET, net, strict=True))
                found.append(
                    Cell({"run": name, **at}, {"net": sums[net].iloc[0], "groups": nets.study.groups})
                )
        return found

    def compute(self, data: FinishedRuns, cell: Cell) -> CellResult:
        """Judge a run by what it stored, or one of its nets by its features."""
        if "backbone" not in cell.at:
            table, said = run_verdicts(next(run for run in data.runs if run.name == cell["run"]))
            return CellResult({"said": "\n".join(said)}, _as_arrays("verdicts", table))
        nets, (backbone, seed, method) = data.nets[cell["run"]], (cell[name] for name in _NET)
        tables, settled = [], []
        for images, features in nets.features(backbone, seed, method).items():
            sizes = {"groups": nets.study.groups, "group_size": nets.study.group_size}
            tables.append(feature_verdicts(features, **sizes, seed=seed).assign(images=images))
            settled.append(rir_convergence(features, seed=seed).assign(images=images))
        verdicts = pd.concat(tables, ignore_index=True).assign(
            method=method, seed=seed, cell=backbone, budget=nets.run.budget
        )
        arrays = _as_arrays("verdicts", verdicts) | _as_arrays("convergence", pd.concat(settled))
        return CellResult({"said": ""}, arrays)

    def tables(self, data: FinishedRuns, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return the claims with their sentences, their verdicts in each setting, and how RIR_θ0 settles."""
        claims, settings, settled, defaults = [], [], [], dict[str, dict[str, Any]]()
        for name, run, table in self.experiments(data, results):
            default = defaults[name] = default_setting(table, run.kind)
            backbone = str(table["cell"].iloc[0]) if run.kind == "deep" else ""
            for claim in _all_claims(run.published(backbone), table, default):
                stability = claim_stability(table, claim, default)
                if stability is None:
                    continue
                own = table[table["method"] == claim.method].groupby(list(AXES))["rir"].mean()
                flip = stability.flip
                claims.append(
                    {
                        "experiment": name,
                        "method": claim.method,
                        "claim": claim.text,
                        "settings": stability.settings,
                        "stands": stability.stands,
                        "share": stability.stands / stability.settings,
                        "by_default": bool(stability.default["stands"]),
                        "axes_to_flip": len(stability.changes) if flip is not None else np.nan,
                        "flips_at": stability.turn,
                        "rir_least": own.min(),
                        "rir_largest": own.max(),
                        "sentence": stability.sentence,
                    }
                )
                settings.append(setting_verdicts(table, claim).assign(experiment=name, claim=claim.text))
        for cell, _, arrays in results:
            if "backbone" in cell.at:
                where = {name: cell[name] for name in ("run", *_NET)}
                settled.append(_from_arrays("convergence", arrays).assign(**where))
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
        return tables | ({"convergence": pd.concat(settled, ignore_index=True)} if settled else {})

    def experiments(
        self, data: FinishedRuns, results: Sequence[Result]
    ) -> list[tuple[str, RunFolder, pd.DataFrame]]:
        """Return name, first run and verdicts of each experiment; of deep runs each backbone is one.

        Runs that differ in their budget alone are one experiment. Where the nets of a run were run again,
        their verdicts replace those of its results, which are among them.
        """
        own, again = dict[str, pd.DataFrame](), dict[str, list[pd.DataFrame]]()
        for cell, _, arrays in results:
            table = _from_arrays("verdicts", arrays)
            if "backbone" in cell.at:
                again.setdefault(cell["run"], []).append(table)
            else:
                own[cell["run"]] = table
        joined = dict[tuple[str, str], tuple[list[RunFolder], list[pd.DataFrame]]]()
        for run in data.runs:
            table = own.get(run.name, pd.DataFrame(columns=[*AXES, "method", "cell"]))
            if run.name in again and len(again[run.name]) == len(data.nets[run.name].methods):
                table = pd.concat(again[run.name], ignore_index=True)
            parts = dict(list(table.groupby("cell", sort=False))) if run.kind == "deep" else {"": table}
            for part, rows in parts.items():
                key = (run.experiment, str(part))
                if key in joined and run.budget in {other.budget for other in joined[key][0]}:
                    key = (run.name, str(part))  # the same once more
                runs, tables = joined.setdefault(key, ([], []))
                runs.append(run)
                tables.append(rows)
        return [
            (f"{runs[0].name}{': ' if part else ''}{part}", runs[0], pd.concat(tables, ignore_index=True))
            for (_, part), (runs, tables) in joined.items()
        ]

    def executor(self, data: FinishedRuns, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Start workers for nets only: what is stored is read in a second."""
        return choose_executor(jobs or (core_count() if data.nets else 1), scheduler, len(cells), threads=1)

    def left_out(self, data: FinishedRuns, results: Sequence[Result]) -> list[str]:
        """Say which settings no folder holds enough for."""
        said = []
        for cell, row, _ in results:
            if cell["run"] not in data.nets and row["said"]:
                said += [f"{cell['run']}: {text}" for text in str(row["said"]).split("\n")]
        return said + [f"{name}: its nets are not run again: {why}" for name, why in data.missing.items()]

    def facts(self, data: FinishedRuns) -> dict[str, str]:
        """Return what was judged."""
        return {"runs": data.label, "SHA-256 of their results": data.checksum}


def _all_claims(
    published: Mapping[str, Published], table: pd.DataFrame, default: Mapping[str, Any]
) -> list[Claim]:
    """Return the published claims; of every other method, what the default setting says of it."""
    methods = list(dict.fromkeys(table["method"]))
    found = published_claims(published, methods)
    for method in methods:
        if method not in (*published, *_CONTROLS):
            verdicts = setting_verdicts(table, Claim(method, "meets"))
            if len(verdicts):
                found.append(Claim(method, "meets", bool(smallest_flip(verdicts, default)[0]["stands"])))
    return found


def by_axis(verdicts: pd.DataFrame, defaults: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Count, for each value of each axis, the cells that agree with a claim, whatever the other axes.

    A rank tolerance is about the compact convention, ε and the scale of θ are about ridge.

    Args:
        verdicts: Of `setting_verdicts`, with `experiment` and `claim`.
        defaults: The default setting of each experiment.

    Returns:
        A row per experiment, claim, axis with several values, and value.
    """
    rows = []
    for name, of_one in verdicts.groupby("experiment", sort=False):
        for axis in AXES:
            values = axis_values(of_one, axis)
            about = {"rtol": "compact", "epsilon": "ridge", "scale": "ridge"}.get(axis)
            part = of_one if about is None else of_one[of_one["convention"] == about]
            if len(values) < 2:
                continue
            for (claim, value), found in part.groupby(["claim", axis], sort=False):
                counts = {of: int(found[of].sum()) for of in ("agree", "cells", "stands")}
                rows.append(
                    {
                        "experiment": name,
                        "claim": claim,
                        "axis": axis,
                        "value": str(value),
                        **counts,
                        "settings": len(found),
                        "share": counts["agree"] / counts["cells"],
                        "order": values.index(value),
                        "default": value == defaults[str(name)][axis],
                    }
                )
    return pd.DataFrame(rows)


def _as_arrays(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a table as a cell keeps them."""
    table = table.assign(success=table["success"].astype(float)) if "success" in table else table
    return {f"{name}.{column}": np.array(table[column].tolist()) for column in table}


def _from_arrays(name: str, arrays: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table that `_as_arrays` took apart."""
    own = f"{name}."
    return pd.DataFrame({key.removeprefix(own): of for key, of in arrays.items() if key.startswith(own)})
