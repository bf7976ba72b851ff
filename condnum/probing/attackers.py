"""The attackers of the panel: those that descend on a squared loss, and those that solve for a head."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from condnum.arrays import FloatArray
from condnum.probing import filters
from condnum.probing.race import AttackBudget, AttackProblem, Race, Rows, held_out_scores

#: Rates of SGD in units of 1/L, L the curvature of the whole data.
_SGD_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
#: Measurements of SGD's full loss in one pass over the data; later ones are 2 % of the steps apart.
_MEASUREMENTS, _SPACING = 10, 50
#: Size of the head with which θ is fine-tuned where a head of zeros is a saddle point.
_SMALL_HEAD = 0.01
#: Pairs of vectors that L-BFGS keeps.
_MEMORY = 50
#: Numbers of first principal components that are tried without a tolerance.
_COUNTS = 8


@dataclass(frozen=True)
class Attacker:
    """Someone who trains on the released features; the how-to page *own study* has one in a dozen lines."""

    name: str
    label: str  # for tables and figures
    run: Callable[[AttackProblem, AttackBudget], Race]  # from zero weights
    needs: Literal["", "rows", "classes", "theta"] = ""
    solves: bool = False  # in one step
    predicted: bool = False  # whether κ alone says something about its steps


def _filtered(method: Any, problem: AttackProblem, budget: AttackBudget) -> Race:
    """Race a method with two constant parameters over a grid of assumed κ."""
    sigma = problem.modes.sigma
    minima = filters.assumed_minima(sigma)
    race = Race(problem, [f"set for κ = {1 / mu:.4g}" for mu in minima], budget, budget.steps)
    return race.follow(method(sigma, minima))


def _line_search(problem: AttackProblem, budget: AttackBudget) -> Race:
    search = filters.line_search(problem.modes.sigma[None], problem.modes.energy[None])
    return Race(problem, ["exact step"], budget, budget.steps).follow(q for q, _ in search)


def _conjugate_gradients(problem: AttackProblem, budget: AttackBudget) -> Race:
    steps = filters.conjugate_gradients(problem.modes)
    return Race(problem, ["no parameters"], budget, budget.steps).follow(steps)


def _sgd(problem: AttackProblem, budget: AttackBudget) -> Race:
    """Mini-batch SGD without replacement, over rates × (constant, 1/√epoch)."""
    problem = problem.narrow(budget.seed)
    assert problem.rows is not None
    N = len(problem.rows.train)
    batches = max(1, N // budget.batch_size)
    last = min(budget.steps, batches * budget.dense_steps)
    grid = [(m, falls) for falls in (False, True) for m in _SGD_MULTIPLES]
    words = [f"rate {m:g}/L, {'falling' if falls else 'constant'}" for m, falls in grid]
    race = Race(problem, words, budget, last)
    rates = np.array([m for m, _ in grid]) / (2 * problem.sigma[0])
    falling = np.array([falls for _, falls in grid])
    generator = np.random.default_rng(budget.seed)
    W, step, epoch, due = np.zeros((len(grid), *problem.shape)), 0, 0, 0
    every = max(1, batches // _MEASUREMENTS)
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            epoch += 1
            eta = np.where(falling, rates / np.sqrt(epoch), rates)[:, None, None]
            for index in np.array_split(generator.permutation(N), batches):
                if step >= due:
                    due = min(last, step + max(every, step // _SPACING))
                    if not race.observe(problem.evaluate(W)[0], W.copy, step):
                        return race
                W -= eta * problem.batch_gradient(W, index)
                step += 1


def _half_decades(first: float, last: float) -> tuple[float, ...]:
    """Return learning rates from `10^first` to `10^last`, half a decade apart."""
    return tuple(10.0 ** (j / 2) for j in range(round(2 * first), round(2 * last) + 1))


def _adam_race(
    problem: AttackProblem, budget: AttackBudget, rates: Sequence[float], layers: Sequence[FloatArray]
) -> Race:
    """Descend on the full loss by Adam (Kingma and Ba 2015) at all rates side by side; W is UV, or U alone.

    The steps are those of `torch.optim.Adam`, whose import alone takes seconds.
    """
    race, step = Race(problem, [f"rate {rate:.3g}" for rate in rates], budget), 0
    runs = [[torch.tensor(of) for of in layers] for _ in rates]
    moments = [[(torch.zeros_like(of), torch.zeros_like(of)) for of in parts] for parts in runs]
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            W = torch.stack([reduce(torch.matmul, parts) for parts in runs]).numpy()
            excess, gradient = problem.evaluate(W)
            if not race.observe(excess, W.copy, step):
                return race
            step += 1
            root, bias = math.sqrt(1 - 0.999**step), 1 - 0.9**step
            for rate, parts, own, G in zip(rates, runs, moments, torch.from_numpy(gradient), strict=True):
                slopes = [G] if len(parts) == 1 else [G @ parts[1].mT, parts[0].mT @ G]
                for part, slope, (first, second) in zip(parts, slopes, own, strict=True):
                    first.lerp_(slope, 0.1)
                    second.mul_(0.999).addcmul_(slope, slope, value=0.001)
                    part.addcdiv_(first, second.sqrt().add_(1e-8 * root), value=-rate * root / bias)


def _adam(problem: AttackProblem, budget: AttackBudget) -> Race:
    problem = problem.narrow(budget.seed)
    return _adam_race(problem, budget, _half_decades(-4, 2), [np.zeros(problem.shape)])


def _stacked(problem: AttackProblem, budget: AttackBudget) -> Race:
    """Re-parametrize the probe as `W = UV`, from a random orthogonal U with at most 32 columns and V = 0."""
    problem = problem.narrow(budget.seed)
    d, m = problem.shape
    U = np.linalg.qr(np.random.default_rng(budget.seed).normal(size=(d, min(d, 32))))[0]
    return _adam_race(problem, budget, _half_decades(-4, 0), [U, np.zeros((U.shape[1], m))])


def _fine_tune(problem: AttackProblem, budget: AttackBudget) -> Race:
    """Train θ and the probe together, from θ and a head of zeros, or a small one where that has no slope."""
    inputs = (problem.inputs or problem).narrow(budget.seed)
    assert problem.theta is not None
    head = np.zeros((problem.theta.shape[1], inputs.shape[1]))
    if problem.flat:
        head = _SMALL_HEAD * np.random.default_rng(budget.seed).normal(size=head.shape)
    return _adam_race(inputs, budget, _half_decades(-4, -1.5), [problem.theta, head])


def _lbfgs(problem: AttackProblem, budget: AttackBudget) -> Race:
    """SciPy's L-BFGS-B without bounds, on the relative excess loss; a step is an iteration."""
    problem, most = problem.narrow(budget.seed), budget.dense_steps
    start, race = np.zeros((1, *problem.shape)), Race(problem, [f"{_MEMORY} pairs"], budget)
    race.observe(np.ones(1), lambda: start)

    def function(flat: FloatArray) -> tuple[float, FloatArray]:
        excess, gradient = problem.evaluate(flat.reshape(start.shape))
        return float(excess[0]), gradient.ravel() / problem.fit

    def callback(intermediate_result: Any) -> None:
        x, value = intermediate_result.x, intermediate_result.fun
        if not race.observe(np.array([float(value)]), lambda: x.reshape(start.shape)):
            raise StopIteration

    options = {"maxiter": most, "maxfun": 20 * most, "ftol": 0.0, "gtol": 0.0, "maxcor": _MEMORY}
    minimize(function, start.ravel(), jac=True, method="L-BFGS-B", callback=callback, options=options)
    return race


