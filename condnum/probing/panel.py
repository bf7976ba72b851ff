"""The attack panel: every attacker on every extractor, from raw inputs or from features."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.arrays import ArrayLike
from condnum.errors import InvalidInputError, check_known
from condnum.probing.attackers import AttackBudget, AttackProblem, AttackRun, best
from condnum.probing.line_search import log_spaced_steps
from condnum.probing.objectives import ProbeSpace, Spectrum
from condnum.probing.registry import attacker_names, get_attacker
from condnum.probing.report import AttackReport
from condnum.probing.tasks import AttackTask, float_matrix

STEP_COLUMNS = [
    "extractor", "attacker", "label", "informed", "epsilon", "steps", "last_step", "passes",
    "choice", "at_edge", "predicted_kappa", "predicted_spectrum", "start_loss", "optimum",
]  # fmt: skip


#: Name of the raw inputs in a panel.
RAW = "raw"


def attack_panel(
    theta: Mapping[str, ArrayLike | None] | ArrayLike,
    task: AttackTask,
    *,
    budget: AttackBudget | None = None,
    attackers: Sequence[str] | None = None,
    extractors: Sequence[str] | None = None,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackReport:
    """Attack linear extractors with a panel of training algorithms, each at its best hyper-parameters.

    `theta` are extractors `(D, k)` by name, None for the raw inputs; or one extractor, named "theta". The raw
    inputs are the baseline, wherever they stand, and are added as "raw" if no value is None. An attacker that
    cannot run is listed in `skipped`. A target that θ puts out of reach, because its features allow less than
    raw inputs by more than ε, takes infinitely many steps; where nothing linear is left, no attacker is run.
    Features, inputs and regression targets are each divided by one number, their root mean square: the scale
    of θ is free, and no grid of learning rates should see it. Losses are in the units of y.

    Examples:
        An ill-conditioned θ slows gradient descent, but neither whitening nor the closed form.

        >>> X = np.random.default_rng(0).normal(size=(50, 3))
        >>> task = AttackTask(X, X @ np.ones(3))
        >>> report = attack_panel(np.diag([1.0, 1.0, 0.1]), task, attackers=["gd", "whiten", "closed_form"])
        >>> report.steps_table()["theta"].tolist()[1:]
        ['1', '1']
    """
    thetas: dict[str, ArrayLike | None] = dict(theta) if isinstance(theta, Mapping) else {"theta": theta}
    raw = [name for name, value in thetas.items() if value is None]
    if thetas.get(RAW) is not None:
        raise InvalidInputError("the name 'raw' is reserved for the baseline; rename that extractor.")
    if len(raw) > 1:
        raise InvalidInputError(f"several extractors are None (the raw inputs): {', '.join(raw)}; keep one.")
    raw = raw or [RAW]
    thetas = {raw[0]: None, **thetas}
    budget = AttackBudget() if budget is None else budget
    chosen = [get_attacker(name) for name in _chosen("attacker", attackers, attacker_names())]
    attacked = _chosen("extractor", extractors, thetas)
    problems, scale = _problems(thetas, task)
    steps, curves, skipped = [], [], []
    for extractor, problem in problems.items():
        for attacker in chosen if extractor in attacked else ():
            if task.kind not in attacker.kinds:
                reason = f"it only attacks {' and '.join(attacker.kinds)}"
                skipped.append({"extractor": extractor, "attacker": attacker.name, "reason": reason})
                continue
            if on_attack is not None:
                on_attack(extractor, attacker.name)
            facts = {"extractor": extractor, "attacker": attacker.name, "label": attacker.label}
            known = facts | {"informed": attacker.informed}
            space, raw_space = attacker.space(problem), problems[raw[0]].space
            if space.nothing_left:
                start = raw_space.objective.start_loss * scale
                flat = {"steps": np.inf, "last_step": 0, "passes": 0.0, "choice": "none"}
                flat |= {"at_edge": False, "start_loss": start, "optimum": start}
                steps += [known | flat | {"epsilon": epsilon} for epsilon in budget.epsilons]
                loss, accuracy = space.evaluate(
                    np.zeros((1, space.features.shape[1], raw_space.objective.outputs))
                )
                seen = {"evaluation_loss": loss[0] * scale, "accuracy": accuracy[0]}
                curves.append(pd.DataFrame([facts | {"step": 0, "excess": 1.0, "loss": start} | seen]))
                continue
            run = attacker.run(problem, budget)
            lost = lost_share(run.space, raw_space)
            steps += [known | _step(run, epsilon, scale, lost) for epsilon in budget.epsilons]
            curves.append(_curve(run, facts, budget, scale))
    spectra = []
    for name, problem in problems.items():
        S = problem.space.spectrum
        columns = {"index": np.arange(1, S.rank + 1), "sigma": S.sigma, "share": S.shares}
        spectra.append(pd.DataFrame({"extractor": name, **columns}))
    return AttackReport(
        steps=pd.DataFrame(steps, columns=STEP_COLUMNS),
        curves=pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(),
        extractors=_extractor_facts(problems, raw[0], budget, scale),
        spectra=pd.concat(spectra),
        skipped=pd.DataFrame(skipped, columns=["extractor", "attacker", "reason"]),
        baseline=raw[0],
        kind=task.kind,
        budget=budget,
        held_out=task.X_test is not None,
        title=task.name,
    )


def _chosen(kind: str, names: Sequence[str] | None, known: Collection[str]) -> list[str]:
    """Return the names of what takes part, each once; None: all that are known."""
    chosen = list(dict.fromkeys(known if names is None else names))
    if not chosen:
        raise InvalidInputError(f"no {kind} was chosen; name at least one, or leave the option out for all.")
    for name in chosen:
        check_known(kind, name, known)
    return chosen


def _problems(
    thetas: Mapping[str, ArrayLike | None], task: AttackTask
) -> tuple[dict[str, AttackProblem], float]:
    """Bring everything to unit scale; return also the scale of squared losses."""
    labels, held, unit = task.y, task.y_test, 1.0
    if task.kind == "regression":
        unit = _root_mean_square(labels, "targets")
        labels, held = labels / unit, None if held is None else held / unit
    if not 0 < unit * unit < np.inf:
        raise InvalidInputError(
            f"targets of size {unit:.3g} have squares outside the range of float64; rescale them."
        )
    D, raw_size = task.X.shape[1], _root_mean_square(task.X, "inputs")
    raw = ProbeSpace(task.X / raw_size, labels, task.kind)  # one for all extractors: one optimum serves all
    problems: dict[str, AttackProblem] = {}
    first = None
    for name, value in thetas.items():
        T = np.eye(D) if value is None else float_matrix(value, "theta")
        if T.shape[0] != D:
            raise InvalidInputError(f"theta has {T.shape[0]} rows, but the inputs have {D} columns.")
        features = float_matrix(task.X @ T, f"features of '{name}'")
        size = _root_mean_square(features, f"features of '{name}'")
        test = None if task.X_test is None else task.X_test @ T / size
        space = ProbeSpace(features / size, labels, task.kind, test, held, reference=first)
        if first is None and space.nothing_left:
            raise InvalidInputError(
                f"the targets have no linear part in the features of '{name}', the baseline: there is "
                "nothing to attack; check that rows and targets are in the same order."
            )
        first = first or space
        problems[name] = AttackProblem(space, raw, T * (raw_size / size))
    return problems, unit**2


def _root_mean_square(values: np.ndarray, what: str) -> float:
    """Return the scale of an array, or say that it is zero; a power of two keeps the squares in range."""
    _, exponent = np.frexp(np.abs(values).max())
    size = float(np.ldexp(np.sqrt((np.ldexp(values, -exponent) ** 2).mean()), exponent))
    if size == 0:
        raise InvalidInputError(f"{what} are all zero: there is nothing to attack.")
    return size


def lost_share(space: ProbeSpace, raw: ProbeSpace) -> float:
    """Return which fraction of what raw inputs allow to be learned features do not; negative: more."""
    optimum = raw.convex_optimum.loss
    return (space.convex_optimum.loss - optimum) / (raw.objective.start_loss - optimum)


def _step(run: AttackRun, epsilon: float, scale: float, lost: float) -> dict[str, Any]:
    """Return the best candidate for a target; infinite steps where θ puts it out of reach."""
    trace, step = best(run.traces, epsilon)
    last, objective = int(trace.steps[-1]), run.space.objective
    return {
        "epsilon": epsilon,
        "steps": np.inf if lost > epsilon else np.nan if step is None else float(step),
        "last_step": last,
        "passes": trace.passes_to(last if step is None else step) * run.pass_share,
        "choice": trace.choice,
        "at_edge": trace.edge,
        "predicted_kappa": run.kappa_steps.get(epsilon, np.nan),
        "predicted_spectrum": run.spectrum_steps.get(epsilon, np.nan),
        "start_loss": objective.start_loss * scale,
        "optimum": objective.optimum * scale,
    }


def _curve(run: AttackRun, facts: dict[str, Any], budget: AttackBudget, scale: float) -> pd.DataFrame:
    """Return the best candidate's curve at log-spaced steps, with what was evaluated there."""
    trace, _ = best(run.traces, budget.headline)
    wanted = np.r_[log_spaced_steps(max(1, int(trace.steps[-1])), 200), trace.steps[-1]]
    if trace.evaluated is not None:
        wanted = np.r_[wanted, trace.evaluated[:, 0].astype(np.int64)]
    kept = np.isin(trace.steps, wanted)
    objective = run.space.objective
    table = pd.DataFrame({"step": trace.steps[kept], "excess": trace.excess[kept]}).assign(**facts)
    table["loss"] = (objective.optimum + table["excess"] * (objective.start_loss - objective.optimum)) * scale
    if trace.evaluated is not None:
        seen = pd.DataFrame(trace.evaluated, columns=["step", "evaluation_loss", "accuracy"])
        seen["evaluation_loss"] *= scale
        table = table.merge(seen.astype({"step": np.int64}), on="step", how="left")
    return table.reindex(columns=[*facts, "step", "excess", "loss", "evaluation_loss", "accuracy"])


