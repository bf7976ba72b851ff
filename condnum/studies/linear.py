"""The linear studies (Sec. 5.1): what house prices (Table 1) and pairs of digits (Table 2) share."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import pandas as pd

from condnum.arrays import resolve_device
from condnum.errors import InvalidInputError
from condnum.methods import (
    PRESETS,
    DescentSettings,
    ImmunizationResult,
    get_method,
    immunize,
)
from condnum.methods.descent import overridden
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.frame import Cell, Count, FinishedCell
from condnum.studies.measure import MEASURE_COLUMNS, measured_lines, report_step
from condnum.studies.method_study import MethodNames, MethodStudy


def _settings(preset: str, rate: float, steps: tuple[int, int], **record: int) -> dict[str, DescentSettings]:
    """Return the settings of the paper's methods; `steps` are those of `opt_kappa` and of the baselines."""
    options: list[dict[str, Any]] = [{"learning_rate": rate, "steps": count, **record} for count in steps]
    few, many = options
    return {
        "ours": PRESETS[preset],
        # Balanced, on the absolute floor of the released code: the plain difference of compact κ's, as
        # printed in the paper, is dominated by κ_H and stays near RIR 1.
        "opt_kappa": DescentSettings(**few, ratio=0.1, convention="ridge"),
        "imma": DescentSettings(**many),
        "r_ill_only": DescentSettings(**many),
    }


#: Settings by data set, one for all pairs and seeds; chosen on seeds 100–109 (reported: 0, 1, …).
SETTINGS = {
    "house-prices": _settings("house-prices", 0.005, (100, 1000)),
    "mnist": _settings("mnist", 1e-3, (30, 30), record_every=0),
    "digits": _settings("digits-8x8", 0.005, (100, 100), record_every=10),
}
SETTINGS["embedded"] = SETTINGS["house-prices"] | {"ours": PRESETS["diabetes"]}


def described(settings: Any, parts: Collection[str]) -> str:
    """Say in one line what has an effect; the gradient's parts decide what the weights weigh."""
    if not isinstance(settings, DescentSettings):
        return "—" if settings is None else str(settings)
    text = f"{settings.steps} steps of {settings.optimizer}"
    text += f", η = {settings.learning_rate:g} ({settings.schedule})"
    if settings.weights == "fixed" and {"well", "ill"} & set(parts):
        text += f", λ_P = {settings.lambda_benign:g}, λ_H = {settings.lambda_harmful:g}"
    elif settings.weights == "balanced" and len(parts) > 1:
        text += f", λ balanced with ratio {settings.ratio:g}"
    if "bilevel" in parts:
        text += f", {settings.inner_steps} inner step(s) of size {settings.inner_rate:g}"
    if "kappa_harmful" in parts:
        text += f", difference of {settings.convention} κ"
    return text + (f", loss weight {settings.loss_weight:g}" if "supervised" in parts else "")


class LinearStudy(MethodStudy):
    """Linear extractors, methods × seeds × pairs of tasks; a subclass says what the tasks are."""

    data: str  # a name, or the path of the files
    methods: MethodNames  # in display order
    seeds: Count  # seeds 0 … seeds − 1
    steps: Count | None  # full-batch steps of immunization; None: each method's own
    device: str
    sets: ClassVar[tuple[str, ...]] = ()  # data sets; a path is of the first

    def check(self) -> None:
        """Refuse another study's data, and a device that is not there."""
        if self.data in SETTINGS and self.data not in self.sets:
            raise InvalidInputError(
                f"data '{self.data}': {self.name} takes {', '.join(self.sets)} or a path."
            )
        resolve_device(self.device)

    @property
    def known(self) -> str:
        """Name of the data set."""
        return self.data if self.data in self.sets else self.sets[0]

    @property
    def source(self) -> str:
        """Where the files lie: at the path, or wherever the set is found."""
        return "auto" if self.data in self.sets else self.data

    def settings(self, method: str) -> Any:
        """Return a method's settings in this run; None for closed forms."""
        base = SETTINGS[self.known].get(method, getattr(get_method(method), "defaults", None))
        return base if base is None or self.steps is None else overridden(base, steps=self.steps)

    @property
    def settings_table(self) -> pd.DataFrame:
        """What each method does and how it is set."""
        rows = []
        for name in self.methods:
            method, settings = get_method(name), self.settings(name)
            chosen = described(settings, getattr(method, "parts", ()))
            rows.append((getattr(method, "label", name), getattr(method, "summary", ""), chosen))
        return pd.DataFrame(rows, columns=["method", "what it does", "settings"])

    def problem(self, data: Any, cell: Cell) -> ImmunizationProblem:
        """Return the two tasks of a cell, built once per process."""
        raise NotImplementedError

    def names(self, data: Any, cell: Cell) -> dict[str, str]:
        """Return data set and tasks of a cell, as tables have them."""
        raise NotImplementedError

    def cell(self, method: str, seed: int, **at: Any) -> Cell:
        """Return the cell of a method and a seed."""
        settings = self.settings(method)
        at = {"method": method, "seed": seed, **at, "device": str(resolve_device(self.device))}
        return Cell(at, asdict(settings) if settings else {})

    def runs(self) -> list[tuple[int, str]]:
        """List seeds and methods; a closed form that draws nothing has one seed."""
        return [
            (seed, method)
            for seed in range(self.seeds)
            for method in self.methods
            if not seed or getattr(get_method(method), "seeded", True)
        ]

    def immunize(self, data: Any, cell: Cell) -> ImmunizationResult:
        """Run the method of a cell; deterministic, so that a cell's θ can be had again without storing it."""
        options: dict[str, Any] = {"seed": cell["seed"], "callback": report_step, **cell.settings}
        return immunize(self.problem(data, cell), cell["method"], **options)

    def measured(self, data: Any, results: Sequence[FinishedCell], own: Sequence[str] = ()) -> pd.DataFrame:
        """Measure every cell in every convention and at every scale of θ; `own` columns are of the cells."""
        rows = [
            line | {name: row[name] for name in own}
            for cell, row, _ in results
            for line in measured_lines(row, self.names(data, cell))
        ]
        return pd.DataFrame(rows, columns=[*MEASURE_COLUMNS, *own])

    def processes(self, data: Any, cells: Sequence[Cell]) -> int:
        """Compute here where a GPU does."""
        return 1 if resolve_device(self.device).type == "cuda" else super().processes(data, cells)
