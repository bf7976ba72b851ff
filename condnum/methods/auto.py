r"""Self-tuned `ours`: steps of Algorithm 1 with η, λ and their number taken from the spectra.

It uses the preconditioned steps of Algorithm 1 on `R_well` and on `R_ill`, but never both at once, and none
on the loss: it is not the joint descent of Eq. 11, which `ours` runs where settings are given. A step is
`θ(I − 2ηλ∇_H R)`, and `∇_H R` is a function of H: the step keeps the eigenvectors of that Hessian and moves
its spectrum by closed forms (Theorem 4.3). Two kinds alternate.

*Flatten*, λ_H = 0: `R_well` alone turns `H_P` into a multiple of I on its range, i.e. θ into
`θ* = K_P^{-1/2}R`, whose RIR is the ceiling.

*Raise*, λ_P = 0: from there `R_ill` alone scales up the top of `H_H`, which is the top of the pencil
(K_H, K_P): both ratios grow alike along the Pareto front. A step that would bring (ii) above its limit, just
below 1, is halved.

Rounds of both are repeated while RIR gains: the next one flattens what the last one raised, which pays
where the harmful task has directions of its own. Where Definition 3.1 is missed although it is possible, more
careful rounds follow from an orthogonal θ.

The supervised loss has nothing to say: line 4 run to convergence gives `ω = θ⁺β` with the best β, where
`∂L/∂θ = (∂L/∂β)ωᵀ` vanishes, and it stays there, as θ stays invertible.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from condnum.methods.method import Method
from condnum.methods.problem import ImmunizationProblem, LinearTask, SquaredLoss
from condnum.methods.run import Run
from condnum.methods.settings import SelfTunedSettings
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import (
    RATIO_TOLERANCE,
    Immunization,
    in_both_conventions,
    relative_immunization_ratio,
)

#: κ(H_P) at which it counts as flat: RIR is then within a factor 1.05² of the ceiling.
_FLAT = 1.05

#: Relative growth of the largest singular value of θ's harmful features in one step of R_ill.
_GROWTH = 0.25

#: (ii) stays this far below 1.
MARGIN = 1e-3

#: Rounds go on while each multiplies RIR by at least this: one is enough where there is a ceiling to reach.
GAIN = 1.5

#: Met, how far from met in logarithms, met in the ridge convention too (asked only where RIR has no
#: ceiling to reach), both ranks kept, log RIR and a little of log (i): along the front RIR stays and (i)
#: rises, and with it the margin in clause (a).
_Merit = tuple[bool, float, bool, bool, float]

#: The part of a step, "well" or "ill" ("" at the start), and the θ that it leads to.
_Move = tuple[str, Callable[[], Tensor]]


class SelfTuned(Run):
    """The run of one problem."""

    def __init__(
        self,
        problem: ImmunizationProblem,
        method: Method,
        settings: SelfTunedSettings,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__([problem], method, settings, [seed], **options)
        self.problem, self.theta = problem, self.parameters["theta"][0]
        self.pretrain, self.harmful = (task.factor for task in (problem.pretrain, problem.harmful))
        self.ranges = problem.pretrain.range, problem.harmful.range
        self.ceiling = rir_ceiling(*self.ranges).value
        gamma, rank = self.ranges[0].values, self.ranges[1].rank
        kappa = float(gamma[0] / gamma[-1])
        self.possible = rank > 1 and not self.ceiling <= 1
        # How much there is to have, and how much of it each tolerance may cost: little where that is little.
        most = min(kappa**0.5, self.ceiling**0.5 if self.ceiling > 1 else math.inf)
        self.flat = max(min(_FLAT, most**0.1), 1 + 1e-12)
        self.finest = min(1e-4, math.log(most) / (50 * rank) or 1)
        self.limit = max(1 - MARGIN, 1 / most) + RATIO_TOLERANCE / 10
        self.best_beta = _best_probe(problem.pretrain)
        loss = problem.pretrain.supervised
        self._loss = math.nan if loss is None or self.best_beta is None else float(loss.value(self.best_beta))
        # ηλ_P and ηλ_H of the last step of each kind; no step descends the loss.
        self.weights = {"well": 0.0, "ill": 0.0, "supervised": 0.0}
        self.counts = {"rounds": 0, "steps_well": 0, "steps_ill": 0}
        # Candidates, each better than all before, and after how many steps.
        self._kept: list[tuple[_Merit, Immunization, Tensor, int]] = []

    def loop(self) -> None:
        """Take steps within the budget; leave the best θ and its probe behind."""
        try:
            for part, theta in self._moves():
                if part:
                    self.step += 1
                    self.counts[f"steps_{part}"] += 1
                if self.step in self.told:
                    self.parameters = {"theta": theta()[None]}
                    self.record()
                if self.step >= self.settings.steps:
                    self.stop(self.active, "steps")
                if not bool(self.active):
                    self.theta = theta()
                    self._keep()
                    break
            self.stop(self.active, "settled")
        except torch.linalg.LinAlgError:
            self.stop(self.active, "diverged")
        best, self.reached = self._chosen()
        self.parameters = {"theta": best[None]}
        if self.best_beta is not None:
            self.parameters["omega"] = torch.linalg.lstsq(best, self.best_beta).solution[None]
        self._rows[0] = [row for row in self._rows[0] if row["step"] < self.step]  # the last one is of θ

    def _moves(self) -> Iterator[_Move]:
        """Yield steps, in rounds of both kinds, until RIR gains no more."""
        best, reached = 0.0, 0.0
        self._keep()
        yield "", lambda: self.theta
        while reached >= GAIN * best:
            best = reached
            self.counts["rounds"] += 1
            yield from self._flatten()
            yield from self._raise()
            reached = self._kept[-1][1].rir
        if not self._kept[-1][1].success and self.possible:
            yield from self._search()

    def _chosen(self) -> tuple[Tensor, int]:
        """Return the best candidate that keeps clause (c), else the best; and after how many steps."""
        task = self.problem.pretrain
        for _, _, theta, step in reversed(self._kept):
            gap = None if task.targets is None else task.loss_gap(theta)
            if relative_immunization_ratio(theta, *self.ranges, loss_gap=gap).clauses["c"] is not False:
                return theta, step
        return self._kept[-1][2:]

    def facts(self, index: int) -> dict[str, Any]:
        """Add how θ was found."""
        ends = {
            "settled": "stopped because RIR no longer increased.",
            "steps": f"stopped at the budget of {self.settings.steps} steps; allow more with steps=….",
            "cancelled": "cancelled.",
            "diverged": "stopped because a decomposition failed.",
        }
        text = (
            f" This θ was reached after {self.reached} of {self.step} steps, {self.counts['steps_well']} on "
            f"R_well alone (λ_H = 0) and {self.counts['steps_ill']} on R_ill alone (λ_P = 0), none on the "
            f"loss, in {self.counts['rounds']} round(s); {ends[self.reasons[index]]}"
        )
        return {"part_weights": self.weights, "explanation": text}

    def measured(self) -> dict[str, list[float]]:
        """Add ηλ of both parts, and the least loss, at which line 4 stays."""
        weights = {f"eta_lambda_{part}": [self.weights[part]] for part in ("well", "ill")}
        return super().measured() | {"loss": [self._loss]} | weights

    def _search(self) -> Iterator[_Move]:
        """Alternate again from an orthogonal θ, where Definition 3.1 was missed.

        On the way to flat κ(H_H) may stay within float64; and steps of R_ill whatever (ii) becomes, each
        flattened, move directions of the harmful task's own.
        """
        self.theta = torch.linalg.qr(self._kept[0][2]).Q
        yield from self._flatten(watched=True)
        growth = _GROWTH if len(self.pretrain) < self.problem.dimension else math.inf
        while growth < 1e8 and not self._kept[-1][1].success:
            self.counts["rounds"] += 1
            _, s, rows = torch.linalg.svd(self.harmful @ self.theta, full_matrices=False)
            self.theta = _stretched(self.theta, rows, self._ill_factors(s.square().cpu().numpy(), growth))
            growth *= 1.5
            yield "ill", lambda: self.theta
            yield from self._flatten()

    def _flatten(self, *, watched: bool = False) -> Iterator[_Move]:
        """Take steps of R_well until κ(H_P), measured afresh after them, is at most `flat` or falls no more.

        `watched` takes short steps, each a candidate.
        """
        for _ in range(8):
            _, s, rows = torch.linalg.svd(self.pretrain @ self.theta, full_matrices=False)
            sigma, start = s.square().cpu().numpy(), self.theta
            gains, landing, least, levelled, stale = np.ones_like(sigma), not watched, math.inf, math.inf, 0
            while (kappa := float(sigma.max() / sigma.min()) if sigma.min() > 0 else math.inf) > self.flat:
                if landing:
                    least, stale = (kappa, 0) if kappa < 0.99 * least else (least, stale + 1)
                    landing = stale <= 4 * len(sigma)
                elif kappa >= levelled:  # what is left is round-off
                    break
                else:
                    levelled = kappa
                factors = self._landing_factors(sigma) if landing else self._levelling_factors(sigma)
                gains *= factors
                sigma *= factors**2
                yield "well", partial(_stretched, start, rows, gains)
                if watched:
                    self.theta = _stretched(start, rows, gains)
                    self._keep()
            if (gains == 1).all():
                break
            self.theta = _stretched(start, rows, gains)
        self._keep()

    def _landing_factors(self, sigma: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by what a step of R_well scales θ along each right singular vector: σ₁ lands on σ_k.

        Its η is the first term of the corrected bound of Theorem 4.3 (1): the second is 0 for σ₂ = σ₁, and
        steps below it between near equals would not end.
        """
        top, p = int(sigma.argmax()), self.problem.dimension
        drop = 1 - math.sqrt(max(float(sigma.min() / sigma[top]), 1e-6))  # at most 1e-6 a step
        self.weights["well"] = drop / (2 * (1 - 1 / p) * float(sigma[top]))
        factors = 1 + drop * sigma / (sigma[top] * (p - 1))
        factors[top] = 1 - drop
        return factors

    def _levelling_factors(self, sigma: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the same for a step in which all values near σ₁ count as one repeated value."""
        high, p = float(sigma.max()), self.problem.dimension
        level = max(math.sqrt(float(sigma.min()) * high), high / math.e)
        upper = sigma >= level
        drop, share = math.sqrt(level / high), 1 / int(upper.sum()) - 1 / p
        eta = (1 - drop) / (2 * (share * high + drop * float(sigma.min()) / p))
        self.weights["well"] = eta
        return 1 - 2 * eta * (upper * (share + 1 / p) - 1 / p) * sigma

    def _raise(self) -> Iterator[_Move]:
        """Take steps of R_ill while (ii) stays within its limit, each halved where it does not."""
        _, s, rows = torch.linalg.svd(self.harmful @ self.theta, full_matrices=False)
        sigma = s.square().cpu().numpy()
        if sigma[0] <= sigma[-1] * (1 + 1e-9):  # κ(H_H) = 1: R_ill is infinite and has no direction
            return
        gains, growth, start = np.ones_like(sigma), _GROWTH, self.theta
        before, stale = self._merit(start)[0], 0
        while growth > self.finest and stale < 5:
            factors = self._ill_factors(sigma, growth)
            trial = _stretched(start, rows, gains * factors)
            merit, verdict = self._merit(trial)
            if verdict.pretrain_ratio > self.limit:
                growth /= 2
                continue
            # Nothing gained: κ(H_H) has passed what float64 can tell from a lost rank.
            before, stale = merit, 0 if merit > before else stale + 1
            gains, sigma, self.theta = gains * factors, sigma * factors**2, trial
            yield "ill", lambda: self.theta
            self._keep((merit, verdict))

    def _ill_factors(self, sigma: NDArray[np.float64], growth: float) -> NDArray[np.float64]:
        """Return by what one step of R_ill scales θ along each right singular vector (Theorem 4.3 (2))."""
        k = len(sigma)
        low = int(sigma.argmin())
        # Half of η at which σ_k would vanish; half of it is within the corrected bound ρ²/(σ_k(1 − 2/k)).
        growth = min(growth, float(sigma.max() / sigma[low]) / (2 * (k - 1)))
        top = float(sigma.max())
        share = sigma / top
        spread = float((share**2).sum()) / (2 * k) - float(share[low]) ** 2 / 2  # 1/R_ill of H/σ₁, Eq. 12
        self.weights["ill"] = growth * k * spread**2 / 2 * (top * top * top)
        factors = 1 + growth * sigma / top
        factors[low] -= growth * k * sigma[low] / top
        return factors

    def _merit(self, theta: Tensor) -> tuple[_Merit, Immunization]:
        """Return what candidates are compared by, and the verdict without clause (c)."""
        verdict, ridge = in_both_conventions(theta, *self.ranges)
        logs = [math.log(ratio) for ratio in (verdict.harmful_ratio, verdict.pretrain_ratio, verdict.rir)]
        miss = max(0.0, -logs[0]) + max(0.0, logs[1])
        size = logs[2] + 0.1 * logs[0]
        both = ridge.success and math.isinf(self.ceiling)
        return (verdict.success, -miss, both, not verdict.rank_changed, size), verdict

    def _keep(self, measured: tuple[_Merit, Immunization] | None = None) -> None:
        """Keep θ as a candidate if it is better than all before."""
        merit, verdict = measured or self._merit(self.theta)
        if not self._kept or merit > self._kept[-1][0]:
            self._kept.append((merit, verdict, self.theta, self.step))


def _stretched(theta: Tensor, rows: Tensor, gains: NDArray[np.float64]) -> Tensor:
    """Return `θ(I + V diag(g − 1)Vᵀ)`, V the transposed rows."""
    change = torch.as_tensor(gains - 1).to(theta)
    return theta + (theta @ rows.mT * change) @ rows


def _best_probe(task: LinearTask) -> Tensor | None:
    """Return β at the least supervised loss, `(D, m)`, by least squares or L-BFGS."""
    loss, X = task.supervised, task.supervised_rows
    if loss is None or X is None or task.targets is None:
        return None
    if isinstance(loss, SquaredLoss):
        return torch.linalg.pinv(X) @ task.targets
    shape = (X.shape[1], task.targets.shape[1])

    def value_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        beta = torch.as_tensor(flat).reshape(shape).to(X)
        return float(loss.value(beta)), loss.derivative(beta).cpu().numpy().ravel()

    found = minimize(
        value_and_gradient, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B", options={"maxiter": 500}
    )
    return torch.as_tensor(found.x).reshape(shape).to(X)