#: What a solver finds: its name, and predictions of centered targets by centered rows of features.
_Head = tuple[str, Callable[[FloatArray], FloatArray]]


def _solved(solve: Callable[[Rows], Iterator[_Head]], problem: AttackProblem, budget: AttackBudget) -> Race:
    """Return what each head reaches in one step, on the rows as they are, so that no bit of them is lost."""
    rows, scale, above = problem.rows, 1.0, problem.lost
    if rows is None:  # a factor has the products of the rows, and so their least squares
        none = np.zeros((0, 1))
        rows = Rows(problem.matrix, problem.along, none, none, none, None, np.zeros(0, bool))
    else:
        scale = len(rows.train) * problem.scale[1] ** 2
        above = 1 - float((rows.targets**2).sum()) / (scale * problem.fit)
    heads = list(solve(rows))
    race = Race(problem, [name for name, _ in heads], budget, 1)
    losses = [((head(rows.train) - rows.targets) ** 2).sum() for _, head in heads]
    race.steps, race.scored = [0, 1], [1]
    race.excess = [np.ones(len(heads)), above + np.array(losses) / (scale * problem.fit)]
    race.scores = [np.full((4, len(heads)), np.nan)]
    if len(rows.held_out):
        predicted = np.stack([head(rows.held_out) for _, head in heads], axis=1)
        race.scores = [held_out_scores(predicted, rows)]
    return race


def _linear(change: FloatArray | None, weights: NDArray[Any]) -> Callable[[FloatArray], FloatArray]:
    """Return the head of these weights in other coordinates."""
    return lambda F: (F if change is None else F @ change) @ weights


def _least_squares(rows: Rows) -> Iterator[_Head]:
    """Least squares of both libraries, whose tolerances differ."""
    yield "NumPy", _linear(None, np.linalg.lstsq(rows.train, rows.targets, rcond=None)[0])
    yield "SciPy", _linear(None, scipy.linalg.lstsq(rows.train, rows.targets)[0])


def _scales(F: FloatArray) -> FloatArray:
    """Return what standardizes each feature `(d,)`."""
    deviation = F.std(axis=0)
    return np.asarray(1 / np.where(deviation > 0, deviation, 1))


