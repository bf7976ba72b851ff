"""Fig. 2: RIR over ordered pairs of digits, as heatmaps with a panel a method, or as dots."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, check_known
from condnum.figures.style import empty, finish, log_axis, method_style, num, panels

DIGITS = 10

#: What tells one row from another, and all that is read.
_KEY = ["method", "seed", "pretrain_digit", "harmful_digit", "convention", "theta_scale"]
PAIR_COLUMNS = [*_KEY, "harmful_ratio", "pretrain_ratio", "rir", "success", "rank_pretrain", "rank_harmful"]

#: Name and unit of each measure, in the order of the hover box.
MEASURE_NAMES = {
    ("ridge", "unit"): "ridge κ, ‖θ‖ = √D",
    ("ridge", "as_trained"): "ridge κ, θ as trained",
    ("compact", "unit"): "compact κ",
}


@dataclass(frozen=True)
class PairCells:
    """One method's 10×10 cells; rows are pre-training digits, columns harmful digits."""

    title: str  # mean RIR over pairs ± std over seeds, and the number of pairs that succeed in every seed
    log_rir: NDArray[np.float64]  # (10, 10), mean of ln RIR over seeds; NaN, ±inf where a seed has them
    present: NDArray[np.bool_]  # (10, 10), whether any seed has a result
    failed: NDArray[np.bool_]  # (10, 10), whether any seed fails Definition 3.1
    hover: NDArray[np.object_]  # (10, 10), HTML


def check_pair_results(results: pd.DataFrame) -> pd.DataFrame:
    """Check the table of digit pairs."""
    missing = [name for name in PAIR_COLUMNS if name not in results.columns]
    if missing:
        raise InvalidInputError(f"the table of digit pairs lacks the columns: {', '.join(missing)}.")
    table = results[PAIR_COLUMNS]
    if table.empty:
        raise InvalidInputError("the table of digit pairs has no rows.")
    for name in ("pretrain_digit", "harmful_digit"):
        odd = table.loc[~table[name].isin(range(DIGITS)), name]
        if len(odd):
            raise InvalidInputError(f"{name} must be one of 0 … 9, got {odd.iloc[0]}.")
    same = table.loc[table["pretrain_digit"] == table["harmful_digit"], "pretrain_digit"]
    if len(same):
        raise InvalidInputError(f"a pair needs two different digits, got ({same.iloc[0]}, {same.iloc[0]}).")
    twice = table[table.duplicated(_KEY)]
    if len(twice):
        raise InvalidInputError(f"two rows are of the same cell: {twice.iloc[0][_KEY].to_dict()}.")
    return table


