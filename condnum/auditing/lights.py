"""Who gets through: attackers on rows of the harmful task, each with a light by rows that it did not see."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import FloatArray, TargetKind, extracted
from condnum.auditing.rows import TaskRows
from condnum.errors import InvalidInputError
from condnum.estimators import Eraser
from condnum.probing.attackers import ATTACKERS
from condnum.probing.heads import Sample, chance, nonlinear_score, tree_score
from condnum.probing.panel import RAW, AttackReport, attack_panel, judging_rows
from condnum.probing.race import AttackBudget
from condnum.theory.task import rank_tolerance

#: Names and labels of the nonlinear heads, which the panel of linear attackers lacks.
NONLINEAR = {"kernel": "Kernel ridge (RBF)", "trees": "Extremely randomized trees"}
#: Classes of attackers by their names.
CLASSES = {
    "gradient descent": ("gd", "line_search", "momentum", "nesterov", "sgd", "adam"),
    "L-BFGS and conjugate gradients": ("cg", "lbfgs"),
    "closed form": ("closed_form", "ridge", "logistic", "unfiltered"),
    "transformed features": ("standardize", "whiten", "stacked"),
    "fine-tuning of θ": ("fine_tune",),
    "nonlinear head": (*NONLINEAR,),
}
#: Those that tell what an extractor costs the benign task.
PRICE = ("closed_form", "ridge")
#: Lights, the worst first.
LIGHTS = ("gets through", "hindered", "not known", "stopped")
#: An attacker gets through who reaches this fraction of what its class reaches on raw features, above chance,
#: in less than so many times the steps; one who reaches less than the last fraction is stopped.
THROUGH, SLOWED, STOPPED = 0.5, 10.0, 0.1
#: How often chance alone may put any attacker of an audit above chance; their intervals hold together.
FALSE_ALARMS = 0.05
#: Beyond so many features, attackers take fewer steps that cost a product with all of them, and fewer rows.
WIDE_FEATURES = 256
#: Rows that attackers have at most, and of wide features: each of them runs many times over those that train.
PANEL_ROWS, WIDE_ROWS = 2_500, 1_500
#: Fraction of them on which no attacker trains: half of it chooses each attacker's step and candidate, and
#: half judges it.
HELD_OUT_FRACTION = 0.4
#: Fewest rows of a task of which some are held out.
LEAST_ROWS = 20
#: Ends the seed of the sample of rows, so that no other stream of random numbers is the same one.
_SAMPLE_SEED = 79
#: Features that know nothing of these rows' labels correlate as little with them this seldom.
SELDOM = 1e-6

#: Why nobody was judged.
Obstacle = Literal["", "switched off", "no targets", "one class", "few rows", "no linear part"]
#: What is known of an attacker; `factor` are its steps over those on raw features.
COLUMNS = (
    "extractor", "attacker", "label", "group", "score_name", "score", "low", "high", "raw", "chance", "light",
    "factor", "bound",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Attacks:
    """What attackers reached."""

    table: pd.DataFrame  # a row per extractor and attacker, with `COLUMNS`
    obstacle: Obstacle = ""
    training: int = 0  # rows on which attackers trained
    choosing: int = 0  # rows on which their steps and candidates were chosen
    judging: int = 0  # rows on which they were judged
    classes: int = 0  # among the rows that train; 0: numbers
    own_rows: Sequence[str] = ()  # extractors that were made from these rows

    @classmethod
    def none(cls, obstacle: Obstacle) -> "Attacks":
        """Return that nobody was judged, and why."""
        return cls(pd.DataFrame(columns=list(COLUMNS)), obstacle)


def audit_budget(columns: int, seed: int) -> AttackBudget:
    """Return what each attacker may spend in an audit: of wide features, fewer products with all of them."""
    dense = min(500, max(20, round(500 * (WIDE_FEATURES / columns) ** 2)))
    return AttackBudget(5_000, dense, seed=seed)


def panel_attackers(columns: int) -> list[str]:
    """Return the linear attackers of an audit; of many features these two take as long as all others."""
    slow = ("logistic", "sgd") if columns > WIDE_FEATURES else ()
    return [name for name in ATTACKERS if name not in slow]


def split_rows(
    task: TaskRows, seed: int, *, half: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the attackers' rows of the sample, and the defender's: as many, but none unless asked."""
    count, D = task.sample.shape
    drawn = np.random.default_rng([seed, _SAMPLE_SEED]).permutation(count)
    size = min(count // 2 if half else count, WIDE_ROWS if D > WIDE_FEATURES else PANEL_ROWS)
    return drawn[:size], drawn[size : 2 * size * half]


def eraser_of(task: TaskRows, targets: NDArray[Any] | None, seed: int) -> Eraser:
    """Return what erases the targets in the defender's rows, which no attacker sees.

    It is centered: attackers have an intercept, or find one in the mean of the features.
    """
    if targets is None:
        raise InvalidInputError("erasure needs the targets of the harmful task; give y_harmful.")
    y, defender = targets[task.places], np.sort(split_rows(task, seed, half=True)[1])
    if len(defender) < LEAST_ROWS:
        raise InvalidInputError(
            f"erasure is made of {len(defender)} rows of {task.stream.source}, and at least {LEAST_ROWS} "
            "that no attacker sees are needed; give more rows."
        )
    kind: TargetKind = "classification" if y.dtype.kind == "i" else "regression"
    eraser = Eraser(kind=kind).fit(task.sample[defender], y[defender])
    if not eraser.erasure_.left.shape[1]:
        raise InvalidInputError(
            "erasure leaves nothing of these features; give more features or fewer classes."
        )
    return eraser


def attack_rows(
    task: TaskRows,
    targets: NDArray[Any] | None,
    extractors: Mapping[str, Any],
    *,
    budget: AttackBudget,
    seed: int = 0,
    half: bool = False,
    attackers: Sequence[str] | None = None,
    on_attack: Callable[[str, str], None] = lambda extractor, attacker: None,
) -> Attacks:
    """Run panel and nonlinear heads on a sample of rows; the panel runs alone where `attackers` are named.

    Extractors are matrices or maps, which are applied as they are: attackers meet what a map returns, and
    never its product matrix. With `half`, half of the rows are the defender's.
    """
    if targets is None:
        return Attacks.none("no targets")
    y = targets[task.places]
    train, held = _parts(y, split_rows(task, seed, half=half)[0])
    labels, names = y.dtype.kind == "i", np.unique(y[train], axis=0)
    if len(names) < 2:
        return Attacks.none("one class")
    if len(held) < 2:
        return Attacks.none("few rows")
    X, Y = Sample(task.sample[train], y[train], labels).centered
    if np.linalg.norm(X.T @ Y) <= 1e-10 * np.linalg.norm(X) * np.linalg.norm(Y):
        return Attacks.none("no linear part")
    inputs, rows = task.sample, np.r_[train, held]
    if task.stream.named:  # as extractors match them
        inputs = pd.DataFrame(inputs, columns=list(task.stream.columns))
    thetas: dict[str, Any] = {RAW: None, **extractors}
    report = attack_panel(
        _at(inputs, train),
        y[train],
        thetas,
        kind="classification" if labels else "regression",
        held_out=(_at(inputs, held), y[held]),
        budget=budget,
        attackers=attackers or panel_attackers(X.shape[1]),
        on_attack=on_attack,
    )
    n, judges = len(train), judging_rows(len(held), budget.seed)
    judging, heads = Sample(task.sample[held][judges], y[held][judges], labels), list[dict[str, Any]]()
    features = {
        name: np.asarray(extracted(theta, _at(inputs, rows), name), dtype=np.float64)
        for name, theta in thetas.items()
    }
    for name, F in features.items() if attackers is None else ():
        seen = Sample(F[:n], y[train], labels), judging._replace(X=F[n:][judges])
        for (head, label), run in zip(NONLINEAR.items(), (nonlinear_score, tree_score), strict=True):
            on_attack(name, head)
            heads.append({"extractor": name, "attacker": head, "label": label, "score": run(*seen)})
    table, own = _scored(report, heads, judging), list[str]()
    columns = Sample(features[RAW], y[rows], labels).columns
    for name in dict.fromkeys(table.loc[table["light"] == "stopped", "extractor"]):
        if made_from(features[name], features[RAW], columns):
            own.append(name)
    doubted = table["extractor"].isin(own) & (table["light"] == "stopped")
    table = table.assign(light=table["light"].mask(doubted, "not known"))
    return Attacks(table, "", n, int((~judges).sum()), int(judges.sum()), len(names) * labels, own)


def _at(inputs: Any, rows: NDArray[np.int64]) -> Any:
    return inputs.iloc[rows] if isinstance(inputs, pd.DataFrame) else inputs[rows]


def _parts(y: NDArray[Any], drawn: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split drawn rows into those that train and those held out; of few rows, none are."""
    held, train = (np.sort(part) for part in np.split(drawn, [round(len(drawn) * HELD_OUT_FRACTION)]))
    if len(drawn) < LEAST_ROWS:
        return [np.sort(drawn), held[:0]]
    if y.dtype.kind == "i":  # what no attacker has seen cannot be asked of one
        held = held[np.isin(y[held], y[train])]
    return [train, held]


def _scored(report: AttackReport, heads: Sequence[dict[str, Any]], judging: Sample) -> pd.DataFrame:
    """Judge the panel and nonlinear heads on the rows that judge."""
    keys = ["extractor", "attacker", "label"]
    reached, curves = report.table.drop_duplicates(keys)[[*keys, "loss", "accuracy"]], report.curves
    if judging.labels:
        reached = reached.assign(score=reached["accuracy"])
        curves = curves.assign(score=curves["accuracy"], choice=curves["choosing_accuracy"])
    else:
        spread = ((judging.columns - judging.columns.mean(axis=0)) ** 2).sum(axis=1).mean()
        reached = reached.assign(score=1 - reached["loss"] / spread)
        curves = curves.assign(score=1 - curves["loss"] / spread, choice=-curves["choosing_loss"])
    scores = pd.concat([reached, pd.DataFrame(heads)], ignore_index=True)
    at = report.at(report.table, None)
    on_raw = at[at["extractor"] == report.baseline].set_index("attacker")["steps"]
    table = attacker_lights(
        scores, curves, on_raw, chance=chance(judging), rows=len(judging.y), labels=judging.labels
    )
    # Who had fewer steps than a light allows, and was not done, is not known to be stopped.
    enough = at["last_step"] >= SLOWED * at["attacker"].map(on_raw)
    short = at.loc[at["steps"].isna() & ~enough, keys].assign(short=True)
    factors = report.at(report.factors, None)[["extractor", "attacker", "factor", "bound"]]
    for more in (short.drop(columns="label"), factors):
        table = table.merge(more, on=["extractor", "attacker"], how="left")
    doubted = table["short"].notna() & (table["light"] == "stopped")
    return table.assign(light=table["light"].mask(doubted, "not known"))[list(COLUMNS)]


def score_interval(score: float, rows: int, labels: bool, level: float) -> tuple[float, float]:
    """Return an interval: Clopper and Pearson's of an accuracy, Fisher's of R² as a squared correlation."""
    from scipy.stats import beta, norm

    if math.isnan(score):
        return math.nan, math.nan
    tail = (1 - level) / 2
    if labels:
        right = round(score * rows)
        low = float(beta.ppf(tail, right, rows - right + 1)) if right else 0.0
        return low, float(beta.isf(tail, right + 1, rows - right)) if right < rows else 1.0
    half = float(norm.isf(tail)) / math.sqrt(max(rows - 3, 1))
    z = math.atanh(min(math.sqrt(max(score, 0.0)), 1 - 1e-12))
    return math.tanh(max(z - half, 0.0)) ** 2, math.tanh(z + half) ** 2


def attacker_lights(
    scores: pd.DataFrame, curves: pd.DataFrame, on_raw: pd.Series, *, chance: float, rows: int, labels: bool
) -> pd.DataFrame:
    """Judge every attacker on every extractor but the raw features.

    `scores` has a row per extractor and attacker: accuracy, or R² where targets are numbers, on `rows` that
    judge; `curves` has the score by step, with `choice`, that on the rows which choose the step; `on_raw` are
    each attacker's steps on raw features, and `chance` is the score of a constant. A score is that within
    `SLOWED` times these steps; who never gets to the goal on raw features has no such limit. Bonferroni's
    correction makes all intervals hold together.
    """
    classes, keys = {name: of for of, names in CLASSES.items() for name in names}, ["extractor", "attacker"]
    table = scores.assign(group=scores["attacker"].map(classes))
    allowed = SLOWED * on_raw.fillna(np.inf)
    within = curves[curves["step"] < curves["attacker"].map(allowed)].dropna(subset="score")
    within = within.sort_values("choice", ascending=False, kind="stable").drop_duplicates(keys)
    known = table.merge(within[[*keys, "score"]], on=keys, how="left", suffixes=("", "_within"))
    table["score"] = known["score_within"].fillna(known["score"]).to_numpy()
    level = 1 - FALSE_ALARMS / len(table)
    limits = [score_interval(score, rows, labels, level) for score in table["score"]]
    table["low"], table["high"] = np.array(limits).T
    raw = table[table["extractor"] == RAW].groupby("group")[["score", "low"]].max()
    table = table[table["extractor"] != RAW].reset_index(drop=True)
    table["raw"], table["chance"] = table["group"].map(raw["score"]), chance
    light = lights(table, possible=table["group"].map(raw["low"]) > chance)
    return table.assign(light=light, score_name="accuracy" if labels else "R²")


def lights(table: pd.DataFrame, possible: pd.Series) -> pd.Series:
    """Return the light of each `score` with its interval, beside `chance` and the score without a defense.

    Where it is not `possible` to tell that from chance, nobody is stopped.
    """
    chance = table["chance"]
    margin = (table["raw"] - chance).where(possible, 0.0)  # what there is to protect
    above, gained = table["low"] > chance, table["score"] - chance
    learned = gained >= STOPPED * margin
    conditions = {
        "gets through": above & (gained >= THROUGH * margin),
        "hindered": above & learned,
        "stopped": possible & ~learned & (table["high"] - chance < THROUGH * margin),
    }
    return pd.Series(np.select([*conditions.values()], [*conditions], "not known"), table.index)


def class_lights(attackers: pd.DataFrame) -> pd.DataFrame:
    """Return the attacker to fear of each class: of its worst light, the one who reaches most."""
    order = attackers.assign(worst=attackers["light"].map(LIGHTS.index)).sort_values(
        ["worst", "score"], ascending=[True, False], kind="stable"
    )
    chosen = order.drop_duplicates("group").set_index("group")
    return chosen.loc[[of for of in CLASSES if of in chosen.index]].reset_index()


def worst_light(classes: pd.DataFrame) -> str:
    """Return the worst of the lights."""
    return min(classes["light"], key=LIGHTS.index, default="not known")


def made_from(features: FloatArray, inputs: FloatArray, targets: FloatArray) -> bool:
    """Return whether features `(N, k)` of inputs `(N, D)` correlate less with targets `(N, m)` than chance.

    A θ made from other rows leaves at least what sampling leaves. Inputs that tell nothing either, such as
    those of a balanced design, are no sign of θ.
    """
    return _least_correlation(features, targets) < SELDOM <= _least_correlation(inputs, targets)


def _least_correlation(features: FloatArray, targets: FloatArray) -> float:
    r"""Return how likely features that know nothing of the targets correlate as little with them.

    With orthonormal bases U and Q of centered features and targets, :math:`T = ‖U^\top Q‖^2` (Pillai's trace)
    is compared to that of rows with random signs (the wild bootstrap), whose moments are those of
    :math:`M = UU^\top ∘ QQ^\top` (Satterthwaite's χ²). No variance has to be the same for all rows.
    """
    from scipy.stats import chi2

    U, Q = _basis(features), _basis(targets)
    M = (U @ U.T) * (Q @ Q.T)
    mean = np.trace(M)
    spread = (M**2).sum() - (np.diagonal(M) ** 2).sum()
    if not spread > 0:
        return 1.0
    freedom = mean**2 / spread
    return float(chi2.cdf(freedom * ((U.T @ Q) ** 2).sum() / mean, freedom))


def _basis(rows: FloatArray) -> FloatArray:
    """Return an orthonormal basis `(N, r)` of the centered columns that a solver reads."""
    centered = rows - rows.mean(axis=0)
    U, s, _ = np.linalg.svd(centered, full_matrices=False)
    return np.asarray(U[:, s > max(rank_tolerance(max(512, *rows.shape)) * s[0], 1e-14 * np.abs(rows).max())])
