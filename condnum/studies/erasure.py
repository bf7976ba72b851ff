"""The experiment on erasure: what is left to attackers of the harmful task, and what it costs the benign one.

Rows of D_H are cut in three: the defender's (who erases), the attacker's, and those on which both are scored;
of D_P two thirds train and a third scores. An attacker is the best of several; features have an intercept.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from condnum.arrays import FloatArray, as_targets
from condnum.data.pairs import load_labeled_pair
from condnum.data.task_pair import TaskPair
from condnum.errors import InvalidInputError, RankError
from condnum.machine import limited_threads
from condnum.methods import immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import AttackBudget, AttackReport, attack_panel
from condnum.probing.heads import (
    Sample,
    chance,
    head_scores,
    linear_heads,
    linear_score,
    nonlinear_score,
    relearned_score,
    score,
)
from condnum.probing.probe import probe_steps
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, Names, Study, at_least
from condnum.studies.frame.cells import Row
from condnum.studies.frame.study import content_checksum
from condnum.theory.erasure import Erasure, erasure, erasure_price
from condnum.theory.kappa import condition_number, relative_immunization_ratio
from condnum.theory.limits import max_rir_immunizer, pareto_immunizer
from condnum.theory.task import Task

#: Pairs that come with scikit-learn.
EMBEDDED = ("digits-8x8", "wine", "breast-cancer", "diabetes")

#: Values of s on the path from raw features (1) to erasure (0).
STRENGTHS = (0.3, 0.1, 0.03, 0.01, 0.001)

#: Rounds of iterated erasure, each on another sample of the defender's rows.
ROUNDS = (2, 4, 8)

#: Relative excess loss that steps are counted to.
EPSILON = 0.01

#: Score above chance that raw features must allow, or fractions of it are not told.
LEAST_MARGIN = 0.05

#: Most columns of a pair that is attacked step by step, and by degree.
ATTACKABLE_COLUMNS = 256

#: Most steps of exact line search, which are iterated.
BUDGET = 2_000

_COLUMNS = (
    "rir", "harmful_ratio", "benign_ratio", "harmful_steps", "benign_steps", "harmful_steps_exact",
    "harmful_own", "harmful_linear", "harmful_nonlinear", "benign_linear", "benign_loss", "price",
)  # fmt: skip


class Extractor(NamedTuple):
    """One θ with its place in the experiment."""

    family: str  # raw, control, path, rank, erase, iterated, front
    label: str
    value: float  # s, k or rounds
    theta: FloatArray  # for κ and steps
    directions: FloatArray | None = None  # what it erases altogether
    maps: Sequence[Erasure] = ()  # what rows pass through, one after the other; none: θ

    @classmethod
    def erasing(cls, family: str, label: str, value: float, *maps: Erasure) -> "Extractor":
        """Return the extractor that consists of these maps."""
        theta = reduce(np.matmul, [of.theta for of in maps])
        return cls(family, label, value, theta, maps[-1].directions if len(maps) == 1 else None, maps)

    def seen(self, of: Sample) -> Sample:
        """Return a sample's features, as they are released."""
        X = reduce(lambda rows, each: each.features(rows), self.maps, of.X)
        return of._replace(X=X if self.maps else X @ self.theta)


@dataclass(frozen=True)
class TaskPairs:
    """Pairs of tasks by name."""

    pairs: Mapping[str, TaskPair]

    @property
    def checksum(self) -> str:
        """SHA-256 of all of them."""
        text = "".join(f"{name} {content_checksum(pair)}\n" for name, pair in self.pairs.items())
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """Names."""
        return ", ".join(self.pairs)


@dataclass(frozen=True)
class Split:
    """Rows of one pair: who sees which."""

    defender: Sample
    attacker: Sample
    judge: Sample
    train: Sample  # of the benign task
    test: Sample

    @classmethod
    def drawn(cls, pair: TaskPair, seed: int, rows: int | None) -> "Split":
        """Draw rows without replacement."""
        rng = np.random.default_rng([seed, 16])

        def parts(X: FloatArray, y: FloatArray) -> list[Sample]:
            order, labels = rng.permutation(len(X))[:rows], as_targets(y, "targets")[1] is not None
            return [Sample(X[part], y[part], labels) for part in np.array_split(order, 3)]

        defender, attacker, judge = parts(*pair.probe_sample)
        first, second, test = parts(*pair.loss_sample)
        train = Sample(np.r_[first.X, second.X], np.r_[first.y, second.y], first.labels)
        return cls(defender, attacker, judge, train, test)