def pair_cells(results: pd.DataFrame, method: str, *, convention: str, theta_scale: str) -> PairCells:
    """Collect what the heatmap of one method shows."""
    table = results[results["method"] == method]
    shown = table[(table["convention"] == convention) & (table["theta_scale"] == theta_scale)]
    if shown.empty:
        known = table[["convention", "theta_scale"]].drop_duplicates().itertuples(index=False)
        choices = ", ".join(f"{row.convention}/{row.theta_scale}" for row in known)
        raise InvalidInputError(
            f"method '{method}' has no rows of convention '{convention}' with theta_scale '{theta_scale}'; "
            f"it has: {choices or 'nothing'}."
        )
    label, seeds = method_style(method).label, shown["seed"].nunique()
    log_rir = np.full((DIGITS, DIGITS), np.nan)
    present, failed = np.zeros((2, DIGITS, DIGITS), dtype=bool)
    hover = np.full((DIGITS, DIGITS), "the same digit twice: no pair", dtype=object)
    head = "<b>D<sub>P</sub>: digit {}, D<sub>H</sub>: digit {}</b><br>{}".format
    for p, h in zip(*np.nonzero(~np.eye(DIGITS, dtype=bool)), strict=True):
        hover[p, h] = head(p, h, f"{label}: no result")
    everything = dict(iter(table.groupby(["pretrain_digit", "harmful_digit"])))
    for (p, h), cell in shown.groupby(["pretrain_digit", "harmful_digit"]):
        success = cell["success"] == 1  # a verdict that is missing counts as a failure
        log_rir[p, h] = _mean_log(cell["rir"])
        present[p, h], failed[p, h] = True, not success.all()
        count = "1 seed" if seeds == 1 else f"{seeds} seeds"
        if len(cell) < seeds:
            count = f"{len(cell)} of {seeds} seeds (the others have no result)"
        verdict = f"{label}, {count}<br>Definition 3.1: succeeds in {success.sum()} of {len(cell)}"
        hover[p, h] = "<br>".join(
            [head(p, h, verdict), *_measures(everything[p, h], shown=(convention, theta_scale))]
        )
    finite = shown[np.isfinite(shown["rir"].astype(float))]
    means = finite.groupby("seed")["rir"].mean().to_numpy(dtype=float)
    spread = f" ± {means.std(ddof=1):.2g}" if len(means) > 1 else ""
    odd = int((present & ~np.isfinite(log_rir)).sum())
    notes = ", ".join(["one seed"] * (len(means) == 1) + [f"{odd} not finite"] * (odd > 0))
    title = (
        f"<b>{label}</b><br>RIR{f' {num(means.mean(), 4)}' if len(means) else ''}{spread}"
        f"{f' ({notes})' if notes else ''}, success {present.sum() - failed.sum()} of {present.sum()}"
    )
    return PairCells(title, log_rir, present, failed, hover)


def comparable(names: Sequence[str]) -> list[str]:
    """Return the methods whose RIR is of one order of magnitude: they set the colour scale, others exceed it.

    Examples:
        >>> comparable(["ours", "max_rir"]), comparable(["max_rir"])
        (['ours'], ['max_rir'])
    """
    return [name for name in names if name not in ("max_rir", "pareto")] or list(names)


def color_limit(results: pd.DataFrame, methods: Sequence[str], *, convention: str, theta_scale: str) -> float:
    """Return the end of the colour scale that heatmaps of several methods share."""
    table = results[results["method"].isin(methods)]
    table = table[(table["convention"] == convention) & (table["theta_scale"] == theta_scale)]
    groups = table.groupby(["method", "pretrain_digit", "harmful_digit"])["rir"]
    means = np.abs([_mean_log(values) for _, values in groups])
    return max(float(means[np.isfinite(means)].max(initial=0.0)), 0.1) if np.isfinite(means).any() else 1.0


def _mean_log(values: pd.Series) -> float:
    """Return the mean of ln over seeds: NaN or ±inf as soon as a seed is."""
    with np.errstate(all="ignore"):
        return float(np.mean(np.log(values.to_numpy(dtype=float))))


def _measures(rows: pd.DataFrame, *, shown: tuple[str, str]) -> list[str]:
    """Return the hover lines: ratios, RIR and ranks per convention and scale of θ, the shown one marked."""
    lines = []
    for (convention, theta_scale), name in MEASURE_NAMES.items():
        part = rows[(rows["convention"] == convention) & (rows["theta_scale"] == theta_scale)]
        if part.empty:
            lines.append(f"<i>{name}</i>: not measured")
            continue
        means = [_geometric(part[column]) for column in ("harmful_ratio", "pretrain_ratio", "rir")]
        ranks = [
            "–".join(dict.fromkeys(f"{rank:g}" for rank in (part[column].min(), part[column].max())))
            for column in ("rank_pretrain", "rank_harmful")
        ]
        lines += [
            f"<i>{name}{' (shown)' * ((convention, theta_scale) == shown)}</i>",
            "(i) {}, (ii) {}, RIR {}".format(*means),
            "ranks: H<sub>P</sub> {}, H<sub>H</sub> {}".format(*ranks),
        ]
        rir = part["rir"].to_numpy(dtype=float)
        odd = {"infinite": rir == np.inf, "zero": rir == 0, "not a number": np.isnan(rir) | (rir < 0)}
        told = ", ".join(f"{word} in {where.sum()}" for word, where in odd.items() if where.any())
        lines += [f"RIR is {told} of {len(part)} seeds"] if told else []
    return lines


