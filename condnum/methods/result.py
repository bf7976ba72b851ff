"""What a run of a method leaves behind: θ, its history, and the verdict by Definition 3.1."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.errors import CondnumError
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import Settings
from condnum.probing.probe import ProbeSteps, seen_steps, slowdown_verdict
from condnum.theory.kappa import Immunization, Seen, both_conventions
from condnum.theory.limits import fraction_of_limit

StopReason = Literal["steps", "cancelled", "diverged", "closed_form"]


@dataclass(frozen=True, repr=False)
class ImmunizationResult:
    """An immunized extractor and how it was obtained; only `immunize` adds a verdict."""

    theta: Tensor  # (D, D_hid)
    omega: Tensor | None  # (D_hid, m) pre-training probe, None without supervised loss
    method: str
    seed: int
    settings: Settings | None  # what ran; None for controls and closed forms
    # One row per recorded step from θ₀ to the result, `(T,)` each: step, loss, r_well, r_ill, kappa_benign,
    # kappa_harmful and what the method adds; empty if unwanted.
    history: dict[str, NDArray[np.float64]]
    steps: int  # steps taken
    seconds: float
    converged: bool  # True only if the answer is in closed form
    stop_reason: StopReason
    part_weights: dict[str, float] = field(default_factory=dict)  # λ of each gradient part
    seen: Seen | None = None  # of both tasks through θ, which verdicts are read from
    verdict: Immunization | None = None  # of θ, compact convention; None where θ cannot be measured
    limit: float | None = None  # RIR_max beside it
    # Steps of the probes of the actual targets; None where there are none.
    benign_probe: ProbeSteps | None = None
    harmful_probe: ProbeSteps | None = None
    explanation: str = ""  # whether Definition 3.1 is met, what is possible, what was chosen and why

    def __repr__(self) -> str:
        """Return at most eight lines: what was run, and whether Definition 3.1 is met."""
        shape = " × ".join(map(str, self.theta.shape))
        heading = f"{self.method}, seed {self.seed}: θ {shape}, {self.steps} steps ({self.stop_reason})"
        return "\n".join([heading, *textwrap.wrap(self.explanation, 100, max_lines=7)])


def with_verdict(problem: ImmunizationProblem, result: ImmunizationResult) -> ImmunizationResult:
    """Add the verdict by Definition 3.1, and say before and after how θ was found what it is worth."""
    if not bool(torch.isfinite(result.theta).all()):
        return replace(result, explanation="θ cannot be measured: it has NaN or infinite entries.")
    try:
        seen = result.seen or problem.seen(result.theta)
        benign, harmful = (None if of is None else seen_steps(of) for of in seen.probes)
        limit = problem.limit.value
        compact, ridge = both_conventions(seen)
    except CondnumError as error:
        return replace(result, explanation=f"θ cannot be measured: {error}")
    parts = (f"{of.verdict} in {place}" for of, place in ((compact, "the compact"), (ridge, "the ridge")))
    met = " convention and ".join(parts) + " convention"
    if compact.verdict == ridge.verdict:
        met = f"{compact.verdict} in both conventions"
    text = f"Definition 3.1 is {met}: {compact.ratios}, RIR = {compact.rir:.4g}"
    if math.isfinite(limit):
        text += f", {fraction_of_limit(compact.rir, limit):.1%} of the theoretical limit {limit:.4g}."
    else:
        text += "; no theoretical limit: the harmful task has directions of its own."
    if problem.harmful.rank == 1:
        text += " K_H has rank 1, so κ(H_H) = 1 for every θ and no extractor can meet clause (a)."
    elif limit <= 1 + 1e-6:
        text += " A theoretical limit of 1 means that no extractor can immunize this pair."
    text += (
        f" {slowdown_verdict(compact.success, benign, harmful) or compact.slowed}"
        f" κ(H_P) = {compact.benign_after.value:.4g}, κ(H_H) = {compact.harmful_after.value:.4g}."
        f"{result.explanation} Ridge convention (ε = 1e-6): {ridge.ratios}."
    )
    return replace(
        result,
        seen=seen,
        verdict=compact,
        limit=limit,
        benign_probe=benign,
        harmful_probe=harmful,
        explanation=text,
    )


@dataclass(frozen=True)
class Progress:
    """What a callback receives at each recorded or watched step."""

    method: str
    seed: int
    step: int
    steps: int
    record: dict[str, float]  # the history's row; empty at a step that is watched only
    theta: Tensor  # (D, D_hid) after so many steps; the run goes on with it: copy what is to be kept


#: Told of each recorded or watched step; returning True asks the run to stop there.
Callback = Callable[[Progress], bool | None]
