"""The audit as one call, and its record: condition numbers with intervals, limits, steps, attackers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import TargetKind, own_state
from condnum.auditing.lights import (
    ERASED,
    NONLINEAR,
    PRICE,
    Attacks,
    attack_rows,
    audit_budget,
    eraser_of,
    panel_attackers,
)
from condnum.auditing.rows import (
    GROUPS,
    TaskFacts,
    TaskRows,
    look_at,
    open_pair,
    read_answers,
    read_extractors,
    task_facts,
)
from condnum.data.files import FeaturesLike, TargetsLike
from condnum.errors import InvalidInputError, check_known
from condnum.files import output_folder, write_json
from condnum.probing.panel import RAW
from condnum.probing.probe import ProbeSteps, seen_steps
from condnum.probing.race import AttackBudget
from condnum.progress import report_event
from condnum.theory.kappa import (
    PUBLISHED_RIDGE,
    Clauses,
    ConditionNumber,
    Convention,
    Immunization,
    Seen,
    ThetaScale,
    kappa,
    unit_scale,
)
from condnum.theory.limits import (
    RirLimit,
    fraction_of_limit,
    limit_of,
    max_rir,
    pareto,
    ridge_convention_limit,
)
from condnum.theory.linalg import triangle_ends
from condnum.theory.task import graded_triangle, rank_tolerance, stored_extractor

#: Name of the file.
AUDIT_FILE = "audit.json"
#: Yardsticks in closed form: θ* = K_P^{-1/2}, and that at (ii) just below 1.
CLOSED = MAX_RIR, PARETO = "max_rir", "pareto"
#: Extractors that are judged where none was given: two closed forms, and erasure from half of the rows.
Judged = Literal["pareto", "max_rir", "erase"]
#: The three ways in which RIR is measured: compact κ does not see the scale of θ, ridge κ does.
MEASURES: tuple[tuple[Convention, ThetaScale], ...] = (
    ("compact", "unit"),
    ("ridge", "unit"),
    ("ridge", "as_trained"),
)
#: The quantile 0.975 of Student's t with 9 degrees of freedom.
_T = 2.2621571628
#: What `measures_table` has three numbers of each: value, low, high.
RATIOS = ("harmful_ratio", "benign_ratio", "rir")


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What an audit found about a pair of tasks and extractors, in numbers."""

    benign: TaskFacts
    harmful: TaskFacts
    given: Sequence[str]  # names of the extractors that were given
    method: str  # what is judged where none was given
    rtol: float  # relative rank tolerance of K and H(θ), (D·eps)² of eigenvalues
    epsilon: float  # of the ridge convention
    standardize: bool
    seed: int
    limit: RirLimit  # compact
    ridge_limit: float  # bound on RIR in the ridge convention, unit scale
    kappa: pd.DataFrame  # of `kappa_table`
    measures: pd.DataFrame  # of `measures_table`
    probes: Mapping[str, Sequence[ProbeSteps | None]]  # steps of the benign and harmful targets' probes
    attack: Attacks
    price: Attacks  # solved heads on the benign task
    #: Objects that are no part of the written record: matrices `(D, D_hid)` by name, closed forms included;
    #: what attackers met of each that was given; what was read, in sentences.
    thetas: Mapping[str, NDArray[Any]] = field(metadata={"record": False})
    maps: Mapping[str, Any] = field(metadata={"record": False})
    notes: Sequence[str] = field(metadata={"record": False})

    def __repr__(self) -> str:
        """Return the card as text."""
        from condnum.auditing.card import card_lines

        return "\n".join(card_lines(self))

    def _repr_html_(self) -> str:
        """Return the card as the report shows it."""
        from condnum.auditing.card import card_html

        return card_html(self)

    @property
    def judged(self) -> Sequence[str]:
        """The extractors that the card is about: those that were given, or else a closed form."""
        return self.given or [self.method]

    def row(self, extractor: str, convention: str, theta_scale: str = "unit") -> pd.Series:
        """Return a row of `measures`, in `compact` or `ridge`, at scale `unit` or `as_trained`."""
        return _row_with(self.measures, extractor=extractor, convention=convention, theta_scale=theta_scale)

    def kappa_of(self, task: str, extractor: str, convention: str) -> pd.Series:
        """Return κ of the `benign` or `harmful` task's Hessian at an extractor, with its rank."""
        return _row_with(self.kappa, task=task, extractor=extractor, convention=convention)

    def clauses(self, extractor: str, convention: str) -> Clauses:
        """Return Definition 3.1 clause by clause: what interval and number say, None where not known."""
        row = self.row(extractor, convention)
        return Clauses(*(None if row[f"clause_{of}"] is None else bool(row[f"clause_{of}"]) for of in "abc"))

    def as_json(self) -> dict[str, Any]:
        """Return the record as values that strict JSON holds: infinities as words, NaN as null."""
        return {
            of.name: _strict(getattr(self, of.name)) for of in fields(self) if of.metadata.get("record", 1)
        }

    def save(self, folder: str | Path) -> list[str]:
        """Write audit.json into a folder; return the names of the files."""
        write_json(output_folder(folder) / AUDIT_FILE, self.as_json())
        return [AUDIT_FILE]


