r"""Along the training of each extractor: its singular vectors, Proposition 3.2 and both probes.

With :math:`\theta = U\Sigma V^\top` and :math:`K = B^\top B` all that is kept of a step follows from U, Σ and
the singular value decomposition of :math:`BU\Sigma`: V turns the features, and nothing here sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from condnum.data import Digits, TaskPair
from condnum.data.feature_pair import look_at, open_pair
from condnum.data.task_pair import sha256_arrays
from condnum.errors import InvalidInputError
from condnum.methods import DescentSettings, Progress, get_method, immunize, method_names
from condnum.methods.problem import SMALL, ImmunizationProblem, LinearTask
from condnum.probing.line_search import log_spaced_steps, probe_curves
from condnum.probing.quadratic import Modes
from condnum.studies.frame import Cell, CellResult, Count, at_least
from condnum.studies.frame.cells import Arrays
from condnum.studies.frame.study import content_checksum
from condnum.studies.linear import LinearStudy, MethodNames, MethodStudy
from condnum.studies.measure import report_step
from condnum.studies.pairs import study_of_one_pair
from condnum.theory.ceiling import RirCeiling
from condnum.theory.covariances import CovarianceRange
from condnum.theory.pareto import FeasibleRegion, feasible_region
from condnum.theory.spectra import condition_from_spectrum, default_rtol, symmetric_part

#: Steps of a training that are kept, about: for D up to `SMALL`, and beyond.
KEPT = {True: 48, False: 40}

#: Bytes for the u_i of one training. Those of 784 pixels fit in half precision: an overlap is then right to
#: about 1e-3 of itself, and a picture to the eye.
LEFT_BYTES = 50 << 20


def left_precision(dimension: int) -> type[np.floating[Any]]:
    """Return the type in which u_i are kept."""
    return np.float32 if dimension <= SMALL else np.float16


def kept_directions(dimension: int) -> int:
    """Return how many leading u_i of a step are kept."""
    each = dimension * np.dtype(left_precision(dimension)).itemsize * KEPT[dimension <= SMALL]
    return min(dimension, max(1, LEFT_BYTES // each))


def kept_steps(limit: int, dimension: int) -> list[int]:
    """Return which steps of at most `limit` are kept: log-spaced, the first and the last among them."""
    count = wanted = min(KEPT[dimension <= SMALL], limit + 1)
    while len(steps := log_spaced_steps(limit, count)) < wanted:  # many of the first round to the same
        count += 1
    return [int(step) for step in steps]


#: Rows and columns of a map of overlaps; more directions are averaged in blocks.
PATH_BLOCKS = 32

#: Steps of the probes, and points of their curves.
PROBE_STEPS, PROBE_POINTS = 5000, 60

#: The cell of what belongs to the tasks alone.
TASKS_CELL = "tasks"

#: What `data` says of tasks that are handed to `run`.
GIVEN = "given"


@dataclass(frozen=True, eq=False)
class PathData:
    """Two tasks whose extractors are followed."""

    problem: ImmunizationProblem
    names: tuple[str, str]  # of D_P and D_H, in words
    features: tuple[str, ...]  # names of the D columns
    name: str  # what a user types for it, "mnist 4-9"
    label: str  # the data set and where it is from
    checksum: str
    shape: tuple[int, int] = (0, 0)  # rows and columns of an image whose pixels the columns are

    @classmethod
    def of(cls, pair: TaskPair) -> Self:
        """Follow a pair of arrays."""
        names = (pair.pretrain_name, pair.harmful_name)
        problem = ImmunizationProblem.from_pair(pair)
        checksum = content_checksum(pair)
        return cls(problem, names, pair.feature_names, pair.name, pair.label, checksum)

    @classmethod
    def of_files(cls, pretrain: str, harmful: str, *, key: str = "", drop: str = "") -> Self:
        """Follow two files of features, without targets."""
        found = look_at(*open_pair(pretrain, harmful, key=key, drop=drop))
        X_P, X_H = found.pretrain.array(), found.harmful.array()
        names, columns = (Path(pretrain).name, Path(harmful).name), tuple(map(str, found.columns["column"]))
        problem = ImmunizationProblem.from_data(X_P, None, X_H)
        return cls(problem, names, columns, "files", " and ".join(names), sha256_arrays(X_P=X_P, X_H=X_H))


@dataclass(frozen=True)
class AlignmentPath(MethodStudy, name="alignment-path"):
    """Singular vectors, spectra and probes of extractors along their training, for one pair of tasks."""

    data: str = "house-prices"  # house-prices, embedded, mnist:P-H, digits:P-H, or a path; given: to `run`
    methods: MethodNames = ()  # empty: all that these data allow
    seed: Annotated[int, at_least(0)] = 0  # of θ₀
    steps: Count | None = None  # full-batch steps of immunization; None: each method's own

    def check(self) -> None:
        """Refuse what names no tasks."""
        _ = self.base

    @property
    def base(self) -> LinearStudy | None:
        """The study whose extractors are followed, in its settings; None for data of one's own."""
        if self.data == GIVEN:
            return None
        return study_of_one_pair(self.data, methods=self.methods, seeds=self.seed + 1, steps=self.steps)

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings, without the history that nobody reads here; None for closed forms."""
        base = self.base
        own: Any = base.settings(method) if base else get_method(method).defaults
        if own is None:
            return None
        return own.with_overrides(record_every=0, **({} if self.steps is None else {"steps": self.steps}))

    def load(self) -> PathData:
        """Load the tasks."""
        base = self.base
        if base is None:
            raise InvalidInputError(
                f"data is '{GIVEN}': pass them as run(PathData.of(TaskPair.from_arrays(X_P, y_P, X_H, y_H)))."
            )
        data = base.load()
        cell = next(iter(base.cells(data)))
        tasks, name, shape = base.names(data, cell), data.name, (0, 0)
        if isinstance(data, Digits):
            name, shape = f"{base.known} {cell['pretrain']}-{cell['harmful']}", data.images.shape[1:]
        return PathData(
            problem=base.problem(data, cell),
            names=(tasks["pretrain_task"], tasks["harmful_task"]),
            features=data.feature_names,
            name=name,
            label=data.label,
            checksum=data.checksum,
            shape=shape,
        )

    def allowed(self, data: PathData) -> list[str]:
        """Return the extractors that these data allow, in display order: some methods need targets."""
        return [name for name in method_names() if not get_method(name).missing(data.problem)]

    def cells(self, data: PathData) -> list[Cell]:
        """List the tasks, and each extractor."""
        names = [name for name in method_names() if name in (self.methods or self.allowed(data))]
        of = {name: self.settings(name) for name in names}
        common = {"data": self.data, "seed": self.seed}
        cells = [Cell({"method": name, **common}, asdict(by) if by else {}) for name, by in of.items()]
        return [Cell({"method": TASKS_CELL, **common}), *cells]

    def compute(self, data: PathData, cell: Cell) -> CellResult:
        """Follow one extractor, or describe the tasks."""
        tasks = [TaskBasis.of(task) for task in (data.problem.pretrain, data.problem.harmful)]
        if cell["method"] == TASKS_CELL:
            return _tasks_cell(data, tasks)
        return follow(data.problem, tasks, cell["method"], cell["seed"], dict(cell.settings))

    def order(self, cell: Cell) -> Any:
        """Put what is quick first."""
        return int(cell.settings.get("steps", 0))

    def processes(self, data: PathData, cells: Sequence[Cell]) -> int:
        """Start processes where a step takes long."""
        return super().processes(data, cells) if data.problem.dimension > SMALL else 1


@dataclass(frozen=True, eq=False)
class TaskBasis:
    """One task in the eigenbasis of its covariance."""

    values: Tensor  # (D,) γ, descending, zeros beyond the rank
    vectors: Tensor  # (D, D) Q
    rank: int  # r
    moment: Tensor  # (r, m) c with Bᵀc = Xᵀy, where B is the factor

    @classmethod
    def of(cls, task: LinearTask) -> Self:
        """Decompose a task; where the rows of K have no targets the probe learns `y = Xw`, w Gaussian."""
        values, vectors = (part.flip(-1) for part in torch.linalg.eigh(symmetric_part(task.covariance)))
        rank = int((values > default_rtol(len(values)) * values[0]).sum())
        values = torch.where(torch.arange(len(values)) < rank, values, 0.0)
        root = values[:rank].sqrt()[:, None]
        if task.targets is not None and task.features is not None and task.loss_features is None:
            moment = (vectors[:, :rank].mT @ (task.features.mT @ task.targets)) / root
        else:
            drawn = torch.randn(
                len(values), 1, generator=torch.Generator().manual_seed(0), dtype=values.dtype
            )
            moment = root * (vectors[:, :rank].mT @ drawn)
        return cls(values, vectors, rank, moment)

    @property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)`."""
        return (self.vectors[:, : self.rank] * self.values[: self.rank].sqrt()).mT


