"""What an attacker is given: features with targets, and θ with the raw inputs where they are known."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import ArrayLike, FloatArray, as_tensor
from condnum.errors import InvalidInputError, check_known

TaskKind = Literal["regression", "classification"]


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features of one extractor, already extracted; all arrays become float64.

    Examples:
        >>> FeatureSet(np.eye(3)).features.shape
        (3, 3)
        >>> FeatureSet(np.eye(3), test=np.ones((2, 4)))
        Traceback (most recent call last):
            ...
        condnum.errors.InvalidInputError: test features have shape (2, 4), features (3, 3): ...
    """

    features: FloatArray  # (N, k)
    test: FloatArray | None = None  # (M, k)
    theta: FloatArray | None = None  # (D, k)
    inputs: FloatArray | None = None  # (N, D)

    def __post_init__(self) -> None:
        for name in ("features", "test", "theta", "inputs"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _float_matrix(value, name))
        if self.test is not None and self.test.shape[1] != self.features.shape[1]:
            raise InvalidInputError(
                f"test features have shape {self.test.shape}, features {self.features.shape}: "
                "both need the same number of columns."
            )
        if (self.theta is None) != (self.inputs is None):
            raise InvalidInputError("theta and inputs belong together (for fine-tuning): give both or none.")
        if self.theta is not None and self.inputs is not None:
            wanted = (self.inputs.shape[0], self.theta.shape[1]), self.inputs.shape[1]
            if wanted != (self.features.shape, self.theta.shape[0]):
                raise InvalidInputError(
                    f"inputs {self.inputs.shape} times theta {self.theta.shape} do not give features "
                    f"{self.features.shape}."
                )


@dataclass(frozen=True, eq=False)
class AttackTask:
    """The task that an attacker wants to learn.

    Attributes:
        X: `(N, D)` inputs.
        y: `(N,)` or `(N, m)` targets of a regression; `(N,)` labels `0 … C − 1` of a classification.
        kind: `regression` (squared loss) or `classification` (logistic loss; softmax for C > 2).
        X_test: `(M, D)` held-out inputs, or None.
        y_test: Their targets.
        name: Shown in titles.

    Raises:
        InvalidInputError: Shapes do not fit, labels are not `0 … C − 1` with an example of each, or
            held-out targets have other columns or classes than those of training.
        UnknownNameError: Unknown kind.

    Examples:
        >>> AttackTask(np.eye(2), np.array([0, 1]), kind="classification").y
        array([0, 1])
    """

    X: FloatArray  # (N, D)
    y: FloatArray | NDArray[np.int64]  # (N,) or (N, m)
    kind: TaskKind = "regression"
    X_test: FloatArray | None = None  # (M, D)
    y_test: FloatArray | NDArray[np.int64] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "X", _float_matrix(self.X, "X"))
        object.__setattr__(self, "y", targets(self.y, len(self.X), self.kind, "y"))
        if (self.X_test is None) != (self.y_test is None):
            raise InvalidInputError("X_test and y_test belong together: give both or neither.")
        if self.X_test is not None and self.y_test is not None:
            object.__setattr__(self, "X_test", _float_matrix(self.X_test, "X_test"))
            if self.X_test.shape[1] != self.X.shape[1]:
                raise InvalidInputError(
                    f"X_test has shape {self.X_test.shape}, X {self.X.shape}: both need the same columns."
                )
            found = targets(self.y_test, len(self.X_test), self.kind, "y_test", training=self.y)
            object.__setattr__(self, "y_test", found)

    def through(self, theta: ArrayLike | None) -> FeatureSet:
        """Extract features `Xθ`, with θ and the inputs, so that θ can be fine-tuned; None: the raw inputs."""
        D = self.X.shape[1]
        T = np.eye(D) if theta is None else _float_matrix(theta, "theta")
        if T.shape[0] != D:
            raise InvalidInputError(f"theta has {T.shape[0]} rows, but the inputs have {D} columns.")
        test = None if self.X_test is None else self.X_test @ T
        return FeatureSet(self.X @ T, test, T, self.X)


def _float_matrix(value: ArrayLike, name: str) -> FloatArray:
    """Return a copy as a finite float64 matrix, or say what is wrong with it."""
    return as_tensor(value, name, ndim=2).detach().cpu().numpy().copy()


def targets(
    value: ArrayLike, rows: int, kind: TaskKind, name: str, *, training: NDArray[Any] | None = None
) -> FloatArray | NDArray[np.int64]:
    """Return a copy of valid targets; held-out ones must have the columns or classes of `training`."""
    check_known("kind of task", kind, get_args(TaskKind))
    y = as_tensor(value, name, minimum_ndim=1).detach().cpu().numpy().copy()
    if len(y) != rows or y.ndim > 2 or (kind == "classification" and y.ndim != 1):
        raise InvalidInputError(f"{name} has shape {y.shape} for {rows} rows: one target per row is needed.")
    if kind == "regression":
        y = y[:, None] if y.ndim == 1 else y
        if training is not None and y.shape[1] != training.shape[1]:
            raise InvalidInputError(
                f"{name} has {y.shape[1]} output(s) per row, but the training targets have "
                f"{training.shape[1]}: pass the same outputs."
            )
        return y
    with np.errstate(invalid="ignore"):  # what no integer holds is refused below
        labels = y.astype(np.int64)
    if (labels != y).any() or labels.min() < 0:
        raise InvalidInputError(
            f"{name} must hold labels 0, 1, …, got {y.min():g} to {y.max():g}; number the classes from 0."
        )
    if training is not None:
        if labels.max() > training.max():
            raise InvalidInputError(
                f"{name} holds label {labels.max()}, but the training labels are 0 to {training.max()}: "
                "drop these rows, or train on examples of that class."
            )
        return labels
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InvalidInputError(f"all {rows} labels are {labels[0]}: there is nothing to classify.")
    if len(classes) <= classes[-1]:
        missing = int(np.flatnonzero(classes != np.arange(len(classes)))[0])
        raise InvalidInputError(
            f"{name} has labels up to {classes[-1]} but no example of class {missing}; number the classes "
            "without gaps, such as by np.unique(y, return_inverse=True)[1]."
        )
    return labels
