"""The attack panel: every attacker on every extractor, from raw inputs or from features."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from condnum.arrays import (
    ArrayLike,
    FloatArray,
    TargetKind,
    extracted,
    extractor_affine,
    named_columns,
    own_state,
)
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.probing.attackers import attacker_names, get_attacker
from condnum.probing.line_search import log_spaced_steps
from condnum.probing.race import (
    AttackBudget,
    Attacker,
    AttackProblem,
    AttackRun,
    Race,
    best,
    zero_weights,
)
from condnum.probing.report import AttackReport
from condnum.probing.space import ProbeSpace
from condnum.probing.tasks import AttackTask, float_matrix, probed
from condnum.theory.task import Task

STEP_COLUMNS = [
    "extractor", "attacker", "label", "epsilon", "steps", "last_step", "passes",
    "choice", "at_edge", "predicted_kappa", "start_loss", "optimum",
]  # fmt: skip
CURVE_COLUMNS = ["extractor", "attacker", "label", "step", "excess", "loss", "evaluation_loss", "accuracy"]
#: Loss and accuracy on the rows that choose, where these are not those that judge.
CHOOSING_COLUMNS = ["choosing_loss", "choosing_accuracy"]

#: Name of the raw inputs in a panel.
RAW = "raw"


@own_state()
def attack_panel(
    features: ArrayLike | Task,
    targets: Any = None,
    extractors: Mapping[str, Any] | Any = None,
    *,
    kind: TargetKind = "auto",
    held_out: tuple[ArrayLike, Any] | None = None,
    choosing: int = 0,
    decode: tuple[ArrayLike, ArrayLike] | None = None,
    budget: AttackBudget | None = None,
    attackers: str | Attacker | Sequence[str | Attacker] | None = None,
    only: str | Sequence[str] | None = None,
    on_attack: Callable[[str, str], None] | None = None,
    title: str = "",
) -> AttackReport:
    """Attack extractors with a panel of training algorithms, each at its best hyper-parameters.

    The raw inputs are the baseline, and are added as "raw" if no value is None. A target that an extractor
    puts out of reach, because its features allow less than raw inputs by more than ε, takes infinitely many
    steps. Features, inputs and targets are each divided by their root mean square, as the scale of
    θ is free. Probes have no intercept: center the features, or add a column of ones, if an attacker would.

    Args:
        features: `(N, D)` inputs of the harmful task; or a `Task` with targets, such as one of a covariance,
            in place of rows and targets: attackers who need rows are skipped.
        targets: `(N,)` or `(N, m)` floats; or `(N,)` labels, integers, booleans or text, which are learned as
            ±1 (a column per class beyond two) and decoded by the largest output.
        extractors: By name: an array `(D, k)`, a module, an `Immunizer`, an `Eraser`, or None for raw inputs.
            One extractor alone is named "theta".
        kind: `regression` or `classification`; default by the targets.
        held_out: Features and targets on which loss and accuracy are measured; default: those of the attack.
        choosing: So many of the first held-out rows choose step and candidate of `reached`, the others judge
            them. With 0 all held-out rows do both, and what is reached is optimistic.
        decode: Labels `0 … C − 1` of the rows that are measured, and a matrix `(m, C)` that takes outputs to
            scores of classes: accuracy is measured, too. Labels need none.
        budget: Steps, targets ε, batch size and seed of each attacker.
        attackers: Those that take part, by name (`attacker_names`) or as an `Attacker`; default: all.
        only: Name or names of the extractors to attack; default: all.
        on_attack: Is called with the names of extractor and attacker before each attack.
        title: Shown in figures.

    Returns:
        Steps, factors, curves and optima; `skipped` lists the attackers that cannot run, with the reason.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, or there is nothing to learn.
        UnknownNameError: Unknown attacker or extractor.

    Examples:
        An ill-conditioned θ slows gradient descent, but neither whitening nor the closed form.

        >>> X = np.random.default_rng(0).normal(size=(50, 3))
        >>> theta = np.diag([1.0, 1.0, 0.1])
        >>> report = attack_panel(X, X @ np.ones(3), theta, attackers=["gd", "whiten", "closed_form"])
        >>> report.steps_table()["theta"].tolist()[1:]
        ['1', '1']
    """
    thetas = dict(extractors) if isinstance(extractors, Mapping) else {"theta": extractors}
    raw = [name for name, value in thetas.items() if value is None]
    if thetas.get(RAW) is not None:
        raise InvalidInputError("the name 'raw' is reserved for the baseline; rename that extractor.")
    baseline = raw[0] if raw else RAW
    thetas = {baseline: None, **thetas}
    budget = AttackBudget() if budget is None else budget
    attackers = [attackers] if isinstance(attackers, str | Attacker) else attackers
    chosen = [
        get_attacker(of) for of in (attacker_names() if attackers is None else dict.fromkeys(attackers))
    ]
    if not chosen:
        raise InvalidInputError("no attacker was chosen; name at least one, or leave the option out for all.")
    attacked = _chosen("extractor", only, thetas)
    rows = not isinstance(features, Task)
    if rows and targets is None:
        raise InvalidInputError("an attack needs targets: give attack_panel(X, y), or a Task with targets.")
    task = (
        AttackTask.of(features, targets, kind, held_out)
        if rows
        else AttackTask.of_task(probed(features, "task"))
    )
    coded = task.decode if decode is None else (np.asarray(decode[0]), float_matrix(decode[1], "decode"))
    least, others = check_integer("choosing", choosing, 0), 0 if task.X_test is None else len(task.X_test)
    if least and least >= others:
        raise InvalidInputError(
            f"choosing={choosing} of {others} held-out rows leaves none that judge; give more of them."
        )
    problems, scale = _problems(thetas, task, rows, coded, choosing)
    steps, curves, reached, skipped = [], [], [], []
    for extractor in attacked:
        problem = problems[extractor]
        for attacker in chosen:
            facts = {"extractor": extractor, "attacker": attacker.name, "label": attacker.label}
            if reason := _obstacle(attacker, problem):
                skipped.append(facts | {"reason": reason})
                continue
            if on_attack is not None:
                on_attack(extractor, attacker.name)
            step, curve, most = _attacked(attacker, problem, budget, problems[baseline].space, scale)
            reached.append(facts | most)
            steps.append(step.assign(**facts))
            curves.append(curve.assign(**facts))
    own = [_facts(of.space, problems[baseline].space, scale) for of in problems.values()]
    spectra = [of.space.spectrum.table.assign(extractor=name) for name, of in problems.items()]
    return AttackReport(
        steps=_table(steps, STEP_COLUMNS),
        curves=_table(curves, CURVE_COLUMNS + CHOOSING_COLUMNS * bool(choosing)),
        extractors=pd.DataFrame(own, index=pd.Index(problems, name="extractor")).reset_index(),
        spectra=pd.concat(spectra),
        skipped=pd.DataFrame(skipped, columns=["extractor", "attacker", "reason"]),
        baseline=baseline,
        kind=task.kind,
        budget=budget,
        held_out=task.X_test is not None,
        title=title,
        reached=pd.DataFrame(reached),
    )


def _table(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Return tables below each other, with these columns."""
    return pd.concat(parts or [pd.DataFrame(columns=columns)], ignore_index=True)[columns]


