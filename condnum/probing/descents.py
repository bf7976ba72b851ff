"""The attackers that descend, also in other coordinates, through a stacked layer, or on θ itself.

On the squared loss the deterministic ones are recurrences in the eigenbasis; on the logistic loss a grid of
rates around 1/L descends side by side.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from condnum.arrays import FloatArray
from condnum.probing.attackers import (
    AttackBudget,
    Attacker,
    AttackProblem,
    AttackRun,
    Race,
    best,
    zero_weights,
)
from condnum.probing.objectives import ProbeSpace
from condnum.probing.recurrences import (
    TwoTerm,
    assumed_minima,
    gradient_descent,
    heavy_ball,
    multiplied,
    nesterov,
    predicted_steps,
    rate_steps,
    run_line_search,
    run_two_term,
)

#: Rates in units of 1/L, L the bound on the curvature: the logistic loss stays stable well beyond 2/L,
#: as its curvature falls while it fits.
_MULTIPLES = (0.3, 1.0, 1.9, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

#: Size of the head with which θ is fine-tuned where a head of zeros is a saddle point.
SMALL_HEAD = 0.01

#: Momentum on the logistic loss, beside the rates.
BETAS = (0.9, 0.99)


def descend_grid(
    space: ProbeSpace,
    race: Race,
    kind: type[torch.optim.Adam | torch.optim.SGD],
    options: Sequence[dict[str, Any]],
    first: FloatArray | None = None,
    head: FloatArray | None = None,
) -> None:
    """Descend on the full loss until the race ends, with an optimizer of torch and options of each candidate.

    With `first` the weights are `W = UV` from `U = first` and `V = head`, by default zero:
    `∇_U L = (∇_W L)Vᵀ`, `∇_V L = Uᵀ∇_W L`.
    """
    B, step = len(options), 0
    factors = [zero_weights(space, B)]
    if first is not None:
        head = np.zeros((first.shape[1], space.objective.outputs)) if head is None else head
        factors = [np.repeat(part[None], B, axis=0) for part in (first, head)]
    parameters = [[torch.from_numpy(factor[b]) for factor in factors] for b in range(B)]  # the same memory
    groups = [{"params": own, **chosen} for own, chosen in zip(parameters, options, strict=True)]
    optimizer = kind(groups, fused=True)
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            W = factors[0] if first is None else factors[0] @ factors[1]
            excess, G = space.objective.evaluate(W)
            excess = np.where(excess < 1e6, excess, np.nan)
            if not race.observe(step, excess, W.copy):
                return
            gradients = [G]
            if first is not None:
                U, V = factors
                gradients = [G @ V.transpose(0, 2, 1), U.transpose(0, 2, 1) @ G]
            for b, own in enumerate(parameters):
                for parameter, gradient in zip(own, gradients, strict=True):
                    parameter.grad = torch.from_numpy(np.ascontiguousarray(gradient[b]))
            optimizer.step()
            step += 1


@dataclass(frozen=True)
class Descent(Attacker):
    """A two-term recurrence on the squared loss, a grid of rates (and momenta) on the logistic loss."""

    name: str
    label: str
    summary: str
    recurrence: Callable[[FloatArray, float], TwoTerm]
    contraction: Callable[[float], float]  # of the error in one step by κ, with the textbook's parameters
    betas: tuple[float, ...] = (0.0,)
    lookahead: bool = False
    informed: bool = False
    coordinates: Callable[[ProbeSpace], ProbeSpace] = lambda space: space

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Change the coordinates."""
        return self.coordinates(problem.space)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with every candidate; on the squared loss with predictions of the number of steps."""
        space = self.space(problem)
        if space.kind == "classification":
            grid = [(multiple, beta) for beta in self.betas for multiple in _MULTIPLES]
            words = [f"rate {m:g}/L" + (f", β = {b:g}" if b else "") for m, b in grid]
            race = Race(space, words, budget)
            race.edges = [multiple in (_MULTIPLES[0], _MULTIPLES[-1]) for multiple, _ in grid]
            options = [
                {"lr": multiple / space.objective.smoothness, "momentum": beta, "nesterov": self.lookahead}
                for multiple, beta in grid
            ]
            descend_grid(space, race, torch.optim.SGD, options)
            return AttackRun(race.traces(), space)
        S = space.spectrum
        candidates = [self.recurrence(S.sigma, mu) for mu in assumed_minima(S.sigma)]
        race = Race(space, [c.choice for c in candidates], budget, dense=False)
        run_two_term(candidates, S, race, multiplied(space))
        traces, by_kappa, by_spectrum = race.traces(), {}, {}
        for epsilon in budget.epsilons:
            by_kappa[epsilon] = rate_steps(self.contraction(S.condition), epsilon)
            chosen, step = best(traces, epsilon)
            # Beyond the budget any candidate may turn out the best one.
            asked = [c for c in candidates if step is None or c.choice == chosen.choice]
            by_spectrum[epsilon] = min(predicted_steps(c, S.shares, epsilon) for c in asked)
        return AttackRun(traces, space, by_kappa, by_spectrum)


def gradient_contraction(kappa: float) -> float:
    """Return `(κ − 1)/(κ + 1)`, of gradient descent with the best constant step."""
    return (kappa - 1) / (kappa + 1)


GRADIENT_DESCENT = Descent(
    "gd",
    "Gradient descent",
    "constant step: 2/(σ₁ + μ) over a grid of μ down to σ_k; classification: a grid around 1/L",
    gradient_descent,
    gradient_contraction,
)
HEAVY_BALL = Descent(
    "momentum",
    "Momentum (heavy ball)",
    "Polyak's parameters over a grid of assumed κ; classification: β = 0.9, 0.99 × rates",
    heavy_ball,
    lambda kappa: gradient_contraction(math.sqrt(kappa)),  # asymptotic, without the transient
    BETAS,
)
NESTEROV = Descent(
    "nesterov",
    "Nesterov",
    "Lessard's parameters over a grid of assumed κ; classification: β = 0.9, 0.99 × rates",
    nesterov,
    lambda kappa: 1 - 2 / math.sqrt(3 * kappa + 1),
    BETAS,
    lookahead=True,
)
STANDARDIZED = replace(
    GRADIENT_DESCENT,
    name="standardize",
    label="Standardize + GD",
    summary="columns centered and scaled, an intercept, then gradient descent",
    informed=True,
    coordinates=lambda space: space.standardized,
)
WHITENED = replace(
    GRADIENT_DESCENT,
    name="whiten",
    label="Whiten + GD",
    summary="features times H^{-1/2} on their range, then gradient descent",
    informed=True,
    coordinates=lambda space: space.whitened,
)


class LineSearch(Attacker):
    """Steepest descent with exact line search: the attacker of the paper's Fig. 1."""

    name, label = "line_search", "Exact line search"
    summary = "steepest descent with the exact step, the attacker of Fig. 1; no hyper-parameters"
    kinds = ("regression",)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence, with Kantorovich's bound as the prediction from κ."""
        space = problem.space
        race = Race(space, ["exact step"], budget, dense=False)
        run_line_search(space.spectrum, race, multiplied(space))
        contraction = gradient_contraction(space.spectrum.condition)
        bound = {e: rate_steps(contraction, e) for e in budget.epsilons}
        return AttackRun(race.traces(), space, bound)