def _tasks_cell(data: PathData, tasks: Sequence[TaskBasis]) -> CellResult:
    """Keep eigenvectors and eigenvalues of both tasks, what is possible, and the pencil."""
    P, H = (CovarianceRange(one.values[: one.rank], one.vectors[:, : one.rank]) for one in tasks)
    region = feasible_region(P, H)
    limit = asdict(region.ceiling) | {"ceiling": region.ceiling.value}
    row = {name: value for name, value in vars(region).items() if name != "ceiling"} | limit
    arrays = {
        "values": np.stack([one.values.numpy() for one in tasks]),
        "vectors": np.stack([one.vectors.numpy() for one in tasks]).astype(np.float32),
        "features": np.array(data.features),
    }
    height, width = data.shape
    words = {"pretrain": data.names[0], "harmful": data.names[1], "label": data.label, "name": data.name}
    return CellResult(row | words | {"height": height, "width": width}, arrays)


@dataclass
class Follower:
    """Measures θ at each step that a run shows it."""

    tasks: Sequence[TaskBasis]
    most: int  # directions to keep
    kept: dict[str, list[Any]] = field(default_factory=dict)
    modes: list[list[Modes]] = field(default_factory=list)
    last: np.ndarray[Any, Any] | None = None  # U of the step before

    def __call__(self, progress: Progress) -> None:
        """Measure a step."""
        self.see(progress.step, progress.theta)
        report_step(progress)

    def see(self, step: int, theta: Tensor) -> None:
        """Measure θ and keep what the views need."""
        D = len(theta)
        U, s, _ = torch.linalg.svd(theta, full_matrices=True)
        s = torch.nn.functional.pad(s, (0, D - len(s)))
        left = U.numpy()
        signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(D)])
        if self.last is not None:  # a vector does not turn over from one step to the next
            along = (left * self.last).sum(axis=0)
            signs = np.where(np.abs(along) > 0.5, np.sign(along), signs)
        left = self.last = left * signs
        found = [_measured(torch.from_numpy(left), s, task) for task in self.tasks]
        self.modes.append([modes for _, modes in found])
        measured = {name: np.stack([of[name] for of, _ in found]) for name in found[0][0]}
        kept = {"step": step, "sigma": s.numpy(), "left": left[:, : self.most].astype(left_precision(D))}
        for name, value in (kept | measured).items():
            self.kept.setdefault(name, []).append(value)

    def arrays(self) -> Arrays:
        """Return all that was kept, a step a row, with the curves of both probes."""
        record = log_spaced_steps(PROBE_STEPS, PROBE_POINTS)
        probes = [probe_curves(modes, record).norm_ratio for modes in zip(*self.modes, strict=True)]
        arrays = {name: np.stack(values) for name, values in self.kept.items()}
        kappa = np.stack([(task.values[0] / task.values[task.rank - 1]).numpy() for task in self.tasks])
        ratios = arrays["kappa"] / kappa
        return arrays | {"ratios": ratios, "probe_steps": record, "probes": np.stack(probes, axis=1)}


