"""What a panel of attackers found: tidy tables, immunization factors, the worst case, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from condnum.arrays import TargetKind
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.numbers import num
from condnum.probing.race import AttackBudget


@dataclass(frozen=True, eq=False)
class AttackReport:
    r"""Results of `attack_panel`.

    An attacker has reached ε at the first step with :math:`L \le L^* + \varepsilon(L_0 - L^*)`, `L₀` the loss
    of zero weights and `L*` the optimum that this attacker can reach on these features (column `optimum`).
    A θ that loses rank can raise it above the optimum of the raw inputs: `extractors` has both. Where it does
    so by more than ε of what raw inputs allow, the target is out of reach, and the steps are infinite.
    """

    steps: pd.DataFrame
    curves: pd.DataFrame
    extractors: pd.DataFrame
    spectra: pd.DataFrame
    skipped: pd.DataFrame
    baseline: str
    kind: TargetKind
    budget: AttackBudget
    held_out: bool
    title: str = ""
    #: Loss and accuracy of each attacker on the rows that judge, at the step and candidate that those rows
    #: prefer which choose.
    reached: pd.DataFrame = field(default_factory=pd.DataFrame)

    def __repr__(self) -> str:
        """Return the steps of each attacker, and what the panel found; the tables are fields."""
        return "\n".join([self.steps_table().to_string(index=False), *attack_sentences(self)])

    @cached_property
    def factors(self) -> pd.DataFrame:
        """Immunization factor of each attacker: steps on an extractor / steps on the baseline.

        `bound` is `exact`, `at least` (not finished within the budget), or `unknown` (nor was the baseline).
        """
        raw, keys = self.steps["extractor"] == self.baseline, ["attacker", "epsilon"]
        baseline = self.steps[raw].set_index(keys)["steps"].rename("baseline_steps")
        table = self.steps[~raw].join(baseline, on=keys).reset_index(drop=True)
        known = (table["baseline_steps"] > 0) | np.isinf(table["steps"])
        reached = table["steps"].notna()
        spent = table["steps"].fillna(table["last_step"])
        table["factor"] = (spent / table["baseline_steps"].fillna(1)).where(known)
        table["bound"] = np.where(known, np.where(reached, "exact", "at least"), "unknown")
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
                f"no attacker reached the target on '{self.baseline}': "
                "so the factor is undefined; raise the budget."
            )
        return known.sort_values("factor", kind="stable").iloc[0]

    @property
    def evaluation(self) -> pd.DataFrame:
        """Where each attacker ended: its last step for the reported ε, by loss and (NaN if none) accuracy."""
        measured = self.curves.dropna(subset="evaluation_loss")
        last = measured.groupby(["extractor", "attacker"], sort=False, as_index=False).last()
        return last[["extractor", "attacker", "label", "step", "evaluation_loss", "accuracy"]]

    def steps_table(self, *, epsilon: float | None = None) -> pd.DataFrame:
        """Return steps as text, attackers × extractors; `>N`: N did not suffice, `∞`: out of reach."""
        table = self.at(self.steps, epsilon)
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


def attack_sentences(report: AttackReport, labels: Mapping[str, str] | None = None) -> list[str]:
    """Say what a panel found beside its tables, and what it cannot know; labels are of extractors."""
    labels = {name: name for name in report.extractors["extractor"]} | dict(labels or {})
    goal = f"{100 * report.budget.reported_epsilon:g} % of the excess loss of zero weights"
    said = [f"Factors are steps to {goal}, over those on {labels[report.baseline]}."]
    for name in report.extractors["extractor"]:
        if name != report.baseline:
            said += _extractor(report, name, labels)
    for attacker, group in report.skipped.groupby("attacker", sort=False):
        said.append(f"{attacker} was skipped on {len(group)} extractor(s): {group['reason'].iloc[0]}.")
    known = "Factors hold for these attackers, grids and budget, on this sample"
    return [*said, f"{known}; an attacker outside the panel may do better."]


def _extractor(report: AttackReport, name: str, labels: Mapping[str, str]) -> list[str]:
    """Say how one extractor fares: the worst case and the optimum."""
    label, raw = labels[name], labels[report.baseline]
    table = report.at(report.factors, None)
    if table[table["extractor"] == name]["factor"].isna().all():
        return [f"{label}: no attacker reached the target on {raw}, so no factor is known."]
    worst = report.worst_case(name)
    if np.isinf(worst["factor"]):
        return [
            f"{label}: {100 * worst['epsilon']:g} % is out of reach for every attacker of the panel. "
            "This does not cover nonlinear attackers, nor attackers who use the inputs of θ."
        ]
    more = "at least " if worst["bound"] == "at least" else ""
    steps = f"{worst['steps']:,.0f}" if np.isfinite(worst["steps"]) else "more than the budget's"
    said = [
        f"{label}: the least-slowed attacker is {worst['label']} with a factor of {more}"
        f"{num(worst['factor'])} (steps: {steps}, on {raw} {worst['baseline_steps']:,.0f})."
    ]
    own = report.extractors.set_index("extractor").loc[name]
    lost = (own["optimum"] - own["baseline_optimum"]) / (own["start_loss"] - own["baseline_optimum"])
    if lost > 1e-4:
        said.append(
            f"{label}: a fraction {lost:.2g} of what can be learned on {raw} is lost, and targets ε below "
            "it are out of reach."
        )
    return said
