"""The tables of an audit's report, as strings for people."""

import html
from collections.abc import Mapping

import numpy as np
import pandas as pd

from condnum.audit.layers import LayerAudit
from condnum.audit.measures import LABEL_OF, Comparison
from condnum.audit.result import Audit
from condnum.machine import PeakMemory
from condnum.report.tables import RATIO_TITLES, as_html, formula_html, number

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
    shown = columns.loc[columns["look"].eq("").sort_values(kind="stable").index].head(MOST_COLUMNS)
    table = shown[["column", "look"]].map(lambda text: html.escape(str(text)))
    table.columns = ["column", "looks like"]
    for task, label in _TASKS.items():
        for title, low, sign, high in (
            ("mean ± deviation", "mean", "±", "deviation"), ("from – to", "smallest", "–", "largest")
        ):  # fmt: skip
            both = (shown[f"{name}_{task}"].map(number) for name in (low, high))
            table[f"{title}, {label}"] = next(both) + f" {sign} " + next(both)
    odd = int(columns["look"].ne("").sum())
    return (
        f"<details{' open' * bool(odd)}><summary>{len(columns):,d} columns with their scale, {odd:,d} odd"
        f"</summary><div style='max-height:24em;overflow:auto'>{as_html(table)}</div></details>"
    )


