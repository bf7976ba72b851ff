"""The audit as a study: columns, second moments, spectra, the bootstrap and the attackers are its cells.

An audit that is interrupted goes on from the cells that it finished: a pass over the rows leaves D×D sums.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit import measures
from condnum.audit.attacks import (
    PANEL_BUDGET,
    AttackSection,
    Kind,
    TargetsLike,
    attack_section,
    one_hot,
    read_targets,
)
from condnum.audit.intervals import FEWEST_REPLICATES, bootstrap, estimates, intervals
from condnum.audit.measures import RAW, ClauseC, TaskSpectra, ThetaLike, comparisons
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
from condnum.studies.cells import Cell, CellResult, ResultStore
from condnum.studies.executors import Executor
from condnum.studies.study import Result, SerialExecutor, Study, StudyRun, SweepError, at_least
from condnum.theory.ceiling import RirCeiling, optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.pareto import front_immunizer
from condnum.theory.spectra import PUBLISHED_RIDGE, CovarianceRange, default_rtol

#: Replicates of the bootstrap in one cell.
BATCH = 50

#: Both tasks, and the stages that sum their rows.
TASKS = {"pretrain": "rows of D_P", "harmful": "rows of D_H"}

#: A matrix, where to find one, or a stream of one.
FeaturesLike = str | os.PathLike[str] | NDArray[Any] | FeatureStream

#: What a stage found, by name: numbers, words, lists and dictionaries of them, tables, arrays.
Found = dict[str, Any]


def to_cell(found: Mapping[str, Any]) -> CellResult:
    """Keep what a stage found: arrays as they are, all else as JSON, which gives every number back."""

    def plain(value: Any) -> Any:
        """Return what JSON does not know: tables by column, arrays, records."""
        if isinstance(value, pd.DataFrame):
            return value.to_dict("list")
        return value.tolist() if hasattr(value, "tolist") else vars(value)

    arrays = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in found.items() if name not in arrays}
    return CellResult({"found": json.dumps(rest, default=plain)}, arrays)


def from_cell(result: CellResult) -> Found:
    """Return what a stage found; tables are their columns."""
    return json.loads(str(result.row["found"])) | result.arrays


@dataclass(eq=False)
class AuditData:
    """What an audit reads, opened, and what this process knows of its finished cells."""

    pretrain: FeatureStream
    harmful: FeatureStream
    notes: Sequence[str]  # what was done to match their columns
    extractors: Mapping[str, NDArray[np.float64]]  # those that were given
    targets: NDArray[Any] | None = None
    pretrain_targets: NDArray[Any] | None = None
    budget: AttackBudget | None = None  # of each attacker; None: that of an audit
    threads: int | None = None  # at a time; None: one a core
    done: dict[Cell, Found] = field(default_factory=dict)

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

    def before(self, cell: Cell, stage: str) -> Found:
        """Return what an earlier stage found: now, or in the run that this one resumes."""
        start = cell.after
        while start is not None and start["stage"] != stage:
            start = start.after
        assert start is not None  # every stage comes after those that it asks for
        if start not in self.done:
            with ResultStore(start.folder, mode="read") as store:
                kept = store.get(start.key)
            assert kept is not None  # else it would have been computed
            self.done[start] = from_cell(kept)
        return self.done[start]


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
        if self.ridge <= 0:
            raise InvalidInputError(f"ridge must be positive, got {self.ridge}.")
        if not 0 <= (self.rtol or 0) < 1:
            raise InvalidInputError(f"rtol must lie in [0, 1), got {self.rtol}.")
        if self.bootstrap != 0 and self.bootstrap < FEWEST_REPLICATES:
            raise InvalidInputError(
                f"replicates must be 0 (no bootstrap) or at least {FEWEST_REPLICATES}, got {self.bootstrap}."
            )
        at_least(0)("seed", self.seed)

    def load(self) -> Any:
        """Open the files, whose rows are read later; features of a backbone are kept in the user cache."""
        streams: list[Any] = [self.pretrain, self.harmful]
        labels: list[Any] = [None, None]
        if self.backbone:
            streams, labels = self._backbone_features()
        elif not self.pretrain:
            digits = load_small_digits()
            X, y = np.asarray(digits.images).reshape(len(digits), -1), np.asarray(digits.labels)
            low = y < 5
            streams = [array_stream(X[low], name="digits 0-4"), array_stream(X[~low], name="digits 5-9")]
            labels = [y[low], y[~low]]
        return self.open(
            *streams, theta=self.theta or None, theta_0=self.theta_0 or None, theta_i=self.theta_i or None,
            targets=self.targets or labels[1], pretrain_targets=self.pretrain_targets or labels[0],
        )  # fmt: skip

    def _backbone_features(self) -> tuple[list[Any], list[Any]]:
        """Extract pooled features of un-augmented images with a timm model (Eq. 18), and their labels."""
        from condnum.deep import Backbone, cached_features, evaluation_transform, open_images

        pretrained: bool | str = self.weights == "pretrained" or self.weights or False
        backbone = Backbone(self.backbone, pretrained=pretrained, seed=self.seed)
        transform, streams, labels = evaluation_transform(backbone), [], []
        for place in (self.pretrain_images, self.harmful_images):
            images = open_images(place, seed=self.seed)
            options: dict[str, Any] = {"cache": user_cache() / "features", "name": self.backbone}
            found = cached_features(backbone, images, transform, device="auto", **options)
            streams.append(array_stream(found.values, name=Path(place).name))
            labels.append(found.labels)
        return streams, labels

    def open(self, pretrain: FeaturesLike, harmful: FeaturesLike, **given: Any) -> AuditData:
        """Open features, extractors and targets, and refuse those that do not fit; see `audit`."""
        given = {name: value for name, value in given.items() if value is not None}
        options: dict[str, Any] = {"max_dimension": self.max_dimension}
        if isinstance(pretrain, str | os.PathLike) and isinstance(harmful, str | os.PathLike):
            P, H, notes = open_pair(pretrain, harmful, key=self.key, drop=self.drop, **options)
        else:
            streams = [
                features
                if isinstance(features, FeatureStream)
                else open_feature_stream(features, **options)
                if isinstance(features, str | os.PathLike)
                else array_stream(features, **options)
                for features in (pretrain, harmful)
            ]
            P, H, notes = match_streams(*streams, drop=self.drop)
        answers: dict[str, Any] = {
            name: read_targets(given.pop(name), kind=self.kind, name=name)
            for name in ("targets", "pretrain_targets")
            if name in given
        }
        return AuditData(P, H, notes, measures.read_extractors(given, P.dimension), **answers)

    def cells(self, data: Any) -> list[Cell]:
        """List the stages, each after those whose results it needs; the bootstrap in batches."""
        columns = Cell({"stage": "columns"}, {"standardise": self.standardise})
        pretrain = Cell({"stage": TASKS["pretrain"]}, {"seed": self.seed}, columns)
        harmful = Cell({"stage": TASKS["harmful"]}, {}, pretrain)
        spectra = Cell({"stage": "spectra"}, {"ridge": self.ridge, "rtol": self.rtol}, harmful)
        cells = [columns, pretrain, harmful, spectra]
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
            if cell["stage"] not in ("bootstrap", "attackers"):
                raise SweepError(f"the audit ended at its stage '{cell['stage']}' with {error}")
        return run

    def compute(self, data: AuditData, cell: Cell) -> CellResult:
        """Compute a stage."""
        stages = dict.fromkeys(TASKS.values(), self._moments) | {
            "columns": self._columns,
            "spectra": self._spectra,
            "bootstrap": self._bootstrap,
            "attackers": self._attackers,
        }
        started = time.perf_counter()
        found = stages[cell["stage"]](data, cell)
        kept = to_cell(found)
        data.done[cell] = from_cell(kept)
        return CellResult(kept.row | {"seconds": time.perf_counter() - started}, kept.arrays)

    def _columns(self, data: AuditData, cell: Cell) -> Found:
        """Look at all rows once: gaps, scales, odd columns."""
        pair = look_at(
            data.pretrain, data.harmful, data.notes, standardise=self.standardise, targets=data.targets
        )
        if data.pretrain_targets is not None:
            complete_targets(data.pretrain_targets, pair.surveys[0], data.pretrain)  # are there as many?
        seen = {
            f"{name}_{task}": getattr(survey, name)
            for task, survey in zip(TASKS, pair.surveys, strict=True)
            for name in ("complete", "mean", "deviation")
        }
        return {"columns": pair.columns, "notes": pair.notes, **seen}

    def _stream(self, data: AuditData, cell: Cell, task: str) -> FeatureStream:
        """Return the rows of a task, standardised if that was asked for."""
        stream: FeatureStream = getattr(data, task)
        if not self.standardise:
            return stream
        seen = data.before(cell, "columns")
        return replace(stream, centre=seen[f"mean_{task}"], scale=seen[f"deviation_{task}"])

    def _moments(self, data: AuditData, cell: Cell) -> Found:
        """Sum the second moments of a task's rows."""
        which = list(TASKS.values()).index(cell["stage"])
        stream = self._stream(data, cell, list(TASKS)[which])
        options: dict[str, Any] = {
            "groups": group_count(stream.dimension),
            "seed": int(np.random.SeedSequence([self.seed, which]).generate_state(1)[0]),
        }
        if self.scheduler:
            return vars(cluster_moments(stream, self.scheduler, **options))

        def tell(done: int, total: int | None) -> None:
            report_event(stage=cell["stage"], step=done, steps=total)

        return vars(second_moments(stream, **options, threads=data.threads, on_rows=tell))

    @staticmethod
    def _both_moments(data: AuditData, cell: Cell) -> tuple[SecondMoments, SecondMoments]:
        """Return the second moments of both tasks."""
        P, H = (SecondMoments(**data.before(cell, stage)) for stage in TASKS.values())
        return P, H

    @staticmethod
    def _extractors(data: AuditData, closed: Mapping[str, Any]) -> dict[str, NDArray[np.float64] | None]:
        """Return the extractors that were given between the raw features and the closed forms."""
        return {RAW: None, **data.extractors, **{name: closed[name] for name in measures.CLOSED}}

    def _spectra(self, data: AuditData, cell: Cell) -> Found:
        """Measure both covariances, every extractor, and how both move with the conventions."""
        streams = [self._stream(data, cell, task) for task in TASKS]
        D, moments = streams[0].dimension, self._both_moments(data, cell)
        K_P, K_H = (part.covariance for part in moments)
        rtol, ridge = self.rtol, self.ridge
        if rtol is None:
            rtol = measures.covariance_rtol(D, max(stream.stored_eps for stream in streams))
        finest_rtol = min(rtol, default_rtol(D))
        finest = (
            CovarianceRange.of(torch.from_numpy(K_P), rtol=finest_rtol, name="K_P"),
            CovarianceRange.of(torch.from_numpy(K_H), rtol=finest_rtol, name="K_H"),
        )
        ranges = measures.cut(finest[0], rtol), measures.cut(finest[1], rtol)
        closed = {
            measures.OPTIMAL: np.asarray(optimal_immunizer(K_P, K_H, rtol=rtol)),
            measures.FRONT: np.asarray(front_immunizer(*ranges)),
        }
        extractors = self._extractors(data, closed)
        compared = comparisons(extractors)
        spectra = TaskSpectra.of(*ranges, extractors, rtol=rtol)
        known: tuple[Any, ...] = ()
        if data.pretrain_targets is not None:
            y = one_hot(data.pretrain_targets[data.before(cell, "columns")["complete_pretrain"]])
            known = measures.target_moments(streams[0], y), float((y**2).sum())
        thetas = {name: theta for name, theta in extractors.items() if theta is not None}
        clauses = {name: measures.clause_c(ranges[0], theta, *known) for name, theta in thetas.items()}
        gaps = {name: clause.gap for name, clause in clauses.items()}
        return {
            "rtol": rtol,
            "groups": len(moments[0].groups),
            "pretrain": task_facts("D_P", streams[0], moments[0].rows, K_P, rtol),
            "harmful": task_facts("D_H", streams[1], moments[1].rows, K_H, rtol),
            "extractors": {RAW: [D, D], **{name: theta.shape for name, theta in thetas.items()}},
            "ceiling": rir_ceiling(*ranges, rtol=rtol),
            "ridge_limit": ridge_convention_ceiling(*ranges, ridge=ridge, rtol=rtol),
            "clause_c": clauses,
            "kappa": measures.kappa_table(spectra, ridge=ridge),
            "measures": measures.measures_table(spectra, compared, ridge=ridge, loss_gaps=gaps),
            "rtol_sweep": measures.rtol_sweep(finest, extractors, compared, default=rtol),
            "ridge_sweep": measures.ridge_sweep(spectra, compared, ridge=ridge),
            "alignment": measures.predictions(K_P, K_H, extractors, rtol=rtol),
            "overlaps": measures.overlap_map(K_P, K_H),
            "estimates": estimates(spectra, compared, ridge),
            **closed,
        }

    def _bootstrap(self, data: AuditData, cell: Cell) -> Found:
        """Measure a batch of resampled pairs of tasks, or say why not."""
        P, H = moments = self._both_moments(data, cell)
        spectra, first = data.before(cell, "spectra"), cell["first"]
        if not (P.can_resample and H.can_resample):
            D = P.groups.shape[1]
            reason = (
                f"at D = {D:,d} the covariances of enough groups of rows, {8 * D**2 / 2**20:,.0f} MiB each, "
                "do not fit into the memory set aside for them"
            )
            return {"reason": reason, "draws": np.empty((0, 0))}

        def tell(done: int) -> None:
            report_event(stage="bootstrap", step=first + done, steps=self.bootstrap)

        extractors = self._extractors(data, spectra)
        draws = bootstrap(
            moments, extractors, comparisons(extractors), count=len(spectra["estimates"]["estimate"]),
            rtol=spectra["rtol"], ridge=self.ridge, seed=self.seed, threads=data.threads,
            replicates=range(first, first + cell.settings["count"]), on_replicate=tell,
        )  # fmt: skip
        return {"reason": "", "unit": f"{P.unit('D_P')} and {H.unit('D_H')}", "draws": draws}

    def _attackers(self, data: AuditData, cell: Cell) -> Found:
        """Run the attack panel."""
        y = data.targets
        if y is not None:
            y = y[data.before(cell, "columns")["complete_harmful"]]
        section = attack_section(
            self._stream(data, cell, "harmful"), self._both_moments(data, cell)[1].rows, y,
            self._extractors(data, data.before(cell, "spectra")), kind=self.kind, seed=self.seed,
            budget=data.budget or replace(PANEL_BUDGET, seed=self.seed),
            on_attack=lambda extractor, attacker: report_event(stage=f"{attacker} on {extractor}"),
        )  # fmt: skip
        return vars(section)

    def found(self, results: Iterable[Result]) -> Audit:
        """Put what the stages found together."""
        stages: dict[str, list[Found]] = {}
        seconds: dict[str, float] = {}
        for cell, row, arrays in results:
            stages.setdefault(cell["stage"], []).append(from_cell(CellResult(row, arrays)))
            seconds[cell["stage"]] = seconds.get(cell["stage"], 0.0) + float(row["seconds"] or 0)
        (columns,), (spectra,) = stages["columns"], stages["spectra"]
        tables = ("kappa", "measures", "rtol_sweep", "ridge_sweep", "alignment")
        no_intervals, drawn, batches = "it was switched off", None, stages.get("bootstrap", [])
        if self.bootstrap:
            no_intervals = "it failed" if not batches else batches[0]["reason"]
        if batches and not no_intervals:
            draws = np.concatenate([batch["draws"] for batch in batches])
            drawn = intervals(draws, pd.DataFrame(spectra["estimates"]), batches[0]["unit"])
            no_intervals = "" if drawn else "nearly all resampled pairs of tasks have rank 0"
        attack = AttackSection(None, "the panel failed" if self.attackers else "the panel was switched off")
        for section in stages.get("attackers", []):
            attack = AttackSection(**section)
            if section["report"] is not None:
                attack = replace(attack, report=AttackReport.from_columns(section["report"]))
        return Audit(
            pretrain=TaskFacts(**spectra["pretrain"]),
            harmful=TaskFacts(**spectra["harmful"]),
            extractors=spectra["extractors"],
            rtol=spectra["rtol"],
            ridge=self.ridge,
            ceiling=RirCeiling(**spectra["ceiling"]),
            ridge_limit=spectra["ridge_limit"],
            overlaps=spectra["overlaps"],
            clause_c={name: ClauseC(**clause) for name, clause in spectra["clause_c"].items()},
            intervals=drawn,
            no_intervals=no_intervals,
            attack=attack,
            columns=pd.DataFrame(columns["columns"]),
            notes=tuple(columns["notes"]),
            settings={
                "standardise": self.standardise,
                "replicates": self.bootstrap,
                "groups": spectra["groups"],
                "scheduler": bool(self.scheduler),
            },
            seconds=seconds,
            peak_mib=own_peak().mib,
            seed=self.seed,
            **{name: pd.DataFrame(spectra[name]) for name in tables},
        )

    def tables(self, data: Any, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return none: audit.json holds them all."""
        return {}

    def files(self, results: Sequence[Result], folder: Path) -> list[str]:
        """Write audit.json."""
        return self.found(results).save(folder)

    def facts(self, data: Any) -> dict[str, str]:
        """Leave it to `run_words` to say what was read."""
        return {}


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
        """Read the beginnings of files only, for their checksums; images are left to the kernel."""
        if self.pretrain:
            data = super().load()
            for stream in (data.pretrain, data.harmful):
                next(stream.raw_blocks(), None)  # columns of text in a CSV
        places = "pretrain", "harmful", "theta", "theta_0", "theta_i", "targets", "pretrain_targets"
        files = [Path(getattr(self, name)) for name in places if getattr(self, name)]
        return SimpleNamespace(checksums={file.name: sha256_file(file) for file in files})


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
        InvalidInputError: What was given does not fit together, or a number is out of range.
        DataNotFoundError: A file is missing.
        DataFormatError: A file is damaged, a pickle, not finite, or changes while it is read.
        RankError: A task without any energy, or tasks without a common direction.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(200, 4))
        >>> found = audit(rows, rows[:100] * [1, 1, 1, 3], theta=np.diag([1, 1, 1, 2.0]), replicates=0)
        >>> bool(found.row(found.main, "compact")["harmful_ratio"] > 1), found.clause_c["theta"].kept
        (True, True)
    """
    study = FeatureAudit(
        kind=kind, key=key, drop=drop, standardise=standardise, ridge=ridge, rtol=rtol, bootstrap=replicates,
        attackers=attackers, seed=seed, scheduler=scheduler, max_dimension=max_dimension,
    )  # fmt: skip
    data = study.open(
        pretrain, harmful, theta=theta, theta_0=theta_0, theta_i=theta_i, targets=targets,
        pretrain_targets=pretrain_targets,
    )  # fmt: skip
    data.budget, data.threads = budget, threads
    return study.found([Result(cell, *study.compute(data, cell)) for cell in study.planned(data)])