def _row_with(table: pd.DataFrame, **values: str) -> pd.Series:
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])].iloc[0]


def _strict(value: Any) -> Any:
    """Return a value that strict JSON holds; tables become records."""
    if isinstance(value, pd.DataFrame):
        value = value.to_dict("records")
    elif isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@own_state()
def audit(
    benign: FeaturesLike,
    harmful: FeaturesLike,
    *,
    theta: Any = None,
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
        y_benign: `(N_P,)` targets of D_P, on which clause (c) depends where θ loses rank; by default `y` of
            an .npz file.
        y_harmful: `(N_H,)` targets of D_H, which the attackers learn; by default `y` of an .npz file.
        kind: What targets are: `auto`, `regression` or `classification`.
        drop: Names of columns to leave out, with commas.
        standardize: Scale the columns of each task to mean 0 and standard deviation 1.
        method: What is judged without `theta`: `pareto`, `max_rir`, or `erase`, made of half of the rows.
        epsilon: ε of the ridge convention, in the units of K.
        attackers: Run the attack panel; of more than 16 classes, on 16 random mixtures of their columns, and
            beyond 256 features with fewer steps; the card says so.
        budget: What each attacker may spend.
        seed: Of all random numbers.

    Returns:
        The record, which prints as its card.

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
    answers, said = read_answers(benign, harmful, y_benign, y_harmful, kind)
    if kind != "auto" and not answers:
        raise InvalidInputError(f"kind {kind} has no effect without targets; give y_harmful.")
    if budget is not None and ("y_harmful" not in answers or not attackers):
        raise InvalidInputError("budget has no effect without attackers; give y_harmful, and attackers=True.")
    columns = next((stream.columns for stream in (P, H) if stream.named), None)
    given, maps = read_extractors(theta, P.dimension, columns, (RAW, *CLOSED, ERASED))
    pair = look_at(P, H, [*notes, *said], standardize=standardize, seed=seed, **answers)
    rows = pair.benign, pair.harmful
    y, half = answers.get("y_harmful"), method == ERASED
    eraser = None
    if half:
        eraser = maps[ERASED] = eraser_of(rows[1], y, seed, half=True)
        given[ERASED] = np.asarray(eraser.theta_)
    elif not given and y is not None and attackers:
        with suppress(InvalidInputError):  # too few rows, or no linear part in them
            eraser = eraser_of(rows[1], y, seed, half=False)
    judged = list(given) or [method]
    step = _stages(P.dimension, judged, eraser is not None, {name for name in answers if attackers})
    step("limits")
    D_P, D_H = (found.task for found in rows)
    limit = limit_of(D_P, D_H)
    closed = {MAX_RIR: max_rir(D_P), PARETO: pareto(D_P, D_H, limit=limit)}
    thetas = {**given, **{name: of.numpy() for name, of in closed.items()}}
    compared = {name: Seen.of(of, D_P, D_H) for name, of in thetas.items()}
    step("intervals")
    # A closed form or an eraser belongs to these rows: to hold it still over others would say too much.
    moving = {} if half else {name: given[name] for name in given}
    spread = [leave_out_ends(of, moving) for of in rows]

    attack, price = (Attacks.none("switched off" if name in answers else "no targets") for name in
                     ("y_harmful", "y_benign"))  # fmt: skip
    if attackers:
        met: dict[str, Any] = dict(maps) or {method: thetas[method]}
        spend = budget or audit_budget(P.dimension, seed)
        both = met if eraser is None else {**met, ERASED: eraser}
        attack = attack_rows(
            rows[1], y, both, budget=spend, seed=seed, half=half,
            on_attack=lambda extractor, attacker: step(f"{attacker} on {extractor}"),
        )  # fmt: skip
        price = attack_rows(
            rows[0], answers.get("y_benign"), met, budget=spend, seed=seed, attackers=PRICE,
            on_attack=lambda extractor, attacker: step(f"benign task, {attacker} on {extractor}"),
        )  # fmt: skip
    step("")
    return Audit(
        benign=task_facts("D_P", rows[0]),
        harmful=task_facts("D_H", rows[1]),
        given=tuple(given),
        method=method,
        rtol=rank_tolerance(P.dimension, max(P.stored_eps, H.stored_eps)) ** 2,
        epsilon=epsilon,
        standardize=standardize,
        seed=seed,
        limit=limit,
        ridge_limit=ridge_convention_limit(D_P, D_H, ridge=epsilon),
        kappa=kappa_table(rows, compared, spread, epsilon=epsilon),
        measures=measures_table(rows, compared, spread, epsilon=epsilon, compact_limit=limit.value),
        probes={
            name: [None if of is None else seen_steps(of) for of in seen.probes]
            for name, seen in compared.items()
        },
        attack=attack,
        price=price,
        thetas=thetas,
        maps=maps,
        notes=pair.notes,
    )


def _stages(columns: int, judged: Sequence[str], erased: bool, learned: set[str]) -> Callable[[str], None]:
    """Return what reports a stage: all of them are known before the first, so that the total is honest."""
    stages = ["limits", "intervals"]
    if "y_harmful" in learned:
        met = dict.fromkeys([RAW, *judged, *[ERASED] * erased])
        stages += [f"{who} on {of}" for of in met for who in panel_attackers(columns)]
        stages += [f"{who} on {of}" for of in met for who in NONLINEAR]
    if "y_benign" in learned:
        stages += [f"benign task, {who} on {of}" for of in (RAW, *judged) for who in PRICE]
    places = {stage: i for i, stage in enumerate([*stages, ""])}
    return lambda stage: report_event(stage=stage or "the card", done=places[stage], total=len(stages))


#: Extreme singular values, ranks and dimensions without one group each, by extractor.
Ends = Mapping[str, Sequence[tuple[float, float, int, int]]]


def leave_out_ends(of: TaskRows, thetas: Mapping[str, Any]) -> Ends:
    """Measure features without one group of rows each; none where a rank changes, or there are no groups."""
    task = of.task
    if not of.groups:
        return {}
    V = task.vectors  # rows without a group lie in the same space where their rank is the same
    maps = {
        name: V.mT @ unit_scale(stored_extractor(theta, columns=task.columns))
        for name, theta in thetas.items()
    }
    found: dict[str, list[tuple[float, float, int, int]]] = {RAW: [], **{name: [] for name in maps}}
    for X in of.leave_outs():
        B = X @ V
        for name, T in {RAW: None, **maps}.items():
            image = B if T is None else B @ T
            size = task.dimension if T is None else T.shape[1]
            tolerance = task.rtol if T is None else rank_tolerance(max(task.dimension, size))
            found[name].append((*triangle_ends(graded_triangle(image), tolerance), size))
    if {rank for _, _, rank, _ in found[RAW]} != {task.rank}:
        return {}
    return {name: ends for name, ends in found.items() if len({rank for _, _, rank, _ in ends}) == 1}


def interval(value: float, *logarithms: NDArray[np.float64] | None) -> tuple[float, float]:
    r"""Return the 95 % interval of a positive number, by the delete-a-group jackknife of its logarithm.

    Ten groups of rows are drawn at random, and the number is computed without each of them:
    :math:`s^2 = \frac{9}{10}\sum_g (\ell_g - \bar\ell)^2`, and the interval is the number times
    :math:`e^{\pm t s}`, with t the quantile 0.975 of Student's t with 9 degrees of freedom (Kott, *The
    delete-a-group jackknife*, 2001). Variances of independent tasks add up. Rows must be independent.

    It is an estimate, of variance and not of bias. In 200 samples of 10 columns, it held (i) and κ of the
    population in 93 to 97 % with Gaussian and Student's t rows (3 degrees of freedom), of N = 20·D and 100·D.
    Where the ends of the spectrum are clusters of almost equal eigenvalues, so that κ of a sample is biased,
    it held (i) in about 80 % and κ in 60 to 69 %.

    Args:
        value: The number on all rows.
        logarithms: `(10,)` logarithms without a group each, of one task each; None: not known.

    Returns:
        Both ends; NaN where something is not known.
    """
    if any(of is None or not np.isfinite(of).all() for of in logarithms):
        return math.nan, math.nan
    variance = sum(float(((of - of.mean()) ** 2).sum()) for of in logarithms if of is not None)
    factor = math.exp(min(_T * math.sqrt((1 - 1 / GROUPS) * variance), 700.0))
    return value / factor, value * factor


def _logarithms(
    ends: Ends, name: str, convention: Convention, ridge: float, scale: float = 1.0
) -> NDArray[np.float64] | None:
    """Return log κ without a group each."""
    if name not in ends:
        return None
    values = [
        ConditionNumber.of((top * scale) ** 2, (low * scale) ** 2, rank, size, convention, ridge).value
        for top, low, rank, size in ends[name]
    ]
    return np.log(values)


def kappa_table(
    rows: tuple[TaskRows, TaskRows], compared: Mapping[str, Seen], spread: Sequence[Ends], *, epsilon: float
) -> pd.DataFrame:
    """List κ of both tasks' Hessians at every extractor, at unit scale, with intervals."""
    table = []
    for name, own, ends in zip(("benign", "harmful"), rows, spread, strict=True):
        places = {RAW: own.task.raw} | {of: getattr(seen, name) for of, seen in compared.items()}
        for extractor, seen in places.items():
            for convention in get_args(Convention):
                found = kappa(seen, convention, ridge=epsilon)
                low, high = interval(found.value, _logarithms(ends, extractor, convention, epsilon))
                table.append(
                    {
                        "task": name, "extractor": extractor, "convention": convention, "kappa": found.value,
                        "low": low, "high": high, "sigma_max": found.sigma_max, "sigma_min": found.sigma_min,
                        "rank": found.rank, "dimension": found.dimension,
                    }
                )  # fmt: skip
    return pd.DataFrame(table)


def measures_table(
    rows: tuple[TaskRows, TaskRows],
    compared: Mapping[str, Seen],
    spread: Sequence[Ends],
    *,
    epsilon: float,
    compact_limit: float,
) -> pd.DataFrame:
    """Measure every extractor in every convention and at every scale of θ, with intervals and limits."""
    (P, H), table = (of.task for of in rows), []
    for extractor, seen in compared.items():
        for convention, theta_scale in MEASURES:
            result = seen.immunization(convention, theta_scale=theta_scale, ridge=epsilon)
            limit = math.nan
            if convention == "compact":
                limit = compact_limit
            elif seen.benign.dimension >= P.dimension:
                norm = P.dimension * (1 if theta_scale == "unit" else seen.size**2)
                limit = ridge_convention_limit(P, H, ridge=epsilon, squared_norm=norm)
            scale = 1.0 if theta_scale == "unit" else seen.size
            parts = []
            for ends in spread:
                with_theta, raw = (
                    _logarithms(ends, name, convention, epsilon, by)
                    for name, by in ((extractor, scale), (RAW, 1.0))
                )
                parts.append(None if with_theta is None or raw is None else with_theta - raw)
            benign, harmful = parts
            ends_of = dict(zip(RATIOS, ([harmful], [benign], [harmful, benign]), strict=True))
            row: dict[str, Any] = {
                "extractor": extractor,
                "convention": convention,
                "theta_scale": theta_scale,
            }
            for name, logarithms in ends_of.items():
                value = getattr(result, name)
                low, high = interval(value, *logarithms)
                row |= {name: value, f"{name}_low": low, f"{name}_high": high}
            slow = (math.nan if of is None else of for of in seen.slowdowns)
            table.append(
                row
                | {
                    "rir_limit": limit,
                    "share": fraction_of_limit(result.rir, limit),
                    "rank_benign": result.benign_after.rank,
                    "rank_harmful": result.harmful_after.rank,
                    **judged_clauses(result, row),
                    "fit_lost": result.fit_lost,
                    **dict(zip(("benign_slowdown", "harmful_slowdown"), slow, strict=True)),
                }
            )
    return pd.DataFrame(table)


def judged_clauses(result: Immunization, row: Mapping[str, Any]) -> dict[str, bool | None]:
    """Return each clause: as its number says, but None where its interval lies on both sides of 1."""
    kept, most = result.clauses, 1 + result.tolerance

    def crosses(name: str) -> bool:
        return bool(row[f"{name}_low"] <= most < row[f"{name}_high"])

    return {
        "clause_a": None if crosses("harmful_ratio") else kept.harmful_slower,
        "clause_b": None if crosses("benign_ratio") else kept.benign_no_slower,
        "clause_c": kept.fit_kept,
    }
