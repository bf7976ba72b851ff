"""Fig. 2 to click on: a heatmap of one method, and below it the details of the chosen pair of digits."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError, check_known, require
from condnum.figures.pair_detail import PairDetail, pair_detail_figures
from condnum.figures.pairs import check_pair_results, pair_heatmaps
from condnum.figures.style import method_style, num, option_text
from condnum.lessons.figure_view import FigureView, alarm, errors_shown, figure_output
from condnum.methods import uses_seed
from condnum.studies.measure import extractor_cell, extractor_curves
from condnum.studies.study import StudyRun

_ipywidgets = require("ipywidgets", "notebooks")
_traitlets = require("traitlets", "notebooks")
_VBox: Any = _ipywidgets.VBox

#: Width of the heatmap in pixels; the figures below follow the window.
HEATMAP_WIDTH = 640


class PairBrowser(_VBox):
    """Heatmap of one method; a click on a cell, or the dropdowns, show that pair's details below.

    The state is in the traits `method`, `pretrain` and `harmful`, to set and to observe. `detail` returns
    what to draw of (pre-training digit, harmful digit); its errors are shown in the line `status`.
    """

    method = _traitlets.Unicode(help="Whose heatmap is shown.")
    pretrain = _traitlets.Int(0, min=0, max=9, help="Pre-training digit of the shown pair.")
    harmful = _traitlets.Int(1, min=0, max=9, help="Harmful digit of the shown pair.")

    def __init__(
        self, results: pd.DataFrame, detail: Callable[[int, int], PairDetail], *, subtitle: str = ""
    ) -> None:
        self._results, self._detail, self._subtitle = check_pair_results(results), detail, subtitle
        self._measure: dict[str, Any] = {"convention": "ridge", "theta_scale": "unit"}  # of the coloured RIR
        self._methods = list(dict.fromkeys(self._results["method"]))
        self._drawn: tuple[int, int] | None = None
        first = self._results.iloc[0]
        start = {"pretrain": int(first["pretrain_digit"]), "harmful": int(first["harmful_digit"])}
        self.status = _ipywidgets.HTML()
        self.details = _ipywidgets.Output()
        self.heatmap = FigureView(self._heatmap(self._methods[0]))
        super().__init__(method=self._methods[0], **start)
        methods = [(option_text(method_style(name).label), name) for name in self._methods]
        self.choices = []
        for trait, text, options in (
            ("method", "method", methods),
            ("pretrain", "pre-training digit", range(10)),
            ("harmful", "harmful digit", range(10)),
        ):
            look = {"description": text, "style": {"description_width": "initial"}}
            dropdown = _ipywidgets.Dropdown(options=options, value=getattr(self, trait), **look)
            _traitlets.link((self, trait), (dropdown, "value"))
            self.choices.append(dropdown)
        self.children = [_ipywidgets.HBox(self.choices), self.heatmap, self.status, self.details]
        self.heatmap.on_click(self._on_click)
        self.observe(self._on_method, "method")
        self.observe(self._on_pair, ["pretrain", "harmful"])
        self._on_pair()

    @_traitlets.validate("method")
    def _known_method(self, proposal: Any) -> str:
        """Refuse a method that the table lacks."""
        check_known("method of the table", proposal["value"], self._methods)
        return str(proposal["value"])

    def _heatmap(self, method: str) -> Any:
        """Draw the heatmap of one method, in the colours that all methods share."""
        figure = pair_heatmaps(self._results, self._subtitle, methods=[method], **self._measure)
        return figure.update_layout(width=HEATMAP_WIDTH)

    def _on_click(self, _: int, digits: Sequence[int]) -> None:
        """Choose the clicked pair."""
        pretrain, harmful = (int(digit) for digit in digits)
        if pretrain != harmful:
            with self.hold_trait_notifications():
                self.pretrain, self.harmful = pretrain, harmful

    def _on_method(self, _: Any) -> None:
        """Draw the chosen method."""
        with errors_shown(f"no heatmap of {self.method}", self._alarm):
            self._mark()
            self._summarise()

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
        with errors_shown(
            f"no details of pre-training digit {pair[0]}, harmful digit {pair[1]}", self._alarm
        ):
            self._say("computing …")
            self.details.outputs = tuple(map(figure_output, pair_detail_figures(self._detail(*pair))))
            self._summarise()

    def _mark(self) -> None:
        """Draw the chosen method with a frame around the chosen cell."""
        corner = {"x0": self.harmful - 0.5, "y0": self.pretrain - 0.5}
        frame = corner | {"x1": self.harmful + 0.5, "y1": self.pretrain + 0.5}
        figure = self._heatmap(self.method)
        figure.add_shape(type="rect", line={"color": "#000000", "width": 3}, **frame)
        self.heatmap.draw(figure)

    def _summarise(self) -> None:
        """Describe the chosen cell in words."""
        key = {"method": self.method, "pretrain_digit": self.pretrain, "harmful_digit": self.harmful}
        key |= self._measure
        rows = self._results[(self._results[list(key)] == pd.Series(key)).all(axis=1)]
        values, successes = ", ".join(num(value) for value in rows["rir"]), (rows["success"] == 1).sum()
        found = f"RIR {values}; Definition 3.1 succeeds in {successes} of {len(rows)}"
        name = f"{method_style(self.method).label}, digit {self.pretrain} against digit {self.harmful}"
        self._say(f"{name}: {'no result' if rows.empty else found}")

    def _say(self, text: str) -> None:
        """Show a line of HTML below the heatmap."""
        self.status.value = f'<span role="status">{text}</span>'

    def _alarm(self, error: str, _: str) -> None:
        """Show an error there."""
        self.status.value = alarm(error)


def digit_pair_detail(
    run: StudyRun, pretrain: int, harmful: int, *, seed: int = 0, probe_steps: int = 2000
) -> PairDetail:
    """Compute the curves of one pair of a finished run of `DigitPairs`: its methods and both controls.

    Norm ratios, spectra and the mean images of both digits.
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
    extractors = []
    for method in dict.fromkeys((*study.methods, "identity", "initial")):
        cell = study.cell(method, seed if uses_seed(method) else 0, (pretrain, harmful))
        problem = study.problem(digits, cell)
        extractors.append(extractor_cell(problem, study.immunize(digits, cell)))
    curves = extractor_curves(problem, extractors, probe_steps=probe_steps)
    first, second = (
        np.asarray(digits.images[digits.labels == digit], dtype=np.float64).mean(axis=0)
        for digit in (pretrain, harmful)
    )
    return PairDetail(pretrain, harmful, curves, first, second, f"{digits.title()}, seed {seed}")
