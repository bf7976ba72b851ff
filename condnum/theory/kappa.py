r"""Covariance, Hessian, condition numbers, the relative immunization ratio (Eq. 15) and Definition 3.1.

Two conventions: *compact* (Eq. 1, Moore–Penrose), :math:`κ = σ_1/σ_k` over the rank k, and *ridge*,
:math:`κ_ε = (σ_1 + ε)/(σ_D + ε)` with :math:`σ_D = 0` below full rank, as for an attacker with weight decay
ε. The scale of θ is a free parameter, as `cθ` releases the same model: compact κ does not see it; the ridge
measure is taken at :math:`\|θ\|_F = \sqrt D`, the norm of I, unless asked for θ as trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from condnum.arrays import (
    Array,
    ArrayLike,
    as_tensor,
    door,
    extractor_matrix,
    named_columns,
    storage_eps,
)
from condnum.errors import InvalidInputError, RankError, check_known
from condnum.numbers import num
from condnum.theory.linalg import (
    EPS,
    as_covariance,
    checked_gram,
    is_symmetric,
    symmetric_part,
    triangle_ends,
)
from condnum.theory.slowdown import descent_filter, first_step, slowdown_sentence
from condnum.theory.task import (
    Features,
    Task,
    graded_triangle,
    rank_tolerance,
    stored_extractor,
    two_tasks,
)

Convention = Literal["compact", "ridge"]
MatrixKind = Literal["matrix", "features"]
ThetaScale = Literal["unit", "as_trained"]

#: The absolute floor of the published linear experiments, kept as the comparable ridge.
PUBLISHED_RIDGE = 1e-6

#: Condition (c) counts as kept while θ loses at most this fraction of what raw features fit of D_P.
FIT_TOLERANCE = 0.01

#: A ratio of two κ's counts as above 1 beyond this; more for a θ stored in less than float64, whose rotations
#: are no immunizers either.
RATIO_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ConditionNumber:
    """A condition number with the evidence for it."""

    value: float  # κ
    sigma_max: float  # σ₁, before the ridge is added
    sigma_min: float  # compact: σ_k, the smallest kept; ridge: σ_D, 0 when rank-deficient
    rank: int  # k
    dimension: int  # D, number of singular values that the matrix could have
    convention: Convention

    @classmethod
    def of(
        cls,
        top: float,
        low: float,
        rank: int,
        dimension: int,
        convention: Convention = "compact",
        ridge: float = PUBLISHED_RIDGE,
    ) -> ConditionNumber:
        """Return κ of a matrix with these extreme singular values, of which `rank` count."""
        check_known("convention", convention, get_args(Convention))
        if rank == 0:
            raise RankError(
                "a matrix has rank 0 (all singular values are zero): its condition number is undefined; "
                "check that the features are not all constant zero."
            )
        if convention == "compact":
            return cls(top / low if low else math.inf, top, low, rank, dimension, convention)
        if not 0 < ridge < math.inf:
            raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
        least = low if rank == dimension else 0.0
        return cls((top + ridge) / (least + ridge), top, least, rank, dimension, convention)


def kappa(
    seen: Features, convention: Convention = "compact", *, ridge: float = PUBLISHED_RIDGE, scale: float = 1.0
) -> ConditionNumber:
    """Return κ of the Hessian H = θᵀKθ of a probe on features; `scale` multiplies θ.

    Examples:
        >>> import numpy as np
        >>> round(kappa(Task.of(np.diag([3.0, 1.0])).through(np.diag([2.0, 1.0]))).value, 9)
        36.0
    """
    top, low, rank = seen.ends
    top, low = top * scale, low * scale
    return ConditionNumber.of(top * top, low * low, rank, seen.dimension, convention, ridge)


@door
def covariance(features: ArrayLike) -> Array:
    """Return the data covariance `K = XᵀX`, uncentered and unnormalized as in the paper (Eq. 9).

    Args:
        features: `(N, D)` inputs, one row per sample.

    Returns:
        `(D, D)`, symmetric, of the caller's kind and dtype.

    Raises:
        InvalidInputError: Not two-dimensional, empty, non-finite, or too large to be squared.

    Examples:
        >>> covariance([[1.0, 0.0], [1.0, 2.0]])
        array([[2., 2.],
               [2., 4.]])
    """
    X = as_tensor(features, "features", ndim=2)
    return checked_gram(X.mT @ X, X)


@door
def hessian(theta: ArrayLike, covariance: Any) -> Array:
    """Return the Hessian of the linear probe, `H(θ) = θᵀKθ` (Eq. 9).

    As in the paper, the factor 2 of the squared loss is dropped, which does not change κ. Eigenvalues of K
    below its stored precision count as zero, so a float32 K keeps its rank in a float64 H.

    Args:
        theta: `(D, D_hid)` linear feature extractor; features are `Xθ`.
        covariance: `(D, D)` data covariance `K = XᵀX`, or a `Task`.

    Returns:
        `(D_hid, D_hid)`, symmetric, of the caller's kind and dtype.

    Raises:
        InvalidInputError: The shapes do not fit, entries are non-finite, `covariance` is not a covariance, or
            H would leave float64.

    Examples:
        >>> hessian([[1.0, 1.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 3.0]])
        array([[2., 2.],
               [2., 5.]])
    """
    names: Sequence[str]
    if isinstance(covariance, Task):
        K, names = covariance.covariance, covariance.columns or ()
    elif storage_eps(covariance) > EPS:
        K, names = Task.of_covariance(covariance).covariance, named_columns(covariance) or ()
    else:
        K, names = as_covariance(covariance, "covariance"), named_columns(covariance) or ()
    T = as_tensor(extractor_matrix(theta, columns=names), "theta", ndim=2)
    K = K.to(T.device)
    if len(T) != len(K):
        raise InvalidInputError(
            f"theta {tuple(T.shape)} and covariance {tuple(K.shape)} do not fit: "
            "theta must be (D, D_hid) and covariance (D, D)."
        )
    sizes = [float(part.detach().abs().max()) for part in (T, K)]
    if all(sizes) and not 0 < sizes[0] ** 2 * sizes[1] < math.inf:
        raise InvalidInputError(
            f"H = θᵀKθ leaves float64: the largest entries of theta and covariance are {sizes[0]:.3g} and "
            f"{sizes[1]:.3g}; rescale one of them, which does not change κ."
        )
    return symmetric_part(T.mT @ K @ T)


@door
def condition_number(
    matrix: Any,
    *,
    convention: Convention = "compact",
    rtol: float | None = None,
    ridge: float = PUBLISHED_RIDGE,
    kind: MatrixKind = "matrix",
) -> ConditionNumber:
    r"""Condition number of a matrix, in a stated convention.

    * `compact` (Eq. 1, Moore–Penrose): :math:`\kappa = \sigma_1/\sigma_k` over the numerical
      rank `k`, the number of singular values above `rtol·σ₁`.
    * `ridge`: :math:`\kappa_\varepsilon = (\sigma_1+\varepsilon)/(\sigma_D+\varepsilon)` with
      :math:`\sigma_D = 0` when rank-deficient, as for an attacker with weight decay ε.

    Args:
        matrix: `(p_r, p_c)`, or a `Task`, whose K it then is.
        convention: `compact` or `ridge`.
        rtol: Relative rank tolerance of the matrix; default `max(p_r, p_c)·eps` of the stored dtype, as of
            `numpy.linalg.matrix_rank`.
        ridge: ε > 0 of the ridge convention, in units of the singular values.
        kind: `matrix`, or `features`: κ of the probe's Hessian `XᵀX` of the feature matrix `X`, that of
            `Task.of(X)`, by the singular values of X.

    Returns:
        κ with the evidence.

    Raises:
        InvalidInputError: Not two-dimensional, non-finite entries, bad `rtol` or `ridge`.
        RankError: The matrix is zero, so that κ is undefined.
        UnknownNameError: Unknown convention or kind.

    Examples:
        >>> import numpy as np
        >>> condition_number(np.diag([4.0, 2.0, 0.0])).value
        2.0
        >>> condition_number(np.diag([4.0, 2.0, 0.0]), convention="ridge", ridge=1.0).value
        5.0
        >>> round(condition_number(np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), kind="features").value, 9)
        9.0
    """
    check_known("matrix kind", kind, get_args(MatrixKind))
    if isinstance(matrix, Task):
        if rtol is not None or kind != "matrix":
            raise InvalidInputError("a Task was cut at its rank: leave rtol and kind out, or give an array.")
        return kappa(matrix.raw, convention, ridge=ridge)
    if kind == "features":  # as of the task, without its vectors
        task = Task.of(matrix, name="matrix")
        tolerance = checked_rtol(rtol, task.rtol)
        top, low, rank = triangle_ends(graded_triangle(task.products[0]), tolerance)
        return ConditionNumber.of(top * top, low * low, rank, task.dimension, convention, ridge)
    M = as_tensor(matrix, "matrix", ndim=2).detach()
    eps = storage_eps(matrix)
    if is_symmetric(M, eps):
        sigma = torch.linalg.eigvalsh(symmetric_part(M)).abs().sort(descending=True).values
    else:
        sigma = torch.linalg.svdvals(M)
    tolerance = checked_rtol(rtol, rank_tolerance(max(M.shape), min(eps, 2.0**-23)))
    rank = int((sigma > tolerance * sigma[0]).sum())
    ends = float(sigma[0]), float(sigma[max(rank, 1) - 1])
    return ConditionNumber.of(*ends, rank, min(M.shape), convention, ridge)


def checked_rtol(rtol: float | None, default: float) -> float:
    """Return a relative tolerance, by default the given one, or say that it is out of range."""
    if rtol is None:
        return default
    if isinstance(rtol, bool) or not (isinstance(rtol, (int, float)) and 0 <= rtol < 1):
        raise InvalidInputError(f"rtol must lie in [0, 1), got {rtol!r}.")
    return float(rtol)


@dataclass(frozen=True)
class Clauses:
    """Definition 3.1 clause by clause: True, False, or None where it is not known."""

    harmful_slower: bool | None  # (a): κ(H_H) rises, (i) > 1
    benign_no_slower: bool | None  # (b): κ(H_P) does not rise, (ii) ≤ 1
    fit_kept: bool | None  # (c): D_P can be fitted as well as before

    @property
    def met(self) -> bool | None:
        """Whether all hold: False where one fails, None where that is not known."""
        kept = self.by_letter.values()
        return False if False in kept else None if None in kept else True

    @property
    def by_letter(self) -> dict[str, bool | None]:
        """The clauses under the letters of the definition."""
        return dict(zip("abc", astuple(self), strict=True))

    @property
    def failed(self) -> list[str]:
        """The clauses that fail, such as `(a)`."""
        return [f"({letter})" for letter, kept in self.by_letter.items() if kept is False]

    @property
    def unknown(self) -> list[str]:
        """The clauses that are not known."""
        return [f"({letter})" for letter, kept in self.by_letter.items() if kept is None]


@dataclass(frozen=True, repr=False)
class Immunization:
    """RIR of one extractor with its four condition numbers, and what they leave out.

    Condition numbers are worst cases over all targets; the two slowdowns are those of the actual ones.
    """

    harmful_before: ConditionNumber  # of K_H
    harmful_after: ConditionNumber  # of θᵀK_Hθ
    benign_before: ConditionNumber  # of K_P
    benign_after: ConditionNumber  # of θᵀK_Pθ
    tolerance: float = RATIO_TOLERANCE  # by which a ratio may exceed 1 and count as 1
    fit_lost: float | None = None  # of D_P's best fit on raw features, the fraction that θ loses
    theta_scale: ThetaScale = "unit"
    # Steps of the actual targets' probe over those on raw inputs; None without targets to learn.
    benign_slowdown: float | None = None
    harmful_slowdown: float | None = None

    @property
    def convention(self) -> Convention:
        """That of the condition numbers."""
        return self.harmful_before.convention

    @property
    def harmful_ratio(self) -> float:
        """(i) = κ(H_H(θ)) / κ(H_H(I)), wanted > 1."""
        return self.harmful_after.value / self.harmful_before.value

    @property
    def benign_ratio(self) -> float:
        """(ii) = κ(H_P(θ)) / κ(H_P(I)), wanted ≤ 1."""
        return self.benign_after.value / self.benign_before.value

    @property
    def rir(self) -> float:
        """RIR = (i) / (ii)."""
        return self.harmful_ratio / self.benign_ratio

    @property
    def harmful_lost(self) -> int:
        """By how much θ lowers the rank of D_H's Hessian."""
        return self.harmful_before.rank - self.harmful_after.rank

    @property
    def benign_lost(self) -> int:
        """By how much θ lowers the rank of D_P's Hessian."""
        return self.benign_before.rank - self.benign_after.rank

    @property
    def rank_changed(self) -> bool:
        """Whether θ changed a rank, so that compact κ's compare different subspaces."""
        return bool(self.benign_lost or self.harmful_lost)

    @property
    def clauses(self) -> Clauses:
        """Definition 3.1 clause by clause; a compact ratio across different ranks decides nothing."""
        most, compact = 1 + self.tolerance, self.convention == "compact"
        kept = None if self.benign_lost else True
        if self.fit_lost is not None:
            kept = self.fit_lost <= FIT_TOLERANCE
        return Clauses(
            None if compact and self.harmful_lost else self.harmful_ratio > most,
            None if compact and self.benign_lost else self.benign_ratio <= most,
            kept,
        )

    @property
    def success(self) -> bool:
        """Whether θ is shown to meet Definition 3.1: all three clauses."""
        return self.clauses.met is True

    @property
    def verdict(self) -> str:
        """Definition 3.1 in words: met, NOT met and which clauses fail, or undecided as a rank changed."""
        failed = self.clauses.failed
        if failed:
            return f"NOT met, {' and '.join(failed)} {'fails' if len(failed) == 1 else 'fail'}"
        if self.success:
            return "met"
        lost = [
            f"rank(H_{letter}) falls from {before.rank} to {after.rank}"
            for letter, before, after in (
                ("P", self.benign_before, self.benign_after),
                ("H", self.harmful_before, self.harmful_after),
            )
            if before.rank != after.rank
        ]
        return f"undecided in {' and '.join(self.clauses.unknown)}: {' and '.join(lost)}"

    def __repr__(self) -> str:
        """Return the verdict in words, and how slow the actual probes become."""
        return f"Definition 3.1 is {self.verdict}: {self.ratios}, RIR = {self.rir:.4g}. {self.slowed}"

    def __str__(self) -> str:
        """Return these words, and the condition numbers behind it as a short table."""
        lines = [f"{self!r}", f"{self.convention:<8}{'before':>11}{'after':>11}{'ratio':>11}  rank"]
        for task, name in (("benign", "κ(H_P)"), ("harmful", "κ(H_H)")):
            old, new = getattr(self, f"{task}_before"), getattr(self, f"{task}_after")
            values = (num(value, 4) for value in (old.value, new.value, new.value / old.value))
            lines.append(f"{name:<8}{''.join(f'{v:>11}' for v in values)}  {old.rank} → {new.rank}")
        return "\n".join(lines)

    @property
    def ratios(self) -> str:
        """Both ratios in words."""
        return f"(i) = {self.harmful_ratio:.4g}, (ii) = {self.benign_ratio:.4g}"

    @property
    def slowed(self) -> str:
        """How many times as many steps the actual probes take, in words."""
        return slowdown_sentence(self.success, self.benign_slowdown, self.harmful_slowdown)


