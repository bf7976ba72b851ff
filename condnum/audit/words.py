"""What an audit says in plain language: a card with the verdict, sentences, what to do next."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condnum.audit.measures import CLOSED, FRONT, LABELS, RAW, Comparison
from condnum.data.feature_pair import odd_columns
from condnum.report.tables import bullets, formula_html, number

if TYPE_CHECKING:
    from condnum.audit.result import Audit

#: Compact κ's of one task that differ by more than this factor over the sweep make it fragile.
FRAGILE = 10.0
#: Columns whose deviations differ by more than this factor are in different units.
UNITS = 1000.0

#: What an audit cannot know.
LIMITS = (
    "κ is the worst case of gradient descent with a squared loss on features as they come. Whitening and the "
    "closed form do not meet it, conjugate gradients are bounded by its square root, and non-linear "
    "attackers are outside of it. All of this is about these rows: other data of the same tasks may differ."
)

#: What is asked of each layer.
DEPTH = (
    "Behind a layer with D pooled features a linear extractor θ, D × D, has D² parameters. In the ridge "
    "convention, at unit scale, with (i) > 1 and (ii) ≤ 1: what a closed form reaches on these rows, and "
    "what no square one exceeds; between the two it is open. Compact, the largest (i) at (ii) = 1 is the "
    "ceiling itself. Misalignment is 0 where both tasks share their directions. Each layer is judged by "
    "itself: who probes the features of another layer meets nothing of an extractor behind this one."
)


def interval_words(found: Audit, quantity: str, convention: str, **place: str) -> str:
    """Return an interval as a table shows it, with a word where the estimate lies outside."""
    row = found.interval(quantity, convention, **place)
    if row is None:
        return "—"
    way = "raises" if row["low"] > row["estimate"] else "lowers"
    word = "" if row["inside"] else f", resampling {way} it"
    return f"{number(row['low'])} – {number(row['high'])}{word}"


def _sure(found: Audit, quantity: str, convention: str, **place: str) -> str:
    """Return a number's interval in brackets, or nothing."""
    words = interval_words(found, quantity, convention, **place)
    return "" if words == "—" else f" (bootstrap {words})"


def as_page(sentences: Sequence[str]) -> str:
    """Return sentences as a list in HTML, `D_P` with its index.

    Examples:
        >>> as_page(["D_P is short."])
        '<ul><li>D<sub>P</sub> is short.</li></ul>'
    """
    option = r'<code style="white-space:nowrap">\1</code>'
    typed = (formula_html(text).replace("drop=", "--drop ") for text in sentences)
    return bullets(re.sub(r"(--[a-z][a-z-]+)", option, text) for text in typed)


def verdict_words(found: Audit) -> str:
    """Say in one line whether the judged extractor is immunized, in each convention."""
    judged = {verdict["convention"]: verdict["all"] for verdict in found.verdict(found.judged)}
    said = {True: "immunized", False: "not immunized", None: "open, as clause (c) is not known"}
    words = f"{said[judged['compact']]} by Definition 3.1 in both conventions"
    if judged["compact"] is not judged["ridge"]:
        words = "; ".join(f"{said[value]} in the {name} convention" for name, value in judged.items())
    return f"{found.judged.label}: {words}"