def _measured(U: Tensor, s: Tensor, task: TaskBasis) -> tuple[dict[str, Any], Modes]:
    """Measure one task at `θ = UΣVᵀ`; M = ΣUᵀKUΣ is H in the basis V."""
    D, r = len(s), task.rank
    left, root, right = torch.linalg.svd(task.factor @ (U * s), full_matrices=False)
    spectrum, parts = root.square(), right.square()  # of M: eigenvalues, and |z_k|² of its eigenvectors
    predicted = spectrum @ parts
    overlaps = (U.mT @ task.vectors).square().numpy()
    energy = (left.mT @ task.moment).square().sum(dim=1)
    total, diagonal = float(spectrum.square().sum()), float(predicted.square().sum())
    sorted_prediction = predicted.sort(descending=True).values
    kappa, *_ = condition_from_spectrum(
        sorted_prediction, convention="compact", rtol=default_rtol(D), ridge=1.0, dimension=D
    )
    measured = {
        "predicted": predicted.numpy(),
        "spectrum": torch.nn.functional.pad(spectrum, (0, D - r)).numpy(),
        # What σ_i moves: d log σ₁(H)/d log σ_i and d log σ_r(H)/d log σ_i are twice these, and (M²)_ii.
        "top": parts[0].numpy(),
        "low": parts[r - 1].numpy(),
        "square": (spectrum.square() @ parts).numpy(),
        "blocks": in_blocks(overlaps),
        "kappa": float(spectrum[0] / spectrum[r - 1]),
        "predicted_kappa": float(kappa),
        "misalignment": max(0.0, 1 - diagonal / total) ** 0.5,
        "diagonal_overlap": float(np.diagonal(overlaps).mean()),
        "reversed_overlap": float(np.diagonal(overlaps[::-1]).mean()),
    }
    return measured, Modes((spectrum / spectrum[0]).numpy(), energy.numpy())


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


def follow(
    problem: ImmunizationProblem,
    tasks: Sequence[TaskBasis],
    method: str,
    seed: int,
    settings: Mapping[str, Any],
) -> CellResult:
    """Run a method and measure θ at log-spaced steps, the first and the last among them."""
    watch = kept_steps(int(settings.get("steps", 1)), problem.dimension)
    follower = Follower(tasks, kept_directions(problem.dimension))
    options = {"callback": follower, "callback_steps": watch, **settings} if settings else {}
    result = immunize(problem, method, seed=seed, **options)
    if not follower.kept or follower.kept["step"][-1] != result.steps:
        follower.see(result.steps, result.theta)
    scalars = {name: getattr(result, name) for name in ("steps", "seconds", "stop_reason", "explanation")}
    return CellResult(scalars, follower.arrays())


def region_of(row: Mapping[str, Any]) -> FeasibleRegion:
    """Return what is possible for the tasks, from their cell."""
    names = ("lambda_max", "lambda_min", "rank_pretrain", "rank_harmful", "harmful_only_dimension", "ridge")
    ceiling = RirCeiling(row["ceiling"], *(row[name] for name in names))
    kappas = {name: row[name] for name in ("kappa_pretrain", "kappa_harmful", "kappa_pencil")}
    return FeasibleRegion(**kappas, ceiling=ceiling, mirrored=row["mirrored"])
