"""What erasure of the harmful task leaves to attackers on fresh rows, and what it costs the benign task.

Rows of D_H are cut in three: the defender's (who erases), the attacker's, and those on which both are scored;
of D_P two thirds train and a third scores. Features have an intercept.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from condnum.arrays import FloatArray, as_targets
from condnum.data.pairs import load_labeled_pair
from condnum.data.task_pair import TaskPair
from condnum.errors import InvalidInputError, check_integer
from condnum.experiments.frame import Cell, Row, Run
from condnum.numbers import number
from condnum.page.look import DOTTED, GREY
from condnum.page.style import PALETTE, empty, finish
from condnum.page.tables import GAP
from condnum.probing.heads import Sample, chance, linear_heads, linear_score, nonlinear_score, score
from condnum.theory.erasure import Erasure, erasure, erasure_price
from condnum.theory.task import Task

#: Pairs that come with scikit-learn.
EMBEDDED = ("digits-8x8", "wine", "breast-cancer", "diabetes")
#: What is erased: nothing, the targets, as many directions of shuffled ones, and the same of degree 2.
RAW, ERASED, CONTROL = "nothing", "targets", "shuffled targets"
SQUARES, SQUARES_CONTROL = "targets, degree 2", "shuffled targets, degree 2"
#: Columns and features up to which degree 2 is erased, of half of the directions: beyond, nothing is left.
MOST_COLUMNS = 256
#: Scores, each with what it is a fraction of: the same on raw features, above chance.
SCORES = ("linear", "quadratic", "kernel", "benign")
#: Score above chance that raw features must allow, and the deviation beyond which a fraction is not known.
LEAST_MARGIN, MOST_DEVIATION = 0.05, 0.5
#: Rows of a run of seconds.
QUICK_ROWS = 300


class Split(NamedTuple):
    """Rows of one pair: who sees which."""

    defender: Sample
    attacker: Sample
    judge: Sample
    train: Sample  # of the benign task
    test: Sample


def cells(*, data: str, seeds: int, rows: int, full: bool) -> list[Cell]:
    """List pairs, splits, and what is erased; `data` names pairs, or folders with X_P, y_P, X_H and y_H."""
    seeds, rows = check_integer("seeds", seeds, 1), check_integer("rows", rows, 0)
    if 0 < rows < 30:
        raise InvalidInputError(f"rows must be 0 (all) or at least 30, got {rows}: each third has a use.")
    if not full:
        seeds, rows = 1, min(rows or QUICK_ROWS, QUICK_ROWS)
    return [
        {"pair": name, "seed": seed, "rows": rows, "erased": erased}
        for name in names_of(data)
        for seed in range(seeds)
        for erased in (RAW, ERASED, CONTROL, *((SQUARES, SQUARES_CONTROL) if has_squares(name) else ()))
    ]


def names_of(data: str) -> list[str]:
    """Return the names of pairs in a list with commas, or those that come with scikit-learn."""
    return list(dict.fromkeys(name.strip() for name in data.split(",") if name.strip())) or [*EMBEDDED]


def has_squares(name: str) -> bool:
    """Tell whether degree 2 is erased: of labels, and of few columns."""
    pair = load(name)
    return pair.dimension <= MOST_COLUMNS and as_targets(pair.probe_sample[1], "targets")[1] is not None


def checksum(*, data: str, **_: Any) -> str:
    """Return the SHA-256 of all pairs."""
    return hashlib.sha256(repr([(name, load(name).checksum) for name in names_of(data)]).encode()).hexdigest()


load: Callable[[str], TaskPair] = cache(load_labeled_pair)


@cache
def split(name: str, seed: int, rows: int) -> Split:
    """Draw rows without replacement."""
    pair, rng = load(name), np.random.default_rng([seed, 16])

    def parts(X: FloatArray, y: FloatArray) -> list[Sample]:
        order, labels = rng.permutation(len(X))[: rows or None], as_targets(y, "targets")[1] is not None
        return [Sample(X[part], y[part], labels) for part in np.array_split(order, 3)]

    defender, attacker, judge = parts(*pair.probe_sample)
    first, second, test = parts(*pair.loss_sample)
    train = Sample(np.r_[first.X, second.X], np.r_[first.y, second.y], first.labels)
    return Split(defender, attacker, judge, train, test)


def compute(*, pair: str, seed: int, rows: int, erased: str) -> Row:
    """Erase from the defender's rows, and score heads and the benign task on rows that nobody trained on."""
    of = split(pair, seed, rows)
    by = eraser(of.defender, seed, erased)
    attacker, judge, train, test = (
        each if by is None else each._replace(X=by.features(each.X))
        for each in (of.attacker, of.judge, of.train, of.test)
    )
    price = 0.0
    if by is not None:
        P = of.train.centered
        price = erasure_price(Task.of(*P, kind="regression"), by.directions) / P[1].var(axis=0).sum()
    return {
        "linear": max(score(predicted, attacker, judge) for _, predicted in linear_heads(attacker, judge.X)),
        "quadratic": nonlinear_score(attacker, judge, degree=2),
        "kernel": nonlinear_score(attacker, judge),
        "benign": linear_score(train, test),
        "chance_harmful": chance(judge),
        "chance_benign": chance(test),
        "price": price,
    }