def _chosen(kind: str, names: str | Sequence[str] | None, known: Collection[str]) -> list[str]:
    """Return the names of what takes part, each once; None: all that are known."""
    names = [names] if isinstance(names, str) else names
    chosen = list(dict.fromkeys(known if names is None else names))
    if not chosen:
        raise InvalidInputError(f"no {kind} was chosen; name at least one, or leave the option out for all.")
    for name in chosen:
        check_known(kind, name, known)
    return chosen


def _obstacle(attacker: Attacker, problem: AttackProblem) -> str:
    """Say why an attacker cannot run; empty: it can."""
    if attacker.needs == "rows" and not problem.rows:
        return "it needs rows of features, but a covariance was given"
    if attacker.needs == "theta" and problem.theta is None:
        return "it needs the matrix of a linear extractor"
    return ""


def _problems(
    thetas: Mapping[str, Any],
    task: AttackTask,
    rows: bool,
    decode: tuple[Any, FloatArray] | None = None,
    choosing: int = 0,
) -> tuple[dict[str, AttackProblem], float]:
    """Bring everything to unit scale; return also the scale of losses."""
    unit = _root_mean_square(task.y, "targets")
    targets, held = task.y / unit, None if task.y_test is None else task.y_test / unit
    if not 0 < unit * unit < np.inf:
        raise InvalidInputError(
            f"targets of size {unit:.3g} have squares outside the range of float64; rescale them."
        )
    D, raw_size = task.X.shape[1], _root_mean_square(task.X, "inputs")
    raw_test = None if task.X_test is None else task.X_test / raw_size
    # one for all extractors: one optimum serves all
    scored: dict[str, Any] = {"test_targets": held, "decode": decode, "choosing": choosing}
    raw = ProbeSpace(task.X / raw_size, targets, raw_test, **scored)
    problems: dict[str, AttackProblem] = {}
    for name, theta in thetas.items():
        who, (X, X_test) = f"extractor '{name}'", task.inputs
        features = float_matrix(extracted(theta, X, who), f"features of {who}")
        size = _root_mean_square(features, f"features of {who}")
        test = None if X_test is None else float_matrix(extracted(theta, X_test, who), who) / size
        space = ProbeSpace(features / size, targets, test, **scored)
        if not problems:
            raw.__dict__["spectrum"] = space.spectrum  # the baseline's features are the inputs
            if space.nothing_to_learn:
                raise InvalidInputError(
                    f"the targets have no linear part in the features of '{name}', the baseline: there is "
                    "nothing to attack; check that rows and targets are in the same order."
                )
        inputs, matrix = raw, _matrix(theta, D, named_columns(task.inputs[0]))
        if matrix is not None:
            matrix[:D] *= raw_size
            if len(matrix) > D:  # the last row is a bias, for a column of ones
                test_one = None if raw_test is None else np.c_[raw_test, np.ones(len(raw_test))]
                one = np.c_[raw.features, np.ones(len(raw.features))]
                inputs = replace(raw, features=one, test=test_one)
            matrix /= size
        problems[name] = AttackProblem(space, inputs, matrix, rows)
    return problems, unit**2


