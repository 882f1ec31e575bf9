"""Rows that are stored in fewer bits than servers compute with."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from stratagem_proto.programs import counter_random
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_UNSPECIFIED, TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import decode_dtype

NARROW = frozenset({torch.bfloat16, torch.float16})
"""The dtypes that rows of float32 may be stored in."""


def stored_dtype(spec: VariableSpec) -> torch.dtype:
    """Return the dtype in which the rows of a table, or of a slot of one, are stored."""
    return decode_dtype(spec.table.row_dtype or spec.tensor.dtype)


def stored_rows(spec: VariableSpec, count: int) -> TensorSpec:
    """Return the description of so many rows of a table as they are stored."""
    tensor = spec.tensor
    is_narrow = spec.table.row_dtype != DATA_TYPE_UNSPECIFIED
    dtype = spec.table.row_dtype if is_narrow else tensor.dtype
    return TensorSpec(dtype=dtype, shape=(count, *tensor.shape[1:]))


def nearest(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values in a dtype, each the nearest one; what is too large becomes the largest.

    Args:
        values: Floating-point numbers. Those that are not finite stay what they are.
        dtype: One of `NARROW`, or one that has all of them.
    """
    if values.dtype == dtype or dtype not in NARROW:
        return values.to(dtype)
    wide, most = values.float(), torch.finfo(dtype).max
    return wide.clamp(-most, most).where(wide.isfinite(), wide).to(dtype)


def rounded(
    values: torch.Tensor, dtype: torch.dtype, rows: torch.Tensor, seed: bytes
) -> torch.Tensor:
    """Return rows in a narrower dtype, where each number is one of its two neighbours at random.

    The odds of the upper one are what the number has gone of the way to it, so that the mean is the
    number itself: a sum of many changes is right, though each is too small to make a difference by
    itself. Whoever repeats this with the same seed gets the same bytes. What is too large becomes
    the largest number of the dtype; what is not finite stays as it is.

    Args:
        values: float32 of shape (rows, ...).
        dtype: One of `NARROW`.
        rows: The numbers or keys of the rows, int64.
        seed: What no other rounding of these rows has in common.
    """
    if not values.numel():
        return values.to(dtype)
    wide = values.reshape(len(rows), math.prod(values.shape[1:]))
    key = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little")
    draw = _drawn_halves if dtype == torch.bfloat16 else _drawn
    words = torch.from_numpy(draw(rows.numpy(), wide.shape[1], key))
    made = _to_bfloat16(wide, words) if dtype == torch.bfloat16 else _to_float16(wide, words)
    is_inside = wide.abs() < torch.finfo(dtype).max
    if not is_inside.all():
        made = made.where(is_inside, nearest(wide, dtype))
    return made.view(values.shape)


def _drawn(rows: counter_random.Rows, columns: int, key: int) -> counter_random.Rows:
    """Return 32 random bits for each element."""
    return counter_random.words_of_rows(rows, columns, key).view(np.int64)


def _drawn_halves(rows: counter_random.Rows, columns: int, key: int) -> counter_random.Rows:
    """Return 16 random bits for each element."""
    words = counter_random.words_of_rows(rows, -(-columns // 2), key)
    halves = np.stack((words & np.uint64(0xFFFF), words >> np.uint64(16)), axis=-1)
    return halves.reshape(len(rows), -1)[:, :columns].astype(np.int64)


def _to_bfloat16(wide: torch.Tensor, halves: torch.Tensor) -> torch.Tensor:
    # The upper half of a float32 is a bfloat16, and the lower half is how far it is to the next.
    bits = wide.contiguous().view(torch.int32) + halves.int()
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)


def _to_float16(wide: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    info = torch.finfo(torch.float16)
    number = wide.double()
    exponent = torch.frexp(number).exponent.clamp(min=_exponent(info.smallest_normal))
    step = torch.ldexp(torch.full_like(number, info.eps / 2), exponent)
    return ((number / step + words * 2.0**-32).floor() * step).to(torch.float16)


def _exponent(number: float) -> int:
    return int(np.frexp(number)[1])
