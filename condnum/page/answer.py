"""The answer of an experiment: one sentence and one table, first on its page and last in the terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from condnum.page.erasure import left_table
from condnum.page.linear import immunized, limits_table
from condnum.page.style import option_text
from condnum.page.tables import (
    GAP,
    Column,
    count_of,
    formula_html,
    label,
    number,
    shown,
    span,
    spread,
    times,
)
from condnum.probing.panel import factor_text
from condnum.probing.race import AttackBudget

#: A table of a run by its name; None if the run has none.
Tables: TypeAlias = Callable[[str], Any]


class Protocol(NamedTuple):
    """What the paper did, for one kind of run."""

    title: str  # of its table
    dataset: str  # whose results are comparable
    seeds: int
    budget: str  # of the immunization


_DIGITS = Protocol("Table 2", "mnist", 3, "30 epochs; the release uses batches of 64")

#: By the word after `condnum run`.
PROTOCOLS = {
    "house-prices": Protocol(
        "Table 1",
        "house-prices",
        5,
        "100 epochs in Sec. 5.1, 1,000 in Table 4, 10 in the release, which uses batches of 64",
    ),
    "mnist": _DIGITS,
    "digits": _DIGITS,
    "deep": Protocol("Table 3", "imagenet", 3, "2 or 3 epochs over ImageNet"),
}

#: Ordered pairs of two different digits.
PAIRS = 90


@dataclass(frozen=True)
class Answer:
    """What an experiment found: a sentence of plain text, and a table of strings."""

    sentence: str
    table: pd.DataFrame

    def __repr__(self) -> str:
        """Return the sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        """Return the sentence as a paragraph, its first claim in bold."""
        claim, stop, rest = self.sentence.partition(". ")
        return f'<p class="answer"><b>{formula_html(claim + stop)}</b>{formula_html(rest)}</p>'


def answer(kind: str, tables: Tables, data: str = "") -> Answer:
    """Return the answer of a run by the word after `condnum run`, from its tables; `data` names its data."""
    return _ANSWERS[kind](tables, kind, data)


def _words(name: str) -> str:
    """Return a method's label as plain text."""
    return option_text(label(name).replace(GAP, " "))


def _first(names: Any, *others: str) -> str:
    """Return whom a sentence is about: ours, or the first that is no control."""
    known = [name for name in dict.fromkeys(names) if name not in ("identity", "initial", *others)]
    return "ours" if "ours" in known or not known else str(known[0])


def _against(mean: float, deviation: float, table: str) -> str:
    """Say what the paper has."""
    return (
        f"where {table} has {spread(mean, deviation, 4)}"
        if np.isfinite(mean)
        else "without a published number"
    )


def _loss(gap: float) -> str:
    """Format an increase of the benign loss as a fraction of that of predicting zero; round-off is none."""
    return f"+{number(100 * gap)} %" if gap > 1e-9 else "+0 %"


def _linear(tables: Tables, kind: str, data: str) -> Answer:
    summary, results, paper = tables("summary"), tables("results"), PROTOCOLS[kind]
    pairs = summary["pairs"].iloc[0] if "pairs" in summary else 1
    rows, cells = (
        table.query("convention == 'ridge' and theta_scale == 'as_trained'") for table in (summary, results)
    )
    # RIR hardly depends on the scale of θ, the ratios do: they are judged at unit scale, as in the verdict.
    judged = summary.query("convention == 'ridge' and theta_scale == 'unit'").set_index("method")
    rows = rows.assign(success_rate=rows["method"].map(judged["success_rate"]))
    per_method = cells.groupby("method").agg(steps=("steps", "max"), median=("rir", "median"))
    rows = rows.join(per_method, on="method").assign(cells=rows["seeds"] * pairs)
    columns: dict[str, Column] = {
        "method": "method",
        "RIR": ("rir_mean rir_std", spread),
        **({"median RIR": "median"} if pairs > 1 else {}),
        "published": ("published_rir published_rir_std", partial(spread, digits=4)),
        "steps": ("steps", lambda steps: f"{steps:,.0f}" if steps else "—"),
        "immunized": immunized(rows),
        "benign loss": ("loss_gap_max", _loss),
    }
    if "benign_slowdown" in rows:
        columns |= {"benign steps": ("benign_slowdown", times), "harmful steps": ("harmful_slowdown", times)}
    row = rows.set_index("method").loc[_first(rows["method"])]
    counted = "pairs and seeds" if pairs > 1 else "seeds"
    said = (
        f"{_words(str(row.name))} immunizes {count_of(row['success_rate'] * row['cells'], row['cells'])} "
        f"{counted} with RIR {spread(row['rir_mean'], row['rir_std'])}, "
        f"{_against(row['published_rir'], row['published_rir_std'], paper.title)}"
    )
    if "benign_slowdown" in row and np.isfinite(row["harmful_slowdown"]):
        said += (
            f"; gradient descent takes {times(row['harmful_slowdown'])} as many steps as on raw inputs "
            f"on D_H and {times(row['benign_slowdown'])} on D_P"
        )
    comparable = str(summary["dataset"].iloc[0]) == paper.dataset
    differ = (
        [f"{row['steps']:,.0f} full-batch steps where the paper has {paper.budget}"] if comparable else []
    )
    differ += _differences(paper, summary, data, comparable)
    return Answer(f"{said}. Not as in the paper: {'; '.join(differ)}.", shown(rows, columns))