def _matrix(theta: Any, dimension: int, columns: Sequence[str] | None) -> FloatArray | None:
    """Return θ `(D, k)`, with a bias as the last row of `(D + 1, k)`; None: it has no matrix."""
    if theta is None:
        return np.eye(dimension)
    with suppress(InvalidInputError):
        matrix, bias = extractor_affine(theta, columns=columns)
        parts = [matrix] if bias is None else [matrix, bias[None]]
        return np.concatenate([float_matrix(part, "theta") for part in parts])
    return None


def _root_mean_square(values: FloatArray, what: str) -> float:
    """Return the scale of an array, whose squares may leave float64, or say that it is zero."""
    largest = np.abs(values).max()
    if largest == 0:
        raise InvalidInputError(f"{what} are all zero: there is nothing to attack.")
    return float(largest * np.sqrt(((values / largest) ** 2).mean()))


def fit_lost(space: ProbeSpace, raw: ProbeSpace) -> float:
    """Return which fraction of what raw inputs allow to be learned features do not; negative: more."""
    return (space.optimum - raw.optimum) / (raw.start_loss - raw.optimum)


def _attacked(
    attacker: Attacker, problem: AttackProblem, budget: AttackBudget, raw: ProbeSpace, scale: float
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, float]]:
    """Run one attacker on one extractor; return its steps per ε, its best curve, and its best score."""
    space, lost = attacker.space(problem), np.inf
    if space.nothing_to_learn:  # zero weights are optimal: no attacker moves
        race, start = Race(space, ["none"], budget), zero_weights(space, 1)
        race.observe(0, np.ones(1), lambda: start)
        run = AttackRun(race.traces(), space)
    else:
        run = attacker.run(problem, budget)
        lost = fit_lost(run.space, raw)
    scores = np.concatenate([trace.scores for trace in run.traces])
    # by accuracy where there are classes, then by loss: both of the rows that choose
    _, loss, accuracy, _, _ = scores[np.lexsort((scores[:, 3], -scores[:, 4]))[0]]
    most = {"loss": float(loss) * scale, "accuracy": float(accuracy)}
    steps = pd.DataFrame(_step(run, e, scale, lost) for e in budget.epsilons)
    return steps, _curve(run, budget, scale), most


def _step(run: AttackRun, epsilon: float, scale: float, lost: float) -> dict[str, Any]:
    """Return the best candidate for a target; infinite steps where θ puts it out of reach."""
    trace, step = best(run.traces, epsilon)
    last, passes = int(trace.steps[-1]), trace.steps if trace.passes is None else trace.passes
    return {
        "epsilon": epsilon,
        "steps": np.inf if lost > epsilon else np.nan if step is None else float(step),
        "last_step": last,
        "passes": passes[trace.steps == (last if step is None else step)][0] * run.batch_fraction,
        "choice": trace.choice,
        "at_edge": trace.edge,
        "predicted_kappa": run.kappa_steps.get(epsilon, np.nan),
        "start_loss": run.space.start_loss * scale,
        "optimum": run.space.optimum * scale,
    }


def _curve(run: AttackRun, budget: AttackBudget, scale: float) -> pd.DataFrame:
    """Return the best candidate's curve at log-spaced steps, with what was evaluated there."""
    trace, _ = best(run.traces, budget.reported_epsilon)
    seen = pd.DataFrame(trace.scores, columns=["step", "evaluation_loss", "accuracy", *CHOOSING_COLUMNS])
    last = int(trace.steps[-1])
    kept = np.isin(trace.steps, np.r_[log_spaced_steps(max(1, last), 200), last, seen["step"]])
    table = pd.DataFrame({"step": trace.steps[kept], "excess": trace.excess[kept]})
    optimum = run.space.optimum
    table["loss"] = (optimum + table["excess"] * (run.space.start_loss - optimum)) * scale
    seen[["evaluation_loss", "choosing_loss"]] *= scale
    return table.merge(seen.astype({"step": np.int64}), on="step", how="left")


def _facts(space: ProbeSpace, raw: ProbeSpace, scale: float) -> dict[str, Any]:
    """Return one extractor's spectrum in numbers, and both optima."""
    modes = space.spectrum.modes
    return {
        "kappa": modes.condition,
        "rank": len(modes.sigma),
        "features": space.features.shape[1],
        "rows": len(space.features),
        "start_loss": space.start_loss * scale,
        "optimum": space.optimum * scale,
        "baseline_optimum": raw.optimum * scale,
    }
