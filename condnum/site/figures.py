"""Figures of the front page, drawn from the tables of the runs by the library's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from condnum.plots.attack_panel import attack_factor_heatmap
from condnum.plots.curves import norm_ratio_figure
from condnum.plots.heatmaps import pair_heatmaps
from condnum.plots.style import method_style
from condnum.probing import AttackReport
from condnum.probing.attackers import AttackBudget
from condnum.site.result import Result

#: Panels of Fig. 2; a run may have more methods.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")

#: Digits of a checksum that a subtitle shows.
_SHORT = 12


@dataclass(frozen=True)
class FrontFigure:
    """A figure of the front page."""

    key: str  # anchor
    title: str
    caption: str  # what the numbers say, HTML
    run: Result
    figure: dict[str, Any]  # plotly's data and layout


def front_figures(results: Sequence[Result]) -> list[FrontFigure]:
    """Draw what the front page shows: heatmaps, norm ratios and the attack panel, where these ran."""
    found = []
    for builder, studies in _BUILDERS:
        for result in results:
            if result.study in studies and result.folder is not None:
                figure = builder(result)
                if figure is not None:
                    found.append(figure)
    return found


def data_words(run: Result) -> str:
    """Return the data of a run with their checksums, for a subtitle."""
    data = run.provenance.get("data", {})
    return "; ".join(f"{name}, SHA-256 {str(checksum)[:_SHORT]}" for name, checksum in data.items())


def _norm_ratios(run: Result) -> FrontFigure | None:
    """Draw Fig. 1 and say where the curves of `ours` end."""
    curves = run.table("curves")
    if curves is None or not (curves["quantity"] == "norm_ratio").any():
        return None
    chosen = [name for name in (*PAPER_METHODS, "identity", "initial") if (curves["method"] == name).any()]
    figure = norm_ratio_figure(curves[curves["method"].isin(chosen)], data_words(run))
    ratios = curves[curves["quantity"] == "norm_ratio"]
    last = ratios[ratios["x"] == ratios["x"].max()]
    words = []
    for method in ("ours", "identity"):
        rows = last[last["method"] == method]
        if len(rows):
            good, bad = (_range(rows.loc[rows["task"] == task, "value"]) for task in ("pretrain", "harmful"))
            words.append(f"{method_style(method).label}: {good} on D<sub>P</sub>, {bad} on D<sub>H</sub>")
    steps = f"{int(ratios['x'].max()):,} steps of exact line search"
    caption = f"The norm ratio after {steps}, least to largest over seeds. {'; '.join(words)}."
    return FrontFigure(
        f"norm-ratio-{run.name}",
        "Convergence of linear probing (Figure 1)",
        caption,
        run,
        figure.to_plotly_json(),
    )


def _heatmaps(run: Result) -> FrontFigure | None:
    """Draw Fig. 2 and count the pairs that are immunized in every seed."""
    results = run.table("results")
    if results is None:
        return None
    names = [name for name in PAPER_METHODS if (results["method"] == name).any()]
    figure = pair_heatmaps(results, data_words(run), methods=names or None)
    cells = results[(results["convention"] == "ridge") & (results["gauge"] == "unit")]
    counts = [
        f"{method_style(name).label} {int(part['success'].sum())} of {len(part)}"
        for name in names
        for part in [cells[cells["method"] == name]]
    ]
    caption = f"Cells (pair × seed) that meet Definition 3.1, ridge, θ at unit scale: {', '.join(counts)}."
    pairs = len(results[["pretrain_digit", "harmful_digit"]].drop_duplicates())
    title = f"ln RIR of {pairs} ordered pairs of digits (Figure 2)"
    return FrontFigure(f"heatmaps-{run.name}", title, caption, run, figure.to_plotly_json())


def _attackers(run: Result) -> FrontFigure | None:
    """Draw the factor of each attacker; say who is slowed and who is not."""
    report = attack_report(run)
    if report is None:
        return None
    figure = attack_factor_heatmap(report, data_words(run))
    words = []
    for name in report.factors["extractor"].unique():
        known = report.at(report.factors, None)
        if known.loc[known["extractor"] == name, "factor"].notna().any():
            worst = report.worst_case(str(name))
            words.append(f"{name}: {worst['label']}, factor {worst['factor']:.3g}")
    caption = (
        "A factor above 1 means slowed, of 1 or less not slowed at all. The attacker whom each extractor "
        f"slows least: {'; '.join(words)}."
    )
    return FrontFigure(
        f"attackers-{run.name}", "What each attacker loses", caption, run, figure.to_plotly_json()
    )


def attack_report(run: Result) -> AttackReport | None:
    """Put the report of an attack panel together again from the tables of its run."""
    steps, curves, extractors = (run.table(name) for name in ("results", "curves", "extractors"))
    factors = run.table("factors")
    if steps is None or curves is None or extractors is None or factors is None:
        return None
    attacked = set(factors["extractor"])
    baseline = next(str(name) for name in extractors["extractor"] if name not in attacked)
    limits = {key: run.parameters[key] for key in ("steps", "dense_steps") if run.parameters.get(key)}
    logistic = bool(curves["accuracy"].notna().any()) if "accuracy" in curves else False
    return AttackReport(
        steps=steps,
        curves=curves,
        extractors=extractors,
        spectra=pd.DataFrame(columns=["extractor", "index", "sigma", "share"]),
        skipped=pd.DataFrame(columns=["extractor", "attacker", "reason"]),
        baseline=baseline,
        kind="classification" if logistic else "regression",
        budget=AttackBudget(epsilons=tuple(steps["epsilon"].unique().tolist()), **limits),
        held_out=False,
    )


def _range(values: pd.Series) -> str:
    """Return the least and the largest value in short."""
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


_BUILDERS: tuple[tuple[Callable[[Result], FrontFigure | None], tuple[str, ...]], ...] = (
    (_norm_ratios, ("house-prices",)),
    (_heatmaps, ("mnist", "digits")),
    (_attackers, ("attackers",)),
)