@dataclass(frozen=True, eq=False)
class Seen:
    """What probes see of two tasks through one θ: RIR, Definition 3.1 and both step factors."""

    benign: Features  # of θ at unit scale, ‖θ‖_F = √D
    harmful: Features
    size: float  # ‖θ‖_F/√D of θ as it was given
    tolerance: float  # of ratios, for a θ stored so
    probes: tuple[Features | None, Features | None] = field(
        default=(None, None), repr=False
    )  # where targets are

    @classmethod
    def of(cls, theta: Any, P: Task, H: Task, probes: tuple[Task | None, Task | None] | None = None) -> Seen:
        """Measure θ `(D, D_hid)`; `probes` are the tasks of the actual probes, by default of P and H."""
        T = stored_extractor(theta, columns=P.columns)
        unit = unit_scale(T)
        seen = P.through(unit), H.through(unit)
        actual = (P.probe, H.probe) if probes is None else probes
        benign, harmful = (
            None if task is None or not task.learnable else of if task is of.task else task.through(unit)
            for task, of in zip(actual, seen, strict=True)
        )
        largest = unit.abs().argmax()
        size = float(T.flatten()[largest] / unit.flatten()[largest])
        # Rounding a rotation moves θ by ‖E‖ ≤ √D·eps/2, and a κ by less than (1 + ‖E‖)²/(1 − ‖E‖)².
        noise = 4 * math.sqrt(max(T.shape)) * storage_eps(extractor_matrix(theta))
        return cls(*seen, size, max(RATIO_TOLERANCE, noise), (benign, harmful))

    @cached_property
    def slowdowns(self) -> tuple[float | None, float | None]:
        """Steps of the benign and the harmful probe over those on raw inputs."""
        benign, harmful = (None if seen is None else slowdown(seen) for seen in self.probes)
        return benign, harmful

    def immunization(
        self,
        convention: Convention = "compact",
        *,
        ridge: float = PUBLISHED_RIDGE,
        theta_scale: ThetaScale = "unit",
    ) -> Immunization:
        """Return RIR and the verdict of Definition 3.1."""
        check_known("theta_scale", theta_scale, get_args(ThetaScale))
        scale = 1.0 if theta_scale == "unit" else self.size
        kappas: Mapping[str, ConditionNumber] = {
            f"{name}_{when}": kappa(of, convention, ridge=ridge, scale=scale if when == "after" else 1.0)
            for name, seen in (("benign", self.benign), ("harmful", self.harmful))
            for when, of in (("before", seen.task.raw), ("after", seen))
        }
        lost = None if self.probes[0] is None else fit_lost(self.probes[0])
        return Immunization(
            fit_lost=lost,
            tolerance=self.tolerance,
            theta_scale=theta_scale,
            benign_slowdown=self.slowdowns[0],
            harmful_slowdown=self.slowdowns[1],
            **kappas,
        )


