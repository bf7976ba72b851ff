r"""Along the training of each extractor: its singular vectors and Proposition 3.2.

With :math:`\theta = U\Sigma V^\top` and :math:`K = B^\top B` all that is kept of a step follows from U, Σ and
the singular value decomposition of :math:`BU\Sigma`: V turns the features, and nothing here sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from condnum.data import TaskPair
from condnum.experiments import linear, pairs
from condnum.methods import Method, Progress, get_method, immunize
from condnum.methods.descent import overridden
from condnum.methods.problem import ImmunizationProblem
from condnum.probing.probe import log_spaced
from condnum.theory.linalg import SMALL, singular_triples
from condnum.theory.task import Task, rank_tolerance, stored_extractor

#: Steps of a training that are kept, about.
KEPT_STEPS = 48

#: Leading u_i of a step that are kept: all of 28×28 pixels, and few enough of any net's features for memory.
KEPT_DIRECTIONS = 784

#: Rows and columns of a map of overlaps; more directions are averaged in blocks.
PATH_BLOCKS = 32


@dataclass(frozen=True, eq=False)
class PathTasks:
    """Two tasks whose extractors are followed."""

    problem: ImmunizationProblem
    names: tuple[str, str]  # of D_P and D_H, in words
    features: tuple[str, ...]  # names of the D columns
    name: str  # what a user types for it, "mnist 4-9"
    shape: tuple[int, int] | None = None  # of an image whose pixels the columns are
    data: str = ""  # data set whose settings the methods have; "": their own defaults

    @classmethod
    def named(cls, data: str) -> Self:
        """Load house-prices, embedded, mnist:P-H, digits:P-H, or the files at a path."""
        source, pair = pairs.read_data(data)
        known, loaded, problem = pairs.data_set(source), pairs.load(source), pairs.tasks(source, pair)
        if isinstance(loaded, TaskPair):
            names = (loaded.benign_name, loaded.harmful_name)
            return cls(problem, names, loaded.feature_names, loaded.name, data=known)
        benign, harmful = (f"digit {digit}" for digit in pair.split("-"))
        shape = loaded.images.shape[1:]
        return cls(problem, (benign, harmful), loaded.feature_names, f"{known} {pair}", shape, known)

    @classmethod
    def of(cls, pair: TaskPair) -> Self:
        """Follow a pair of arrays."""
        names = (pair.benign_name, pair.harmful_name)
        return cls(ImmunizationProblem.from_pair(pair), names, pair.feature_names, pair.name)

    @property
    def dimension(self) -> int:
        """D."""
        return self.problem.dimension

    @cached_property
    def bases(self) -> list[TaskBasis]:
        """Both tasks in the eigenbases of their covariances."""
        return [TaskBasis.of(task) for task in (self.problem.benign, self.problem.harmful)]

    @cached_property
    def values(self) -> np.ndarray[Any, Any]:
        """γ of K_P and of K_H, descending, `(2, D)`."""
        return np.stack([one.values.numpy() for one in self.bases])

    @cached_property
    def vectors(self) -> np.ndarray[Any, Any]:
        """Q of K_P and of K_H, `(2, D, D)`."""
        return np.stack([one.vectors.numpy() for one in self.bases])

    def rank(self, side: int) -> int:
        """Return the rank of K of D_P (0) or of D_H (1)."""
        return self.bases[side].rank


@dataclass(frozen=True, eq=False)
class TaskBasis:
    """One task in the eigenbasis of its covariance."""

    values: Tensor  # (D,) γ, descending, zeros beyond the rank
    vectors: Tensor  # (D, D) Q
    rank: int  # r

    @classmethod
    def of(cls, task: Task) -> Self:
        """Decompose a task."""
        values = torch.nn.functional.pad(task.values, (0, task.dimension - task.rank))
        return cls(values, torch.cat([task.vectors, task.null_basis], dim=1), task.rank)

    @property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)`."""
        return (self.vectors[:, : self.rank] * self.values[: self.rank].sqrt()).mT


def kept_steps(limit: int) -> list[int]:
    """Return which steps of at most `limit` are kept: log-spaced, the first and the last among them."""
    count = wanted = min(KEPT_STEPS, limit + 1)
    while len(steps := log_spaced(limit, count)) < wanted:  # many of the first round to the same
        count += 1
    return [int(step) for step in steps]