def _differences(paper: Protocol, summary: pd.DataFrame, data: str, comparable: bool) -> list[str]:
    """Say in what data, pairs and seeds of a run are not the paper's."""
    seeds = int(summary["seeds"].max())
    pairs = int(summary["pairs"].iloc[0]) if "pairs" in summary else PAIRS
    said = {
        "data differ from the paper's: compare the order of the methods, not the numbers": not comparable,
        "the 10,000 test images; the paper uses the 60,000 training images": (
            comparable and "test images" in data
        ),
        f"{pairs} of the {PAIRS} ordered pairs of digits": pairs != PAIRS,
        f"seeds: {seeds} instead of {paper.seeds}": seeds != paper.seeds,
    }
    return [text for text, applies in said.items() if applies]


def _limits(tables: Tables, kind: str, data: str) -> Answer:
    summary = tables("summary")
    share = summary[summary["method"] != "identity"].groupby("method", sort=False)["rir_share"].mean()
    best, ours = str(share.idxmax()), _first(share.index)
    said = (
        f"No invertible θ has a larger RIR than the theoretical limit, {span(summary['rir_limit'])} at "
        f"ε = {span(summary['ridge'])}; {_words(best)} comes nearest with "
        f"{number(100 * share[best])} % of it, and {_words(ours)} reaches {number(100 * share[ours])} %. "
        "The paper states no limit."
    )
    return Answer(said, limits_table(summary))


def reported_factors(tables: Tables) -> tuple[pd.DataFrame, float]:
    """Return the factors of the target that sentences are about, and that target."""
    logistic = np.isclose(tables("extractors")["start_loss"].iloc[0], np.log(2))  # of an earlier revision
    epsilon = 0.1 if logistic else AttackBudget.reported_epsilon
    return tables("factors").query("epsilon == @epsilon"), epsilon


def _attackers(tables: Tables, kind: str, data: str) -> Answer:
    factors, epsilon = reported_factors(tables)
    name = _first(factors["extractor"])
    own = factors[factors["extractor"] == name]

    def slowed(row: Any) -> str:
        if np.isnan(row["factor"]):
            return "misses the target on raw inputs too"
        more = "at least " * (row["bound"] == "at least")
        return f"needs {more}{times(row['factor'])} as many steps as on raw inputs"

    descent, least = own[own["attacker"] == "gd"], own.dropna(subset="factor").nsmallest(1, "factor")
    parts = [f"gradient descent {slowed(row)}" for _, row in descent.iterrows()]
    parts += [f"the attacker slowed least, {row['label']}, {slowed(row)}" for _, row in least.iterrows()]
    said = (
        f"On features of {_words(name)}, {', and '.join(parts)} (to {100 * epsilon:g} % of the excess loss)."
    )
    table = factor_text(factors, list(dict.fromkeys(factors["extractor"])))
    return Answer(f"{said} The paper measures gradient descent alone.", table.rename(columns=_words))


def _erasure(tables: Tables, kind: str, data: str) -> Answer:
    summary = tables("summary")

    def kept(name: str, extractor: str = "erase") -> str:
        values = 100 * summary.loc[summary["extractor"] == extractor, name].clip(lower=0)
        return f"{span(values.round())} %"

    control = kept("harmful_linear_kept", "shuffled targets")
    said = (
        f"After erasure the best linear attacker keeps {kept('harmful_linear_kept')} of its score above "
        f"chance on fresh rows (shuffled targets: {control}), a nonlinear one "
        f"{kept('harmful_nonlinear_kept')}, and the benign task {kept('benign_linear_kept')}; pairs of "
        f"tasks: {summary['pair'].nunique()}. The paper does not erase."
    )
    return Answer(said, left_table(summary))


def _corrections(tables: Tables, kind: str, data: str) -> Answer:
    table = tables("corrections")
    said = (
        f"{int(table['refuted'].sum())} of {len(table)} statements of the paper are refuted, each by a "
        "counter-example computed here; Algorithm 1 itself immunizes linear extractors."
    )
    return Answer(said, table[["place", "claim", "computed", "correction"]].map(formula_html))


_ANSWERS: dict[str, Callable[[Tables, str, str], Answer]] = {
    "house-prices": _linear,
    "mnist": _linear,
    "digits": _linear,
    "limits": _limits,
    "attackers": _attackers,
    "erasure": _erasure,
    "corrections": _corrections,
}
