"""Gradients that came encoded, made whole before anything looks at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.parameter_server_pb2 import GradientRef
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.encodings import Encoded, decode


def decoded_specs(references: Sequence[GradientRef]) -> list[TensorSpec]:
    """What will be made of the encoded gradients of a request."""
    return [each.encoding.decoded for each in references if each.HasField("encoding")]


def decode_gradients(
    references: Sequence[GradientRef], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The tensors of a request, with those of encoded gradients decoded.

    Raises:
        InvalidArgumentError: What came is not as its encoding says, or several
            gradients share a tensor that is encoded.
    """
    whole = list(tensors)
    uses = Counter(reference.tensor for reference in references)
    for reference in references:
        if reference.HasField("encoding"):
            whole[reference.tensor] = _decoded(reference, tensors, uses)
    return whole


def _decoded(
    reference: GradientRef, tensors: Sequence[torch.Tensor], uses: Counter[int]
) -> torch.Tensor:
    try:
        if uses[reference.tensor] > 1:
            raise InvalidArgumentError("its tensor is that of another gradient, too")
        return decode(_encoded(reference, tensors))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the gradient of {reference.variable!r} cannot be decoded: "
            f"{error.message}; send it as its encoding says, or without one",
            variable=reference.variable,
        ) from error


def _encoded(reference: GradientRef, tensors: Sequence[torch.Tensor]) -> Encoded:
    encoding = reference.encoding
    companion = None
    if encoding.HasField("companion"):
        companion = _tensor_at(tensors, encoding.companion)
    tensor = _tensor_at(tensors, reference.tensor)
    return Encoded(encoding.kind, encoding.decoded, tensor, companion)


def _tensor_at(tensors: Sequence[torch.Tensor], index: int) -> torch.Tensor:
    if index >= len(tensors):
        raise InvalidArgumentError(f"it names tensor {index} of {len(tensors)}")
    return tensors[index]
