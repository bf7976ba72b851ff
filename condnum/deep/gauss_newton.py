r"""Curvature of the cross entropy in the parameters that an attacker trains, without its matrix (GGN).

.. math:: G = \frac1N \sum_n J_n^\top H_n J_n, \qquad J_n = \partial f(x_n)/\partial w, \quad
   H_n = \nabla_f^2 \ell(f(x_n), y_n)

Positive semidefinite, and for a linear head the Hessian of the probe. A product `Gv` is one pass over the
batches (`curvlinops.GGNLinearOperator`), of the whole model: where a trunk lies before the parameters, pass
what follows it, with the trunk's activations as inputs. The model evaluates, and is left as it was.
"""

import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.backbone import evaluating
from condnum.errors import InvalidInputError, RankError, require
from condnum.probing.descents import gradient_contraction
from condnum.probing.recurrences import first_step, rate_steps
from condnum.progress import report_event

#: Batches `(inputs, labels)`.
Data: TypeAlias = Sequence[tuple[Tensor, Tensor]]
_Array: TypeAlias = NDArray[np.float64]

#: Most parameters whose matrix is formed, so many columns at a time: its spectrum then takes seconds.
DENSE, _COLUMNS = 4096, 256
#: Residual of λ_max, relative to it, that is small enough.
_TOLERANCE = 1e-3
#: Eigenvalues above `_FLOOR·λ_max` count.
_FLOOR = 1e-6

_FLAT = "the loss has no curvature in these parameters: no output depends on them."


@dataclass(frozen=True, eq=False)
class Curvature:
    """Spectrum of the GGN in one subset of parameters, with the evidence that it rests on."""

    parameters: int  # P
    rows: int  # N
    rank_bound: int  # min(P, N·(C−1))
    largest: float  # λ_max
    smallest: float  # smallest eigenvalue above the floor; unless `resolved`, an upper bound on it
    floor: float  # relative to λ_max; as asked for, or twice the round-off if that is more
    eigenvalues: _Array  # (m,) ascending: all of the matrix, or the Ritz values of Lanczos
    resolved: bool  # of the matrix, or Lanczos has come to an end: no eigenvalue is missing
    residuals: tuple[float, float]  # ‖Gv − λv‖ for `largest`, `smallest`; of the matrix its asymmetry
    iterations: int  # of Lanczos; 0 for the matrix

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
    weights: _Array  # (m,) τ², in sum ‖g‖² without what lies below the floor
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
        """Return the fraction of the excess loss that is left after some steps of a rate."""
        energy = self.weights / self.ritz_values
        return float(energy / energy.sum() @ np.abs(1 - rate * self.ritz_values) ** (2.0 * step))

    def best_rate(self, step: int) -> float:
        """Return the rate up to `2/θ_max` that leaves least after some steps: a convex search."""
        top = 2 / float(self.ritz_values[0])
        found = minimize_scalar(lambda x: self.left(step, x * top), bounds=(0, 1), options={"xatol": 1e-9})
        return float(found.x) * top

    def steps(self, fraction: float) -> float:
        """Return the steps at the best constant rate until a fraction of the excess loss is left."""
        return first_step(lambda step: self.left(step, self.best_rate(step)), fraction)

    def kappa_steps(self, fraction: float) -> float:
        """Return the steps that κ alone predicts (Eq. 2): `((κ−1)/(κ+1))^{2t} ≤ fraction`, the worst case."""
        return rate_steps(gradient_contraction(self.condition), fraction)


