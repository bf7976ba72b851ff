"""`Eraser`: an extractor from whose features no linear probe learns a task, from rows or a stream."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import one_hot, pad

from condnum.arrays import TargetKind, as_targets, as_tensor, storage_eps
from condnum.errors import InvalidInputError
from condnum.estimators.extractor import Extractor, like_sample
from condnum.theory.erasure import Erasure, erasure_of_rows, erasure_of_task
from condnum.theory.spectra import EPS


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
        >>> eraser.transform(X).round(12).tolist(), eraser.to_linear()
        ([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], Sequential(
          (0): Linear(in_features=2, out_features=1, bias=True)
          (1): Linear(in_features=1, out_features=2, bias=True)
        ))
    """

    _found: tuple[Erasure, Tensor]  # and the mean
    _stream: "_Stream"

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
        rows = as_tensor(X, "X", ndim=2).detach()
        targets, classes = self._targets(y, len(rows), self.kind)
        found = erasure_of_task(
            rows, targets, classes, intercept=True, stored=storage_eps(X), **self._options()
        )
        self._remember_inputs(X)  # all is known: what was refused has changed nothing
        if classes is not None:
            self.classes_ = classes
        self._found = found, rows.mean(dim=0)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Take another block of rows into account; blocks of any size and order give the same θ.

        At most 2(D + C + 1) rows are kept. θ is computed when it is asked for, so that the first block may
        hold a single class.

        Args:
            X: `(n, D)` harmful inputs.
            y: `(n,)` labels of any type, which are collected, or `(n,)` or `(n, m)` numbers.

        Returns:
            The eraser.
        """
        if self.degree != 1:
            raise InvalidInputError(
                f"degree={self.degree} needs all rows, which a stream does not keep; use fit(X, y)."
            )
        if hasattr(self, "n_features_in_") and not hasattr(self, "_stream"):
            raise InvalidInputError(
                "this Eraser holds no rows to go on from: fit and load keep none; use a new Eraser, and "
                "partial_fit for all blocks."
            )
        first = not hasattr(self, "_stream")
        rows = as_tensor(X, "X", ndim=2).detach() if first else self._rows(X)
        stream = _Stream(rows) if first else self._stream
        stream.stored = max(stream.stored, storage_eps(X))
        stream.add(rows, *self._targets(y, len(rows), stream.kind or self.kind))
        if first:
            self._remember_inputs(X)
        self._stream, stream.options = stream, self._options()
        if stream.labels:
            self.classes_ = np.array(sorted(stream.labels))
        self.__dict__.pop("_found", None)
        return self

    @property
    def erasure_(self) -> Erasure:
        """What is erased, as an `Erasure` of float64 tensors: directions, rank, part of the fit."""
        return self._solved()[0]

    @property
    def mean_(self) -> Tensor:
        """Mean of the inputs `(D,)`, a float64 tensor."""
        return self._solved()[1]

    @property
    def theta_(self) -> Any:
        """The product θ = BC `(D, D)`, in kind, dtype and device of the inputs.

        For formulas of θ, such as κ. Features that are multiplied by it are not those of `transform`: they
        keep what was erased in their round-off.
        """
        theta = self.erasure_.theta
        return like_sample(self._sample, theta)

    def _solved(self) -> tuple[Erasure, Tensor]:
        """Return what is erased and the mean, of a stream when it is asked for."""
        check_is_fitted(self)
        if not hasattr(self, "_found"):
            self._found = self._stream.erasure()
        return self._found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags

    def _options(self) -> dict[str, Any]:
        names = ("strength", "rank", "degree", "keep_unseen")
        return {name: getattr(self, name) for name in names}

    def _targets(self, y: Any, rows: int, kind: TargetKind) -> tuple[Any, Any]:
        """Return labels as codes with their classes, or numbers `(N, m)` and None; one for each row."""
        if y is None:
            raise InvalidInputError("Eraser requires y to be passed, but the target y is None.")
        return as_targets(y, "y", kind, rows=rows)

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
        facts |= {"classes": getattr(self, "classes_", np.empty(0)).tolist()}
        return tensors | {"mean": self.mean_}, facts

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        mean = tensors.pop("mean")
        self._found = Erasure(**(tensors | facts["erasure"])), mean
        if facts["classes"]:
            self.classes_ = np.array(facts["classes"])


class _Stream:
    """Rows `[1, X − shift, Z]` of a stream; once they are many, the triangular factor of a QR decomposition.

    The factor has the products of the rows, and each of its columns the round-off of that column alone.
    """

    options: dict[str, Any]  # of `Eraser._options` at the last block

    def __init__(self, X: Tensor) -> None:
        self.kind: TargetKind | None = None  # the first block decides
        self.labels: list[Any] = []  # in the order of their columns; new ones are added
        # Large means leave no round-off, and constant columns none at all.
        self.shift = X[0].clone()
        self.rows = X.new_zeros(0, 1 + X.shape[1])
        self.count, self.stored = 0, EPS  # rows, precision

    def add(self, X: Tensor, targets: Any, classes: Any) -> None:
        """Add rows `(n, D)` with numbers `(n, m)`, or codes `(n,)` of classes."""
        kind: TargetKind = "regression" if classes is None else "classification"
        if kind != (self.kind or kind):
            raise InvalidInputError(
                "y holds labels, but earlier blocks held numbers; pass kind='regression'."
            )
        X, Z = X.to(self.rows), torch.from_numpy(targets).to(self.rows.device)
        if classes is not None:
            new = [label for label in classes.tolist() if label not in self.labels]
            if len({isinstance(label, str) for label in [*self.labels, *new]}) > 1:
                raise InvalidInputError(f"y holds {new[0]!r}, but earlier labels are {self.labels[:5]}.")
            self.labels += new
            columns = torch.tensor([self.labels.index(label) for label in classes.tolist()])
            Z = one_hot(columns.to(Z.device)[Z], len(self.labels))
        outputs = self.rows.shape[1] - 1 - X.shape[1]
        if kind == self.kind == "regression" and Z.shape[1] != outputs:
            raise InvalidInputError(f"y has {Z.shape[1]} columns, but earlier blocks had {outputs}.")
        self.kind, self.count = kind, self.count + len(X)
        block = torch.cat([torch.ones_like(X[:, :1]), X - self.shift, Z.to(X)], dim=1)
        self.rows = torch.cat([pad(self.rows, (0, Z.shape[1] - outputs)), block])
        if len(self.rows) > 2 * self.rows.shape[1]:
            self.rows = torch.linalg.qr(self.rows, mode="r").R

    def erasure(self) -> tuple[Erasure, Tensor]:
        """Return what is erased from all rows, and their mean."""
        if self.kind == "classification" and len(self.labels) < 2:
            raise InvalidInputError(f"y has one class so far, {self.labels[0]}: there is nothing to erase.")
        R, D = torch.linalg.qr(self.rows, mode="r").R, len(self.shift)
        one, F, Z = R[:, :1], R[:, 1 : 1 + D], R[:, 1 + D :]
        # Below the first row stands what is orthogonal to the column of ones.
        mean = self.shift + F[0] / one[0]
        found = erasure_of_rows(F[1:], Z[1:], mean, self.count, stored=self.stored, **self.options)
        return found, mean
