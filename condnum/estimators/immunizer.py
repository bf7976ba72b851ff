"""`Immunizer`: an extractor by any method of `immunize`, with its verdict."""

import re
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils.metadata_routing import UNUSED
from torch import Tensor

from condnum.arrays import as_array, like_sample, own_state, same_columns
from condnum.errors import InvalidInputError, check_flag
from condnum.estimators.extractor import Extractor
from condnum.methods import DescentSettings, Method, immunize
from condnum.methods.problem import ImmunizationProblem, LossName
from condnum.progress import of_steps, terminal_progress
from condnum.theory.kappa import ConditionNumber, Immunization


class Immunizer(ClassNamePrefixFeaturesOutMixin, Extractor):
    r"""A linear extractor θ that keeps a benign task well-conditioned and a harmful one ill-conditioned.

    Features are :math:`Xθ`, and the Hessian of a linear probe on them is :math:`H(θ) = θ^\top X^\top Xθ`
    (Eq. 9). Definition 3.1 asks that θ raise :math:`κ(H_H)`, do not raise :math:`κ(H_P)`, and keep the benign
    loss. In a pipeline, the steps before it change the benign inputs only: change the harmful ones alike.

    Args:
        method: Name of a method, see `condnum.method_names`, or a `Method`. `pareto` is a closed form.
        loss: Of the benign task: `mse`, or `bce` for targets in [0, 1].
        settings: Replaces the settings of a method that descends; or the name of a preset.
        seed: Of θ₀, where a method draws it.
        verbose: Whether a method that descends shows its steps and the time left on the standard error.

    Attributes:
        theta_: `(D, D_hid)`, in kind, dtype and device of the benign inputs.
        verdict_: Definition 3.1 clause by clause, with (i), (ii), RIR (compact convention) and the slowdown
            of both targets' probes, of `theta_` as it is stored. It prints as sentences.
        explanation_: What ran, the verdict in both conventions, and how slow the targets' probes become.
        limit_: The theoretical limit of RIR, see `rir_limit`.
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
        settings: DescentSettings | str | None = None,
        seed: int = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.loss = loss
        self.settings = settings
        self.seed = seed
        self.verbose = verbose

    def fit(self, X_benign: Any, X_harmful: Any, y_benign: Any = None, y_harmful: Any = None) -> Self:
        """Fit θ.

        Args:
            X_benign: `(N_P, D)` inputs of the benign task.
            X_harmful: `(N_H, D)` inputs of the harmful task; columns of data frames are matched by name.
            y_benign: `(N_P,)` or `(N_P, m)` targets, for clause (c), the benign probe and methods with a
                supervised loss.
            y_harmful: `(N_H,)` or `(N_H, m)` targets, for the harmful probe and methods that need them.

        Returns:
            The immunizer.
        """
        given = X_harmful if hasattr(X_harmful, "ndim") else as_array(X_harmful, "X_harmful")
        if given.ndim == 1:
            raise InvalidInputError(
                f"X_harmful has shape {tuple(given.shape)}, as targets have; give the inputs of both tasks: "
                "fit(X_benign, X_harmful, y_benign, y_harmful)."
            )
        X_P, X_H = same_columns(X_benign=X_benign, X_harmful=X_harmful)
        shown = terminal_progress("steps") if check_flag("verbose", self.verbose) else nullcontext()
        with _arguments_of_fit(), own_state(), shown as report:
            problem = ImmunizationProblem.from_data(X_P, y_benign, X_H, y_harmful, loss=self.loss)
            told = None if report is None else of_steps(report)
            found = immunize(problem, self.method, seed=self.seed, settings=self.settings, callback=told)
        self._remember_inputs(X_benign)
        self.theta_ = like_sample(self._sample, found.theta)
        self._n_features_out = self.theta_.shape[1]
        # θ as it is handed out, in the dtype of the inputs
        self.verdict_ = found.verdict or problem.seen(self.theta_).immunization()
        if self._sample.dtype not in (np.float64, torch.float64):
            self.verdict_ = problem.seen(self.theta_).immunization()
        self.limit_ = problem.limit.value
        self.history_ = found.history
        self.explanation_ = found.explanation
        return self

    def _features(self, rows: Tensor) -> Tensor:
        return rows @ torch.as_tensor(self.theta_).to(rows)

    def _affine(self) -> list[dict[str, Tensor]]:
        return [{"weight": torch.as_tensor(self.theta_).mT}]

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


@contextmanager
def _arguments_of_fit() -> Generator[None]:
    """Name the arguments of `fit` in errors of the functions that it calls."""
    try:
        yield
    except InvalidInputError as error:
        names = {"P": "benign", "H": "harmful"}
        error.args = (re.sub(r"\b([Xy])_([PH])\b", lambda m: f"{m[1]}_{names[m[2]]}", str(error)),)
        raise
