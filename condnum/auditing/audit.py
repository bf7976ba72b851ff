"""The audit as one call, and its record: condition numbers with intervals, limits, steps, attackers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import TargetKind, own_state
from condnum.auditing.lights import (
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
from condnum.probing.probe import seen_steps
from condnum.probing.race import AttackBudget
from condnum.progress import report_event
from condnum.theory.kappa import (
    PUBLISHED_RIDGE,
    Clauses,
    ConditionNumber,
    Convention,
    Immunization,
    Seen,
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
#: What is judged where no extractor was given: a closed form (θ* = K_P^{-1/2}, or that at (ii) just below 1),
#: or erasure by half of the rows.
Judged = Literal["pareto", "max_rir", "erase"]
#: The quantile 0.975 of Student's t with 9 degrees of freedom.
_T = 2.2621571628
#: What the table of measures has an interval of.
_WITH_ENDS = ("kappa_benign", "kappa_harmful", "harmful_ratio", "benign_ratio", "rir")


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
    measures: pd.DataFrame  # of `measures_table`
    attack: Attacks
    price: Attacks  # solved heads on the benign task
    #: Objects that are no part of the written record: matrices `(D, D_hid)` by name; what attackers met of
    #: each; what was read, in sentences.
    thetas: Mapping[str, NDArray[Any]] = field(metadata={"record": False})
    maps: Mapping[str, Any] = field(metadata={"record": False})
    notes: Sequence[str] = field(metadata={"record": False})

    def __repr__(self) -> str:
        """Return the card as text."""
        from condnum.auditing.card import card_text

        return card_text(self)

    def _repr_html_(self) -> str:
        """Return the card as the report shows it."""
        from condnum.auditing.card import card_html

        return card_html(self)

    @property
    def judged(self) -> Sequence[str]:
        """The extractors that the card is about: those that were given, or else what `method` makes."""
        return self.given or [self.method]

    def row(self, extractor: str, convention: str) -> pd.Series:
        """Return a row of `measures`, in `compact` or `ridge`."""
        table = self.measures
        return table[(table["extractor"] == extractor) & (table["convention"] == convention)].iloc[0]

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
    """Audit the features of a pre-training and a harmful task, and what an extractor makes of them.

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
            beyond 256 features with fewer rows, steps and attackers; the card says so.
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
    if theta is not None and method != "pareto":
        raise InvalidInputError(f"method {method} has no effect with theta; leave one of them out.")
    if not epsilon > 0:
        raise InvalidInputError(f"epsilon must be positive, got {epsilon}.")
    P, H, notes = open_pair(benign, harmful, drop=drop)
    answers, said = read_answers(kind, y_benign=(benign, y_benign), y_harmful=(harmful, y_harmful))
    if kind != "auto" and not answers:
        raise InvalidInputError(f"kind {kind} has no effect without targets; give y_harmful.")
    if budget is not None and ("y_harmful" not in answers or not attackers):
        raise InvalidInputError("budget has no effect without attackers; give y_harmful, and attackers=True.")
    columns = next((stream.columns for stream in (P, H) if stream.named), None)
    thetas, maps = read_extractors(theta, P.dimension, columns, (RAW, *get_args(Judged)))
    given, D = tuple(thetas), P.dimension
    step = _stages(D, given or (method,), {name for name in answers if attackers})
    pair = look_at(P, H, [*notes, *said], standardize=standardize, seed=seed, **answers)
    rows, half = (pair.benign, pair.harmful), not given and method == "erase"
    D_P, D_H = rows[0].task, rows[1].task
    step("limits")
    limit, bound = limit_of(D_P, D_H), ridge_convention_limit(D_P, D_H, ridge=epsilon)
    if half:
        maps[method] = eraser_of(rows[1], answers.get("y_harmful"), seed)
        thetas[method] = np.asarray(maps[method].theta_)
    elif not given:
        made = max_rir(D_P) if method == "max_rir" else pareto(D_P, D_H, limit=limit)
        maps[method] = thetas[method] = made.numpy()
    step("condition numbers")
    limits = {"compact": limit.value, "ridge": bound}
    # What is made of these rows belongs to them: to hold it still over others would say too much.
    ends = [leave_out_ends(of, thetas if given else {}) for of in rows]
    measures = measures_table(rows, thetas, ends, epsilon=epsilon, limits=limits)
    attack, price = (
        Attacks.none("switched off" if name in answers else "no targets")
        for name in ("y_harmful", "y_benign")
    )
    if attackers:
        spend = budget or audit_budget(D, seed)
        attack = attack_rows(
            rows[1], answers.get("y_harmful"), maps, budget=spend, seed=seed, half=half,
            on_attack=lambda extractor, attacker: step(f"{attacker} on {extractor}"),
        )  # fmt: skip
        price = attack_rows(
            rows[0], answers.get("y_benign"), maps, budget=spend, seed=seed, attackers=PRICE,
            on_attack=lambda extractor, attacker: step(f"benign task, {attacker} on {extractor}"),
        )  # fmt: skip
    step("the card")
    return Audit(
        benign=task_facts("D_P", rows[0]),
        harmful=task_facts("D_H", rows[1]),
        given=given,
        method=method,
        rtol=rank_tolerance(D, max(P.stored_eps, H.stored_eps)) ** 2,
        epsilon=epsilon,
        standardize=standardize,
        seed=seed,
        limit=limit,
        ridge_limit=bound,
        measures=measures,
        attack=attack,
        price=price,
        thetas=thetas,
        maps=maps,
        notes=pair.notes,
    )


