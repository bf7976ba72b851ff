"""The stages of an audit, each kept and resumed by itself: a pass over the rows leaves D×D sums."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.arrays import resolve_device
from condnum.audit import measures
from condnum.audit.attacks import PANEL_BUDGET, AttackSection, attack_section, one_hot
from condnum.audit.intervals import Intervals, bootstrap, estimates, intervals
from condnum.audit.layers import LayerAudit, layer_audit
from condnum.audit.measures import AS_IS, ClauseC, TaskSpectra
from condnum.audit.moments import (
    SecondMoments,
    TaskFacts,
    cluster_moments,
    group_count,
    second_moments,
    task_facts,
)
from condnum.audit.net_images import NetImages
from condnum.data.feature_pair import complete_targets, look_at
from condnum.data.feature_stream import FeatureStream
from condnum.probing.attackers import AttackBudget
from condnum.probing.probe_steps import ProbeSteps, target_probe
from condnum.probing.report import AttackReport
from condnum.progress import report_event
from condnum.studies.cells import Cell, CellResult, ResultStore
from condnum.theory.ceiling import RirCeiling, max_rir_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.pareto import pareto_immunizer
from condnum.theory.spectra import CovarianceRange, default_rtol, squared_rtol

#: The stages that sum the rows of a task.
ROW_STAGES = {"rows of D_P": "pretrain", "rows of D_H": "harmful"}

#: What a stage found, by name.
StageResult = dict[str, Any]

#: What JSON does not hold by itself.
_RECORDS = (
    AttackBudget, AttackReport, AttackSection, ClauseC, Intervals, LayerAudit, ProbeSteps, RirCeiling,
    TaskFacts,
)  # fmt: skip
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (pd.DataFrame, *_RECORDS)}


def to_cell(found: StageResult) -> CellResult:
    """Keep what a stage found: arrays as they are, all else as JSON, which gives every number back."""

    def plain(value: Any) -> Any:
        if isinstance(value, pd.DataFrame):
            return {"DataFrame": {"data": value.to_dict("list")}}
        if type(value) in _RECORDS:
            return {type(value).__name__: {part.name: getattr(value, part.name) for part in fields(value)}}
        return value.tolist()

    arrays = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in found.items() if name not in arrays}
    return CellResult({"found": json.dumps(rest, default=plain)}, arrays)


def from_cell(result: CellResult) -> StageResult:
    """Return what a stage found."""

    def record(value: dict[str, Any]) -> Any:
        kind = _KINDS.get(next(iter(value), "")) if len(value) == 1 else None
        return value if kind is None else kind(**next(iter(value.values())))

    return json.loads(str(result.row["found"]), object_hook=record) | result.arrays


@dataclass(eq=False)
class AuditData:
    """What an audit reads, opened, and what this process knows of its finished cells."""

    pretrain: FeatureStream
    harmful: FeatureStream
    notes: Sequence[str]  # what was done to match their columns
    theta: NDArray[np.float64] | None = None  # the extractor, where one was given
    targets: NDArray[Any] | None = None
    pretrain_targets: NDArray[Any] | None = None
    budget: AttackBudget | None = None  # of each attacker; None: that of an audit
    threads: int | None = None  # at a time; None: one a core
    net: NetImages | None = None  # where the features are those of a backbone
    done: dict[Cell, StageResult] = field(default_factory=dict)

    @cached_property
    def checksum(self) -> str:
        """Hash of what identifies files (size, time of change, inode) and of arrays' contents."""
        from joblib import hash as content_hash

        streams = [
            (stream.source, stream.columns, stream.stamp or list(stream.raw_blocks()))
            for stream in (self.pretrain, self.harmful)
        ]
        given = self.theta, self.targets, self.pretrain_targets, self.budget
        return str(content_hash([*streams, *given, *([] if self.net is None else [self.net.key])]))


