"""The audit as a study: columns, second moments, spectra, alignment, bootstrap and attackers are its cells.

An audit that is interrupted goes on from the cells that it finished: a pass over the rows leaves D×D sums.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit.attacks import (
    PANEL_BUDGET,
    AttackSection,
    Kind,
    TargetsLike,
    attack_section,
    one_hot,
    read_targets,
)
from condnum.audit.intervals import bootstrap, estimates, intervals
from condnum.audit.measures import (
    FRONT,
    OPTIMAL,
    RAW,
    ClauseC,
    Directions,
    ThetaLike,
    clause_c,
    comparisons,
    covariance_rtol,
    cut,
    directions,
    kappa_rows,
    measures_table,
    read_extractors,
    ridge_sweep,
    rtol_sweep,
    spectra_on,
    target_moments,
    with_yardsticks,
)
from condnum.audit.moments import (
    SecondMoments,
    TaskFacts,
    cluster_moments,
    group_count,
    second_moments,
    task_facts,
)
from condnum.audit.result import Audit
from condnum.data.digits import load_small_digits
from condnum.data.feature_pair import complete_targets, look_at, match_streams, open_pair
from condnum.data.feature_stream import MAX_DIMENSION, FeatureStream, array_stream, open_feature_stream
from condnum.data.resolver import user_cache
from condnum.errors import InvalidInputError
from condnum.files import sha256_file
from condnum.machine import own_peak
from condnum.probing.attackers import AttackBudget
from condnum.probing.report import AttackReport
from condnum.progress import report_event
from condnum.studies.cells import Cell, CellResult, ResultStore, checked_result
from condnum.studies.executors import Executor
from condnum.studies.study import Result, SerialExecutor, Study, StudyRun, SweepError, at_least
from condnum.theory.ceiling import RirCeiling, ridge_convention_ceiling, rir_ceiling
from condnum.theory.spectra import PUBLISHED_RIDGE, CovarianceRange, default_rtol

#: Replicates of the bootstrap in one cell.
BATCH = 50

#: Both tasks by what they are called in results and in words.
TASKS = {"pretrain": "D_P", "harmful": "D_H"}

#: A matrix, where to find one, or a stream of one.
FeaturesLike = str | os.PathLike[str] | NDArray[Any] | FeatureStream


@dataclass(eq=False)
class AuditData:
    """What an audit reads, opened, and the cells that this process has finished."""

    pretrain: FeatureStream
    harmful: FeatureStream
    notes: Sequence[str]  # what was done to match their columns
    extractors: Mapping[str, NDArray[np.float64]]  # those that were given
    targets: NDArray[Any] | None
    pretrain_targets: NDArray[Any] | None
    budget: AttackBudget | None = None  # of each attacker; None: that of an audit
    threads: int | None = None  # at a time; None: one a core
    done: dict[Cell, CellResult] = field(default_factory=dict)

    @cached_property
    def checksum(self) -> str:
        """Hash of what identifies files (size, time of change, inode) and of arrays' contents."""
        from joblib import hash as content_hash

        streams = [
            (stream.source, stream.columns, stream.stamp or list(stream.raw_blocks()))
            for stream in (self.pretrain, self.harmful)
        ]
        given = dict(self.extractors), self.targets, self.pretrain_targets, self.budget
        return str(content_hash([*streams, *given]))

    def before(self, cell: Cell, stage: str) -> CellResult:
        """Return what an earlier stage found: now, or in the run that this one resumes."""
        start = cell.after
        while start is not None and start["stage"] != stage:
            start = start.after
        assert start is not None  # every stage comes after those that it asks for
        if start not in self.done:
            with ResultStore(start.folder, mode="read") as store:
                found = store.get(start.key)
            assert found is not None  # it would have been computed
            self.done[start] = found
        return self.done[start]


