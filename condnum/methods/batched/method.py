"""What a method declares to be descended in batches, beside its gradients for one problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from condnum.methods.batched.tasks import ProblemBatch
from condnum.methods.method import Parameters


@dataclass
class BatchMemory:
    """What a batch may carry from one step to the next."""

    active: Tensor  # (b,) bool: problems that still descend, and count
    vectors: dict[str, Tensor] = field(default_factory=dict)  # warm starts, by the method's own names
    counts: dict[str, Tensor] = field(default_factory=dict)  # (b,) each
    buffers: dict[str, Tensor] = field(default_factory=dict)  # reused from step to step

    def count(self, name: str, amount: Tensor) -> None:
        """Add `(b,)` to a counter, where a problem still descends."""
        counted = torch.where(self.active, amount.long(), 0)
        self.counts[name] = self.counts[name] + counted if name in self.counts else counted

    def buffer(self, name: str, like: Tensor, rows: int, columns: int) -> Tensor:
        """Return uninitialised matrices, one a problem, that keep their memory from step to step."""
        if name not in self.buffers:
            self.buffers[name] = like.new_empty((len(like), rows, columns))
        return self.buffers[name]


@dataclass(frozen=True)
class HessianGradientBatch:
    """`∇_H R(H) = aH + c·vvᵀ` of each problem, in its parts."""

    hessian: Tensor  # (b, D, D), H
    scale: Tensor  # (b,), a
    coefficient: Tensor  # (b,), c
    vector: Tensor  # (b, D), v

    def add_to(self, total: Tensor, weight: Tensor, *, fresh: bool = False) -> Tensor:
        """Add `weight·∇_H R` to running sums in place (fresh ones are overwritten), and return them."""
        scale = (weight * self.scale)[:, None, None]
        if fresh:
            torch.mul(self.hessian, scale, out=total)
        else:
            total.addcmul_(self.hessian, scale)
        scaled = (weight * self.coefficient)[:, None] * self.vector
        return total.baddbmm_(scaled[:, :, None], self.vector[:, None, :])


@dataclass(frozen=True)
class OuterGradientBatch:
    """Parts of low rank, `left·rightᵀ` of each problem."""

    left: Tensor  # (b, D, m)
    right: Tensor  # (b, D, m)

    def add_to(self, total: Tensor, weight: Tensor) -> Tensor:
        """Add `weight·left·rightᵀ` to running sums in place, and return them."""
        return total.baddbmm_(self.left * weight[:, None, None], self.right.mT)


@dataclass(frozen=True)
class GradientBatch:
    """Gradients of one step of a batch; see `condnum.methods.method.Gradients`."""

    others: dict[str, Tensor] = field(default_factory=dict)  # by parameter name
    theta_parts: dict[str, Tensor] = field(default_factory=dict)  # each (b, D, D)
    hessian_parts: dict[str, HessianGradientBatch] = field(default_factory=dict)
    outer_parts: dict[str, OuterGradientBatch] = field(default_factory=dict)

    def weighted_sum(self, theta: Tensor, weights: dict[str, Tensor], memory: BatchMemory) -> Tensor:
        """Return the weighted sum of all parts; Hessian parts share one product with θ."""
        total = memory.buffer("total", theta, *theta.shape[1:])
        if self.hessian_parts:
            inner = memory.buffer("hessian_sum", theta, *theta.shape[1:])
            for index, (part, gradient) in enumerate(self.hessian_parts.items()):
                gradient.add_to(inner, 2 * weights[part], fresh=index == 0)
            torch.bmm(theta, inner, out=total)
        else:
            total.zero_()
        for part, outer in self.outer_parts.items():
            outer.add_to(total, weights[part])
        for part, value in self.theta_parts.items():
            total.addcmul_(value, weights[part][:, None, None])
        return total

    def norms(self, theta: Tensor, memory: BatchMemory) -> dict[str, Tensor]:
        """Return the Frobenius norms `(b,)` of each part's directions."""
        found = {}
        ones = theta.new_ones(len(theta))
        parts = [
            *(GradientBatch(hessian_parts={part: value}) for part, value in self.hessian_parts.items()),
            *(GradientBatch(outer_parts={part: value}) for part, value in self.outer_parts.items()),
            *(GradientBatch(theta_parts={part: value}) for part, value in self.theta_parts.items()),
        ]
        for alone in parts:
            (name,) = (*alone.hessian_parts, *alone.outer_parts, *alone.theta_parts)
            total = alone.weighted_sum(theta, {name: ones}, memory)
            found[name] = torch.linalg.vector_norm(total, dim=(1, 2))
        return found


@runtime_checkable
class BatchedMethod(Protocol):
    """A descent method that also knows the gradients of a whole batch."""

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: Any, memory: BatchMemory
    ) -> GradientBatch:
        """Return the gradients at parameters with a leading batch dimension, on the full problems."""
