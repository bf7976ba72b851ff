r"""Curvature of the loss in the parameters that an attacker trains, without its matrix (GGN).

.. math:: G = \frac1N \sum_n J_n^\top H_n J_n, \qquad J_n = \partial f(x_n)/\partial w, \quad
   H_n = \nabla_f^2 \ell(f(x_n), y_n)

Positive semidefinite, and for a linear head the Hessian of the probe. A product `Gv` is one pass over the
batches (`curvlinops.GGNLinearOperator`); no batch is kept.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from torch import Tensor, nn

from condnum.deep.ggn_operator import FLAT, Data, Loss, ggn_operator
from condnum.errors import InvalidInputError, RankError, check_integer
from condnum.probing.descents import gradient_contraction
from condnum.probing.recurrences import first_step, rate_steps
from condnum.progress import report_event

_Array: TypeAlias = NDArray[np.float64]

#: Most parameters whose matrix is formed: its spectrum then takes seconds.
DENSE = 4096
#: Residual of λ_max, relative to it, that is small enough.
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Curvature:
    """Spectrum of the GGN in one subset of parameters, with the evidence that it rests on."""

    parameters: int  # P
    rows: int  # N
    rank_bound: int  # min(P, N·(C−1)) for cross entropy, min(P, N·C) for the squared loss
    largest: float  # λ_max
    smallest: float  # smallest eigenvalue above the floor; unless `resolved`, an upper bound on it
    floor: float  # relative to λ_max; as asked for, or 2·round_off if that is more
    eigenvalues: _Array  # (m,) ascending: all if `exact`, else the Ritz values of Lanczos
    exact: bool  # from the matrix itself, else by Lanczos
    resolved: bool  # exact, or Lanczos has come to an end: no eigenvalue is missing
    residuals: tuple[float, float]  # ‖Gv − λv‖ for `largest`, `smallest`; exact: the matrix's asymmetry
    round_off: float  # the most negative eigenvalue found, over λ_max; G has none
    iterations: int  # of Lanczos

    @property
    def condition(self) -> float:
        """κ above the floor, `largest/smallest`; unless `resolved`, κ lies between this and `1/floor`."""
        return self.largest / self.smallest


@dataclass(frozen=True, eq=False)
class GradientSpectrum:
    r"""Measure of the gradient over the spectrum of G by Gauss quadrature, and the steps that it predicts.

    Gradient descent of rate η on the local quadratic model has after t steps the excess loss
    :math:`\sum_j \frac{\tau_j^2}{2\theta_j}(1-\eta\theta_j)^{2t}`. Unless `exhausted`, directions so flat
    that no node stands for them are missing, and `excess` is a lower bound (Golub and Meurant 1994).
    """

    ritz_values: _Array  # (m,) θ above the floor, descending
    weights: _Array  # (m,) τ², in sum ‖g‖²·(1 − below_floor)
    residuals: _Array  # (m,) of the Ritz pairs
    floor: float  # relative to the largest Ritz value
    below_floor: float  # share of ‖g‖² on nodes that are left out
    gradient_norm: float
    iterations: int
    exhausted: bool  # the Krylov space is whole, and the measure exact

    @property
    def excess(self) -> float:
        """Excess loss of the local quadratic model at the start."""
        return float((self.weights / (2 * self.ritz_values)).sum())

    @property
    def condition(self) -> float:
        """κ of the nodes above the floor: of the directions that this gradient meets."""
        return float(self.ritz_values[0] / self.ritz_values[-1])

    def left(self, step: int, rate: float) -> float:
        """Return the share of the excess loss that is left after some steps of a rate."""
        energy = self.weights / self.ritz_values
        return float(energy / energy.sum() @ np.abs(1 - rate * self.ritz_values) ** (2.0 * step))

    def best_rate(self, step: int) -> float:
        """Return the rate up to `2/θ_max` that leaves least after some steps: a convex search."""
        top = 2 / float(self.ritz_values[0])
        found = minimize_scalar(lambda x: self.left(step, x * top), bounds=(0, 1), options={"xatol": 1e-9})
        return float(found.x) * top

    def steps(self, share: float) -> float:
        """Return the steps at the best constant rate until `share` of the excess loss is left.

        `inf` after 2⁵⁰ steps.
        """
        _check_share("share", share)
        return first_step(lambda step: self.left(step, self.best_rate(step)), share)

    def kappa_steps(self, share: float) -> float:
        """Return the steps that κ alone predicts (Eq. 2): `((κ−1)/(κ+1))^{2t} ≤ share`, the worst case."""
        _check_share("share", share)
        return rate_steps(gradient_contraction(self.condition), share)


def curvature(
    model: nn.Module,
    parameters: Iterable[Tensor],
    data: Data,
    *,
    loss: Loss = "cross_entropy",
    floor: float = 1e-6,
    iterations: int = 20,
    seed: int = 0,
) -> Curvature:
    r"""Measure the GGN of the mean loss in a subset of a model's parameters, in evaluation mode.

    Where the matrix costs no more passes than Lanczos would, it is formed, and all is exact. Else one Lanczos
    run from a random vector gives Ritz values; SciPy's restarted one goes on where λ_max has not converged.
    An eigenvalue lies within its residual of each Ritz value, and one between any two neighbors: the least
    that this shows above the floor is `smallest`, so `condition` is too small rather than too large. Each
    product runs the whole model: where a trunk lies before the parameters, pass
    what follows it, with the trunk's activations as inputs.

    Args:
        model: Maps inputs `(B, …)` to outputs `(B, C)`; weights may be parametrized (LoRA).
        parameters: Tensors of `model.parameters()`.
        data: Batches `(inputs, labels)`, the same at every pass: a list, or a loader without augmentation;
            of the parameters' type and device.
        loss: `cross_entropy` with labels `(B,)`, or `squared`: :math:`\frac12\|f - y\|^2` per row with
            targets `(B, C)`; a linear head has :math:`G = I_C ⊗ \tilde X^\top\tilde X/N`.
        floor: Eigenvalues above `floor·λ_max` count; at least twice `round_off`, which float32 has near 1e-7.
        iterations: Of Lanczos, at most; each holds a vector as long as the parameters.
        seed: Of the start; a local generator.

    Returns:
        Extreme eigenvalues, κ above the floor, and evidence.

    Raises:
        InvalidInputError: No parameters or not the model's, empty or changing data, outputs or labels that
            do not fit or are not finite, bad options.
        RankError: The outputs do not depend on the parameters.
        UnknownNameError: Unknown loss.
        MissingExtraError: curvlinops is not installed.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> data = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
        >>> found = curvature(model, model.parameters(), data, loss="squared")
        >>> found.exact, found.largest, found.condition
        (True, 2.0, 4.0)
    """
    _check_share("floor", floor)
    iterations = check_integer("iterations", iterations, 2)
    generator = torch.Generator().manual_seed(seed)
    with ggn_operator(model, parameters, data, loss) as G:
        P = G.shape[0]
        exact = P <= DENSE and math.ceil(P / G.columns) <= iterations
        if exact:
            theta, asymmetry = _dense_spectrum(G)
            residuals, resolved = np.full(P, asymmetry), True
        else:
            run = _lanczos(G, torch.randn(P, generator=generator, dtype=G.dtype).to(G.device), iterations)
            theta, residuals, resolved = run.theta, run.residuals, run.exhausted
            theta[-1], residuals[-1] = _top_pair(G, run)
    round_off = max(0.0, -float(theta[0] / theta[-1]))
    floor = max(floor, 2 * round_off)
    smallest, its_residual = _low_end(theta, residuals, floor * theta[-1], resolved)
    return Curvature(
        parameters=P,
        rows=G.rows,
        rank_bound=min(P, G.rows * (G.outputs - (loss == "cross_entropy"))),
        largest=float(theta[-1]),
        smallest=smallest,
        floor=floor,
        eigenvalues=theta,
        exact=exact,
        resolved=resolved,
        residuals=(float(residuals[-1]), its_residual),
        round_off=round_off,
        iterations=0 if exact else len(theta),
    )


def gradient_spectrum(
    model: nn.Module,
    parameters: Iterable[Tensor],
    data: Data,
    *,
    loss: Loss = "cross_entropy",
    floor: float = 1e-6,
    iterations: int = 30,
) -> GradientSpectrum:
    """Measure where in the spectrum of the GGN the gradient lies, by Lanczos from the gradient.

    Args:
        model: As for `curvature`, like the next three.
        parameters: Tensors of `model.parameters()`.
        data: Batches `(inputs, labels)`.
        loss: `cross_entropy` or `squared`.
        floor: Nodes above `floor·θ_max` are kept, if their weight is more than round-off.
        iterations: Of Lanczos, at most.

    Returns:
        Nodes and weights, and through them predicted numbers of steps.

    Raises:
        InvalidInputError: As `curvature` does.
        RankError: The gradient vanishes, or the outputs do not depend on the parameters.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> data = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.ones(2, 1))]
        >>> found = gradient_spectrum(model, model.parameters(), data, loss="squared")
        >>> found.ritz_values.round(6), round(found.excess, 6), found.steps(0.01)  # from the loss ½
        (array([2. , 0.5]), 0.5, 5.0)
    """
    _check_share("floor", floor)
    iterations = check_integer("iterations", iterations, 1)
    with ggn_operator(model, parameters, data, loss) as G:
        g = G.gradient()
        norm = float(torch.linalg.vector_norm(g.double()))
        if norm == 0:
            raise RankError("the gradient is zero: these parameters are at an optimum, or reach no output.")
        run = _lanczos(G, g, iterations)
    seen = run.weights > torch.finfo(g.dtype).eps ** 2  # less of g is round-off
    kept = np.flatnonzero(seen & (run.theta > floor * run.theta[-1]))[::-1]
    return GradientSpectrum(
        ritz_values=run.theta[kept],
        weights=norm**2 * run.weights[kept],
        residuals=run.residuals[kept],
        floor=floor,
        below_floor=max(0.0, 1 - float(run.weights[kept].sum())),
        gradient_norm=norm,
        iterations=len(run.theta),
        exhausted=run.exhausted,
    )


def _check_share(name: str, value: float) -> None:
    """Refuse what does not lie strictly between 0 and 1."""
    if not 0 < value < 1:
        raise InvalidInputError(f"{name} must lie between 0 and 1, got {value}.")


def _dense_spectrum(G: Any) -> tuple[_Array, float]:
    """Return all eigenvalues, ascending, and the asymmetry of the matrix, which its round-off shows in."""
    eye = torch.eye(G.shape[0], dtype=G.dtype, device=G.device)
    A = _finite(torch.cat([G @ part.mT for part in eye.split(G.columns)], dim=1)).double().cpu()
    values = torch.linalg.eigvalsh((A + A.mT) / 2).numpy()
    return _curved(values), float(torch.linalg.matrix_norm(A - A.mT)) / 2


def _finite(values: Tensor) -> Tensor:
    """Return what is finite, or say what to do."""
    if not bool(torch.isfinite(values).all()):
        raise InvalidInputError("the curvature is not finite; turn the model and its data to float64.")
    return values


def _curved(values: _Array) -> _Array:
    """Return eigenvalues, ascending, of which one is positive."""
    if not values[-1] > 0:
        raise RankError(FLAT)
    return values


@dataclass(frozen=True, eq=False)
class _Krylov:
    """A Lanczos run of m steps."""

    theta: _Array  # (m,) Ritz values, ascending
    weights: _Array  # (m,) of them in the measure of the start, in sum 1
    residuals: _Array  # (m,) of the Ritz pairs
    top: Tensor  # (P,) Ritz vector of the largest
    exhausted: bool  # nothing but round-off does


def _lanczos(G: Any, start: Tensor, iterations: int) -> _Krylov:
    """Run Lanczos; each vector is made orthogonal to all before it, twice, which is enough."""
    m, P = min(iterations, len(start)), len(start)
    Q, alphas, betas, q = start.new_empty(m, P), list[float](), list[float](), start
    for j in range(m):
        Q[j] = q / torch.linalg.vector_norm(q)
        q, alpha = _finite(G @ Q[j]), 0.0
        for _ in range(2):
            parts = Q[: j + 1] @ q
            q = q - parts @ Q[: j + 1]
            alpha += float(parts[j])
        alphas.append(alpha)
        betas.append(float(torch.linalg.vector_norm(q)))
        report_event(stage="curvature", step=j + 1, steps=m)
        exhausted = j + 1 == P or betas[-1] <= 10 * torch.finfo(q.dtype).eps * max(alphas + betas[:-1])
        if exhausted:
            break
    Q, beta = Q[: len(alphas)], betas.pop()
    theta, S = eigh_tridiagonal(alphas, betas)
    top = torch.from_numpy(S[:, -1]).to(Q) @ Q
    return _Krylov(_curved(theta), S[0] ** 2, beta * np.abs(S[-1]), top, exhausted)


def _top_pair(G: Any, run: _Krylov) -> tuple[float, float]:
    """Return λ_max and its residual; where Lanczos left too much of it, SciPy's restarted one goes on."""
    v, value = run.top, float(run.theta[-1])
    residual = float(torch.linalg.vector_norm(G @ v - value * v))
    if residual > _TOLERANCE * value:
        options = {"k": 1, "which": "LA", "ncv": min(len(v), 12), "maxiter": 10, "tol": _TOLERANCE / 2}
        with suppress(ArpackNoConvergence):
            (value,), vectors = eigsh(G.to_scipy(), v0=v.double().cpu().numpy(), **options)
            v = torch.from_numpy(vectors[:, 0]).to(v)
            residual = float(torch.linalg.vector_norm(G @ v - value * v))
    return float(value), residual


def _low_end(theta: _Array, residuals: _Array, floor: float, resolved: bool) -> tuple[float, float]:
    """Return the smallest eigenvalue above the floor, or the least upper bound on it, with its residual."""
    above = np.flatnonzero(theta > floor)
    if resolved:
        return float(theta[above[0]]), float(residuals[above[0]])
    bounds = np.where(theta - residuals > floor, theta + residuals, np.inf)
    bounds[above[1:]] = np.minimum(bounds[above[1:]], theta[above[1:]])  # one lies between two neighbors
    best = int(bounds.argmin())
    return float(bounds[best]), float(residuals[best])