def _whitener(s: FloatArray, right: FloatArray, rows: int) -> FloatArray:
    """Return what whitens the directions that are not tiny `(d, d')`."""
    kept = s > 1e-6 * s[0]
    return np.asarray(right[kept].T * (math.sqrt(rows) / s[kept]))


def _ridge(rows: Rows) -> Iterator[_Head]:
    """Ridge regression, with the penalty by its leave-one-out error, as scikit-learn's `RidgeCV` has it."""
    F, Y = rows.train, rows.targets
    (N, d), scale = F.shape, _scales(F)
    U, s, right = np.linalg.svd(F, full_matrices=False)
    V, t, other = np.linalg.svd(F * scale, full_matrices=False)
    white = _whitener(s, right, N)
    count = white.shape[1]
    for name, basis, sigma, back, size in (
        ("", U, s, right.T, d),
        (", standardized", V, t, scale[:, None] * other.T, d),
        (", whitened", U[:, :count], np.full(count, math.sqrt(N)), white, count),
    ):
        along, square = basis.T @ Y, sigma**2
        # What no weights fit, and no leverage explains: nothing where the basis is whole.
        rest, free = (Y - basis @ along, 1 - (basis**2).sum(axis=1)) if len(sigma) < N else (0.0, 0.0)
        penalties, errors = np.geomspace(1e-8, 10, 10) * float(square.sum()) / size, list[float]()
        for penalty in penalties:
            lost = penalty / (square + penalty)
            left = free + (basis**2) @ lost
            errors.append(float((((rest + basis @ (lost[:, None] * along)) / left[:, None]) ** 2).mean()))
        shrunk = sigma / (square + penalties[int(np.argmin(errors))])
        yield f"ridge regression{name}", _linear(None, back @ (shrunk[:, None] * along))


def _logistic(rows: Rows) -> Iterator[_Head]:
    """Logistic regression, scored by its probabilities."""
    from sklearn.linear_model import LogisticRegression

    labels, scale = (rows.targets + rows.mean).argmax(axis=1), _scales(rows.train)
    white = _whitener(*np.linalg.svd(rows.train, full_matrices=False)[1:], len(rows.train))
    for name, change in {", standardized": np.diag(scale), ", whitened": white}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it need not converge
            fitted = LogisticRegression(max_iter=200).fit(rows.train @ change, labels)

        def head(F: FloatArray, fitted: Any = fitted, change: Any = change) -> FloatArray:
            return np.asarray(fitted.predict_proba(F @ change)) - rows.mean

        yield f"logistic regression{name}", head


def _unfiltered(rows: Rows) -> Iterator[_Head]:
    """Least squares in the coordinates of every singular value, without a tolerance, and of the first few.

    Where θ has lost rank up to round-off, the last coordinates hold what round-off keeps of the features.
    """
    _, s, right = np.linalg.svd(rows.train, full_matrices=False)
    back = right[s > 0].T * (math.sqrt(len(rows.train)) / s[s > 0])
    Q, R = np.linalg.qr(rows.train @ back)
    fitted, full = Q.T @ rows.targets, len(R)
    for count in sorted({full, *np.geomspace(1, full, _COUNTS).astype(int).tolist()}, reverse=True):
        weights = scipy.linalg.lstsq(R[:count, :count], fitted[:count])[0]
        yield f"{count} principal components", _linear(back[:, :count], weights)


def _attackers() -> Iterator[Attacker]:
    """List all attackers, in display order."""
    filtered: Any = partial(partial, _filtered)
    yield Attacker("gd", "Gradient descent", filtered(filters.gradient_descent), predicted=True)
    yield Attacker("line_search", "Exact line search", _line_search, predicted=True)
    yield Attacker("momentum", "Momentum (heavy ball)", filtered(filters.heavy_ball), predicted=True)
    yield Attacker("nesterov", "Nesterov", filtered(filters.nesterov), predicted=True)
    yield Attacker("sgd", "Mini-batch SGD", _sgd, "rows")
    yield Attacker("adam", "Adam", _adam)
    yield Attacker("cg", "Conjugate gradients", _conjugate_gradients, predicted=True)
    yield Attacker("lbfgs", "L-BFGS", _lbfgs)
    yield Attacker("stacked", "Stacked linear layer", _stacked)
    yield Attacker("fine_tune", "Fine-tuning of θ", _fine_tune, "theta")
    descend = filtered(filters.gradient_descent)
    yield Attacker("standardize", "Standardize + GD", lambda p, b: descend(p.standardized(), b))
    yield Attacker("whiten", "Whiten + GD", lambda p, b: descend(p.whitened(), b))
    solved = partial(partial, _solved)
    yield Attacker("closed_form", "Closed form", solved(_least_squares), solves=True)
    yield Attacker("ridge", "Ridge regression", solved(_ridge), "rows", solves=True)
    yield Attacker("logistic", "Logistic regression", solved(_logistic), "classes", solves=True)
    yield Attacker("unfiltered", "Whiten by every singular value", solved(_unfiltered), "rows", True)


#: Attackers by name.
ATTACKERS = {attacker.name: attacker for attacker in _attackers()}
