"""The attackers: they descend, change coordinates, stack a layer, fine-tune θ, or solve.

On the squared loss the deterministic ones are recurrences in the eigenbasis; on the logistic loss a grid of
rates around 1/L descends side by side.
"""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

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


def _column(values: Array, like: Array) -> Array:
    """Return one value a candidate, shaped to multiply an array `(B, …)`."""
    return values.reshape(-1, *(1,) * (like.ndim - 1))


class Momentum:
    """`v ← βv + g`, then `w ← w − η v`, or with `nesterov` `w ← w − η (g + βv)`: torch's SGD.

    Examples:
        >>> w = np.ones((1, 2))
        >>> Momentum(np.array([0.5]), np.array([0.0])).step([w], [np.ones((1, 2))])
        >>> w
        array([[0.5, 0.5]])
    """

    def __init__(self, rates: Array, betas: Array, *, nesterov: bool = False) -> None:
        self.rates, self.betas, self.nesterov = rates, betas, nesterov
        self._velocity: list[Array] = []

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Take one step of every candidate, in place."""
        if not self._velocity:
            self._velocity = [np.zeros_like(w) for w in parameters]
        for w, g, v in zip(parameters, gradients, self._velocity, strict=True):
            beta = _column(self.betas, w)
            v *= beta
            v += g
            w -= _column(self.rates, w) * (g + beta * v if self.nesterov else v)


class Adam:
    """Adam (Kingma and Ba 2015): torch's fused kernel, one rate a candidate, its default betas.

    Examples:
        The first step has the size of the rate, whatever the gradient.

        >>> w = np.zeros((1, 1))
        >>> Adam(np.array([0.1])).step([w], [np.full((1, 1), 7.0)])
        >>> round(float(w[0, 0]), 6)
        -0.1
    """

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


def descend(space: ProbeSpace, rule: Momentum | Adam, race: Race) -> None:
    """Descend on the full loss with a grid of candidates until the race ends."""
    W, step = zero_weights(space, len(race.choices)), 0
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            excess, G = space.objective.evaluate(W)
            excess = np.where(excess < 1e6, excess, np.nan)
            if not race.observe(step, excess, W.copy):
                return
            rule.step([W], [G])
            step += 1


class _Descent(AttackerBase, ABC):
    """A two-term recurrence on the squared loss, a grid of rates (and momenta) on the logistic loss."""

    recurrence: ClassVar[Callable[[Array, float], TwoTerm]]
    betas: ClassVar[tuple[float, ...]] = (0.0,)
    lookahead: ClassVar[bool] = False

    @abstractmethod
    def contraction(self, kappa: float) -> float:
        """Return the asymptotic contraction of the error in one step, with the textbook's parameters."""

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the space in which this attacker works."""
        return problem.space

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with every candidate; on the squared loss with predictions of the number of steps."""
        space = self.space(problem)
        return self._quadratic(space, budget) if space.kind == "regression" else self._convex(space, budget)

    def _quadratic(self, space: ProbeSpace, budget: AttackBudget) -> AttackRun:
        """Run the recurrence over the grid of assumed smallest eigenvalues."""
        S = space.spectrum
        recurrence = type(self).recurrence
        candidates = [recurrence(S.sigma, mu) for mu in assumed_minima(S.sigma)]
        race = self.race(space, [c.choice for c in candidates], budget, dense=False)
        run_two_term(candidates, S, race, multiplied(space))
        traces = race.traces()
        by_kappa, by_spectrum = {}, {}
        for epsilon in budget.epsilons:
            by_kappa[epsilon] = rate_steps(self.contraction(S.condition), epsilon)
            chosen, step = best(traces, epsilon)
            # Beyond the budget any candidate may turn out the best one.
            asked = [c for c in candidates if step is None or c.choice == chosen.choice]
            by_spectrum[epsilon] = min(predicted_steps(c, S.shares, epsilon) for c in asked)
        return AttackRun(traces, space, by_kappa, by_spectrum)

    def _convex(self, space: ProbeSpace, budget: AttackBudget) -> AttackRun:
        """Run the grid of rates and momenta in lock-step."""
        grid = [(multiple, beta) for beta in self.betas for multiple in MULTIPLES]
        words = [f"rate {m:g}/L" + (f", β = {b:g}" if b else "") for m, b in grid]
        race = self.race(space, words, budget)
        race.edges = [multiple in (MULTIPLES[0], MULTIPLES[-1]) for multiple, _ in grid]
        rates, betas = np.array(grid).T
        rule = Momentum(rates / space.objective.smoothness, betas, nesterov=self.lookahead)
        descend(space, rule, race)
        return AttackRun(race.traces(), space)


