"""Tensors on the wire: a `TensorSpec` says dtype and shape, and raw bytes are the elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.protocol import MAX_RANK
from stratagem_proto.v1 import tensor_pb2 as pb

DTYPES: dict[pb.DataType, torch.dtype] = {
    pb.DATA_TYPE_FLOAT32: torch.float32,
    pb.DATA_TYPE_FLOAT64: torch.float64,
    pb.DATA_TYPE_FLOAT16: torch.float16,
    pb.DATA_TYPE_BFLOAT16: torch.bfloat16,
    pb.DATA_TYPE_INT8: torch.int8,
    pb.DATA_TYPE_INT16: torch.int16,
    pb.DATA_TYPE_INT32: torch.int32,
    pb.DATA_TYPE_INT64: torch.int64,
    pb.DATA_TYPE_UINT8: torch.uint8,
    pb.DATA_TYPE_BOOL: torch.bool,
    pb.DATA_TYPE_COMPLEX64: torch.complex64,
    pb.DATA_TYPE_COMPLEX128: torch.complex128,
    pb.DATA_TYPE_UINT16: torch.uint16,
    pb.DATA_TYPE_UINT32: torch.uint32,
    pb.DATA_TYPE_UINT64: torch.uint64,
    pb.DATA_TYPE_FLOAT8_E4M3FN: torch.float8_e4m3fn,
    pb.DATA_TYPE_FLOAT8_E5M2: torch.float8_e5m2,
}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_UNKNOWN_TO_NUMPY = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def encode_dtype(dtype: torch.dtype) -> pb.DataType:
    """Return the number of a dtype on the wire.

    Raises:
        InvalidTypeError: The dtype has no number, for instance complex32.
    """
    try:
        return _NUMBERS[dtype]
    except KeyError:
        known = ", ".join(str(known) for known in _NUMBERS)
        raise InvalidTypeError(
            f"tensors of {dtype} cannot be sent; convert to one of {known}"
        ) from None


def decode_dtype(number: pb.DataType) -> torch.dtype:
    """Return the dtype of a number on the wire.

    Raises:
        InvalidArgumentError: The number stands for no dtype.
    """
    try:
        return DTYPES[number]
    except KeyError:
        raise InvalidArgumentError(f"there is no data type number {number}") from None


def spec_of(tensor: torch.Tensor) -> pb.TensorSpec:
    """Return the description of a tensor, its dtype and shape; do not change the message."""
    return spec_of_kind(tensor.dtype, tensor.shape)


# Cached, because each step describes the same tensors.
@lru_cache(maxsize=4096)
def spec_of_kind(dtype: torch.dtype, shape: torch.Size) -> pb.TensorSpec:
    """Return the description of a dtype and a shape; do not change the message."""
    return pb.TensorSpec(dtype=encode_dtype(dtype), shape=shape)


def nbytes_of(spec: pb.TensorSpec) -> int:
    """Check the description of a tensor, and return the size of the tensor in bytes.

    Raises:
        InvalidArgumentError: The dtype is unknown, there are too many dimensions, a size is
            negative, or 64-bit offsets cannot address all bytes.
    """
    if len(spec.shape) > MAX_RANK:
        raise InvalidArgumentError(
            f"a tensor has {len(spec.shape)} dimensions; at most {MAX_RANK} are allowed"
        )
    return _checked_nbytes(spec.dtype, tuple(spec.shape))


# Cached, because each step checks the same descriptions.
@lru_cache(maxsize=4096)
def _checked_nbytes(number: pb.DataType, shape: tuple[int, ...]) -> int:
    dtype = decode_dtype(number)
    if any(size < 0 for size in shape):
        raise InvalidArgumentError(f"shape {list(shape)} has a negative size")
    # Zeros are left out, because libraries compute the product of the other sizes, too.
    if math.prod(filter(None, shape)) * dtype.itemsize >= 1 << 63:
        raise InvalidArgumentError(f"shape {list(shape)} has over 2^63 bytes")
    return math.prod(shape) * dtype.itemsize


def allocate(spec: pb.TensorSpec) -> torch.Tensor:
    """Return an uninitialised CPU tensor of that dtype and shape."""
    return torch.empty(tuple(spec.shape), dtype=decode_dtype(spec.dtype))


# Texts of the RuntimeErrors of torch when its allocator, or other C++ code, finds no memory.
_SIGNS = ("can't allocate memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory; torch has no class for that."""
    text = str(error)
    return isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor in C order.

    They are not copied if the tensor is contiguous and on the CPU: the view is writable and shares
    the storage of the tensor.
    """
    plain = tensor.detach() if tensor.requires_grad else tensor
    if not (plain.is_cpu and plain.is_contiguous()) or plain.is_conj():
        plain = plain.resolve_conj().cpu().contiguous()
    if plain.is_neg():
        plain = plain.resolve_neg()
    if plain.dtype in _UNKNOWN_TO_NUMPY:
        plain = plain.reshape(-1).view(torch.uint8)
    # A view by numpy takes less time than one by torch.
    return plain.numpy().reshape(-1).view(np.uint8).data


def int64_vector(data: bytes) -> torch.Tensor:
    """Return a copy of some bytes as an int64 vector; their number is a multiple of 8."""
    if not data:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=torch.int64)


def total_nbytes(specs: Sequence[pb.TensorSpec]) -> int:
    """Check the descriptions like `nbytes_of`, and return the bytes of all tensors together."""
    return sum(map(nbytes_of, specs))
