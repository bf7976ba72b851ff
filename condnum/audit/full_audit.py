"""The audit from end to end: two feature matrices and perhaps an extractor in, one record out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit.attacks import Kind, TargetsLike, attack_section, one_hot, read_targets
from condnum.audit.intervals import bootstrap
from condnum.audit.measures import (
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
from condnum.audit.moments import cluster_moments, group_count, second_moments, task_facts
from condnum.audit.result import Audit
from condnum.data.feature_pair import complete_targets, look_at, match_streams, open_pair
from condnum.data.feature_stream import MAX_DIMENSION, FeatureStream, array_stream, open_feature_stream
from condnum.errors import InvalidInputError
from condnum.machine import own_peak
from condnum.probing.attackers import AttackBudget
from condnum.progress import report_event
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.theory.spectra import PUBLISHED_RIDGE, CovarianceRange, default_rtol

#: Told the stage, and how much of how much of it is done.
OnStage = Callable[[str, int, int | None], None]

STAGES = ("columns", "rows of D_P", "rows of D_H", "spectra", "alignment", "bootstrap", "attackers")


@dataclass
class Clock:
    """Times the stages, and tells a callback and `CONDNUM_PROGRESS` how far they are."""

    on_stage: OnStage | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Generator[Callable[[int, int | None], None]]:
        """Time a block, which is handed what reports within it."""
        started = time.perf_counter()

        def tick(done: int, total: int | None) -> None:
            report_event(stage=name, step=done, steps=total, done=len(self.seconds), total=len(STAGES))
            if self.on_stage is not None:
                self.on_stage(name, done, total)

        tick(0, None)
        try:
            yield tick
        finally:
            self.seconds[name] = time.perf_counter() - started


#: A matrix, where to find one, or a stream of one.
FeaturesLike = str | os.PathLike[str] | NDArray[Any] | FeatureStream


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
    on_stage: OnStage | None = None,
) -> Audit:
    r"""Audit a pair of tasks and, if one is given, an extractor.

    One pass over each feature matrix forms :math:`K = X^\top X` in float64; everything but the attackers
    follows from the two covariances. Rows with missing entries are left out, and said so; nothing is imputed,
    nor centred or scaled unless that is asked for.

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
        on_stage: Told about progress; it goes to `CONDNUM_PROGRESS` in any case.

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
    check_numbers(ridge, rtol, replicates)
    if isinstance(pretrain, str | os.PathLike) and isinstance(harmful, str | os.PathLike):
        P, H, notes = open_pair(pretrain, harmful, key=key, drop=drop, max_dimension=max_dimension)
    else:
        opened = _opened(pretrain, max_dimension), _opened(harmful, max_dimension)
        P, H, notes = match_streams(*opened, drop=drop)
    given = read_extractors(theta, theta_0, theta_i, P.dimension)
    y = None if targets is None else read_targets(targets, kind=kind)
    y_P = None
    if pretrain_targets is not None:
        y_P = read_targets(pretrain_targets, kind=kind, name="pretrain_targets")
    clock = Clock(on_stage)
    with clock.stage("columns"):
        pair = look_at(P, H, notes, standardise=standardise, targets=y)
        P, H = pair.pretrain, pair.harmful
        y_P = None if y_P is None else complete_targets(y_P, pair.surveys[0], P)
        y = None if y is None else complete_targets(y, pair.surveys[1], H)
    moments = []
    for which, stream in enumerate((P, H)):
        groups = group_count(stream.dimension)
        own_seed = int(np.random.SeedSequence([seed, which]).generate_state(1)[0])
        with clock.stage(STAGES[1 + which]) as tick:
            moments.append(
                cluster_moments(stream, scheduler, groups=groups, seed=own_seed)
                if scheduler
                else second_moments(stream, groups=groups, seed=own_seed, threads=threads, on_rows=tick)
            )
    K_P, K_H = (part.covariance for part in moments)
    rtol = covariance_rtol(P.dimension, max(P.stored_eps, H.stored_eps)) if rtol is None else rtol
    with clock.stage("spectra"):
        facts = [
            task_facts(name, stream, part.rows, K, rtol)
            for name, stream, part, K in zip(("D_P", "D_H"), (P, H), moments, (K_P, K_H), strict=True)
        ]
        finest_rtol = min(rtol, default_rtol(P.dimension))
        finest = (
            CovarianceRange.of(torch.from_numpy(K_P), rtol=finest_rtol, name="K_P"),
            CovarianceRange.of(torch.from_numpy(K_H), rtol=finest_rtol, name="K_H"),
        )
        ranges = cut(finest[0], rtol), cut(finest[1], rtol)
        extractors = with_yardsticks(given, K_P, K_H, ranges, rtol=rtol)
        compared = comparisons(extractors)
        spectra = spectra_on(*ranges, extractors, rtol=rtol)
        known = None if y_P is None else target_moments(P, one_hot(y_P))
        clauses = {
            name: clause_c(ranges[0], matrix, known)
            for name, matrix in extractors.items()
            if matrix is not None
        }
        gaps = {name: clause.gap for name, clause in clauses.items()}
        ceiling = rir_ceiling(*ranges, rtol=rtol)
        limit = ridge_convention_ceiling(*ranges, ridge=ridge, rtol=rtol)
        measures = measures_table(spectra, compared, ridge=ridge, loss_gaps=gaps)
        by_rtol = rtol_sweep(finest, extractors, compared, ridge=ridge, default=rtol)
        by_ridge = ridge_sweep(spectra, compared, ridge=ridge)
    with clock.stage("alignment"):
        found = directions(K_P, K_H, extractors, rtol=rtol)
    with clock.stage("bootstrap") as tick:
        intervals, reason = None, "" if replicates else "it was switched off"
        if replicates and not all(part.can_resample for part in moments):
            reason = (
                f"at D = {P.dimension:,d} the covariances of enough groups of rows, "
                f"{8 * P.dimension**2 / 2**20:,.0f} MiB each, do not fit into the memory set aside for them"
            )
        if not reason:
            intervals = bootstrap(
                (moments[0], moments[1]), extractors, compared, rtol=rtol, ridge=ridge,
                replicates=replicates, seed=seed, threads=threads, on_replicates=tick,
            )  # fmt: skip
    with clock.stage("attackers") as tick:
        attack = attack_section(
            H, moments[1].rows, y, extractors, kind=kind, attackers=attackers, budget=budget, seed=seed,
            on_attack=lambda extractor, attacker: tick(0, None),
        )  # fmt: skip
    return Audit(
        pretrain=facts[0],
        harmful=facts[1],
        extractors={
            name: (P.dimension, P.dimension) if matrix is None else (matrix.shape[0], matrix.shape[1])
            for name, matrix in extractors.items()
        },
        compared=tuple(compared),
        rtol=rtol,
        ridge=ridge,
        ceiling=ceiling,
        ridge_limit=limit,
        kappa=pd.DataFrame(kappa_rows(spectra, ridge=ridge)),
        measures=measures,
        rtol_sweep=by_rtol,
        ridge_sweep=by_ridge,
        directions=found,
        clause_c=clauses,
        intervals=intervals,
        no_intervals=reason,
        attack=attack,
        columns=pair.columns,
        notes=pair.notes,
        settings={
            "standardise": standardise,
            "replicates": replicates,
            "groups": len(moments[0].groups),
            "scheduler": bool(scheduler),
        },
        seconds=clock.seconds,
        peak_mib=own_peak().mib,
        seed=seed,
    )


def check_numbers(ridge: float, rtol: float | None, replicates: int) -> None:
    """Refuse numbers out of range before anything is read."""
    if not 0 < ridge < np.inf:
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
    if rtol is not None and not 0 <= rtol < 1:
        raise InvalidInputError(f"rtol must lie in [0, 1), got {rtol}.")
    if replicates != 0 and replicates < 20:
        raise InvalidInputError(
            f"replicates must be 0 (no bootstrap) or at least 20, got {replicates}: fewer make no interval."
        )


def _opened(features: FeaturesLike, max_dimension: int) -> FeatureStream:
    """Return a stream of whatever was given."""
    if isinstance(features, FeatureStream):
        return features
    if isinstance(features, str | os.PathLike):
        return open_feature_stream(features, max_dimension=max_dimension)
    return array_stream(features, max_dimension=max_dimension)
