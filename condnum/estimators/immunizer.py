"""`Immunizer`: an extractor by any method of `immunize`, with its verdict."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils.metadata_routing import UNUSED
from torch import Tensor

from condnum.arrays import like_sample, own_state
from condnum.errors import InvalidInputError
from condnum.estimators.extractor import Extractor
from condnum.methods import DescentSettings, Method, immunize
from condnum.methods.descent import Callback
from condnum.methods.problem import ImmunizationProblem, LossName


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
        callback: Of `immunize`, for a method that descends, such as `condnum.progress.step_line()`.

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
        callback: Callback | None = None,
    ) -> None:
        self.method = method
        self.loss = loss
        self.settings = settings
        self.seed = seed
        self.callback = callback

    def fit(
        self, X_benign: Any, X_harmful: Any, y_benign: Any = None, y_harmful: Any = None, **unsupported: Any
    ) -> Self:
        """Fit θ.

        Args:
            X_benign: `(N_P, D)` inputs of the benign task.
            X_harmful: `(N_H, D)` inputs of the harmful task; columns of data frames are matched by name.
            y_benign: `(N_P,)` or `(N_P, m)` targets, for clause (c), its probe and supervised losses.
            y_harmful: `(N_H,)` or `(N_H, m)` targets, for its probe and methods that need them.
            **unsupported: Refused, such as weights of rows.

        Returns:
            The immunizer.
        """
        self._refuse(unsupported)
        if getattr(X_harmful, "ndim", 2) == 1:
            raise InvalidInputError(
                f"X_harmful has shape {tuple(X_harmful.shape)}, as targets have; give the inputs of both "
                "tasks: fit(X_benign, X_harmful, y_benign, y_harmful)."
            )
        options: dict[str, Any] = {"seed": self.seed, "settings": self.settings, "callback": self.callback}
        with own_state():
            problem = ImmunizationProblem.from_data(X_benign, y_benign, X_harmful, y_harmful, loss=self.loss)
            found = immunize(problem, self.method, **options)
        self._remember_inputs(X_benign)
        self.theta_ = like_sample(self._sample, found.theta)
        double = self._sample.dtype in (np.float64, torch.float64)  # else θ is measured as it is stored
        self.verdict_ = (found.verdict if double else None) or problem.seen(self.theta_).immunization()
        self.limit_ = problem.limit.value
        self.history_ = found.history
        self.explanation_ = found.explanation
        return self

    @property
    def _n_features_out(self) -> int:
        return int(self.theta_.shape[1])

    def _map(self, rows: Tensor) -> Tensor:
        return rows @ torch.as_tensor(self.theta_).to(rows)

    def _layers(self) -> list[tuple[Tensor, Tensor | None]]:
        return [(torch.as_tensor(self.theta_), None)]

    def _state(self) -> dict[str, Any]:
        return vars(self) | {"method": getattr(self.method, "name", self.method), "callback": None}
