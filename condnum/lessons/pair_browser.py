"""Fig. 2 to click on: a heatmap of one method, and below it the details of the chosen pair of digits."""

from __future__ import annotations

import html
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from condnum.errors import CondnumError, InvalidInputError, UnknownNameError, require
from condnum.figures.pair_detail import PairDetail, pair_detail_figures
from condnum.figures.pairs import DIGITS, check_pair_results, color_limit, comparable, pair_heatmaps
from condnum.figures.style import method_style, num
from condnum.lessons.figure_view import figure_output, figure_widget, plain_label, redraw
from condnum.methods import uses_seed
from condnum.studies.digit_cells import cell_problem
from condnum.studies.measure import Extractor, curves_table
from condnum.studies.study import StudyRun

ipywidgets = require("ipywidgets", "notebooks")
traitlets = require("traitlets", "notebooks")
VBox: Any = ipywidgets.VBox

#: Width of the heatmap in pixels; the figures below follow the window.
HEATMAP_WIDTH = 640


class PairBrowser(VBox):
    """Heatmap of one method; a click on a cell, or the dropdowns, show that pair's details below.

    The state is in the traits `method`, `pretrain` and `harmful`, to set and to observe. An error of
    `detail` is shown in the line `status`, because Jupyter hides what a callback raises in a log.
    Without anywidget the heatmap cannot be clicked and the dropdowns do everything.

    Args:
        results: As for `pair_heatmaps`.
        detail: Called with (pre-training digit, harmful digit); returns what to draw of the pair.
        subtitle: The data set, below the heatmap's title.
        convention: Of the coloured RIR, as for `pair_heatmaps`.
        gauge: Likewise.

    Raises:
        InvalidInputError: The table is malformed.
        MissingExtraError: The extra `notebooks` is not installed (on import).
    """

    method = traitlets.Unicode(help="Whose heatmap is shown.")
    pretrain = traitlets.Int(0, min=0, max=DIGITS - 1, help="Pre-training digit of the shown pair.")
    harmful = traitlets.Int(1, min=0, max=DIGITS - 1, help="Harmful digit of the shown pair.")

    def __init__(
        self,
        results: pd.DataFrame,
        detail: Callable[[int, int], PairDetail],
        *,
        subtitle: str = "",
        convention: str = "ridge",
        gauge: str = "unit",
    ) -> None:
        self._results = check_pair_results(results)
        self._detail = detail
        self._subtitle, self._measure = subtitle, {"convention": convention, "gauge": gauge}
        self._methods = list(dict.fromkeys(self._results["method"]))
        self._limit = color_limit(self._results, comparable(self._methods), **self._measure)
        self._drawn: tuple[int, int] | None = None
        first = self._results.iloc[0]
        start = {"pretrain": int(first["pretrain_digit"]), "harmful": int(first["harmful_digit"])}
        self.status = ipywidgets.HTML()
        self.details = ipywidgets.Output()
        self.heatmap = figure_widget(self._heatmap(self._methods[0]))
        super().__init__(method=self._methods[0], **start)
        self.choices = self._dropdowns()
        self.children = [ipywidgets.HBox(self.choices), self.heatmap, self.status, self.details]
        if not isinstance(self.heatmap, ipywidgets.Output):
            self.heatmap.data[1].on_click(self._on_click)
        self.observe(self._on_method, "method")
        self.observe(self._on_pair, ["pretrain", "harmful"])
        self._mark()
        self._on_pair()

    @traitlets.validate("method")
    def _known_method(self, proposal: Any) -> str:
        """Refuse a method that the table lacks."""
        if proposal["value"] not in self._methods:
            raise UnknownNameError("method of the table", proposal["value"], self._methods)
        return str(proposal["value"])

    def _dropdowns(self) -> list[Any]:
        """Return the three dropdowns, linked to the traits."""
        wide = {"style": {"description_width": "initial"}}
        # A select cannot render HTML: the label's tags are dropped.
        labels = [(plain_label(method_style(name).label), name) for name in self._methods]
        chosen = [ipywidgets.Dropdown(options=labels, description="method", value=self.method, **wide)]
        for name, text in (("pretrain", "pre-training digit"), ("harmful", "harmful digit")):
            value = getattr(self, name)
            chosen.append(ipywidgets.Dropdown(options=range(DIGITS), description=text, value=value, **wide))
        for name, dropdown in zip(("method", "pretrain", "harmful"), chosen, strict=True):
            traitlets.link((self, name), (dropdown, "value"))
        return chosen

    def _heatmap(self, method: str) -> Any:
        """Draw the heatmap of one method, in the colours that all methods share."""
        figure = pair_heatmaps(
            self._results, self._subtitle, methods=[method], limit=self._limit, **self._measure
        )
        return figure.update_layout(width=HEATMAP_WIDTH)

    def _on_click(self, trace: Any, points: Any, _: Any) -> None:
        """Choose the clicked pair."""
        with self._visible_errors("no pair could be chosen"):
            if not points.point_inds:
                return
            row, column = points.point_inds[0]
            pretrain, harmful = (int(digit) for digit in trace.customdata[row][column])
            if pretrain == harmful:
                return
            with self.hold_trait_notifications():
                self.pretrain, self.harmful = pretrain, harmful

    def _on_method(self, _: Any = None) -> None:
        """Draw the chosen method."""
        with self._visible_errors(f"no heatmap of {self.method}"):
            redraw(self.heatmap, self._heatmap(self.method))
            self._mark()
            self._say(self._summary())

    def _on_pair(self, _: Any = None) -> None:
        """Show the chosen pair; a change of both digits at once is drawn once."""
        pair = (self.pretrain, self.harmful)
        if pair == self._drawn:
            return
        self._drawn = pair
        self._mark()
        self.details.outputs = ()
        if self.pretrain == self.harmful:
            self._say("Choose two different digits.")
            return
        with self._visible_errors(f"no details of pre-training digit {pair[0]}, harmful digit {pair[1]}"):
            self._say("computing …")
            self.details.outputs = tuple(
                figure_output(figure) for figure in pair_detail_figures(self._detail(*pair))
            )
            self._say(self._summary())

    def _mark(self) -> None:
        """Frame the chosen cell; an `Output` holds a picture of the heatmap that stays as it is."""
        if isinstance(self.heatmap, ipywidgets.Output):
            return
        corner = {"x0": self.harmful - 0.5, "y0": self.pretrain - 0.5}
        frame = corner | {"x1": self.harmful + 0.5, "y1": self.pretrain + 0.5}
        self.heatmap.layout.shapes = [{"type": "rect", "line": {"color": "#000000", "width": 3}} | frame]

    def _summary(self) -> str:
        """Describe the chosen cell in words."""
        key = {"method": self.method, "pretrain_digit": self.pretrain, "harmful_digit": self.harmful}
        key |= self._measure
        rows = self._results[(self._results[list(key)] == pd.Series(key)).all(axis=1)]
        name = f"{method_style(self.method).label}, digit {self.pretrain} against digit {self.harmful}"
        if rows.empty:
            return f"{name}: no result"
        values = ", ".join(num(value) for value in rows["rir"])
        successes = (rows["success"] == 1).sum()
        return f"{name}: RIR {values}; Definition 3.1 succeeds in {successes} of {len(rows)}"

    def _say(self, text: str, *, error: bool = False) -> None:
        """Show a line of HTML below the heatmap."""
        style = "color:#B00020;font-weight:bold" if error else ""
        self.status.value = f'<span role="{"alert" if error else "status"}" style="{style}">{text}</span>'

    @contextmanager
    def _visible_errors(self, what: str) -> Generator[None]:
        """Turn an exception into a red line; nothing else would show it."""
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, CondnumError) else f"{type(error).__name__}: "
            self._say(html.escape(f"{what}: {kind}{error}"), error=True)


