"""The answer of an experiment: one sentence and one table, first on its page and last in the terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from condnum.deep.attacks.report import cheapest_attack
from condnum.page.deep import HEADLINE, factor_table, in_percent, net_label
from condnum.page.erasure import left_table
from condnum.page.style import option_text
from condnum.page.tables import (
    GAP,
    Column,
    count_of,
    formula_html,
    label,
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


def _deep(tables: Tables, kind: str, data: str) -> Answer:
    summary, results = in_percent(tables("summary")).query("convention == 'compact'"), tables("results")
    steps = results.groupby(["backbone", "method"])["steps"].max()
    columns: dict[str, Column] = {
        **({"backbone": "backbone"} if summary["backbone"].nunique() > 1 else {}),
        "method": ("method", net_label),
        "RIR_θ0": ("rir_mean rir_std", spread),
        "published": ("published_rir published_rir_std", partial(spread, digits=4)),
        "steps": ("steps", "{:,.0f}".format),
        "immunized": (
            "method success_rate seeds",
            lambda name, rate, seeds: "—" if name == "initial" else count_of(rate * seeds, seeds),
        ),
        "D_P accuracy (%)": ("accuracy_mean accuracy_std", spread),
        "D_H by SGD (%)": ("probe_final_mean probe_final_std", spread),
        "D_H solved (%)": ("convex_mean convex_std", spread),
    }
    keys = pd.MultiIndex.from_frame(summary[["backbone", "method"]])
    rows = summary.assign(steps=steps.reindex(keys).to_numpy())
    said = []
    for backbone, own in rows.groupby("backbone", sort=False):
        at = own.set_index("method")
        row, start = at.loc[_first(own["method"])], at.loc["initial"]
        immunized = count_of(row["success_rate"] * row["seeds"], row["seeds"])
        against = _against(row["published_rir"], row["published_rir_std"], "Table 3")
        sgd, solved = (
            f"{row[name]:.1f}{GAP}% (on θ_0 {start[name]:.1f}{GAP}%)"
            for name in ("probe_final_mean", "convex_mean")
        )
        said.append(
            f"{backbone}: {_words(str(row.name))} immunizes {immunized} seeds with RIR_θ0 "
            f"{spread(row['rir_mean'], row['rir_std'])}, {against}"
            f"{'' if row['published_same'] else ' for another net and other data'}; SGD on a new head "
            f"reaches {sgd} on D_H, a solver {solved}."
        )
    return Answer(" ".join(said), shown(rows, columns))


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


def _deep_attackers(tables: Tables, kind: str, data: str) -> Answer:
    factors = tables("factors")
    most = 0 if 0 in set(factors["shots"]) else factors["shots"].max()
    table = factors[(factors["shots"] == most) & np.isclose(factors["fraction"], HEADLINE)]
    answers = [
        f"{backbone}, {_words(str(method))}: {cheapest_attack(rows)}"
        for (backbone, method), rows in table.groupby(["backbone", "method"], sort=False)
    ]
    return Answer(" ".join([*answers, "The paper attacks by a linear probe alone."]), factor_table(factors))


def _corrections(tables: Tables, kind: str, data: str) -> Answer:
    table = tables("corrections")
    said = (
        f"{int(table['refuted'].sum())} of {len(table)} statements of the paper are refuted, each by a "
        "counter-example computed here; Algorithm 1 itself immunizes linear extractors."
    )
    return Answer(said, table[["place", "claim", "computed", "correction"]].map(formula_html))


_ANSWERS: dict[str, Callable[[Tables, str, str], Answer]] = {
    "deep": _deep,
    "deep-attackers": _deep_attackers,
    "attackers": _attackers,
    "erasure": _erasure,
    "corrections": _corrections,
}
