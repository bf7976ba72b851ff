"""The summary of an audit in plain language: sentences that are computed from its numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from condnum.audit.extractors import FRONT, LABELS, OPTIMAL, RAW, Comparison
from condnum.audit.result import Audit
from condnum.report.comparison import number

#: Compact κ's of one task that differ by more than this factor over the sweep make it fragile.
FRAGILE = 10.0


def summary(found: Audit) -> list[str]:
    """Return the half page that an audit's report starts with.

    Args:
        found: The audit.

    Returns:
        Plain sentences: what was audited, κ's with their certainty, how much is possible, the verdict, the
        attackers, what the numbers cannot say.
    """
    said = [_what(found), *_kappas(found), _fragility(found), _room(found)]
    said += _verdict(found) if found.main is not None else [_no_extractor(found)]
    said += [_attack(found), _limits(found)]
    return [sentence for sentence in said if sentence]


def verdict_rows(found: Audit, pair: Comparison) -> list[dict[str, Any]]:
    """Return Definition 3.1 clause by clause in both conventions.

    Args:
        found: The audit.
        pair: What against what.

    Returns:
        A row per convention: `convention`, `a`, `b`, `c`, `all`; None where something is not known.
    """
    rows = []
    for convention in ("compact", "ridge"):
        row = found.row(pair, convention)
        a, b = bool(row["clause_a"]), bool(row["clause_b"])
        c = found.clause_c[pair.extractor].kept
        everything = None if a and b and c is None else a and b and bool(c)
        rows.append({"convention": convention, "a": a, "b": b, "c": c, "all": everything})
    return rows


def interval_words(found: Audit, quantity: str, convention: str, **place: str) -> str:
    """Return an estimate with its interval, as a table shows it.

    Args:
        found: The audit.
        quantity: As `Audit.interval`.
        convention: `compact` or `ridge`.
        **place: `task`, `extractor`, `baseline`.

    Returns:
        `low – high`, a dash if there is none, and a star if the estimate lies outside.
    """
    row = found.interval(quantity, convention, **place)
    if row is None:
        return "—"
    mark = "" if row["inside"] else " *"
    return f"{number(row['low'])} – {number(row['high'])}{mark}"


def _what(found: Audit) -> str:
    """Say what was audited."""
    P, H = found.pretrain, found.harmful
    extractor = found.main
    about = "no extractor was given" if extractor is None else f"{extractor.label} is judged"
    return (
        f"D_P is {Path(P.source).name} with {P.rows:,d} rows, D_H is {Path(H.source).name} with "
        f"{H.rows:,d} rows, "
        f"both with {P.dimension:,d} columns; {about}."
    )


def _kappas(found: Audit) -> list[str]:
    """Say what κ and the rank of both tasks are."""
    said = []
    for task, facts in (("pretrain", found.pretrain), ("harmful", found.harmful)):
        row = found.kappa_of(task, RAW, "compact")
        interval = found.interval("kappa", "compact", task=task, extractor=RAW)
        sure = ""
        if interval is not None:
            sure = (
                f", {100 * found.intervals.level:.0f} % bootstrap interval {number(interval['low'])} to "  # type: ignore[union-attr]
                f"{number(interval['high'])}"
            )
        rank = "full rank" if row["rank"] == facts.dimension else f"rank {row['rank']} of {facts.dimension}"
        ridge = found.kappa_of(task, RAW, "ridge")["kappa"]
        said.append(
            f"{facts.name}: {rank}; κ of its features is {number(row['kappa'])} over the non-zero "
            f"spectrum{sure}, "
            f"and {number(ridge)} with a ridge of {number(found.ridge)}."
        )
    return said


def _fragility(found: Audit) -> str:
    """Say how far compact κ depends on the rank tolerance."""
    words = []
    for name, column in (("D_P", "kappa_P"), ("D_H", "kappa_H")):
        values = found.rtol_sweep[column]
        if values.max() > FRAGILE * values.min():
            words.append(f"that of {name} between {number(values.min())} and {number(values.max())}")
    least, most = found.rtol_sweep["rtol"].min(), found.rtol_sweep["rtol"].max()
    span = f"for rank tolerances from {number(least)} to {number(most)}"
    if not words:
        return f"The compact κ's hardly move: {span} they stay within a factor {FRAGILE:g}."
    return f"The compact κ depends on what counts as rank: {span} {' and '.join(words)}."


def _room(found: Audit) -> str:
    """Say how much immunization is possible at all."""
    limit = f"in the ridge convention at unit scale no extractor exceeds {number(found.ridge_limit)}"
    if math.isinf(found.ceiling.value):
        return (
            f"Room: D_H has {found.ceiling.harmful_only_dimension} direction(s) that D_P lacks, so that the "
            f"compact RIR has no ceiling; {limit}."
        )
    interval = found.interval("rir_ceiling", "compact")
    sure = "" if interval is None else f" (bootstrap {number(interval['low'])} to {number(interval['high'])})"
    return (
        "Room: no invertible linear extractor can have a compact RIR above "
        f"{number(found.ceiling.value)}{sure}; "
        f"{limit}."
    )


def _no_extractor(found: Audit) -> str:
    """Say what the closed forms would reach."""
    reached = []
    for name in (OPTIMAL, FRONT):
        row = found.row(Comparison(name, RAW), "compact")
        reached.append(
            f"{LABELS[name]} would have a compact RIR of {number(row['rir'])}, "
            f"(i) = {number(row['harmful_ratio'])} and (ii) = {number(row['pretrain_ratio'])}"
        )
    return f"Without an extractor there is no verdict. {'; '.join(reached)}."


def _verdict(found: Audit) -> list[str]:
    """Say for each convention which clauses of Definition 3.1 hold."""
    pair = found.main
    if pair is None:
        return []
    said, name = [], LABELS[pair.extractor]
    for verdict in verdict_rows(found, pair):
        convention = verdict["convention"]
        row = found.row(pair, convention)
        sure = found.interval("rir", convention, extractor=pair.extractor, baseline=pair.baseline)
        spread = "" if sure is None else f" (bootstrap {number(sure['low'])} to {number(sure['high'])})"
        share = ""
        if convention == "compact" and 0 < row["share"] < math.inf:
            share = f", {number(100 * row['share'])} % of the ceiling"
        failing = _failing(verdict, row)
        judged = {
            True: "meets all clauses of Definition 3.1",
            False: f"is not immunized: {failing}",
            None: "meets clauses (a) and (b) of Definition 3.1; (c) is not known",
        }[verdict["all"]]
        said.append(
            f"{convention.capitalize()} convention: {name} {judged}. RIR "
            f"{number(row['rir'])}{spread}{share}, "
            f"(i) = {number(row['harmful_ratio'])}, (ii) = {number(row['pretrain_ratio'])}."
        )
    both = {verdict["all"] for verdict in verdict_rows(found, pair)}
    if len(both) > 1:
        said.append(
            "The two conventions disagree on the verdict: do not quote one without the other, and "
            "look at how "
            "it moves with the tolerance and with ε below."
        )
    clause = found.clause_c[pair.extractor]
    said.append(f"Clause (c): {clause.reason}.")
    return said


def _failing(verdict: dict[str, Any], row: Any) -> str:
    """Name the clauses that fail."""
    words = []
    if not verdict["a"]:
        words.append(f"(a) fails, as the harmful κ does not rise ((i) = {number(row['harmful_ratio'])})")
    if not verdict["b"]:
        words.append(f"(b) fails, as the pre-training κ rises ((ii) = {number(row['pretrain_ratio'])})")
    if verdict["c"] is False:
        words.append("(c) fails, as the pre-training task is fitted worse")
    return "; ".join(words)


def _attack(found: Audit) -> str:
    """Say what the panel found in one sentence, or why there is none."""
    report, pair = found.attack.report, found.main
    if report is None:
        return f"Attackers were not run: {found.attack.reason}."
    name = pair.extractor if pair is not None else OPTIMAL
    table = report.at(report.factors, None)
    known = table[(table["extractor"] == name) & (table["bound"] != "unknown")]
    if known.empty:
        return "No attacker reached the target on the raw features within the budget: no factor is known."
    worst, best = report.worst_case(name), known.sort_values("factor").iloc[-1]
    more = "at least " if best["bound"] == "at least" else ""
    return (
        f"Of {len(known)} attackers with a known factor, {LABELS[name]} slows {worst['label']} least "
        f"({number(worst['factor'])} times the steps on raw features) and {best['label']} most "
        f"({more}{number(best['factor'])} times): what protects against the one need not protect "
        "against the other."
    )


def _limits(found: Audit) -> str:
    """Say what an audit cannot know."""
    return (
        "κ bounds plain gradient descent with a squared loss on features as they come, and nothing "
        "else: whitening, "
        "conjugate gradients or a closed form pay little attention to it, non-linear attackers are "
        "outside of it, "
        "and all of this is about these rows: other data of the same tasks may differ."
    )