def eraser(defender: Sample, seed: int, erased: str) -> Erasure | None:
    """Return what erases the defender's targets, or shuffled ones; None: nothing does."""
    if erased == RAW:
        return None
    X, y, _ = defender
    if erased in (CONTROL, SQUARES_CONTROL):
        y = np.random.default_rng([seed, 17]).permutation(y)
    if erased in (ERASED, CONTROL):
        return erasure(X, y, kind=defender.kind)
    half = int(np.linalg.matrix_rank(defender.centered[0])) // 2
    return erasure(X, y, kind="classification", degree=2, rank=half)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pair and eraser: the fractions of scores above chance that are kept, over splits.

    What is below chance keeps nothing. A fraction whose deviation is as large as the scale is not known.
    """
    lines, keys = [], ["pair", "seed"]
    raw = rows[rows["erased"] == RAW].set_index(keys)
    for (pair, erased), own in rows.groupby(["pair", "erased"], sort=False):
        if erased == RAW:
            continue
        at, line = own.set_index(keys), {"data": pair, "erased": erased}
        for name in SCORES:
            floor = "chance_benign" if name == "benign" else "chance_harmful"
            margin = (raw[name] - raw[floor]).reindex(at.index)
            kept = ((at[name] - at[floor]) / margin).where(margin >= LEAST_MARGIN).clip(lower=0)
            known = kept.notna().any() and not kept.std() > MOST_DEVIATION
            line |= {
                f"kept_{name}_mean": kept.mean() if known else np.nan,
                f"kept_{name}_std": kept.std() if known else np.nan,
            }
        lines.append(line | {"price": at["price"].mean(), "splits": len(at)})
    kept = [f"kept_{name}_{of}" for name in SCORES for of in ("mean", "std")]
    return pd.DataFrame(lines, columns=["data", "erased", *kept, "price", "splits"])


def sentence(table: pd.DataFrame) -> str:
    """Return what attackers and the benign task keep after erasure: a median, with its range by data sets."""
    linear, kernel, benign = (told(table, ERASED, name) for name in ("linear", "kernel", "benign"))
    return (
        f"After erasure the best linear attacker keeps {linear} of its score above chance on fresh rows, and "
        f"{told(table, CONTROL, 'linear')} where shuffled targets were erased. A kernel head keeps {kernel}, "
        f"and the benign task {benign}."
    )


def told(table: pd.DataFrame, erased: str, name: str) -> str:
    """Write what is kept of a score, in percent."""
    kept = table[table["erased"] == erased].set_index("data")[f"kept_{name}_mean"].dropna()
    percent = (100 * kept).round() + 0.0
    if not len(kept):
        return "a fraction that is not known"
    if len(kept) == 1:
        return f"{number(percent.iloc[0])}{GAP}%"
    low, high = percent.idxmin(), percent.idxmax()
    middle, least, most = (
        f"{number(of)}{GAP}%" for of in (round(percent.median()), percent[low], percent[high])
    )
    return f"{middle} (median; {least} on {low}, {most} on {high})"


def figure(run: Run) -> Any:
    """Draw what is kept by data set: by two attackers, by one in the control, and by the benign task."""
    shown = {
        "harmful, best linear head": (ERASED, "linear", PALETTE[1], "circle"),
        "harmful, kernel head": (ERASED, "kernel", PALETTE[5], "diamond"),
        "harmful, best linear head, shuffled targets erased": (CONTROL, "linear", GREY, "circle-open"),
        "benign": (ERASED, "benign", PALETTE[0], "square"),
    }
    names, drawn = list(dict.fromkeys(run.table["data"])), empty()
    for place, (label, (erased, name, color, symbol)) in enumerate(shown.items()):
        own = run.table[run.table["erased"] == erased]
        mean, deviation = 100 * own[f"kept_{name}_mean"], 100 * own[f"kept_{name}_std"].fillna(0)
        heights = [names.index(of) + 0.14 * (place - 1.5) for of in own["data"]]
        drawn.add_scatter(
            x=mean, y=heights, name=label, mode="markers",
            marker={"color": color, "symbol": symbol, "size": 11}, customdata=own["data"],
            error_x={"array": deviation, "color": color, "thickness": 1},
            hovertemplate="%{customdata}: %{x:.0f} %",
        )  # fmt: skip
    for level in (0, 100):
        drawn.add_vline(level, line=DOTTED)
    note = (
        "Score above chance in percent of that on raw features, on rows that nobody trained on; bars: "
        "standard deviation over splits. Not known, and not drawn: fractions that vary by more than 50\u00a0%"
    )
    finish(drawn, "What is kept after erasure", note, height=330 + 80 * len(names), legend="")
    drawn.update_xaxes(title_text="kept (%)")
    drawn.update_yaxes(
        tickvals=[*range(len(names))], ticktext=names, autorange="reversed", ticks="", automargin=True
    )
    below = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0}
    return drawn.update_layout(legend=below, margin_b=150)
