"""One cell of the audit: a setting of the switches and a seed → the spectra of what it trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from condnum.data import Digits, TaskPair, load_diabetes_tasks, load_house_prices, load_mnist_images
from condnum.data.digits import load_small_digits
from condnum.data.task_pair import standardise
from condnum.deep.regularizers import apply_inverse_covariance
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import NAMED_SETTINGS, ImmunizationResult
from condnum.methods.algorithm1 import Ours
from condnum.methods.descent import descend
from condnum.methods.method import DescentSettings, Gradients, Memory, Parameters
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.studies.cells import Cell, CellResult, cached
from condnum.studies.digit_cells import digit_problem
from condnum.studies.digit_pairs import DigitPairs, read_pair
from condnum.theory.extremes import gram
from condnum.theory.immunization import HessianSpectra
from condnum.theory.regularizers import ill_gradient_from_pair, well_gradient_from_pair
from condnum.theory.spectra import (
    PUBLISHED_RIDGE,
    covariance_factor,
    default_rtol,
    hessian_spectrum,
    symmetric_part,
)

Protocol = Literal["released", "corrected"]

#: Epochs of the release's own house-price configuration.
RELEASED_EPOCHS = 10


@dataclass(frozen=True)
class ProtocolSwitches:
    """One setting of every switch; the defaults are `protocol="released"`.

    The order of the fields is the order in which the waterfall turns them.

    Examples:
        >>> ProtocolSwitches.preset("released").covariance
        'minibatch'
        >>> ProtocolSwitches(bias="without").turned()
        ('bias',)
    """

    encoders: Literal["per_domain", "union"] = "per_domain"
    normalise: Literal["domain", "table", "kept"] = "domain"
    rows: Literal["first", "all"] = "first"
    labels: Literal["published", "one_vs_rest"] = "published"
    bias: Literal["with", "without"] = "with"
    preconditioner_side: Literal["output", "input"] = "output"
    regularizer_dimension: Literal["image_side", "features"] = "image_side"
    kappa_floor: Literal["absolute", "rank"] = "absolute"
    covariance: Literal["minibatch", "full"] = "minibatch"
    weights: Literal["fixed", "balanced"] = "fixed"
    step_size: Literal["constant", "cosine"] = "constant"
    epochs: int | None = RELEASED_EPOCHS  # None: the corrected protocol's number of updates

    def __post_init__(self) -> None:
        """Refuse positions that a switch does not have."""
        for name, kind in _positions().items():
            value = getattr(self, name)
            if value not in kind:
                raise UnknownNameError(f"position of the switch '{name}'", value, kind)
        if self.epochs is not None and (
            isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 1
        ):
            raise InvalidInputError(
                f"epochs must be a positive integer, or None for the corrected number of updates, got "
                f"{self.epochs!r}."
            )

    @classmethod
    def preset(cls, protocol: Protocol, *, epochs: int = RELEASED_EPOCHS) -> ProtocolSwitches:
        """Return one of the two named protocols.

        Examples:
            >>> ProtocolSwitches.preset("corrected").is_algorithm_1
            True
        """
        if protocol not in get_args(Protocol):
            raise UnknownNameError("protocol", protocol, get_args(Protocol))
        released = cls(epochs=epochs)
        return released if protocol == "released" else replace(released, **CORRECTED)

    @property
    def is_algorithm_1(self) -> bool:
        """Whether the gradients are those of Algorithm 1 on K itself, whatever data and steps are."""
        names = ("bias", "preconditioner_side", "regularizer_dimension", "kappa_floor", "covariance")
        return all(getattr(self, name) == CORRECTED[name] for name in names)

    def turn(self, name: str) -> ProtocolSwitches:
        """Return a copy with one switch at its corrected position.

        Examples:
            >>> ProtocolSwitches().turn("rows").rows
            'all'
        """
        if name not in CORRECTED:
            raise UnknownNameError("switch", name, SWITCHES)
        return replace(self, **{name: CORRECTED[name]})

    def turned(self) -> tuple[str, ...]:
        """Return the names of the switches at their corrected position, in their order."""
        return tuple(name for name in SWITCHES if getattr(self, name) == CORRECTED[name])

    def as_payload(self) -> dict[str, Any]:
        """Return all positions, for the key of a cell."""
        return asdict(self)


#: Position of each switch in the corrected protocol.
CORRECTED: dict[str, Any] = {
    "encoders": "union",
    "normalise": "kept",
    "rows": "all",
    "labels": "one_vs_rest",
    "bias": "without",
    "preconditioner_side": "input",
    "regularizer_dimension": "features",
    "kappa_floor": "rank",
    "covariance": "full",
    "weights": "balanced",
    "step_size": "cosine",
    "epochs": None,
}

#: Names of all switches, in the order in which they are turned.
SWITCHES = tuple(field.name for field in fields(ProtocolSwitches))


def _positions() -> dict[str, tuple[str, ...]]:
    """Return the positions of every switch that has names for them."""
    hints = get_type_hints(ProtocolSwitches)
    return {name: get_args(hint) for name, hint in hints.items() if name != "epochs"}


@dataclass(frozen=True)
class PairedBatches(ImmunizationProblem):
    """A problem whose `sample` hands out the next pair of mini-batches, epoch after epoch.

    Tasks of equally many rows are shuffled together, once an epoch, as the release does. Otherwise each is
    shuffled by itself, the epoch ends with the longer one and the shorter one repeats its batches, as the
    release does for images. A last batch that is not full is dropped. One object serves one run.
    """

    _epochs: list[Iterator[tuple[Tensor, Tensor, Tensor]]] = field(
        default_factory=list, repr=False, compare=False
    )

    @classmethod
    def of(cls, problem: ImmunizationProblem) -> PairedBatches:
        """Return the same tasks, to be read in paired batches from the start."""
        return cls(problem.pretrain, problem.harmful)

    def sample(self, size: int, generator: torch.Generator) -> ImmunizationProblem:
        """Return the next pair of batches."""
        if not self._epochs:
            self._epochs.append(self._endless(size, generator))
        pretrain, harmful, loss = next(self._epochs[0])
        return ImmunizationProblem(_on(self.pretrain, pretrain, loss), _on(self.harmful, harmful, None))

    def _endless(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the rows of D_P, of D_H and of the loss, batch by batch."""
        counts = [_rows(self.pretrain), _rows(self.harmful)]
        if self.pretrain.loss_features is not None:
            counts.append(len(self.pretrain.loss_features))
        while True:
            shuffled = _shuffled(counts, size, generator)
            for index in range(max(len(batches) for batches in shuffled[:2])):
                chosen = [batches[index % len(batches)] for batches in shuffled]
                yield chosen[0], chosen[1], chosen[-1] if len(chosen) == 3 else chosen[0]


