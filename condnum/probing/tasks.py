"""What a probe wants to learn: rows and targets, or their covariance and moment, checked."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.arrays import (
    ArrayLike,
    FloatArray,
    TargetKind,
    as_targets,
    as_tensor,
    same_columns,
)
from condnum.errors import InvalidInputError
from condnum.theory.task import Task


def probed(task: Any, name: str) -> Task:
    """Return the task of a probe, with an intercept for classes; it must have targets to learn."""
    if not isinstance(task, Task):
        raise InvalidInputError(
            f"{name} must be a Task with targets, got {type(task).__name__}; give Task.of(X, y), or "
            "Task.of_covariance(K, moment)."
        )
    own = task.probe
    if not own.learnable:
        lacks = "targets without a linear part (XᵀY is zero)" if own.outputs else "no targets"
        raise InvalidInputError(f"{name} has {lacks}: there is nothing to learn; check the targets.")
    return own


def signed_labels(codes: NDArray[np.int64], classes: int) -> FloatArray:
    """Return labels 0 … C − 1 as the targets ±1 of a squared loss: one column, or one per class beyond two.

    Examples:
        >>> signed_labels(np.array([0, 1]), 2).tolist()
        [[-1.0], [1.0]]
    """
    columns = codes[:, None] if classes == 2 else np.eye(classes)[codes]
    return np.asarray(2.0 * columns - 1.0, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class AttackTask:
    """Rows and targets of an attack, copied to float64."""

    X: FloatArray  # (N, D)
    y: NDArray[Any]  # (N, m) targets of the squared loss, or labels as ±1
    kind: TargetKind  # what the targets were
    X_test: FloatArray | None = None  # (M, D)
    y_test: NDArray[Any] | None = None
    inputs: tuple[Any, Any] = (None, None)  # X and X_test as extractors take them: data frames keep names
    decode: tuple[NDArray[np.int64], FloatArray] | None = None  # labels of scored rows, (m, C) to classes

    @classmethod
    def of(cls, features: Any, targets: Any, kind: TargetKind, held_out: Any) -> "AttackTask":
        """Check and copy; integers, booleans and text are labels, floats are numbers, unless `kind` says."""
        X = float_matrix(features, "features")
        y, classes = as_targets(targets, "targets", kind, rows=len(X))
        if classes is not None and len(classes) < 2:
            raise InvalidInputError(f"all {len(y)} labels are {classes[0]}: there is nothing to classify.")
        learned: TargetKind = "regression" if classes is None else "classification"
        named = hasattr(features, "columns")
        if held_out is None:
            own = cls(X, y.copy(), learned, inputs=(features if named else X, None))
            return own if classes is None else own.signed(len(classes))
        _, frame = same_columns(features=features, held_out=held_out[0])
        X_test = float_matrix(frame, "held-out features")
        y_test, found = as_targets(held_out[1], "held-out targets", kind, rows=len(X_test))
        if classes is not None and found is not None:
            if len(new := found[~np.isin(found, classes)]):
                raise InvalidInputError(
                    f"held-out targets have the label {new[0]}, but the training labels are {classes[0]} to "
                    f"{classes[-1]}: drop these rows, or train on examples of that class."
                )
            y_test = np.searchsorted(classes, found)[y_test]
        if X_test.shape[1:] + y_test.shape[1:] != X.shape[1:] + y.shape[1:]:
            raise InvalidInputError(
                f"held-out features {X_test.shape} and targets {y_test.shape} must have the columns of the "
                f"others, {X.shape} and {y.shape}."
            )
        inputs = (features, frame) if named else (X, X_test)
        own = cls(X, y.copy(), learned, X_test, y_test.copy(), inputs)
        return own if classes is None else own.signed(len(classes))

    def signed(self, classes: int) -> "AttackTask":
        """Return this task with labels 0 … C − 1 as targets, and what decodes outputs."""
        coded = None if self.y_test is None else signed_labels(self.y_test, classes)
        columns = np.array([[-1.0, 1.0]]) if classes == 2 else np.eye(classes)
        decode = (self.y if self.y_test is None else self.y_test), columns
        return replace(self, y=signed_labels(self.y, classes), y_test=coded, decode=decode)

    @classmethod
    def of_task(cls, task: Task) -> "AttackTask":
        """Return rows B and targets Y of the same squared loss: `BᵀB = K`, and `BᵀY` is the moment."""
        B, Y = (part.cpu().numpy() for part in (task.root, task.along))
        named = B if task.columns is None else pd.DataFrame(B, columns=[*task.columns])
        return cls(B, Y, "regression", inputs=(named, None))


def float_matrix(value: ArrayLike, name: str) -> FloatArray:
    """Return a copy as a finite float64 matrix, or say what is wrong with it."""
    return as_tensor(value, name, ndim=2).detach().cpu().numpy().copy()
