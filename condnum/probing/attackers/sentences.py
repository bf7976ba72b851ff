"""What the numbers of an attack panel say, in words that are computed from them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from condnum.probing.attackers.attack_report import AttackReport

#: A factor up to this is called no obstacle, from that on a real one.
SMALL, LARGE = 2.0, 10.0


def attack_sentences(report: AttackReport) -> list[str]:
    """Say what a panel found, one statement a sentence, and what it cannot know.

    Args:
        report: Of `attack_panel` or `attack_features`.

    Returns:
        Sentences in plain text.

    Examples:
        >>> from condnum.probing.attackers import AttackTask, attack_panel
        >>> X = np.random.default_rng(0).normal(size=(60, 4))
        >>> task = AttackTask(X, X @ np.ones(4), name="random")
        >>> report = attack_panel(np.diag([1, 1, 1, 0.01]), task, attackers=["gd", "whiten"])
        >>> attack_sentences(report)[0]
        'Targets: 1 % of the excess loss of zero weights, unless another one is named.'
    """
    epsilon = report.budget.headline
    said = [f"Targets: {100 * epsilon:g} % of the excess loss of zero weights, unless another one is named."]
    for name in report.extractors["extractor"]:
        if name != report.baseline:
            said += _extractor(report, str(name))
    said += _one_step(report)
    said += _caveats(report)
    return said


def _extractor(report: AttackReport, name: str) -> list[str]:
    """Say how one extractor fares: the worst case, who is slowed, where the loss lies, the optimum."""
    table = report.at(report.factors, None)
    rows = table[(table["extractor"] == name) & (table["bound"] != "unknown")]
    if rows.empty:
        return [f"{name}: no attacker reached the target on {report.baseline}, so no factor is known."]
    worst = report.worst_case(name)
    said = [
        f"{name}: the attacker who is slowed least is {worst['label']} with a factor of "
        f"{'at least ' if worst['bound'] == 'at least' else ''}{worst['factor']:.3g} "
        f"(steps: {_steps(worst)}, on {report.baseline} {worst['baseline_steps']:,.0f})."
    ]
    slowed = rows[rows["factor"] >= LARGE]
    hardly = rows[(rows["factor"] <= SMALL) & (rows["bound"] == "exact")]
    between = len(rows) - len(slowed) - len(hardly)
    said.append(
        f"{name}: of {len(rows)} attackers with a known factor, {len(slowed)} are slowed {LARGE:g} times "
        f"or more{_list(slowed)}, {len(hardly)} at most {SMALL:g} times{_list(hardly)}, "
        f"{between} are in between."
    )
    return [*said, _where(report, name), *_optimum(report, name)]


def _steps(row: pd.Series) -> str:
    """Return the steps of a row of factors as text."""
    return f"{row['steps']:,.0f}" if np.isfinite(row["steps"]) else "more than the budget's"


def _list(rows: pd.DataFrame) -> str:
    """Return the attackers of some rows with their factors, in brackets."""
    if rows.empty:
        return ""
    parts = [
        f"{row['label']} {'> ' if row['bound'] == 'at least' else ''}{row['factor']:.3g}"
        for row in rows.to_dict("records")
    ]
    return f" ({', '.join(parts)})"


def _number(value: float) -> str:
    """Return three significant digits, with a power of ten for large numbers."""
    if value < 1e6:
        return f"{float(f'{value:.3g}'):,.10g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10^{int(exponent)}"


def _where(report: AttackReport, name: str) -> str:
    """Say in which eigenvalues the excess loss lies, before and after."""
    facts = report.extractors.set_index("extractor")
    words = []
    for which in (report.baseline, name):
        rows = report.spectra[report.spectra["extractor"] == which]
        low = rows["sigma"] < rows["sigma"].max() / 100
        words.append(
            f"{which} has {100 * rows.loc[low, 'share'].sum():.3g} % of it below σ₁/100, so that κ = "
            f"{_number(facts.loc[which, 'kappa'])} acts like "
            f"{_number(facts.loc[which, 'effective_condition'])}"
        )
    measure = "excess loss" if report.kind == "regression" else "excess squared loss on the labels"
    left = facts["deflated_condition"]
    return (
        f"{name}: where the {measure} lies decides, not κ alone: {'; '.join(words)}. Conjugate gradients and "
        "L-BFGS deal with a few large eigenvalues at a step each; without the five largest the ratio that "
        f"matters is {_number(left[name])} ({report.baseline}: {_number(left[report.baseline])})."
    )


def _optimum(report: AttackReport, name: str) -> list[str]:
    """Say whether the best loss on these features is that of the baseline."""
    row = report.extractors.set_index("extractor").loc[name]
    room = row["start_loss"] - row["baseline_optimum"]
    gap = (row["optimum"] - row["baseline_optimum"]) / room
    if abs(gap) <= 1e-4:
        return [f"{name}: the best loss on its features is that of {report.baseline}; nothing is destroyed."]
    return [
        f"{name}: the best loss on its features is {row['optimum']:.4g}, on {report.baseline} "
        f"{row['baseline_optimum']:.4g}: a share {gap:.2g} of what can be learned is "
        f"{'lost' if gap > 0 else 'gained'} to float64 rank, and its targets count from its own optimum."
    ]


def _one_step(report: AttackReport) -> list[str]:
    """Name the informed attackers who need one step everywhere."""
    smallest = report.steps[report.steps["epsilon"] == min(report.budget.epsilons)]
    said = []
    for label, rows in smallest.groupby("label", sort=False):
        if (rows["steps"] == 1).all():
            said.append(
                f"{label} needs one step on every extractor, down to ε = {min(report.budget.epsilons):g}: "
                "conditioning is no obstacle to an attacker who does this."
            )
    return said


def _caveats(report: AttackReport) -> list[str]:
    """Say what the panel leaves open."""
    said = []
    rows = report.at(report.steps, None)
    edge = rows[rows["at_edge"]]
    if len(edge):
        where = ", ".join(f"{r['label']} on {r['extractor']}" for r in edge.to_dict("records"))
        said.append(
            f"The best hyper-parameter lies at the end of its grid for {where}: a wider grid may do better."
        )
    missing = rows[rows["steps"].isna()]
    if len(missing):
        said.append(
            f"{len(missing)} of {len(rows)} attacks did not finish within the budget; their factors are "
            "lower bounds at best."
        )
    if not report.extractors["optimum_converged"].all():
        said.append(
            "The optimum of at least one extractor was not certified: small ε are to be read with care."
        )
    for attacker, group in report.skipped.groupby("attacker", sort=False):
        said.append(f"{attacker} was skipped on {len(group)} extractor(s): {group['reason'].iloc[0]}.")
    said.append(
        "Factors hold for these attackers, grids and budget, on this sample; an attacker who is not in the "
        "panel may do better, and none of the numbers is an upper limit of what an attacker can do."
    )
    return said
