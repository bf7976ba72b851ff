"""The stages of an audit, one after the other in memory: a pass over the rows leaves D×D sums."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.arrays import resolve_device
from condnum.audit import measures
from condnum.audit.attacks import PANEL_BUDGET, AttackSection, attack_section, one_hot
from condnum.audit.intervals import bootstrap, estimates, intervals
from condnum.audit.layers import layer_audit
from condnum.audit.measures import AS_IS, TaskSpectra
from condnum.audit.moments import SecondMoments, cluster_moments, group_count, second_moments, task_facts
from condnum.audit.net_images import NetImages
from condnum.audit.result import Audit
from condnum.data.feature_pair import complete_targets, look_at
from condnum.data.feature_stream import FeatureStream
from condnum.probing.probe_steps import target_probe
from condnum.probing.race import AttackBudget
from condnum.progress import OnProgress, report_event
from condnum.studies.frame import SweepError
from condnum.theory.ceiling import max_rir_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.covariances import CovarianceRange
from condnum.theory.pareto import pareto_immunizer
from condnum.theory.spectra import default_rtol, squared_rtol

#: Both tasks, in the order of their rows' passes.
TASKS = {"pretrain": "D_P", "harmful": "D_H"}

#: Stages without which there is still something to show.
OPTIONAL = ("bootstrap", "attackers", "layers")

#: What a stage found, by name.
StageResult = dict[str, Any]


@dataclass(eq=False)
class AuditData:
    """What an audit reads, opened."""

    pretrain: FeatureStream
    harmful: FeatureStream
    notes: Sequence[str]  # what was done to match their columns
    theta: NDArray[np.float64] | None = None  # the extractor, where one was given
    targets: NDArray[Any] | None = None
    pretrain_targets: NDArray[Any] | None = None
    budget: AttackBudget | None = None  # of each attacker; None: that of an audit
    threads: int | None = None  # at a time; None: one a core
    net: NetImages | None = None  # where the features are those of a backbone


@dataclass(eq=False)
class Stages:
    """An audit on its way, with what its finished stages found."""

    study: Any  # the settings: a `FeatureAudit`
    data: AuditData
    on_progress: OnProgress | None = None
    found: StageResult = field(default_factory=dict)
    moments: list[SecondMoments] = field(default_factory=list)  # of D_P and D_H

    def audit(self, *, go_on: bool) -> Audit:
        """Compute all stages; `go_on` where one fails without which there is something to show."""
        study, seconds, failures = self.study, dict[str, float](), dict[str, str]()
        stages: dict[str, Callable[[], StageResult]] = {
            "columns": self.columns,
            **{f"rows of {name}": partial(self.rows, task) for task, name in TASKS.items()},
            "spectra": self.spectra,
            **{stage: getattr(self, stage) for stage in OPTIONAL if getattr(study, stage)},
        }

        def report(**stage: str) -> None:
            event = {"done": len(seconds), "total": len(stages), "failures": len(failures), **stage}
            report_event(**event)
            if self.on_progress is not None:
                self.on_progress(event)

        report()
        for stage, compute in stages.items():
            started = time.perf_counter()
            try:
                self.found |= compute()
            except Exception as error:
                if not go_on:
                    raise
                failures[stage] = f"{type(error).__name__}: {error}"
                if stage not in OPTIONAL:
                    raise SweepError(
                        f"the audit failed in its stage '{stage}' with {failures[stage]}"
                    ) from error
            seconds[stage] = time.perf_counter() - started
            report(stage=stage)
        missing: StageResult = {
            "intervals": None,
            "no_intervals": "it failed" if study.bootstrap else "it was switched off",
            "attack": AttackSection(None, f"the panel {'failed' if study.attackers else 'was switched off'}"),
        }
        known = missing | self.found
        return Audit(
            **{part.name: known[part.name] for part in fields(Audit) if part.name in known},
            seconds=seconds,
            failures=failures,
            epsilon=study.epsilon,
            standardize=study.standardize,
            seed=study.seed,
        )

    def stream(self, task: str) -> FeatureStream:
        """Return the rows of a task, standardized if that was asked for."""
        stream: FeatureStream = getattr(self.data, task)
        if not self.study.standardize:
            return stream
        return replace(stream, centre=self.found[f"mean_{task}"], scale=self.found[f"deviation_{task}"])

    def extractors(self) -> dict[str, NDArray[np.float64] | None]:
        """Return the extractor that was given between the raw features and the closed forms."""
        given = {} if self.data.theta is None else {"theta": self.data.theta}
        return {AS_IS: None, **given, **{name: self.found[name] for name in measures.CLOSED}}

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
            for task, survey in zip(TASKS, pair.surveys, strict=True)
            for name in ("complete", "mean", "deviation")
        }
        return {"columns": pair.columns, "notes": tuple(pair.notes), **seen}

    def rows(self, task: str) -> StageResult:
        """Sum the second moments of a task's rows."""
        stream, scheduler = self.stream(task), self.study.scheduler
        seed = np.random.SeedSequence([self.study.seed, len(self.moments)]).generate_state(1)[0]
        options: dict[str, Any] = {"groups": group_count(stream.dimension), "seed": int(seed)}

        def on_rows(done: int, total: int | None) -> None:
            report_event(stage=f"rows of {TASKS[task]}", step=done, steps=total)

        self.moments.append(
            cluster_moments(stream, scheduler, **options)
            if scheduler
            else second_moments(stream, threads=self.data.threads, on_rows=on_rows, **options)
        )
        return {}

    def spectra(self) -> StageResult:
        """Measure both covariances, every extractor, and how both move with the conventions."""
        streams = [self.stream(task) for task in TASKS]
        D, moments = streams[0].dimension, self.moments
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
        self.found |= {
            measures.MAX_RIR: np.asarray(max_rir_immunizer(K_P, K_H, rtol=rtol)),
            measures.PARETO: np.asarray(pareto_immunizer(*ranges)),
        }
        extractors = self.extractors()
        spectra = TaskSpectra.of(*ranges, extractors, rtol=rtol)
        given = zip((self.data.pretrain_targets, self.data.targets), TASKS, strict=True)
        answers = [None if y is None else one_hot(y[self.found[f"complete_{task}"]]) for y, task in given]
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
            "extractors": {AS_IS: (D, D), **{name: theta.shape for name, theta in thetas.items()}},
            "ceiling": rir_ceiling(*ranges, rtol=rtol),
            "ridge_limit": ridge_convention_ceiling(*ranges, ridge=epsilon, rtol=rtol),
            "clause_c": clauses,
            "probes": probes,
            "kappa": measures.kappa_table(spectra, epsilon=epsilon),
            "measures": measures.measures_table(spectra, epsilon=epsilon, clauses=clauses, probes=probes),
            "rtol_sweep": measures.rtol_table(finest, extractors, default=rtol),
            "epsilon_sweep": measures.epsilon_table(spectra, epsilon=epsilon),
            "estimates": estimates(spectra, epsilon),
        }

    def bootstrap(self) -> StageResult:
        """Measure resampled pairs of tasks, or say why not."""
        P, H = self.moments
        if not (P.can_resample and H.can_resample):
            D = P.groups.shape[1]
            reason = (
                f"at D = {D:,d} the covariances of enough groups of rows, {8 * D**2 / 2**20:,.0f} MiB each, "
                "exceed the memory limit for them"
            )
            return {"intervals": None, "no_intervals": reason}
        rtol, steps = self.found["rtol"], self.study.bootstrap
        draws = bootstrap(
            (P, H), self.extractors(), rtol=rtol, epsilon=self.study.epsilon,
            seed=self.study.seed, threads=self.data.threads, replicates=steps,
            on_replicate=lambda done: report_event(stage="bootstrap", step=done, steps=steps),
        )  # fmt: skip
        found = intervals(draws, self.found["estimates"], f"{P.unit('D_P')} and {H.unit('D_H')}")
        reason = "" if found else "nearly all resampled pairs of tasks have rank 0"
        return {"intervals": found, "no_intervals": reason}

    def attackers(self) -> StageResult:
        """Run the attack panel."""
        y, seed = self.data.targets, self.study.seed
        if y is not None:
            y = y[self.found["complete_harmful"]]
        section = attack_section(
            self.stream("harmful"), self.moments[1].rows, y, self.extractors(),
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
