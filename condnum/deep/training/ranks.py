"""The processes of a training: one, or several of Lightning Fabric, with the few collectives that are needed.

Fabric starts processes, places them on devices and nodes, and hides the communication library; it is
chosen over Accelerate because its `all_gather` and `all_reduce` work on plain tensors inside a loop that
stays ours. Immunization cannot use `DistributedDataParallel`: the regularizers are functions of the
features of **all** ranks, so that the loss of a rank is no mean over its own samples. Instead the
features are gathered as constants, each rank differentiates with respect to its own rows, and the
parameters' gradients are summed, which is exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from condnum.errors import InvalidInputError

T = TypeVar("T")


class Ranks(Protocol):
    """The processes that train together."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    @property
    def device(self) -> torch.device:
        """Where this process computes."""

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """Return the rows of all ranks `(N, …)` without gradients, and where this rank's own lie."""

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, in place."""

    def share(self, value: T) -> T:
        """Return rank 0's value on every rank."""


class OneProcess:
    """The usual case."""

    rank = 0
    size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """Return the rows themselves."""
        return rows.detach(), slice(0, len(rows))

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Leave the tensors as they are."""

    def share(self, value: T) -> T:
        """Return the value."""
        return value


class FabricRanks:
    """The processes of a launched `lightning_fabric.Fabric`."""

    def __init__(self, fabric: Any) -> None:
        wanted = ("all_gather", "all_reduce", "broadcast", "global_rank", "world_size", "device")
        if not all(hasattr(fabric, name) for name in wanted):
            raise InvalidInputError(
                f"fabric must be a lightning_fabric.Fabric, got {type(fabric).__name__}; make one by "
                "Fabric(devices=2) and call its launch() first."
            )
        self.fabric = fabric
        self.rank: int = fabric.global_rank
        self.size: int = fabric.world_size
        self.device: torch.device = fabric.device

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """Return the rows of all ranks, whose numbers may differ: they are padded on the way."""
        if self.size == 1:
            return rows.detach(), slice(0, len(rows))
        counts = self._stack(torch.tensor([len(rows)], device=self.device)).reshape(-1).tolist()
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = self._stack(padded)
        start = sum(counts[: self.rank])
        everything = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return everything, slice(start, start + len(rows))

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Sum over the ranks, in one message a dtype."""
        if self.size == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for group in by_type.values():
            flat = self.fabric.all_reduce(torch.cat([t.reshape(-1) for t in group]), reduce_op="sum")
            for tensor, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def share(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        shared: T = self.fabric.broadcast(value, src=0)
        return shared

    def _stack(self, rows: Tensor) -> Tensor:
        """Return equally shaped tensors of all ranks, `(size, …)`."""
        stacked: Tensor = self.fabric.all_gather(rows)
        return stacked.detach()
