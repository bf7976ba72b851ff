"""What `Immunizer` and `Eraser` share: columns, kinds, dtypes and devices of inputs, the layer, files."""

import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Self

import narwhals as nw
import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.utils import skip_init

from condnum.arrays import as_array, as_tensor, check_same_names, door, frame, own_state, sample_of, selected
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, OutputError, require
from condnum.methods import DescentSettings
from condnum.theory.erasure import Erasure
from condnum.theory.kappa import ConditionNumber, Immunization

#: Records that a file may hold, beside numbers, text and arrays.
_RECORDS = {kind.__name__: kind for kind in (ConditionNumber, DescentSettings, Erasure, Immunization)}


class Extractor(TransformerMixin, BaseEstimator):
    """What both share: columns, kinds and devices of inputs, the layer, files."""

    n_features_in_: int
    columns_: list[Any] | None  # of the data frame that was fitted; None for arrays
    _sample: Any  # an empty array or tensor of the dtype and device of the inputs of `fit`
    _map: Callable[[Tensor], Tensor]  # of rows, in float64
    _layers: Callable[[], list[tuple[Tensor, Tensor | None]]]  # θ `(D, D_hid)` and bias of each
    _state: Callable[[], dict[str, Any]]  # attributes that a file keeps

    def transform(self, X: Any) -> Any:
        """Return the features `(N, D_hid)` in kind, dtype and device of the inputs `(N, D)`."""
        check_is_fitted(self)
        features, table = self._features(X), frame(X)
        if table is None:
            return features
        names = [str(name) for name in self.get_feature_names_out()]
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(features, index=X.index, columns=names)
        return nw.from_numpy(features, names, backend=table.implementation).to_native()

    @door
    def _features(self, X: Any) -> Any:
        return self._map(self._rows(X))

    @own_state()
    def to_linear(self) -> nn.Linear | nn.Sequential:
        """Return a layer of dtype and device of the inputs of `fit`: `nn.Sequential(trunk, layer, head)`.

        What erases is two linear layers, with a bottleneck between them.
        """
        check_is_fitted(self)
        like, layers = torch.as_tensor(self._sample), list[Any]()
        for theta, bias in self._layers():
            # `nn.Linear` itself would draw from torch's generator.
            layer = skip_init(nn.Linear, *theta.shape, bias is not None, dtype=like.dtype, device=like.device)
            layer.load_state_dict({"weight": theta.mT} | ({} if bias is None else {"bias": bias}))
            layers.append(layer)
        return layers[0] if len(layers) == 1 else nn.Sequential(*layers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map, parameters and what was found to a safetensors file (extra `deep`)."""
        check_is_fitted(self)
        tensors = dict[str, Tensor]()
        state = {name: _packed(value, name, tensors) for name, value in self._state().items()}
        header = {f"condnum.{type(self).__name__}": json.dumps(state)}
        try:
            require("safetensors.torch", "deep").save_file(tensors, os.fspath(path), header)
        except (OSError, require("safetensors", "deep").SafetensorError) as error:
            raise OutputError(f"{path} cannot be written: {error}; choose a folder that exists.") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; tensors lie on the CPU."""
        safetensors = require("safetensors", "deep")
        kinds = {f"condnum.{kind.__name__}": kind for kind in (cls, *cls.__subclasses__())}
        try:
            with safetensors.safe_open(os.fspath(path), "pt") as file:
                known = file.metadata() or {}
                name = next(name for name in known if name in kinds)
                tensors = {key: file.get_tensor(key) for key in file.offset_keys()}
                state = json.loads(known[name], object_hook=partial(_unpacked, tensors))
        except FileNotFoundError:
            raise DataNotFoundError(f"there is no file {path}; give one that save(path) wrote.") from None
        except (safetensors.SafetensorError, StopIteration, KeyError, ValueError, OSError) as error:
            raise DataFormatError(
                f"{path} holds no {cls.__name__} ({error}); write one with {cls.__name__}.save(path)."
            ) from error
        self = kinds[name]()
        self.__dict__.update(state)
        return self

    def _remember_inputs(self, X: Any) -> None:
        """Remember columns, dtype and device of the inputs, and forget those of an earlier `fit`."""
        table = frame(X)
        self.columns_ = None if table is None else list(table.columns)
        self.__dict__.pop("feature_names_in_", None)  # scikit-learn's, there for text alone
        if self.columns_ and all(isinstance(name, str) for name in self.columns_):
            self.feature_names_in_ = np.array(self.columns_, dtype=object)
        self.n_features_in_ = int((X if isinstance(X, Tensor) else as_array(X, "X")).shape[1])
        self._sample = sample_of(X)

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

    def _refuse(self, arguments: dict[str, Any]) -> None:
        """Refuse what `fit` does not take, such as weights."""
        if arguments:
            raise InvalidInputError(
                f"{type(self).__name__} does not support {', '.join(arguments)}; for weights repeat rows "
                "(numpy.repeat), or, without labels, multiply an Immunizer's rows and targets by √weight."
            )


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON holds it, and put its arrays of numbers aside under dotted names."""
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "fiub"):
        tensors[name] = torch.as_tensor(value).detach().cpu().contiguous()
        return {"tensor": name, "numpy": isinstance(value, np.ndarray)}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    if is_dataclass(value):
        value = {"record": type(value).__name__} | {of.name: getattr(value, of.name) for of in fields(value)}
    if isinstance(value, dict):
        return {key: _packed(of, f"{name}.{key}", tensors) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(of, f"{name}.{place}", tensors) for place, of in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(tensors: dict[str, Tensor], found: dict[str, Any]) -> Any:
    """Return what `_packed` made an object of JSON."""
    if "tensor" in found:
        tensor = tensors[found["tensor"]]
        return tensor.numpy() if found["numpy"] else tensor
    if "array" in found:
        return np.array(found["array"], dtype=found["dtype"])
    if "record" in found:
        return _RECORDS.get(found.pop("record"), dict)(**found)
    return found
