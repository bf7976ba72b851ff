"""Tables and words of the report on deep attacks: who attacks, what each needs, what the defence buys."""

import html
import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.deep.attack_panel import DeepAttacker
from condnum.deep.attack_report import sentence
from condnum.report.tables import bullets, formula_html, label, number
from condnum.studies.deep_attackers import DeepAttackers

#: Share of θ₀'s final accuracy of which tables and sentences speak.
HEADLINE = 0.9

#: Spearman's correlation from which a prediction is said to order attacks.
FOLLOWS = 0.7

_NETS = {"theta_0": "θ<sub>0</sub>", "scratch": "from scratch"}


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
    interval = f"<small style='white-space: nowrap'>({low:.3g} to {high:.3g})</small>"
    return f"{'≥ ' if bound else ''}{value:.3g}<br>{interval}"


def _needs(row: Any, net: str, seeds: int) -> str:
    """Return what a net needs; of one that never arrives that it is more."""
    value = row[f"needs_{net}"]
    return "—" if math.isnan(value) else f"{'> ' if row[f'reached_{net}'] < seeds else ''}{value:.3g}"


def _table(factors: pd.DataFrame, share: float, unit: str) -> pd.DataFrame:
    """Format factors at a share."""
    rows = []
    for _, row in factors[(factors["share"] - share).abs() < 1e-9].iterrows():
        bound = row["reached_theta_i"] < row["seeds"]
        shots = {} if "shots" not in row else {"rows a class": str(row["shots"] or "all")}
        rows.append(
            {
                "net": f"{html.escape(row['backbone'])}<br><small>{label(row['method'])}</small>",
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


def verdict(factors: pd.DataFrame, immunization: pd.DataFrame, budget: int, share: float = HEADLINE) -> str:
    """Say for each backbone and method what the defence buys against each attacker with most rows."""
    most = 0 if 0 in set(factors["shots"]) else factors["shots"].max()
    table = factors[(factors["shots"] == most) & ((factors["share"] - share).abs() < 1e-9)]
    words = ""
    for (backbone, method), rows in table.groupby(["backbone", "method"], sort=False):
        known = immunization.query("backbone == @backbone and method == @method")
        rir = known.loc[known["convention"] == "compact", "rir_mean"].iloc[0]
        words += (
            f"<p><b>{html.escape(str(backbone))}, {label(method)}</b>: RIR<sub>θ0</sub> {number(rir)}.</p>"
        )
        words += bullets([formula_html(sentence(row, budget)) for _, row in rows.iterrows()])
    return words


def prediction_verdict(correlations: pd.DataFrame) -> str:
    """Say when κ, and when the whole spectrum, orders the attacks, and when neither does."""
    said = ["Of the trained nets; one from scratch may never get there, whatever its κ."]
    for _, row in correlations.iterrows():
        what = f"{row['part']}, {row['optimizer']} ({row['attacks']} attacks)"
        if math.isnan(row["rho_kappa"]):
            said.append(f"{what}: too few attacks that differ for a correlation.")
            continue
        best = max(row["rho_kappa"], row["rho_spectrum"])
        word = "orders them" if best >= FOLLOWS else "hardly tells them apart" if best < 0.4 else "is a hint"
        rhos = f"Spearman {row['rho_kappa']:.2f} by κ, {row['rho_spectrum']:.2f} by the whole spectrum"
        said.append(f"{what}: curvature {word}; {rhos}.")
    return bullets(map(html.escape, said))


def curvature_table(curvature: pd.DataFrame, immunization: pd.DataFrame) -> pd.DataFrame:
    """Format κ and effective rank of what is trained on both tasks, means over seeds, beside RIR."""
    rir = immunization.query("convention == 'compact'").set_index(["backbone", "method"])["rir_mean"]
    rows = []
    for (backbone, net, part), own in curvature.groupby(["backbone", "net", "part"], sort=False):
        row = {"backbone": html.escape(str(backbone)), "net": _NETS.get(net, label(net)), "trained": part}
        row["parameters"] = f"{own['parameters'].iloc[0]:,}"
        row["RIR<sub>θ0</sub>"] = number(rir.get((backbone, {"theta_0": "initial"}.get(net, net)), math.nan))
        for task, name in (("harmful", "D<sub>H</sub>"), ("pretrain", "D<sub>P</sub>")):
            of = own[own["task"] == task]
            bound = "" if of["resolved"].all() else "> "
            kappa, met = (
                float(np.exp(np.log(of[key]).mean())) for key in ("condition", "gradient_condition")
            )
            row[f"κ on {name}"] = bound + number(kappa)
            row[f"κ met by the gradient, {name}"] = number(met)
            row[f"effective rank, {name}"] = number(float(of["effective_rank"].mean()))
        rows.append(row)
    return pd.DataFrame(rows)