def fit_lost(seen: Features) -> float:
    """Return clause (c): which fraction of the best squared fit on raw features no probe of these reaches."""
    raw = float(seen.task.along.square().sum())
    if not raw or seen.rank == seen.task.rank:
        return 0.0
    return max(0.0, 1 - float(seen.along.square().sum()) / raw)


def slowdown(seen: Features, epsilon: float = 0.01) -> float:
    """Return how many times as many steps gradient descent takes on the features as on raw inputs.

    The goal is the loss to ε of the excess on raw inputs; ∞ where the features do not allow it, or it takes
    more than 2⁵⁰ steps; NaN where raw inputs take as many.

    Examples:
        The target lies along the strong direction, which θ makes the weak one.

        >>> import numpy as np
        >>> task = Task.of(np.diag([10.0, 1.0]), [1.0, 0.0])
        >>> slowdown(task.through(np.diag([5000**-0.5, 1.0])))
        114.0
    """
    raw = seen.task.raw
    steps = descent_steps(seen, epsilon)
    return steps / descent_steps(raw, epsilon)


def descent_steps(seen: Features, epsilon: float = 0.01) -> float:
    """Return the steps 1/σ₁ of gradient descent from zero to within ε of the loss that raw inputs allow."""
    total = float(seen.task.along.square().sum())
    energy = (seen.along.square().sum(dim=1) / total).cpu().numpy()
    relative = (seen.sigma[: seen.rank] / seen.sigma[0]).square().cpu().numpy()
    goal = float(energy.sum()) - (1 - epsilon)
    if goal <= 0:
        return math.inf
    return first_step(lambda steps: float(energy @ descent_filter(relative, steps) ** 2), goal)


