"""Tensors as arrays of NumPy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

# NumPy has nothing narrower that holds all of their values.
_WIDER = {torch.complex32: torch.complex64}


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's values as an array, which may share its memory.

    NumPy has none of torch's floats but those of 16, 32 and 64 bits of IEEE: bfloat16 and the
    floats of 8 bits become float32, and complex32 complex64, which hold all of their values.
    TensorFlow adds these types to NumPy by a package of its own.
    """
    values = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return values.numpy()
    except TypeError:
        wider = _WIDER.get(values.dtype, torch.float32)
        if values.layout is not torch.strided:
            raise
        return values.to(wider).numpy()
