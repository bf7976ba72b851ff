"""Tables and words of the report on deep attacks: who attacks, what each needs, what the defense buys."""

import html
import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.deep.attacks.attackers import DeepAttacker
from condnum.deep.attacks.report import headline
from condnum.report.tables import formula_html, label, number, rounded
from condnum.studies.deep_attackers import DeepAttackers

#: Fraction of the way from chance to the best attacker's accuracy on θ₀ of which tables and sentences speak.
HEADLINE = 0.8

_NETS = {"theta_0": "θ<sub>0</sub>", "theta_0 again": "θ<sub>0</sub> again", "scratch": "from scratch"}


def attacker_table(study: DeepAttackers) -> pd.DataFrame:
    """Return who attacks, what is trained, and which values are tried."""
    rows = []
    for name in study.attackers:
        attacker = DeepAttacker.named(name)
        meaning = {
            "head-sgd": "rate × L", "head-whitened": "floor / λ<sub>1</sub>",
            "head-ridge": "penalty / mean λ", "head-trunk": "penalty / mean λ", "head-logistic": "C",
        }.get(f"{attacker.subset}-{attacker.optimizer}", "learning rate")  # fmt: skip
        values = ", ".join(rounded(value) for value in attacker.trials(study.trials))
        rows.append((name, attacker.label, f"{meaning}: {values}"))
    return pd.DataFrame(rows, columns=["attacker", "what is trained, by what", "trials"])


def most_rows(study: DeepAttackers) -> int:
    """Return the examples per class of which the curves are shown: as many as there are."""
    return 0 if 0 in study.shots else max(study.shots)


def _with_interval(row: Any, name: str, sign: str = "") -> str:
    """Return a number with its interval; of a bound on which side it is."""
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if math.isnan(value):
        return "—"
    ends = f"({low:.3g} to {number(high) if math.isinf(high) else f'{high:.3g}'})"
    return f"{sign}{value:.3g}<br><small style='white-space: nowrap'>{ends}</small>"


def _needs(row: Any, net: str) -> str:
    """Return the steps that a net needs; of one that misses the goal that it is more, if it takes steps."""
    value, missed = row[f"needs_{net}"], row[f"reached_{net}"] < row["attacks"]
    return "—" if math.isnan(value) else f"{'> ' if missed else ''}{value:.3g}"


def factor_table(factors: pd.DataFrame, fraction: float = HEADLINE) -> pd.DataFrame:
    """Format the factors at a fraction, the cheapest attack that succeeds first."""
    rows = []
    for row in _at(factors, fraction):
        missed = [row[f"reached_{net}"] < row["attacks"] for net in ("theta_i", "scratch")]
        noise = "" if math.isnan(row["noise"]) else f"{1 / row['noise']:.3g} to {row['noise']:.3g}"
        rows.append(
            {
                **_who(row),
                "examples seen until the goal on θ<sub>I</sub>": number(round(row["examples_theta_i"]))
                if not math.isnan(row["examples_theta_i"])
                else "missed",
                "steps<br><small>θ<sub>0</sub>, θ<sub>I</sub>, scratch</small>": ", ".join(
                    _needs(row, net) for net in ("theta_0", "theta_i", "scratch")
                ),
                "factor<br><small>(95 %), A against A</small>": _with_interval(
                    row, "factor", "≥ " * missed[0]
                )
                + f"<br><small>{noise}</small>",
                "effect": row["effect"],
                "protection score<br><small>0 none, 1 full</small>": _with_interval(
                    row, "protection", "≥ " * missed[0] + "≤ " * missed[1]
                ),
            }
        )
    return pd.DataFrame(rows)


def undoing_table(undoing: pd.DataFrame) -> pd.DataFrame:
    """Format for each net the best attackers, and after how many steps of training it is undone."""

    def best(of: pd.DataFrame) -> str:
        if not len(of):
            return "—"
        row = of.loc[of["accuracy"].idxmax()]
        return f"{100 * row['accuracy']:.1f} %<br><small>{row['label']}</small>"

    rows = []
    for (backbone, shots, net), own in undoing.groupby(["backbone", "shots", "net"], sort=False):
        trained = own[own["step"] > 0]
        after = "not within the budget" if len(trained) else "—"
        for first in trained[trained["reached"]].head(1).itertuples():
            steps = f"{first.step:,} step{'s' * (first.step != 1)}"
            after = f"{steps}, {first.examples:,.0f} examples seen<br><small>{first.label}</small>"
        row = {
            "net": f"{html.escape(str(backbone))}, {_NETS.get(net, label(net))}",
            "examples per class": str(shots or "all"),
            "goal": f"{100 * own['goal'].iloc[0]:.1f} %",
            "best in closed form": best(own[own["step"] == 0]),
            "best trained by steps": best(trained),
            "training reaches the goal after": after,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def accuracy_table(factors: pd.DataFrame, fraction: float = HEADLINE) -> pd.DataFrame:
    """Format the accuracies at the end of the attacks, in the order of `factor_table`."""

    def percents(row: Any, task: str, *nets: str) -> str:
        return ", ".join(f"{100 * row[f'{task}_{net}']:.1f}" for net in nets)

    return pd.DataFrame(
        _who(row)
        | {
            "D_H, end (%)<br><small>θ_0, θ_I, scratch</small>": percents(
                row, "final", "theta_0", "theta_i", "scratch"
            ),
            "D_P, after (%)<br><small>θ_0, θ_I</small>": percents(row, "pretrain", "theta_0", "theta_i"),
            "module or transform chosen on θ_I": row["layer_theta_i"],
            "attacks at the edge of their grid": str(row["at_edge"]),
        }
        for row in _at(factors, fraction)
    )


def _at(factors: pd.DataFrame, fraction: float) -> list[Any]:
    """Return the rows of a fraction."""
    return [row for _, row in factors[np.isclose(factors["fraction"], fraction)].iterrows()]


def _who(row: Any) -> dict[str, str]:
    """Name the attacker, the net and the number of examples."""
    net = f"{html.escape(row['backbone'])}, {label(row['method'])}"
    return {
        "attacker<br><small>net</small>": f"{row['label']}<br><small>{net}</small>",
        "examples per class": str(row["shots"] or "all"),
    }


def verdict(factors: pd.DataFrame, immunization: pd.DataFrame, fraction: float = HEADLINE) -> str:
    """Say for each backbone and method which is the cheapest attack that succeeds."""
    most = 0 if 0 in set(factors["shots"]) else factors["shots"].max()
    table = factors[(factors["shots"] == most) & np.isclose(factors["fraction"], fraction)]
    words = ""
    for (backbone, method), rows in table.groupby(["backbone", "method"], sort=False):
        known = immunization.query("backbone == @backbone and method == @method").set_index("convention")
        rir = ", ".join(f"{number(known.at[name, 'rir_mean'])} ({name})" for name in ("compact", "ridge"))
        words += f"<p><b>{html.escape(str(backbone))}, {label(method)}</b>: RIR<sub>θ0</sub> {rir}. "
        words += f"<b>{formula_html(headline(rows))}</b></p>"
    return words
