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
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import torch

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.files import RECORD
from condnum.studies.cells import cached
from condnum.studies.deep_cells import DRAW_STRIDE, DRAWS, INITIAL
from condnum.studies.digit_cells import RIDGES
from condnum.studies.measure import SPECTRA, SPECTRA_TABLE, TABLE_1, TABLE_2, Published
from condnum.theory.immunization import LOSS_TOLERANCE, RATIO_TOLERANCE
from condnum.theory.spectra import PUBLISHED_RIDGE, condition_from_spectrum, default_rtol

#: What has to be chosen before a claim has a verdict. Compact κ knows no ε and no scale of θ, ridge κ no rank
#: tolerance: there these stand at their default, and make no settings of their own.
AXES = ("convention", "rtol", "epsilon", "scale", "images", "group_size", "draw", "budget", "seed")

DEFAULT_RTOL = "default"
#: Relative rank tolerances of float64 spectra; the default, D·eps, lies between the first two.
RTOLS = ("1e-15", DEFAULT_RTOL, "1e-12", "1e-10", "1e-08")
#: Of float32 features, whose default is about (D·eps)²; below it is round-off.
FEATURE_RTOLS = (DEFAULT_RTOL, "1e-07", "1e-06", "1e-05", "0.0001")
EPSILONS = tuple(f"{ridge:g}" for ridge in RIDGES)

#: The order of values in which one is next to another; of other axes that of their numbers.
ORDER: dict[str, tuple[Any, ...]] = {
    "convention": ("compact", "ridge"),
    "rtol": ("1e-15", DEFAULT_RTOL, "1e-12", "1e-10", "1e-08", "1e-07", "1e-06", "1e-05", "0.0001"),
    "epsilon": EPSILONS,
    "scale": ("unit", "as_trained"),
    "images": ("training", "test"),
}

#: What stands where a choice has no meaning, or was not varied.
FIXED: dict[str, Any] = {
    "rtol": DEFAULT_RTOL,
    "epsilon": f"{PUBLISHED_RIDGE:g}",
    "scale": "unit",
    "images": "training",
    "group_size": 0,
    "draw": 0,
    "budget": "own",
}


def _measures(rtols: Sequence[str]) -> list[dict[str, Any]]:
    """Return what κ has to be told, without combinations that it does not see."""
    ridged = [{"convention": "ridge", "epsilon": e, "scale": s} for e in EPSILONS for s in ORDER["scale"]]
    return [{"convention": "compact", "rtol": rtol} for rtol in rtols] + ridged


#: The draw in which a method has its least RIR of all draws, and its rivals their largest.
WORST_DRAW = -1

