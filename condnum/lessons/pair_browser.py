"""Fig. 2 to click on: the heatmap of one method, beside the probes and the spectra of one pair of digits."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError
from condnum.figures.pairs import color_limit, measured_pairs, on_grid, pair_cells, panel_title
from condnum.figures.style import PURPLE, log_axis, method_style, num, option_text
from condnum.lessons.alignment_panels import DIVERGING
from condnum.lessons.frame.explorer import Choice, Explorer, ExplorerResult, with_controls
from condnum.lessons.frame.sheet import Sheet
from condnum.studies.frame.study import StudyRun
from condnum.studies.measure import extractor_cell, extractor_curves

#: How the RIR of the heatmap is measured.
MEASURE: dict[str, Any] = {"convention": "ridge", "theta_scale": "unit"}
#: What the panels show, on which axes; ratios below the floor are round-off of float64.
QUANTITIES = {"norm_ratio": ("norm ratio (Eq. 16)", "step t"), "spectrum": ("σ<sub>i</sub>(H)", "index i")}
_FLOOR = 1e-32
DIGITS = 10


@dataclass(frozen=True, eq=False)
class DigitPair(ExplorerResult):
    """All pairs of one method, and all methods on one pair."""

    title: str  # the method and its mean RIR
    name: str  # of the data
    cells: pd.DataFrame  # of this method, a row per pair
    limit: float  # of the colors, the same for all methods
    pretrain: int
    harmful: int
    rows: pd.DataFrame  # of the results, those of this method and pair
    curves: pd.DataFrame  # of `extractor_curves`

    def figure(self) -> Any:
        """Draw the heatmap, whose cells can be clicked, beside norm ratios and spectra on both tasks."""
        titles = f"D<sub>P</sub>: digit {self.pretrain}", f"D<sub>H</sub>: digit {self.harmful}", "", ""
        grid: dict[str, Any] = {"rows": 2, "cols": 3, "specs": [[{"rowspan": 2}, {}, {}], [None, {}, {}]]}
        grid |= {"column_widths": [0.4, 0.3, 0.3], "vertical_spacing": 0.24}
        sheet = Sheet("ln RIR; ✕ fails Definition 3.1", *titles, grid=grid)
        pairs, *panels = sheet.panels
        digits = np.arange(DIGITS)
        z, hover = on_grid(self.cells, digits, "log_rir", "hover")
        look: dict[str, Any] = {"type": "heatmap", "colorscale": DIVERGING, "text": hover}
        look |= {"zmin": -self.limit, "zmax": self.limit}
        look |= {"showlegend": None, "showscale": False, "hoverongaps": False}
        click = {"meta": {"click": {"pretrain": "y", "harmful": "x"}}}
        pairs.trace("ln RIR", digits, digits, z=z, hover="%{text}<extra></extra>", **look, **click)
        failed = self.cells[self.cells["failed"]]
        at = failed["harmful_digit"], failed["pretrain_digit"]
        pairs.marks("fails Definition 3.1", *at, "x", 7, "#000000", hoverinfo="skip", legend=False)
        chosen = {"marker": {"line": {"color": PURPLE, "width": 3}}, "legend": False, "hoverinfo": "skip"}
        pairs.marks("shown pair", [self.harmful], [self.pretrain], "square-open", 26, PURPLE, **chosen)
        square = {"dtick": 1, "showgrid": False, "zeroline": False, "constrain": "domain"}
        pairs.x("harmful digit", -0.5, DIGITS - 0.5, **square)
        pairs.y("pre-training digit", DIGITS - 0.5, -0.5, scaleanchor="x", **square)
        places = [(quantity, task) for quantity in QUANTITIES for task in ("pretrain", "harmful")]
        for panel, (quantity, task) in zip(panels, places, strict=True):
            shown = self.curves[(self.curves["quantity"] == quantity) & (self.curves["task"] == task)]
            for method, curve in shown[shown["x"] > 0].groupby("method", sort=False):
                label, color, dash = method_style(str(method))
                more = {"legendgroup": method, "legend": panel is panels[0], "hover": "%{x}: %{y:.3g}"}
                y = curve["value"].clip(lower=_FLOOR)
                panel.line(label, curve["x"], y, color, dash, width=2.2, **more)
            up, along = QUANTITIES[quantity]
            panel.x(**log_axis(along, shown["x"]) if quantity == "norm_ratio" else {"title_text": along})
            panel.y(**log_axis(up if task == "pretrain" else "", shown["value"].clip(lower=_FLOOR)))
        return sheet.finish(self.title.replace("<br>", ": "), self.name, height=560)

    def caption(self) -> str:
        """Describe the chosen cell."""
        if self.rows.empty:
            return "This method has no result for this pair."
        values, successes = ", ".join(map(num, self.rows["rir"])), (self.rows["success"] == 1).sum()
        pair = f"digit {self.pretrain} against digit {self.harmful}"
        return f"{pair}: RIR {values}; Definition 3.1 succeeds in {successes} of {len(self.rows)}"


def pair_browser(run: StudyRun) -> type[Explorer]:
    """Return the explorer of a run of `DigitPairs`; extractors of a chosen pair are computed again."""
    results, name = run.tables["results"], run.data.title()
    table = measured_pairs(results, **MEASURE)
    cells = pair_cells(table)
    known, limit, first = list(dict.fromkeys(cells["method"])), color_limit(cells), run.study.pairs[0]
    curves_of = cache(lambda pretrain, harmful: pair_curves(run, pretrain, harmful))
    one: Any = Literal[tuple(known)]
    digit: Any = Literal[tuple(range(DIGITS))]

    @with_controls(
        method=Choice(
            "method",
            "Method whose RIR the map shows.",
            {of: option_text(method_style(of).label) for of in known},
        ),
        pretrain=Choice("pre-training digit", "Or click a cell of the map."),
        harmful=Choice("harmful digit", "Or click a cell of the map."),
    )
    def compute(
        *, method: one = known[0], pretrain: digit = first[0], harmful: digit = first[1]
    ) -> DigitPair:
        key = {"method": method, "pretrain_digit": pretrain, "harmful_digit": harmful, **MEASURE}
        rows = results[(results[list(key)] == pd.Series(key)).all(axis=1)]
        title, own = panel_title(table, cells, method), cells[cells["method"] == method]
        return DigitPair(title, name, own, limit, pretrain, harmful, rows, curves_of(pretrain, harmful))

    doc = "RIR of all pairs of digits, and how probes converge on one of them."
    return type("PairBrowser", (Explorer,), {"__doc__": doc, "compute": staticmethod(compute)})


def pair_curves(run: StudyRun, pretrain: int, harmful: int) -> pd.DataFrame:
    """Compute norm ratios and spectra of one pair of a finished run: its methods and both controls."""
    study, digits = run.study, run.data
    if pretrain == harmful:
        raise InvalidInputError(f"a pair needs two different digits, got {pretrain} twice; choose another.")
    if (pretrain, harmful) not in study.pairs:
        raise InvalidInputError(f"this run lacks the pair ({pretrain}, {harmful}); choose another cell.")
    extractors = []
    for method in dict.fromkeys((*study.methods, "identity", "initial")):
        cell = study.cell(method, 0, (pretrain, harmful))
        problem = study.problem(digits, cell)
        extractors.append(extractor_cell(problem, study.immunize(digits, cell)))
    return extractor_curves(problem, extractors, probe_steps=2000)
