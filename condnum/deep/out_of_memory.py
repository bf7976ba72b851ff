"""Out of memory, in words that say which batch size to try."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from condnum.errors import DeviceError

#: How torch's CPU allocator says that it failed; it has no exception type of its own.
_CPU_MESSAGES = ("can't allocate memory", "not enough memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out, on a GPU or here.

    Args:
        error: What was raised.

    Returns:
        True if a smaller batch may help.

    Examples:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _CPU_MESSAGES)


@contextmanager
def memory_advice(batch_size: int, device: torch.device, what: str) -> Generator[None]:
    """Turn running out of memory in the block into an error that names the batch size to try.

    Args:
        batch_size: In use.
        device: Where it ran.
        what: What was computed, "features of mnist:0-4 at 224×224".

    Yields:
        Nothing.

    Raises:
        DeviceError: Memory ran out.
    """
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
