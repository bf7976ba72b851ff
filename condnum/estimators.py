"""`Immunizer`: an extractor θ as a scikit-learn transformer and as a layer of a torch net.

Arrays, tensors and data frames come back as they were given: in their kind, dtype and device.
"""

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from condnum.arrays import as_array, as_tensor, same_columns
from condnum.errors import DataFormatError, InvalidInputError, require
from condnum.methods.baselines import ImmaSettings, OptKappaSettings
from condnum.methods.problem import ImmunizationProblem, LossName
from condnum.methods.registry import immunize
from condnum.methods.settings import DescentSettings, Settings
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio
from condnum.theory.spectra import ConditionNumber

_SETTINGS = {kind.__name__: kind for kind in (DescentSettings, ImmaSettings, OptKappaSettings)}


class Immunizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""A linear extractor θ that keeps a benign task well-conditioned and a harmful one ill-conditioned.

    Features are :math:`Xθ`, and the Hessian of a linear probe on them is :math:`H(θ) = θ^\top X^\top Xθ`
    (Eq. 9). Definition 3.1 asks that θ raise :math:`κ(H_H)`, do not raise :math:`κ(H_P)`, and keep the benign
    loss. θ is computed in float64, on the device of the benign inputs where it has float64, else on the CPU.

    Args:
        method: Name of a method, see `condnum.method_names`. `pareto` is a closed form.
        loss: Of the benign task: `mse`, or `bce` for targets in [0, 1].
        settings: Replaces the settings of a method that descends.
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
        method: str = "pareto",
        *,
        loss: LossName = "mse",
        settings: Settings | None = None,
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
        X_P, X_H = map(_where_float64_is, same_columns(X_benign=X_benign, X_harmful=X_harmful))
        problem = ImmunizationProblem.from_data(X_P, y_benign, X_H, y_harmful, loss=self.loss)
        found = immunize(problem, self.method, seed=self.seed, settings=self.settings)
        self.__dict__.pop("feature_names_in_", None)
        if isinstance(X_benign, pd.DataFrame):
            self.feature_names_in_ = np.asarray(X_benign.columns, dtype=object)
        self.theta_ = _restored(X_benign)(found.theta)
        self.n_features_in_, self._n_features_out = self.theta_.shape
        ranges = problem.pretrain.range, problem.harmful.range
        gap = None if problem.pretrain.targets is None else problem.pretrain.loss_gap(self.theta_)
        self.verdict_ = relative_immunization_ratio(self.theta_, *ranges, loss_gap=gap)
        self.limit_, self.history_ = rir_ceiling(*ranges).value, found.history
        self.explanation_ = found.explanation
        return self

    def transform(self, X: Any) -> Any:
        """Return the features `Xθ`, `(N, D_hid)`, in kind, dtype and device of the inputs `(N, D)`."""
        check_is_fitted(self, "theta_")
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            X = same_columns(fit=pd.DataFrame(columns=names), X=X)[1]
        inputs = as_tensor(_where_float64_is(X), "X", ndim=2).detach()
        if inputs.shape[1] != self.n_features_in_:
            raise InvalidInputError(
                f"X has {inputs.shape[1]} features, but this Immunizer was fitted to {self.n_features_in_}."
            )
        features = _restored(X)(inputs @ torch.as_tensor(self.theta_).to(inputs))
        if isinstance(X, pd.DataFrame):
            return pd.DataFrame(features, index=X.index, columns=self.get_feature_names_out())
        return features

    def to_linear(self) -> nn.Linear:
        """Return θ as a layer, of dtype and device of the benign inputs: `nn.Sequential(trunk, θ, head)`."""
        check_is_fitted(self, "theta_")
        weight = torch.as_tensor(self.theta_).mT
        width, inputs = weight.shape
        layer = nn.Linear(inputs, width, bias=False, device=weight.device, dtype=weight.dtype)
        layer.load_state_dict({"weight": weight})
        return layer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write θ, parameters, verdict and history to a safetensors file (extra `deep`)."""
        check_is_fitted(self, "theta_")
        settings = self.settings and {"kind": type(self.settings).__name__, "values": asdict(self.settings)}
        known = {
            "parameters": self.get_params(deep=False) | {"settings": settings},
            "array": not isinstance(self.theta_, Tensor),
            "columns": list(getattr(self, "feature_names_in_", [])),
            "verdict": asdict(self.verdict_),
            "explanation": self.explanation_,
            "limit": self.limit_,
        }
        tensors = {f"history.{name}": torch.tensor(values) for name, values in self.history_.items()}
        tensors["theta"] = torch.as_tensor(self.theta_).cpu().contiguous()
        header = {"condnum.Immunizer": json.dumps(known)}
        require("safetensors.torch", "deep").save_file(tensors, os.fspath(path), header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; θ lies on the CPU."""
        safetensors = require("safetensors", "deep")
        try:
            with safetensors.safe_open(os.fspath(path), "pt") as file:
                known = json.loads((file.metadata() or {})["condnum.Immunizer"])
                tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise DataFormatError(
                f"{path} holds no Immunizer ({error}); write one with Immunizer.save(path)."
            ) from error
        parameters = known["parameters"]
        if settings := parameters["settings"]:
            parameters["settings"] = _SETTINGS[settings["kind"]](**settings["values"])
        self, theta = cls(**parameters), tensors.pop("theta")
        if known["columns"]:
            self.feature_names_in_ = np.array(known["columns"], dtype=object)
        self.theta_ = theta.numpy() if known["array"] else theta
        self.n_features_in_, self._n_features_out = theta.shape
        for name, value in known["verdict"].items():
            if name.endswith(("before", "after")):
                known["verdict"][name] = ConditionNumber(**value)
        self.verdict_, self.limit_ = Immunization(**known["verdict"]), known["limit"]
        self.explanation_ = known["explanation"]
        self.history_ = {name.removeprefix("history."): values.numpy() for name, values in tensors.items()}
        return self


def _where_float64_is(value: Any) -> Any:
    """Return inputs, but those of a device without float64 on the CPU."""
    if isinstance(value, Tensor) and value.device.type == "mps":
        warnings.warn(f"{value.device} has no float64: θ is computed on the CPU.", stacklevel=3)
        return value.cpu()
    return value


def _restored(reference: Any) -> Callable[[Tensor], Any]:
    """Return a converter to kind, device and floating-point dtype of `reference`; other dtypes: float64."""
    if isinstance(reference, Tensor):
        at = reference if reference.dtype.is_floating_point else reference.double()
        return lambda tensor: tensor.to(at)
    dtype = as_array(reference, "X").dtype
    kind = dtype if dtype.kind == "f" else np.dtype(np.float64)
    return lambda tensor: tensor.cpu().numpy().astype(kind, copy=False)