@door
def relative_immunization_ratio(
    theta: Any,
    benign: Any,
    harmful: Any,
    *,
    convention: Convention = "compact",
    theta_scale: ThetaScale = "unit",
    ridge: float = PUBLISHED_RIDGE,
) -> Immunization:
    r"""Measure how much θ immunizes: RIR of Eq. 15 and the verdict of Definition 3.1.

    .. math:: \mathrm{RIR} = \frac{\kappa(H_H(\theta))/\kappa(H_H(I))}{\kappa(H_P(\theta))/\kappa(H_P(I))}

    RIR ≫ 1 alone can hide a failure of either ratio; success requires (i) > 1 **and** (ii) ≤ 1, beyond 1e-6.
    A clause is None where θ lowers a rank: compact κ then compares different subspaces. Clause (c) is the
    part of what raw features fit that θ loses; without targets it holds where H_P keeps its rank.

    Args:
        theta: `(D, D_hid)` linear feature extractor.
        benign: D_P as a `Task`, or `(D, D)` K_P.
        harmful: D_H as a `Task`, or `(D, D)` K_H.
        convention: `compact` or `ridge`; the two can give opposite verdicts, so report both.
        theta_scale: `unit` measures θ scaled to `‖θ‖_F = √D`; `as_trained` measures it unscaled (only
            the ridge convention depends on this).
        ridge: ε of the ridge convention.

    Returns:
        The ratios, RIR, the verdict, the four condition numbers and, of tasks with targets, how many times as
        many steps their actual probes take.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, K_P or K_H is not a covariance.
        RankError: θ or a covariance is zero.
        UnknownNameError: Unknown convention or scale of θ.

    Examples:
        The counter-example to "aligned tasks cannot be immunized": both covariances are diagonal.

        >>> import numpy as np
        >>> theta = np.diag([0.1, 1.0])
        >>> result = relative_immunization_ratio(theta, np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
        >>> round(result.benign_ratio, 12), round(result.harmful_ratio, 12), result.success
        (0.01, 25.0, True)
        >>> result
        Definition 3.1 is met: (i) = 25, (ii) = 0.01, RIR = 2500. How many steps the actual probes take is not
        known without targets to learn.
    """
    seen = Seen.of(theta, *two_tasks(benign, harmful))
    return seen.immunization(convention, ridge=ridge, theta_scale=theta_scale)


def both_conventions(seen: Seen, *, ridge: float = PUBLISHED_RIDGE) -> tuple[Immunization, Immunization]:
    """Return the compact and the ridge verdict of θ at unit scale."""
    return seen.immunization("compact", ridge=ridge), seen.immunization("ridge", ridge=ridge)


def unit_scale(theta: Tensor) -> Tensor:
    """Scale θ to `‖θ‖_F = √D`, the norm of the identity."""
    norm = float(torch.linalg.matrix_norm(theta))
    if not 0 < norm < math.inf:  # squares have left float64, or θ is zero
        theta = theta / theta.abs().max().clamp_min(torch.finfo(theta.dtype).tiny)
        norm = float(torch.linalg.matrix_norm(theta))
    if norm == 0:
        raise RankError(
            "theta is the zero matrix: no features are extracted, and its condition number is undefined."
        )
    return theta * (math.sqrt(len(theta)) / norm)
