"""The processes of a training: one, or several of Lightning Fabric, with the few collectives that are needed.

`DistributedDataParallel` will not do: the regularizers are functions of the features of **all** processes.
So the features are gathered as constants, each process differentiates with respect to its own rows, and the
parameters' gradients are summed, which is exact.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from condnum.arrays import resolve_device
from condnum.errors import InvalidInputError

_Value = TypeVar("_Value")


class Processes:
    """This process alone, or those of a launched `lightning_fabric.Fabric`."""

    def __init__(self, device: str | torch.device, fabric: Any = None) -> None:
        wanted = ("all_gather", "all_reduce", "broadcast", "global_rank", "world_size", "device")
        if fabric is not None and not all(hasattr(fabric, name) for name in wanted):
            raise InvalidInputError(
                f"fabric must be a lightning_fabric.Fabric after its launch(), got {type(fabric).__name__}."
            )
        self.fabric = fabric
        self.device: torch.device = resolve_device(device) if fabric is None else fabric.device
        self.rank: int = 0 if fabric is None else fabric.global_rank  # number of this process, from 0
        self.size: int = 1 if fabric is None else fabric.world_size  # number of processes

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """Return the rows of all processes `(N, …)` without gradients, and where this one's own lie."""
        if self.size == 1:
            return rows.detach(), slice(0, len(rows))
        counts = self.fabric.all_gather(torch.tensor([len(rows)], device=self.device)).reshape(-1).tolist()
        # their numbers may differ
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = self.fabric.all_gather(padded).detach()
        start = sum(counts[: self.rank])
        everything = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return everything, slice(start, start + len(rows))

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in place, in one message a dtype."""
        if self.size == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for group in by_type.values():
            flat = self.fabric.all_reduce(torch.cat([t.reshape(-1) for t in group]), reduce_op="sum")
            for tensor, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def share(self, value: _Value) -> _Value:
        """Return the first process's value on every one."""
        shared: _Value = value if self.fabric is None else self.fabric.broadcast(value, src=0)
        return shared
