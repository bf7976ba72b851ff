"""Table 2 and Figure 2: linear extractors on ordered pairs of digits, of MNIST or of the bundled 8×8 ones."""

import math
from functools import cache, lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import Digits, load_mnist_images, load_small_digits
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.experiments import linear
from condnum.experiments.frame import Cell, Row, Run
from condnum.methods.problem import ImmunizationProblem, LogisticLoss
from condnum.numbers import num
from condnum.page.style import empty, finish, method_style, panels, square
from condnum.theory.task import Task

#: The paper's four methods, and the closed forms that say what is possible.
DIGIT_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only", "max_rir", "pareto", "erase")
#: Rows of the supervised loss, balanced.
LOSS_ROWS = 1000
#: Tasks that a process keeps, 20 MB each for MNIST: the cells of a pair come one after the other.
KEPT = 8
#: Up to so many pairs are columns of one map of the methods, as a phone has room for.
FEW = 8


def cells(
    *, data: str, methods: Any, seeds: int, steps: int, pairs: str, labels: str, device: str, full: bool
) -> list[Cell]:
    """List pair by pair, whose cells share tasks; `data` is mnist, digits, or the path of MNIST's folder."""
    check_known("labels", labels, ("one_vs_rest", "published"))
    chosen, wanted = linear.read_methods(methods, DIGIT_METHODS), read_pairs(pairs)
    seeds, steps = check_integer("seeds", seeds, 1), check_integer("steps", steps, 0)
    if not full:
        seeds, steps, wanted = 1, linear.QUICK_STEPS, wanted[:2]
    for benign, harmful in wanted:
        load(data).smaller_count(benign, harmful)
    at = {"data": data, "labels": labels, "device": str(resolve_device(device)), "steps": steps}
    runs = linear.runs(chosen, seeds)
    return [{**run, "benign": benign, "harmful": harmful, **at} for benign, harmful in wanted for run in runs]


def read_pairs(pairs: str) -> list[tuple[int, int]]:
    """Read ordered pairs (benign, harmful) as in 4-7,9-0; none are all 90.

    Examples:
        >>> read_pairs("4-7, 9-0"), len(read_pairs(""))
        ([(4, 7), (9, 0)], 90)
    """
    found = list(dict.fromkeys(read_pair(word.strip()) for word in pairs.split(",") if word.strip()))
    return found or list(permutations(range(10), 2))


def read_pair(word: str) -> tuple[int, int]:
    """Read one pair."""
    benign, _, harmful = word.partition("-")
    if not all(len(digit) == 1 and digit in "0123456789" for digit in (benign, harmful)):
        raise InvalidInputError(
            f"expected a pair of digits such as 4-7, or several as in 4-7,9-0; got '{word}'."
        )
    if benign == harmful:
        raise InvalidInputError(f"pair '{word}': give two different digits from 0 to 9.")
    return int(benign), int(harmful)


def checksum(*, data: str, **_: Any) -> str:
    """Return the SHA-256 of the images."""
    return load(data).checksum


@cache
def load(data: str) -> Digits:
    """Return the images."""
    return load_small_digits() if data == "digits" else load_mnist_images("auto" if data == "mnist" else data)


@lru_cache(KEPT)
def tasks(data: str, benign: int, harmful: int, labels: str, device: str) -> ImmunizationProblem:
    """Return two digits as tasks: covariances of equally many images, logistic losses one-vs-rest."""
    count = load(data).smaller_count(benign, harmful)
    # One-vs-rest is one task whichever side it is on; a digit alone has its side's label.
    sides = ((benign, 0.0), (harmful, 1.0 if labels == "published" else 0.0))
    (P, H), losses, probes = zip(
        *(_task(data, digit, count, labels, label, device) for digit, label in sides), strict=True
    )
    return ImmunizationProblem(P, H, losses, probes)