def curvature(
    model: nn.Module,
    parameters: Iterable[Tensor],
    data: Data,
    *,
    floor: float = _FLOOR,
    iterations: int = 20,
    seed: int = 0,
) -> Curvature:
    """Measure extreme eigenvalues of the GGN in some of a model's parameters, which may be parametrized.

    Of few parameters the matrix is formed, and all is exact. Else one Lanczos run from a random vector gives
    Ritz values; SciPy's restarted one goes on where λ_max has not converged. An eigenvalue lies within its
    residual of each Ritz value, and one between any two neighbors: the least that this shows above the floor
    is `smallest`, so `condition` is too small rather than too large.

    Examples:
        >>> model = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> data = [(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))]
        >>> found = curvature(model, model.parameters(), data)
        >>> found.largest, round(found.condition, 4)  # XᵀX/N has 2 and ½, the softmax of two classes ½
        (1.0, 4.0)
    """
    with ggn_operator(model, parameters, data) as G:
        P = G.shape[0]
        if dense := P <= DENSE:
            theta, asymmetry = _dense_spectrum(G)
            residuals, resolved = np.full(P, asymmetry), True
        else:
            generator = torch.Generator().manual_seed(seed)
            run = _lanczos(G, torch.randn(P, generator=generator, dtype=G.dtype).to(G.device), iterations)
            theta, residuals, resolved = run.theta, run.residuals, run.exhausted
            theta[-1], residuals[-1] = _top_pair(G, run)
    floor = max(floor, 2 * -float(theta[0] / theta[-1]))  # G has no negative eigenvalue: that is round-off
    smallest, its_residual = _low_end(theta, residuals, floor * theta[-1], resolved)
    return Curvature(
        parameters=P,
        rows=G.rows,
        rank_bound=min(P, G.rows * (G.outputs - 1)),
        largest=float(theta[-1]),
        smallest=smallest,
        floor=floor,
        eigenvalues=theta,
        resolved=resolved,
        residuals=(float(residuals[-1]), its_residual),
        iterations=0 if dense else len(theta),
    )


def gradient_spectrum(
    model: nn.Module,
    parameters: Iterable[Tensor],
    data: Data,
    *,
    floor: float = _FLOOR,
    iterations: int = 30,
) -> GradientSpectrum:
    """Measure where in the spectrum of the GGN the gradient lies, by Lanczos from the gradient."""
    with ggn_operator(model, parameters, data) as G:
        g = G.gradient()
        norm = float(torch.linalg.vector_norm(g.double()))
        if norm == 0:
            raise RankError("the gradient is zero: these parameters are at an optimum.")
        run = _lanczos(G, g, iterations)
    seen = run.weights > torch.finfo(g.dtype).eps ** 2  # less of g is round-off
    kept = np.flatnonzero(seen & (run.theta > floor * run.theta[-1]))[::-1]
    return GradientSpectrum(run.theta[kept], norm**2 * run.weights[kept], len(run.theta), run.exhausted)


@contextmanager
def ggn_operator(model: nn.Module, parameters: Iterable[Tensor], data: Data) -> Generator[Any]:
    """Yield the GGN as an operator of curvlinops with `rows` N, `outputs` C and `gradient`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of what curvlinops imports
        operator = require("curvlinops", "deep").GGNLinearOperator
    chosen, loss = list(parameters), nn.CrossEntropyLoss()

    def gradient() -> Tensor:
        total = torch.zeros(G.shape[0], dtype=G.dtype, device=G.device)
        for X, y in data:
            value = loss(model(X), y) * (len(X) / G.rows)
            parts = torch.autograd.grad(value, chosen, materialize_grads=True)
            total += torch.cat([part.flatten() for part in parts])
        return total

    flags = [(p, p.requires_grad) for p in model.parameters()]
    try:
        model.requires_grad_(False)
        for p in chosen:
            p.requires_grad_(True)
        with evaluating(model), sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward derivative
            outputs, rows = model(data[0][0]), sum(len(X) for X, _ in data)
            if not outputs.requires_grad:
                raise RankError(_FLAT)
            G = operator(model, loss, chosen, data, check_deterministic=False, num_data=rows)
            G.rows, G.outputs, G.gradient = rows, outputs.shape[1], gradient
            yield G
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)


def _dense_spectrum(G: Any) -> tuple[_Array, float]:
    """Return all eigenvalues, ascending, and the asymmetry of the matrix, which its round-off shows in."""
    eye = torch.eye(G.shape[0], dtype=G.dtype, device=G.device)
    A = _finite(torch.cat([G @ part.mT for part in eye.split(_COLUMNS)], dim=1)).double().cpu()
    values = torch.linalg.eigvalsh((A + A.mT) / 2).numpy()
    return _curved(values), float(torch.linalg.matrix_norm(A - A.mT)) / 2


def _finite(values: Tensor) -> Tensor:
    """Return what is finite, or say what to do."""
    if not bool(torch.isfinite(values).all()):
        raise InvalidInputError("the curvature is not finite; check the weights of the model.")
    return values


def _curved(values: _Array) -> _Array:
    """Return eigenvalues, ascending, of which one is positive."""
    if not values[-1] > 0:
        raise RankError(_FLAT)
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
