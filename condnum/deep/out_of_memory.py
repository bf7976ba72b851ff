"""Out of memory, in words that say which batch size to try."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from condnum.errors import DeviceError
from condnum.out_of_memory import is_out_of_memory


@contextmanager
def memory_advice(batch_size: int, device: torch.device, what: str) -> Generator[None]:
    """Turn running out of memory in the block into an error that names the batch size to try."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        advice = (
            f"try a batch size of {batch_size // 2}"
            if batch_size > 1
            else "one image is already too much: use smaller images, a smaller backbone or another device"
        )
        raise DeviceError(
            f"{what}: out of memory on {device} with a batch size of {batch_size}; {advice}."
        ) from error