def _geometric(values: pd.Series) -> str:
    """Return the geometric mean over seeds; beyond the floats' range it stays a power of ten."""
    mean = _mean_log(values)
    if not np.isfinite(mean):
        return "0" if mean == -np.inf else number_text(mean)
    return num(float(np.exp(mean))) if mean < 700 else f"1e{mean / np.log(10):.0f}"


def number_text(value: float) -> str:
    """Return ln RIR as a cell shows it.

    Examples:
        >>> [number_text(v) for v in (4.2481, -0.01, -2.0, float("inf"), float("nan"))]
        ['4.2', '0.0', '−2.0', '∞', 'NaN']
    """
    if np.isnan(value):
        return "NaN"
    text = "∞" if np.isinf(value) else f"{abs(round(value, 1)):.1f}"
    return f"−{text}" if round(value, 1) < 0 else text


#: ColorBrewer's RdBu, safe for the common kinds of colour blindness: blue immunizes, red fails.
_SCALE = "RdBu"

#: Cells whose mean of ln RIR is not finite.
_ODD = "#BDBDBD"

#: Side of a panel in pixels; the gap between rows holds a panel's title, ticks and axis title.
PANEL, GAP, BOTTOM = 405, 112, 62

#: Characters of the subtitle that fit in a line at 640 and at 840 pixels.
LINE = {1: 88, 2: 120}


def pair_figure(
    results: pd.DataFrame,
    subtitle: str,
    *,
    convention: str = "ridge",
    theta_scale: str = "unit",
    methods: Sequence[str] | None = None,
) -> Any:
    """Draw RIR of pairs of digits: as heat maps (Fig. 2), or as dots where these would be half empty.

    Args:
        results: What `DigitPairs` measures, a row per method, seed, pair, convention and scale of θ.
        subtitle: Names the data.
        convention: How κ is measured.
        theta_scale: The scale of θ at which it is measured.
        methods: Names of those that are drawn; None for all.

    Returns:
        A plotly figure. Its traces' `customdata` holds (pre-training digit, harmful digit).

    Raises:
        InvalidInputError: A column, a method or what was measured is missing.
    """
    table = check_pair_results(results)
    pairs = table[["pretrain_digit", "harmful_digit"]].drop_duplicates().to_numpy()
    digits = np.ptp(pairs) + 1
    draw = _dots if 2 * len(pairs) <= digits * (digits - 1) else pair_heatmaps
    return draw(results, subtitle, convention=convention, theta_scale=theta_scale, methods=methods)


def _chosen(
    results: pd.DataFrame, methods: Sequence[str] | None, **measure: str
) -> tuple[pd.DataFrame, list[str], list[PairCells]]:
    """Return the checked table, the names of the drawn methods and their cells."""
    table = check_pair_results(results)
    known = list(dict.fromkeys(table["method"]))
    names = known if methods is None else list(methods)
    if not names:
        raise InvalidInputError(f"methods is empty; choose of: {', '.join(known)}.")
    for name in names:
        check_known("method of the table", name, known)
    return table, names, [pair_cells(table, name, **measure) for name in names]


def _heading(table: pd.DataFrame) -> str:
    """Say how many pairs are drawn."""
    return f"{len(table[['pretrain_digit', 'harmful_digit']].drop_duplicates())} of 90 pairs of digits"


