"""The front page of the site: obtained against published, figures of the runs, corrections, experiments."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from condnum.figures.attack_panel import attack_factor_heatmap
from condnum.figures.curves import norm_ratio_figure
from condnum.figures.pairs import pair_heatmaps
from condnum.figures.style import method_style
from condnum.probing import AttackReport
from condnum.probing.attackers import AttackBudget
from condnum.report.pages import figure_html, render
from condnum.report.reproduce import ReproductionRecord
from condnum.report.results import Result
from condnum.report.scoreboard import AGREEMENT, CLAIM_RULE, CONVENTIONS, scoreboard, tally
from condnum.report.tables import CORRECTIONS_CSV

#: Panels of Fig. 2; a run may have more methods.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")


class FrontFigure(NamedTuple):
    """A figure of the front page, drawn from the tables of a run."""

    key: str  # anchor
    title: str
    caption: str  # what the numbers say, HTML
    run: Result
    html: str


def front_html(record: ReproductionRecord, results: Sequence[Result], footer: str) -> str:
    """Return the front page."""
    sections = scoreboard(results)
    tables = ((run, run.table(CORRECTIONS_CSV.removesuffix(".csv"))) for run in results)
    lesson, corrections = next(((run, table) for run, table in tables if table is not None), (None, None))
    return render(
        "index.html.j2",
        record=record,
        results=results,
        sections=[section for section in sections if section.comparable],
        stand_ins=[section for section in sections if not section.comparable],
        tally=tally(sections),
        rule=AGREEMENT,
        claim_rule=CLAIM_RULE,
        conventions=CONVENTIONS,
        audit=next((run for run in results if run.study == "reproduction-audit" and run.page), None),
        drawn=front_figures(results),
        corrections=[] if corrections is None else corrections.to_dict("records"),
        lesson=lesson,
        footer=footer,
    )


def front_figures(results: Sequence[Result]) -> list[FrontFigure]:
    """Draw norm ratios, heatmaps and the attack panel, where these ran."""
    drawn = []
    for key, draw, studies in (
        ("norm-ratio", _norm_ratios, ("house-prices",)),
        ("heatmaps", _heatmaps, ("mnist", "digits")),
        ("attackers", _attackers, ("attackers",)),
    ):
        for run in results:
            found = draw(run) if run.study in studies and run.folder else None
            if found is not None:
                title, caption, figure = found
                anchor = f"{key}-{run.name}"
                html = figure_html(json.loads(figure.to_json()), f"plot-{anchor}")
                drawn.append(FrontFigure(anchor, title, caption, run, html))
    return drawn


def _data_words(run: Result) -> str:
    """Return the data of a run with their checksums, for a subtitle."""
    data = run.provenance.get("data", {})
    return "; ".join(f"{name}, SHA-256 {str(checksum)[:12]}" for name, checksum in data.items())


def _norm_ratios(run: Result) -> tuple[str, str, Any] | None:
    """Draw Fig. 1 and say where the curves of `ours` end."""
    curves = run.table("curves")
    if curves is None or "norm_ratio" not in set(curves["quantity"]):
        return None
    ratios = curves[curves["quantity"] == "norm_ratio"]
    shown = curves[curves["method"].isin([*PAPER_METHODS, "identity", "initial"])]
    last = ratios[ratios["x"] == ratios["x"].max()]
    words = []
    for method in ("ours", "identity"):
        ends = last[last["method"] == method].groupby("task")["value"]
        if len(ends):
            spans = (ends.get_group(task).agg(["min", "max"]) for task in ("pretrain", "harmful"))
            good, bad = (" to ".join(dict.fromkeys(f"{value:.2g}" for value in span)) for span in spans)
            words.append(f"{method_style(method).label}: {good} on D<sub>P</sub>, {bad} on D<sub>H</sub>")
    caption = (
        f"The norm ratio after {int(last['x'].max()):,} steps of exact line search, least to largest over "
        f"seeds. {'; '.join(words)}."
    )
    figure = norm_ratio_figure(shown, _data_words(run))
    return "Convergence of linear probing (Figure 1)", caption, figure


def _heatmaps(run: Result) -> tuple[str, str, Any] | None:
    """Draw Fig. 2 and count the pairs that are immunized in every seed."""
    results = run.table("results")
    if results is None:
        return None
    names = [name for name in PAPER_METHODS if (results["method"] == name).any()]
    cells = results[(results["convention"] == "ridge") & (results["gauge"] == "unit")]
    success = cells.groupby("method")["success"].agg(["sum", "size"])
    counts = [
        f"{method_style(name).label} {success.at[name, 'sum']} of {success.at[name, 'size']}"
        for name in names
    ]
    caption = f"Cells (pair × seed) that meet Definition 3.1, ridge, θ at unit scale: {', '.join(counts)}."
    pairs = len(results[["pretrain_digit", "harmful_digit"]].drop_duplicates())
    figure = pair_heatmaps(results, _data_words(run), methods=names or None)
    return f"ln RIR of {pairs} ordered pairs of digits (Figure 2)", caption, figure


def _attackers(run: Result) -> tuple[str, str, Any] | None:
    """Draw the factor of each attacker; say who is slowed and who is not."""
    steps, factors, extractors = (run.table(name) for name in ("results", "factors", "extractors"))
    if steps is None or factors is None or extractors is None:
        return None
    attacked = set(factors["extractor"])
    none = pd.DataFrame()  # of what the factors do not need
    report = AttackReport(
        steps=steps,
        extractors=extractors,
        curves=none,
        spectra=none,
        skipped=none,
        baseline=next(str(name) for name in extractors["extractor"] if name not in attacked),
        kind="regression",
        budget=AttackBudget(epsilons=tuple(steps["epsilon"].unique())),
        held_out=False,
    )
    words = []
    for name in dict.fromkeys(report.at(report.factors, None).dropna(subset="factor")["extractor"]):
        worst = report.worst_case(str(name))
        words.append(f"{name}: {worst['label']}, factor {worst['factor']:.3g}")
    caption = (
        "A factor above 1 means slowed, of 1 or less not slowed at all. The attacker whom each extractor "
        f"slows least: {'; '.join(words)}."
    )
    figure = attack_factor_heatmap(report, _data_words(run))
    return "What each attacker loses", caption, figure
