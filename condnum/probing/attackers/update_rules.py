"""Update rules for a whole grid at once: momentum (heavy ball or Nesterov) and Adam, one rate a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from condnum.probing.attackers.objectives import Array


class UpdateRule(Protocol):
    """Changes parameters, each of shape `(B, …)`, in place."""

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Take one step of every candidate."""


def _column(values: Array, like: Array) -> Array:
    """Return one value a candidate, shaped to multiply an array `(B, …)`."""
    return values.reshape(-1, *(1,) * (like.ndim - 1))


class Momentum:
    """`v ← βv + g`, then `w ← w − η v`, or with `nesterov` `w ← w − η (g + βv)`: torch's SGD.

    Examples:
        >>> w = np.ones((1, 2))
        >>> Momentum(np.array([0.5]), np.array([0.0])).step([w], [np.ones((1, 2))])
        >>> w
        array([[0.5, 0.5]])
    """

    def __init__(self, rates: Array, betas: Array, *, nesterov: bool = False) -> None:
        self.rates, self.betas, self.nesterov = rates, betas, nesterov
        self._velocity: list[Array] = []

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Take one step of every candidate, in place."""
        if not self._velocity:
            self._velocity = [np.zeros_like(w) for w in parameters]
        for w, g, v in zip(parameters, gradients, self._velocity, strict=True):
            beta = _column(self.betas, w)
            v *= beta
            v += g
            w -= _column(self.rates, w) * (g + beta * v if self.nesterov else v)


class Adam:
    """Adam (Kingma and Ba 2015): torch's fused kernel, one rate a candidate, its default betas.

    Examples:
        The first step has the size of the rate, whatever the gradient.

        >>> w = np.zeros((1, 1))
        >>> Adam(np.array([0.1])).step([w], [np.full((1, 1), 7.0)])
        >>> round(float(w[0, 0]), 6)
        -0.1
    """

    def __init__(self, rates: Array) -> None:
        self.rates = rates
        self._optimizer: torch.optim.Adam | None = None

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Take one step of every candidate, in place; the arrays must be the same at every call."""
        if self._optimizer is None:
            shared = [torch.from_numpy(w) for w in parameters]  # the caller's memory
            groups = [{"params": [w[b] for w in shared], "lr": float(r)} for b, r in enumerate(self.rates)]
            self._optimizer = torch.optim.Adam(groups, fused=True)
        moved = [torch.from_numpy(np.ascontiguousarray(g)) for g in gradients]
        for b, group in enumerate(self._optimizer.param_groups):
            for w, g in zip(group["params"], moved, strict=True):
                w.grad = g[b]
        self._optimizer.step()
