"""The tables of an audit's report, as strings for people."""

import html
from collections.abc import Mapping

import numpy as np
import pandas as pd

from condnum.auditing.layers import LayerAudit
from condnum.auditing.measures import LABEL_OF
from condnum.auditing.result import Audit
from condnum.report.tables import RATIO_TITLES, as_html, number

_TASKS = {"pretrain": "D<sub>P</sub>", "harmful": "D<sub>H</sub>"}

#: Columns that are listed; `audit.json` has all of them.
MOST_COLUMNS = 100


def columns_html(columns: pd.DataFrame) -> str:
    """Return the scale of every column, suspicious ones first, scrolling; folded if there are none."""
    odd = int(columns["look"].ne("").sum())
    shown = columns.loc[columns["look"].eq("").sort_values(kind="stable").index].head(MOST_COLUMNS)
    table = shown[["column", "look"]].map(lambda text: html.escape(str(text)))
    for task, label in _TASKS.items():
        for name in ("mean", "deviation", "smallest", "largest"):
            table[f"{name}, {label}"] = shown[f"{name}_{task}"].map(number)
    summary = f"{len(columns):,d} columns with their scale, {odd:,d} suspicious"
    return (
        f"<details{' open' * bool(odd)}><summary>{summary}</summary>"
        f"<div style='max-height:24em;overflow:auto'>{as_html(table)}</div></details>"
    )


def _worded(table: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Return some columns as a reader sees them: under titles, names in words, numbers rounded."""
    shown = table[list(titles)].replace({"task": _TASKS, "extractor": LABEL_OF})
    rounded = {name: shown[name].map(number) for name in shown.select_dtypes("number")}
    return shown.assign(**rounded).rename(columns=titles)


def kappa_words(found: Audit) -> pd.DataFrame:
    """κ's and ranks of both tasks at every extractor."""
    table = found.kappa
    table = table.assign(rank=table["rank"].astype(str) + " of " + table["dimension"].astype(str))
    titles = {"kappa": "κ", "sigma_max": "σ₁", "sigma_min": "σ least"}
    order = ["task", "extractor", "convention", "kappa", "rank", "sigma_max", "sigma_min"]
    return _worded(table, {name: titles.get(name, name) for name in order})


def measures_words(found: Audit) -> pd.DataFrame:
    """(i), (ii), RIR and Definition 3.1 of every extractor, with limits."""
    table = found.measures
    unit = table["theta_scale"] == "unit"
    table = table.assign(
        theta_scale=np.where(unit, "‖θ‖ = √D", "as given"),
        probes=table["benign_slowdown"].map(number) + "; " + table["harmful_slowdown"].map(number),
    )
    titles = {
        "extractor": "extractor", "convention": "convention", "theta_scale": "scale of θ", **RATIO_TITLES,
        "rir_ceiling": "limit", "share": "RIR / limit",
        "verdict": "Definition 3.1",
        "probes": "probe steps, × raw: benign; harmful",
    }  # fmt: skip
    return _worded(table, titles)


def layers_words(found: LayerAudit) -> pd.DataFrame:
    """Return what is possible behind each layer, and what it rests on."""
    table = found.table
    marks = np.where(table["layer"] == found.cheapest, ", cheapest", "")
    titles = {
        "layer": "layer", "dimension": "D", "parameters": "D²", "verdict": f"RIR {number(found.target)}",
        "rir": "RIR of closed form", "limit_rir": "RIR, at most", "harmful_ratio": "(i) of closed form",
        "pretrain_ratio": "(ii)", "limit_harmful_ratio": "(i), at most", "ceiling_ridge": "limit, ridge",
        "ceiling_compact": "theoretical limit, compact", "kappa_pretrain": "κ(K<sub>P</sub>)",
        "kappa_harmful": "κ(K<sub>H</sub>)", "rank_pretrain": "rank K<sub>P</sub>",
        "rank_harmful": "rank K<sub>H</sub>",
        "harmful_only": "null directions of K<sub>P</sub> in D<sub>H</sub>",
        "misalignment": "misalignment", "module": "module", "note": "note",
    }  # fmt: skip
    if not table["note"].any():
        del titles["note"]
    return _worded(table.assign(verdict=table["verdict"] + marks), titles)


def attack_words(found: Audit) -> pd.DataFrame:
    """Steps of every attacker to the reported ε and its factors, and its loss where it ended."""
    report = found.attack.report
    if report is None:
        return pd.DataFrame()
    rows = "held-out rows" if report.held_out else "training rows"
    ended = report.evaluation.dropna(axis=1, how="all")
    parts = {"steps": report.steps_table(), "factor": report.factor_table()} | {
        f"{title} on {rows}": ended.pivot(index="label", columns="extractor", values=name)
        .map(number)
        .reset_index(names="attacker")
        for name, title in (("evaluation_loss", "loss"), ("accuracy", "accuracy"))
        if name in ended
    }
    first, *others = (
        table.set_index("attacker").rename(columns=LABEL_OF).add_prefix(f"{title}, ")
        for title, table in parts.items()
    )
    return first.join(others).reset_index()