def half_decades(first: float, last: float) -> tuple[float, ...]:
    """Return learning rates from `10^first` to `10^last`, half a decade apart."""
    return tuple(10.0 ** (j / 2) for j in range(round(2 * first), round(2 * last) + 1))


def as_released(problem: AttackProblem, seed: int) -> tuple[ProbeSpace, None]:
    """Train the probe alone, on the features."""
    return problem.space, None


def stacked_layer(problem: AttackProblem, seed: int) -> tuple[ProbeSpace, FloatArray]:
    """Re-parametrize the probe as `W = UV`, from a random orthogonal U with 32 columns."""
    k = problem.space.features.shape[1]
    drawn = np.random.default_rng(seed).normal(size=(k, min(k, 32)))
    return problem.space, np.linalg.qr(drawn)[0]


@dataclass(frozen=True)
class AdamAttacker(Attacker):
    """Full-batch Adam over a grid of learning rates, for features of unit mean square."""

    name: str
    label: str
    summary: str
    rates: tuple[float, ...]
    #: The space of the attack and, where there are two layers, the start of the first.
    start: Callable[[AttackProblem, int], tuple[ProbeSpace, FloatArray | None]]

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the features, or what the attacker takes in their place."""
        return self.start(problem, 0)[0]

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with all rates side by side."""
        space, first = self.start(problem, budget.seed)
        race = Race(space, [f"rate {rate:.3g}" for rate in self.rates], budget, open_ended=True)
        head = None
        if first is not None and problem.space.nothing_left:  # with a zero head θ has no gradient either
            shape = first.shape[1], space.objective.outputs
            head = SMALL_HEAD * np.random.default_rng(budget.seed).normal(size=shape)
        descend_grid(space, race, torch.optim.Adam, [{"lr": rate} for rate in self.rates], first, head)
        return AttackRun(race.traces(), space)


