"""One optimizer step on named parameters: plain gradient descent, or Adam through torch's functional form."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

#: Above this dimension one fused pass over θ is worth its different rounding.
LARGE = 128


class Optimizer(Protocol):
    """Changes parameters in place."""

    def step(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        """Take one step against the gradients, by parameter name."""


class GradientDescent:
    """`x ← x − ηg`."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self._parameters = parameters

    def step(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        """Take one step against the gradients, by parameter name."""
        for name, gradient in gradients.items():
            self._parameters[name].add_(gradient, alpha=-learning_rate)


class Adam:
    """Adam with (0.9, 0.999, 1e-8) (Kingma & Ba, 2015).

    `torch.optim.Adam` runs the same function, but loads torch's compiler first: 5 s a process.
    """

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self._parameters = parameters
        self._mean = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
        self._square = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
        self._fused = max(tensor.shape[-2] for tensor in parameters.values()) > LARGE
        # The fused form counts its steps where the parameters live, the other one on the CPU.
        self._steps = {
            name: torch.zeros((), device=tensor.device if self._fused else "cpu")
            for name, tensor in parameters.items()
        }

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], learning_rate: float) -> None:
        """Take one step against the gradients, by parameter name."""
        names = list(gradients)
        adam(
            [self._parameters[name] for name in names],
            [gradients[name] for name in names],
            [self._mean[name] for name in names],
            [self._square[name] for name in names],
            [],
            [self._steps[name] for name in names],
            fused=self._fused or None,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


def make_optimizer(name: Literal["adam", "gd"], parameters: dict[str, Tensor]) -> Optimizer:
    """Return the optimizer of that name on these parameters.

    Examples:
        >>> x = {"x": torch.tensor([1.0])}
        >>> make_optimizer("gd", x).step({"x": torch.tensor([2.0])}, 0.25)
        >>> x["x"]
        tensor([0.5000])
    """
    return Adam(parameters) if name == "adam" else GradientDescent(parameters)
