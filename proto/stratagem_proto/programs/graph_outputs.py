"""The outputs of a graph program, as messages."""

from __future__ import annotations

import torch

from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.update_program_pb2 import GraphOutput
from stratagem_proto.wire.codec import copy_bytes
from stratagem_proto.wire.tensors import allocate, as_bytes, spec_of, spec_of_kind

_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}


def spec_of_output(value: torch.Tensor | float) -> TensorSpec:
    """Return the description of a tensor, or of a number as a scalar.

    Raises:
        InvalidTypeError: Tensors of its dtype cannot be sent.
    """
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    return spec_of_kind(_DTYPES[type(value)], torch.Size())


def encode_output(value: torch.Tensor | float) -> GraphOutput:
    """Return the message of a value that a program has computed; the value is copied."""
    spec = spec_of_output(value)
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(value, dtype=_DTYPES[type(value)])
    return GraphOutput(spec=spec, data=bytes(as_bytes(value)))


def decode_output(output: GraphOutput) -> torch.Tensor:
    """Return the tensor of a message; a scalar for a number."""
    tensor = allocate(output.spec)
    copy_bytes(as_bytes(tensor), memoryview(output.data))
    return tensor
