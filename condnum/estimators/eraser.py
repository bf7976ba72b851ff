"""`Eraser`: an extractor from whose features no linear probe learns a task, from rows or a stream."""

import warnings
from functools import cached_property
from typing import Any, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from condnum.arrays import TargetKind, like_sample, own_state
from condnum.errors import InvalidInputError
from condnum.estimators.extractor import Extractor
from condnum.theory.erasure import Erasure, erasure_of_task
from condnum.theory.task import Task


class Eraser(OneToOneFeatureMixin, Extractor):
    r"""A linear extractor θ from whose features no linear probe learns the harmful task.

    Features are :math:`\bar x + ((x - \bar x)B)C`, with :math:`B^\top X_H^\top Z = 0` for centered inputs and
    targets Z: no linear probe with a convex loss does better on them than without features, see `erasure`.
    Release `transform`, or the two layers of `to_linear()`: one matrix θ = BC leaks through its round-off.
    On fresh rows something is left, the more the fewer rows per column were fitted, and nearly all of it
    where a single row excites a column: audit it on other rows.

    Args:
        strength, rank, degree, keep_unseen: As of `erasure`; degree 2 needs all rows at once.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.

    Attributes:
        mean_: Mean of the inputs `(D,)`, a float64 tensor.
        erasure_: What is erased, as an `Erasure` of float64 tensors: directions, rank, part of the fit.
        classes_: Labels in ascending order; missing for numbers.

    Raises:
        InvalidInputError: Shapes or names of columns do not fit, entries are missing or infinite, or there is
            nothing to erase. Where nothing is left, features are constant, and a warning says so.

    Examples:
        >>> X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> eraser = Eraser().fit(X, ["cat", "cat", "dog", "dog"])
        >>> (eraser.transform(X).round(12) + 0.0).tolist(), eraser.to_linear()
        ([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], Sequential(
          (0): Linear(in_features=2, out_features=1, bias=True)
          (1): Linear(in_features=1, out_features=2, bias=True)
        ))
    """

    _task: Task  # of the rows so far; a file does not keep it
    _wanted: dict[str, Any]  # parameters at the last block

    def __init__(
        self,
        *,
        strength: float = 1.0,
        rank: int | None = None,
        degree: int = 1,
        kind: TargetKind = "auto",
        keep_unseen: bool = False,
    ) -> None:
        self.strength = strength
        self.rank = rank
        self.degree = degree
        self.kind = kind
        self.keep_unseen = keep_unseen

    def fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Erase `y` from the rows.

        Args:
            X: `(N, D)` harmful inputs.
            y: `(N,)` labels of any type, or `(N,)` or `(N, m)` numbers.
            **unsupported: Refused, such as weights of rows.

        Returns:
            The eraser.
        """
        self._refuse(unsupported)
        task = self._extended(None, X, y)
        found = self._erased(task, self._options(), (X, y))
        self._take(task, X)  # all is known: what was refused has changed nothing
        self.erasure_ = found
        return self

    def partial_fit(self, X: Any, y: Any, **unsupported: Any) -> Self:
        """Take another block of rows into account, also after `fit`; sizes and order change nothing.

        At most D + C + 1 rows are kept. θ is computed when it is asked for, so that the first block may hold
        a single class; new labels may come later. Arguments as of `fit`.
        """
        self._refuse(unsupported)
        if self.degree != 1:
            raise InvalidInputError(
                f"degree={self.degree} needs all rows, which a stream does not keep; use fit(X, y)."
            )
        earlier = getattr(self, "_task", None)
        if earlier is not None:
            self._rows(X)  # refuses other columns in scikit-learn's words
        elif hasattr(self, "n_features_in_"):
            raise InvalidInputError("a loaded Eraser holds no rows to go on from; fit a new one.")
        self._take(self._extended(earlier, X, y), X if earlier is None else None)
        return self

    def _extended(self, task: Task | None, X: Any, y: Any) -> Task:
        """Return a task with these rows, too."""
        if y is None:  # in the words that scikit-learn looks for
            raise InvalidInputError("Eraser requires y to be passed, but the target y is None.")
        return (Task.of if task is None else task.extended)(X, y, kind=self.kind)

    @own_state()
    def _erased(self, task: Task, wanted: dict[str, Any], rows: Any = None) -> Erasure:
        """Erase a task's targets."""
        found = erasure_of_task(task, rows, **wanted, empty=True)
        if not found.left.shape[1]:
            warnings.warn(
                f"all {found.rank} directions of the rows are erased, and the features are constant; give a "
                "smaller rank, fewer classes or more features.",
                stacklevel=4,
            )
        return found

    def _take(self, task: Task, X: Any) -> None:
        """Remember the rows so far, of which X are the first; what was found in fewer is forgotten."""
        for name in ("erasure_", "classes_"):
            self.__dict__.pop(name, None)
        if X is not None:
            self._remember_inputs(X)
        self._task, self._wanted, self.mean_ = task, self._options(), task.mean
        if task.classes is not None:
            self.classes_ = np.array(sorted(task.classes))

    @cached_property
    def erasure_(self) -> Erasure:
        """What is erased; of a stream, when it is asked for."""
        check_is_fitted(self)
        return self._erased(self._task, self._wanted)

    @property
    def theta_(self) -> Any:
        """The product θ = BC `(D, D)`, in kind, dtype and device of the inputs.

        For formulas of θ, such as κ. Features that are multiplied by it are not those of `transform`: they
        keep what was erased in their round-off.
        """
        theta = self.erasure_.theta
        return like_sample(self._sample, theta)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags

    def _options(self) -> dict[str, Any]:
        return {name: value for name, value in self.get_params().items() if name != "kind"}

    def _map(self, rows: Tensor) -> Tensor:
        mean, left, right = (part.to(rows) for part in (self.mean_, self.erasure_.left, self.erasure_.right))
        return ((rows - mean) @ left) @ right + mean

    def _layers(self) -> list[tuple[Tensor, Tensor | None]]:
        found, mean = self.erasure_, self.mean_
        if found.strength < 1:  # θ is invertible: there is nothing to hide
            return [(found.theta, mean - mean @ found.theta)]
        return [(found.left, -mean @ found.left), (found.right, mean)]

    def _state(self) -> dict[str, Any]:
        found = vars(self) | {"erasure_": self.erasure_}
        return {name: value for name, value in found.items() if name not in ("_task", "_wanted")}