def _dots(
    results: pd.DataFrame, subtitle: str, *, convention: str, theta_scale: str, methods: Sequence[str] | None
) -> Any:
    """Draw RIR of a few ordered pairs of digits: a row a pair, a dot a method, a cross where it fails."""
    table, names, shown = _chosen(results, methods, convention=convention, theta_scale=theta_scale)
    figure, crosses, drawn = empty(), list[tuple[float, float]](), [1.0]
    pairs = sorted(set(map(tuple, table[["pretrain_digit", "harmful_digit"]].to_numpy())))
    for k, (name, cells) in enumerate(zip(names, shown, strict=True)):
        style, known = method_style(name), [pair for pair in pairs if cells.present[pair]]
        rir = np.exp([cells.log_rir[pair] for pair in known])
        seen = np.isfinite(rir) & (rir > 0)
        y = np.array([pairs.index(pair) for pair in known]) + 0.7 * ((k + 0.5) / len(names) - 0.5)
        places = {"y": y, "customdata": known, "text": [cells.hover[pair] for pair in known]}
        figure.add_scatter(
            x=np.where(seen, rir, np.nan), name=cells.title.replace("<br>", ": "), mode="markers",
            marker={"color": style.color, "size": 11}, hovertemplate="%{text}<extra></extra>", **places,
        )  # fmt: skip
        if not seen.all():  # on the line RIR = 1, in words
            places["text"] = [f"RIR {'0' if value == 0 else number_text(value)}" for value in rir]
            figure.add_scatter(
                x=np.where(seen, np.nan, 1.0), mode="text", textposition="middle right",
                textfont_color=style.color, hoverinfo="skip", showlegend=False, **places,
            )  # fmt: skip
        failed = np.array([cells.failed[pair] for pair in known])
        crosses += zip(rir[seen & failed], y[seen & failed], strict=True)
        drawn += [*rir[seen]]
    if crosses:
        at, rows = zip(*crosses, strict=True)
        figure.add_scatter(
            x=at, y=rows, mode="markers", name="fails Definition 3.1 in at least one seed", hoverinfo="skip",
            marker={"symbol": "x", "size": 6, "color": "#000000"},
        )  # fmt: skip
    measure = MEASURE_NAMES.get((convention, theta_scale), f"{convention}, {theta_scale}")
    inner = len(pairs) * max(26, 10 * len(names) + 8) + 20
    note = (
        f"{subtitle}. Measured with {measure}; mean of ln RIR over seeds. Below: mean RIR over pairs ± std "
        "over seeds, and the pairs that succeed in every seed"
    )
    finish(figure, f"RIR of {_heading(table)}", note)
    top, bottom = figure.layout.margin.t - 30, 80 + 24 * len(figure.data)
    figure.add_vline(x=1, line={"color": _ODD, "width": 1})
    figure.update_xaxes(**log_axis("RIR", drawn), zeroline=False)
    figure.update_yaxes(
        range=[len(pairs) - 0.5, -0.5],
        tickvals=list(range(len(pairs))),
        ticktext=[f"{p} → {h}" for p, h in pairs],
        title_text="D<sub>P</sub> → D<sub>H</sub>",
    )
    return figure.update_layout(
        height=top + inner + bottom,
        margin={"t": top, "b": bottom},
        title_y=1 - 23 / (top + inner + bottom),
        legend={
            "orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom", "title_text": "",
        },
    )  # fmt: skip


