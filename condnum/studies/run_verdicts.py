"""Verdicts of a finished run in every setting that its folder holds enough for; nothing is trained.

κ is read anew from spectra, extractors and nets that the run kept.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from condnum.deep.rir import DRAW_STRIDE, group_spectra
from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.files import read_record, read_table
from condnum.studies.cells import cached
from condnum.studies.deep_cells import GROUP_DRAWS, INITIAL
from condnum.studies.digit_cells import RIDGES
from condnum.studies.measure import SPECTRA, SPECTRA_TABLE, TABLE_1, TABLE_2, Published
from condnum.theory.immunization import LOSS_TOLERANCE, RATIO_TOLERANCE
from condnum.theory.spectra import PUBLISHED_RIDGE, condition_from_spectrum, default_rtol

DEFAULT_RTOL = "default"
#: Relative rank tolerances of float64 spectra; the default, D·eps, lies between the first two.
RTOLS = ("1e-15", DEFAULT_RTOL, "1e-12", "1e-10", "1e-08")
#: Of float32 features, whose default is about (D·eps)²; below it is round-off.
FEATURE_RTOLS = (DEFAULT_RTOL, "1e-07", "1e-06", "1e-05", "0.0001")
EPSILONS = tuple(f"{ridge:g}" for ridge in RIDGES)

#: The order of values in which one is next to another; of other axes that of their numbers.
ORDER: dict[str, tuple[Any, ...]] = {
    "convention": ("compact", "ridge"),
    "rtol": (*RTOLS, *FEATURE_RTOLS[1:]),
    "epsilon": EPSILONS,
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
    "group_size": 0,
    "draw": 0,
    "budget": "own",
}

#: What has to be chosen before a claim has a verdict.
AXES = ("convention", *FIXED, "seed")


def _measures(rtols: Sequence[str]) -> list[dict[str, Any]]:
    """Return what κ has to be told, without combinations that it does not see."""
    told: list[dict[str, str]] = [{"convention": "compact", "rtol": rtol} for rtol in rtols]
    for epsilon in EPSILONS:
        told += [{"convention": "ridge", "epsilon": epsilon, "scale": scale} for scale in ORDER["scale"]]
    return [FIXED | one for one in told]


#: Coordinates of a net in the results of a deep run.
NET = ["backbone", "seed", "method"]

#: The draw in which a method has its least RIR of all draws, and its rivals their largest.
WORST_DRAW = -1

#: Parameters beside data and budget by which two runs are of one experiment.
_SAME = ("dataset", "features", "rows", "labels", "loss_rows", "pretrain", "harmful", "limit", "weights",
         "preset", "image_size", "pretrain_epochs", "groups", "group_size")  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """The folder of a finished run."""

    name: str
    folder: Path
    results: pd.DataFrame
    provenance: Mapping[str, Any]  # {} of tables that were saved from Python

    @classmethod
    def read(cls, folder: str | Path, name: str = "") -> "RunFolder":
        """Read results and record, or say why they cannot be judged."""
        path = Path(folder).expanduser()
        results = read_table(path, "results")
        if results is None:
            raise DataNotFoundError(
                f"{path} holds no results.csv; give the folder of a finished run, as `condnum run "
                "house-prices`, mnist, digits or deep leave it with --out."
            )
        if missing := {"method", "seed", "convention", "gauge", "rir", "success"} - set(results):
            raise InvalidInputError(
                f"the results in {path} are of another experiment: they lack {', '.join(sorted(missing))}; "
                "give a run of house-prices, mnist, digits or deep."
            )
        if results.empty:
            raise InvalidInputError(f"the results in {path} have no rows: run it again.")
        return cls(name or path.name, path, results, read_record(path))

    @property
    def kind(self) -> Literal["pair", "digits", "deep"]:
        """What was run."""
        if "backbone" in self.results:
            return "deep"
        return "digits" if "pretrain_digit" in self.results else "pair"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What was asked of the run."""
        return dict(self.provenance.get("parameters", {}))

    @property
    def budget(self) -> str:
        """Epochs of every method, or `own`."""
        return str(self.parameters.get("epochs") or FIXED["budget"])

    @property
    def experiment(self) -> str:
        """Equal for runs of one experiment that differ in budget, methods or seeds."""
        same = {name: self.parameters.get(name) or None for name in _SAME}
        return json.dumps([self.kind, sorted(self.provenance.get("data", {}).items()), same], default=str)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of results and record."""
        content = self.results.to_csv(index=False) + json.dumps(self.provenance, sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()

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
    """Measure all cells of a `spectra_table` at once over convention × rank tolerance × ε × scale of θ."""
    D = int(cells["dimension"].iloc[0])
    # The zeros at their ends count in no numerical rank, so that spectra of all ranks are one batch.
    spectra = {name: torch.from_numpy(np.stack(cells[name].tolist())) for name in SPECTRA}
    squared_norm = torch.from_numpy(cells["squared_norm"].to_numpy(np.float64, copy=True))
    gap = cells["loss_gap"].to_numpy(np.float64)
    named = cells[["method", "seed"]].assign(cell=_pairs(cells))
    tables = []
    for at in _measures(RTOLS):
        scale = D / squared_norm if at["scale"] == "unit" else torch.ones(len(cells))
        found = {
            name: condition_from_spectrum(
                sigma if name.endswith("before") else sigma * scale[:, None],
                convention=at["convention"],
                rtol=default_rtol(D) if at["rtol"] == DEFAULT_RTOL else float(at["rtol"]),
                ridge=float(at["epsilon"]),
                dimension=D,
            )
            for name, sigma in spectra.items()
        }
        kappa = {name: number[0].numpy() for name, number in found.items()}
        ranks = {name: number[3].numpy() for name, number in found.items()}
        harmful = kappa["harmful_after"] / kappa["harmful_before"]
        pretrain = kappa["pretrain_after"] / kappa["pretrain_before"]
        # As `Immunization.success`: an unknown clause (c) holds where no direction of D_P is lost.
        whole = ranks["pretrain_after"] >= ranks["pretrain_before"]
        kept = np.where(np.isnan(gap), whole, gap <= LOSS_TOLERANCE)
        success = (harmful > 1 + RATIO_TOLERANCE) & ~(pretrain > 1 + RATIO_TOLERANCE) & kept
        tables.append(named.assign(**at, rir=harmful / pretrain, success=success))
    return pd.concat(tables, ignore_index=True)


def _pairs(table: pd.DataFrame) -> pd.Series:
    """Return the pair of digits of each row; "" where there are none."""
    if "pretrain_digit" not in table:
        return pd.Series("", index=table.index)
    return table["pretrain_digit"].astype(str) + "-" + table["harmful_digit"].astype(str)


def run_verdicts(run: RunFolder) -> tuple[pd.DataFrame, list[str]]:
    """Return RIR and success of every cell of a run in every setting that it stored enough for.

    A row has the columns of `AXES`, `method` and `cell`. Beside the table: what is left out, and why.
    """
    said = []
    if run.kind == "deep":
        table = _deep_results(run)
        said.append("rank tolerance, ε, scale of θ and group size need the features of the run's nets.")
        if "test" not in set(table["images"]):
            said.append("the run did not measure test images.")
    elif (spectra := read_table(run.folder, "spectra")) is not None:
        table = spectral_verdicts(spectra)
    else:
        table = _tabled(run)
        said.append(
            f"its tables hold a part of tolerances and ε; {SPECTRA_TABLE}, which a run leaves now, has all."
        )
    return table.assign(budget=run.budget, success=table["success"].astype(float)), said


def _tabled(run: RunFolder) -> pd.DataFrame:
    """Return the verdicts that stand in the tables of a linear run."""
    varied = [read_table(run.folder, f"{name}_sensitivity") for name in ("rtol", "ridge")]
    parts = [run.results.assign(rtol=np.nan, ridge=np.nan), *(part for part in varied if part is not None)]
    table = pd.concat(parts, ignore_index=True)
    rtol, ridge = (table[name].map("{:g}".format) for name in ("rtol", "ridge"))
    found = table[["method", "seed", "convention", "rir", "success"]].assign(
        **FIXED | {"scale": table["gauge"]}, cell=_pairs(table)
    )
    found["rtol"] = rtol.where(rtol.isin(RTOLS), DEFAULT_RTOL)
    found["epsilon"] = ridge.where(ridge.isin(EPSILONS), FIXED["epsilon"])
    return found.drop_duplicates([*AXES, "method", "cell"], ignore_index=True)


def _deep_results(run: RunFolder) -> pd.DataFrame:
    """Return the verdicts that stand in the results of a deep run: both conventions, both kinds of images."""
    tables, unit = [], run.results[run.results["gauge"] == "unit"]
    for images, prefix in (("training", ""), ("test", "test_")):
        if f"{prefix}rir" not in unit:
            continue
        found = unit[["method", "seed", "convention"]].assign(
            **FIXED | {"images": images, "group_size": unit["group_size"]},
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


# Nets that a deep run kept.


@dataclass(frozen=True)
class KeptNets:
    """The nets of a deep run, to run over its images once more."""

    run: RunFolder
    study: Any  # DeepNets
    tasks: Any  # DeepTasks
    paths: Mapping[tuple[str, int, str], Path]  # by backbone, seed and method, also those of θ₀

    @classmethod
    def of(cls, run: RunFolder) -> "KeptNets":
        """Find nets and images again, by the parameters that the run recorded, or say what is missing."""
        from condnum.studies.deep_nets import DeepNets, kept_model

        nets = run.results[NET].drop_duplicates()
        paths = {
            net: run.folder / kept_model(*net, alone=len(nets) == 2)
            for net in nets.itertuples(index=False, name=None)
        }
        gone = [path for path in paths.values() if not path.is_file()]
        if gone:
            raise DataNotFoundError(f"there is no {gone[0]}")
        known = {field.name for field in fields(DeepNets)}
        given = {name: value for name, value in run.parameters.items() if name in known}
        study = DeepNets.from_parameters(**given | {"device": "auto"})
        tasks = study.load()
        if not set(tasks.checksums.values()) <= set(run.provenance.get("data", {}).values()):
            raise DataNotFoundError(
                f"the images of {', '.join(tasks.checksums)} are others than those of the run"
            )
        return cls(run, study, tasks, paths)

    @property
    def methods(self) -> list[tuple[str, int, str]]:
        """Backbone, seed and method of each immunized net."""
        return [net for net in self.paths if net[2] != INITIAL]

    def features(self, backbone: str, seed: int, method: str) -> dict[str, tuple[Any, ...]]:
        """Return the features of θ₀ and θ_I on training and on test images, in the order of `ROLES`."""
        from condnum.deep.backbone import load_backbone

        def features_of(name: str) -> Any:
            model = load_backbone(self.paths[backbone, seed, name])
            return self.study.features(self.tasks, model, seed)

        key = ("features of θ₀", str(self.run.folder), backbone, seed)
        models = cached(key, lambda: features_of(INITIAL)), features_of(method)
        names = {"training": ("pretrain", "harmful"), "test": ("pretrain_test", "harmful_test")}
        return {
            images: tuple(getattr(model, task) for task in tasks for model in models)
            for images, tasks in names.items()
        }


def feature_verdicts(features: Sequence[Any], *, groups: int, group_size: int, seed: int) -> pd.DataFrame:
    """Measure RIR_θ0 over group sizes, draws, conventions, tolerances, ε and scales.

    The features are those of `ROLES`. The run's own group size comes first, half, twice and a quarter of it
    beside it; the draws are those of the run.
    """
    rows, few = [], min(map(len, features))
    own = min(group_size, few)
    for size in dict.fromkeys((own, own // 4, own // 2, 2 * own)):
        for draw in range(GROUP_DRAWS if 2 <= size <= few else 0):
            spectra = group_spectra(features, groups=groups, group_size=size, seed=seed + DRAW_STRIDE * draw)
            for at in _measures(FEATURE_RTOLS):
                estimate = spectra.estimate(
                    at["convention"],
                    rtol=None if at["rtol"] == DEFAULT_RTOL else float(at["rtol"]),
                    ridge=float(at["epsilon"]),
                    gauge=at["scale"],
                )
                found = {"group_size": size, "draw": draw, "rir": estimate.rir, "success": estimate.success}
                rows.append(at | found)
    return pd.DataFrame(rows)
