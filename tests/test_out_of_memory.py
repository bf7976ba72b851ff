"""Out of memory, in the words of each library that can say so."""

import pytest
import torch

from condnum.errors import InvalidInputError
from condnum.machine import is_out_of_memory

KNOWN = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError("Unable to allocate 8.00 EiB for an array"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 80000000000 bytes."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: out of memory"),
]
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
    InvalidInputError("the column 'not enough memory' is missing."),
    KeyboardInterrupt(),
]


def test_known_words_and_those_of_this_machine():
    assert [error for error in KNOWN if not is_out_of_memory(error)] == []
    assert [error for error in OTHERS if is_out_of_memory(error)] == []
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.empty(2**58, dtype=torch.float64)  # 2 EiB
    assert is_out_of_memory(caught.value)