def open_audit(
    pretrain: FeaturesLike,
    harmful: FeaturesLike,
    *,
    theta: ThetaLike | None = None,
    theta_0: ThetaLike | None = None,
    theta_i: ThetaLike | None = None,
    targets: TargetsLike | None = None,
    pretrain_targets: TargetsLike | None = None,
    kind: Kind = "auto",
    key: str = "",
    drop: str = "",
    max_dimension: int = MAX_DIMENSION,
) -> AuditData:
    """Open features, extractors and targets, and refuse those that do not fit; see `audit`."""
    if isinstance(pretrain, str | os.PathLike) and isinstance(harmful, str | os.PathLike):
        P, H, notes = open_pair(pretrain, harmful, key=key, drop=drop, max_dimension=max_dimension)
    else:
        opened = [
            given
            if isinstance(given, FeatureStream)
            else open_feature_stream(given, max_dimension=max_dimension)
            if isinstance(given, str | os.PathLike)
            else array_stream(given, max_dimension=max_dimension)
            for given in (pretrain, harmful)
        ]
        P, H, notes = match_streams(opened[0], opened[1], drop=drop)
    return AuditData(
        P,
        H,
        notes,
        read_extractors(theta, theta_0, theta_i, P.dimension),
        None if targets is None else read_targets(targets, kind=kind),
        None
        if pretrain_targets is None
        else read_targets(pretrain_targets, kind=kind, name="pretrain_targets"),
    )


class BackboneFeatures(NamedTuple):
    """Features of both tasks, with the labels of their images."""

    pretrain: FeatureStream
    harmful: FeatureStream
    pretrain_labels: NDArray[np.int64]  # (N_P,)
    harmful_labels: NDArray[np.int64]  # (N_H,)


def backbone_features(
    name: str,
    pretrain_images: str | os.PathLike[str],
    harmful_images: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] = "",
    cache: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    device: str = "auto",
    seed: int = 0,
) -> BackboneFeatures:
    """Extract pooled features of un-augmented images with a timm model (Eq. 18).

    Images are a folder or a name of `open_images`, `limit` of a class at most. `weights` is `pretrained`,
    which downloads timm's, a file with a state dict, or empty: drawn from `seed`. Features are kept in
    `cache`, if there is one.
    """
    from condnum.deep import Backbone, cached_features, evaluation_transform, open_images

    pretrained: bool | str = True if os.fspath(weights) == "pretrained" else os.fspath(weights) or False
    backbone = Backbone(name, pretrained=pretrained, seed=seed)
    transform, streams, labels = evaluation_transform(backbone), [], []
    for place in (pretrain_images, harmful_images):
        images = open_images(place, limit=limit, seed=seed)
        found = cached_features(backbone, images, transform, cache=cache, name=name, device=device)
        streams.append(array_stream(found.values, name=Path(place).name))
        labels.append(found.labels)
    return BackboneFeatures(streams[0], streams[1], labels[0], labels[1])