def digit_pair_detail(
    run: StudyRun, pretrain: int, harmful: int, *, seed: int = 0, probe_steps: int = 2000
) -> PairDetail:
    """Compute the curves of one pair: the run's methods and both controls.

    Args:
        run: A finished run of `DigitPairs`.
        pretrain: Pre-training digit.
        harmful: Harmful digit.
        seed: Which of the run's seeds.
        probe_steps: Steps of exact line search.

    Returns:
        Norm ratios, spectra and the mean images of both digits.

    Raises:
        InvalidInputError: The run has no such pair.
    """
    study, digits = run.study, run.data
    if pretrain == harmful:
        raise InvalidInputError(
            f"a pair has two different digits, got {pretrain} twice; choose another cell."
        )
    if (pretrain, harmful) not in study.chosen_pairs or seed >= study.seeds:
        raise InvalidInputError(
            f"this run has no pair ({pretrain}, {harmful}) with seed {seed}; it was limited to other pairs."
        )
    cells = []
    for method in dict.fromkeys((*study.methods, "identity", "initial")):
        cell = study.cell(method, seed if uses_seed(method) else 0, (pretrain, harmful))
        problem = cell_problem(digits, cell, cell["device"])
        cells.append(Extractor.of(study.immunize(digits, cell)))
    means = [
        np.asarray(digits.images[digits.labels == digit], dtype=np.float64).mean(axis=0)
        for digit in (pretrain, harmful)
    ]
    return PairDetail(
        pretrain,
        harmful,
        curves_table(problem, cells, probe_steps=probe_steps),
        means[0],
        means[1],
        f"{digits.title()}, seed {seed}",
    )
