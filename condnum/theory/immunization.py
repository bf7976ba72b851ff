"""The relative immunization ratio (Eq. 15) and the verdict of Definition 3.1.

The scale of θ is a free parameter: `cθ` releases the same model. The compact convention and RIR do not
see it, the two ridge ratios do; so they are measured at `‖θ‖_F = √D`, the norm of `I`, unless the
caller asks for θ as trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, extractor_matrix, named_columns, storage_eps
from condnum.errors import InvalidInputError, RankError, check_known
from condnum.numbers import num, short_repr
from condnum.theory.covariances import CovarianceRange, task_ranges
from condnum.theory.slowdown import slowdown_sentence
from condnum.theory.spectra import (
    PUBLISHED_RIDGE,
    ConditionNumber,
    Convention,
    as_extractor,
    condition_from_spectrum,
    default_rtol,
    features_seen,
    hessian_spectrum,
    storage_noise,
)

ThetaScale = Literal["unit", "as_trained"]

#: Condition (c) counts as kept while the best loss on D_P rises by at most this fraction of the loss of
#: predicting zero.
LOSS_TOLERANCE = 0.01

#: A ratio of two κ's counts as above 1 beyond this: the spectra of one matrix at two scales differ by
#: round-off, and the control θ = I must not pass for an immunizer. More for a θ stored in less than float64.
RATIO_TOLERANCE = 1e-9


def ratio_tolerance(dimension: int, eps: float) -> float:
    """Return by how much a ratio of two κ's may exceed 1 and count as 1, for θ or features stored at eps."""
    return max(RATIO_TOLERANCE, 4 * storage_noise(dimension, eps))


