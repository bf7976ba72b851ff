"""What an audit found: one frozen record, written as strict JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.audit.attacks import AttackSection
from condnum.audit.intervals import Intervals
from condnum.audit.measures import FRONT, LABELS, OPTIMAL, RAW, ClauseC, Comparison, Directions
from condnum.audit.moments import TaskFacts
from condnum.data.feature_pair import odd_columns
from condnum.files import output_folder, write_json
from condnum.report.tables import formula_html, number
from condnum.theory.ceiling import RirCeiling

#: Name of the file, and the version of its layout.
AUDIT_FILE, LAYOUT = "audit.json", 1


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything an audit says about a pair of tasks and, where given, an extractor."""

    pretrain: TaskFacts
    harmful: TaskFacts
    extractors: Mapping[str, tuple[int, int]]  # name -> (D, D_hid), yardsticks included
    compared: tuple[Comparison, ...]
    rtol: float  # relative rank tolerance of K and H(θ)
    ridge: float  # ε
    ceiling: RirCeiling  # compact
    ridge_limit: float  # bound on RIR in the ridge convention, unit gauge
    kappa: pd.DataFrame  # of `kappa_rows`
    measures: pd.DataFrame  # of `measures_table`
    rtol_sweep: pd.DataFrame
    ridge_sweep: pd.DataFrame
    directions: Directions
    clause_c: Mapping[str, ClauseC]
    intervals: Intervals | None
    no_intervals: str  # why there are none; empty if there are
    attack: AttackSection
    columns: pd.DataFrame  # of `FeaturePair`: scale of each column, and what it looks like
    notes: tuple[str, ...]  # what was done to the data, and what is odd about their columns
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]  # by stage
    peak_mib: float  # largest resident memory of this process so far
    seed: int = field(default=0)

    @property
    def main(self) -> Comparison | None:
        """The comparison that the verdict is about: θ_I against θ₀, or θ against the raw features."""
        given = [pair for pair in self.compared if pair.extractor in ("theta", "theta_i")]
        return given[0] if given else None

    @property
    def warnings(self) -> list[str]:
        """What makes the numbers fragile, in sentences."""
        own = [*self.notes, *self.pretrain.warnings, *self.harmful.warnings]
        if self.ceiling.harmful_only_dimension:
            own.append(
                f"D_H excites {self.ceiling.harmful_only_dimension} direction(s) that D_P does not: an "
                "extractor can scale them freely, which makes the compact ceiling infinite. That is "
                "a statement on null spaces, not a promise."
            )
        if self.intervals is not None:
            outside = self.intervals.table[~self.intervals.table["inside"].astype(bool)]
            if len(outside):
                own.append(
                    f"{len(outside)} of {len(self.intervals.table)} numbers lie outside their own bootstrap "
                    "interval: resampling moves them more than it spreads them, so that these intervals are "
                    "too optimistic (smallest eigenvalues and ranks fall when rows are missing)."
                )
        return own

    def row(self, pair: Comparison, convention: str, gauge: str = "unit") -> pd.Series:
        """Return what `measures` says of a pair, in `compact` or `ridge`, at scale `unit` or `as_trained`."""
        return _rows(
            self.measures,
            extractor=pair.extractor,
            baseline=pair.baseline,
            convention=convention,
            gauge=gauge,
        ).iloc[0]

    def kappa_of(self, task: str, extractor: str, convention: str) -> pd.Series:
        """Return κ of the `pretrain` or `harmful` task's Hessian at an extractor, with its rank."""
        return _rows(self.kappa, task=task, extractor=extractor, convention=convention).iloc[0]

    def interval(self, quantity: str, convention: str, **place: str) -> pd.Series | None:
        """Return the interval of a number at a `task`, `extractor`, `baseline`; None if there is none."""
        if self.intervals is None:
            return None
        where = {"task": "", "extractor": "", "baseline": ""} | place
        found = _rows(self.intervals.table, quantity=quantity, convention=convention, **where)
        return found.iloc[0] if len(found) else None

    @cached_property
    def sentences(self) -> list[str]:
        """The summary in plain language, computed from the numbers."""
        return summary(self)

    def as_json(self) -> dict[str, Any]:
        """Return everything as values that strict JSON holds: infinities as words, NaN as null."""
        attack = self.attack.report
        return strict(
            {
                "layout": LAYOUT,
                "conventions": "infinities are the words Infinity and -Infinity, what is not known is null",
                "summary": self.sentences,
                "warnings": self.warnings,
                "tasks": {
                    task.name: {
                        "source": task.source,
                        "rows": task.rows,
                        "columns": task.dimension,
                        "stored_eps": task.stored_eps,
                        "rank": task.rank,
                        "eigenvalues_near_tolerance": task.near,
                        "equal_columns": [list(pair) for pair in task.equal_columns],
                        "spectrum": task.spectrum.tolist(),
                    }
                    for task in (self.pretrain, self.harmful)
                },
                "columns": _records(self.columns),
                "settings": {"rtol": self.rtol, "ridge": self.ridge, "seed": self.seed, **self.settings},
                "extractors": {name: list(shape) for name, shape in self.extractors.items() if name != RAW},
                "ceiling": {**vars(self.ceiling), "ridge_convention_limit": self.ridge_limit},
                "kappa": _records(self.kappa),
                "measures": _records(self.measures),
                "clause_c": {name: vars(clause) for name, clause in self.clause_c.items()},
                "rtol_sweep": _records(self.rtol_sweep),
                "ridge_sweep": _records(self.ridge_sweep),
                "alignment": {
                    "overlaps": self.directions.overlaps.tolist(),
                    "extractors": _records(self.directions.table),
                },
                "bootstrap": None
                if self.intervals is None
                else {
                    "resampled": self.intervals.unit,
                    "replicates": self.intervals.replicates,
                    "failed": self.intervals.failed,
                    "level": self.intervals.level,
                    "intervals": _records(self.intervals.table),
                },
                "bootstrap_skipped": self.no_intervals or None,
                "attackers": None
                if attack is None
                else {
                    "rows": self.attack.rows,
                    "held_out_rows": self.attack.held_out,
                    "steps": _records(attack.steps),
                    "factors": _records(attack.factors),
                    "evaluation": _records(attack.evaluation),
                    "extractors": _records(attack.extractors),
                    "skipped": _records(attack.skipped),
                },
                "attackers_summary": self.attack.sentences,
                "seconds": dict(self.seconds),
                "peak_memory_mib": self.peak_mib,
            }
        )

    def save(self, folder: str | Path) -> list[str]:
        """Write audit.json into a folder, which is created if missing, and return the names of the files."""
        write_json(output_folder(folder) / AUDIT_FILE, self.as_json())
        return [AUDIT_FILE]


