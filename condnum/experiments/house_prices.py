"""Table 1 and Figure 1: linear extractors on two halves of the Ames table, or of the diabetes table."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import TaskPair, load_diabetes_tasks, load_house_prices
from condnum.errors import check_integer, check_known
from condnum.experiments import linear
from condnum.experiments.frame import Arrays, Cell, Outcome, Run
from condnum.methods import method_names
from condnum.methods.problem import ImmunizationProblem
from condnum.page.look import log_axis
from condnum.page.style import TASK_TITLES, finish, lines_by_method, panels
from condnum.probing.filters import Modes
from condnum.probing.probe import probe_curves, steps_to_record

#: Steps of the exact line search, as in Fig. 1; ratios below the floor are round-off and not drawn.
PROBE_STEPS, FLOOR = 20_000, 1e-32


def cells(
    *, data: str, methods: Any, seeds: int, steps: int, features: str, rows: int, device: str, full: bool
) -> list[Cell]:
    """List methods, seed by seed; `data` is house-prices, embedded (diabetes), or the path of a table."""
    check_known("features", features, ("published", "clean"))
    chosen = linear.read_methods(methods, method_names())
    seeds, steps = check_integer("seeds", seeds, 1), check_integer("steps", steps, 0)
    if not full:
        seeds, steps = 1, linear.QUICK_STEPS
    at = {"data": data, "features": features, "rows": check_integer("rows", rows, 0)}
    at["device"] = str(resolve_device(device))
    load(data, features, rows)
    return [{**run, **at, "steps": steps} for run in linear.runs(chosen, seeds)]


def checksum(*, data: str, features: str, **_: Any) -> str:
    """Return the SHA-256 of the table."""
    return load(data, features, 0).checksum


@cache
def load(data: str, features: Any, rows: int) -> TaskPair:
    """Return both tasks, or their first rows (0: all)."""
    if data == "embedded":
        pair = load_diabetes_tasks(features=features)
        return pair.head(rows) if rows else pair
    source = "auto" if data == "house-prices" else data
    return load_house_prices(source, features=features, rows=rows or None)


@cache
def tasks(data: str, features: str, rows: int, device: str) -> ImmunizationProblem:
    """Return the two tasks, the same for every cell."""
    return ImmunizationProblem.from_pair(load(data, features, rows), device=device)


def compute(
    *, method: str, seed: int, data: str, features: str, rows: int, device: str, steps: int
) -> Outcome:
    """Train one extractor, measure it, and keep it; of the first seed with its path, for lesson 7."""
    problem = tasks(data, features, rows, device)
    known = "embedded" if data == "embedded" else "house-prices"
    path: Arrays = {}
    kept = {"path": path} if seed == 0 else {}
    result = linear.extractor(problem, known, method=method, seed=seed, steps=steps, **kept)
    return linear.measured(problem, result), {"theta": result.theta.cpu().numpy(), **path}


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method beside Table 1."""
    return linear.table_of(rows, 0 if (rows["data"] == "embedded").all() else 1)


def sentence(table: pd.DataFrame) -> str:
    """Return how many seeds are immunized, beside Table 1."""
    return linear.sentence_of(table, "Table 1")


def figure(run: Run) -> Any:
    """Draw Fig. 1: convergence of probes on both tasks, by the norm ratio of Eq. 16.

    Erasure is left out: its harmful optimum is zero weights, and a short way there is nothing learned.
    """
    at = run.rows.iloc[0]
    problem = tasks(at["data"], at["features"], int(at["rows"]), at["device"])
    known = run.rows.index[run.rows["method"] != "erase"]
    curves = [pd.DataFrame({"method": [], "seed": [], "task": [], "step": [], "value": []})]
    for task, probed in zip(TASK_TITLES, problem.probes, strict=True):
        if probed is None or not len(known):
            continue
        thetas = [torch.as_tensor(run.arrays[index]["theta"]).to(problem.device) for index in known]
        modes = [Modes.of(probed.through(theta)) for theta in thetas]
        probe = probe_curves(modes, steps_to_record(None, PROBE_STEPS))
        for place, index in enumerate(known):
            facts = {"task": task, **run.rows.loc[index, ["method", "seed"]]}
            value = np.maximum(probe.norm_ratio[place], FLOOR)
            curves.append(pd.DataFrame({**facts, "step": probe.steps, "value": value}))
    drawn = pd.concat(curves, ignore_index=True).query("step > 0")
    drawn["task"] = pd.Categorical(drawn["task"], [*TASK_TITLES])
    figure = panels(
        cols=2, subplot_titles=[*TASK_TITLES.values()], shared_yaxes=True, horizontal_spacing=0.06
    )
    lines_by_method(
        figure, drawn, "step", "value", panel="task", columns=2,
        hovertemplate="%{x:,.0f}: %{y:.3g} (%{customdata[0]:.2g} … %{customdata[1]:.2g})",
    )  # fmt: skip
    figure.update_xaxes(**log_axis("step of exact line search", drawn["step"]))
    figure.update_yaxes(**log_axis("", drawn["value"]))
    figure.update_yaxes(title_text="‖w<sub>t</sub> − w*‖² / ‖w<sub>0</sub> − w*‖²", col=1)
    pair = load(at["data"], at["features"], int(at["rows"]))
    note = f"{pair.title()}. Line: geometric mean over seeds; band: least to largest"
    return finish(figure, "Convergence of linear probing (norm ratio, Eq. 16)", note, height=500)