def card(found: Audit) -> str:
    """Return the verdict: clauses, RIR of its ceiling, the weakest attacker, what to do next."""
    heads = {
        "a": "(a) harmful κ rises", "b": "(b) benign κ does not rise", "c": "(c) benign task still fitted"
    }  # fmt: skip
    chips = {True: ("holds", "holds"), False: ("fails", "fails"), None: ("unknown", "not known")}
    rows = []
    for verdict in found.verdict(found.judged):
        row = found.row(found.judged, verdict["convention"])
        ratios = {"a": f" (i)\u00a0=\u00a0{number(row['harmful_ratio'])}",
                  "b": f" (ii)\u00a0=\u00a0{number(row['pretrain_ratio'])}", "c": ""}  # fmt: skip
        cells = {}
        for clause, head in heads.items():
            kind, word = chips[verdict[clause]]
            cells[head] = f'<span class="chip {kind}">{word}</span>{ratios[clause]}'
        of = "" if math.isnan(row["rir_ceiling"]) else f" of at most {number(row['rir_ceiling'])}"
        cells["RIR"] = f"<b>{number(row['rir'])}</b>{of}"
        body = (f'<td data-label="{head}">{cell}</td>' for head, cell in cells.items())
        rows.append(f'<tr><th scope="row">{verdict["convention"]}</th>{"".join(body)}</tr>')
    head = "".join(f'<th scope="col">{text}</th>' for text in ("convention", *heads.values(), "RIR"))
    missing = "" if found.main else "No extractor was given, so this page judges a closed form. "
    worst = weakest_attacker(found)
    weakest = attackers_sentence(found)
    if worst is not None:
        times = number(worst["factor"])
        weakest = (
            f"{worst['label']} needs {'as' if times == '1' else f'{times} times as'} many steps on "
            f"{LABELS[found.judged.extractor]} as on the features as they are. The extractor protects no "
            "better than this against an attacker who chooses the method."
        )
    return (
        f'<article class="score"><h2 style="margin-top:1rem">Verdict</h2>'
        f'<p class="lead">{missing}<b>{formula_html(verdict_words(found))}.</b></p>'
        f"{''.join(f'<p>{formula_html(note)}</p>' for note in found.dropped)}"
        f'<div class="scroll"><table class="board"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody>"
        f"</table></div><h3>Weakest attacker</h3><p>{formula_html(weakest)}</p>"
        f"<h3>What to do next</h3>{as_page(next_steps(found))}</article>"
    )


def weakest_attacker(found: Audit) -> Any | None:
    """Return the attacker whom the judged extractor slows least, if any factor is known."""
    report, name = found.attack.report, found.judged.extractor
    if report is None or report.at(report.factors, None).query("extractor == @name")["factor"].isna().all():
        return None
    return report.worst_case(name)


def next_steps(found: Audit) -> list[str]:
    """Return what somebody who has this audit should do, most urgent first."""
    steps, pair = [], found.main
    if odd := odd_columns(found.columns):
        steps.append(
            f"Look at the columns that seem to be an answer or an index, and audit again without: --drop "
            f"{','.join(odd[:5])}."
        )
    deviations = found.columns[["deviation_pretrain", "deviation_harmful"]].replace(0, math.nan)
    spread = float((deviations.max() / deviations.min()).max())
    if not found.settings["standardise"] and spread > UNITS:
        steps.append(
            f"The columns' scales differ {number(spread)} times, which κ takes for ill-conditioning: see "
            "whether the verdict stands with --standardise, which any attacker can do as well."
        )
    if pair is None or any(verdict["all"] is False for verdict in found.verdict(pair)):
        steps.append(
            "The closed form “front” meets Definition 3.1 in both conventions: write it with "
            "--save-theta front.npy, and audit it on other rows with --theta front.npy."
            if all(verdict["all"] for verdict in found.verdict(Comparison(FRONT)))
            else "Not even the closed form at the edge of what is possible meets Definition 3.1 in both "
            "conventions: these two tasks may be too alike for a linear extractor."
        )
    if pair is not None and found.clause_c[pair.extractor].kept is None:
        steps.append("Give --pretrain-targets: clause (c) cannot be judged without.")
    worst = None if pair is None else weakest_attacker(found)
    if found.attack.report is None:
        steps.append("Give --targets of the harmful rows, to see what attackers make of it.")
    elif worst is not None and worst["factor"] < 10:
        steps.append(
            f"Do not rely on κ alone: {worst['label']} needs no more than {number(worst['factor'])} times "
            "the steps."
        )
    return steps or ["Repeat the audit on other rows of the same tasks: all of this is about these."]


