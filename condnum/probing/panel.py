"""The attack panel: every attacker on every extractor, in one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.arrays import (
    ArrayLike,
    FloatArray,
    TargetKind,
    as_tensor,
    extracted,
    extractor_affine,
    own_state,
    rank_eps,
    same_columns,
)
from condnum.errors import InvalidInputError, UnknownNameError, check_known
from condnum.numbers import num
from condnum.probing.attackers import ATTACKERS, Attacker
from condnum.probing.filters import worst_steps
from condnum.probing.probe import log_spaced, probed
from condnum.probing.race import AttackBudget, AttackProblem, Race, Rows
from condnum.theory.task import Task

#: Name of the raw inputs in a panel.
RAW = "raw"


@dataclass(frozen=True, eq=False)
class AttackReport:
    r"""Results of `attack_panel`.

    An attacker has reached ε at the first step with :math:`L \le L^* + \varepsilon(L_0 - L^*)`, `L₀` the loss
    without features and `L*` the least one of a linear probe on the raw inputs: one goal for all θ. Where
    features do not allow it, the steps are infinite.
    """

    #: A row per extractor, attacker and ε: `steps` (NaN: not within `last_step`), the best candidate's
    #: `choice`, what κ predicts; and `loss` and `accuracy` on the rows that judge, at the step and candidate
    #: that those rows prefer which choose.
    table: pd.DataFrame
    curves: pd.DataFrame  # the best candidate's excess loss by step, with what was scored there
    extractors: pd.DataFrame  # κ, rank, `start_loss` L₀, `optimum` on its features, `raw_optimum` L*
    spectra: pd.DataFrame  # σ_i of each extractor's probe, and the share of the excess loss that lies there
    skipped: pd.DataFrame  # attackers that cannot run, with the reason
    baseline: str
    budget: AttackBudget

    def __repr__(self) -> str:
        """Return the steps of each attacker, and what the panel found; the tables are fields."""
        return "\n".join([self.steps_table().to_string(index=False), *attack_sentences(self)])

    @cached_property
    def factors(self) -> pd.DataFrame:
        """Immunization factor of each attacker: steps on an extractor / steps on the baseline.

        `bound` is `exact`, `at least` (not finished within the budget), or `unknown` (nor was the baseline).
        """
        raw, keys = self.table["extractor"] == self.baseline, ["attacker", "epsilon"]
        baseline = self.table[raw].set_index(keys)["steps"].rename("baseline_steps")
        table = self.table[~raw].join(baseline, on=keys).reset_index(drop=True)
        known = np.isfinite(table["baseline_steps"]) | np.isinf(table["steps"])
        spent = table["steps"].fillna(table["last_step"])
        table["factor"] = (spent / table["baseline_steps"].replace(np.inf, np.nan).fillna(1)).where(known)
        table["bound"] = np.where(known, np.where(table["steps"].notna(), "exact", "at least"), "unknown")
        columns = ["attacker", "label", "extractor", "epsilon", "baseline_steps", "steps"]
        return table[[*columns, "factor", "bound"]]

    def worst_case(self, extractor: str, *, epsilon: float | None = None) -> pd.Series:
        """Return the attacker whom an extractor slows least: the row of `factors` with the least factor."""
        table = self.at(self.factors, epsilon)
        known = table[table["extractor"] == extractor]
        if known.empty:
            raise UnknownNameError("extractor", extractor, list(dict.fromkeys(table["extractor"])))
        known = known.dropna(subset="factor")
        if known.empty:
            raise InvalidInputError(
                f"no attacker reached the target on '{self.baseline}', so the factor is undefined; raise the "
                "budget."
            )
        return known.sort_values("factor", kind="stable").iloc[0]

    def steps_table(self, *, epsilon: float | None = None) -> pd.DataFrame:
        """Return steps as text, attackers × extractors; `>N`: N did not suffice, `∞`: out of reach."""
        table = self.at(self.table, epsilon)
        reached = table["steps"].map("{:,.0f}".format).replace("inf", "∞")
        text = reached.where(table["steps"].notna(), table["last_step"].map(">{:,.0f}".format))
        return _wide(table.assign(text=text), self.extractors["extractor"])

    def factor_table(self, *, epsilon: float | None = None) -> pd.DataFrame:
        """Return factors as text, attackers × extractors; `>`: at least, `—`: unknown, `∞`: out of reach."""
        names = self.extractors["extractor"]
        return factor_text(self.at(self.factors, epsilon), names[names != self.baseline])

    def at(self, table: pd.DataFrame, epsilon: float | None) -> pd.DataFrame:
        """Return the rows of one target, by default `budget.reported_epsilon`."""
        chosen = self.budget.reported_epsilon if epsilon is None else epsilon
        if chosen not in self.budget.epsilons:
            raise UnknownNameError("epsilon", chosen, [f"{e:g}" for e in self.budget.epsilons])
        return table[table["epsilon"] == chosen]


def factor_text(factors: pd.DataFrame, order: Iterable[str]) -> pd.DataFrame:
    """Return the factors of one target as text, attackers × extractors in an order."""
    marks = factors["bound"].map({"exact": "", "at least": ">"})
    text = (marks + factors["factor"].map(num)).fillna("—")
    return _wide(factors.assign(text=text), order)


def _wide(table: pd.DataFrame, order: Iterable[str]) -> pd.DataFrame:
    """Spread the column `text` over extractors, in the order of the panel."""
    if table.empty:
        return pd.DataFrame(columns=["attacker", *order])
    wide = table.pivot(index="label", columns="extractor", values="text")
    wide = wide.reindex(index=list(dict.fromkeys(table["label"])), columns=list(order)).fillna("skipped")
    return wide.reset_index(names="attacker").rename_axis(columns=None)


def attack_sentences(report: AttackReport) -> list[str]:
    """Say of each extractor who is slowed least, and what a panel cannot know."""
    said, raw = list[str](), report.baseline
    for name in report.extractors["extractor"]:
        try:
            worst = report.worst_case(name) if name != raw else None
        except InvalidInputError:
            said.append(f"{name}: no attacker reached the target on {raw}, so no factor is known.")
            continue
        if worst is None:
            continue
        if np.isinf(worst["factor"]):
            goal = f"{100 * worst['epsilon']:g} %"
            said.append(f"{name}: {goal} is out of reach for every attacker of the panel.")
            continue
        more = "at least " if worst["bound"] == "at least" else ""
        said.append(
            f"{name}: the least-slowed attacker is {worst['label']}, with {more}{num(worst['factor'])} times "
            f"the {worst['baseline_steps']:,.0f} steps on {raw}."
        )
    goal = f"{100 * report.budget.reported_epsilon:g} % of the excess loss"
    return [*said, f"Steps are to {goal}, within this budget; another attacker may do better."]


@own_state()
def attack_panel(
    X: ArrayLike | Task,
    y: Any = None,
    extractors: Mapping[str, Any] | Any = None,
    *,
    kind: TargetKind = "auto",
    held_out: tuple[ArrayLike, Any] | None = None,
    budget: AttackBudget | None = None,
    attackers: str | Attacker | Sequence[str | Attacker] | None = None,
    only: str | Sequence[str] | None = None,
    on_attack: Callable[[str, str], None] | None = None,
) -> AttackReport:
    """Attack extractors with a panel of training algorithms, each at its best hyper-parameters.

    The raw inputs are the baseline, and are added as "raw" if no value is None. Every attacker has an
    intercept and meets what an extractor returns; features and targets are brought to unit mean square for
    those who descend, as the scale of θ is free. Classes are learned by least squares, as one-hot columns; of
    more than 16, attackers who pass over the data in each step learn 16 random mixtures.

    Args:
        X: `(N, D)` inputs of the harmful task; or a `Task` with targets, such as one of a covariance, in
            place of rows and targets: attackers who need rows are skipped.
        y: `(N,)` labels, or `(N,)` or `(N, m)` numbers.
        extractors: By name: an array `(D, k)`, a module, an `Immunizer`, an `Eraser`, or None for raw inputs.
            One extractor alone is named "theta".
        kind: `regression` or `classification`; default: integers, booleans and text are labels.
        held_out: Inputs and targets of other rows. A random half of them chooses the step and candidate of
            each attacker, the other half judges by loss and, of classes, accuracy.
        budget: Steps, targets ε, batch size and seed of each attacker.
        attackers: Those that take part, by name (`condnum.probing.ATTACKERS`) or as an `Attacker`; default:
            all.
        only: Name or names of the extractors to attack; default: all.
        on_attack: Is called with the names of extractor and attacker before each attack.

    Returns:
        One table of steps and scores, factors, curves and optima.

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
    budget = AttackBudget() if budget is None else budget
    thetas = dict(extractors) if isinstance(extractors, Mapping) else {}
    if extractors is not None and not isinstance(extractors, Mapping):
        thetas = {"theta": extractors}
    if thetas.get(RAW) is not None:
        raise InvalidInputError("the name 'raw' is reserved for the baseline; rename that extractor.")
    baseline = next((name for name, value in thetas.items() if value is None), RAW)
    thetas = {baseline: None, **thetas}
    attackers = [attackers] if isinstance(attackers, str | Attacker) else attackers
    chosen = [_attacker(of) for of in (ATTACKERS if attackers is None else dict.fromkeys(attackers))]
    if not chosen:
        raise InvalidInputError("no attacker was chosen; name at least one, or leave the option out for all.")
    attacked = _chosen("extractor", only, thetas)
    problems = _problems(_inputs(X, y, kind, held_out), thetas, budget)
    rows, curves, skipped = list[dict[str, Any]](), list[pd.DataFrame](), list[dict[str, str]]()
    for extractor in attacked:
        problem = problems[extractor]
        for attacker in chosen:
            facts = {"extractor": extractor, "attacker": attacker.name, "label": attacker.label}
            if reason := _obstacle(attacker, problem):
                skipped.append(facts | {"reason": reason})
                continue
            if on_attack is not None:
                on_attack(extractor, attacker.name)
            found, curve = _attacked(attacker, problem, budget)
            rows += [facts | of for of in found]
            curves.append(curve.assign(**facts))
    columns = ["extractor", "attacker", "label", "epsilon", "steps", "last_step", "choice", "predicted_kappa"]
    curve_columns = ["extractor", "attacker", "label", "step", "excess", *_SCORED]
    spectra = [
        pd.DataFrame({"extractor": name, "sigma": of.sigma, "share": of.modes.energy / (of.modes.fit or 1.0)})
        for name, of in problems.items()
    ]
    best = pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=curve_columns)
    return AttackReport(
        table=pd.DataFrame(rows, columns=[*columns, "loss", "accuracy"]),
        curves=best[curve_columns],
        extractors=pd.DataFrame([{"extractor": name} | _facts(of) for name, of in problems.items()]),
        spectra=pd.concat(spectra, ignore_index=True),
        skipped=pd.DataFrame(skipped, columns=["extractor", "attacker", "label", "reason"]),
        baseline=baseline,
        budget=budget,
    )


