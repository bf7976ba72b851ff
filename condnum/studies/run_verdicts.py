"""Verdicts of a finished run in every setting that its folder holds enough for, from its spectra."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.files import read_table
from condnum.studies.deep_recipes import INITIAL
from condnum.studies.measure import (
    CEILING_RIDGES,
    SPECTRA,
    SPECTRA_TABLE,
    TABLE_1,
    TABLE_2,
    Published,
    cell_spectra,
    ridge_ceiling_column,
)
from condnum.theory.immunization import immunization_from_spectra
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol

DEFAULT_RTOL = "default"
#: Relative rank tolerances of float64 spectra; the default, D·eps, lies between the first two.
_RTOLS = ("1e-15", DEFAULT_RTOL, "1e-12", "1e-10", "1e-08")
_EPSILONS = tuple(f"{ridge:g}" for ridge in CEILING_RIDGES)

#: The order of values in which one is next to another; of other axes that of their numbers.
ORDER: dict[str, tuple[Any, ...]] = {
    "convention": ("compact", "ridge"),
    "rtol": _RTOLS,
    "epsilon": _EPSILONS,
    "scale": ("unit", "as_trained"),
    "images": ("training", "test"),
}

#: What stands where a choice was not varied, or has no meaning: compact κ knows no ε and no scale of θ, ridge
#: κ no rank tolerance, so that these make no settings of their own there.
FIXED: dict[str, Any] = {
    "rtol": DEFAULT_RTOL,
    "epsilon": f"{PUBLISHED_RIDGE:g}",
    "scale": "unit",
    "images": "training",
    "draw": 0,
}

#: What has to be chosen before a claim has a verdict.
AXES = ("convention", *FIXED, "seed")

#: What κ has to be told, without combinations that it does not see.
_MEASURES = [
    *(FIXED | {"convention": "compact", "rtol": rtol} for rtol in _RTOLS),
    *(
        FIXED | {"convention": "ridge", "epsilon": epsilon, "scale": scale}
        for epsilon in _EPSILONS
        for scale in ORDER["scale"]
    ),
]

#: The draw in which a method has its least RIR of all draws, and its rivals their largest.
WORST_DRAW = -1


@dataclass(frozen=True)
class RunFolder:
    """The folder of a finished run."""

    name: str
    folder: Path
    results: pd.DataFrame

    @classmethod
    def read(cls, folder: str | Path, name: str = "") -> "RunFolder":
        """Read the results, or say why they cannot be judged."""
        path = Path(folder).expanduser()
        results = read_table(path, "results")
        if results is None:
            raise DataNotFoundError(
                f"{path} has no results.csv; give the folder of a "
                "finished run of house-prices, mnist, digits or deep."
            )
        if missing := {"method", "seed", "convention", "theta_scale", "rir", "success"} - set(results):
            raise InvalidInputError(
                f"the results in {path} belong to another experiment, because they lack "
                f"{', '.join(sorted(missing))}; "
                "give a run of house-prices, mnist, digits or deep."
            )
        if results.empty:
            raise InvalidInputError(f"the results in {path} have no rows; run the experiment again.")
        return cls(name or path.name, path, results)

    @property
    def checksum(self) -> str:
        """SHA-256 of the results."""
        return hashlib.sha256(self.results.to_csv(index=False).encode()).hexdigest()

    @property
    def kind(self) -> Literal["pair", "digits", "deep"]:
        """What was run."""
        if "backbone" in self.results:
            return "deep"
        return "digits" if "pretrain_digit" in self.results else "pair"

    def published(self, backbone: str = "") -> dict[str, Published]:
        """Return the published table to hold the run against."""
        if self.kind != "deep":
            return TABLE_1 if self.kind == "pair" else TABLE_2
        summary = read_table(self.folder, "summary")
        if summary is None:
            return {}
        rows = summary[(summary["backbone"] == backbone) & (summary["method"] != INITIAL)]
        known = rows[rows["published_rir"].notna()].drop_duplicates("method").set_index("method")
        columns = [f"published_{name}" for name in Published._fields]
        return {name: Published(*row) for name, *row in known.reindex(columns=columns).itertuples()}


def spectral_verdicts(cells: pd.DataFrame) -> pd.DataFrame:
    """Measure the cells of a `spectra_table` over convention × rank tolerance × ε × scale of θ."""
    measured = [
        {
            "row": row,
            "gap": None if np.isnan(row["loss_gap"]) else row["loss_gap"],
            # The zeros at the end fill a column of the table.
            "spectra": {name: row[name][: max(1, np.count_nonzero(row[name]))] for name in SPECTRA},
        }
        for row in cells.assign(cell=_pairs(cells)).to_dict("records")
    ]
    rows: list[dict[str, Any]] = []
    for at in _MEASURES:
        for of in measured:
            found = immunization_from_spectra(
                cell_spectra(of["row"], of["spectra"], unit=at["scale"] == "unit"),
                convention=at["convention"],
                theta_scale=at["scale"],
                rtol=None if at["rtol"] == DEFAULT_RTOL else float(at["rtol"]),
                ridge=float(at["epsilon"]),
                loss_gap=of["gap"],
            )
            ranks = {"rank_pretrain": found.pretrain_after.rank, "rank_harmful": found.harmful_after.rank}
            verdict = {"rir": found.rir, "success": found.success, **ranks}
            rows.append({name: of["row"][name] for name in ("method", "seed", "cell")} | at | verdict)
    return pd.DataFrame(rows)


def _pairs(table: pd.DataFrame) -> pd.Series:
    """Return the pair of digits of each row; "" where there are none."""
    if "pretrain_digit" not in table:
        return pd.Series("", index=table.index)
    return table["pretrain_digit"].astype(str) + "-" + table["harmful_digit"].astype(str)


def run_verdicts(run: RunFolder) -> tuple[pd.DataFrame, list[str]]:
    """Return RIR and success of every cell in every setting of `AXES`; and what is left out, and why."""
    said = []
    if run.kind == "deep":
        table = _deep_results(run)
        said.append(
            "rank tolerance, ε, scale of θ and group size: results of nets contain one choice of each."
        )
        if "test" not in set(table["images"]):
            said.append("the run did not use test images.")
    elif (spectra := read_table(run.folder, "spectra")) is not None:
        table = spectral_verdicts(spectra)
    else:
        table = _tabled(run)
        said.append(
            f"its tables contain some tolerances and ε; {SPECTRA_TABLE}, "
            "which newer runs write, contains all."
        )
    return table.assign(success=table["success"].astype(float)), said


def _tabled(run: RunFolder) -> pd.DataFrame:
    """Return the verdicts that stand in the tables of a linear run."""
    varied = [read_table(run.folder, f"{name}_sensitivity") for name in ("rtol", "ridge")]
    parts = [run.results.assign(rtol=np.nan, ridge=np.nan), *(part for part in varied if part is not None)]
    table = pd.concat(parts, ignore_index=True)
    rtol, ridge = (table[name].map("{:g}".format) for name in ("rtol", "ridge"))
    found = table[["method", "seed", "convention", "rir", "success"]].assign(
        **FIXED | {"scale": table["theta_scale"]}, cell=_pairs(table)
    )
    found["rtol"] = rtol.where(rtol.isin(_RTOLS), DEFAULT_RTOL)
    found["epsilon"] = ridge.where(ridge.isin(_EPSILONS), FIXED["epsilon"])
    return found.drop_duplicates([*AXES, "method", "cell"], ignore_index=True)


def _deep_results(run: RunFolder) -> pd.DataFrame:
    """Return the verdicts that stand in the results of a deep run: both conventions, both kinds of images."""
    tables, unit = [], run.results[run.results["theta_scale"] == "unit"]
    for images, prefix in (("training", ""), ("test", "test_")):
        if f"{prefix}rir" not in unit:
            continue
        found = unit[["method", "seed", "convention"]].assign(
            **FIXED | {"images": images},
            cell=unit["backbone"],
            rir=unit[f"{prefix}rir"],
            success=unit[f"{prefix}success"],
        )
        tables.append(found)
        least, largest = f"{prefix}rir_least_draw", f"{prefix}rir_largest_draw"
        if {least, largest} <= set(unit):
            worst = {"rir": unit[least], "rival": unit[largest], "success": None}
            tables.append(found.assign(draw=WORST_DRAW, **worst))
    return pd.concat(tables, ignore_index=True)


def geometric_ridge_sweep(spectra: pd.DataFrame) -> pd.DataFrame:
    """Average RIR at unit scale and its ceiling geometrically over pairs: `method, seed, ridge, rir`."""
    verdicts = spectral_verdicts(spectra).query("convention == 'ridge' and scale == 'unit'")
    logs = verdicts.assign(rir=np.log(verdicts["rir"]), ridge=verdicts["epsilon"].astype(float))
    means = logs.groupby(["method", "seed", "ridge"], sort=False, as_index=False)["rir"].mean()
    pairs = spectra.drop_duplicates(["pretrain_digit", "harmful_digit"])
    bounds = {ridge: np.log(pairs[ridge_ceiling_column(ridge)]).mean() for ridge in CEILING_RIDGES}
    ceiling = pd.DataFrame({"method": "ceiling", "seed": -1, "ridge": bounds.keys(), "rir": bounds.values()})
    table = pd.concat([ceiling, means], ignore_index=True)
    return table.assign(rir=np.exp(table["rir"]))


def rank_tolerances(spectra: pd.DataFrame) -> pd.DataFrame:
    """Measure the cells of a run's table `spectra` in the compact convention at several rank tolerances."""
    verdicts = spectral_verdicts(spectra).query("convention == 'compact'")
    default = default_rtol(int(spectra["dimension"].iloc[0]))
    return verdicts.assign(rtol=verdicts["rtol"].replace(DEFAULT_RTOL, default).astype(float))
