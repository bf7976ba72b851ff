"""`Immunizer` and `Eraser`: extractors θ as scikit-learn transformers and as layers of a torch net.

Arrays, tensors and data frames come back as they were given: in their kind, dtype and device. Columns of data
frames are matched by name. Computing is in float64, on the device of the inputs where it has float64.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from condnum.arrays import TargetKind, as_array, as_targets, as_tensor, same_columns
from condnum.errors import DataFormatError, InvalidInputError, check_flag, require
from condnum.methods.method import Method
from condnum.methods.problem import ImmunizationProblem, LossName
from condnum.methods.registry import immunize
from condnum.methods.settings import DescentSettings, Settings
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.erasure import Erasure, erasure, erasure_of_rows
from condnum.theory.immunization import Immunization, relative_immunization_ratio
from condnum.theory.spectra import EPS, ConditionNumber


class _Extractor(TransformerMixin, BaseEstimator):
    """What both share: columns, kinds and devices of inputs, the layer, files."""

    n_features_in_: int
    _sample: Any  # an empty array or tensor of the dtype and device of the inputs of `fit`
    _features: Callable[[Tensor], Tensor]  # of rows, in float64
    _affine: Callable[[], dict[str, Tensor]]  # `weight` and, where there is one, `bias` of the layer
    _record: Callable[[], tuple[dict[str, Any], dict[str, Any]]]  # what a file keeps: tensors, and JSON
    _restore: Callable[[dict[str, Tensor], dict[str, Any]], None]  # takes it back

    def transform(self, X: Any) -> Any:
        """Return the features `(N, D_hid)` in kind, dtype and device of the inputs `(N, D)`."""
        check_is_fitted(self)
        features = _like(_sample(X), self._features(self._rows(X)))
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(features, index=X.index, columns=self.get_feature_names_out())
        return features

    def to_linear(self) -> nn.Linear:
        """Return a layer of dtype and device of the inputs of `fit`: `nn.Sequential(trunk, layer, head)`."""
        check_is_fitted(self)
        affine = self._affine().items()
        state = {name: torch.as_tensor(_like(self._sample, value)) for name, value in affine}
        width, inputs = state["weight"].shape
        layer = nn.Linear(inputs, width, "bias" in state).to(state["weight"])
        layer.load_state_dict(state)
        return layer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write θ, parameters and what was found to a safetensors file (extra `deep`)."""
        check_is_fitted(self)
        tensors, facts = self._record()
        known = facts | {
            "parameters": {name: _written(value) for name, value in self.get_params(deep=False).items()},
            "inputs": self.n_features_in_,
            "columns": list(getattr(self, "feature_names_in_", [])),
            "array": not isinstance(self._sample, Tensor),
            "dtype": str(self._sample.dtype).removeprefix("torch."),
        }
        tensors = {name: torch.as_tensor(value).cpu().contiguous() for name, value in tensors.items()}
        header = {f"condnum.{type(self).__name__}": json.dumps(known)}
        require("safetensors.torch", "deep").save_file(tensors, os.fspath(path), header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; tensors lie on the CPU."""
        safetensors = require("safetensors", "deep")
        try:
            with safetensors.safe_open(os.fspath(path), "pt") as file:
                known = json.loads((file.metadata() or {})[f"condnum.{cls.__name__}"])
                tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise DataFormatError(
                f"{path} holds no {cls.__name__} ({error}); write one with {cls.__name__}.save(path)."
            ) from error
        self = cls(**{name: _read(value) for name, value in known["parameters"].items()})
        self.n_features_in_ = known["inputs"]
        if known["columns"]:
            self.feature_names_in_ = np.array(known["columns"], dtype=object)
        dtype = known["dtype"]
        self._sample = np.empty(0, dtype) if known["array"] else torch.empty(0, dtype=getattr(torch, dtype))
        self._restore(tensors, known)
        return self

    def _remember_inputs(self, X: Any) -> None:
        """Remember columns, dtype and device of the inputs, and forget those of an earlier `fit`."""
        for name in ("feature_names_in_", "classes_", "_stream", "_found"):
            self.__dict__.pop(name, None)
        if isinstance(X, pd.DataFrame) and all(isinstance(name, str) for name in X.columns):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        shape = X.shape if isinstance(X, Tensor) else as_array(X, "X").shape
        self.n_features_in_ = int(shape[-1]) if shape else 0
        self._sample = _sample(X)

    def _rows(self, X: Any) -> Tensor:
        """Return rows in float64, checked, with the columns of `fit`."""
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            X = same_columns(fit=pd.DataFrame(columns=names), X=X)[1]
        rows = as_tensor(X, "X", ndim=2).detach()
        if rows.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input: give the columns of fit."
            )
        return rows


class Immunizer(ClassNamePrefixFeaturesOutMixin, _Extractor):
    r"""A linear extractor θ that keeps a benign task well-conditioned and a harmful one ill-conditioned.

    Features are :math:`Xθ`, and the Hessian of a linear probe on them is :math:`H(θ) = θ^\top X^\top Xθ`
    (Eq. 9). Definition 3.1 asks that θ raise :math:`κ(H_H)`, do not raise :math:`κ(H_P)`, and keep the benign
    loss. In a pipeline, the steps before it change the benign inputs only: change the harmful ones alike.

    Args:
        method: Name of a method, see `condnum.method_names`, or a `Method`. `pareto` is a closed form.
        loss: Of the benign task: `mse`, or `bce` for targets in [0, 1].
        settings: Replaces the settings of a method that descends; or the name of a preset.
        seed: Of θ₀, where a method draws it.

    Attributes:
        theta_: `(D, D_hid)`, in kind, dtype and device of the benign inputs.
        verdict_: Definition 3.1 clause by clause, with (i), (ii) and RIR (compact convention), of `theta_` as
            it is stored. It prints as a sentence.
        explanation_: What ran, the verdict in both conventions, and how slow the targets' probes become.
        limit_: The theoretical limit of RIR, see `rir_ceiling`.
        history_: `{name: (T,)}` values along a descent.

    Raises:
        InvalidInputError: Shapes or names of columns do not fit, or entries are missing or infinite.
        UnknownNameError: Unknown method or loss.

    Examples:
        >>> benign, harmful = np.diag([10.0, 1.0]), np.diag([1.5, 1.0])
        >>> immunizer = Immunizer().fit(benign, harmful)
        >>> immunizer.verdict_.success, immunizer.transform(benign).shape, immunizer.to_linear()
        (True, (2, 2), Linear(in_features=2, out_features=2, bias=False))
    """

    #: The other arrays of `fit` are a task of their own, not metadata of rows that a pipeline could route.
    __metadata_request__fit = dict.fromkeys(("X_harmful", "y_benign", "y_harmful", "X_benign"), UNUSED)

    def __init__(
        self,
        method: str | Method = "pareto",
        *,
        loss: LossName = "mse",
        settings: Settings | str | None = None,
        seed: int = 0,
    ) -> None:
        self.method = method
        self.loss = loss
        self.settings = settings
        self.seed = seed

    def fit(self, X_benign: Any, X_harmful: Any, y_benign: Any = None, y_harmful: Any = None) -> Self:
        """Fit θ.

        Args:
            X_benign: `(N_P, D)` inputs of the benign task.
            X_harmful: `(N_H, D)` inputs of the harmful task; columns of data frames are matched by name.
            y_benign: `(N_P,)` or `(N_P, m)` targets, for clause (c) and methods with a supervised loss.
            y_harmful: `(N_H,)` or `(N_H, m)` targets, for methods that need them.

        Returns:
            The immunizer.
        """
        if np.ndim(X_harmful) == 1:
            raise InvalidInputError(
                f"X_harmful has shape {np.shape(X_harmful)}, as targets have; give the inputs of both tasks: "
                "fit(X_benign, X_harmful, y_benign, y_harmful)."
            )
        X_P, X_H = same_columns(X_benign=X_benign, X_harmful=X_harmful)
        problem = ImmunizationProblem.from_data(X_P, y_benign, X_H, y_harmful, loss=self.loss)
        found = immunize(problem, self.method, seed=self.seed, settings=self.settings)
        self._remember_inputs(X_benign)
        self.theta_ = _like(self._sample, found.theta)
        self._n_features_out = self.theta_.shape[1]
        ranges = problem.pretrain.range, problem.harmful.range
        gap = None if problem.pretrain.targets is None else problem.pretrain.loss_gap(self.theta_)
        self.verdict_ = relative_immunization_ratio(self.theta_, *ranges, loss_gap=gap)
        self.limit_, self.history_ = rir_ceiling(*ranges).value, found.history
        self.explanation_ = found.explanation
        return self

    def _features(self, rows: Tensor) -> Tensor:
        return rows @ torch.as_tensor(self.theta_).to(rows)

    def _affine(self) -> dict[str, Tensor]:
        return {"weight": torch.as_tensor(self.theta_).mT}

    def _record(self) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors = {"theta": self.theta_} | {f"history.{name}": of for name, of in self.history_.items()}
        facts = {"verdict": asdict(self.verdict_), "explanation": self.explanation_, "limit": self.limit_}
        return tensors, facts

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        theta, verdict = tensors.pop("theta"), facts["verdict"]
        self.theta_ = theta.numpy() if facts["array"] else theta
        self._n_features_out = theta.shape[1]
        for name, value in verdict.items():
            if name.endswith(("before", "after")):
                verdict[name] = ConditionNumber(**value)
        self.verdict_, self.limit_ = Immunization(**verdict), facts["limit"]
        self.explanation_ = facts["explanation"]
        self.history_ = {name.removeprefix("history."): values.numpy() for name, values in tensors.items()}


class Eraser(OneToOneFeatureMixin, _Extractor):
    r"""A linear extractor θ from whose features no linear probe learns the harmful task.

    Features are :math:`\bar x + (x - \bar x)θ`, with :math:`θ^\top X_H^\top Z = 0` for centered inputs and
    targets Z: no linear probe with a convex loss does better on them than without features, see `erasure`.
    θ is kept as factors of the rank of what is erased, not as a D × D matrix.

    Args:
        strength: 1 − s in [0, 1]; 1 erases, less slows only.
        rank: Erase only that many directions; default: all.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.
        intercept: Whether the probe has an intercept; without one nothing is centered.
        shrinkage: In [0, 1], of the covariance; default: by the number of rows per column.
        floor: In [0, 1], how rarely excited directions are removed, too. Default: 1/3 in `fit`. `partial_fit`
            keeps no rows and cannot tell which directions few rows excite, so that it takes 0 only.

    Attributes:
        classes_: Labels in ascending order; missing for numbers.

    Raises:
        InvalidInputError: Shapes or names of columns do not fit, entries are missing or infinite, or there is
            nothing to erase.

    Examples:
        >>> X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> eraser = Eraser().fit(X, ["cat", "cat", "dog", "dog"])
        >>> eraser.transform(X).round(12).tolist(), eraser.to_linear()
        ([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], Linear(in_features=2, out_features=2, bias=True))
    """

    #: The labels of a stream are no metadata of rows.
    __metadata_request__partial_fit = dict.fromkeys(("classes",), UNUSED)
    _found: tuple[Erasure, Tensor]  # and the mean
    _stream: "_Stream"

    def __init__(
        self,
        *,
        strength: float = 1.0,
        rank: int | None = None,
        kind: TargetKind = "auto",
        intercept: bool = True,
        shrinkage: float | None = None,
        floor: float | None = None,
    ) -> None:
        self.strength = strength
        self.rank = rank
        self.kind = kind
        self.intercept = intercept
        self.shrinkage = shrinkage
        self.floor = floor

    def fit(self, X: Any, y: Any) -> Self:
        """Erase `y` from the rows.

        Args:
            X: `(N, D)` harmful inputs.
            y: `(N,)` labels of any type, or `(N,)` or `(N, m)` numbers.

        Returns:
            The eraser.
        """
        self._remember_inputs(X)
        rows = self._rows(X)
        targets, classes = self._targets(y, len(rows), self.kind)
        if classes is not None:
            if len(classes) < 2:
                raise InvalidInputError(f"y has one class, {classes[0]}: there is nothing to erase.")
            self.classes_ = classes
        kind: TargetKind = "regression" if classes is None else "classification"
        options = self._options() | {
            "intercept": check_flag("intercept", self.intercept),
            "floor": self.floor,
        }
        found = erasure(rows, targets, kind=kind, **options)
        self._found = found, rows.mean(dim=0) * self.intercept
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Take another block of rows into account; blocks of any size and order give the same θ.

        At most 2(D + C + 1) rows are kept. θ is computed when it is asked for, so that the first block may
        hold a single class.

        Args:
            X: `(n, D)` harmful inputs.
            y: `(n,)` labels of any type, or `(n,)` or `(n, m)` numbers.
            classes: All labels, where they are known: others are refused. By default they are collected.

        Returns:
            The eraser.
        """
        if self.floor:
            raise InvalidInputError(
                f"floor={self.floor} needs all rows, which a stream does not keep; use fit(X, y), or floor=0."
            )
        if hasattr(self, "n_features_in_") and not hasattr(self, "_stream"):
            raise InvalidInputError(
                "this Eraser holds no rows to go on from: fit and load keep none; use a new Eraser, and "
                "partial_fit for all blocks."
            )
        first = not hasattr(self, "_stream")
        if first:
            self._remember_inputs(X)
        rows = self._rows(X)
        stream = _Stream(rows, self.intercept, classes) if first else self._stream
        stream.add(rows, *self._targets(y, len(rows), stream.kind or self.kind))
        self._stream = stream
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
        """Mean of the inputs `(D,)`, a float64 tensor; zero without an intercept."""
        return self._solved()[1]

    @property
    def theta_(self) -> Any:
        """θ as a matrix `(D, D)`, in kind, dtype and device of the inputs."""
        return _like(self._sample, self.erasure_.theta)

    def _solved(self) -> tuple[Erasure, Tensor]:
        """Return what is erased and the mean, of a stream when it is asked for."""
        check_is_fitted(self)
        if not hasattr(self, "_found"):
            self._found = self._stream.erasure(**self._options())
        return self._found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32", "float16"]
        return tags

    def _options(self) -> dict[str, Any]:
        return {"strength": self.strength, "rank": self.rank, "shrinkage": self.shrinkage}

    def _targets(self, y: Any, rows: int, kind: TargetKind) -> tuple[Any, Any]:
        """Return labels as codes with their classes, or numbers `(N, m)` and None; one for each row."""
        if y is None:
            raise InvalidInputError("Eraser requires y to be passed, but the target y is None.")
        targets, classes = as_targets(y, "y", kind)
        if targets.ndim > 2 or len(targets) != rows:
            raise InvalidInputError(f"y has shape {targets.shape} for {rows} rows of X: give one per row.")
        return targets, classes

    def _features(self, rows: Tensor) -> Tensor:
        found, mean = self.erasure_.converted(lambda part: part.to(rows.device)), self.mean_.to(rows.device)
        return found.features(rows - mean) + mean

    def _affine(self) -> dict[str, Tensor]:
        theta = self.erasure_.theta
        return {"weight": theta.mT} | ({"bias": self.mean_ - self.mean_ @ theta} if self.intercept else {})

    def _record(self) -> tuple[dict[str, Any], dict[str, Any]]:
        values = vars(self.erasure_)
        tensors = {name: of for name, of in values.items() if isinstance(of, Tensor) and name != "theta"}
        facts = {"erasure": {name: of for name, of in values.items() if not isinstance(of, Tensor)}}
        classes = getattr(self, "classes_", np.empty(0))
        return tensors | {"mean": self.mean_}, facts | {"classes": classes.tolist()}

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        mean = tensors.pop("mean")
        self._found = Erasure(**(tensors | facts["erasure"])), mean
        if facts["classes"]:
            self.classes_ = np.array(facts["classes"])


class _Stream:
    """Rows `[1, X − shift, Z]` of a stream; once they are many, the triangular factor of a QR decomposition.

    The factor has the products of the rows, and each of its columns the round-off of that column alone.
    """

    def __init__(self, X: Tensor, intercept: bool, classes: Any = None) -> None:
        self.intercept, self.fixed = check_flag("intercept", intercept), classes is not None
        self.kind: TargetKind | None = "classification" if self.fixed else None  # the first block decides
        # In the order of their columns; new ones are added.
        known = as_targets(classes, "classes", "classification")[1] if self.fixed else None
        self.labels: list[Any] = [] if known is None else known.tolist()
        # Large means leave no round-off, and constant columns none at all.
        self.shift = X[0].clone() if intercept else torch.zeros_like(X[0])
        self.rows = X.new_zeros(0, 1 + X.shape[1] + len(self.labels))
        self.sizes, self.peaks, self.count = torch.zeros_like(X[0]), torch.zeros_like(X[0]), 0

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
            if new and self.fixed:
                raise InvalidInputError(f"y holds the label {new[0]!r}, which classes do not name.")
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
        self.sizes = torch.hypot(self.sizes, X.norm(dim=0))
        self.peaks = torch.maximum(self.peaks, X.abs().amax(dim=0))
        if len(self.rows) > 2 * self.rows.shape[1]:
            self.rows = torch.linalg.qr(self.rows, mode="r").R

    def erasure(self, **options: Any) -> tuple[Erasure, Tensor]:
        """Return what is erased from all rows, and their mean."""
        if self.kind == "classification" and len(self.labels) < 2:
            raise InvalidInputError(f"y has one class so far, {self.labels[0]}: there is nothing to erase.")
        R, D = torch.linalg.qr(self.rows, mode="r").R, len(self.shift)
        one, F, Z = R[:, :1], R[:, 1 : 1 + D], R[:, 1 + D :]
        mean = torch.zeros_like(self.shift)
        if self.intercept:  # below the first row stands what is orthogonal to the column of ones
            mean = self.shift + F[0] / one[0]
            F, Z = F[1:], Z[1:]
            F = F * (F.norm(dim=0) > 8 * EPS * self.count**0.5 * self.peaks)  # else constant up to round-off
        elif self.kind == "classification":
            Z = Z - one / len(self.labels)
        found = erasure_of_rows(F, Z, self.sizes, self.count, floor=0.0, intercept=self.intercept, **options)
        return found, mean


def _sample(X: Any) -> Any:
    """Return an empty array or tensor of the floating-point dtype and device of X; other dtypes: float64."""
    if isinstance(X, Tensor):
        return torch.empty(0, dtype=X.dtype if X.dtype.is_floating_point else torch.float64, device=X.device)
    dtype = as_array(X, "X").dtype.newbyteorder("=")
    return np.empty(0, dtype if dtype in (np.float16, np.float32) else np.float64)


def _like(sample: Any, tensor: Tensor) -> Any:
    """Return a tensor in kind, dtype and device of a sample."""
    if isinstance(sample, Tensor):
        return tensor.to(sample.dtype).to(sample.device)  # the dtype first: MPS has no float64
    return tensor.cpu().numpy().astype(sample.dtype, copy=False)


def _written(value: Any) -> Any:
    """Return a parameter as JSON holds it."""
    if isinstance(value, Settings):
        return asdict(value)
    if isinstance(value, Method):
        return value.name
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any) -> Any:
    """Return a parameter that `_written` gave."""
    return DescentSettings(**value) if isinstance(value, dict) else value
