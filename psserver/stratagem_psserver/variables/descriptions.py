"""What the description of a variable must say."""

from __future__ import annotations

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_UNSPECIFIED, VariableSpec
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of


def check_value(spec: VariableSpec, value: torch.Tensor) -> None:
    """Checks the initial value of a variable; that of a table has no rows.

    Raises:
        InvalidArgumentError: The value is not as described, or the variable has no
            kind.
    """
    nbytes_of(spec.tensor)
    rows = [0] if spec.HasField("table") else spec.tensor.shape[:1]
    shape = (*rows, *spec.tensor.shape[1:])
    expected = (decode_dtype(spec.tensor.dtype), shape)
    if expected != (value.dtype, tuple(value.shape)):
        raise InvalidArgumentError(
            f"the initial value of {spec.name!r} is {value.dtype} of shape "
            f"{list(value.shape)}; its description says {expected[0]} of shape "
            f"{list(expected[1])}",
            variable=spec.name,
        )
    if spec.kind == VARIABLE_KIND_UNSPECIFIED:
        raise InvalidArgumentError(
            f"variable {spec.name!r} has no kind; say MODEL, SLOT or NON_SLOT",
            variable=spec.name,
        )


def check_partition(spec: VariableSpec) -> None:
    """Checks that a part lies within the whole.

    Raises:
        InvalidArgumentError: It does not.
    """
    if not spec.HasField("partition"):
        return
    part, shape = spec.partition, spec.tensor.shape
    fits = len(part.full_shape) == len(part.offset) == len(shape) and all(
        0 <= offset <= full - size
        for full, offset, size in zip(part.full_shape, part.offset, shape, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"variable {spec.name!r} of shape {list(shape)} at {list(part.offset)} "
            f"is no part of a variable of shape {list(part.full_shape)}",
            variable=spec.name,
        )
