"""The attackers of the panel: those that descend, those that change coordinates, those that solve.

The deterministic ones are filters in the eigenbasis; the others descend with a grid of rates side by side.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import scipy.linalg
import torch
from scipy.optimize import minimize

from condnum.arrays import FloatArray
from condnum.errors import check_known
from condnum.probing import quadratic
from condnum.probing.race import (
    AttackBudget,
    Attacker,
    AttackProblem,
    AttackRun,
    Race,
    Trace,
    zero_weights,
)
from condnum.probing.space import ProbeSpace

#: Rates of SGD in units of 1/L, L the curvature of the whole data.
_SGD_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

#: An excess loss above this counts as diverged.
_DIVERGED = 1e6

#: Measurements of SGD's full loss in one pass over the data; later ones are 2 % of the steps apart.
_MEASUREMENTS, _SPACING = 10, 50

#: Size of the head with which θ is fine-tuned where a head of zeros is a saddle point.
_SMALL_HEAD = 0.01

#: Penalties of ridge regression, in units of the mean square of a feature.
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)

#: Pairs of vectors that L-BFGS keeps.
_MEMORIES = (10, 50)

#: Numbers of first coordinates that are tried without a tolerance, from 1 to all.
_COUNTS = 8


@torch.enable_grad()  # also under the caller's torch.no_grad()
def descend_grid(
    space: ProbeSpace,
    race: Race,
    kind: type[torch.optim.Adam | torch.optim.SGD],
    options: Sequence[dict[str, Any]],
    start: Sequence[FloatArray] | None = None,
) -> AttackRun:
    """Descend on the full loss until the race ends, with an optimizer of torch and options of each candidate.

    With `start`, the weights are the product `W = UV` of two trained layers.
    """
    layers = [zero_weights(space, 1)[0]] if start is None else start
    groups = [{"params": [torch.tensor(of, requires_grad=True) for of in layers], **own} for own in options]
    optimizer, step = kind(groups, fused=True), 0  # one pass over the weights
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            weights = torch.stack([reduce(torch.matmul, group["params"]) for group in groups])
            W = weights.detach().numpy()
            excess, gradient = space.evaluate(W)
            if not race.observe(step, np.where(excess < _DIVERGED, excess, np.nan), W.copy):
                return AttackRun(race.traces(), space)
            optimizer.zero_grad()
            weights.backward(torch.from_numpy(np.ascontiguousarray(gradient)))
            optimizer.step()
            step += 1


def _ends(values: Sequence[float], repeats: int = 1) -> set[int]:
    """Return where the first and the last value stand in so many repetitions of a grid."""
    n = len(values)
    return {place for i in range(repeats) for place in (i * n, (i + 1) * n - 1)}


@dataclass(frozen=True)
class Descent(Attacker):
    """A two-term recurrence over a grid of assumed κ."""

    name: str
    label: str
    recurrence: Callable[[FloatArray, float], quadratic.TwoTerm]
    contraction: Callable[[float], float]  # of the error in one step by κ, with the textbook's parameters
    needs: str = ""
    coordinates: Callable[[ProbeSpace], ProbeSpace] = lambda space: space

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Change the coordinates."""
        return self.coordinates(problem.space)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with every candidate, beside the steps that κ predicts."""
        space = self.space(problem)
        modes = space.spectrum.modes
        candidates = [self.recurrence(modes.sigma, mu) for mu in quadratic.assumed_minima(modes.sigma)]
        race = Race(space, [c.choice for c in candidates], budget, last=budget.steps)
        traces = race.follow(space, quadratic.two_term_filters(candidates))
        contraction = self.contraction(modes.condition)
        return AttackRun(traces, space, {e: quadratic.rate_steps(contraction, e) for e in budget.epsilons})


GRADIENT_DESCENT = Descent(
    "gd", "Gradient descent", quadratic.gradient_descent, quadratic.descent_contraction
)
HEAVY_BALL = Descent(
    "momentum",
    "Momentum (heavy ball)",
    quadratic.heavy_ball,
    lambda kappa: quadratic.descent_contraction(math.sqrt(kappa)),  # asymptotic, without the transient
)
NESTEROV = Descent(
    "nesterov",
    "Nesterov",
    quadratic.nesterov,
    lambda kappa: 1 - 2 / math.sqrt(3 * kappa + 1),
)
STANDARDIZED = replace(
    GRADIENT_DESCENT,
    name="standardize",
    label="Standardize + GD",
    needs="rows",
    coordinates=lambda space: space.standardized,
)
WHITENED = replace(
    GRADIENT_DESCENT, name="whiten", label="Whiten + GD", coordinates=lambda space: space.whitened
)


class LineSearch(Attacker):
    """Steepest descent with exact line search, the attacker of Fig. 1; Kantorovich's bound predicts it."""

    name, label = "line_search", "Exact line search"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence."""
        space, modes = problem.space, problem.space.spectrum.modes
        race = Race(space, ["exact step"], budget, last=budget.steps)
        search = quadratic.line_search_filters(modes.sigma[None], modes.energy[None])
        traces = race.follow(space, (q for q, _ in search))
        contraction = quadratic.descent_contraction(modes.condition)
        return AttackRun(traces, space, {e: quadratic.rate_steps(contraction, e) for e in budget.epsilons})


class StochasticDescent(Attacker):
    """Mini-batch SGD without replacement, over rates × (constant, 1/√epoch)."""

    name, label, needs = "sgd", "Mini-batch SGD", "rows"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Take one batch a step, at most `steps` of them and `dense_steps` passes over the data."""
        space = problem.space
        N = len(space.features)
        batches = max(1, N // budget.batch_size)
        last = min(budget.steps, batches * budget.dense_steps)
        grid = [(m, falls) for falls in (False, True) for m in _SGD_MULTIPLES]
        words = [f"rate {m:g}/L, {'falling' if falls else 'constant'}" for m, falls in grid]
        race = Race(space, words, budget, last=last, edges=_ends(_SGD_MULTIPLES, 2))
        rates = np.array([m for m, _ in grid]) / space.smoothness
        falling = np.array([falls for _, falls in grid])
        generator = np.random.default_rng(budget.seed)
        W, step, epoch, due = zero_weights(space, len(grid)), 0, 0, 0
        every = max(1, batches // _MEASUREMENTS)
        with np.errstate(over="ignore", invalid="ignore"):
            while True:
                epoch += 1
                eta = np.where(falling, rates / np.sqrt(epoch), rates)[:, None, None]
                for index in np.array_split(generator.permutation(N), batches):
                    if step >= due:
                        due = min(last, step + max(every, step // _SPACING))
                        excess = space.evaluate(W)[0]
                        excess[~(excess < _DIVERGED)] = np.nan
                        if not race.observe(step, excess, W.copy):
                            return AttackRun(race.traces(), space, batch_fraction=1 / batches)
                    W -= eta * space.batch_gradient(W, index)
                    step += 1


def _half_decades(first: float, last: float) -> tuple[float, ...]:
    """Return learning rates from `10^first` to `10^last`, half a decade apart."""
    return tuple(10.0 ** (j / 2) for j in range(round(2 * first), round(2 * last) + 1))


class AdamAttacker(Attacker):
    """Full-batch Adam over a grid of learning rates, for features of unit mean square."""

    name, label, rates = "adam", "Adam", _half_decades(-4, 2)

    def layers(self, problem: AttackProblem, seed: int) -> list[FloatArray] | None:
        """Return where two layers start; None: the probe alone is trained."""
        return None

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with all rates side by side."""
        space = self.space(problem)
        race = Race(space, [f"rate {rate:.3g}" for rate in self.rates], budget, edges=_ends(self.rates))
        start = self.layers(problem, budget.seed)
        return descend_grid(space, race, torch.optim.Adam, [{"lr": rate} for rate in self.rates], start)


class StackedLayer(AdamAttacker):
    """Re-parametrizes the probe as `W = UV`, from a random orthogonal U with at most 32 columns and V = 0."""

    name, label, rates = "stacked", "Stacked linear layer", _half_decades(-4, 0)

    def layers(self, problem: AttackProblem, seed: int) -> list[FloatArray]:
        """Draw U."""
        k = problem.space.features.shape[1]
        U = np.linalg.qr(np.random.default_rng(seed).normal(size=(k, min(k, 32))))[0]
        return [U, np.zeros((U.shape[1], problem.space.outputs))]


class FineTuning(AdamAttacker):
    """Trains θ and the probe together; the optimum is that of the raw inputs."""

    name, label, rates, needs = "fine_tune", "Fine-tuning of θ", _half_decades(-4, -1.5), "theta"

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the inputs of θ."""
        return problem.inputs

    def layers(self, problem: AttackProblem, seed: int) -> list[FloatArray]:
        """Return θ and a head: of zeros, or small where a zero head has no gradient for θ either."""
        assert problem.theta is not None
        head = np.zeros((problem.theta.shape[1], problem.inputs.outputs))
        if problem.space.nothing_to_learn:
            head = _SMALL_HEAD * np.random.default_rng(seed).normal(size=head.shape)
        return [problem.theta, head]


def _lbfgs(space: ProbeSpace, race: Race, options: dict[str, float]) -> Trace:
    """Minimize the relative excess loss with SciPy from zero weights; a step is an iteration."""
    start, scale, passes, count = zero_weights(space, 1), space.start_loss - space.optimum, [0.0], 0

    def function(flat: FloatArray) -> tuple[float, FloatArray]:
        nonlocal count
        count += 1
        excess, gradient = space.evaluate(flat.reshape(start.shape))
        return float(excess[0]), gradient.ravel() / scale

    def callback(intermediate_result: Any) -> None:
        x, value = intermediate_result.x, intermediate_result.fun
        passes.append(float(count))
        if not race.observe(len(passes) - 1, np.array([float(value)]), lambda: x.reshape(start.shape)):
            raise StopIteration

    race.observe(0, np.array([1.0]), lambda: start)
    minimize(function, start.ravel(), jac=True, method="L-BFGS-B", callback=callback, options=options)
    return replace(race.traces()[0], passes=np.array(passes))


class ConjugateGradients(Attacker):
    """Conjugate gradients."""

    name, label = "cg", "Conjugate gradients"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence."""
        space, modes = problem.space, problem.space.spectrum.modes
        race = Race(space, ["no parameters"], budget, last=budget.steps)
        traces = race.follow(space, quadratic.conjugate_gradient_filters(modes))
        contraction = quadratic.descent_contraction(math.sqrt(modes.condition))
        bound = {e: quadratic.rate_steps(contraction, e, constant=4.0) for e in budget.epsilons}
        return AttackRun(traces, space, {e: min(float(len(modes.sigma)), t) for e, t in bound.items()})


class LimitedMemoryBfgs(Attacker):
    """SciPy's L-BFGS-B without bounds; a step is an iteration."""

    name, label = "lbfgs", "L-BFGS"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Minimize with each memory."""
        space, most = problem.space, budget.dense_steps
        options = {"maxiter": most, "maxfun": 20 * most, "ftol": 0.0, "gtol": 0.0}
        traces = [
            _lbfgs(space, Race(space, [f"{m} pairs"], budget), options | {"maxcor": m}) for m in _MEMORIES
        ]
        return AttackRun(traces, space)


#: What solves: its name and weights.
_Solutions = Iterator[tuple[str, FloatArray]]


def _solved(space: ProbeSpace, solutions: _Solutions, budget: AttackBudget) -> AttackRun:
    """Return what each solution reaches in one step."""
    traces = []
    for choice, W in solutions:
        race = Race(space, [choice], budget)
        race.observe(0, np.ones(1), zero_weights(space, 1).copy)
        race.observe(1, space.evaluate(W[None])[0], W[None].copy)
        traces += race.traces()
    return AttackRun(traces, space)


class DirectSolution(Attacker):
    """Least squares in closed form, and ridge regression."""

    name, label = "closed_form", "Closed form"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Solve."""
        return _solved(problem.space, _least_squares(problem.space), budget)


class Unfiltered(Attacker):
    """Solves in the coordinates of every singular value, without a tolerance, and of the first few.

    Where θ has lost rank up to round-off, the last coordinates hold what round-off keeps of the features.
    """

    name, label, needs = "unfiltered", "Whiten by every singular value", "rows"

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return these coordinates."""
        return problem.space.unfiltered

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Solve with every count of coordinates."""
        space = self.space(problem)
        return _solved(space, _first_coordinates(space), budget)


def _first_coordinates(space: ProbeSpace) -> _Solutions:
    """Yield weights of all coordinates, and of the first."""
    full = min(space.features.shape)
    Q, R = np.linalg.qr(space.features[:, :full])
    fitted = Q.T @ space.targets
    for count in sorted({full, *np.geomspace(2, full, _COUNTS).astype(int).tolist()}, reverse=True):
        W = zero_weights(space, 1)[0]
        W[:count] = scipy.linalg.lstsq(R[:count, :count], fitted[:count])[0]
        yield f"{count} coordinates", W


def _least_squares(space: ProbeSpace) -> _Solutions:
    """Yield the solutions of both libraries, and ridge regressions, which fit others better."""
    solution, *_ = np.linalg.lstsq(space.features, space.targets, rcond=None)
    yield "least squares", np.asarray(solution, dtype=np.float64)
    solution, *_ = scipy.linalg.lstsq(space.features, space.targets)  # its tolerance is smaller
    yield "least squares (SciPy)", np.asarray(solution, dtype=np.float64)
    S = space.spectrum
    fitted = S.left.T @ space.targets / math.sqrt(len(S.left))
    for penalty in _RIDGES:
        yield f"ridge {penalty:g}", S.right @ (fitted * (S.sigma**0.5 / (S.sigma + penalty))[:, None])


_ATTACKERS: dict[str, Attacker] = {attacker.name: attacker for attacker in (
    GRADIENT_DESCENT, LineSearch(), HEAVY_BALL, NESTEROV, StochasticDescent(), AdamAttacker(),
    ConjugateGradients(), LimitedMemoryBfgs(), StackedLayer(), FineTuning(), STANDARDIZED, WHITENED,
    DirectSolution(), Unfiltered(),
)}  # fmt: skip


def attacker_names() -> list[str]:
    """Return the names of all attackers, in display order."""
    return list(_ATTACKERS)


def get_attacker(attacker: str | Attacker) -> Attacker:
    """Return an attacker by its name; one of your own is returned as it is."""
    if isinstance(attacker, Attacker):
        return attacker
    check_known("attacker", attacker, _ATTACKERS)
    return _ATTACKERS[attacker]
