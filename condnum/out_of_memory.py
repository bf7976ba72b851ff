"""Telling that memory ran out, on a GPU or here, from any other error."""

from __future__ import annotations

import torch

#: How allocators and CUDA's libraries say it where torch has no exception type for it: torch's CPU
#: allocator, CUDA itself, and the handles and workspaces of cuBLAS, cuSOLVER and cuDNN.
_MESSAGES = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "cuda out of memory",
    "cuda error: out of memory",
    "_status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory ran out, on a GPU or here.

    Examples:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
        >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
        True
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES)