@dataclass(frozen=True)
class FeatureAudit(Study, name="audit"):
    """An audit of features in files or of a backbone; without any, of the embedded digits.

    Examples:
        >>> FeatureAudit(pretrain="P.npy")
        Traceback (most recent call last):
            ...
        condnum.errors.InvalidInputError: pretrain was given without harmful: an audit compares two tasks.
    """

    pretrain: str = ""
    harmful: str = ""
    theta: str = ""
    theta_0: str = ""
    theta_i: str = ""
    targets: str = ""
    pretrain_targets: str = ""
    kind: Kind = "auto"
    key: str = ""
    drop: str = ""
    standardise: bool = False
    backbone: str = ""
    pretrain_images: str = ""
    harmful_images: str = ""
    weights: str = ""
    ridge: float = PUBLISHED_RIDGE
    rtol: float | None = None
    bootstrap: int = 200
    attackers: bool = True
    seed: int = 0
    scheduler: str = ""
    max_dimension: int = MAX_DIMENSION

    def check(self) -> None:
        """Refuse what cannot run, before anything is read."""
        for first, second in (("pretrain", "harmful"), ("pretrain_images", "harmful_images")):
            if bool(getattr(self, first)) != bool(getattr(self, second)):
                given, missing = (first, second) if getattr(self, first) else (second, first)
                raise InvalidInputError(f"{given} was given without {missing}: an audit compares two tasks.")
        if bool(self.backbone) != bool(self.pretrain_images):
            raise InvalidInputError(
                "a backbone and the images of both tasks belong together: give --backbone, --pretrain-images "
                "and --harmful-images."
            )
        if self.backbone and self.pretrain:
            raise InvalidInputError("give files of features, or a backbone with images, not both.")
        if not self.ridge > 0:
            raise InvalidInputError(f"ridge must be positive and finite, got {self.ridge}.")
        if self.rtol is not None and not 0 <= self.rtol < 1:
            raise InvalidInputError(f"rtol must lie in [0, 1), got {self.rtol}.")
        if self.bootstrap != 0 and self.bootstrap < 20:
            raise InvalidInputError(
                f"replicates must be 0 (no bootstrap) or at least 20, got {self.bootstrap}: fewer make no "
                "interval."
            )
        at_least(0)("seed", self.seed)

    def load(self) -> AuditData:
        """Open the files, whose rows are read later; features of a backbone are kept in the user cache."""
        features: tuple[Any, ...] = (self.pretrain, self.harmful, None, None)
        if self.backbone:
            places, cache = (self.pretrain_images, self.harmful_images), user_cache() / "features"
            features = backbone_features(
                self.backbone, *places, weights=self.weights, cache=cache, seed=self.seed
            )
        elif not self.pretrain:
            digits = load_small_digits()
            X, labels = np.asarray(digits.images).reshape(len(digits), -1), np.asarray(digits.labels)
            low = labels < 5
            streams = array_stream(X[low], name="digits 0-4"), array_stream(X[~low], name="digits 5-9")
            features = (*streams, labels[low], labels[~low])
        P, H, pretrain_labels, harmful_labels = features
        return open_audit(
            P, H, theta=self.theta or None, theta_0=self.theta_0 or None, theta_i=self.theta_i or None,
            targets=self.targets or harmful_labels, kind=self.kind, key=self.key, drop=self.drop,
            pretrain_targets=self.pretrain_targets or pretrain_labels, max_dimension=self.max_dimension,
        )  # fmt: skip

    def cells(self, data: Any) -> list[Cell]:
        """List the stages, each after those whose results it needs; the bootstrap in batches."""
        columns = Cell({"stage": "columns"}, {"standardise": self.standardise})
        pretrain = Cell({"stage": "rows of D_P"}, {"seed": self.seed}, columns)
        harmful = Cell({"stage": "rows of D_H"}, {}, pretrain)
        spectra = Cell({"stage": "spectra"}, {"ridge": self.ridge, "rtol": self.rtol}, harmful)
        cells = [columns, pretrain, harmful, spectra, Cell({"stage": "alignment"}, {}, spectra)]
        for first in range(0, self.bootstrap, BATCH):
            count = min(BATCH, self.bootstrap - first)
            cells.append(Cell({"stage": "bootstrap", "first": first}, {"count": count}, spectra))
        if self.attackers:
            cells.append(Cell({"stage": "attackers"}, {"kind": self.kind}, spectra))
        return cells

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Compute one stage after the other here: each has as many threads as there are cores."""
        return SerialExecutor()

    def run(self, data: Any = None, **options: Any) -> StudyRun:
        """Audit, or go on where an audit was interrupted; without spectra there is nothing to show."""
        run = super().run(data, **options)
        for cell, error in run.report.failures.items():
            if cell["stage"] not in ("alignment", "bootstrap", "attackers"):
                raise SweepError(f"the audit ended at its stage '{cell['stage']}' with {error}")
        return run

    def compute(self, data: AuditData, cell: Cell) -> CellResult:
        """Compute a stage."""
        stages = {
            "columns": self._columns, "rows of D_P": self._moments, "rows of D_H": self._moments,
            "spectra": self._spectra, "alignment": self._alignment, "bootstrap": self._bootstrap,
            "attackers": self._attackers,
        }  # fmt: skip
        started = time.perf_counter()
        row, arrays = stages[cell["stage"]](data, cell)
        result = checked_result((row | {"seconds": time.perf_counter() - started}, arrays))
        data.done[cell] = result
        return result

    def _columns(self, data: AuditData, cell: Cell) -> CellResult:
        """Look at all rows once: gaps, scales, odd columns."""
        pair = look_at(
            data.pretrain, data.harmful, data.notes, standardise=self.standardise, targets=data.targets
        )
        if data.pretrain_targets is not None:
            complete_targets(data.pretrain_targets, pair.surveys[0], data.pretrain)  # are there as many?
        arrays = {
            f"{name}_{task}": getattr(survey, name)
            for task, survey in zip(TASKS, pair.surveys, strict=True)
            for name in ("complete", "mean", "deviation")
        }
        return CellResult({"columns": as_text(pair.columns), "notes": json.dumps(pair.notes)}, arrays)

    def _stream(self, data: AuditData, cell: Cell, task: str) -> FeatureStream:
        """Return the rows of a task, standardised if that was asked for."""
        stream, seen = getattr(data, task), data.before(cell, "columns").arrays
        if not self.standardise:
            return stream
        return replace(stream, centre=seen[f"mean_{task}"], scale=seen[f"deviation_{task}"])

    def _moments(self, data: AuditData, cell: Cell) -> CellResult:
        """Sum the second moments of a task's rows."""
        which = ("rows of D_P", "rows of D_H").index(cell["stage"])
        stream = self._stream(data, cell, list(TASKS)[which])
        groups = group_count(stream.dimension)
        seed = int(np.random.SeedSequence([self.seed, which]).generate_state(1)[0])
        if self.scheduler:
            moments = cluster_moments(stream, self.scheduler, groups=groups, seed=seed)
        else:
            moments = second_moments(
                stream, groups=groups, seed=seed, threads=data.threads,
                on_rows=lambda done, total: report_event(stage=cell["stage"], step=done, steps=total),
            )  # fmt: skip
        arrays = {"groups": moments.groups} | ({} if moments.kept is None else {"kept": moments.kept})
        return CellResult({"rows": moments.rows}, arrays)

    @staticmethod
    def _both_moments(data: AuditData, cell: Cell) -> list[SecondMoments]:
        """Return the second moments of both tasks."""
        found = [data.before(cell, f"rows of {name}") for name in TASKS.values()]
        return [SecondMoments(int(row["rows"] or 0), a["groups"], a.get("kept")) for row, a in found]

    @staticmethod
    def _extractors(data: AuditData, cell: Cell) -> dict[str, NDArray[np.float64] | None]:
        """Return the extractors that were given between the raw features and the closed forms."""
        closed = data.before(cell, "spectra").arrays
        return {RAW: None, **data.extractors, OPTIMAL: closed[OPTIMAL], FRONT: closed[FRONT]}

    def _spectra(self, data: AuditData, cell: Cell) -> CellResult:
        """Measure both covariances, every extractor, and how both move with the conventions."""
        streams = [self._stream(data, cell, task) for task in TASKS]
        P, H = streams
        moments = self._both_moments(data, cell)
        K_P, K_H = (part.covariance for part in moments)
        rtol = self.rtol
        if rtol is None:
            rtol = covariance_rtol(P.dimension, max(P.stored_eps, H.stored_eps))
        tasks = [
            task_facts(name, stream, part.rows, K, rtol)
            for name, stream, part, K in zip(TASKS.values(), streams, moments, (K_P, K_H), strict=True)
        ]
        finest_rtol = min(rtol, default_rtol(P.dimension))
        finest = (
            CovarianceRange.of(torch.from_numpy(K_P), rtol=finest_rtol, name="K_P"),
            CovarianceRange.of(torch.from_numpy(K_H), rtol=finest_rtol, name="K_H"),
        )
        ranges = cut(finest[0], rtol), cut(finest[1], rtol)
        extractors = with_yardsticks(data.extractors, K_P, K_H, ranges, rtol=rtol)
        compared = comparisons(extractors)
        spectra = spectra_on(*ranges, extractors, rtol=rtol)
        known = None
        if data.pretrain_targets is not None:
            kept = data.before(cell, "columns").arrays["complete_pretrain"]
            known = target_moments(P, one_hot(data.pretrain_targets[kept]))
        clauses = {
            name: clause_c(ranges[0], matrix, known)
            for name, matrix in extractors.items()
            if matrix is not None
        }
        gaps = {name: clause.gap for name, clause in clauses.items()}
        facts = {
            "rtol": rtol,
            "groups": len(moments[0].groups),
            "tasks": [{**vars(task), "spectrum": None} for task in tasks],
            "extractors": {
                name: 2 * [P.dimension] if matrix is None else matrix.shape
                for name, matrix in extractors.items()
            },
            "ceiling": vars(rir_ceiling(*ranges, rtol=rtol)),
            "ridge_limit": ridge_convention_ceiling(*ranges, ridge=self.ridge, rtol=rtol),
            "clause_c": {name: vars(clause) for name, clause in clauses.items()},
        }
        tables = {
            "kappa": pd.DataFrame(kappa_rows(spectra, ridge=self.ridge)),
            "measures": measures_table(spectra, compared, ridge=self.ridge, loss_gaps=gaps),
            "rtol_sweep": rtol_sweep(finest, extractors, compared, ridge=self.ridge, default=rtol),
            "ridge_sweep": ridge_sweep(spectra, compared, ridge=self.ridge),
            "estimates": estimates(spectra, compared, self.ridge),
        }
        row = {"facts": json.dumps(facts)} | {name: as_text(table) for name, table in tables.items()}
        arrays: dict[str, Any] = {f"spectrum_{task.name}": task.spectrum for task in tasks}
        return CellResult(dict(row), arrays | {name: extractors[name] for name in (OPTIMAL, FRONT)})

    def _alignment(self, data: AuditData, cell: Cell) -> CellResult:
        """Compare the directions of both tasks and of every extractor."""
        K_P, K_H = (part.covariance for part in self._both_moments(data, cell))
        rtol = facts_of(data.before(cell, "spectra"))["rtol"]
        found = directions(K_P, K_H, self._extractors(data, cell), rtol=rtol)
        return CellResult({"table": as_text(found.table)}, {"overlaps": found.overlaps})

    def _bootstrap(self, data: AuditData, cell: Cell) -> CellResult:
        """Measure a batch of resampled pairs of tasks, or say why not."""
        P, H = self._both_moments(data, cell)
        spectra, first = data.before(cell, "spectra"), cell["first"]
        if not (P.can_resample and H.can_resample):
            D = P.groups.shape[1]
            reason = (
                f"at D = {D:,d} the covariances of enough groups of rows, {8 * D**2 / 2**20:,.0f} MiB each, "
                "do not fit into the memory set aside for them"
            )
            return CellResult({"reason": reason}, {})
        extractors = self._extractors(data, cell)

        def tell(done: int) -> None:
            report_event(stage="bootstrap", step=first + done, steps=self.bootstrap)

        draws = bootstrap(
            (P, H), extractors, comparisons(extractors), count=len(as_table(spectra.row["estimates"])),
            rtol=facts_of(spectra)["rtol"], ridge=self.ridge, seed=self.seed, threads=data.threads,
            replicates=range(first, first + cell.settings["count"]), on_replicate=tell,
        )  # fmt: skip
        unit = f"{P.unit('D_P')} and {H.unit('D_H')}"
        return CellResult({"reason": "", "unit": unit}, {"draws": draws})

    def _attackers(self, data: AuditData, cell: Cell) -> CellResult:
        """Run the attack panel."""
        stream, y = self._stream(data, cell, "harmful"), data.targets
        if y is not None:
            y = y[data.before(cell, "columns").arrays["complete_harmful"]]
        section = attack_section(
            stream, self._both_moments(data, cell)[1].rows, y, self._extractors(data, cell), kind=self.kind,
            budget=data.budget or replace(PANEL_BUDGET, seed=self.seed), seed=self.seed,
            on_attack=lambda extractor, attacker: report_event(stage=f"{attacker} on {extractor}"),
        )  # fmt: skip
        row = {name: getattr(section, name) for name in ("reason", "rows", "held_out", "of_rows")}
        report = section.report
        if report is not None:
            row |= {name: as_text(getattr(report, name)) for name in PANEL_TABLES}
            about = {name: getattr(report, name) for name in ("baseline", "kind", "held_out", "title")}
            row["facts"] = json.dumps(about | {"budget": asdict(report.budget)})
        return CellResult(row, {})

    def found(self, results: Iterable[Result]) -> Audit:
        """Put what the stages found together."""
        stages: dict[str, list[CellResult]] = {}
        for cell, row, arrays in results:
            stages.setdefault(cell["stage"], []).append(CellResult(row, arrays))
        (columns,), (spectra,), (alignment,) = (stages[name] for name in ("columns", "spectra", "alignment"))
        facts, table = facts_of(spectra), lambda name: as_table(spectra.row[name])
        resampled, reason, drawn = stages.get("bootstrap", []), "it was switched off", None
        if resampled:
            missing = self.bootstrap - sum(len(arrays.get("draws", [])) for _, arrays in resampled)
            reason = str(resampled[0].row["reason"]) or f"{missing} replicates failed" * (missing > 0)
        elif self.bootstrap:
            reason = "it failed"
        if resampled and not reason:
            draws = np.concatenate([arrays["draws"] for _, arrays in resampled])
            drawn = intervals(draws, table("estimates"), str(resampled[0].row["unit"]))
            if drawn is None:
                reason = "nearly all resampled pairs of tasks have rank 0"
        return Audit(
            **{
                task: TaskFacts(**known | {"spectrum": spectra.arrays[f"spectrum_{known['name']}"]})
                for task, known in zip(TASKS, facts["tasks"], strict=True)
            },
            extractors={name: tuple(shape) for name, shape in facts["extractors"].items()},
            compared=tuple(comparisons(facts["extractors"])),
            rtol=facts["rtol"],
            ridge=self.ridge,
            ceiling=RirCeiling(**facts["ceiling"]),
            ridge_limit=facts["ridge_limit"],
            kappa=table("kappa"),
            measures=table("measures"),
            rtol_sweep=table("rtol_sweep"),
            ridge_sweep=table("ridge_sweep"),
            directions=Directions(
                alignment.arrays["overlaps"],
                facts["tasks"][0]["dimension"],
                as_table(alignment.row["table"]),
            ),
            clause_c={name: ClauseC(**clause) for name, clause in facts["clause_c"].items()},
            intervals=drawn,
            no_intervals=reason,
            attack=self._section(stages.get("attackers", [])),
            columns=as_table(columns.row["columns"]),
            notes=tuple(json.loads(str(columns.row["notes"]))),
            settings={
                "standardise": self.standardise,
                "replicates": self.bootstrap,
                "groups": facts["groups"],
                "scheduler": bool(self.scheduler),
            },
            seconds={
                stage: sum(float(row["seconds"] or 0) for row, _ in parts) for stage, parts in stages.items()
            },
            peak_mib=own_peak().mib,
            seed=self.seed,
        )

    def _section(self, results: Sequence[CellResult]) -> AttackSection:
        """Return what the attackers' cell found, or why there is none."""
        if not results:
            return AttackSection(None, "the panel failed" if self.attackers else "the panel was switched off")
        row, report = results[0].row, None
        if "facts" in row:
            facts = facts_of(results[0])
            budget = facts.pop("budget")
            budget["epsilons"] = tuple(budget["epsilons"])
            tables: dict[str, Any] = {name: as_table(row[name]) for name in PANEL_TABLES}
            report = AttackReport(**tables, budget=AttackBudget(**budget), **facts)
        counts: dict[str, Any] = {name: row[name] for name in ("rows", "held_out", "of_rows")}
        return AttackSection(report, str(row["reason"]), **counts)

    def tables(self, data: Any, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return none: audit.json holds them all."""
        return {}

    def files(self, results: Sequence[Result], folder: Path) -> list[str]:
        """Write audit.json."""
        return self.found(results).save(folder)

    def facts(self, data: Any) -> dict[str, str]:
        """Leave it to `condnum.audit.tables.run_words` to say what was read."""
        return {}


#: Tables of an attack report.
PANEL_TABLES = ("steps", "curves", "extractors", "spectra", "skipped")


def as_text(table: pd.DataFrame) -> str:
    """Return a table as a cell keeps it: JSON gives every number back."""
    return json.dumps(table.to_dict("list"))


def as_table(text: Any) -> pd.DataFrame:
    """Return a table that a cell has kept."""
    return pd.DataFrame(json.loads(text))


def facts_of(result: CellResult) -> dict[str, Any]:
    """Return what a cell has kept beside tables and arrays."""
    return dict(json.loads(str(result.row["facts"])))


@dataclass(frozen=True)
class AuditFiles:
    """The files of an audit."""

    checksums: dict[str, str]  # SHA-256 by the file's name


@dataclass(frozen=True)
class AuditCommand(FeatureAudit, name="audit"):
    """What `condnum audit` is given: refused here, where it cannot be audited, before a kernel starts."""

    def check(self) -> None:
        """Ask for features as well."""
        super().check()
        if not self.pretrain and not self.backbone:
            raise InvalidInputError(
                "give the features of both tasks with --pretrain FILE and --harmful FILE, or --backbone NAME "
                "with --pretrain-images DIR and --harmful-images DIR."
            )

    def load(self) -> Any:
        """Read the beginnings of files only; images are left to the kernel."""
        if self.pretrain:
            data = super().load()
            for stream in (data.pretrain, data.harmful):
                next(stream.raw_blocks(), None)  # columns of text in a CSV
        named = (self.pretrain, self.harmful, self.theta, self.theta_0, self.theta_i, self.targets,
                 self.pretrain_targets)  # fmt: skip
        return AuditFiles({Path(name).name: sha256_file(Path(name)) for name in named if name})


def audit(
    pretrain: FeaturesLike,
    harmful: FeaturesLike,
    *,
    theta: ThetaLike | None = None,
    theta_0: ThetaLike | None = None,
    theta_i: ThetaLike | None = None,
    targets: TargetsLike | None = None,
    pretrain_targets: TargetsLike | None = None,
    kind: Kind = "auto",
    key: str = "",
    drop: str = "",
    standardise: bool = False,
    ridge: float = PUBLISHED_RIDGE,
    rtol: float | None = None,
    replicates: int = 200,
    attackers: bool = True,
    budget: AttackBudget | None = None,
    seed: int = 0,
    threads: int | None = None,
    scheduler: str = "",
    max_dimension: int = MAX_DIMENSION,
) -> Audit:
    r"""Audit a pair of tasks and, if one is given, an extractor.

    One pass over each feature matrix forms :math:`K = X^\top X` in float64; everything but the attackers
    follows from the two covariances. Rows with missing entries are left out, and said so; nothing is imputed,
    nor centred or scaled unless that is asked for. Progress goes to `CONDNUM_PROGRESS`. `FeatureAudit` is the
    same as a study, which keeps finished stages in a folder and goes on from them.

    Args:
        pretrain: `(N_P, D)` features of the pre-training task: a file (npy, npz, csv, parquet), which may be
            larger than memory, a matrix, or a stream.
        harmful: `(N_H, D)` features of the harmful task.
        theta: `(D, D_hid)` linear extractor, or a file of it; measured against the features as they are.
        theta_0: An extractor before immunization, with `theta_i`.
        theta_i: The same after immunization; measured against `theta_0`, and both against the raw features.
        targets: Of the harmful rows, for the attackers; without them that part is skipped.
        pretrain_targets: Of the pre-training rows, for clause (c) where θ loses rank.
        kind: Of targets: `regression`, `classification` (logistic attackers), or `auto` (labels are
            learned by least squares).
        key: Which array of an `.npz`; see `open_pair`.
        drop: Names of columns to leave out, separated by commas.
        standardise: Each task's columns to mean 0 and deviation 1.
        ridge: ε of the ridge convention, in the units of K.
        rtol: Relative rank tolerance; default `covariance_rtol` of the coarser stored type.
        replicates: Of the bootstrap; 0 leaves it out.
        attackers: False leaves the attack panel out.
        budget: Of the attackers.
        seed: Of groups, resampling, the panel's rows and its attackers.
        threads: At a time; default one a core.
        scheduler: Address of a dask scheduler that forms the covariances.
        max_dimension: Largest D.

    Returns:
        The audit.

    Raises:
        InvalidInputError: Features, extractors or targets that do not fit each other, or a number out of
            range.
        DataNotFoundError: A file is missing.
        DataFormatError: A file is damaged, a pickle, not finite, or changes while it is read.
        RankError: A task without any energy, or tasks without a common direction.
        MissingExtraError: parquet without pyarrow, a scheduler without dask.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(200, 4))
        >>> found = audit(rows, rows[:100] * [1, 1, 1, 3], theta=np.diag([1, 1, 1, 2.0]), replicates=0)
        >>> bool(found.row(found.main, "compact")["harmful_ratio"] > 1), found.clause_c["theta"].kept
        (True, True)
    """
    study = FeatureAudit(
        kind=kind, standardise=standardise, ridge=ridge, rtol=rtol, bootstrap=replicates, attackers=attackers,
        seed=seed, scheduler=scheduler,
    )  # fmt: skip
    data = open_audit(
        pretrain, harmful, theta=theta, theta_0=theta_0, theta_i=theta_i, targets=targets,
        pretrain_targets=pretrain_targets, kind=kind, key=key, drop=drop, max_dimension=max_dimension,
    )  # fmt: skip
    data.budget, data.threads = budget, threads
    return study.found([Result(cell, *study.compute(data, cell)) for cell in study.planned(data)])