@dataclass(frozen=True)
class Clauses:
    """Definition 3.1 clause by clause: True, False, or None where it is not known."""

    harmful_slower: bool | None  # (a): κ(H_H) rises, (i) > 1
    pretrain_no_slower: bool | None  # (b): κ(H_P) does not rise, (ii) ≤ 1
    fit_kept: bool | None  # (c): D_P can be fitted as well as before

    @classmethod
    def of(
        cls, harmful_ratio: float, pretrain_ratio: float, loss_gap: float | None, tolerance: float
    ) -> Clauses:
        """Decide each clause; (c) is not known without the rise of the best loss on D_P."""
        most = 1 + tolerance
        kept = None if loss_gap is None else loss_gap <= LOSS_TOLERANCE
        return cls(harmful_ratio > most, pretrain_ratio <= most, kept)

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
    pretrain_before: ConditionNumber  # of K_P
    pretrain_after: ConditionNumber  # of θᵀK_Pθ
    loss_gap: float | None  # clause (c): rise of the best loss on D_P, None when not given
    convention: Convention
    theta_scale: ThetaScale
    doubts: Mapping[str, str] = field(default_factory=dict)  # clause -> why float64 cannot decide it
    tolerance: float = RATIO_TOLERANCE  # by which a ratio may exceed 1 and count as 1
    # Steps of the actual targets' probe over those on raw inputs; None without targets to learn.
    benign_slowdown: float | None = None
    harmful_slowdown: float | None = None

    @property
    def harmful_ratio(self) -> float:
        """(i) = κ(H_H(θ)) / κ(H_H(I)), wanted > 1."""
        return self.harmful_after.value / self.harmful_before.value

    @property
    def pretrain_ratio(self) -> float:
        """(ii) = κ(H_P(θ)) / κ(H_P(I)), wanted ≤ 1."""
        return self.pretrain_after.value / self.pretrain_before.value

    @property
    def rir(self) -> float:
        """RIR = (i) / (ii)."""
        return self.harmful_ratio / self.pretrain_ratio

    @property
    def clauses(self) -> Clauses:
        """Definition 3.1 clause by clause; (c) holds without a loss gap where H_P keeps its rank."""
        known = Clauses.of(self.harmful_ratio, self.pretrain_ratio, self.loss_gap, self.tolerance)
        if self.loss_gap is None and self.pretrain_lost <= 0:
            known = replace(known, fit_kept=True)
        names = {"a": "harmful_slower", "b": "pretrain_no_slower"}
        return replace(known, **{names[clause]: None for clause in self.doubts})

    @property
    def success(self) -> bool:
        """Whether θ is shown to meet Definition 3.1: all three clauses."""
        return self.clauses.met is True

    @property
    def verdict(self) -> str:
        """Definition 3.1 in words: met, NOT met with the clauses that fail, not known, or undecided."""
        failed = self.clauses.failed
        if failed:
            return f"NOT met, {' and '.join(failed)} {'fails' if len(failed) == 1 else 'fail'}"
        if self.success:
            return "met"
        if self.doubts:
            reasons = (f"({clause}), as {reason}" for clause, reason in self.doubts.items())
            return f"not known at this precision: {' and '.join(reasons)}"
        return (
            f"undecided: theta removes {self.pretrain_lost} of the {self.pretrain_before.rank} directions "
            "that D_P uses, and clause (c) needs targets of D_P"
        )

    def __repr__(self) -> str:
        """Return the verdict in words, and how slow the actual probes become."""
        return f"Definition 3.1 is {self.verdict}: {self.ratios}, RIR = {self.rir:.4g}. {self.slowed}"

    def __str__(self) -> str:
        """Return these words, and the condition numbers behind it as a short table."""
        lines = [f"{self!r}", f"{self.convention:<8}{'before':>11}{'after':>11}{'ratio':>11}  rank"]
        for task, name in (("pretrain", "κ(H_P)"), ("harmful", "κ(H_H)")):
            old, new = getattr(self, f"{task}_before"), getattr(self, f"{task}_after")
            values = (num(value, 4) for value in (old.value, new.value, new.value / old.value))
            lines.append(f"{name:<8}{''.join(f'{v:>11}' for v in values)}  {old.rank} → {new.rank}")
        return "\n".join(lines)

    @property
    def ratios(self) -> str:
        """Both ratios in words."""
        return f"(i) = {self.harmful_ratio:.4g}, (ii) = {self.pretrain_ratio:.4g}"

    @property
    def slowed(self) -> str:
        """How many times as many steps the actual probes take, in words."""
        return slowdown_sentence(self.success, self.benign_slowdown, self.harmful_slowdown)

    @property
    def pretrain_lost(self) -> int:
        """By how much θ lowers the numerical rank of D_P's Hessian."""
        return self.pretrain_before.rank - self.pretrain_after.rank

    @property
    def rank_changed(self) -> bool:
        """Whether θ changed a numerical rank, so that compact κ's compare different subspaces."""
        return self.pretrain_lost != 0 or self.harmful_before.rank != self.harmful_after.rank


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