#: Parameters beside data and budget by which two runs are of one experiment.
_SAME = ("dataset", "features", "rows", "labels", "pretrain", "harmful", "limit", "weights", "preset",
         "image_size", "pretrain_epochs", "group_size")  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """The folder of a finished run."""

    name: str
    folder: Path
    results: pd.DataFrame
    provenance: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | Path, name: str = "") -> "RunFolder":
        """Read results and record; cells are left for later.

        Raises:
            DataNotFoundError: No results.
            InvalidInputError: Of another experiment, or damaged.
        """
        path = Path(folder).expanduser()
        found = run_table(path, "results")
        if found is None:
            raise DataNotFoundError(
                f"{path} holds no results.csv; give the folder of a finished run, as `condnum run "
                "house-prices`, mnist, digits or deep leave it with --out."
            )
        missing = {"method", "seed", "convention", "gauge", "rir", "success"} - set(found)
        if missing:
            raise InvalidInputError(
                f"the results in {path} are of another experiment: they lack {', '.join(sorted(missing))}; "
                "give a run of house-prices, mnist, digits or deep."
            )
        if found.empty:
            raise InvalidInputError(f"the results in {path} have no rows: run it again.")
        try:
            known = json.loads((path / RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:  # tables that were saved from Python
            known = {}
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"{path / RECORD} is damaged ({error}); run it again.") from error
        return cls(name or path.name, path, found, known)

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
        summary = run_table(self.folder, "summary")
        if summary is None:
            return {}
        rows = summary[(summary["backbone"] == backbone) & summary["published_rir"].notna()]
        columns = [f"published_{name}" for name in Published._fields]
        rows = (
            rows[rows["method"] != "initial"].drop_duplicates("method").reindex(columns=["method", *columns])
        )
        return {name: Published(*row) for name, *row in rows.itertuples(index=False)}


def run_table(folder: Path, name: str) -> pd.DataFrame | None:
    """Read a table of a run, if it is there."""
    for path in (folder / f"{name}{suffix}" for suffix in (".csv", ".csv.gz", ".npz")):
        if path.is_file():
            try:
                if path.suffix != ".npz":
                    return pd.read_csv(path)
                with np.load(path, allow_pickle=False) as arrays:
                    return pd.DataFrame({column: list(arrays[column]) for column in arrays.files})
            except (OSError, ValueError, BadZipFile) as error:
                raise InvalidInputError(f"{path} is damaged ({error}); run it again.") from error
    return None


def spectral_verdicts(cells: pd.DataFrame) -> pd.DataFrame:
    """Measure cells that keep spectra over convention × rank tolerance × ε × scale of θ, all at once.

    Args:
        cells: Of one input dimension D, as `spectra_table` has them.

    Returns:
        A row per cell and setting: `method`, `seed`, `cell` (its pair), the axes of κ, `rir`, `success`.
    """
    D = int(cells["dimension"].iloc[0])
    # The zeros at their ends count in no numerical rank, so that spectra of all ranks are one batch.
    spectra = {name: torch.from_numpy(np.stack(cells[name].tolist())) for name in SPECTRA}
    squared_norm = torch.from_numpy(cells["squared_norm"].to_numpy(np.float64, copy=True))
    kept = ~(cells["loss_gap"].to_numpy(np.float64) > LOSS_TOLERANCE)  # an unknown one counts as kept
    named = cells[["method", "seed"]].assign(cell=_pairs(cells))
    tables = []
    for given in _measures(RTOLS):
        at = FIXED | given
        scale = D / squared_norm if at["scale"] == "unit" else torch.ones(len(cells))
        kappa = {
            name: condition_from_spectrum(
                sigma if name.endswith("before") else sigma * scale[:, None],
                convention=at["convention"],
                rtol=default_rtol(D) if at["rtol"] == DEFAULT_RTOL else float(at["rtol"]),
                ridge=float(at["epsilon"]),
                dimension=D,
            )[0].numpy()
            for name, sigma in spectra.items()
        }
        harmful = kappa["harmful_after"] / kappa["harmful_before"]
        pretrain = kappa["pretrain_after"] / kappa["pretrain_before"]
        success = (harmful > 1 + RATIO_TOLERANCE) & ~(pretrain > 1 + RATIO_TOLERANCE) & kept
        tables.append(named.assign(**at, rir=harmful / pretrain, success=success))
    return pd.concat(tables, ignore_index=True)


def _pairs(table: pd.DataFrame) -> pd.Series:
    """Return the pair of digits of each row; "" where there are none."""
    if "pretrain_digit" not in table:
        return pd.Series("", index=table.index)
    return table["pretrain_digit"].astype(str) + "-" + table["harmful_digit"].astype(str)


def run_verdicts(run: RunFolder) -> tuple[pd.DataFrame, list[str]]:
    """Return RIR and verdict of every cell of a run in every setting that it stored enough for.

    Returns:
        A row per method, cell and setting, with the columns of `AXES`; and what was left out, and why.
    """
    if run.kind == "deep":
        table = _deep_results(run)
        said = ["rank tolerance, ε, scale of θ and group size need the features of the run's nets."]
        said += [] if "test" in set(table["images"]) else ["the run did not measure test images."]
        return table.assign(budget=run.budget), said
    spectra = run_table(run.folder, "spectra")
    if spectra is not None:
        return spectral_verdicts(spectra).assign(budget=run.budget), []
    said = [f"its tables hold a part of tolerances and ε; {SPECTRA_TABLE}, which a run leaves now, has all."]
    return _tabled(run).assign(budget=run.budget), said


def _tabled(run: RunFolder) -> pd.DataFrame:
    """Return the verdicts that stand in the tables of a linear run."""
    found = [run.results.assign(rtol=np.nan, ridge=np.nan)]
    for name in ("rtol", "ridge"):
        extra = run_table(run.folder, f"{name}_sensitivity")
        if extra is not None:
            found.append(extra)
    table = pd.concat(found, ignore_index=True)
    labels = {f"{float(value):g}" if value != DEFAULT_RTOL else "" for value in RTOLS}
    rtol, ridge = (table[name].map("{:g}".format) for name in ("rtol", "ridge"))
    named = table[["method", "seed", "convention", "rir", "success"]].assign(
        cell=_pairs(table),
        **{name: FIXED[name] for name in ("images", "group_size", "draw")},
        rtol=rtol.where(rtol.isin(labels), DEFAULT_RTOL),
        epsilon=ridge.where(ridge.isin(EPSILONS), FIXED["epsilon"]),
        scale=table["gauge"],
    )
    return named.drop_duplicates([*AXES[:-2], "method", "seed", "cell"], ignore_index=True)


def _deep_results(run: RunFolder) -> pd.DataFrame:
    """Return the verdicts that stand in the results of a deep run: both conventions, both kinds of images."""
    tables, unit = [], run.results[run.results["gauge"] == "unit"]
    for images, prefix in (("training", ""), ("test", "test_")):
        if f"{prefix}rir" not in unit:
            continue
        own = unit[["method", "seed", "convention"]].assign(
            cell=unit["backbone"],
            **FIXED | {"images": images, "group_size": unit["group_size"]},
            rir=unit[f"{prefix}rir"],
            success=unit[f"{prefix}success"],
        )
        tables.append(own)
        extremes = [f"{prefix}rir_least_draw", f"{prefix}rir_largest_draw"]
        if set(extremes) <= set(unit):
            low, high = (unit[name] for name in extremes)
            tables.append(own.assign(draw=WORST_DRAW, rir=low, rival=high, success=None))
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
        """Find nets and images again, by the parameters that the run recorded.

        Raises:
            CondnumError: They are not there, or the images are not those of the run.
        """
        from condnum.studies.deep_nets import DeepNets, kept_model

        cells = run.results[["backbone", "seed", "method"]].drop_duplicates()
        paths = {
            (str(name), int(seed), str(method)): run.folder
            / kept_model(str(name), seed, str(method), alone=len(cells) == 2)
            for name, seed, method in cells.itertuples(index=False)
        }
        gone = [str(path) for path in paths.values() if not path.is_file()]
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

        def of(name: str) -> Any:
            path = self.paths[backbone, seed, name]
            return self.study.features(self.tasks, load_backbone(path), seed)

        before, after = (
            cached(("features of θ₀", str(self.run.folder), backbone, seed), lambda: of(INITIAL)),
            of(method),
        )
        names = {"training": ("pretrain", "harmful"), "test": ("pretrain_test", "harmful_test")}
        return {
            images: tuple(getattr(model, task) for task in tasks for model in (before, after))
            for images, tasks in names.items()
        }


def feature_verdicts(features: Sequence[Any], *, groups: int, group_size: int, seed: int) -> pd.DataFrame:
    """Measure RIR_θ0 over group sizes, draws, conventions, tolerances, ε and scales.

    Args:
        features: Of θ₀ and θ_I, in the order of `ROLES`.
        groups: Number of groups, in every setting.
        group_size: The run's own, which comes first; half, twice and a quarter of it beside it.
        seed: Of the draws, which are those of the run.

    Returns:
        A row per setting: six axes, `rir`, `success`.
    """
    from condnum.deep.rir import group_spectra

    rows, few = [], min(map(len, features))
    own = min(group_size, few)
    for size in dict.fromkeys((own, own // 4, own // 2, 2 * own)):
        for draw in range(DRAWS if 2 <= size <= few else 0):
            spectra = group_spectra(features, groups=groups, group_size=size, seed=seed + DRAW_STRIDE * draw)
            for given in _measures(FEATURE_RTOLS):
                at = FIXED | given
                estimate = spectra.estimate(
                    at["convention"],
                    rtol=None if at["rtol"] == DEFAULT_RTOL else float(at["rtol"]),
                    ridge=float(at["epsilon"]),
                    gauge=at["scale"],
                )
                row = at | {"group_size": size, "draw": draw, "rir": estimate.rir}
                rows.append(row | {"success": float(estimate.success)})
    return pd.DataFrame(rows)