def _worded(table: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Return some columns as a reader sees them: under titles, names in words, numbers rounded."""
    shown = table[list(titles)].replace({"task": _TASKS, "extractor": LABEL_OF})
    rounded = {name: shown[name].map(number) for name in shown.select_dtypes("number")}
    return shown.assign(**rounded).rename(columns=titles)


def kappa_words(found: Audit) -> pd.DataFrame:
    """κ's and ranks of both tasks at every extractor, with intervals."""
    table = found.kappa
    places = table[["convention", "task", "extractor"]].to_dict("records")
    table = table.assign(
        interval=[found.interval_words("kappa", **place) for place in places],
        rank=table["rank"].astype(str) + " of " + table["dimension"].astype(str),
    )
    titles = {"kappa": "κ", "interval": "95 % interval", "sigma_max": "σ₁", "sigma_min": "σ least"}
    order = ["task", "extractor", "convention", "kappa", "interval", "rank", "sigma_max", "sigma_min"]
    return _worded(table, {name: titles.get(name, name) for name in order})


def measures_words(found: Audit) -> pd.DataFrame:
    """(i), (ii) and RIR of every comparison per convention and scale of θ, with ceilings and intervals."""
    table = found.measures
    places = table[["convention", "extractor", "baseline"]].to_dict("records")
    unit = table["theta_scale"] == "unit"
    table = table.assign(
        extractor=[Comparison(place["extractor"], place["baseline"]).label for place in places],
        theta_scale=np.where(unit, "‖θ‖ = √D", "as given"),
        interval=np.where(unit, [found.interval_words("rir", **place) for place in places], "—"),
    )
    titles = {
        "extractor": "extractor", "convention": "convention", "theta_scale": "scale of θ", **RATIO_TITLES,
        "interval": "95 % interval", "rir_ceiling": "ceiling", "share": "RIR / ceiling",
    }  # fmt: skip
    return _worded(table, titles)


def sensitivity_words(found: Audit) -> pd.DataFrame:
    """Compact ranks, κ's and the main comparison at every rank tolerance."""
    pair = found.judged
    chosen = found.rtol_sweep.query("extractor == @pair.extractor and baseline == @pair.baseline")
    own = np.where(chosen["rtol"] == found.rtol, " (this audit)", "")
    titles = {
        "rtol": "rank tolerance", "rank_P": "rank K<sub>P</sub>", "rank_H": "rank K<sub>H</sub>",
        "kappa_P": "κ(K<sub>P</sub>)", "kappa_H": "κ(K<sub>H</sub>)",
        "harmful_ratio": f"(i) of {LABEL_OF[pair.extractor]}", "pretrain_ratio": "(ii)", "rir": "RIR",
        "rir_ceiling": "ceiling",
    }  # fmt: skip
    return _worded(chosen.assign(rtol=chosen["rtol"].map(number) + own), titles)


def alignment_words(found: Audit) -> pd.DataFrame:
    """Eq. 10 beside the truth for every extractor."""
    table = found.alignment
    single = np.where(table["u_unique"], "yes", "no (repeated singular values)")
    titles = {
        "extractor": "extractor", "task": "task", "misalignment": "misalignment",
        "predicted_kappa": "κ by Eq. 10", "kappa": "κ", "u_unique": "Eq. 10 single-valued",
    }  # fmt: skip
    return _worded(table.assign(u_unique=single), titles)


def layers_words(found: LayerAudit) -> pd.DataFrame:
    """Return what is possible behind each layer, and what it rests on."""
    table = found.table
    marks = np.where(table["layer"] == found.cheapest, ", cheapest", "")
    titles = {
        "layer": "layer", "dimension": "D", "parameters": "D²", "verdict": f"RIR {number(found.target)}",
        "rir": "RIR of closed form", "limit_rir": "RIR, at most", "harmful_ratio": "(i) of closed form",
        "pretrain_ratio": "(ii)", "limit_harmful_ratio": "(i), at most", "ceiling_ridge": "ceiling, ridge",
        "ceiling_compact": "ceiling, compact", "kappa_pretrain": "κ(K<sub>P</sub>)",
        "kappa_harmful": "κ(K<sub>H</sub>)", "rank_pretrain": "rank K<sub>P</sub>",
        "rank_harmful": "rank K<sub>H</sub>",
        "harmful_only": "null directions of K<sub>P</sub> in D<sub>H</sub>",
        "misalignment": "misalignment", "module": "module", "note": "note",
    }  # fmt: skip
    if not table["note"].any():
        del titles["note"]
    return _worded(table.assign(verdict=table["verdict"] + marks), titles)


def attack_words(found: Audit) -> pd.DataFrame:
    """Steps of every attacker to the headline target, and factors."""
    report = found.attack.report
    if report is None:
        return pd.DataFrame()
    steps, factors = (
        table.set_index("attacker").rename(columns=LABEL_OF).add_prefix(f"{title}, ")
        for title, table in (("steps", report.steps_table()), ("factor", report.factor_table()))
    )
    return steps.join(factors).reset_index()


def evaluation_words(found: Audit) -> pd.DataFrame:
    """Loss of every attacker where it ended, on rows that it has not seen, if there are any."""
    report = found.attack.report
    if report is None:
        return pd.DataFrame()
    rows = "held-out rows" if report.held_out else "training rows"
    columns = {"evaluation_loss": "loss", "accuracy": "accuracy"}
    table = report.evaluation.dropna(axis=1, how="all")
    wide = table.pivot_table(
        index="label", columns="extractor", values=[name for name in columns if name in table], sort=False
    )
    wide.columns = [f"{columns[name]} on {rows}, {LABEL_OF[extractor]}" for name, extractor in wide.columns]
    return wide.map(number).reset_index(names="attacker")


def run_words(found: Audit) -> pd.DataFrame:
    """What was read and what it took."""
    facts = {}
    for task in (found.pretrain, found.harmful):
        stored = "float32 or coarser" if task.stored_eps > 1e-10 else "float64"
        facts[task.name] = f"{task.source}: {task.rows:,d} rows × {task.dimension:,d} columns, {stored}"
    facts["rank tolerance, ε"] = (
        f"{number(found.rtol)} relative to σ₁, {number(found.ridge)} in the units of K"
    )
    drawn = found.intervals
    failed = f", {drawn.failed} of rank 0 left out" if drawn is not None and drawn.failed else ""
    facts["bootstrap"] = (
        f"none: {found.no_intervals}" if drawn is None else f"{drawn.replicates} times {drawn.unit}{failed}"
    )
    facts["seed"] = str(found.seed)
    facts["seconds"] = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in found.seconds.items())
    facts["peak memory"] = str(PeakMemory(found.peak_mib, processes=1))
    return pd.DataFrame({"what": map(formula_html, facts), "value": map(formula_html, facts.values())})