def follow(
    tasks: PathTasks, method: str | Method, steps: int | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """Run a method and return what was measured of θ at log-spaced steps, a step a row.

    Besides `_measured`, by task: `step`; `sigma` and `left`, Σ and the leading columns of U; `ratios`, (ii)
    and (i).
    """
    chosen: Any = getattr(get_method(method), "defaults", None)
    if tasks.data and isinstance(method, str):
        chosen = linear.chosen_settings(tasks.data, method, 0)
    rows: list[dict[str, Any]] = []
    last: np.ndarray[Any, Any] | None = None  # U of the step before

    def see(step: int, theta: Tensor) -> None:
        """Measure θ and keep what the views need."""
        nonlocal last
        D = len(theta)
        U, s, _ = singular_triples(stored_extractor(theta), whole=True)
        rank = int((s > rank_tolerance(D) * s[0]).sum())
        s[rank:] = 0  # round-off of what θ erases
        s, left = torch.nn.functional.pad(s, (0, D - len(s))), U.numpy()
        signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(D)])
        if last is not None:  # a vector does not turn over from one step to the next
            along = (left * last).sum(axis=0)
            signs = np.where(np.abs(along) > 0.5, np.sign(along), signs)
        left = last = left * signs
        ranks = [task.rank for task in tasks.bases]
        if rank < D:
            ranks = [task.through(theta).rank for task in (tasks.problem.benign, tasks.problem.harmful)]
        found = [
            _measured(torch.from_numpy(left), s, task, r) for task, r in zip(tasks.bases, ranks, strict=True)
        ]
        # Half precision is right to 1e-3 of an overlap, and to the eye.
        shown = left[:, :KEPT_DIRECTIONS].astype(np.float32 if D <= SMALL else np.float16)
        both = {name: np.stack([of[name] for of in found]) for name in found[0]}
        rows.append({"step": step, "sigma": s.numpy(), "left": shown} | both)

    def watch(progress: Progress) -> None:
        see(progress.step, progress.theta)

    options: dict[str, Any] = {}
    if chosen is not None:
        settings = overridden(chosen, record_every=0, **({"steps": steps} if steps else {}))
        options = {"settings": settings, "callback": watch, "callback_steps": kept_steps(settings.steps)}
    result = immunize(tasks.problem, method, **options)
    if not rows or rows[-1]["step"] != result.steps:
        see(result.steps, result.theta)
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    kappa = np.stack([(task.values[0] / task.values[task.rank - 1]).numpy() for task in tasks.bases])
    return arrays | {"ratios": arrays["kappa"] / kappa}


def _measured(U: Tensor, s: Tensor, task: TaskBasis, r: int) -> dict[str, Any]:
    """Measure one task at `θ = UΣVᵀ`; M = ΣUᵀKUΣ, of rank r, is H in the basis V."""
    D = len(s)
    _, root, right = singular_triples(task.factor @ (U * s))
    root, right = root[:r], right[:r]
    spectrum, parts = root.square(), right.square()  # of M: eigenvalues, and |z_k|² of its eigenvectors
    predicted = spectrum @ parts
    overlaps = (U.mT @ task.vectors).square().numpy()
    total, diagonal = float(spectrum.square().sum()), float(predicted.square().sum())
    sorted_prediction = predicted.sort(descending=True).values
    kept = sorted_prediction[sorted_prediction > rank_tolerance(D) * sorted_prediction[0]]
    return {
        "predicted": predicted.numpy(),
        "spectrum": torch.nn.functional.pad(spectrum, (0, D - r)).numpy(),
        # What σ_i moves: d log σ₁(H)/d log σ_i and d log σ_r(H)/d log σ_i are twice these, and (M²)_ii.
        "top": parts[0].numpy(),
        "low": parts[r - 1].numpy(),
        "square": (spectrum.square() @ parts).numpy(),
        "blocks": in_blocks(overlaps),
        "kappa": float(spectrum[0] / spectrum[r - 1]),
        "predicted_kappa": float(kept[0] / kept[-1]),
        "misalignment": max(0.0, 1 - diagonal / total) ** 0.5,
        "diagonal_overlap": float(np.diagonal(overlaps).mean()),
    }


def in_blocks(overlaps: np.ndarray[Any, Any], size: int = PATH_BLOCKS) -> np.ndarray[Any, Any]:
    """Average overlaps over blocks of rows and sum them over blocks of columns, so that rows sum to 1.

    Examples:
        >>> in_blocks(np.eye(4), 2)
        array([[1., 0.],
               [0., 1.]])
    """
    D = len(overlaps)
    if size >= D:
        return overlaps
    edges = np.linspace(0, D, size + 1).astype(int)
    summed = np.add.reduceat(np.add.reduceat(overlaps, edges[:-1], axis=0), edges[:-1], axis=1)
    return np.asarray(summed / np.diff(edges)[:, None])