@dataclass(frozen=True)
class ErasureStudy(Study, name="erasure", notebook="erasure"):
    """Slowing and stopping: harmful score left against benign score kept, of erasure and of conditioning."""

    data: Names  # names of `LABELED_PAIRS`, or folders with X_P, y_P, X_H, y_H; empty: `EMBEDDED`
    seeds: Count  # of the split of rows
    rows: Annotated[int, at_least(30)] | None  # of each task at most; None: all

    def check(self) -> None:
        """Choose the pairs where none are given."""
        self.fill(data=EMBEDDED)

    def load(self) -> TaskPairs:
        """Load all pairs."""
        return TaskPairs({name: load_labeled_pair(name) for name in self.data})

    def cells(self, data: TaskPairs) -> list[Cell]:
        """List pairs and splits."""
        return [
            Cell({"pair": name, "seed": seed, "rows": self.rows})
            for name in data.pairs
            for seed in range(self.seeds)
        ]

    def compute(self, data: TaskPairs, cell: Cell) -> CellResult:
        """Measure every extractor on one split."""
        split = Split.drawn(data.pairs[cell["pair"]], cell["seed"], cell["rows"])
        chosen = list(extractors(split, cell["seed"]))
        values = np.array([measured(split, of) for of in chosen])
        row: Row = {
            "chance_harmful": chance(split.judge),
            "chance_benign": chance(split.test),
        }
        names = {
            "family": np.array([of.family for of in chosen]),
            "extractor": np.array([of.label for of in chosen]),
            "value": np.array([of.value for of in chosen]),
        }
        small = split.judge.labels and split.judge.X.shape[1] <= ATTACKABLE_COLUMNS
        degrees = by_degree(split, cell["seed"]) if small else {}
        heads = by_head(split, chosen)
        linear = _COLUMNS.index("harmful_linear")
        for i, of in enumerate(chosen):  # of those that are compared, the best of all heads
            own = heads["head_score"][heads["head_extractor"] == of.label]
            values[i, linear] = max([values[i, linear], *own])
        return CellResult(row, names | dict(zip(_COLUMNS, values.T, strict=True)) | degrees | heads)

    def tables(self, data: TaskPairs, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return a row per extractor and split, and their means with 95 % t-intervals."""
        parts, degrees, heads = [], [], []
        for cell, row, arrays in results:
            at = {"pair": cell["pair"], "seed": cell["seed"]}
            own = {name: array for name, array in arrays.items() if name not in (*DEGREES, *HEADS)}
            table = pd.DataFrame({**at, **own, **row})
            degrees.append(pd.DataFrame(at | {name: arrays.get(name, []) for name in DEGREES}))
            heads.append(pd.DataFrame(at | {name: arrays[name] for name in HEADS}))
            raw = table.iloc[0]
            for task, kind in (("harmful", "linear"), ("harmful", "nonlinear"), ("benign", "linear")):
                floor, name = raw[f"chance_{task}"], f"{task}_{kind}"
                margin = (table[name] - floor) / (raw[name] - floor)
                table[f"{name}_kept"] = margin if raw[name] - floor >= LEAST_MARGIN else np.nan
            parts.append(table.assign(harmful_factor=table["harmful_steps"] / raw["harmful_steps"]))
        found = pd.concat(parts, ignore_index=True)
        every = pd.concat(degrees, ignore_index=True)
        tables = {"results": found, "summary": summary(found), "paired": paired(found)}
        tables["heads"] = head_summary(pd.concat(heads, ignore_index=True))
        return tables | {"degrees": every, "by_degree": degree_summary(every)}


#: Columns that are averaged, with the half-width of a t-interval for those that are compared.
INTERVALS = ("harmful_linear_kept", "harmful_nonlinear_kept", "benign_linear_kept")
SCORES = (*INTERVALS, *_COLUMNS[6:-1])
AVERAGED = (*_COLUMNS, *INTERVALS, "harmful_factor")


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Average over splits: medians of steps, κ's and RIR, means of scores with 95 % t-intervals."""
    keys = ["pair", "family", "extractor", "value"]
    groups = results.groupby(keys, sort=False, dropna=False)
    table = groups[[*AVERAGED]].median()
    table[[*SCORES]] = groups[[*SCORES]].mean()
    for name in INTERVALS:
        table[f"{name}_pm"] = groups[name].agg(half_width)
    return table.assign(splits=groups.size()).reset_index()


def half_width(values: pd.Series) -> float:
    """Return half the width of the 95 % t-interval of a mean; NaN of fewer than two values."""
    known = values.dropna()
    return float(stats.t.ppf(0.975, len(known) - 1) * known.sem()) if len(known) > 1 else np.nan


#: Columns on erasure by degree: an eraser, its control, how many directions are left, scores of heads.
DEGREES = (
    "eraser", "control", "left", "chance", "linear", "quadratic", "kernel", "neighbors", "net", "undone",
    "benign",
)  # fmt: skip

#: Extractors that every head attacks.
COMPARED = ("raw", "shuffled targets", "pareto", "erase")
#: Columns on linear heads: the features, the head, its score on the judge's rows.
HEADS = ("head_extractor", "head", "head_score")


def by_head(split: Split, chosen: Sequence[Extractor]) -> dict[str, Any]:
    """Score every linear head on raw features, the control, `pareto` and erased features."""
    found = [
        (of.label, head, score(predicted, train, test))
        for of in chosen
        if of.label in COMPARED
        for train, test in [(of.seen(split.attacker), of.seen(split.judge))]
        for head, predicted in linear_heads(train, test.X)
    ]
    return {name: np.array(column) for name, column in zip(HEADS, zip(*found, strict=True), strict=True)}


def head_summary(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score of every linear head with the half-width of its 95 % t-interval."""
    groups = heads.groupby(["pair", "head_extractor", "head"], sort=False)["head_score"]
    return groups.agg(score="mean", score_pm=half_width, splits="size").reset_index()


def degree_summary(degrees: pd.DataFrame) -> pd.DataFrame:
    """Return means over splits with half-widths of 95 % t-intervals, also of the best head."""
    table = degrees.assign(best=degrees.loc[:, "linear":"undone"].max(axis=1))
    groups = table.groupby(["pair", "eraser", "control"], sort=False)
    means = groups.mean().drop(columns="seed")
    widths = pd.DataFrame({f"{name}_pm": groups[name].agg(half_width) for name in means})
    return pd.concat([means, widths], axis=1).assign(splits=groups.size()).reset_index()


def by_degree(split: Split, seed: int) -> dict[str, Any]:
    """Attack erasure of degree 1 and of degree 2 with heads of several kinds.

    Degree 2 erases all that quadratic probes could learn, or a quarter or half of the directions. Controls
    are shuffled labels, and as many random directions.
    """
    (X, y, _), rng, found = split.defender, np.random.default_rng([seed, 18]), list[tuple[Any, ...]]()
    erased, wrong = partial(erasure, kind="classification"), rng.permutation(y)
    rank, known = int(np.linalg.matrix_rank(split.defender.centered[0])), chance(split.judge)

    def attack(eraser: str, control: str, by: Erasure | None) -> int:
        of = Extractor("", "", 0, np.eye(X.shape[1]), maps=() if by is None else (by,))
        train, test, benign, judge = map(of.seen, (split.attacker, split.judge, split.train, split.test))
        left = rank if by is None else by.left.shape[1]
        undone = relearned_score(benign.X, split.train.X, train, test)
        found.append(
            (eraser, control, left, known, *head_scores(train, test), undone, linear_score(benign, judge))
        )
        return left

    attack("raw", "", None)
    for eraser, degree, k in (
        ("degree 1", 1, None),
        ("degree 2, all", 2, None),
        ("degree 2, a quarter", 2, rank // 4),
        ("degree 2, half", 2, rank // 2),
    ):
        with suppress(InvalidInputError):  # nothing would be left, or there are fewer directions
            left = attack(eraser, "", erased(X, y, degree=degree, rank=k))
            attack(eraser, "shuffled labels", erased(X, wrong, degree=degree, rank=k))
            targets = rng.normal(size=(len(X), rank - left))
            attack(eraser, "random directions", erasure(X, targets, kind="regression"))
    return {name: np.array(column) for name, column in zip(DEGREES, zip(*found, strict=True), strict=True)}


#: What is compared with what, split by split.
COMPARISONS = (("erase", "shuffled targets"),)


def paired(results: pd.DataFrame) -> pd.DataFrame:
    """Return differences between two extractors on the same splits, with 95 % t-intervals."""
    rows = []
    for kept in ("harmful_linear_kept", "benign_linear_kept"):
        wide = results.pivot(index=["pair", "seed"], columns="extractor", values=kept)
        for extractor, reference in COMPARISONS:
            for pair, all_splits in (wide[extractor] - wide[reference]).groupby("pair", sort=False):
                measured = all_splits.mean(), half_width(all_splits), all_splits.count()
                rows.append((pair, kept, extractor, reference, *measured))
    columns = ["pair", "score", "extractor", "reference", "difference", "difference_pm", "splits"]
    return pd.DataFrame(rows, columns=columns)


def extractors(split: Split, seed: int) -> Iterator[Extractor]:
    """Yield raw features, a control, the path, ranks, iterations and the closed forms of conditioning."""
    X, y, _ = split.defender
    D, rng = X.shape[1], np.random.default_rng([seed, 17])
    erased = partial(erasure, kind=split.defender.kind)
    yield Extractor("raw", "raw", 1.0, np.eye(D))
    full = erased(X, y)
    yield Extractor.erasing("control", "shuffled targets", 0.0, erased(X, rng.permutation(y)))
    for s in STRENGTHS:
        yield Extractor("path", f"s = {s:g}", s, erased(X, y, strength=1 - s).theta)
    for k in range(1, min(full.rank, 5)):
        yield Extractor.erasing("rank", f"k = {k}", k, erased(X, y, rank=k))
    yield Extractor.erasing("erase", "erase", 0.0, full)
    maps, F = [full], full.features(X)
    for count in range(2, max(ROUNDS) + 1):
        kept = rng.choice(len(X), size=len(X))  # a bootstrap sample: on the same rows nothing is left
        try:
            maps.append(erased(F[kept], y[kept]))
        except RankError:
            break
        F = maps[-1].features(F)
        if count in ROUNDS:
            yield Extractor.erasing("iterated", f"{count} rounds", count, *maps)
    P, H = covariances(split)
    whitening = np.asarray(max_rir_immunizer(P))
    yield Extractor("front", "max_rir", np.nan, whitening)
    yield Extractor("front", "pareto", np.nan, np.asarray(pareto_immunizer(P, H)))
    Q = np.linalg.qr(whitening.T @ full.removed)[0]
    s = condition_number(P).value ** -0.5  # κ(H_P) of the next one is κ(K_P): (ii) = 1
    within = whitening @ (np.eye(D) - (1 - s) * Q @ Q.T)
    yield Extractor("front", "harmful direction at (ii) = 1", np.nan, within)


def covariances(split: Split) -> tuple[FloatArray, FloatArray]:
    """Return K_P of the rows that train the benign probe, K_H of the defender's, both centered."""
    P, H = split.train.centered[0], split.defender.centered[0]
    return P.T @ P, H.T @ H


def measured(split: Split, of: Extractor) -> list[float]:
    """Measure one extractor, in the order of the columns."""
    K_P, K_H = covariances(split)
    T = of.theta
    found = relative_immunization_ratio(T, K_P, K_H)
    P, H = split.train.centered, split.defender.centered
    learned, harmful = (Task.of(*rows, kind="regression") for rows in (P, H))
    attack = probe_steps(T, harmful, epsilon=EPSILON, budget=BUDGET)
    fit = probe_steps(T, learned, budget=1).fit
    # The benign goal is the best on these features: the price can put 1 % of the raw one out of reach.
    own = Task.of(P[0] @ T, P[1], kind="regression")
    slow = probe_steps(None, own, epsilon=EPSILON, budget=BUDGET)
    price = np.nan
    if of.directions is not None:
        price = erasure_price(learned, of.directions) / P[1].var(axis=0).sum()
    nonlinear, own_rows = np.nan, of.seen(split.defender)
    train, judge, benign, test = map(of.seen, (split.attacker, split.judge, split.train, split.test))
    if of.label in COMPARED:
        nonlinear = nonlinear_score(train, judge)
    return [
        found.rir, found.harmful_ratio, found.benign_ratio, attack.fixed, slow.fixed,
        attack.exact, linear_score(own_rows, own_rows), linear_score(train, judge), nonlinear,
        linear_score(benign, test),
        max(0.0, 1 - fit), price,
    ]  # fmt: skip


def chance_of(pair: TaskPair) -> float:
    """Return the accuracy of the most frequent harmful class; 0 where the harmful task is a regression."""
    X, y = pair.probe_sample
    whole = Sample(X, y, as_targets(y, "targets")[1] is not None)
    return chance(whole)


def first_attackable(data: TaskPairs) -> TaskPair | None:
    """Return the first pair with harmful labels and so few columns."""
    small = (pair for pair in data.pairs.values() if pair.dimension <= ATTACKABLE_COLUMNS)
    return next((pair for pair in small if chance_of(pair)), None)


@limited_threads(1)  # small matrices: on a busy machine, threads wait for each other
def attacked(pair: TaskPair, seed: int = 0, rows: int | None = None) -> AttackReport:
    """Attack raw features, those of `pareto` and erased ones of one split, on rows that the defender lacks.

    Accuracy is that on the judge's rows.
    """
    split = Split.drawn(pair, seed, rows)
    if not split.attacker.labels:
        raise InvalidInputError(f"{pair.name}: the harmful task is a regression; accuracy needs labels.")
    immunized = immunize(ImmunizationProblem.from_covariances(*covariances(split)))
    erased = erasure(*split.defender[:2], kind="classification")
    thetas = {"raw": None, "pareto": immunized.theta, "erase": erased.extractor}
    budget = AttackBudget(steps=2_000, epsilons=(0.1, 0.01), reported_epsilon=0.1)
    return attack_panel(
        split.attacker.X,
        split.attacker.y,
        thetas,
        kind="classification",
        held_out=(split.judge.X, split.judge.y),
        attackers=("gd", "closed_form"),
        budget=budget,
    )
