"""The audit as one call: open the tables, read them once, measure, attack."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

import numpy as np

from condnum.arrays import TargetKind, own_state
from condnum.auditing import measures
from condnum.auditing.attacks import AttackSection, attack_section, audit_budget, eraser_of
from condnum.auditing.extractors import ThetaLike, read_extractors
from condnum.auditing.lights import NO_LIGHTS
from condnum.auditing.measures import ERASED, PARETO
from condnum.auditing.result import Audit
from condnum.data.feature_pair import look_at, open_pair
from condnum.data.files import FeaturesLike, TargetsLike, read_targets
from condnum.errors import InvalidInputError, check_known
from condnum.probing.race import AttackBudget
from condnum.progress import report_event
from condnum.theory.kappa import PUBLISHED_RIDGE, Seen
from condnum.theory.limits import limit_of, max_rir, pareto, ridge_convention_limit
from condnum.theory.task import rank_tolerance

#: Extractors that are judged where none was given: two closed forms, and erasure from half of the rows.
Judged = Literal["pareto", "max_rir", "erase"]


@own_state()
def audit(
    benign: FeaturesLike,
    harmful: FeaturesLike,
    *,
    theta: ThetaLike | Mapping[str, ThetaLike] | None = None,
    y_benign: TargetsLike | None = None,
    y_harmful: TargetsLike | None = None,
    kind: TargetKind = "auto",
    drop: str = "",
    standardize: bool = False,
    method: Judged = "pareto",
    epsilon: float = PUBLISHED_RIDGE,
    attackers: bool = True,
    budget: AttackBudget | None = None,
    seed: int = 0,
) -> Audit:
    """Audit the features of a pre-training and a harmful task, and what extractors make of them.

    Args:
        benign: `(N_P, D)` features of D_P: an array, tensor, data frame or file.
        harmful: `(N_H, D)` features of D_H; columns with names are matched by name.
        theta: Extractor `(D, D_hid)`: an array, linear layers, an `Immunizer`, an `Eraser` or a file of one
            of them; or a dictionary of named ones. Rows with names are matched to columns. Attackers meet
            what `transform` or the layers return; κ is that of the matrix.
        y_benign: `(N_P,)` targets of D_P, on which clause (c) depends where θ loses rank.
        y_harmful: `(N_H,)` targets of D_H, which the attackers learn.
        kind: What targets are: `auto`, `regression` or `classification`.
        drop: Names of columns to leave out, with commas.
        standardize: Scale the columns of each task to mean 0 and standard deviation 1.
        method: What is judged without `theta`: `pareto`, `max_rir`, or `erase`, made of half of the rows.
        epsilon: ε of the ridge convention, in the units of K.
        attackers: Run the attack panel; of more than 16 classes, on 16 random mixtures of their columns, and
            beyond 256 features with fewer rates and in float32; the report says how.
        budget: What each attacker may spend.
        seed: Of all random numbers.

    Returns:
        The audit, which prints as its verdict.

    Raises:
        InvalidInputError: Columns that do not fit, or an option that has no effect beside the others.
        RankError: θ or a task's features are zero.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(200, 4))
        >>> found = audit(rows, rows[:100] * [1, 1, 1, 3], theta=np.diag([1, 1, 1, 2.0]))
        >>> bool(found.row("theta", "compact")["harmful_ratio"] > 1)
        True
    """
    check_known("method", method, get_args(Judged))
    if theta is not None and method != PARETO:
        raise InvalidInputError(f"method {method} has no effect with theta; leave one of them out.")
    if not epsilon > 0:
        raise InvalidInputError(f"epsilon must be positive, got {epsilon}.")
    P, H, notes = open_pair(benign, harmful, drop=drop)
    answers: dict[str, Any] = {}
    for name, value in (("y_benign", y_benign), ("y_harmful", y_harmful)):
        if value is not None:
            answers[name], said = read_targets(value, kind=kind, name=name)
            notes.extend(said)
    if kind != "auto" and not answers:
        raise InvalidInputError(f"kind {kind} has no effect without targets; give y_harmful.")
    if budget is not None and ("y_harmful" not in answers or not attackers):
        raise InvalidInputError("budget has no effect without attackers; give y_harmful, and attackers=True.")
    columns = next((stream.columns for stream in (P, H) if stream.named), None)
    given, maps = read_extractors(theta, P.dimension, columns)

    report_event(stage="rows", done=0, total=2 + attackers)
    pair = look_at(P, H, notes, standardize=standardize, seed=seed, **answers)
    tasks = pair.benign, pair.harmful
    half = method == ERASED
    if half:
        maps[ERASED] = eraser_of(tasks[1], answers.get("y_harmful"), seed, half=half)
        given[ERASED] = np.asarray(maps[ERASED].theta_)
    report_event(stage="spectra", done=1, total=2 + attackers)
    D_P, D_H = (found.task for found in tasks)
    limit = limit_of(D_P, D_H)
    closed = {measures.MAX_RIR: max_rir(D_P), PARETO: pareto(D_P, D_H, limit=limit)}
    thetas = {**given, **{name: theta.numpy() for name, theta in closed.items()}}
    compared = {name: Seen.of(theta, D_P, D_H) for name, theta in thetas.items()}

    attack, price = AttackSection(None, "the panel was switched off"), NO_LIGHTS
    attacked = maps or {method: thetas[method]}
    if attackers:
        report_event(stage="attackers", done=2, total=3)
        spend = budget or audit_budget(tasks[1].sample.shape[1], seed)
        attack = attack_section(
            tasks[1],
            answers.get("y_harmful"),
            attacked,
            erase=not given,
            half=half,
            seed=seed,
            budget=spend,
            on_attack=lambda extractor, attacker: report_event(stage=f"{attacker} on {extractor}"),
        )
        with suppress(InvalidInputError):  # targets without a linear part have no price
            price = attack_section(
                tasks[0],
                answers.get("y_benign"),
                attacked,
                erase=False,
                seed=seed,
                budget=spend,
                attackers=["closed_form", "ridge"],
            ).lights
    return Audit(
        benign=measures.task_facts("D_P", tasks[0]),
        harmful=measures.task_facts("D_H", tasks[1]),
        given=tuple(given),
        thetas=thetas,
        maps=maps,
        rtol=rank_tolerance(P.dimension, max(P.stored_eps, H.stored_eps)) ** 2,
        epsilon=epsilon,
        limit=limit,
        ridge_limit=ridge_convention_limit(D_P, D_H, ridge=epsilon),
        kappa=measures.kappa_table(D_P, D_H, compared, epsilon=epsilon),
        measures=measures.measures_table(D_P, D_H, compared, epsilon=epsilon),
        probes=measures.own_probes(compared),
        attack=attack,
        price=price,
        notes=pair.notes,
        method=method,
        standardize=standardize,
        seed=seed,
    )