def relative_immunization_ratio(
    theta: ArrayLike,
    pretrain_covariance: ArrayLike | CovarianceRange | None = None,
    harmful_covariance: ArrayLike | CovarianceRange | None = None,
    *,
    pretrain_features: ArrayLike | None = None,
    harmful_features: ArrayLike | None = None,
    convention: Convention = "compact",
    theta_scale: ThetaScale = "unit",
    rtol: float | None = None,
    ridge: float = PUBLISHED_RIDGE,
    loss_gap: float | None = None,
) -> Immunization:
    r"""Measure how much θ immunizes: RIR of Eq. 15 and the verdict of Definition 3.1.

    .. math:: \mathrm{RIR} = \frac{\kappa(H_H(\theta))/\kappa(H_H(I))}{\kappa(H_P(\theta))/\kappa(H_P(I))}

    RIR ≫ 1 alone can hide a failure of either ratio; success requires (i) > 1 **and** (ii) ≤ 1.

    With r = rank(θ) at its stored precision, σ_D of the ridge convention's `(σ₁ + ε)/(σ_D + ε)` is the r-th
    singular value of H(θ), and 0 where rank(H(θ)) < r. A κ is *not known at this precision* where H(θ) falls
    short of the rank that K and θ give it, because σ_k/σ₁ lies below the tolerance. Where that can change a
    clause, the clause is None, and success is not claimed.

    Args:
        theta: `(D, D_hid)` linear feature extractor.
        pretrain_covariance: `(D, D)`, `K_P`, or its range.
        harmful_covariance: `(D, D)`, `K_H`, or its range.
        pretrain_features: `(N_P, D)` inputs X_P in place of `K_P`.
        harmful_features: `(N_H, D)` inputs X_H in place of `K_H`.
        convention: `compact` or `ridge`; the two can give opposite verdicts, so report both.
        theta_scale: `unit` measures θ scaled to `‖θ‖_F = √D`; `as_trained` measures it unscaled (only
            the ridge convention depends on this).
        rtol: Relative rank tolerance, see `condition_number`.
        ridge: ε of the ridge convention.
        loss_gap: Clause (c), the rise of the best loss on D_P (`LinearTask.loss_gap`), which decides where θ
            removes directions that D_P uses.

    Returns:
        The ratios, RIR, the verdict and the four condition numbers. The steps of actual probes are not known
        without targets: `Immunizer` and `immunize` add them.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, K_P or K_H is not a covariance.
        RankError: θ or a covariance is zero.
        UnknownNameError: Unknown convention or scale of θ.

    Examples:
        The counter-example to "aligned tasks cannot be immunized": both covariances are diagonal.

        >>> import numpy as np
        >>> theta = np.diag([0.1, 1.0])
        >>> result = relative_immunization_ratio(theta, np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
        >>> round(result.pretrain_ratio, 12), round(result.harmful_ratio, 12), result.success
        (0.01, 25.0, True)
        >>> result
        Definition 3.1 is met: (i) = 25, (ii) = 0.01, RIR = 2500. How many steps the actual probes take is not
        known without targets to learn.
    """
    check_known("theta_scale", theta_scale, ("unit", "as_trained"))
    given = pretrain_covariance, harmful_covariance, pretrain_features, harmful_features
    matrix = extractor_matrix(theta, columns=named_columns(*given))
    return immunization_from_spectra(
        HessianSpectra.of(matrix, *task_ranges(*given, rtol=rtol), theta_scale=theta_scale, rtol=rtol),
        convention=convention,
        theta_scale=theta_scale,
        rtol=rtol,
        ridge=ridge,
        loss_gap=loss_gap,
    )


@dataclass(frozen=True)
class HessianSpectra:
    """The four non-zero spectra that RIR is made of, each descending, as long as its exact rank.

    What lies between the ends of a long one may only be counted, see `spectrum_ends`.
    """

    pretrain_before: Tensor  # (r_P,) of K_P
    pretrain_after: Tensor  # of θᵀK_Pθ
    harmful_before: Tensor  # (r_H,) of K_H
    harmful_after: Tensor  # of θᵀK_Hθ
    dimension_before: int  # D
    dimension_after: int  # r, the rank of θ
    rtol: float = 1.0  # at which the ranges tell K's rank, where that is finer than D·2⁻⁵²
    tolerance: float = RATIO_TOLERANCE
    hidden: tuple[str, ...] = ()  # tasks whose rank the units of their columns hide

    __repr__ = short_repr

    @classmethod
    def of(
        cls,
        theta: ArrayLike,
        P: CovarianceRange,
        H: CovarianceRange,
        *,
        theta_scale: ThetaScale = "unit",
        rtol: float | None = None,
    ) -> HessianSpectra:
        """Return the spectra of θ `(D, D_hid)` on two tasks, at its stored precision, read at `rtol`."""
        theta = extractor_matrix(theta)
        T, rank = as_extractor(theta)
        if len(T) != P.dimension:
            raise InvalidInputError(
                f"pretrain_covariance and harmful_covariance are {(P.dimension, P.dimension)}: theta must "
                f"have as many rows, got {tuple(T.shape)}."
            )
        T, after = unit_scale(T) if theta_scale == "unit" else T, []
        finest = max(task.rtol or 1.0 for task in (P, H))
        least = min(default_rtol(len(T)), finest) if rtol is None else rtol
        for task in (P, H):
            task = task.to(T.device)
            left = task.rank if rank == len(T) else features_seen(T, task.vectors)
            ends = least if left == task.rank else None
            after.append(hessian_spectrum(T, task.factor, ends)[: max(left, 1)])
        spectra = P.values.to(T.device), after[0], H.values.to(T.device), after[1]
        tolerance = ratio_tolerance(max(T.shape), storage_eps(theta))
        hidden = tuple(name for name, task in (("pretrain", P), ("harmful", H)) if task.units_hide_rank)
        return cls(*spectra, len(T), rank, finest, tolerance, hidden)

    def scaled(self, factor: float) -> HessianSpectra:
        """Return the spectra of `θ·√factor`."""
        return replace(
            self, pretrain_after=self.pretrain_after * factor, harmful_after=self.harmful_after * factor
        )