class GradientDescent(_Descent):
    """Gradient descent with the best constant step."""

    name, label = "gd", "Gradient descent"
    summary = "constant step: 2/(σ₁ + μ) over a grid of μ down to σ_k; classification: a grid around 1/L"
    recurrence = staticmethod(gradient_descent)  # type: ignore[assignment]

    def contraction(self, kappa: float) -> float:
        """Return `(κ − 1)/(κ + 1)`."""
        return (kappa - 1) / (kappa + 1)


class HeavyBall(_Descent):
    """Polyak's momentum with the best constant parameters."""

    name, label = "momentum", "Momentum (heavy ball)"
    summary = "Polyak's parameters over a grid of assumed κ; classification: β = 0.9, 0.99 × rates"
    recurrence = staticmethod(heavy_ball)  # type: ignore[assignment]
    betas = BETAS

    def contraction(self, kappa: float) -> float:
        """Return `(√κ − 1)/(√κ + 1)`, the asymptotic rate without its transient."""
        return (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)


class Nesterov(_Descent):
    """Nesterov's method with the best constant parameters."""

    name, label = "nesterov", "Nesterov"
    summary = "Lessard's parameters over a grid of assumed κ; classification: β = 0.9, 0.99 × rates"
    recurrence = staticmethod(nesterov)  # type: ignore[assignment]
    betas, lookahead = BETAS, True

    def contraction(self, kappa: float) -> float:
        """Return `1 − 2/√(3κ + 1)`."""
        return 1 - 2 / math.sqrt(3 * kappa + 1)


class Standardised(GradientDescent):
    """Gradient descent after a `StandardScaler`, with an intercept."""

    name, label, informed = "standardise", "Standardise + GD", True
    summary = "columns centred and scaled, an intercept, then gradient descent"

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the standardised space."""
        return problem.space.standardised


class Whitened(GradientDescent):
    """Gradient descent on whitened features: `H = I`."""

    name, label, informed = "whiten", "Whiten + GD", True
    summary = "features times H^{-1/2} on their range, then gradient descent"

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the whitened space."""
        return problem.space.whitened


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
        kappa = space.spectrum.condition
        bound = {e: rate_steps((kappa - 1) / (kappa + 1), e) for e in budget.epsilons}
        return AttackRun(race.traces(), space, bound)


#: Learning rates of Adam for features of unit mean square: half a decade apart.
ADAM_RATES = tuple(10.0 ** (j / 2) for j in range(-8, 5))

#: Rates of SGD in units of 1/L of the whole data.
SGD_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

#: Measurements of the full loss in one pass over the data; later ones are 2 % of the steps apart.
MEASUREMENTS, SPACING = 10, 50


class AdamAttacker(AttackerBase):
    """Full-batch Adam over a grid of learning rates."""

    name, label = "adam", "Adam"
    summary = "full batch, learning rates 1e-4 to 100, half a decade apart (features at unit mean square)"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with all rates side by side."""
        space = problem.space
        words = [f"rate {rate:.3g}" for rate in ADAM_RATES]
        race = self.race(space, words, budget, open_ended=True)
        descend(space, Adam(np.array(ADAM_RATES)), race)
        return AttackRun(race.traces(), space)


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
        N = space.objective.rows
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


def scipy_trace(space: ProbeSpace, method: str, choice: str, race: Race, options: dict[str, float]) -> Trace:
    """Minimise the relative excess loss with SciPy from zero weights; a step is an iteration."""
    objective = space.objective
    shape = (1, space.features.shape[1], objective.outputs)
    scale = objective.start_loss - objective.optimum
    count, passes = 0, [0.0]

    def function(flat: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        excess, gradient = objective.evaluate(flat.reshape(shape))
        return float(excess[0]), gradient.ravel() / scale

    step = 0

    def callback(intermediate_result: object) -> None:
        nonlocal step
        step += 1
        passes.append(float(count))
        x, value = intermediate_result.x, intermediate_result.fun  # type: ignore[attr-defined]
        if not race.observe(step, np.array([float(value)]), lambda: x.reshape(shape)):
            raise StopIteration

    start = np.zeros(math.prod(shape))
    race.observe(0, np.array([1.0]), lambda: start.reshape(shape))
    minimize(function, start, jac=True, method=method, callback=callback, options=options)
    (trace,) = race.traces()
    return Trace(choice, trace.steps, trace.excess, False, trace.evaluated, np.array(passes))


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
            return AttackRun([scipy_trace(space, "CG", race.choices[0], race, options)], space)
        race = self.race(space, ["no parameters"], budget, dense=False)
        run_conjugate_gradients(space.spectrum, race, multiplied(space))
        root = math.sqrt(space.spectrum.condition)
        bound = {e: rate_steps((root - 1) / (root + 1), e, constant=4.0) for e in budget.epsilons}
        most = float(space.spectrum.rank)
        return AttackRun(race.traces(), space, {e: min(most, steps) for e, steps in bound.items()})


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
            traces.append(scipy_trace(space, "L-BFGS-B", race.choices[0], race, options))
        return AttackRun(traces, space)


#: Columns of the stacked layer.
WIDTH = 32

STACKED_RATES = tuple(10.0 ** (j / 2) for j in range(-8, 1))
FINE_TUNING_RATES = tuple(10.0 ** (j / 2) for j in range(-8, -2))


def descend_factored(space: ProbeSpace, first: Array, rule: Momentum | Adam, race: Race) -> None:
    """Train `W = UV` from `U = first`, `V = 0`: `∇_U L = (∇_W L)Vᵀ`, `∇_V L = Uᵀ∇_W L`."""
    B = len(race.choices)
    U = np.repeat(first[None], B, axis=0)
    V = np.zeros((B, first.shape[1], space.objective.outputs))
    step = 0
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            W = U @ V
            excess, G = space.objective.evaluate(W)
            excess = np.where(excess < 1e6, excess, np.nan)
            if not race.observe(step, excess, W.copy):
                return
            rule.step([U, V], [G @ V.transpose(0, 2, 1), U.transpose(0, 2, 1) @ G])
            step += 1


class StackedLayer(AttackerBase):
    """A linear layer stacked on the features: the probe re-parametrised as `W = UV`."""

    name, label = "stacked", "Stacked linear layer"
    summary = "W = UV with 32 columns between, Adam on both, learning rates half a decade apart"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Train both layers by Adam from a random orthogonal U and V = 0."""
        space = problem.space
        k = space.features.shape[1]
        generator = np.random.default_rng(budget.seed)
        first, _ = np.linalg.qr(generator.normal(size=(k, min(k, WIDTH))))
        race = self.race(space, [f"rate {r:.3g}" for r in STACKED_RATES], budget, open_ended=True)
        descend_factored(space, first, Adam(np.array(STACKED_RATES)), race)
        return AttackRun(race.traces(), space)