@lru_cache(KEPT)
def _task(
    data: str, digit: int, count: int, labels: str, label: float, device: str
) -> tuple[Task, LogisticLoss, Task]:
    """Return a digit's task, of its first `count` images, with loss and probe on a sample."""
    digits = load(data)
    own = np.flatnonzero(digits.labels == digit)[:count]
    if labels == "published":
        index = own[:LOSS_ROWS]
        targets = np.full(len(index), label)
    else:
        half = min(count, LOSS_ROWS // 2)
        rest = np.flatnonzero(digits.labels != digit)
        drawn = np.random.default_rng([digit, count]).choice(rest, size=half, replace=False)
        index, targets = np.concatenate([own[:half], drawn]), np.repeat([1.0, 0.0], half)
    rows = torch.from_numpy(digits.pixels(index)).to(device)
    y = torch.as_tensor(targets)[:, None].to(device)
    own_rows = torch.from_numpy(digits.pixels(own))
    return Task.of(own_rows, device=device), LogisticLoss(rows, y), Task.of(rows, y, kind="regression")


def compute(
    *, method: str, seed: int, benign: int, harmful: int, data: str, labels: str, device: str, steps: int
) -> Row:
    """Immunize one pair and measure it."""
    problem = tasks(data, benign, harmful, labels, device)
    known = "digits" if data == "digits" else "mnist"
    result = linear.extractor(problem, known, method=method, seed=seed, steps=steps)
    return linear.measured(problem, result)


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method, averaged over pairs, then over seeds, beside Table 2."""
    return linear.table_of(rows, 0 if (rows["data"] == "digits").all() else 2, ("benign", "harmful"))


def sentence(table: pd.DataFrame) -> str:
    """Return how many pairs and seeds are immunized, beside Table 2."""
    return linear.sentence_of(table, "Table 2")


def figure(run: Run) -> Any:
    """Draw Fig. 2: ln RIR of every pair, a panel per method; of few pairs, one map with a column per pair.

    A cross marks a pair that fails Definition 3.1 in any seed, which a blue cell can do as well.
    """
    seen, names = _by_pair(run.rows), list(dict.fromkeys(run.rows["method"]))
    pairs = seen[["benign", "harmful"]].drop_duplicates()
    title = f"ln RIR on {len(pairs)} of 90 pairs of digits"
    note = (
        f"{load(run.rows['data'].iloc[0]).title()}. Ridge κ, ‖θ‖ = √D; mean of ln RIR over seeds. "
        "Blue: RIR > 1, red: RIR < 1; ✕\u00a0fails Definition 3.1 in at least one seed"
    )
    heads = [
        f"<b>{method_style(name).label}</b><br>{own['successes'].sum()} of {own['seeds'].sum()} runs"
        for name in names
        for own in [seen[seen["method"] == name]]
    ]
    look = {
        "texttemplate": "%{text}", "hovertemplate": "%{hovertext}<extra></extra>", "hoverongaps": False,
        "coloraxis": "coloraxis", "xgap": 1, "ygap": 1, "textfont_size": 11,
    }  # fmt: skip
    few = len(pairs) <= FEW
    if few:
        order = pd.MultiIndex.from_frame(pairs)
        z, text, hover = (
            seen.pivot(index="method", columns=["benign", "harmful"], values=of)
            .reindex(index=names, columns=order)
            .fillna(math.nan if of == "log_rir" else "")
            for of in ("log_rir", "text", "hover")
        )
        labels, places = [f"{benign} → {harmful}" for benign, harmful in order], np.arange(len(names))
        figure = empty().add_heatmap(z=z, x=labels, y=places, text=text, hovertext=hover, **look)
        finish(figure, title, note, height=240 + 58 * len(names))
        figure.update_xaxes(type="category", title_text="D<sub>P</sub> → D<sub>H</sub>")
        figure.update_yaxes(
            tickvals=places, ticktext=heads, automargin=True, autorange="reversed", ticks="", showgrid=False
        )
        figure.update_layout(meta={"stack": True})  # follows the width of the page
    else:
        columns, side, gap = min(3, len(names)), 300, 110  # pixels of a panel, and between rows of panels
        rows = math.ceil(len(names) / columns)
        inner = rows * side + (rows - 1) * gap
        figure = panels(
            rows=rows, cols=columns, subplot_titles=heads, horizontal_spacing=0.06,
            vertical_spacing=gap / inner if rows > 1 else 0,
        )  # fmt: skip
        digits = pd.MultiIndex.from_product([range(10)] * 2)
        for index, name in enumerate(names):
            own = seen[seen["method"] == name].set_index(["benign", "harmful"]).reindex(digits)
            own = own.fillna({"text": "", "hover": ""})
            z, text, hover = (own[of].to_numpy().reshape(10, 10) for of in ("log_rir", "text", "hover"))
            row, column = index // columns + 1, index % columns + 1
            at = {"x": np.arange(10), "y": np.arange(10), "row": row, "col": column}
            figure.add_heatmap(z=z, text=text, hovertext=hover, **at, **look)
            if column == 1:
                figure.update_yaxes(title_text="benign digit D<sub>P</sub>", row=row, col=column)
            if index + columns >= len(names):
                figure.update_xaxes(title_text="harmful digit D<sub>H</sub>", row=row, col=column)
        finish(figure, title, note, height=inner + 220)
        plain = {"dtick": 1, "ticks": "", "showgrid": False, "zeroline": False, "showline": False}
        figure.update_xaxes(range=[-0.5, 9.5], **plain).update_yaxes(range=[9.5, -0.5], **plain)
        square(figure).update_annotations(font_size=14)
    # ColorBrewer's RdBu, safe for the common kinds of color blindness. Closed forms may exceed the scale.
    trained = seen.loc[~seen["method"].isin(("max_rir", "pareto", "erase")), "log_rir"]
    end = max((seen["log_rir"] if trained.empty else trained).abs().max(), 1.0)
    bar = {"title_text": "ln RIR", "thickness": 16}
    if not few:
        bar |= {"len": 300, "lenmode": "pixels", "y": 1, "yanchor": "top"}
    return figure.update_layout(coloraxis={"colorscale": "RdBu", "cmin": -end, "cmax": end, "colorbar": bar})


def _by_pair(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method and pair, in ridge κ at unit scale: means of logarithms over seeds."""
    logs = {name: np.log(rows[f"ridge_{name}"]) for name in ("rir", "harmful_ratio", "benign_ratio")}
    met = rows["ridge_success"] == 1  # None: not known
    seen = (
        rows.assign(**logs, met=met)
        .groupby(["method", "benign", "harmful"], sort=False, as_index=False)
        .agg(
            log_rir=("rir", "mean"), i=("harmful_ratio", "mean"), ii=("benign_ratio", "mean"),
            successes=("met", "sum"), seeds=("met", "size"),
        )
    )  # fmt: skip
    cross = (seen["successes"] < seen["seeds"]).map({True: "<sup>✕</sup>", False: ""})
    seen["text"] = [f"{of:.1f}".replace("-0.0", "0.0").replace("-", "−") for of in seen["log_rir"]] + cross
    seen["hover"] = [
        f"<b>D<sub>P</sub>: digit {of.benign}, D<sub>H</sub>: digit {of.harmful}</b><br>"
        f"{method_style(of.method).label}: {of.successes} of {of.seeds} immunized<br>"
        f"(i) {num(np.exp(of.i))}, (ii) {num(np.exp(of.ii))}, RIR {num(np.exp(of.log_rir))}"
        for of in seen.itertuples()
    ]
    return seen
