"""What an attacker wants to learn: inputs and targets, checked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import ArrayLike, FloatArray, TargetKind, as_targets, as_tensor
from condnum.errors import InvalidInputError

TaskKind = TargetKind


@dataclass(frozen=True, eq=False)
class AttackTask:
    """The task that an attacker wants to learn; inputs and numbers are copied to float64, labels numbered.

    Integers, booleans and text are labels, floats are numbers, unless `kind` says otherwise.

    Examples:
        >>> task = AttackTask(np.eye(3), ["cat", "dog", "cat"])
        >>> task.y, task.kind
        (array([0, 1, 0]), 'classification')
    """

    X: FloatArray  # (N, D)
    y: Any  # (N,) or (N, m) targets of a regression; (N,) labels of a classification, kept as 0 … C − 1
    kind: TaskKind = "auto"  # regression: squared loss; classification: logistic loss, softmax for C > 2
    X_test: FloatArray | None = None  # (M, D)
    y_test: Any = None
    name: str = ""  # shown in titles

    def __post_init__(self) -> None:
        object.__setattr__(self, "X", float_matrix(self.X, "X"))
        y, classes = _targets(self.y, len(self.X), self.kind, "y")
        if classes is not None and len(classes) < 2:
            raise InvalidInputError(f"all {len(y)} labels are {classes[0]}: there is nothing to classify.")
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "kind", "regression" if classes is None else "classification")
        if (self.X_test is None) != (self.y_test is None):
            raise InvalidInputError("X_test and y_test must be given together: give both or neither.")
        if self.X_test is not None:
            object.__setattr__(self, "X_test", float_matrix(self.X_test, "X_test"))
            if self.X_test.shape[1] != self.X.shape[1]:
                raise InvalidInputError(
                    f"X_test has shape {self.X_test.shape}, X {self.X.shape}: "
                    "both must have the same columns."
                )
            held, found = _targets(self.y_test, len(self.X_test), self.kind, "y_test")
            if found is not None and classes is not None:
                new = found[~np.isin(found, classes)]
                if len(new):
                    raise InvalidInputError(
                        f"y_test holds label {new[0]}, but the training labels are {classes[0]} to "
                        f"{classes[-1]}: drop these rows, or train on examples of that class."
                    )
                held = np.searchsorted(classes, found)[held]
            elif held.shape[1] != y.shape[1]:
                raise InvalidInputError(
                    f"y_test has {held.shape[1]} output(s) per row, but the training targets have "
                    f"{y.shape[1]}: pass the same outputs."
                )
            object.__setattr__(self, "y_test", held)


def float_matrix(value: ArrayLike, name: str) -> FloatArray:
    """Return a copy as a finite float64 matrix, or say what is wrong with it."""
    return as_tensor(value, name, ndim=2).detach().cpu().numpy().copy()


def _targets(value: Any, rows: int, kind: TaskKind, name: str) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return a copy of numbers, or codes of labels and the classes; one for each row."""
    y, classes = as_targets(value, name, kind)
    if len(y) != rows or y.ndim > 2:
        raise InvalidInputError(f"{name} has shape {y.shape} for {rows} rows: one target per row is needed.")
    return y.copy(), classes
