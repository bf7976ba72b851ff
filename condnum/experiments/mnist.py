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
#: Pixels of a panel of ten digits, and between rows of panels.
_SIDE, _GAP = 300, 110


def cells(
    *, data: str, methods: Any, seeds: int, steps: int, pairs: str, labels: str, device: str, full: bool
) -> list[Cell]:
    """List pair by pair, whose cells share tasks; `data` is mnist, digits, or the path of MNIST's folder."""
    check_known("labels", labels, ("one_vs_rest", "published"))
    chosen, wanted = linear.read_methods(methods, DIGIT_METHODS), read_pairs(pairs)
    seeds, steps = check_integer("seeds", seeds, 1), check_integer("steps", steps, 0)
    if not full:
        seeds, steps, wanted = 1, linear.QUICK_STEPS, wanted[:1]
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
    heads = []
    for name in names:
        own = seen[seen["method"] == name]
        count = f"{own['successes'].sum()} of {own['seeds'].sum()} runs"
        heads.append(f"<b>{method_style(name).label}</b><br>{count}")
    title = f"ln RIR on {len(pairs)} of 90 pairs of digits"
    note = (
        f"{load(run.rows['data'].iloc[0]).title()}. Ridge κ, ‖θ‖ = √D; mean of ln RIR over seeds. "
        "Blue: RIR > 1, red: RIR < 1; ✕\u00a0fails Definition 3.1 in at least one seed"
    )
    bar: dict[str, Any] = {"title_text": "ln RIR", "thickness": 16}
    if len(pairs) <= FEW:
        figure = _map(seen, names, heads, list(pairs.itertuples(index=False, name=None)))
        finish(figure, title, note, height=240 + 58 * len(names))
    else:
        figure = _panels(seen, names, heads)
        finish(figure, title, note, height=figure.layout.height)
        square(figure).update_annotations(font_size=14)
        bar |= {"len": _SIDE, "lenmode": "pixels", "y": 1, "yanchor": "top"}
    # ColorBrewer's RdBu, safe for the common kinds of color blindness. Closed forms may exceed the scale.
    trained = seen.loc[~seen["method"].isin(("max_rir", "pareto", "erase")), "log_rir"]
    end = max((seen["log_rir"] if trained.empty else trained).abs().max(), 1.0)
    return figure.update_layout(coloraxis={"colorscale": "RdBu", "cmin": -end, "cmax": end, "colorbar": bar})


def _map(seen: pd.DataFrame, names: list[str], heads: list[str], pairs: list[tuple[int, int]]) -> Any:
    """Return one map: a row per method, a column per pair."""
    places = np.arange(len(names))
    keys = [(name, *pair) for name in names for pair in pairs]
    labels = [f"{benign} → {harmful}" for benign, harmful in pairs]
    figure = empty().add_heatmap(x=labels, y=places, **_cells(seen, keys, len(names)))
    figure.update_xaxes(type="category", title_text="D<sub>P</sub> → D<sub>H</sub>")
    rows = {"tickvals": places, "ticktext": heads, "automargin": True, "showgrid": False}
    figure.update_yaxes(autorange="reversed", **rows)
    return figure.update_layout(meta={"stack": True})  # follows the width of the page


def _panels(seen: pd.DataFrame, names: list[str], heads: list[str]) -> Any:
    """Return a panel per method: a row per benign digit, a column per harmful one."""
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    inner = rows * _SIDE + (rows - 1) * _GAP
    gaps = {"horizontal_spacing": 0.06, "vertical_spacing": _GAP / inner if rows > 1 else 0}
    figure = panels(rows=rows, cols=columns, subplot_titles=heads, **gaps)
    digits = list(range(10))
    for index, name in enumerate(names):
        at = {"row": index // columns + 1, "col": index % columns + 1}
        keys = [(name, benign, harmful) for benign in digits for harmful in digits]
        figure.add_heatmap(x=digits, y=digits, **_cells(seen, keys, 10), **at)
        if index % columns == 0:
            figure.update_yaxes(title_text="benign digit D<sub>P</sub>", **at)
        if index + columns >= len(names):
            figure.update_xaxes(title_text="harmful digit D<sub>H</sub>", **at)
    plain = {"dtick": 1, "showgrid": False, "zeroline": False}
    figure.update_xaxes(range=[-0.5, 9.5], **plain).update_yaxes(range=[9.5, -0.5], **plain)
    return figure.update_layout(height=inner + 220)


def _cells(seen: pd.DataFrame, keys: list[tuple[str, int, int]], rows: int) -> dict[str, Any]:
    """Return a heatmap of these methods and pairs, row by row; what was not run is empty."""
    found = seen.set_index(["method", "benign", "harmful"]).reindex(pd.MultiIndex.from_tuples(keys))
    found = found.fillna({"text": "", "hover": ""})
    z, words, hover = (found[name].to_numpy().reshape(rows, -1) for name in ("log_rir", "text", "hover"))
    return {
        "z": z, "text": words, "texttemplate": "%{text}", "textfont_size": 11, "hovertext": hover,
        "hovertemplate": "%{hovertext}<extra></extra>", "hoverongaps": False, "coloraxis": "coloraxis",
        "xgap": 1, "ygap": 1,
    }  # fmt: skip


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