def immunization_from_spectra(
    spectra: HessianSpectra,
    *,
    convention: Convention,
    theta_scale: ThetaScale,
    rtol: float | None = None,
    ridge: float = PUBLISHED_RIDGE,
    loss_gap: float | None = None,
) -> Immunization:
    """Return RIR and verdict from spectra alone, for sweeps that keep them."""
    rtol = min(default_rtol(spectra.dimension_before), spectra.rtol) if rtol is None else rtol
    kappas, doubts = dict[str, Any](), dict[str, str]()
    for clause, task in (("a", "harmful"), ("b", "pretrain")):
        for when in ("before", "after"):
            sigma, dimension = getattr(spectra, f"{task}_{when}"), getattr(spectra, f"dimension_{when}")
            least = rtol if when == "after" else 0.0  # the ranges hold what counts before
            numbers = condition_from_spectrum(
                sigma, convention=convention, rtol=least, ridge=ridge, dimension=dimension
            )
            value, largest, smallest, rank = (number.item() for number in numbers)
            found = ConditionNumber(value, largest, smallest, int(rank), dimension, convention)
            kappas[f"{task}_{when}"] = found
        k = len(sigma)
        ratio = value / kappas[f"{task}_before"].value
        # A σ_D below the tolerance rather than 0 divides the ridge κ by up to this.
        most, spare = 1 + spectra.tolerance, 1 + rtol * largest / ridge
        certain = convention == "ridge" and (k < dimension or (ratio > most) == (ratio / spare > most))
        if rank < k and not certain:
            doubts[clause] = (
                f"H_{task[0].upper()}(θ) has lost rank: {rank} of {k} directions lie above the rank "
                f"tolerance {rtol:.2g}, σ_{rank + 1}/σ₁ = {float(sigma[rank] / sigma[0]):.2g}"
            )
        if convention == "compact" and task in spectra.hidden:
            doubts[clause] = (
                f"the units of D_{task[0].upper()}'s columns differ so much that the rank of "
                f"K_{task[0].upper()} is not known: rescale them, or give features"
            )
    return Immunization(
        loss_gap=loss_gap,
        convention=convention,
        theta_scale=theta_scale,
        doubts=doubts,
        tolerance=spectra.tolerance,
        **kappas,
    )


def both_conventions(
    spectra: HessianSpectra, *, ridge: float = PUBLISHED_RIDGE, loss_gap: float | None = None
) -> tuple[Immunization, Immunization]:
    """Return the compact and the ridge verdict of θ at unit scale."""
    compact, ridged = (
        immunization_from_spectra(
            spectra, convention=convention, theta_scale="unit", ridge=ridge, loss_gap=loss_gap
        )
        for convention in get_args(Convention)
    )
    return compact, ridged
