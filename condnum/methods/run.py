"""A run of a method on one problem or many: start, history, callback, why and when each stops, results."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from condnum.arrays import as_tensor
from condnum.errors import InvalidInputError
from condnum.methods.batch import ProblemBatch, measure
from condnum.methods.method import Memory, Method, few_threads
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.result import Callback, ImmunizationResult, Progress, StopReason
from condnum.methods.settings import DescentSettings


class Run:
    """What all runs share; by itself that of a closed form, whose start is its answer.

    A problem that stops keeps its θ, the others go on.
    """

    settings: Any  # `DescentSettings`; None for a closed form

    def __init__(
        self,
        problems: Sequence[ImmunizationProblem],
        method: Method,
        settings: DescentSettings | None,
        seeds: Sequence[int],
        *,
        device: torch.device | None = None,
        callback: Callback | None = None,
        callback_steps: Collection[int] = (),
    ) -> None:
        self.problems, self.method, self.settings, self.seeds = problems, method, settings, seeds
        self.device = problems[0].device if device is None else device
        self.callback = callback
        self.recorded = frozenset[int]() if settings is None else settings.recorded_steps
        self.told = self.recorded | frozenset(callback_steps)  # steps that the callback receives
        for problem in problems:
            if missing := ", ".join(method.missing(problem)):
                raise InvalidInputError(f"method '{method.name}' needs targets, but {missing} are missing.")
        drawn = [
            method.initial(problem, torch.Generator().manual_seed(seed))
            for problem, seed in zip(problems, seeds, strict=True)
        ]
        # A method of one's own may draw in float32, or answer with an array.
        self.parameters = {
            name: torch.stack(
                [as_tensor(one[name], f"{name} of method '{method.name}'", ndim=2) for one in drawn]
            ).to(self.device)
            for name in drawn[0]
        }
        self.batch = ProblemBatch.of(problems, self.device)
        self.step = 0
        self.reasons: list[StopReason] = ["closed_form"] * len(problems)
        self.steps = [0] * len(problems)
        self.active = torch.ones(len(problems), dtype=torch.bool, device=self.device)
        self.memory: Memory = {}
        self._rows: list[list[dict[str, float]]] = [[] for _ in problems]

    def loop(self) -> None:
        """Take the steps of a descent: none here."""

    def results(self) -> list[ImmunizationResult]:
        """Run, and return a result per problem."""
        started = time.perf_counter()
        with few_threads(self.problems[0]):
            self.loop()
            if self.settings is None or self.settings.record_every != 0:
                ends = enumerate(zip(self._rows, self.steps, strict=True))
                self._measure(
                    {index: end for index, (rows, end) in ends if not rows or rows[-1]["step"] != end}
                )
        omega, share = self.parameters.get("omega"), (time.perf_counter() - started) / len(self.problems)
        return [
            ImmunizationResult(
                theta=self.parameters["theta"][index],
                omega=None if omega is None else omega[index],
                method=self.method.name,
                seed=seed,
                settings=self.settings,
                history={name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {},
                steps=self.steps[index],
                seconds=share,
                converged=self.reasons[index] == "closed_form",
                stop_reason=self.reasons[index],
                **self.facts(index),
            )
            for index, (seed, rows) in enumerate(zip(self.seeds, self._rows, strict=True))
        ]

    def facts(self, index: int) -> dict[str, Any]:
        """Return what else a result tells of its run."""
        return {"explanation": self.method.remark}

    def stop(self, which: torch.Tensor, reason: StopReason) -> None:
        """Let problems stop where they are."""
        which = which & self.active
        for index in which.nonzero()[:, 0].tolist():
            self.reasons[index], self.steps[index] = reason, self.step
        self.active = self.active & ~which

    def record(self) -> None:
        """Append a row to the histories of the problems that still descend, and tell the callback."""
        active = self.active.nonzero()[:, 0].tolist()
        measured = self.step in self.recorded
        if measured:
            self._measure(dict.fromkeys(active, self.step))
        for index in active if self.callback else ():
            row, theta = self._rows[index][-1] if measured else {}, self.parameters["theta"][index]
            at = self.method.name, self.seeds[index], self.step, self.settings.steps
            if self.callback is not None and self.callback(Progress(*at, row, theta)) is True:
                self.stop(torch.arange(len(self.problems), device=self.device) == index, "cancelled")

    def measured(self) -> dict[str, list[float]]:
        """Return what histories record of each problem at its θ."""
        return measure(self.batch, self.parameters["theta"], self.parameters.get("omega"))

    def _measure(self, steps: dict[int, int]) -> None:
        """Append a row to the histories of some problems, each under its number of steps."""
        values = self.measured() if steps else {}
        for index, step in steps.items():
            self._rows[index].append({"step": float(step)} | {name: of[index] for name, of in values.items()})
