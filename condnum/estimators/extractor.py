"""What `Immunizer` and `Eraser` share: columns, kinds, dtypes and devices of inputs, the layer, files."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self

import narwhals as nw
import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.utils import skip_init

from condnum.arrays import (
    as_array,
    as_tensor,
    check_same_names,
    frame,
    like_sample,
    own_state,
    sample_of,
    selected,
)
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, OutputError, require
from condnum.methods import DescentSettings, Method


class Extractor(TransformerMixin, BaseEstimator):
    """What both share: columns, kinds and devices of inputs, the layer, files."""

    n_features_in_: int
    _sample: Any  # an empty array or tensor of the dtype and device of the inputs of `fit`
    columns_: list[Any] | None  # of the data frame that was fitted; None for arrays
    _features: Callable[[Tensor], Tensor]  # of rows, in float64
    _affine: Callable[[], list[dict[str, Tensor]]]  # `weight` and, where there is one, `bias` of each layer
    _record: Callable[[], tuple[dict[str, Any], dict[str, Any]]]  # what a file keeps: tensors, and JSON
    _restore: Callable[[dict[str, Tensor], dict[str, Any]], None]  # takes it back

    def transform(self, X: Any) -> Any:
        """Return the features `(N, D_hid)` in kind, dtype and device of the inputs `(N, D)`."""
        check_is_fitted(self)
        with own_state():
            features = like_sample(sample_of(X), self._features(self._rows(X)))
        table = frame(X)
        if table is None:
            return features
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(features, index=X.index, columns=self.get_feature_names_out())
        names = [str(name) for name in self.get_feature_names_out()]
        return nw.from_numpy(features, names, backend=table.implementation).to_native()

    @own_state()
    def to_linear(self) -> nn.Linear | nn.Sequential:
        """Return a layer of dtype and device of the inputs of `fit`: `nn.Sequential(trunk, layer, head)`.

        What erases is two linear layers, with a bottleneck between them.
        """
        check_is_fitted(self)
        layers = []
        for affine in self._affine():
            state = {name: torch.as_tensor(like_sample(self._sample, of)) for name, of in affine.items()}
            width, inputs = state["weight"].shape
            layer = skip_init(
                nn.Linear, inputs, width, "bias" in state
            )  # it would draw from torch's generator
            layers.append(layer.to(state["weight"]))
            layers[-1].load_state_dict(state)
        return layers[0] if len(layers) == 1 else nn.Sequential(*layers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write θ, parameters and what was found to a safetensors file (extra `deep`)."""
        check_is_fitted(self)
        tensors, facts = self._record()
        known = facts | {
            "parameters": {name: _written(value) for name, value in self.get_params(deep=False).items()},
            "inputs": self.n_features_in_,
            "columns": self.columns_,
            "array": not isinstance(self._sample, Tensor),
            "dtype": str(self._sample.dtype).removeprefix("torch."),
        }
        tensors = {name: torch.as_tensor(value).cpu().contiguous() for name, value in tensors.items()}
        header = {f"condnum.{type(self).__name__}": json.dumps(known)}
        safetensors = require("safetensors.torch", "deep")
        try:
            safetensors.save_file(tensors, os.fspath(path), header)
        except (OSError, require("safetensors", "deep").SafetensorError) as error:
            raise OutputError(f"{path} cannot be written: {error}; choose a folder that exists.") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; tensors lie on the CPU."""
        safetensors = require("safetensors", "deep")
        try:
            with safetensors.safe_open(os.fspath(path), "pt") as file:
                known = json.loads((file.metadata() or {})[f"condnum.{cls.__name__}"])
                tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        except FileNotFoundError:
            raise DataNotFoundError(f"there is no file {path}; give one that save(path) wrote.") from None
        except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
            raise DataFormatError(
                f"{path} holds no {cls.__name__} ({error}); write one with {cls.__name__}.save(path)."
            ) from error
        self = cls(**{name: _read(value) for name, value in known["parameters"].items()})
        self.n_features_in_ = known["inputs"]
        self._name_columns(known["columns"])
        dtype = known["dtype"]
        self._sample = np.empty(0, dtype) if known["array"] else torch.empty(0, dtype=getattr(torch, dtype))
        self._restore(tensors, known)
        return self

    def _remember_inputs(self, X: Any) -> None:
        """Remember columns, dtype and device of the inputs, and forget those of an earlier `fit`."""
        for name in ("classes_", "_task", "_found", "_mean"):
            self.__dict__.pop(name, None)
        table = frame(X)
        self._name_columns(None if table is None else table.columns)
        shape = X.shape if isinstance(X, Tensor) else as_array(X, "X").shape
        self.n_features_in_ = int(shape[-1]) if shape else 0
        self._sample = sample_of(X)

    def _name_columns(self, columns: list[Any] | None) -> None:
        """Keep the names of columns; scikit-learn's `feature_names_in_` is there for text alone."""
        self.columns_ = columns
        self.__dict__.pop("feature_names_in_", None)
        if columns and all(isinstance(name, str) for name in columns):
            self.feature_names_in_ = np.array(columns, dtype=object)

    def _rows(self, X: Any) -> Tensor:
        """Return rows in float64, checked, with the columns of `fit`."""
        if self.columns_ is not None and (table := frame(X)) is not None:
            check_same_names("fit", self.columns_, "X", table.columns)
            X = selected(X, self.columns_)
        rows = as_tensor(X, "X", ndim=2).detach()
        if rows.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input: give the columns of fit."
            )
        return rows


def _written(value: Any) -> Any:
    """Return a parameter as JSON holds it."""
    if isinstance(value, DescentSettings):
        return asdict(value)
    if isinstance(value, Method):
        return value.name
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any) -> Any:
    """Return a parameter that `_written` gave."""
    return DescentSettings(**value) if isinstance(value, dict) else value