#: What is scored along a curve: on the rows that judge, and on those that choose.
_SCORED = ("loss", "accuracy", "choosing_loss", "choosing_accuracy")


def _attacker(attacker: str | Attacker) -> Attacker:
    """Return an attacker by its name; one of your own is returned as it is."""
    if isinstance(attacker, Attacker):
        return attacker
    check_known("attacker", attacker, ATTACKERS)
    return ATTACKERS[attacker]


def _chosen(kind: str, names: str | Sequence[str] | None, known: Collection[str]) -> list[str]:
    """Return the names of what takes part, each once; None: all that are known."""
    chosen = list(dict.fromkeys([names] if isinstance(names, str) else known if names is None else names))
    if not chosen:
        raise InvalidInputError(f"no {kind} was chosen; name at least one, or leave the option out for all.")
    for name in chosen:
        check_known(kind, name, known)
    return chosen


def _obstacle(attacker: Attacker, problem: AttackProblem) -> str:
    """Say why an attacker cannot run; empty: it can."""
    if attacker.needs in ("rows", "classes") and problem.rows is None:
        return "it needs rows of features, but a Task was given"
    if attacker.needs == "classes" and not problem.classes:
        return "it needs classes, but the targets are numbers"
    if attacker.needs == "theta" and problem.theta is None:
        return "it needs the matrix of a linear extractor"
    return ""


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What is attacked: a task with an intercept, and its rows, where they are there."""

    task: Task
    rows: tuple[Any, Any] | None = (
        None  # as extractors take them: those that train, and held-out ones or None
    )
    targets: tuple[torch.Tensor, torch.Tensor] | None = None  # one-hot or numbers
    kind: TargetKind = "auto"


def _inputs(X: Any, y: Any, kind: TargetKind, held_out: Any) -> _Inputs:
    """Check what is attacked, and code its targets once."""
    if isinstance(X, Task):
        if y is not None or held_out is not None or kind != "auto":
            raise InvalidInputError(
                "a Task has its targets: y, kind and held_out need rows; give attack_panel(X, y, ...)."
            )
        return _Inputs(probed(X, "task").centered())
    if y is None:
        raise InvalidInputError("an attack needs targets: give attack_panel(X, y), or a Task with targets.")
    task = Task.of(X, y, kind=kind, intercept=True, name="X")
    if task.classes is not None and len(task.classes) < 2:
        only = task.classes[0]
        raise InvalidInputError(f"all {task.rows} labels are {only}: there is nothing to classify.")
    if not task.learnable:
        raise InvalidInputError(
            "the targets have no linear part in the raw inputs: there is nothing to attack; check that rows "
            "and targets are in the same order."
        )
    known: TargetKind = "regression" if task.classes is None else "classification"
    Y, others, held = task.coded(X, y, known)[1], None, None
    if held_out is not None:
        _, others = same_columns(X=X, held_out=held_out[0])
        try:
            held = task.coded(others, held_out[1], known)[1]
        except InvalidInputError as error:
            raise InvalidInputError(f"held_out: {error}") from None
        if held.shape[1] > task.outputs:
            raise InvalidInputError(
                f"held-out targets have labels that are not among those of the training rows, "
                f"{_few(task.classes)}: drop these rows, or train on examples of them."
            )
        if len(held) < 2:
            raise InvalidInputError("held_out needs at least two rows: one chooses, one judges.")
    return _Inputs(task, (X, others), (Y, Y[:0] if held is None else held), known)


def _few(labels: Any) -> str:
    """Name some labels."""
    return ", ".join(map(str, labels[:5])) + ", …" * (len(labels) > 5)


def judging_rows(count: int, seed: int) -> NDArray[np.bool_]:
    """Return which of the held-out rows judge, a random half; the others choose."""
    judges = np.zeros(count, bool)
    judges[np.random.default_rng([seed, count]).permutation(count)[count // 2 :]] = True
    return judges


def _problems(inputs: _Inputs, thetas: Mapping[str, Any], budget: AttackBudget) -> dict[str, AttackProblem]:
    """Return what attackers meet of each extractor; the first one is the raw inputs."""
    task, problems, raw = inputs.task, dict[str, AttackProblem](), None
    for name, theta in thetas.items():
        who, seen, matrix, bias = f"extractor '{name}'", task.raw, None, None
        rows = None if inputs.rows is None else _rows(inputs, theta, who, budget.seed)
        if theta is not None:
            with suppress(InvalidInputError):  # what is not linear has no matrix
                affine, bias = extractor_affine(theta, who, task.columns)
                matrix = as_tensor(affine, who, ndim=2).detach()
            if matrix is not None and (bias is None or rows is None):  # an intercept takes up a bias
                seen = task.through(theta if bias is None else matrix, who)
            elif rows is None:
                raise InvalidInputError(f"{who} has no matrix, and a Task has no rows; give X and y.")
            else:  # a map is met as it answers, which its matrix may not
                own = Task.of(rows.train, rows.targets, kind="regression", intercept=True, name=who)
                weight = next(theta.parameters(), None) if isinstance(theta, torch.nn.Module) else None
                eps = task.eps if weight is None else max(task.eps, rank_eps(weight))
                seen = replace(own, eps=eps).raw
        count, classes = task.rows or task.rank, task.classes is not None
        problem = AttackProblem.of(seen, task.along, rows, count, inputs=raw, classes=classes)
        raw = problem if raw is None else raw
        if theta is None or matrix is not None:
            T = np.eye(task.dimension) if matrix is None else matrix.cpu().numpy()
            problem = replace(problem, theta=T * (raw.scale[0] / problem.scale[0]))
        problems[name] = problem
    return problems


def _rows(inputs: _Inputs, theta: Any, who: str, seed: int) -> Rows:
    """Return the features of an extractor on all rows, centered by those that train."""
    assert inputs.rows is not None
    assert inputs.targets is not None
    X, others = inputs.rows
    Y, held = (of.cpu().numpy() for of in inputs.targets)
    F = _matrix(extracted(theta, X, who), f"features of {who}")
    G = F[:0] if others is None else _matrix(extracted(theta, others, who), f"held-out features of {who}")
    mean = Y.mean(axis=0)
    return Rows(
        train=F - F.mean(axis=0),
        targets=Y - mean,
        held_out=G - F.mean(axis=0),
        held_targets=held - mean,
        mean=mean,
        labels=held.argmax(axis=1) if inputs.task.classes is not None else None,
        judges=judging_rows(len(held), seed),
    )


def _matrix(value: Any, name: str) -> FloatArray:
    """Return finite numbers `(N, d)`."""
    return as_tensor(value, name, ndim=2).detach().cpu().numpy()


def _attacked(
    attacker: Attacker, problem: AttackProblem, budget: AttackBudget
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Run one attacker on one extractor; return its row per ε and its best curve."""
    if problem.flat and not attacker.solves and attacker.needs != "theta":  # nobody moves
        race = Race(problem, ["none"], budget)
        race.observe(np.ones(1), lambda: np.zeros((1, *problem.shape)))
    else:
        with np.errstate(over="ignore", invalid="ignore"):  # candidates that diverge are part of the race
            race = attacker.run(problem, budget)
    loss, accuracy = _reached(race)
    rows, kappa = [], problem.modes.condition
    for epsilon in budget.epsilons:
        b, step = race.first(epsilon)
        never = math.inf if attacker.solves or race.problem.lost > epsilon else math.nan
        rows.append(
            {
                "epsilon": epsilon,
                "steps": never if step is None else float(step),
                "last_step": race.steps[-1],
                "choice": race.choices[b],
                "predicted_kappa": worst_steps(attacker.name, kappa, epsilon) if attacker.predicted else None,
                "loss": loss,
                "accuracy": accuracy,
            }
        )
    return rows, _curve(race, race.first(budget.reported_epsilon)[0])


