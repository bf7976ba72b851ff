"""Two tasks with chosen spectra, a chosen angle between their eigenbases, and a null space if wanted."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from condnum.errors import InvalidInputError
from condnum.lessons.condition_number import Floats, spectrum
from condnum.lessons.frame.explorer import Choice, Slider
from condnum.probing import ProbeCurve, linear_probe
from condnum.theory.limits import max_rir_immunizer
from condnum.theory.task import Task

#: Which task does not use the last feature.
NullKind = Literal["none", "both", "harmful", "benign"]
NULL_LABELS = {
    "none": "in no task",
    "both": "in both tasks",
    "harmful": "in the harmful task",
    "benign": "in pre-training",
}
_kappa = partial(Slider, low=1, high=100, log=True, marks=3)
#: Controls of two tasks, as several explorers have them.
TASK_CONTROLS: dict[str, Any] = {
    "kappa_benign": _kappa("κ of K<sub>P</sub>", "Condition number of the pre-training task."),
    "kappa_harmful": _kappa("κ of K<sub>H</sub>", "Condition number of the harmful task."),
    "angle": Slider("angle of the eigenbases (degrees)", "0: large directions agree; 90: opposite.", 0, 90),
    "null": Choice("last feature dead", "Tasks in which the last feature is always zero.", NULL_LABELS),
}
#: Arguments of `two_tasks`, to be remembered by.
TwoTasks = tuple[float, float, float, int, NullKind]


def two_tasks(
    kappa_benign: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 4,
    null: NullKind = "none",
) -> tuple[Floats, Floats]:
    """Return `diag(γ_P)` and `Q diag(γ_H) Qᵀ`; Q turns the planes of the i-th and i-th last eigenvectors."""
    turned = dimension - (null != "none")
    if turned < 2:
        least = 2 + dimension - turned
        raise InvalidInputError(f"dimension must be at least {least} with null='{null}', got {dimension}.")
    gamma_P, gamma_H = (spectrum("geometric", turned, kappa) for kappa in (kappa_benign, kappa_harmful))
    Q, first, phi = np.eye(turned), np.arange(turned // 2), np.deg2rad(angle)
    last = turned - 1 - first
    Q[first, first] = Q[last, last] = np.cos(phi)
    Q[last, first], Q[first, last] = np.sin(phi), -np.sin(phi)
    tasks = []
    for K, kappa, own in (
        (np.diag(gamma_P), kappa_benign, "benign"),
        ((Q * gamma_H) @ Q.T, kappa_harmful, "harmful"),
    ):
        if null != "none":
            K = np.pad(K, (0, 1))
            K[-1, -1] = 0.0 if null in ("both", own) else kappa**-0.5
        tasks.append(K)
    return tasks[0], tasks[1]


#: Steps of exact line search that are followed.
ATTACK_STEPS = 2000


@dataclass(frozen=True)
class Attack:
    """A linear probe on the harmful task with one set of features."""

    name: str  # of the features
    kappa: float  # κ of the probe's Hessian
    spectrum: Floats  # (D,) descending
    curve: ProbeCurve  # excess loss of exact line search

    def steps_to(self, share: float) -> int | None:
        """Return the first step with at most this fraction of the initial excess loss, or None."""
        reached = np.flatnonzero(self.curve.excess_loss <= share)
        return int(self.curve.steps[reached[0]]) if len(reached) else None


def whiten(theta: Floats, covariance: Floats) -> Floats:
    """Return `θV Σ^{-1/2}` for `θᵀKθ = VΣVᵀ`, from the attacker's own features alone."""
    return np.asarray(theta @ Task.of_covariance(theta.T @ covariance @ theta).whitener.numpy())


def attacks(*, angle: float = 45.0) -> list[Attack]:
    """Probe a harmful task, D = 16, through four extractors; the third has κ of θ*, all else at the top."""
    K_P, K_H = two_tasks(angle=angle, dimension=16)
    best = np.asarray(max_rir_immunizer(K_P))
    mu, V = np.linalg.eigh(best.T @ K_H @ best)
    gain = np.append(1.0, np.sqrt(mu[-1] / mu[1:]))
    extractors = {
        "raw inputs, θ = I": np.eye(16),
        "θ*": best,
        "same κ, other eigenvalues at the top": best @ (V * gain) @ V.T,
        "θ*, whitened by the attacker": whiten(best, K_H),
    }
    task, found = Task.of_covariance(K_H, K_H @ np.random.default_rng(0).normal(size=16)), []
    for name, theta in extractors.items():
        sigma = np.linalg.eigvalsh(theta.T @ K_H @ theta)[::-1]
        curve = linear_probe(theta, task, steps=ATTACK_STEPS)
        found.append(Attack(name, float(sigma[0] / sigma[-1]), sigma, curve))
    return found
