"""The bytes of tensors and arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.protocol import MAX_RANK

_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}
"""What elements of tensors may be, by name."""

# Booleans, numbers, strings, times; neither objects nor records.
_ARRAY_DTYPE = re.compile(r"[<>|=][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")

_ADDRESSABLE = 1 << 63


def is_sendable(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a dense tensor can be sent."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and not tensor.is_nested
    )


def is_sendable_array(dtype: np.dtype[Any]) -> bool:
    """Return whether elements of NumPy can be sent."""
    return _ARRAY_DTYPE.fullmatch(dtype.str) is not None


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype, as in `DTYPES`."""
    return str(dtype).removeprefix("torch.")


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a tensor in C order, on the CPU."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def bytes_of_array(array: npt.NDArray[Any]) -> bytes:
    """Return the elements of an array in C order."""
    return array.tobytes()


def tensor_of(data: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor of some elements, as many as its shape has."""
    if dtype is torch.bool:
        _require_booleans(data)
    # torch takes no empty buffers.
    flat = torch.frombuffer(bytearray(data) or bytearray(dtype.itemsize), dtype=dtype)
    return flat[: math.prod(shape)].reshape(tuple(shape))


def array_of(data: memoryview, dtype: np.dtype[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return the array of some elements, as many as its shape has."""
    if dtype.kind == "b":
        _require_booleans(data)
    return np.frombuffer(bytearray(data), dtype=dtype).reshape(tuple(shape))


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype of a name.

    Raises:
        MalformedStreamError: There is none.
    """
    if name not in DTYPES:
        raise MalformedStreamError(f"there is no dtype {name[:40]!r}")
    return DTYPES[name]


def array_dtype_named(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name.

    Raises:
        MalformedStreamError: Arrays of such elements do not travel.
    """
    if not _ARRAY_DTYPE.fullmatch(name):
        raise MalformedStreamError(f"arrays of {name[:40]!r} do not travel")
    return np.dtype(name)


def nbytes_of(itemsize: int, shape: Sequence[int]) -> int:
    """Return how many bytes elements in a shape have, before memory is taken for them.

    Raises:
        MalformedStreamError: Nothing has this shape.
    """
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise MalformedStreamError("a shape has too many dimensions, or a negative one")
    # Zeros are left out, because libraries compute the product of the other sizes, too.
    if math.prod(filter(None, shape)) * itemsize >= _ADDRESSABLE:
        raise MalformedStreamError(f"shape {list(shape)} has over 2^63 bytes")
    return math.prod(shape) * itemsize


def _require_booleans(data: memoryview) -> None:
    if data and np.frombuffer(data, dtype=np.uint8).max() > 1:
        raise MalformedStreamError("a boolean is neither 0 nor 1")
