"""How far immunized extractors slow each kind of training: one pair of tasks, a panel of attackers."""

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from condnum.data import TaskPair, digit_pair
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.experiments import house_prices, linear, mnist
from condnum.experiments.frame import Cell, Outcome, Row, Run
from condnum.experiments.pairs import data_set, read_data
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import number
from condnum.page.look import DOTTED
from condnum.page.style import empty, finish, method_style
from condnum.page.tables import label_text, times
from condnum.probing import ATTACKERS, AttackBudget, attack_panel

#: θ₀ untrained, Algorithm 1, the closed forms; raw inputs are always there.
METHODS, RAW = ("initial", "ours", "max_rir", "pareto", "erase"), "raw"
#: What an attacker has to reach: of the excess loss.
EPSILON = 0.01
#: Rows of each class that the attacker of a digit has, and steps that pass over them; the same of tables.
DIGIT_ROWS, DIGIT_DENSE_STEPS, DENSE_STEPS = 2500, 500, 3000
#: Steps of a run of seconds, and of those that pass over the rows.
QUICK = (200, 20)
#: Fraction of the rows that is held out for the score of a head.
HELD_OUT = 0.2
#: What a row of the table is about.
STEPS, ACCURACY, LOSS, RIR = "steps, × raw", "accuracy, held-out rows", "squared loss, held-out rows", "RIR"


class Data(NamedTuple):
    """What is attacked, and what is immunized."""

    pair: TaskPair
    problem: ImmunizationProblem
    known: str  # whose settings the methods take


def cells(
    *,
    data: str,
    methods: Any,
    attackers: str,
    seed: int,
    steps: int,
    rows: int,
    attack_steps: int,
    dense_attack_steps: int,
    full: bool,
) -> list[Cell]:
    """List the extractors, and after each every attacker; `data` is a table, or digits as in mnist:4-9."""
    chosen = linear.read_methods(methods, METHODS)
    panel = list(dict.fromkeys(name.strip() for name in attackers.split(",") if name.strip())) or [*ATTACKERS]
    for name in panel:
        check_known("attacker", name, ATTACKERS)
    if check_integer("rows", rows, 0) in (1, 2, 3):
        raise InvalidInputError(f"rows must be 0 (all) or at least 4, got {rows}: some of them are held out.")
    dense = DIGIT_DENSE_STEPS if read_data(data)[1] else DENSE_STEPS
    budget = [
        check_integer("attack_steps", attack_steps, 0) or AttackBudget.steps,
        check_integer("dense_attack_steps", dense_attack_steps, 0) or dense,
    ]
    steps = check_integer("steps", steps, 0)
    if not full:
        budget, steps = [*map(min, budget, QUICK)], linear.QUICK_STEPS
    load(data, rows)
    at = {"seed": check_integer("seed", seed, 0), "data": data, "rows": rows}
    made = {name: {"method": name, **at, "steps": steps} for name in chosen}
    spent = {"attack_steps": budget[0], "dense_steps": budget[1]}
    attacks = [
        {"method": name, **at, **spent, "attacker": attacker} | ({"after": made[name]} if name != RAW else {})
        for name, attacker in product([RAW, *chosen], panel)
    ]
    return [*made.values(), *attacks]


def checksum(*, data: str, rows: int, **_: Any) -> str:
    """Return the SHA-256 of the data."""
    return load(data, rows).pair.checksum


@cache
def load(data: str, rows: int) -> Data:
    """Return the two tasks; the extractors are those of the linear experiments for the same settings."""
    source, pair = read_data(data)
    known = data_set(source)
    if not pair:
        found = house_prices.load(source, "published", rows)
        return Data(found, house_prices.tasks(source, "published", rows, "cpu"), known)
    digits = mnist.read_pair(pair)
    problem = mnist.tasks(source, *digits, "one_vs_rest", "cpu")
    return Data(digit_pair(mnist.load(source), *digits), problem, known)


def compute(*, method: str, attacker: str = "", after: Outcome | None = None, **at: Any) -> Row | Outcome:
    """Make an extractor, or attack it."""
    if attacker:
        return attacked(method, attacker, None if after is None else after[1]["theta"], **at)
    data = load(at["data"], at["rows"])
    made = linear.extractor(data.problem, data.known, method=method, seed=at["seed"], steps=at["steps"])
    rir = data.problem.seen(made.theta).immunization("ridge", theta_scale="unit").rir
    return {"rir": rir}, {"theta": made.theta.cpu().numpy()}


def attacked(
    method: str,
    attacker: str,
    theta: Any,
    *,
    seed: int,
    data: str,
    rows: int,
    attack_steps: int,
    dense_steps: int,
) -> Row:
    """Return the steps to 1 % of the excess loss, and the score on rows that the attacker lacks."""
    X, y, others = rows_of(data, rows)
    report = attack_panel(
        X,
        y,
        {RAW: None} if theta is None else {RAW: None, method: theta},
        kind="classification" if read_data(data)[1] else "regression",
        held_out=others,
        budget=AttackBudget(attack_steps, dense_steps, (EPSILON,), EPSILON, seed=seed),
        attackers=attacker,
        only=method,
    )
    names = ["steps", "last_step", "loss", "accuracy", "choice"]
    return (
        {} if report.table.empty else report.table[names].iloc[0].to_dict()
    )  # it needs classes, or a matrix


