"""What an attacker wants to learn: inputs and targets, checked."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import ArrayLike, FloatArray, as_tensor
from condnum.errors import InvalidInputError, check_known

TaskKind = Literal["regression", "classification"]


@dataclass(frozen=True, eq=False)
class AttackTask:
    """The task that an attacker wants to learn; all arrays are copied to float64, labels to int64.

    Examples:
        >>> AttackTask(np.eye(2), np.array([0, 1]), kind="classification").y
        array([0, 1])
    """

    X: FloatArray  # (N, D)
    y: Any  # (N,) or (N, m) targets of a regression, (N,) labels 0 … C − 1 of a classification
    kind: TaskKind = "regression"  # squared loss; classification: logistic loss, softmax for C > 2
    X_test: FloatArray | None = None  # (M, D)
    y_test: Any = None
    name: str = ""  # shown in titles

    def __post_init__(self) -> None:
        object.__setattr__(self, "X", float_matrix(self.X, "X"))
        object.__setattr__(self, "y", targets(self.y, len(self.X), self.kind, "y"))
        if (self.X_test is None) != (self.y_test is None):
            raise InvalidInputError("X_test and y_test must be given together: give both or neither.")
        if self.X_test is not None and self.y_test is not None:
            object.__setattr__(self, "X_test", float_matrix(self.X_test, "X_test"))
            if self.X_test.shape[1] != self.X.shape[1]:
                raise InvalidInputError(
                    f"X_test has shape {self.X_test.shape}, X {self.X.shape}: "
                    "both must have the same columns."
                )
            found = targets(self.y_test, len(self.X_test), self.kind, "y_test", training=self.y)
            object.__setattr__(self, "y_test", found)


def float_matrix(value: ArrayLike, name: str) -> FloatArray:
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
