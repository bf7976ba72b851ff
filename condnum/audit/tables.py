"""The tables of an audit's report, as strings for people."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd

from condnum.audit.measures import LABELS, Comparison
from condnum.audit.result import Audit
from condnum.audit.words import interval_words
from condnum.report.tables import as_html, formula_html, number

_MARK = {True: "holds", False: "fails", None: "not known"}
_TASKS = {"pretrain": "D<sub>P</sub>", "harmful": "D<sub>H</sub>"}

#: Columns that are listed; `audit.json` has all of them.
MOST_COLUMNS = 100


def verdict_table(found: Audit) -> pd.DataFrame:
    """Definition 3.1 clause by clause, for every comparison but those of yardsticks with themselves."""
    return pd.DataFrame(
        {
            "extractor": pair.label,
            "convention": verdict["convention"],
            "(a) κ of D<sub>H</sub> rises": _MARK[verdict["a"]],
            "(b) κ of D<sub>P</sub> does not": _MARK[verdict["b"]],
            "(c) D<sub>P</sub> still fitted": _MARK[verdict["c"]],
            "immunized": {True: "yes", False: "no", None: "not known"}[verdict["all"]],
        }
        for pair in found.compared
        for verdict in found.verdict(pair)
    )


def columns_html(columns: pd.DataFrame) -> str:
    """Return the scale of every column, odd ones first, in a frame that scrolls; folded if none is odd."""
    order = columns.loc[columns["look"].eq("").sort_values(kind="stable").index]
    rows = []
    for row in order.head(MOST_COLUMNS).to_dict("records"):
        cells = {"column": html.escape(str(row["column"])), "looks like": html.escape(row["look"])}
        for task, label in _TASKS.items():
            mean, deviation, smallest, largest = (
                number(row[f"{figure}_{task}"]) for figure in ("mean", "deviation", "smallest", "largest")
            )
            cells[f"mean ± deviation, {label}"] = f"{mean} ± {deviation}"
            cells[f"from – to, {label}"] = f"{smallest} – {largest}"
        rows.append(cells)
    odd = int(columns["look"].ne("").sum())
    return (
        f"<details{' open' * bool(odd)}><summary>{len(columns):,d} columns with their scale, {odd:,d} odd"
        "</summary><div style='max-height:24em;overflow:auto'>"
        f"{as_html(pd.DataFrame(rows))}</div></details>"
    )


def kappa_words(found: Audit) -> pd.DataFrame:
    """κ's and ranks of both tasks at every extractor, with intervals."""
    return pd.DataFrame(
        {
            "task": _TASKS[row.task],
            "extractor": LABELS[row.extractor],
            "convention": row.convention,
            "κ": number(row.kappa),
            "95 % interval": interval_words(
                found, "kappa", row.convention, task=row.task, extractor=row.extractor
            ),
            "rank": f"{row.rank} of {row.dimension}",
            "σ₁": number(row.sigma_max),
            "σ least": number(row.sigma_min),
        }
        for row in found.kappa.itertuples()
    )


def measures_words(found: Audit) -> pd.DataFrame:
    """(i), (ii) and RIR of every comparison in every convention and gauge, with ceilings and intervals."""
    rows = []
    for row in found.measures.itertuples():
        pair, unit = Comparison(row.extractor, row.baseline), row.gauge == "unit"
        rows.append(
            {
                "extractor": pair.label,
                "convention": row.convention,
                "scale of θ": "‖θ‖ = √D" if unit else "as given",
                "(i) ↑": number(row.harmful_ratio),
                "(ii) ↓": number(row.pretrain_ratio),
                "RIR ↑": number(row.rir),
                "95 % interval": interval_words(found, "rir", row.convention, **vars(pair)) if unit else "—",
                "ceiling": number(row.rir_ceiling),
                "RIR / ceiling": number(row.share),
            }
        )
    return pd.DataFrame(rows)