def effective_condition(spectrum: Spectrum, epsilon: float) -> float:
    """Return `σ₁/σ_j`, j the first index beyond which at most a share ε of the excess loss lies."""
    tail = np.cumsum(spectrum.shares[::-1])[::-1]
    needed = spectrum.sigma[tail > epsilon]
    return float(spectrum.sigma[0] / needed[-1]) if len(needed) else np.nan


def _extractor_facts(
    problems: Mapping[str, AttackProblem], baseline: str, budget: AttackBudget, scale: float
) -> pd.DataFrame:
    """Return a row per extractor: spectrum in numbers, both optima and their evidence."""
    raw = problems[baseline].space.convex_optimum.loss
    rows = []
    for name, problem in problems.items():
        space, S = problem.space, problem.space.spectrum
        rows.append(
            {
                "extractor": name,
                "kappa": S.condition,
                "rank": S.rank,
                "features": space.features.shape[1],
                "rows": len(space.features),
                "effective_condition": effective_condition(S, budget.headline),
                "start_loss": space.objective.start_loss * scale,
                "optimum": space.convex_optimum.loss * scale,
                "baseline_optimum": raw * scale,
                "optimum_error": space.convex_optimum.error * scale,
                "optimum_converged": space.convex_optimum.converged,
            }
        )
    return pd.DataFrame(rows)