def _stages(columns: int, judged: Sequence[str], learned: set[str]) -> Callable[[str], None]:
    """Return what reports a stage: all of them are known before the first, so that the total is honest."""
    stages, met = ["limits", "condition numbers"], (RAW, *judged)
    if "y_harmful" in learned:
        stages += [f"{who} on {of}" for of in met for who in panel_attackers(columns)]
        stages += [f"{who} on {of}" for of in met for who in NONLINEAR]
    if "y_benign" in learned:
        stages += [f"benign task, {who} on {of}" for of in met for who in PRICE]
    places = {stage: i for i, stage in enumerate([*stages, "the card"])}
    return lambda stage: report_event(stage=stage, done=places[stage], total=len(stages))


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


def measures_table(
    rows: tuple[TaskRows, TaskRows],
    thetas: Mapping[str, Any],
    ends: Sequence[Ends],
    *,
    epsilon: float,
    limits: Mapping[str, float],
) -> pd.DataFrame:
    """Measure every extractor at unit scale, and the raw features after them, in both conventions.

    κ, (i), (ii) and RIR have intervals `_low` and `_high`; slowdowns are those of the actual targets' probes.
    """
    P, H = (of.task for of in rows)
    probes, table = (P.probe, H.probe), list[dict[str, Any]]()
    compared = {name: Seen.of(theta, P, H, probes) for name, theta in thetas.items()}
    for extractor, seen in {**compared, RAW: None}.items():
        for convention in get_args(Convention):
            places = (P.raw, H.raw) if seen is None else (seen.benign, seen.harmful)
            kappas = [kappa(of, convention, ridge=epsilon) for of in places]
            logs = [_logarithms(of, extractor, convention, epsilon) for of in ends]
            row: dict[str, Any] = {
                "extractor": extractor,
                "convention": convention,
                "kappa_benign": kappas[0].value,
                "kappa_harmful": kappas[1].value,
                "rank_benign": kappas[0].rank,
                "rank_harmful": kappas[1].rank,
                **dict.fromkeys(("clause_a", "clause_b", "clause_c")),
            }
            moving = dict(zip(_WITH_ENDS[:2], ([logs[0]], [logs[1]]), strict=True))
            if seen is not None:
                result = seen.immunization(convention, ridge=epsilon)
                raw = [_logarithms(of, RAW, convention, epsilon) for of in ends]
                benign, harmful = (
                    None if own is None or base is None else own - base
                    for own, base in zip(logs, raw, strict=True)
                )
                moving |= dict(zip(_WITH_ENDS[2:], ([harmful], [benign], [harmful, benign]), strict=True))
                row |= {name: getattr(result, name) for name in _WITH_ENDS[2:]}
            for name, logarithms in moving.items():
                row[f"{name}_low"], row[f"{name}_high"] = interval(row[name], *logarithms)
            if seen is not None:
                narrow = seen.benign.dimension < P.dimension  # which the bound of ridge κ is not about
                limit = math.nan if narrow and convention == "ridge" else limits[convention]
                row |= {"rir_limit": limit, "share": fraction_of_limit(result.rir, limit)}
                row |= _clauses(result, row) | {"fit_lost": result.fit_lost} | _steps(seen)
            table.append(row)
    return pd.DataFrame(table)


def _logarithms(ends: Ends, name: str, convention: Convention, ridge: float) -> NDArray[np.float64] | None:
    """Return log κ without a group each."""
    if name not in ends:
        return None
    return np.log(
        [
            ConditionNumber.of(top**2, low**2, rank, size, convention, ridge).value
            for top, low, rank, size in ends[name]
        ]
    )


def _steps(seen: Seen) -> dict[str, float]:
    """Return steps of gradient descent on the actual targets, also on raw features, and their ratio."""
    found = dict[str, float]()
    for name, of in zip(("benign", "harmful"), seen.probes, strict=True):
        steps = None if of is None else seen_steps(of)
        raw, own = (math.nan, math.nan) if steps is None else (steps.raw, steps.fixed)
        found |= {f"{name}_steps_raw": raw, f"{name}_steps": own, f"{name}_slowdown": own / raw}
    return found


def _clauses(result: Immunization, row: Mapping[str, Any]) -> dict[str, bool | None]:
    """Return each clause: as its number says, but None where its interval lies on both sides of 1."""
    kept, most = result.clauses, 1 + result.tolerance

    def crosses(name: str) -> bool:
        return bool(row[f"{name}_low"] <= most < row[f"{name}_high"])

    return {
        "clause_a": None if crosses("harmful_ratio") else kept.harmful_slower,
        "clause_b": None if crosses("benign_ratio") else kept.benign_no_slower,
        "clause_c": kept.fit_kept,
    }
