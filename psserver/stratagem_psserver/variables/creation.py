"""The initial values of variables: sent, made here, or of no rows at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.programs.initial_values import InitialValues, check_initializer
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of


def sent_tensors(specs: Sequence[VariableSpec]) -> list[TensorSpec]:
    """Descriptions of the tensors that come with a request, in their order."""
    return [spec.tensor for spec in specs if not spec.HasField("initializer")]


def check_made(specs: Sequence[VariableSpec]) -> int:
    """Checks the descriptions of values that the server makes; returns their bytes.

    Raises:
        InvalidArgumentError: Such a value cannot be made.
    """
    made = [spec for spec in specs if spec.HasField("initializer")]
    nbytes = {spec.name: nbytes_of(spec.tensor) for spec in made}
    for spec in made:
        check_initializer(spec)
    return sum(nbytes[spec.name] for spec in made if not spec.HasField("table"))


def initial_values(
    specs: Sequence[VariableSpec], sent: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The initial value of each variable, that of a table having no rows.

    Args:
        specs: Descriptions that `check_made` has passed.
        sent: The tensors of the request.

    Raises:
        ResourceExhaustedError: The machine has no memory for them.
    """
    tensors = iter(sent)
    return [
        _made(spec) if spec.HasField("initializer") else next(tensors) for spec in specs
    ]


def _made(spec: VariableSpec) -> torch.Tensor:
    if spec.HasField("table"):
        shape = (0, *spec.tensor.shape[1:])
        return torch.empty(shape, dtype=decode_dtype(spec.tensor.dtype))
    try:
        return InitialValues(spec).whole()
    except RuntimeError as error:
        raise ResourceExhaustedError(
            f"this machine has no memory for {spec.name!r} of shape "
            f"{list(spec.tensor.shape)}; divide it over more servers, or make it a "
            "table"
        ) from error