class FineTuning(AttackerBase):
    """Full fine-tuning: θ and the probe are trained together on the raw inputs."""

    name, label = "fine_tune", "Fine-tuning of θ"
    summary = "θ and the probe together, Adam, learning rates half a decade apart"

    def obstacle(self, problem: AttackProblem) -> str | None:
        """Return why it cannot run: without θ and raw inputs there is nothing to tune."""
        if problem.theta is None or problem.inputs is None:
            return "it needs a linear θ and the raw inputs; only features are known"
        return super().obstacle(problem)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Train from θ as released and a zero probe; the optimum is that of the raw inputs."""
        assert problem.inputs is not None  # see obstacle
        assert problem.theta is not None
        space = problem.inputs
        race = self.race(space, [f"rate {r:.3g}" for r in FINE_TUNING_RATES], budget, open_ended=True)
        descend_factored(space, problem.theta, Adam(np.array(FINE_TUNING_RATES)), race)
        return AttackRun(race.traces(), space)


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
        space = problem.space
        started = time.perf_counter()
        traces = _ridge(space) if space.kind == "regression" else _logistic(space)
        return AttackRun(traces, space, seconds=(time.perf_counter() - started) / len(traces))


def _ridge(space: ProbeSpace) -> list[Trace]:
    """Return a step of each ridge: the solution itself."""
    U, s, right = np.linalg.svd(space.features, full_matrices=False)
    projected = U.T @ space.regression_targets
    traces = []
    for ridge in RIDGES:
        W = right.T @ ((s / (s**2 + ridge * s[0] ** 2))[:, None] * projected)
        traces.append(_trace(space, f"ridge {ridge:g}·σ₁", W[None], 1))
    return traces


def _logistic(space: ProbeSpace) -> list[Trace]:
    """Return what Newton's method gives for each penalty, after as many steps as it took."""
    from sklearn.linear_model import LogisticRegression

    traces = []
    for C in PENALTIES:
        model = LogisticRegression(C=C, solver="newton-cholesky", fit_intercept=False, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a singular Hessian falls back to L-BFGS; the loss tells
            model.fit(space.features, space.targets)
        W = model.coef_.T[None]
        traces.append(_trace(space, f"C = {C:g}", W, int(np.max(model.n_iter_))))
    return traces


def _trace(space: ProbeSpace, choice: str, W: np.ndarray, steps: int) -> Trace:
    """Return a trace of the start and the solution."""
    both = np.concatenate([np.zeros_like(W), W])
    excess, _ = space.objective.evaluate(both)
    at = np.array([0, steps])
    evaluated = np.stack([at, *space.evaluate(both)], axis=1)
    return Trace(choice, at, excess, False, evaluated)


BUILT_IN: tuple[Attacker, ...] = (
    GradientDescent(),
    LineSearch(),
    HeavyBall(),
    Nesterov(),
    StochasticDescent(),
    AdamAttacker(),
    ConjugateGradients(),
    LimitedMemoryBfgs(),
    StackedLayer(),
    FineTuning(),
    Standardised(),
    Whitened(),
    ClosedForm(),
)
for _attacker in BUILT_IN:
    register_attacker(_attacker)
