"""Tensors in pickles: as the bytes of their elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stratagem_proto.wire.tensors import as_bytes

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def is_plain(value: object) -> bool:
    """Return whether something is a dense tensor, and not of a subclass."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and not value.is_quantized
        and value.device.type in ("cpu", "cuda")
    )


def reduced(tensor: Tensor) -> Reduced:
    """Return what pickle is to make of a dense tensor: its elements alone.

    torch would pickle all of the storage of a view. One on a GPU comes to the current GPU of the
    other side, or to the CPU where there is none.
    """
    shape, device = tuple(tensor.shape), tensor.device.type
    content = bytearray(as_bytes(tensor))
    return _rebuilt, (content, tensor.dtype, shape, tensor.requires_grad, device)


def _rebuilt(
    content: bytearray, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, device: str
) -> Tensor:
    # torch takes no empty buffers.
    flat = torch.frombuffer(content or bytearray(dtype.itemsize), dtype=dtype)
    made = flat[: math.prod(shape)].reshape(shape)
    if device == "cuda" and torch.cuda.is_available():
        made = made.to("cuda")
    return made.requires_grad_(requires_grad)
