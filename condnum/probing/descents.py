"""The attackers: they descend, change coordinates, stack a layer, fine-tune θ, or solve.

On the squared loss the deterministic ones are recurrences in the eigenbasis; on the logistic loss a grid of
rates around 1/L descends side by side.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import minimize

from condnum.probing.attackers import (
    AttackBudget,
    Attacker,
    AttackerBase,
    AttackProblem,
    AttackRun,
    Race,
    Trace,
    best,
    register_attacker,
    zero_weights,
)
from condnum.probing.objectives import Array, ProbeSpace
from condnum.probing.recurrences import (
    TwoTerm,
    assumed_minima,
    gradient_descent,
    heavy_ball,
    multiplied,
    nesterov,
    predicted_steps,
    rate_steps,
    run_conjugate_gradients,
    run_line_search,
    run_two_term,
)
from condnum.probing.tasks import Kind

#: Rates in units of 1/L, L the bound on the curvature: the logistic loss stays stable well beyond 2/L,
#: as its curvature falls while it fits.
MULTIPLES = (0.3, 1.0, 1.9, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

#: Momentum on the logistic loss, beside the rates.
BETAS = (0.9, 0.99)


class Momentum:
    """`v ← βv + g`, then `w ← w − η v`, or with `nesterov` `w ← w − η (g + βv)`: torch's SGD."""

    def __init__(self, rates: Array, betas: Array, *, nesterov: bool = False) -> None:
        self.rates, self.betas, self.nesterov = rates, betas, nesterov
        self._velocity: list[Array] = []

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Take one step of every candidate, in place."""
        if not self._velocity:
            self._velocity = [np.zeros_like(w) for w in parameters]
        for w, g, v in zip(parameters, gradients, self._velocity, strict=True):
            rate, beta = (values.reshape(-1, *(1,) * (w.ndim - 1)) for values in (self.rates, self.betas))
            v *= beta
            v += g
            w -= rate * (g + beta * v if self.nesterov else v)


class Adam:
    """Adam (Kingma and Ba 2015): torch's fused kernel, one rate a candidate, its default betas."""

    def __init__(self, rates: Array) -> None:
        self.rates = rates
        self._optimizer: torch.optim.Adam | None = None

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Take one step of every candidate, in place; the arrays must be the same at every call."""
        if self._optimizer is None:
            shared = [torch.from_numpy(w) for w in parameters]  # the caller's memory
            groups = [{"params": [w[b] for w in shared], "lr": float(r)} for b, r in enumerate(self.rates)]
            self._optimizer = torch.optim.Adam(groups, fused=True)
        moved = [torch.from_numpy(np.ascontiguousarray(g)) for g in gradients]
        for b, group in enumerate(self._optimizer.param_groups):
            for w, g in zip(group["params"], moved, strict=True):
                w.grad = g[b]
        self._optimizer.step()


def descend(space: ProbeSpace, rule: Momentum | Adam, race: Race, first: Array | None = None) -> None:
    """Descend on the full loss with a grid of candidates until the race ends.

    With `first` the weights are `W = UV` from `U = first`, `V = 0`: `∇_U L = (∇_W L)Vᵀ`, `∇_V L = Uᵀ∇_W L`.
    """
    B, step = len(race.choices), 0
    factors = [zero_weights(space, B)]
    if first is not None:
        factors = [np.repeat(first[None], B, axis=0), np.zeros((B, first.shape[1], space.objective.outputs))]
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            W = factors[0] if first is None else factors[0] @ factors[1]
            excess, G = space.objective.evaluate(W)
            excess = np.where(excess < 1e6, excess, np.nan)
            if not race.observe(step, excess, W.copy):
                return
            if first is None:
                rule.step(factors, [G])
            else:
                U, V = factors
                rule.step(factors, [G @ V.transpose(0, 2, 1), U.transpose(0, 2, 1) @ G])
            step += 1


@dataclass(frozen=True)
class Descent(AttackerBase):
    """A two-term recurrence on the squared loss, a grid of rates (and momenta) on the logistic loss."""

    name: str
    label: str
    summary: str
    recurrence: Callable[[Array, float], TwoTerm]
    contraction: Callable[[float], float]  # of the error in one step by κ, with the textbook's parameters
    betas: tuple[float, ...] = (0.0,)
    lookahead: bool = False
    informed: bool = False  # type: ignore[misc]  # of each, not of the class
    coordinates: Callable[[ProbeSpace], ProbeSpace] = lambda space: space

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with every candidate; on the squared loss with predictions of the number of steps."""
        space = self.coordinates(problem.space)
        if space.kind == "classification":
            grid = [(multiple, beta) for beta in self.betas for multiple in MULTIPLES]
            words = [f"rate {m:g}/L" + (f", β = {b:g}" if b else "") for m, b in grid]
            race = self.race(space, words, budget)
            race.edges = [multiple in (MULTIPLES[0], MULTIPLES[-1]) for multiple, _ in grid]
            rates, betas = np.array(grid).T
            descend(space, Momentum(rates / space.objective.smoothness, betas, nesterov=self.lookahead), race)
            return AttackRun(race.traces(), space)
        S = space.spectrum
        candidates = [self.recurrence(S.sigma, mu) for mu in assumed_minima(S.sigma)]
        race = self.race(space, [c.choice for c in candidates], budget, dense=False)
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
STANDARDISED = replace(
    GRADIENT_DESCENT,
    name="standardise",
    label="Standardise + GD",
    summary="columns centred and scaled, an intercept, then gradient descent",
    informed=True,
    coordinates=lambda space: space.standardised,
)
WHITENED = replace(
    GRADIENT_DESCENT,
    name="whiten",
    label="Whiten + GD",
    summary="features times H^{-1/2} on their range, then gradient descent",
    informed=True,
    coordinates=lambda space: space.whitened,
)