def updates_per_epoch(pretrain_rows: int, harmful_rows: int, size: int) -> int:
    """Return how many pairs of batches an epoch has.

    Examples:
        >>> updates_per_epoch(200, 200, 64)
        3
    """
    return max(1, max(pretrain_rows, harmful_rows) // size)


def _shuffled(counts: list[int], size: int, generator: torch.Generator) -> list[tuple[Tensor, ...]]:
    """Return the batches of an epoch for each number of rows; equal numbers have the same order."""
    orders = {count: torch.randperm(count, generator=generator) for count in dict.fromkeys(counts)}
    full = {count: max(size, count - count % size) for count in orders}
    return [orders[count][: full[count]].split(size) for count in counts]


def _on(task: LinearTask, chosen: Tensor, loss: Tensor | None) -> LinearTask:
    """Return a task on some of its rows; `loss` chooses those of its loss."""
    assert task.features is not None
    X, targets, loss_features = task.features[chosen], task.targets, None
    if loss is None:
        targets = None
    elif targets is not None:
        targets = targets[loss]
        loss_features = None if task.loss_features is None else task.loss_features[loss]
    return LinearTask(X.mT @ X, X, targets, task.loss, loss_features)


Part = Literal["well", "ill"]


class SwitchedAlgorithm1:
    """Algorithm 1 with the release's choices where a switch is not turned; a `DescentMethod`."""

    name = "released"
    label = "Algorithm 1 as released"
    summary = "descends the loss, R<sub>well</sub> and R<sub>ill</sub> with the release's choices"
    parts: tuple[str, ...] = ("well", "ill", "supervised")
    defaults = DescentSettings()

    def __init__(
        self, switches: ProtocolSwitches, *, image_side: int | None, ridges: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """Keep the setting."""
        self.switches = switches
        self.ridges: dict[Part, float] = {"well": ridges[0], "ill": ridges[1]}
        self._side = image_side if switches.regularizer_dimension == "image_side" else None

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and ω₀ of the registered method for the seed; with a bias, those of the release.

        There θ₀ and the bias are uniform in ±1/√D, as `nn.Linear` has them, and ω₀ is standard normal.
        """
        if self.switches.bias == "without":
            return Ours().initial(problem, generator)
        dimension = problem.dimension - 1
        bound = 1 / math.sqrt(dimension)
        theta, bias = (
            (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * bound
            for shape in ((dimension, dimension), (1, dimension))
        )
        omega = torch.randn((dimension, 1), generator=generator, dtype=torch.float64)
        return {"theta": torch.cat([theta, bias]), "omega": omega}

    def gradients(
        self,
        problem: ImmunizationProblem,
        parameters: Parameters,
        settings: DescentSettings,
        memory: Memory,
    ) -> Gradients:
        """Return the parts of θ's gradient on all rows or on a mini-batch, and the head's gradient."""
        theta, omega = parameters["theta"], parameters["omega"]
        parts = {
            "well": self.direction(problem.pretrain, theta, "well"),
            "ill": self.direction(problem.harmful, theta, "ill"),
        }
        assert problem.pretrain.supervised is not None  # all of its data sets have targets
        slope = problem.pretrain.supervised.derivative(theta @ omega)
        return Gradients(parts | {"supervised": slope @ omega.mT}, {"omega": theta.mT @ slope})

    def direction(self, task: LinearTask, theta: Tensor, part: Part) -> Tensor:
        r"""Return the preconditioned gradient of one regularizer in θ.

        With :math:`G = \nabla_S R(S)`, `S` the Gram matrix of the features: on the input side
        :math:`K^{-1}\nabla_\theta R = 2\theta G`; on the output side
        :math:`\nabla_\theta R\,(K + \varepsilon I)^{-1}`, which is `K⁻¹` times the gradient of `W = θᵀ`.
        """
        features = _features(task, theta)
        S = symmetric_part(theta.mT @ task.covariance @ theta) if features is None else features.mT @ features
        values, vectors = _eigenpairs(S, features)
        p = self._side or theta.shape[1]
        if part == "well":
            G = well_gradient_from_pair(S, values[-1], vectors(-1), p)
        else:
            G = ill_gradient_from_pair(S, *self._smallest(task, values, vectors, theta.shape[1]))[1]
        if self.switches.preconditioner_side == "input":
            return 2 * theta @ G
        if features is None or task.features is None:
            unconditioned = 2 * task.covariance @ (theta @ G)
        else:
            unconditioned = 2 * task.features.mT @ (features @ G)
        dimension = theta.shape[1]
        weight = _solve_output_side(unconditioned[:dimension], task, self.ridges[part])
        return torch.cat([weight, unconditioned[dimension:]])

    def _smallest(
        self, task: LinearTask, values: Tensor, vectors: _Vectors, dimension: int
    ) -> tuple[Tensor, Tensor, int]:
        """Return σ_k, v_k and k of R_ill."""
        rank = min(_rank(task, values), dimension)
        if self.switches.kappa_floor == "rank":
            return values[-rank], vectors(-rank), self._side or rank
        k = self._side or dimension
        if rank == dimension:
            return values[0].clamp_min(0) + PUBLISHED_RIDGE, vectors(0), k
        # Any null vector: its part of the gradient is of the size of the floor, or zero, and is left out.
        null = values.new_zeros(dimension)
        return values.new_tensor(PUBLISHED_RIDGE), null, k


class _Vectors:
    """Eigenvectors of S by their place in the ascending spectrum, from S itself or from its dual."""

    def __init__(self, vectors: Tensor, features: Tensor | None, values: Tensor) -> None:
        self._vectors, self._features, self._values = vectors, features, values

    def __call__(self, index: int) -> Tensor:
        """Return one unit eigenvector of S, `(D,)`."""
        if self._features is None:
            return self._vectors[:, index]
        return (self._features.mT @ self._vectors[:, index]) / self._values[index].sqrt()


def _eigenpairs(S: Tensor, features: Tensor | None) -> tuple[Tensor, _Vectors]:
    """Return eigenvalues of S, ascending (with few features only the n that can be non-zero), and vectors."""
    values, vectors = torch.linalg.eigh(S if features is None else symmetric_part(features @ features.mT))
    return values, _Vectors(vectors, features, values)


def _features(task: LinearTask, theta: Tensor) -> Tensor | None:
    """Return `Xθ` where its rows are fewer than its columns, so that the dual matrix is the smaller."""
    if task.features is None or len(task.features) >= theta.shape[1]:
        return None
    return task.features @ theta


def _rank(task: LinearTask, values: Tensor) -> int:
    """Return the rank of S: that of K for all rows, the number of non-zero eigenvalues for a few."""
    if task.features is None or len(task.features) >= len(task.covariance):
        return task.rank
    tolerance = default_rtol(len(task.covariance)) * values[-1]
    return int((values > tolerance).sum())


def _solve_output_side(gradient: Tensor, task: LinearTask, ridge: float) -> Tensor:
    """Return `A(K + εI)⁻¹` for `A` `(D, D)`, K without the constant input."""
    dimension = gradient.shape[1]
    if task.features is not None and len(task.features) < dimension:
        X = task.features[:, :dimension]
        factor = torch.linalg.cholesky(X @ X.mT + ridge * torch.eye(len(X), dtype=X.dtype))
        return apply_inverse_covariance(gradient, X, factor, gradient.new_tensor(ridge))
    K = task.covariance[:dimension, :dimension]
    factor = torch.linalg.cholesky(K + ridge * torch.eye(dimension, dtype=K.dtype))
    return torch.cholesky_solve(gradient.mT, factor).mT


#: Rows of a mini-batch of the release.
BATCH = 64

#: Rows of each task on which the release trains on house prices; the 100 after them are its validation set.
FIRST_ROWS = 200

#: Rows of the supervised loss's balanced sample, as the digit-pair experiment has them.
LOSS_ROWS = DigitPairs().loss_rows

#: Data set by the word that a user types.
_KINDS = {"house-prices": "house-prices", "embedded": "diabetes", "mnist": "mnist", "digits": "digits-8x8"}

NAMES = ("house-prices", "embedded", "mnist:4-7", "digits:4-7")

_COMMON = DescentSettings(schedule="constant", weights="fixed", batch_size=BATCH, record_every=0)

#: Table 4 and the release's configuration: η, λ_P, λ_H; Adam.
_RELEASED = {
    "tables": _COMMON.with_overrides(learning_rate=5e-3, lambda_pretrain=100.0, lambda_harmful=1e7),
    "digits": _COMMON.with_overrides(learning_rate=1e-3, lambda_pretrain=1.0, lambda_harmful=5e7),
}


@dataclass(frozen=True)
class AuditData:
    """Which data, and what is known of them before they are loaded."""

    name: str  # house-prices, diabetes, mnist or digits-8x8
    source: str  # what the loader is told
    pair: tuple[int, int] | None = None  # (pretrain, harmful) digits

    @classmethod
    def parse(cls, text: str, source: str = "auto") -> AuditData:
        """Read what a user types.

        Examples:
            >>> AuditData.parse("mnist:4-7").pair
            (4, 7)
        """
        kind, _, digits = text.partition(":")
        if kind not in _KINDS:
            raise UnknownNameError("data set of the audit", text, NAMES)
        name = _KINDS[kind]
        if (kind in ("mnist", "digits")) != bool(digits):
            raise InvalidInputError(
                f"data '{text}': digits come with a pair, as in mnist:4-7, tables without one."
            )
        if name in ("diabetes", "digits-8x8"):
            if source not in ("auto", "embedded"):
                raise InvalidInputError(f"{text} is embedded and has no source '{source}': leave it out.")
            source = "embedded"
        pair = read_pair(digits) if digits else None
        if pair is not None and pair[0] == pair[1]:
            raise InvalidInputError(f"pair '{digits}' is none: give two different digits from 0 to 9.")
        return cls(name, source, pair)

    @property
    def label(self) -> str:
        """What a user types for these data."""
        kind = next(word for word, name in _KINDS.items() if name == self.name)
        return kind if self.pair is None else f"{kind}:{self.pair[0]}-{self.pair[1]}"

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches that mean anything here, in the order in which they are turned."""
        without = {
            "house-prices": {"labels", "regularizer_dimension"},
            "diabetes": {"labels", "regularizer_dimension", "encoders"},
        }.get(self.name, {"encoders", "normalise", "rows"})
        return tuple(name for name in SWITCHES if name not in without)

    @property
    def default_epochs(self) -> tuple[int, ...]:
        """Epochs of the release at which a waterfall starts, unless the user says otherwise."""
        return (10, 100) if self.pair is None else (1,)

    def load(self) -> TaskPair | Digits:
        """Load the data as the corrected protocol has them."""
        if self.name == "house-prices":
            return load_house_prices(self.source, features="published")
        if self.name == "diabetes":
            return load_diabetes_tasks(features="published")
        return load_mnist_images(self.source) if self.name == "mnist" else load_small_digits()

    def updates(self, data: TaskPair | Digits, epochs: int) -> int:
        """Return how many updates so many epochs of the release are.

        The number is that of the release's own loaders, whatever the other switches are, so that
        turning `rows` or `covariance` does not change the budget at the same time.
        """
        if isinstance(data, TaskPair):
            rows = (min(FIRST_ROWS, data.rows_pretrain), min(FIRST_ROWS, data.rows_harmful))
        else:
            assert self.pair is not None  # digits come with a pair
            rows = (data.smaller_count(*self.pair),) * 2
        return epochs * updates_per_epoch(*rows, BATCH)

    def settings(self, switches: ProtocolSwitches, data: TaskPair | Digits) -> DescentSettings:
        """Return how a setting of the switches descends.

        Examples:
            >>> data = AuditData.parse("embedded")
            >>> data.settings(ProtocolSwitches(), data.load()).describe(["well", "ill"])
            '30 steps of adam, η = 0.005 (constant), 64 rows a step, λ_P = 100, λ_H = 1e+07'
        """
        ours = self.registered
        chosen = _RELEASED["tables" if self.pair is None else "digits"]
        if switches.covariance == "full":
            chosen = replace(chosen, batch_size=None)
        if switches.weights == "balanced":
            chosen = replace(chosen, weights="balanced", ratio=ours.ratio, loss_weight=ours.loss_weight)
        if switches.step_size == "cosine":
            chosen = replace(chosen, learning_rate=ours.learning_rate, schedule=ours.schedule)
        if switches.epochs is None:
            return replace(chosen, steps=ours.steps)
        return replace(chosen, steps=self.updates(data, switches.epochs))

    @property
    def ridges(self) -> tuple[float, float]:
        """ε of the release's regularised solve, of R_well and R_ill, in units of the mini-batch's XᵀX."""
        return (1.0, 1.0) if self.pair is None else (1.0, 1e-7)

    @property
    def registered(self) -> DescentSettings:
        """The fixed settings of `ours` that were searched on these data."""
        return NAMED_SETTINGS[self.name]


#: Switches that decide the tasks.
TASK_SWITCHES = ("encoders", "normalise", "rows", "labels", "bias")


@dataclass(frozen=True)
class SwitchedTasks:
    """The tasks that are trained on, and the raw inputs that RIR compares with."""

    problem: ImmunizationProblem  # inputs (N, D), or (N, D + 1) with a constant column for the bias
    inputs: ImmunizationProblem  # (N, D), without it
    image_side: int | None  # of the images; None for tables

    @property
    def has_bias(self) -> bool:
        """Whether the inputs of the problem end with a constant column."""
        return self.problem.dimension > self.inputs.dimension


def switched_tasks(data: AuditData, loaded: TaskPair | Digits, switches: ProtocolSwitches) -> SwitchedTasks:
    """Build the tasks of a setting, once a process for all settings that share them."""

    def build() -> SwitchedTasks:
        if isinstance(loaded, Digits):
            inputs, side = _digit_problem(data, loaded, switches), int(loaded.images.shape[1])
        else:
            inputs, side = _table_problem(data, loaded, switches), None
        if switches.bias == "without":
            return SwitchedTasks(inputs, inputs, side)
        return SwitchedTasks(with_constant_input(inputs), inputs, side)

    key = tuple(getattr(switches, name) for name in TASK_SWITCHES)
    return cached(("released-tasks", data, loaded.checksum, key), build)


def with_constant_input(problem: ImmunizationProblem) -> ImmunizationProblem:
    """Append a constant input 1 to every row, so that a bias is one more row of θ.

    Examples:
        >>> problem = ImmunizationProblem.from_data([[2.0], [3.0]], [0.0, 1.0], [[1.0]])
        >>> with_constant_input(problem).pretrain.covariance
        tensor([[13.,  5.],
                [ 5.,  2.]], dtype=torch.float64)
    """
    return ImmunizationProblem(_with_constant(problem.pretrain), _with_constant(problem.harmful))


def first_rows(pair: TaskPair, *, standardise_again: bool) -> TaskPair:
    """Cut a pair to the first 200 rows of each task, as the release does.

    Examples:
        >>> from condnum.data import load_diabetes_tasks
        >>> first_rows(load_diabetes_tasks(), standardise_again=True).rows_harmful
        200
    """
    cut: dict[str, Any] = {}
    for name in ("X_P", "y_P", "X_H", "y_H"):
        kept = np.array(getattr(pair, name)[:FIRST_ROWS])
        cut[name] = standardise(kept) if standardise_again else kept
    return replace(pair, **cut)


def _table_problem(data: AuditData, loaded: TaskPair, switches: ProtocolSwitches) -> ImmunizationProblem:
    """Return the problem of a table: encoders, standardisation and rows as the switches say."""
    pair = loaded
    if data.name == "house-prices":
        normalise: Literal["before_split", "per_task"] = (
            "before_split" if switches.normalise == "table" else "per_task"
        )
        pair = cached(
            ("house-prices", data.source, loaded.checksum, switches.encoders, normalise),
            lambda: load_house_prices(
                data.source, features="published", encoders=switches.encoders, normalise=normalise
            ),
        )
    if switches.rows == "first":
        pair = first_rows(pair, standardise_again=switches.normalise == "kept")
    return ImmunizationProblem.from_pair(pair)


def _digit_problem(data: AuditData, digits: Digits, switches: ProtocolSwitches) -> ImmunizationProblem:
    """Return the problem of a pair of digits, with rows for mini-batches."""
    assert data.pair is not None  # digits come with a pair
    problem = digit_problem(digits, *data.pair, loss_rows=LOSS_ROWS, labels=switches.labels)
    count = digits.smaller_count(*data.pair)
    tasks = []
    for digit, task in zip(data.pair, (problem.pretrain, problem.harmful), strict=True):
        X = torch.from_numpy(digits.pixels(np.flatnonzero(digits.labels == digit)[:count]))
        if switches.labels == "published":  # the loss is on the images of K themselves, all of one class
            label = float(digit == data.pair[1])
            targets = torch.full((count, 1), label, dtype=torch.float64)
            task = replace(task, targets=targets, loss_features=None)
        tasks.append(replace(task, features=X))
    return ImmunizationProblem(*tasks)


def _with_constant(task: LinearTask) -> LinearTask:
    """Return a task with a constant input appended."""
    assert task.features is not None  # tasks of this experiment always have rows
    X = _append_one(task.features)
    K = gram(X)
    loss_features = None if task.loss_features is None else _append_one(task.loss_features)
    return LinearTask(K, X, task.targets, task.loss, loss_features, covariance_factor(K))


def _append_one(X: Tensor) -> Tensor:
    """Return `[X, 1]`."""
    return torch.cat([X, X.new_ones(len(X), 1)], dim=1)


#: Arrays of a cell, each descending.
SPECTRA = ("pretrain_before", "pretrain_after", "harmful_before", "harmful_after")


def compute_cell(data: AuditData, loaded: TaskPair | Digits, cell: Cell) -> CellResult:
    """Train one extractor and keep its spectra."""
    tasks, result = train_cell(data, loaded, cell)
    spectra = feature_spectra(tasks, result.theta)
    row: dict[str, Any] = {
        "seed": result.seed,
        "updates": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        "dimension": tasks.inputs.dimension,
        "ridge_well": cell["ridges"][0],
        "ridge_ill": cell["ridges"][1],
        "rows_pretrain": _rows(tasks.inputs.pretrain),
        "rows_harmful": _rows(tasks.inputs.harmful),
    }
    return CellResult(row, {name: getattr(spectra, name).numpy() for name in SPECTRA})


def train_cell(
    data: AuditData, loaded: TaskPair | Digits, cell: Cell
) -> tuple[SwitchedTasks, ImmunizationResult]:
    """Run the descent of a cell."""
    switches = ProtocolSwitches(**cell["switches"])
    tasks = switched_tasks(data, loaded, switches)
    method = (
        Ours()
        if switches.is_algorithm_1
        else SwitchedAlgorithm1(switches, image_side=tasks.image_side, ridges=tuple(cell["ridges"]))
    )
    problem = PairedBatches.of(tasks.problem) if switches.covariance == "minibatch" else tasks.problem
    return tasks, descend(problem, method, DescentSettings(**cell.settings), seed=cell["seed"])


def feature_spectra(tasks: SwitchedTasks, theta: Tensor) -> HessianSpectra:
    """Return the spectra of the features' Gram matrices, and of the raw inputs'."""
    identity = torch.eye(tasks.inputs.dimension, dtype=theta.dtype)
    raw, seen = tasks.inputs, tasks.problem
    return HessianSpectra(
        pretrain_before=hessian_spectrum(identity, raw.pretrain.factor),
        pretrain_after=hessian_spectrum(theta, seen.pretrain.factor),
        harmful_before=hessian_spectrum(identity, raw.harmful.factor),
        harmful_after=hessian_spectrum(theta, seen.harmful.factor),
        dimension_before=raw.dimension,
        dimension_after=theta.shape[1],
    )


def _rows(task: LinearTask) -> int:
    """Return the number of rows of a task."""
    assert task.features is not None  # tasks of this study always have rows
    return len(task.features)
