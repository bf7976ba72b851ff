"""`Eraser`: an extractor from whose features no linear probe learns a task, from rows or a stream."""

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
        strength: 1 − s in [0, 1]; 1 erases, less slows only.
        rank: Erase only that many directions; default: all.
        degree: 1 stops linear probes, 2 quadratic ones, too, at the cost of many directions, see `erasure`.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.
        keep_unseen: Pass on what no row excites, for the sake of the benign task; see `erasure`.

    Attributes:
        classes_: Labels in ascending order; missing for numbers.

    Raises:
        InvalidInputError: Shapes or names of columns do not fit, entries are missing or infinite, or there is
            nothing to erase.

    Examples:
        >>> X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> eraser = Eraser().fit(X, ["cat", "cat", "dog", "dog"])
        >>> (eraser.transform(X).round(12) + 0.0).tolist(), eraser.to_linear()
        ([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], Sequential(
          (0): Linear(in_features=2, out_features=1, bias=True)
          (1): Linear(in_features=1, out_features=2, bias=True)
        ))
    """

    _found: Erasure
    _task: Task  # of the rows so far
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

    def fit(self, X: Any, y: Any) -> Self:
        """Erase `y` from the rows.

        Args:
            X: `(N, D)` harmful inputs.
            y: `(N,)` labels of any type, or `(N,)` or `(N, m)` numbers.

        Returns:
            The eraser.
        """
        _required(y)
        with own_state():
            task = Task.of(X, y, kind=self.kind)
            found = erasure_of_task(task, (X, y), **self._options())
        self._remember_inputs(X)  # all is known: what was refused has changed nothing
        self._take(task)
        self._found = found
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Take another block of rows into account; blocks of any size and order give the same θ.

        At most D + C + 1 rows are kept. θ is computed when it is asked for, so that the first block may
        hold a single class.

        Args:
            X: `(n, D)` harmful inputs.
            y: `(n,)` labels of any type, which are collected, or `(n,)` or `(n, m)` numbers.

        Returns:
            The eraser.
        """
        _required(y)
        if self.degree != 1:
            raise InvalidInputError(
                f"degree={self.degree} needs all rows, which a stream does not keep; use fit(X, y)."
            )
        first = not hasattr(self, "_task")
        if first and hasattr(self, "n_features_in_"):
            raise InvalidInputError("a loaded Eraser holds no rows to go on from; fit a new one.")
        with own_state():
            if first:
                task = Task.of(X, y, kind=self.kind)
            else:
                self._rows(X)  # refuses other columns in scikit-learn's words
                task = self._task.extended(X, y, kind=self.kind)
        if first:
            self._remember_inputs(X)
        self._take(task)
        return self

    def _take(self, task: Task) -> None:
        """Remember the rows so far; what was found in fewer is forgotten."""
        self._task, self._wanted = task, self._options()
        self.__dict__.pop("_found", None)
        if task.classes is not None:
            self.classes_ = np.array(sorted(task.classes))

    @property
    def erasure_(self) -> Erasure:
        """What is erased, as an `Erasure` of float64 tensors: directions, rank, part of the fit."""
        check_is_fitted(self)
        if not hasattr(self, "_found"):
            with own_state():
                self._found = erasure_of_task(self._task, **self._wanted)
        return self._found

    @property
    def mean_(self) -> Tensor:
        """Mean of the inputs `(D,)`, a float64 tensor."""
        check_is_fitted(self)
        return self._mean if hasattr(self, "_mean") else self._task.mean

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
        names = ("strength", "rank", "degree", "keep_unseen")
        return {name: getattr(self, name) for name in names}

    def _features(self, rows: Tensor) -> Tensor:
        found, mean = self.erasure_.converted(lambda part: part.to(rows.device)), self.mean_.to(rows.device)
        return found.features(rows - mean) + mean

    def _affine(self) -> list[dict[str, Tensor]]:
        found, mean = self.erasure_, self.mean_
        if found.strength < 1:  # θ is invertible: there is nothing to hide
            return [{"weight": found.theta.mT, "bias": mean - mean @ found.theta}]
        return [
            {"weight": found.left.mT, "bias": -mean @ found.left},
            {"weight": found.right.mT, "bias": mean},
        ]

    def _record(self) -> tuple[dict[str, Any], dict[str, Any]]:
        values = vars(self.erasure_)
        tensors = {name: of for name, of in values.items() if isinstance(of, Tensor) and name != "theta"}
        facts: dict[str, Any] = {
            "erasure": {name: of for name, of in values.items() if not isinstance(of, Tensor)}
        }
        facts["classes"] = getattr(self, "classes_", np.empty(0)).tolist()
        return tensors | {"mean": self.mean_}, facts

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._mean = tensors.pop("mean")
        self._found = Erasure(**(tensors | facts["erasure"]))
        if facts["classes"]:
            self.classes_ = np.array(facts["classes"])


def _required(y: Any) -> None:
    """Refuse missing targets, in the words that scikit-learn looks for."""
    if y is None:
        raise InvalidInputError("Eraser requires y to be passed, but the target y is None.")