class LineSearch(AttackerBase):
    """Steepest descent with exact line search: the attacker of the paper's Fig. 1."""

    name, label = "line_search", "Exact line search"
    summary = "steepest descent with the exact step, the attacker of Fig. 1; nothing to choose"
    kinds: ClassVar[tuple[Kind, ...]] = ("regression",)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence, with Kantorovich's bound as the prediction from κ."""
        space = problem.space
        race = self.race(space, ["exact step"], budget, dense=False)
        run_line_search(space.spectrum, race, multiplied(space))
        contraction = gradient_contraction(space.spectrum.condition)
        bound = {e: rate_steps(contraction, e) for e in budget.epsilons}
        return AttackRun(race.traces(), space, bound)


def half_decades(first: float, last: float) -> tuple[float, ...]:
    """Return learning rates from `10^first` to `10^last`, half a decade apart."""
    return tuple(10.0 ** (j / 2) for j in range(round(2 * first), round(2 * last) + 1))


class AdamAttacker(AttackerBase):
    """Full-batch Adam over a grid of learning rates, for features of unit mean square."""

    name, label = "adam", "Adam"
    summary = "full batch, learning rates 1e-4 to 100, half a decade apart (features at unit mean square)"
    rates = half_decades(-4, 2)

    def start(self, problem: AttackProblem, budget: AttackBudget) -> tuple[ProbeSpace, Array | None]:
        """Return the space of the attack, and the first layer where there are two."""
        return problem.space, None

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with all rates side by side."""
        space, first = self.start(problem, budget)
        race = self.race(space, [f"rate {rate:.3g}" for rate in self.rates], budget, open_ended=True)
        descend(space, Adam(np.array(self.rates)), race, first)
        return AttackRun(race.traces(), space)


#: Columns of the stacked layer.
WIDTH = 32


class StackedLayer(AdamAttacker):
    """A linear layer stacked on the features: the probe re-parametrised as `W = UV`."""

    name, label = "stacked", "Stacked linear layer"
    summary = "W = UV with 32 columns between, Adam on both, learning rates half a decade apart"
    rates = half_decades(-4, 0)

    def start(self, problem: AttackProblem, budget: AttackBudget) -> tuple[ProbeSpace, Array]:
        """Begin at a random orthogonal U, and V = 0."""
        k = problem.space.features.shape[1]
        drawn = np.random.default_rng(budget.seed).normal(size=(k, min(k, WIDTH)))
        return problem.space, np.linalg.qr(drawn)[0]


class FineTuning(AdamAttacker):
    """Full fine-tuning: θ and the probe are trained together on the raw inputs."""

    name, label = "fine_tune", "Fine-tuning of θ"
    summary = "θ and the probe together, Adam, learning rates half a decade apart"
    rates = half_decades(-4, -1.5)

    def obstacle(self, problem: AttackProblem) -> str | None:
        """Return why it cannot run: without θ and raw inputs there is nothing to tune."""
        if problem.theta is None or problem.inputs is None:
            return "it needs a linear θ and the raw inputs; only features are known"
        return super().obstacle(problem)

    def start(self, problem: AttackProblem, budget: AttackBudget) -> tuple[ProbeSpace, Array]:
        """Begin at θ as released and a zero probe; the optimum is that of the raw inputs."""
        assert problem.inputs is not None  # see obstacle
        assert problem.theta is not None
        return problem.inputs, problem.theta


#: Rates of SGD in units of 1/L of the whole data.
SGD_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

#: Measurements of the full loss in one pass over the data; later ones are 2 % of the steps apart.
MEASUREMENTS, SPACING = 10, 50


class StochasticDescent(AttackerBase):
    """Mini-batch SGD without replacement, over rates × (constant, 1/√epoch)."""

    name, label = "sgd", "Mini-batch SGD"
    summary = "batches in a new order each epoch, rates around 1/L, constant or falling as 1/√epoch"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Take one batch a step, at most `steps` of them and `dense_steps` passes over the data."""
        space = problem.space
        grid = [(m, falls) for falls in (False, True) for m in SGD_MULTIPLES]
        words = [f"rate {m:g}/L, {'falling' if falls else 'constant'}" for m, falls in grid]
        race = self.race(space, words, budget, dense=False)
        race.edges = [m in (SGD_MULTIPLES[0], SGD_MULTIPLES[-1]) for m, _ in grid]
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