def rows_of(data: str, rows: int) -> tuple[Any, Any, tuple[Any, Any]]:
    """Return the rows that train, and the last fifth, which is held out; digit and rest are in turn."""
    X, y = load(data, rows).pair.probe_sample
    if read_data(data)[1]:
        X, y = X[: 2 * (rows or DIGIT_ROWS)], y[: 2 * (rows or DIGIT_ROWS)]
    fit = len(X) - max(2, int(len(X) * HELD_OUT) // 2 * 2)
    return X[:fit], y[:fit], (X[fit:], y[fit:])


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per attacker: steps on raw inputs, factors on extractors; of a solved head its score.

    A column NAME_least says where NAME is a lower bound, as the steps did not suffice.
    """
    found = rows.reindex(columns=["method", "attacker", "steps", "last_step", "loss", "accuracy", "rir"])
    made, attacks = found[found["attacker"].isna()], found[found["attacker"].notna()]
    names = list(dict.fromkeys([RAW, *made["method"], *attacks["method"]]))
    lines = [
        {"attacker": "no attack", "measure": RIR, RAW: 1.0}
        | dict(zip(made["method"], made["rir"], strict=True))
    ]
    for attacker, own in attacks.groupby("attacker", sort=False):
        at = own.set_index("method")
        line: Row = {"attacker": ATTACKERS[str(attacker)].label}
        if ATTACKERS[str(attacker)].solves:
            score = "loss" if at["accuracy"].isna().all() else "accuracy"
            if at[score].notna().any():
                measure = LOSS if score == "loss" else ACCURACY
                lines.append(line | {"measure": measure} | at[score].to_dict())
        elif at["last_step"].notna().any():
            start = at["steps"].get(RAW, np.nan)
            spent = at["steps"].fillna(at["last_step"])
            known = spent.index == RAW
            factor = spent.where(
                known | np.isposinf(spent), spent / (start if np.isfinite(start) else np.nan)
            )
            least = at["steps"].isna() & factor.notna()
            lines.append(
                line
                | {"measure": STEPS}
                | factor.to_dict()
                | {f"{name}_least": bool(of) for name, of in least.items()}
            )
    found = pd.DataFrame(lines)
    columns = [part for name in names for part in (name, f"{name}_least")]
    found = found.reindex(columns=["attacker", "measure", *columns])
    bounds = [f"{name}_least" for name in names]
    found[bounds] = found[bounds].eq(True)
    return found


def sentence(table: pd.DataFrame) -> str:
    """Return what descent needs on immunized features, who is slowed least, and what a solved head reads."""
    name = linear.first_of([name for name in table if f"{name}_least" in table and name != RAW])
    slowed = table[(table["measure"] == STEPS) & table[name].notna()].set_index("attacker")

    def needs(attacker: Any) -> str:
        if np.isinf(slowed.loc[attacker, name]):
            return "never reaches it"
        more = "at least " if slowed.loc[attacker, f"{name}_least"] else ""
        return f"needs {more}{times(slowed.loc[attacker, name])} the steps on raw inputs"

    parts, descent = list[str](), ATTACKERS["gd"].label
    if descent in slowed.index:
        parts.append(f"gradient descent {needs(descent)}")
    if len(slowed):
        least = slowed[name].idxmin()
        parts.append(f"the attacker slowed least, {least}, {needs(least)}")
    said = f"To {100 * EPSILON:g} % of the excess loss on features of {label_text(name)}, "
    said += ", and ".join(parts) or "no attacker has a known factor"
    solved = table[table["measure"].isin([ACCURACY, LOSS])].dropna(subset=[RAW, name])
    if len(solved):
        measure = solved["measure"].iloc[0]
        own, raw = (solved[of].max() if measure == ACCURACY else solved[of].min() for of in (name, RAW))
        said += (
            f". The best head that is solved for has {measure.partition(',')[0]} {number(own)} on held-out "
            f"rows ({number(raw)} on raw inputs)"
        )
    return f"{said}."


def figure(run: Run) -> Any:
    """Draw the factor of every attacker that takes steps, a mark per extractor."""
    shown = run.table[run.table["measure"] == STEPS]
    names = [name for name in shown if f"{name}_least" in shown and name != RAW and shown[name].notna().any()]
    shown = shown.sort_values(linear.first_of(names) if names else RAW, kind="stable")
    values = shown[names].to_numpy()
    finite = values[np.isfinite(values)]
    powers = np.arange(
        np.floor(np.log10(finite.min(initial=1))), np.ceil(np.log10(finite.max(initial=10))) + 1
    )
    never, drawn = 10.0 ** (powers[-1] + 0.7), empty()
    for name in names:
        style, least, factor = method_style(name), shown[f"{name}_least"], shown[name]
        drawn.add_scatter(
            x=factor.replace(np.inf, never), y=shown["attacker"], name=style.label, mode="markers",
            marker={"color": style.color, "size": 11, "line": {"color": style.color, "width": 2},
                    "symbol": np.where(least, "triangle-right-open", "circle")},
            customdata=[">" * low + number(of) for low, of in zip(least, factor, strict=True)],
            hovertemplate="%{y}: %{customdata} × raw",
        )  # fmt: skip
    drawn.add_vline(1, line=DOTTED)
    ticks = {"tickvals": [*10.0**powers, never], "ticktext": [*(number(10.0**of) for of in powers), "∞"]}
    title = "steps over those on raw"
    pair = load(*run.rows[["data", "rows"]].iloc[0]).pair
    note = (
        f"{pair.title()}; attacked: {pair.harmful_name}<br>Open: not finished, a lower bound; ∞: out of reach"
    )
    finish(drawn, "How much each attacker is slowed", note, height=260 + 30 * len(shown), legend="")
    drawn.update_xaxes(type="log", title_text=title, **ticks)
    drawn.update_yaxes(autorange="reversed", ticks="", automargin=True)
    below = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0}
    return drawn.update_layout(legend=below, margin_b=110)