def _rows(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """Return the rows that have these values."""
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]


def strict(value: Any) -> Any:
    """Return a value that strict JSON holds: NaN becomes None, infinities become words.

    Examples:
        >>> strict({"a": [np.float64(1.5), math.inf, math.nan], "b": np.bool_(True)})
        {'a': [1.5, 'Infinity', None], 'b': True}
    """
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return a table's rows."""
    return table.to_dict("records")


# The verdict in plain language: sentences that are computed from the numbers.

#: Compact κ's of one task that differ by more than this factor over the sweep make it fragile.
FRAGILE = 10.0
#: Columns whose deviations differ by more than this factor are in different units.
UNITS = 1000.0


def verdict_rows(found: Audit, pair: Comparison) -> list[dict[str, Any]]:
    """Return Definition 3.1 clause by clause in both conventions."""
    rows = []
    for convention in ("compact", "ridge"):
        row = found.row(pair, convention)
        a, b = bool(row["clause_a"]), bool(row["clause_b"])
        c = found.clause_c[pair.extractor].kept
        everything = None if a and b and c is None else a and b and bool(c)
        rows.append({"convention": convention, "a": a, "b": b, "c": c, "all": everything})
    return rows


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
    items = (
        re.sub(r"(--[a-z][a-z-]+)", r'<code style="white-space:nowrap">\1</code>', formula_html(text))
        for text in sentences
    )
    return f"<ul>{''.join(f'<li>{text}</li>' for text in items)}</ul>"


def card(found: Audit) -> str:
    """Return the verdict: clauses, RIR of its ceiling, the weakest attacker, what to do next."""
    pair = found.main or Comparison(FRONT, RAW)
    verdicts = verdict_rows(found, pair)
    if found.main is None:
        title = f"No extractor was given: what {LABELS[FRONT]} reaches"
    else:
        judged = {
            (True, True): "immunized by Definition 3.1",
            (False, False): "not immunized by Definition 3.1",
        }
        both = (verdicts[0]["all"], verdicts[1]["all"])
        title = f"{LABELS[pair.extractor]}: {judged.get(both, 'the verdict is open: see the clauses')}"
    heads = ("(a) harmful κ rises", "(b) benign κ does not", "(c) benign task still fitted", "RIR")
    rows = []
    for verdict in verdicts:
        row = found.row(pair, verdict["convention"])
        cells = []
        for clause in "abc":
            kind = {True: "holds", False: "fails", None: "not known"}[verdict[clause]]
            style = {True: "holds", False: "does-not-hold", None: "other-data"}[verdict[clause]]
            cells.append(f'<span class="chip {style}">{kind}</span>')
        of = "" if math.isnan(row["rir_ceiling"]) else f"of at most {number(row['rir_ceiling'])}"
        cells.append(f'<span class="obtained">{number(row["rir"])}</span><span class="published">{of}</span>')
        body = "".join(
            f'<td><span class="label">{head}</span>{cell}</td>'
            for head, cell in zip(heads, cells, strict=True)
        )
        rows.append(f'<tr><th scope="row">{verdict["convention"]}</th>{body}</tr>')
    head = "".join(f'<th scope="col">{text}</th>' for text in ("convention", *heads))
    worst = _worst(found, pair.extractor)
    weakest = _attackers(found) if worst is None else (
        f"{worst['label']}: {number(worst['factor'])} times the steps that it takes on the features as "
        "they are. An extractor protects no better than this against those who choose their method."
    )  # fmt: skip
    return (
        f'<article class="score"><h2 style="margin-top:1rem">Verdict</h2>'
        f'<p class="lead"><b>{formula_html(title)}.</b></p>'
        f'<div class="scroll"><table class="board"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody>"
        f"</table></div><h3>Weakest attacker</h3><p>{formula_html(weakest)}</p>"
        f"<h3>What to do next</h3>{as_page(next_steps(found))}</article>"
    )


