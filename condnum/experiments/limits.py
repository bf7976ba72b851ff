"""The experiment on limits: how much immunization two tasks allow, and how much of it each method reaches."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError, check_integer
from condnum.experiments import linear, mnist
from condnum.experiments import pairs as of_data
from condnum.experiments.frame import Cell, Row, Run
from condnum.methods import method_names
from condnum.numbers import number
from condnum.page.look import DOTTED, LIMIT, NEUTRAL, log_axis, translucent
from condnum.page.style import empty, finish, method_style
from condnum.page.tables import label_text, span
from condnum.theory.kappa import RATIO_TOLERANCE
from condnum.theory.limits import extractor_ratios, fraction_of_limit, limit_of
from condnum.theory.task import Task

#: Pairs (benign, harmful) of digits that stand for the 90.
PAIRS = "4-9,4-7,3-5,0-1,9-0"
#: ε in mean eigenvalues of K_P: the limit of K + εI is finite for every pair, and grows as ε falls.
RIDGE = 1e-3


def cells(*, data: str, methods: Any, seeds: int, steps: int, pairs: str, full: bool) -> list[Cell]:
    """List methods and seeds of every pair; `data` is a table, mnist, digits (8×8), or a path."""
    known, chosen = of_data.data_set(data), linear.read_methods(methods, method_names())
    seeds, steps = check_integer("seeds", seeds, 1), check_integer("steps", steps, 0)
    wanted = [""]
    if known in of_data.DIGITS:
        wanted = [f"{benign}-{harmful}" for benign, harmful in mnist.read_pairs(pairs or PAIRS)]
    elif pairs:
        raise InvalidInputError(
            f"pairs '{pairs}' are pairs of digits, but {known} is a single pair; leave pairs out."
        )
    if not full:
        seeds, steps, wanted = 1, linear.QUICK_STEPS, wanted[:1]
    of_data.load(data)
    runs = linear.runs(chosen, seeds)
    return [{**run, "data": data, "pair": pair, "steps": steps} for pair in wanted for run in runs]


def checksum(*, data: str, **_: Any) -> str:
    """Return the SHA-256 of the data."""
    return of_data.load(data).checksum


@cache
def bounded(data: str, pair: str) -> tuple[Task, Task, float, float]:
    """Return both tasks as `K + εI`, ε, and their limit of RIR."""
    problem = of_data.tasks(data, pair)
    ridge = RIDGE * float(problem.benign.values.sum()) / problem.dimension
    P, H = problem.benign.ridged(ridge), problem.harmful.ridged(ridge)
    return P, H, ridge, limit_of(P, H).value


def compute(*, method: str, seed: int, data: str, pair: str, steps: int) -> Row:
    """Train an extractor on K, as its own experiment does, and hold it on `K + εI` against the limit."""
    problem = of_data.tasks(data, pair)
    result = linear.extractor(problem, of_data.data_set(data), method=method, seed=seed, steps=steps)
    P, H, ridge, limit = bounded(data, pair)
    benign, harmful = extractor_ratios(result.theta, P, H)
    top, rir = 1 + RATIO_TOLERANCE, harmful / benign
    return {
        "harmful_ratio": harmful,
        "benign_ratio": benign,
        "rir": rir,
        "success": harmful > top and benign <= top,
        "rir_limit": limit,
        "rir_share": fraction_of_limit(rir, limit),
        "limit_ridge": ridge,
        "limit_without": problem.limit.value,
    }


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pair and method: means over seeds, of fractions of the limit geometric ones."""
    found = rows.assign(log_share=np.log(rows["rir_share"])).groupby(["pair", "method"], sort=False)
    table = found.agg(
        immunized=("success", "sum"),
        of=("success", "size"),
        harmful_ratio=("harmful_ratio", "mean"),
        benign_ratio=("benign_ratio", "mean"),
        rir=("rir", "mean"),
        rir_share=("log_share", "mean"),
        rir_limit=("rir_limit", "first"),
        limit_ridge=("limit_ridge", "first"),
        limit_without=("limit_without", "first"),
    )
    table = table.assign(rir_share=np.exp(table["rir_share"])).reset_index()
    return table if table["pair"].any() else table.drop(columns="pair")


def sentence(table: pd.DataFrame) -> str:
    """Return the limit, and what the first and the best method reach of it."""
    share = table.groupby("method", sort=False)["rir_share"].mean()
    first = linear.first_of(list(share.index))
    known = share.drop([*linear.CONTROLS], errors="ignore").dropna()
    reached = [first] if np.isfinite(share[first]) else []
    reached += [name for name in known.nlargest(1).index if name != first]
    parts = [f"{label_text(name)} reaches {number(100 * share[name])} % of it" for name in reached]
    limit = (
        f"No invertible θ has a larger RIR than the theoretical limit, {span(table['rir_limit'])} at "
        f"ε = {span(table['limit_ridge'])}"
    )
    return f"{'; '.join([limit, ', '.join(parts)] if parts else [limit])}."


def figure(run: Run) -> Any:
    """Draw each extractor by (ii), which Definition 3.1 bounds, and by RIR as a fraction of its limit."""
    rows = run.rows.dropna(subset="rir_share")
    figure = empty()
    for method, own in rows.groupby("method", sort=False):
        style = method_style(str(method))
        figure.add_scatter(
            x=own["benign_ratio"], y=own["rir_share"], name=style.label, mode="markers",
            marker={
                "color": style.color, "size": 11, "opacity": 0.85,
                "symbol": ["diamond" if met else "x-thin-open" for met in own["success"]],
                "line": {"width": 2, "color": style.color},
            },
            customdata=own[["pair", "harmful_ratio", "rir", "rir_limit"]],
            hovertemplate="%{customdata[0]} (i) = %{customdata[1]:.3g}, (ii) = %{x:.3g}, RIR = "
            "%{customdata[2]:.3g}: %{y:.3g} of the limit %{customdata[3]:.4g}",
        )  # fmt: skip
    title = "RIR of each method as a fraction of the theoretical limit"
    note = (
        f"{of_data.load(run.rows['data'].iloc[0]).title()}. κ of K + εI, ε = {RIDGE:g} mean eigenvalues of "
        f"K<sub>P</sub>; RIR<sub>max</sub> = {span(run.rows['rir_limit'])}. A point per pair and seed; "
        "diamond: (i) > 1 and (ii) ≤ 1, cross: not. Gray: no invertible θ"
    )
    finish(figure, title, note)
    for update, column, words in (
        (figure.update_xaxes, "benign_ratio", "(ii) = κ(H<sub>P</sub>(θ)) / κ(H<sub>P</sub>(I))"),
        (figure.update_yaxes, "rir_share", "RIR / RIR<sub>max</sub>"),
    ):
        values = np.r_[rows[column], 1.0]
        logs = np.log10(values)
        update(**log_axis(words, values), range=[logs.min() - 0.5, logs.max() + 0.5])
    figure.add_hrect(y0=1, y1=1e3, fillcolor=translucent(NEUTRAL, 0.35), line_width=0, layer="below")
    figure.add_hline(y=1, line={"color": LIMIT, "width": 3})
    return figure.add_vline(x=1, line=DOTTED)