def _reached(race: Race) -> tuple[float, float]:
    """Return loss and accuracy on the rows that judge, at the step and candidate which the others prefer."""
    scores = np.concatenate(race.scores, axis=1)
    scores = scores[:, ~np.isnan(scores[2])]
    if not scores.size:
        return math.nan, math.nan
    return tuple(scores[:2, np.lexsort((scores[2], -scores[3]))[0]].tolist())


def _curve(race: Race, b: int) -> pd.DataFrame:
    """Return a candidate's curve at log-spaced steps, with what was scored there."""
    scored = pd.DataFrame(np.array(race.scores)[:, :, b], columns=[*_SCORED]).assign(step=race.scored)
    steps = np.array(race.steps)
    kept = np.isin(steps, np.r_[log_spaced(max(1, steps[-1]), 200), race.scored])
    table = pd.DataFrame({"step": steps[kept], "excess": np.array(race.excess)[kept, b]})
    return table.merge(scored, on="step", how="left")


def _facts(problem: AttackProblem) -> dict[str, Any]:
    """Return an extractor's spectrum in numbers, and losses per row in the units of the targets."""
    square, start = problem.scale[1] ** 2, problem.scale[1] ** 2 * problem.shape[1]
    return {
        "kappa": problem.modes.condition,
        "rank": len(problem.sigma),
        "features": problem.shape[0],
        "start_loss": start,
        "optimum": start - square * problem.fit * (1 - problem.lost),
        "raw_optimum": start - square * problem.fit,
    }