def pair_heatmaps(
    results: pd.DataFrame,
    subtitle: str,
    *,
    convention: str = "ridge",
    theta_scale: str = "unit",
    methods: Sequence[str] | None = None,
    limit: float | None = None,
) -> Any:
    """Draw Fig. 2: ln RIR of every ordered pair of digits.

    Rows are pre-training digits, columns harmful digits; a cell is the mean of ln RIR over seeds.
    A cross marks a pair that fails Definition 3.1 in any seed, which a blue cell can do as well:
    RIR > 1 is not enough. A panel's title gives the mean RIR over pairs ± its standard deviation
    over seeds, as in Table 2. The heatmaps' `customdata` holds (pre-training digit, harmful digit).
    """
    table, names, shown = _chosen(results, methods, convention=convention, theta_scale=theta_scale)
    if limit is None:
        limit = color_limit(table, comparable(names), convention=convention, theta_scale=theta_scale)
    if not 0 < limit < math.inf:
        raise InvalidInputError(f"limit must be positive and finite, got {limit}.")
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    low, high = (pick(table[["pretrain_digit", "harmful_digit"]].to_numpy()) for pick in (np.min, np.max))
    side = max(PANEL * (high - low + 1) // DIGITS, 120)  # digits without a pair at the ends are left out
    inner = rows * side + (rows - 1) * GAP
    figure = panels(
        rows=rows,
        cols=columns,
        subplot_titles=[cells.title for cells in shown],
        horizontal_spacing=0.08,
        vertical_spacing=GAP / inner if rows > 1 else 0,
    )
    plain = {"dtick": 1, "tick0": 0, "ticks": "", "showgrid": False, "zeroline": False, "showline": False}
    figure.update_xaxes(range=[low - 0.5, high + 0.5], constrain="domain")
    figure.update_yaxes(range=[high + 0.5, low - 0.5], constrain="domain")  # 0 on top
    for index, cells in enumerate(shown):
        row, col = index // columns + 1, index % columns + 1
        _add_panel(figure, cells, row=row, col=col)
        panel = figure.get_subplot(row, col)
        panel.yaxis.scaleanchor = panel.yaxis.anchor
        if col == 1:
            panel.yaxis.title = {"text": "pre-training digit D<sub>P</sub>", "standoff": 6}
        if index + columns >= len(names):
            panel.xaxis.title = {"text": "harmful digit D<sub>H</sub>", "standoff": 6}
    measure = MEASURE_NAMES.get((convention, theta_scale), f"{convention}, {theta_scale}")
    note = (
        f"{subtitle}. Measured with {measure}. Blue: RIR > 1, red: RIR < 1; cells: mean of ln RIR over "
        "seeds; ✕\u00a0fails Definition 3.1 in at least one seed. Titles: mean RIR over pairs ± std over "
        "seeds, and the pairs that succeed in every seed"
    )
    top = 84 + 22 * len(textwrap.wrap(note, LINE[columns]))
    title, height = f"ln RIR of {_heading(table)}", top + BOTTOM + inner
    finish(figure, title, note, height=height, width=LINE[columns])
    figure.update_xaxes(**plain)
    figure.update_yaxes(**plain)
    figure.update_annotations(font_size=14)
    bar = {"title": {"text": "ln RIR"}, "len": side, "lenmode": "pixels", "thickness": 16}
    return figure.update_layout(
        margin={"t": top, "b": BOTTOM, "l": 60, "r": 90},
        coloraxis={"colorscale": _SCALE, "cmin": -limit, "cmax": limit, "cmid": 0, "colorbar": bar},
    )


def _add_panel(figure: Any, cells: PairCells, *, row: int, col: int) -> None:
    """Add one method: grey cells and coloured cells, each with its text, and a cross in it where it fails."""
    gap = np.array(None)  # a NaN would make a widget's message invalid JSON
    digits = np.arange(DIGITS)
    finite = np.isfinite(cells.log_rir)
    words = np.full((DIGITS, DIGITS), "", dtype=object)
    for at in zip(*np.nonzero(cells.present), strict=True):
        words[at] = number_text(cells.log_rir[at]) + "<sup>✕</sup>" * bool(cells.failed[at])
    look = {"texttemplate": "%{text}", "textfont": {"size": 12}, "xgap": 1, "ygap": 1, "row": row, "col": col}
    figure.add_heatmap(
        z=np.where(cells.present & ~finite, 1.0, gap), zmin=0, zmax=1, showscale=False, text=words,
        colorscale=[[0, _ODD], [1, _ODD]], hoverinfo="skip", x=digits, y=digits, **look,
    )  # fmt: skip
    figure.add_heatmap(
        z=np.where(finite, cells.log_rir, gap), coloraxis="coloraxis", text=words, hovertext=cells.hover,
        customdata=np.stack(np.meshgrid(digits, digits, indexing="ij"), axis=-1),
        hovertemplate="%{hovertext}<extra></extra>", x=digits, y=digits, **look,
    )  # fmt: skip