#: Pairs of vectors that L-BFGS keeps.
MEMORIES = (10, 50)


def scipy_trace(space: ProbeSpace, method: str, race: Race, options: dict[str, float]) -> Trace:
    """Minimise the relative excess loss with SciPy from zero weights; a step is an iteration."""
    objective = space.objective
    shape = zero_weights(space, 1).shape
    scale = objective.start_loss - objective.optimum
    count, passes = 0, [0.0]

    def function(flat: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        excess, gradient = objective.evaluate(flat.reshape(shape))
        return float(excess[0]), gradient.ravel() / scale

    def callback(intermediate_result: Any) -> None:
        x, value = intermediate_result.x, intermediate_result.fun
        passes.append(float(count))
        if not race.observe(len(passes) - 1, np.array([float(value)]), lambda: x.reshape(shape)):
            raise StopIteration

    start = np.zeros(shape)
    race.observe(0, np.array([1.0]), lambda: start)
    minimize(function, start.ravel(), jac=True, method=method, callback=callback, options=options)
    return replace(race.traces()[0], passes=np.array(passes))


class ConjugateGradients(AttackerBase):
    """Conjugate gradients; on the logistic loss the non-linear variant of Polak and Ribière."""

    name, label = "cg", "Conjugate gradients"
    summary = "linear CG; classification: SciPy's non-linear CG (a step may need several gradients)"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence, or SciPy's `CG`."""
        space = problem.space
        if space.kind == "classification":
            race = self.race(space, ["Polak–Ribière"], budget)
            options = {"gtol": 0.0, "maxiter": budget.dense_steps}
            return AttackRun([scipy_trace(space, "CG", race, options)], space)
        race = self.race(space, ["no parameters"], budget, dense=False)
        run_conjugate_gradients(space.spectrum, race, multiplied(space))
        contraction = gradient_contraction(math.sqrt(space.spectrum.condition))
        most = float(space.spectrum.rank)
        bound = {e: min(most, rate_steps(contraction, e, constant=4.0)) for e in budget.epsilons}
        return AttackRun(race.traces(), space, bound)


class LimitedMemoryBfgs(AttackerBase):
    """SciPy's L-BFGS-B without bounds."""

    name, label = "lbfgs", "L-BFGS"
    summary = "SciPy's L-BFGS-B with 10 and 50 pairs; a step is an iteration"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Minimise with each memory."""
        space, traces = problem.space, []
        for memory in MEMORIES:
            race = self.race(space, [f"{memory} pairs"], budget)
            options = {"maxcor": memory, "maxiter": budget.dense_steps, "ftol": 0.0, "gtol": 0.0}
            options["maxfun"] = 20 * budget.dense_steps
            traces.append(scipy_trace(space, "L-BFGS-B", race, options))
        return AttackRun(traces, space)


#: Ridge relative to σ₁ of FᵀF/N.
RIDGES = (1e-14, 1e-10, 1e-6)

#: scikit-learn's C, the inverse strength of the penalty on features at unit mean square.
PENALTIES = (1e2, 1e5)


class ClosedForm(AttackerBase):
    """Ridge regression by one decomposition, or logistic regression by Newton's method."""

    name, label, informed = "closed_form", "Closed form / Newton", True
    summary = "ridge from one SVD; classification: scikit-learn's newton-cholesky, to its own stopping rule"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Solve with each strength of the penalty."""
        space, started = problem.space, time.perf_counter()
        solved = self._ridge(space) if space.kind == "regression" else self._logistic(space)
        traces = []
        for choice, W, steps in solved:
            both, at = np.stack([np.zeros_like(W), W]), np.array([0, steps])
            excess, _ = space.objective.evaluate(both)
            traces.append(Trace(choice, at, excess, False, np.stack([at, *space.evaluate(both)], axis=1)))
        return AttackRun(traces, space, seconds=(time.perf_counter() - started) / len(traces))

    @staticmethod
    def _ridge(space: ProbeSpace) -> Iterator[tuple[str, Array, int]]:
        """Yield the solution of each ridge, all from one decomposition."""
        U, s, right = np.linalg.svd(space.features, full_matrices=False)
        projected = U.T @ space.regression_targets
        for ridge in RIDGES:
            W = right.T @ ((s / (s**2 + ridge * s[0] ** 2))[:, None] * projected)
            yield f"ridge {ridge:g}·σ₁", W, 1

    @staticmethod
    def _logistic(space: ProbeSpace) -> Iterator[tuple[str, Array, int]]:
        """Yield what Newton's method gives for each penalty, after as many steps as it took."""
        from sklearn.linear_model import LogisticRegression

        for C in PENALTIES:
            model = LogisticRegression(C=C, solver="newton-cholesky", fit_intercept=False, max_iter=100)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a singular Hessian falls back to L-BFGS; the loss tells
                model.fit(space.features, space.targets)
            yield f"C = {C:g}", model.coef_.T, int(np.max(model.n_iter_))


BUILT_IN: tuple[Attacker, ...] = (
    GRADIENT_DESCENT,
    LineSearch(),
    HEAVY_BALL,
    NESTEROV,
    StochasticDescent(),
    AdamAttacker(),
    ConjugateGradients(),
    LimitedMemoryBfgs(),
    StackedLayer(),
    FineTuning(),
    STANDARDISED,
    WHITENED,
    ClosedForm(),
)
for _attacker in BUILT_IN:
    register_attacker(_attacker)
