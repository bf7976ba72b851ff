"""Tables of the experiment on erasure."""

import numpy as np
import pandas as pd

from condnum.numbers import num
from condnum.page.tables import GAP, Column, number, shown

_SHOWN = ("raw", "control", "erase", "iterated")


def _percent(share: float) -> str:
    """Format a fraction of the target's variance."""
    return "—" if np.isnan(share) else f"{num(100 * share)} %"


def percent(mean: float, half: float) -> str:
    """Format a fraction with the half-width of its interval, in percent."""
    if np.isnan(mean):
        return "—"
    half_width = "" if np.isnan(half) else f"{GAP}±{GAP}{100 * half:.0f}"
    return f"{number(round(100 * mean))}{half_width} %"


def _steps(steps: float) -> str:
    """Format steps that were iterated up to a budget."""
    return ">2,000" if np.isnan(steps) else number(steps)


_LEFT: dict[str, Column] = {
    "pair": "pair",
    "extractor": "extractor",
    "linear, defender's rows": "harmful_own",
    "linear, fresh rows": "harmful_linear",
    "left of its margin": ("harmful_linear_kept harmful_linear_kept_pm", percent),
    "nonlinear, fresh rows": "harmful_nonlinear",
    "benign": "benign_linear",
    "kept of its margin": ("benign_linear_kept benign_linear_kept_pm", percent),
    "price, closed form": ("price", _percent),
}

_STEPS: dict[str, Column] = {
    "pair": "pair",
    "extractor": "extractor",
    "(i)": "harmful_ratio",
    "(ii)": "benign_ratio",
    "RIR": "rir",
    "harmful steps, 1/σ₁": "harmful_steps",
    "exact line search": ("harmful_steps_exact", _steps),
    "benign steps, 1/σ₁": "benign_steps",
}


def left_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format what attackers and the benign task score, for raw features, the control and erasure."""
    return shown(summary[summary["family"].isin(_SHOWN)], _LEFT)


def steps_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Format κ's beside the steps that the actual probes need, for every extractor."""
    return shown(summary[~summary["family"].isin(["rank", "iterated", "control"])], _STEPS)


def head_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Format what each linear head reads on fresh rows, by what it is given."""
    text = [percent(*of) for of in heads[["score", "score_pm"]].to_numpy()]
    columns = {"raw": "raw features", "pareto": "pareto", "shuffled targets": "control", "erase": "erased"}
    wide = heads.assign(text=text).pivot(index=["pair", "head"], columns="head_extractor", values="text")
    return wide[[*columns]].rename(columns=columns).reset_index().rename_axis(columns=None)


_DEGREES: dict[str, Column] = {
    "pair": "pair",
    "erased": "eraser",
    "control": ("control", lambda name: name or "—"),
    "directions left": ("left", lambda count: number(round(count))),
    **{
        name: (f"{name} {name}_pm", percent)
        for name in ("linear", "quadratic", "kernel", "neighbors", "net", "undone", "best", "benign")
    },
    "chance": ("chance chance_pm", percent),
    "splits": "splits",
}


def degree_table(by_degree: pd.DataFrame) -> pd.DataFrame:
    """Format what heads of several kinds read by the degree of erasure, beside controls."""
    return shown(by_degree, _DEGREES)


_TASKS = {"harmful_linear_kept": "harmful, best linear attacker", "benign_linear_kept": "benign"}

_PAIRED: dict[str, Column] = {
    "pair": "pair",
    "score": ("score", lambda name: _TASKS[name]),
    "extractor": "extractor",
    "minus": "reference",
    "difference": ("difference difference_pm", percent),
    "distinguishable": ("difference difference_pm", lambda mean, pm: "yes" if abs(mean) > pm else "no"),
    "splits": "splits",
}


def paired_table(paired: pd.DataFrame) -> pd.DataFrame:
    """Format differences on the same splits; one whose interval contains 0, or is unknown, is no effect."""
    return shown(paired, _PAIRED)