def _worst(found: Audit, extractor: str) -> Any | None:
    """Return the attacker who is slowed least; the panel may have had θ* where no extractor was given."""
    report = found.attack.report
    name = OPTIMAL if found.main is None else extractor
    if report is None or report.at(report.factors, None).query("extractor == @name")["factor"].isna().all():
        return None
    return report.worst_case(name)


def next_steps(found: Audit) -> list[str]:
    """Return what somebody who has this audit should do, most urgent first."""
    steps, pair = [], found.main
    odd = odd_columns(found.columns)
    if odd:
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
    if pair is None or any(verdict["all"] is False for verdict in verdict_rows(found, pair)):
        steps.append(
            "An extractor that meets Definition 3.1 in both conventions exists: condnum.immunize(problem, "
            '"front") gives the closed form, to be audited with --theta.'
            if all(verdict["all"] for verdict in verdict_rows(found, Comparison(FRONT, RAW)))
            else "Not even the closed form at the edge of what is possible meets Definition 3.1 in both "
            "conventions: these two tasks may be too alike for a linear extractor."
        )
    if pair is not None and found.clause_c[pair.extractor].kept is None:
        steps.append("Give --pretrain-targets: clause (c) cannot be judged without.")
    worst = None if pair is None else _worst(found, pair.extractor)
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
    return [*said, _fragility(found), _room(found), *_verdict(found), _attackers(found), LIMITS]


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
    sure = _sure(found, "rir_ceiling", "compact")
    return (
        "Room: no invertible linear extractor can have a compact RIR above "
        f"{number(found.ceiling.value)}{sure}; {limit}."
    )


def _verdict(found: Audit) -> list[str]:
    """Say for each convention which clauses of Definition 3.1 hold, or what closed forms would reach."""
    pair = found.main
    if pair is None:
        reached = []
        for name in (OPTIMAL, FRONT):
            row = found.row(Comparison(name, RAW), "compact")
            reached.append(
                f"{LABELS[name]} would have a compact RIR of {number(row['rir'])}, "
                f"(i) = {number(row['harmful_ratio'])} and (ii) = {number(row['pretrain_ratio'])}"
            )
        return [f"Without an extractor there is no verdict. {'; '.join(reached)}."]
    said, verdicts = [], verdict_rows(found, pair)
    for verdict in verdicts:
        convention = verdict["convention"]
        row = found.row(pair, convention)
        i, ii = number(row["harmful_ratio"]), number(row["pretrain_ratio"])
        spread = _sure(found, "rir", convention, extractor=pair.extractor, baseline=pair.baseline)
        share = ""
        if convention == "compact" and 0 < row["share"] < math.inf:
            share = f", {number(100 * row['share'])} % of the ceiling"
        failing = [
            words
            for clause, words in (
                ("a", f"(a) fails, as the harmful κ does not rise ((i) = {i})"),
                ("b", f"(b) fails, as the pre-training κ rises ((ii) = {ii})"),
                ("c", "(c) fails, as the pre-training task is fitted worse"),
            )
            if verdict[clause] is False
        ]
        judged = {
            True: "meets all clauses of Definition 3.1",
            False: f"is not immunized: {'; '.join(failing)}",
            None: "meets clauses (a) and (b) of Definition 3.1; (c) is not known",
        }[verdict["all"]]
        said.append(
            f"{convention.capitalize()} convention: {LABELS[pair.extractor]} {judged}. RIR "
            f"{number(row['rir'])}{spread}{share}, (i) = {i}, (ii) = {ii}."
        )
    if verdicts[0]["all"] != verdicts[1]["all"]:
        said.append(
            "The two conventions disagree on the verdict: do not quote one without the other, and look at "
            "how it moves with the tolerance and with ε below."
        )
    return [*said, f"Clause (c): {found.clause_c[pair.extractor].reason}."]


def _attackers(found: Audit) -> str:
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


#: What an audit cannot know.
LIMITS = (
    "κ bounds plain gradient descent with a squared loss on features as they come, and nothing else: "
    "whitening, conjugate gradients or a closed form pay little attention to it, non-linear attackers are "
    "outside of it, and all of this is about these rows: other data of the same tasks may differ."
)