@dataclass(frozen=True)
class Stage:
    """One stage, with all that it may read."""

    study: Any  # the settings: a `FeatureAudit`
    data: AuditData
    cell: Cell

    def compute(self) -> StageResult:
        """Compute it."""
        stage = self.cell["stage"]
        found: StageResult = self.rows() if stage in ROW_STAGES else getattr(self, stage)()
        return found

    def before(self, stage: str) -> StageResult:
        """Return what an earlier stage found: now, or in the run that this one resumes."""
        done, start = self.data.done, self.cell.after
        while start is not None and start["stage"] != stage:
            start = start.after
        assert start is not None  # every stage comes after those that it asks for
        if start not in done:
            with ResultStore(start.folder, mode="read") as store:
                kept = store.get(start.key)
            assert kept is not None  # else it would have been computed
            done[start] = from_cell(kept)
        return done[start]

    def stream(self, task: str) -> FeatureStream:
        """Return the rows of a task, standardized if that was asked for."""
        stream: FeatureStream = getattr(self.data, task)
        if not self.study.standardize:
            return stream
        seen = self.before("columns")
        return replace(stream, centre=seen[f"mean_{task}"], scale=seen[f"deviation_{task}"])

    def moments(self) -> tuple[SecondMoments, SecondMoments]:
        """Return the second moments of both tasks."""
        P, H = (SecondMoments(**self.before(stage)) for stage in ROW_STAGES)
        return P, H

    def extractors(self, closed: StageResult) -> dict[str, NDArray[np.float64] | None]:
        """Return the extractor that was given between the raw features and the closed forms."""
        given = {} if self.data.theta is None else {"theta": self.data.theta}
        return {AS_IS: None, **given, **{name: closed[name] for name in measures.CLOSED}}

    def columns(self) -> StageResult:
        """Look at all rows once: gaps, scales, suspicious columns."""
        data = self.data
        pair = look_at(
            data.pretrain, data.harmful, data.notes,
            standardize=self.study.standardize, targets=data.targets,
        )  # fmt: skip
        if data.pretrain_targets is not None:
            complete_targets(
                data.pretrain_targets, pair.surveys[0], data.pretrain, data.notes
            )  # are there as many?
        seen = {
            f"{name}_{task}": getattr(survey, name)
            for task, survey in zip(ROW_STAGES.values(), pair.surveys, strict=True)
            for name in ("complete", "mean", "deviation")
        }
        return {"columns": pair.columns, "notes": pair.notes, **seen}

    def rows(self) -> StageResult:
        """Sum the second moments of a task's rows."""
        stage, scheduler = self.cell["stage"], self.study.scheduler
        stream = self.stream(ROW_STAGES[stage])
        seed = np.random.SeedSequence([self.study.seed, list(ROW_STAGES).index(stage)]).generate_state(1)[0]
        options: dict[str, Any] = {"groups": group_count(stream.dimension), "seed": int(seed)}
        if scheduler:
            return vars(cluster_moments(stream, scheduler, **options))
        options["on_rows"] = lambda done, total: report_event(stage=stage, step=done, steps=total)
        return vars(second_moments(stream, threads=self.data.threads, **options))

    def spectra(self) -> StageResult:
        """Measure both covariances, every extractor, and how both move with the conventions."""
        streams = [self.stream(task) for task in ROW_STAGES.values()]
        D, moments = streams[0].dimension, self.moments()
        K_P, K_H = (part.covariance for part in moments)
        rtol, epsilon = self.study.rtol, self.study.epsilon
        if rtol is None:
            rtol = squared_rtol(D, max(stream.stored_eps for stream in streams))
        least = min(rtol, default_rtol(D))
        finest = (
            CovarianceRange.of(K_P, rtol=least, name="K_P"),
            CovarianceRange.of(K_H, rtol=least, name="K_H"),
        )
        ranges = CovarianceRange.of(finest[0], rtol=rtol), CovarianceRange.of(finest[1], rtol=rtol)
        closed = {
            measures.MAX_RIR: np.asarray(max_rir_immunizer(K_P, K_H, rtol=rtol)),
            measures.PARETO: np.asarray(pareto_immunizer(*ranges)),
        }
        extractors = self.extractors(closed)
        spectra = TaskSpectra.of(*ranges, extractors, rtol=rtol)
        given = zip((self.data.pretrain_targets, self.data.targets), ROW_STAGES.values(), strict=True)
        answers = [
            None if y is None else one_hot(y[self.before("columns")[f"complete_{task}"]]) for y, task in given
        ]
        sums = [
            (None, 0.0) if y is None else (measures.target_moments(stream, y), float((y**2).sum()))
            for stream, y in zip(streams, answers, strict=True)
        ]
        thetas = {name: theta for name, theta in extractors.items() if theta is not None}
        clauses = {name: measures.clause_c(ranges[0], of, *sums[0]) for name, of in thetas.items()}
        probes = {
            name: [
                target_probe(of, part, None if b is None else torch.from_numpy(b), energy)
                for part, (b, energy) in zip(ranges, sums, strict=True)
            ]
            for name, of in thetas.items()
        }
        return {
            "rtol": rtol,
            "groups": len(moments[0].groups),
            "pretrain": task_facts("D_P", streams[0], moments[0].rows, K_P, rtol),
            "harmful": task_facts("D_H", streams[1], moments[1].rows, K_H, rtol),
            "extractors": {AS_IS: [D, D], **{name: theta.shape for name, theta in thetas.items()}},
            "ceiling": rir_ceiling(*ranges, rtol=rtol),
            "ridge_limit": ridge_convention_ceiling(*ranges, ridge=epsilon, rtol=rtol),
            "clause_c": clauses,
            "probes": probes,
            "kappa": measures.kappa_table(spectra, epsilon=epsilon),
            "measures": measures.measures_table(spectra, epsilon=epsilon, clauses=clauses, probes=probes),
            "rtol_sweep": measures.rtol_table(finest, extractors, default=rtol),
            "epsilon_sweep": measures.epsilon_table(spectra, epsilon=epsilon),
            "estimates": estimates(spectra, epsilon),
            **closed,
        }

    def bootstrap(self) -> StageResult:
        """Measure resampled pairs of tasks, or say why not."""
        P, H = self.moments()
        if not (P.can_resample and H.can_resample):
            D = P.groups.shape[1]
            reason = (
                f"at D = {D:,d} the covariances of enough groups of rows, {8 * D**2 / 2**20:,.0f} MiB each, "
                "exceed the memory limit for them"
            )
            return {"intervals": None, "no_intervals": reason}
        spectra, steps = self.before("spectra"), self.study.bootstrap
        draws = bootstrap(
            (P, H), self.extractors(spectra), rtol=spectra["rtol"], epsilon=self.study.epsilon,
            seed=self.study.seed, threads=self.data.threads, replicates=steps,
            on_replicate=lambda done: report_event(stage="bootstrap", step=done, steps=steps),
        )  # fmt: skip
        found = intervals(draws, spectra["estimates"], f"{P.unit('D_P')} and {H.unit('D_H')}")
        reason = "" if found else "nearly all resampled pairs of tasks have rank 0"
        return {"intervals": found, "no_intervals": reason}

    def attackers(self) -> StageResult:
        """Run the attack panel."""
        y, seed = self.data.targets, self.study.seed
        if y is not None:
            y = y[self.before("columns")["complete_harmful"]]
        section = attack_section(
            self.stream("harmful"), self.moments()[1].rows, y, self.extractors(self.before("spectra")),
            kind=self.study.kind, seed=seed, budget=self.data.budget or replace(PANEL_BUDGET, seed=seed),
            on_attack=lambda extractor, attacker: report_event(stage=f"{attacker} on {extractor}"),
        )  # fmt: skip
        return {"attack": section}

    def layers(self) -> StageResult:
        """Audit the layers of the net, in another pass over the images."""
        net, study = self.data.net, self.study
        assert net is not None  # refused by the study
        model = net.backbone.model.to(resolve_device("auto"))
        found = layer_audit(
            model, net.batches(0), net.batches(1), study.layers, epsilon=study.epsilon, rtol=study.rtol,
            target=study.rir_target,
        )  # fmt: skip
        return {"layers": found}