def summary(found: Audit) -> list[str]:
    """Return the half page that an audit's report starts with."""
    P, H, pair = found.pretrain, found.harmful, found.main
    about = "no extractor was given" if pair is None else f"{pair.label} is judged"
    said = [
        f"D_P is {Path(P.source).name} with {P.rows:,d} rows, D_H is {Path(H.source).name} with "
        f"{H.rows:,d} rows, both with {P.dimension:,d} columns; {about}."
    ]
    for task, facts in (("pretrain", P), ("harmful", H)):
        row = found.kappa_of(task, RAW, "compact")
        sure = _sure(found, "kappa", "compact", task=task, extractor=RAW)
        rank = "full rank" if row["rank"] == facts.dimension else f"rank {row['rank']} of {facts.dimension}"
        ridge = found.kappa_of(task, RAW, "ridge")["kappa"]
        said.append(
            f"{facts.name}: {rank}; κ of its features is {number(row['kappa'])} over the non-zero "
            f"spectrum{sure}, and {number(ridge)} with a ridge of {number(found.ridge)}."
        )
    sweep = found.rtol_sweep
    moved = [
        f"that of {name} between {number(sweep[column].min())} and {number(sweep[column].max())}"
        for name, column in (("D_P", "kappa_P"), ("D_H", "kappa_H"))
        if sweep[column].max() > FRAGILE * sweep[column].min()
    ]
    span = f"for rank tolerances from {number(sweep['rtol'].min())} to {number(sweep['rtol'].max())}"
    said.append(
        f"The compact κ depends on what counts as rank: {span} {' and '.join(moved)}."
        if moved
        else f"The compact κ's hardly move: {span} they stay within a factor {FRAGILE:g}."
    )
    room = f"D_H has {found.ceiling.harmful_only_dimension} direction(s) that D_P lacks, so that the compact "
    room += "RIR has no ceiling"
    if math.isfinite(found.ceiling.value):
        sure = _sure(found, "rir_ceiling", "compact")
        room = "no invertible linear extractor can have a compact RIR above "
        room += f"{number(found.ceiling.value)}{sure}"
    limit = f"in the ridge convention at unit scale no square extractor exceeds {number(found.ridge_limit)}"
    if pair is None:
        closed = {name: found.row(Comparison(name), "compact") for name in CLOSED}
        reached = (
            f"{LABELS[name]} has a compact RIR of {number(row['rir'])}, "
            f"(i) = {number(row['harmful_ratio'])} and (ii) = {number(row['pretrain_ratio'])}"
            for name, row in closed.items()
        )
        judged = [f"No extractor was given; of the closed forms, {'; '.join(reached)}."]
    else:
        judged = _judged(found, pair)
    depth = [] if found.layers is None else [found.layers.sentence]
    return [*said, f"Theoretical limit: {room}; {limit}.", *judged, attackers_sentence(found), *depth, LIMITS]


def _judged(found: Audit, pair: Comparison) -> list[str]:
    """Say for each convention which clauses of Definition 3.1 hold."""
    said, verdicts = [], found.verdict(pair)
    for verdict in verdicts:
        convention = verdict["convention"]
        row = found.row(pair, convention)
        i, ii = number(row["harmful_ratio"]), number(row["pretrain_ratio"])
        share = ""
        if convention == "compact" and 0 < row["share"] < math.inf:
            share = f", {number(100 * row['share'])} % of the ceiling"
        reasons = {
            "a": f"(a) fails, as the harmful κ does not rise ((i) = {i})",
            "b": f"(b) fails, as the pre-training κ rises ((ii) = {ii})",
            "c": "(c) fails, as the pre-training task is fitted worse",
        }
        failing = [words for clause, words in reasons.items() if verdict[clause] is False]
        judged = {
            True: "meets all clauses of Definition 3.1",
            False: f"is not immunized: {'; '.join(failing)}",
            None: "meets clauses (a) and (b) of Definition 3.1; (c) is not known",
        }[verdict["all"]]
        said.append(
            f"{convention.capitalize()} convention: {LABELS[pair.extractor]} {judged}. RIR "
            f"{number(row['rir'])}{_sure(found, 'rir', convention, **vars(pair))}{share}, (i) = {i}, "
            f"(ii) = {ii}."
        )
    if verdicts[0]["all"] != verdicts[1]["all"]:
        said.append(
            "The two conventions disagree on the verdict: do not quote one without the other, and look at "
            "how it moves with the tolerance and with ε below."
        )
    return [*said, f"Clause (c): {found.clause_c[pair.extractor].reason}."]


def attackers_sentence(found: Audit) -> str:
    """Say what the panel found in one sentence, or why there is none."""
    report, name = found.attack.report, found.judged.extractor
    if report is None:
        return f"Attackers were not run: {found.attack.reason}."
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