ADAM = AdamAttacker(
    "adam",
    "Adam",
    "full batch, learning rates 1e-4 to 100, half a decade apart (features at unit mean square)",
    half_decades(-4, 2),
    as_released,
)
STACKED = AdamAttacker(
    "stacked",
    "Stacked linear layer",
    "W = UV with inner dimension 32, Adam on both, learning rates half a decade apart",
    half_decades(-4, 0),
    stacked_layer,
)
FINE_TUNING = AdamAttacker(
    "fine_tune",
    "Fine-tuning of θ",
    "θ and the probe together, Adam, learning rates half a decade apart",
    half_decades(-4, -1.5),
    lambda problem, seed: (problem.inputs, problem.theta),  # the optimum is that of the raw inputs
)


#: Rates of SGD in units of 1/L of the whole data.
_SGD_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

#: Measurements of the full loss in one pass over the data; later ones are 2 % of the steps apart.
MEASUREMENTS, SPACING = 10, 50


class StochasticDescent(Attacker):
    """Mini-batch SGD without replacement, over rates × (constant, 1/√epoch)."""

    name, label = "sgd", "Mini-batch SGD"
    summary = "batches in a new order each epoch, rates around 1/L, constant or falling as 1/√epoch"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Take one batch a step, at most `steps` of them and `dense_steps` passes over the data."""
        space = problem.space
        grid = [(m, falls) for falls in (False, True) for m in _SGD_MULTIPLES]
        words = [f"rate {m:g}/L, {'falling' if falls else 'constant'}" for m, falls in grid]
        race = Race(space, words, budget, dense=False)
        race.edges = [m in (_SGD_MULTIPLES[0], _SGD_MULTIPLES[-1]) for m, _ in grid]
        rates = np.array([m for m, _ in grid]) / space.objective.smoothness
        falling = np.array([falls for _, falls in grid])
        N = len(space.features)
        batches = max(1, N // budget.batch_size)
        generator = np.random.default_rng(budget.seed)
        race.last = min(race.last, batches * budget.dense_steps)
        W, step, epoch, due = zero_weights(space, len(grid)), 0, 0, 0
        every = max(1, batches // MEASUREMENTS)
        with np.errstate(over="ignore", invalid="ignore"):
            while True:
                epoch += 1
                eta = np.where(falling, rates / np.sqrt(epoch), rates)[:, None, None]
                for index in np.array_split(generator.permutation(N), batches):
                    if step >= due:
                        due = min(race.last, step + max(every, step // SPACING))
                        excess, _ = space.objective.evaluate(W)
                        excess = np.where(excess < 1e6, excess, np.nan)
                        W[np.isnan(excess)] = np.nan
                        if not race.observe(step, excess, W.copy):
                            return AttackRun(race.traces(), space, pass_share=1 / batches)
                    W -= eta * space.objective.batch_gradient(W, index)
                    step += 1
