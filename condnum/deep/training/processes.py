"""The processes of a training: one, or several of Lightning Fabric, with the few collectives that are needed.

`DistributedDataParallel` will not do: the regularizers are functions of the features of **all** processes.
So the features are gathered as constants, each process differentiates with respect to its own rows, and the
parameters' gradients are summed, which is exact.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import all_gather_object

from condnum.arrays import resolve_device
from condnum.errors import InvalidInputError

_Value = TypeVar("_Value")


class Processes:
    """This process alone, or those of a launched `lightning_fabric.Fabric`."""

    def __init__(self, device: str | torch.device, fabric: Any = None) -> None:
        wanted = ("all_reduce", "broadcast", "global_rank", "world_size", "device")
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
        parts: list[Any] = [None] * self.size
        all_gather_object(parts, rows.detach().cpu())  # their numbers may differ
        start = sum(map(len, parts[: self.rank]))
        return torch.cat(parts).to(self.device), slice(start, start + len(rows))

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                tensor.copy_(self.fabric.all_reduce(tensor, reduce_op="sum"))

    def share(self, value: _Value) -> _Value:
        """Return the first process's value on every one."""
        shared: _Value = value if self.fabric is None else self.fabric.broadcast(value, src=0)
        return shared
