"""Tables and words of the report on deep attacks: who attacks, what each needs, what the defence buys."""

import html
import math
from typing import Any

import pandas as pd

from condnum.deep.attack_panel import DeepAttacker
from condnum.deep.attack_report import sentence
from condnum.report.tables import bullets, label, number
from condnum.studies.deep_attackers import DeepAttackers

#: Share of θ₀'s final accuracy of which tables and sentences speak.
HEADLINE = 0.9


def attacker_table(study: DeepAttackers) -> pd.DataFrame:
    """Return who attacks, what is trained, and which values are tried."""
    rows = []
    for name in study.attackers:
        attacker = DeepAttacker.named(name)
        meaning = {
            "head-sgd": "rate × L", "whitened": "floor / λ<sub>1</sub>", "ridge": "penalty / mean λ",
            "logistic": "C",
        }.get(name, "learning rate")  # fmt: skip
        values = ", ".join(f"{value:.2g}" for value in attacker.trials(study.trials))
        rows.append((name, attacker.label, f"{meaning}: {values}"))
    return pd.DataFrame(rows, columns=["attacker", "what is trained, by what", "trials"])


def most_rows(study: DeepAttackers) -> int:
    """Return the rows a class of which the curves are shown: as many as there are."""
    return 0 if 0 in study.shots else max(study.shots)


def _with_interval(row: Any, name: str, bound: bool = False) -> str:
    """Return a number with its interval; of a bound only on which side it is."""
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if math.isnan(value):
        return "—"
    return f"{'≥ ' if bound else ''}{number(value)} <small>({number(low)} to {number(high)})</small>"


def _needs(row: Any, net: str, seeds: int) -> str:
    """Return what a net needs; of one that never arrives that it is more."""
    return f"{'> ' if row[f'reached_{net}'] < seeds else ''}{number(row[f'needs_{net}'])}"


def _table(factors: pd.DataFrame, share: float, unit: str) -> pd.DataFrame:
    """Format factors at a share."""
    rows = []
    for _, row in factors[(factors["share"] - share).abs() < 1e-9].iterrows():
        bound = row["reached_theta_i"] < row["seeds"]
        shots = {} if "shots" not in row else {"rows a class": str(row["shots"] or "all")}
        rows.append(
            {
                "backbone": html.escape(row["backbone"]),
                "method": label(row["method"]),
                "attacker": row["label"],
                **shots,
                f"{unit} on θ<sub>0</sub>": _needs(row, "theta_0", row["seeds"]),
                "on θ<sub>I</sub>": _needs(row, "theta_i", row["seeds"]),
                "from scratch": _needs(row, "scratch", row["seeds"]),
                "factor": _with_interval(row, "factor", bound),
                "place (0 void, 1 complete)": _with_interval(row, "place"),
                "D<sub>H</sub>, end (%)<br><small>θ<sub>0</sub>, θ<sub>I</sub>, scratch</small>": ", ".join(
                    f"{100 * row[f'final_{net}']:.1f}" for net in ("theta_0", "theta_i", "scratch")
                ),
                "D<sub>P</sub> after (%)<br><small>θ<sub>0</sub>, θ<sub>I</sub></small>": ", ".join(
                    f"{100 * row[f'pretrain_{net}']:.1f}" for net in ("theta_0", "theta_i")
                ),
            }
        )
    return pd.DataFrame(rows)


def factor_table(factors: pd.DataFrame, share: float = HEADLINE) -> pd.DataFrame:
    """Format the factors of steps."""
    return _table(factors, share, "steps")


def rows_table(factors: pd.DataFrame, share: float = HEADLINE) -> pd.DataFrame:
    """Format the factors of rows; empty where all attacks had the same rows."""
    return _table(factors, share, "rows") if len(factors) else pd.DataFrame()


def verdict(study: DeepAttackers, run: Any, share: float = HEADLINE) -> str:
    """Say for each backbone and method what the defence buys against each attacker with most rows."""
    table = run.factors
    table = table[(table["shots"] == most_rows(study)) & ((table["share"] - share).abs() < 1e-9)]
    words = ""
    for (backbone, method), rows in table.groupby(["backbone", "method"], sort=False):
        known = run.immunization.query("backbone == @backbone and method == @method")
        rir = known.loc[known["convention"] == "compact", "rir_mean"].iloc[0]
        words += (
            f"<p><b>{html.escape(str(backbone))}, {label(method)}</b>: RIR<sub>θ0</sub> {number(rir)}.</p>"
        )
        words += bullets([html.escape(sentence(row, study.steps)) for _, row in rows.iterrows()])
    return words
