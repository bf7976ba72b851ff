"""What a panel of attackers found: tidy tables, the immunization factor of each attacker, the worst case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.probing.attackers.feature_set import Kind
from condnum.probing.attackers.race import AttackBudget

STEP_COLUMNS = [
    "extractor", "attacker", "label", "informed", "epsilon", "steps", "last_step", "passes", "seconds",
    "choice", "at_edge", "predicted_kappa", "predicted_spectrum", "start_loss", "optimum",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttackReport:
    r"""Results of `attack_panel`.

    An attacker has reached ε at the first step with :math:`L \le L^* + \varepsilon(L_0 - L^*)`, `L₀` the loss
    of zero weights and `L*` the optimum that this attacker can reach on these features (column `optimum`).
    A θ that loses rank can raise it above the optimum of the raw inputs: `extractors` has both.

    Attributes:
        steps: A row per extractor × attacker × ε, `STEP_COLUMNS`. `steps` is NaN where the target was not
            reached within `last_step` steps; the choice is then the candidate that came nearest. `passes`
            are evaluations of the full gradient, `seconds` are passes times the measured time of one pass
            over the rows, with the change of coordinates (measured directly for closed forms).
            `predicted_kappa` is what κ alone allows: a bound over all targets, but for momentum and Nesterov
            the asymptotic rate, which leaves out their start; `predicted_spectrum` uses σ_i and p_i.
            Where `at_edge` holds, a wider grid might do better.
        curves: A row per extractor × attacker × recorded step of the best candidate at the headline ε:
            `excess`, `loss`, and `evaluation_loss`, `accuracy` on held-out rows (or on the training rows).
        extractors: κ, rank, `optimum` and `baseline_optimum`, evidence of the optimum, `effective_condition`,
            and `deflated_condition`, the same without the five largest eigenvalues.
        spectra: `index, sigma, share` of each extractor.
        skipped: Attackers that could not run, with the reason.
        baseline: Name of the raw features.
        kind: Of the task.
        budget: What each attacker could spend.
        held_out: Whether there were held-out rows.
        title: Data set and rows.
    """

    steps: pd.DataFrame
    curves: pd.DataFrame
    extractors: pd.DataFrame
    spectra: pd.DataFrame
    skipped: pd.DataFrame
    baseline: str
    kind: Kind
    budget: AttackBudget
    held_out: bool
    title: str = ""

    def renamed(self, names: Mapping[str, str]) -> AttackReport:
        """Return the report with other names of its extractors, for tables and sentences.

        Args:
            names: New names by old ones; an extractor that is not listed keeps its name.

        Returns:
            A report of the same numbers.
        """
        tables = {
            field: getattr(self, field).assign(
                extractor=lambda table: table["extractor"].map(lambda name: names.get(name, name))
            )
            for field in ("steps", "curves", "extractors", "spectra", "skipped")
        }
        return replace(self, **tables, baseline=names.get(self.baseline, self.baseline))

    @cached_property
    def factors(self) -> pd.DataFrame:
        """Immunization factor of each attacker: steps on an extractor / steps on the baseline.

        Columns `attacker, label, informed, extractor, epsilon, baseline_steps, steps, factor, bound`, where
        `bound` is `exact`, `at least` (the extractor was not finished within the budget: the factor is that
        of the budget), or `unknown` (nor was the baseline: factor NaN).
        """
        keys = ["attacker", "epsilon"]
        raw = self.steps[self.steps["extractor"] == self.baseline].set_index(keys)["steps"]
        rows = []
        for row in self.steps[self.steps["extractor"] != self.baseline].to_dict("records"):
            base = float(raw.get((row["attacker"], row["epsilon"]), np.nan))
            reached = np.isfinite(row["steps"])
            spent = row["steps"] if reached else row["last_step"]
            known = np.isfinite(base) and base > 0
            rows.append(
                {
                    **{k: row[k] for k in ("attacker", "label", "informed", "extractor", "epsilon")},
                    "baseline_steps": base,
                    "steps": row["steps"],
                    "factor": spent / base if known else np.nan,
                    "bound": ("exact" if reached else "at least") if known else "unknown",
                }
            )
        columns = [
            "attacker",
            "label",
            "informed",
            "extractor",
            "epsilon",
            "baseline_steps",
            "steps",
            "factor",
        ]
        return pd.DataFrame(rows, columns=[*columns, "bound"])

    def worst_case(self, extractor: str, *, epsilon: float | None = None) -> pd.Series:
        """Return the attacker whom an extractor slows least: the row of `factors` with the least factor.

        Args:
            extractor: Its name.
            epsilon: Target; default the headline.

        Returns:
            The row; a lower bound (`at least`) counts with its value.

        Raises:
            UnknownNameError: No such extractor, or it is the baseline.
            InvalidInputError: No attacker has a known factor.

        Examples:
            >>> from condnum.probing.attackers import AttackTask, attack_panel
            >>> X = np.diag([3.0, 1.0, 1.0])
            >>> report = attack_panel(np.eye(3), AttackTask(X, np.ones(3)), attackers=["gd", "cg"])
            >>> float(report.worst_case("theta")["factor"])
            1.0
        """
        table = self.at(self.factors, epsilon)
        known = table[table["extractor"] == extractor]
        if known.empty:
            raise UnknownNameError("extractor", extractor, list(dict.fromkeys(table["extractor"])))
        known = known.dropna(subset="factor")
        if known.empty:
            raise InvalidInputError(
                f"no attacker reached the target on '{self.baseline}': there is no factor; raise the budget."
            )
        return known.sort_values("factor", kind="stable").iloc[0]

    @property
    def evaluation(self) -> pd.DataFrame:
        """Where each attacker ended: `extractor, attacker, label, step, evaluation_loss, accuracy`.

        The last recorded step of the best candidate at the headline ε, measured on held-out rows or, without
        any, on the training rows; accuracy is NaN for a regression.
        """
        measured = self.curves.dropna(subset="evaluation_loss")
        last = measured.groupby(["extractor", "attacker"], sort=False, as_index=False).last()
        return last[["extractor", "attacker", "label", "step", "evaluation_loss", "accuracy"]]

    def steps_table(self, *, epsilon: float | None = None) -> pd.DataFrame:
        """Return steps as text, attackers × extractors; `>N` where N steps did not suffice.

        Args:
            epsilon: Target; default the headline.

        Returns:
            Attackers by label, a column per extractor.
        """
        table = self.at(self.steps, epsilon)
        text = [
            f"{steps:,.0f}" if np.isfinite(steps) else f">{last:,.0f}"
            for steps, last in zip(table["steps"], table["last_step"], strict=True)
        ]
        return _wide(table.assign(text=text), self.extractors["extractor"])

    def factor_table(self, *, epsilon: float | None = None) -> pd.DataFrame:
        """Return factors as text, attackers × extractors; `>` marks a lower bound, `—` an unknown one.

        Args:
            epsilon: Target; default the headline.

        Returns:
            Attackers by label, a column per extractor but the baseline.
        """
        table = self.at(self.factors, epsilon)
        marks = {"exact": "", "at least": ">", "unknown": "—"}
        text = [
            mark if (mark := marks[bound]) == "—" else f"{mark}{factor:.3g}"
            for factor, bound in zip(table["factor"], table["bound"], strict=True)
        ]
        names = self.extractors["extractor"]
        return _wide(table.assign(text=text), names[names != self.baseline])

    def at(self, table: pd.DataFrame, epsilon: float | None) -> pd.DataFrame:
        """Return the rows of one target, by default the headline's.

        Args:
            table: `steps` or `factors`.
            epsilon: Target.

        Returns:
            Its rows.

        Raises:
            UnknownNameError: It was not measured.
        """
        chosen = self.budget.headline if epsilon is None else epsilon
        if chosen not in self.budget.epsilons:
            raise UnknownNameError("epsilon", chosen, [f"{e:g}" for e in self.budget.epsilons])
        return table[table["epsilon"] == chosen]


def _wide(table: pd.DataFrame, order: pd.Series) -> pd.DataFrame:
    """Spread the column `text` over extractors, in the order of the panel."""
    if table.empty:
        return pd.DataFrame(columns=["attacker", *order])
    wide = table.pivot(index="label", columns="extractor", values="text")
    wide = wide.reindex(index=list(dict.fromkeys(table["label"])), columns=list(order)).fillna("skipped")
    return wide.reset_index(names="attacker").rename_axis(columns=None)
