"""The border between the caller's arrays (NumPy or torch) and the float64 tensors used inside.

Every public function accepts both kinds, computes on the caller's device in float64 (unless an
argument says otherwise) and hands back the kind that it was given.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.errors import DeviceError, InvalidInputError

ArrayLike: TypeAlias = NDArray[Any] | Tensor | list[Any]
Array: TypeAlias = NDArray[Any] | Tensor
FloatArray: TypeAlias = NDArray[np.float64]


def as_tensor(value: ArrayLike, name: str, *, ndim: int | None = None, minimum_ndim: int = 0) -> Tensor:
    """Return `value` as a finite float64 tensor on its own device, or say what is wrong with it."""
    if isinstance(value, Tensor):
        tensor = value
        if tensor.layout != torch.strided:
            raise InvalidInputError(f"{name} is a sparse tensor ({tensor.layout}); pass {name}.to_dense().")
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InvalidInputError(
                f"{name} is not a rectangular array ({error}); all rows must have the same length."
            ) from error
        if array.dtype.kind not in "fiub":
            raise InvalidInputError(
                f"{name} must hold real numbers, got dtype {array.dtype}; convert it with .astype(float)."
            )
        # torch takes neither longdouble, nor a foreign byte order, nor (quietly) read-only memory.
        array = np.require(array, dtype=np.float64, requirements=["W", "C"])
        tensor = torch.from_numpy(array)
    if tensor.is_complex():
        raise InvalidInputError(f"{name} must be real, got dtype {tensor.dtype}; pass its real part.")
    if ndim is not None and tensor.ndim != ndim:
        raise InvalidInputError(f"{name} must have {ndim} dimension(s), got shape {tuple(tensor.shape)}.")
    if tensor.ndim < minimum_ndim:
        raise InvalidInputError(
            f"{name} must have at least {minimum_ndim} dimension(s), got shape {tuple(tensor.shape)}."
        )
    if tensor.numel() == 0:
        raise InvalidInputError(f"{name} is empty: shape {tuple(tensor.shape)}.")
    tensor = tensor.to(torch.float64)
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        first = tuple(int(i) for i in torch.nonzero(~finite)[0])
        count = int((~finite).sum())
        raise InvalidInputError(
            f"{name} holds {count} non-finite value(s), the first at index {first}: "
            f"{float(tensor[first].detach())}; impute or drop these rows."
        )
    return tensor


def storage_eps(value: ArrayLike) -> float:
    """Return the machine epsilon of the stored dtype: a promoted float32 still carries its round-off."""
    if isinstance(value, Tensor):
        return torch.finfo(value.dtype if value.dtype.is_floating_point else torch.float64).eps
    dtype = np.asarray(value).dtype
    return float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)


def like(reference: ArrayLike) -> Callable[[Tensor], Any]:
    """Return a converter that gives a tensor the kind (NumPy or torch) of `reference`."""
    if isinstance(reference, Tensor):
        return lambda tensor: tensor
    return lambda tensor: tensor.detach().cpu().numpy()


def resolve_device(device: str | torch.device) -> torch.device:
    """Turn `auto`, `cpu` or `cuda[:i]` into a device that exists."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise InvalidInputError(f"unknown device '{device}'; use auto, cpu, cuda or cuda:<index>.") from error
    if resolved.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= count:
            raise DeviceError(
                f"device '{device}' is not available: torch {torch.__version__} sees {count} CUDA "
                "device(s) here; use --device cpu or --device auto, or install a CUDA build and driver."
            )
    elif resolved.type != "cpu":
        raise InvalidInputError(f"device '{device}' is not supported; use auto, cpu, cuda or cuda:<index>.")
    return resolved
