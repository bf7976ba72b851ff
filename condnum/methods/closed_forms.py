"""Methods in closed form, which need no seed: the largest RIR, the Pareto front, and erasure."""

import torch
from torch.nn.functional import pad

from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.erasure import erasure_of_task
from condnum.theory.limits import max_rir, pareto


class MaxRir:
    """θ = K_P^{-½}."""

    name = "max_rir"
    label = "Maximum RIR (K<sub>P</sub><sup>−1/2</sup>)"
    summary = (
        "closed form: RIR at the theoretical limit (compact) if K_P and K_H are invertible; one eigh per "
        "task, O(D³)"
    )
    seeded = False

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ, at unit scale."""
        return {"theta": max_rir(problem.benign)}


class Pareto:
    """The θ of the front with (ii) just below 1, see `pareto_immunizer`."""

    name = "pareto"
    label = "Pareto (closed form)"
    summary = (
        "closed form: meets Definition 3.1 in as many conventions as it can, then with the largest RIR; O(D³)"
    )
    seeded = False

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ, at unit scale."""
        return {"theta": pareto(problem.benign, problem.harmful, limit=problem.limit)}


class Erase:
    """Linear erasure of the harmful targets: the limit at which conditioning becomes a singular θ."""

    name = "erase"
    label = "Erasure"
    summary = (
        "closed form: no linear probe learns the harmful targets of its rows; RIR does not measure it; O(ND²)"
    )
    needs = ("harmful",)
    seeded = False

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ `(D, D)` of `erasure`, with columns of zeros for what the bottleneck does not pass."""
        task = problem.probes[1]
        assert task is not None  # see `needs`
        theta = erasure_of_task(task, strength=1.0, rank=None).extractor  # (D, r)
        return {"theta": pad(theta, (0, len(theta) - theta.shape[1]))}