def sensitivity_words(found: Audit) -> pd.DataFrame:
    """Compact ranks, κ's and the main comparison at every rank tolerance."""
    pair = found.main or found.compared[-1]
    chosen = found.rtol_sweep.query("extractor == @pair.extractor and baseline == @pair.baseline")
    columns = {
        "rank_P": "rank K<sub>P</sub>", "rank_H": "rank K<sub>H</sub>", "kappa_P": "κ(K<sub>P</sub>)",
        "kappa_H": "κ(K<sub>H</sub>)", "harmful_ratio": f"(i) of {LABELS[pair.extractor]}",
        "pretrain_ratio": "(ii)", "rir": "RIR", "rir_ceiling": "ceiling",
    }  # fmt: skip
    words = chosen[list(columns)].map(number).rename(columns=columns)
    tolerances = chosen["rtol"].map(number) + np.where(chosen["rtol"] == found.rtol, " (this audit)", "")
    words.insert(0, "rank tolerance", tolerances)
    return words


def alignment_words(found: Audit) -> pd.DataFrame:
    """Eq. 10 beside the truth for every extractor."""
    table = found.alignment
    return pd.DataFrame(
        {
            "extractor": table["extractor"].map(LABELS),
            "task": table["task"].map(_TASKS),
            "misalignment": table["misalignment"].map(number),
            "κ by Eq. 10": table["predicted_kappa"].map(number),
            "κ": table["kappa"].map(number),
            "Eq. 10 single-valued": np.where(table["u_unique"], "yes", "no (repeated singular values)"),
        }
    )


def attack_words(found: Audit) -> pd.DataFrame:
    """Steps of every attacker to the headline target, and factors."""
    report = found.attack.report
    if report is None:
        return pd.DataFrame()
    tables = {"steps": report.steps_table(), "factor": report.factor_table()}
    for title, table in tables.items():
        table.columns = [LABELS.get(name, name) for name in table]
        tables[title] = table.set_index("attacker").add_prefix(f"{title}, ")
    return tables["steps"].join(tables["factor"]).reset_index()


def evaluation_words(found: Audit) -> pd.DataFrame:
    """Loss of every attacker where it ended, on rows that it has not seen, if there are any."""
    report = found.attack.report
    if report is None:
        return pd.DataFrame()
    rows, table = "held-out rows" if report.held_out else "training rows", report.evaluation
    parts = [pd.Series(dict(zip(table["attacker"], table["label"], strict=True)), name="attacker")]
    for column, title in (("evaluation_loss", "loss"), ("accuracy", "accuracy")):
        if table[column].notna().any():
            wide = table.pivot_table(index="attacker", columns="extractor", values=column, sort=False)
            parts += [
                wide[name].map(number).rename(f"{title} on {rows}, {LABELS[str(name)]}") for name in wide
            ]
    return pd.concat(parts, axis=1).reset_index(drop=True).fillna("—")


def run_words(found: Audit) -> pd.DataFrame:
    """What was read and what it took."""
    facts = {}
    for task in (found.pretrain, found.harmful):
        stored = "float32 or coarser" if task.stored_eps > 1e-10 else "float64"
        facts[task.name] = f"{task.source}: {task.rows:,d} rows × {task.dimension:,d} columns, {stored}"
    facts["rank tolerance, ε"] = (
        f"{number(found.rtol)} relative to σ₁, {number(found.ridge)} in the units of K"
    )
    if found.intervals is None:
        facts["bootstrap"] = f"none: {found.no_intervals}"
    else:
        failed = f", {found.intervals.failed} of rank 0 left out" if found.intervals.failed else ""
        facts["bootstrap"] = f"{found.intervals.replicates} times {found.intervals.unit}{failed}"
    facts["seed"] = str(found.seed)
    facts["seconds"] = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in found.seconds.items())
    facts["peak memory"] = f"{found.peak_mib:,.0f} MiB resident"
    return pd.DataFrame({"what": map(formula_html, facts), "value": map(formula_html, facts.values())})
