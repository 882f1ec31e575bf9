"""The gradients of a request, decoded and checked against their variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import distinct, summed
from stratagem_proto.v1.parameter_server_pb2 import GradientRef
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.encodings import Encoded, decode
from stratagem_psserver.variables.assignments import check_fit, tensor_at
from stratagem_psserver.variables.selections import check_rows
from stratagem_psserver.variables.store import Variable, VariableStore


@dataclass
class Gradient:
    """The gradient of one variable, owned by the request.

    Attributes:
        variable: Name of the variable.
        group: Index of the param group that the variable belongs to.
        value: A tensor of the variable's shape, or of the shape of its `rows`.
        rows: The rows of a row-sparse gradient, an int64 vector; None if the gradient is dense.
    """

    variable: str
    group: int
    value: torch.Tensor
    rows: torch.Tensor | None = None


@dataclass
class RowGradient:
    """A row-sparse gradient with its distinct rows in order.

    Attributes:
        rows: The distinct rows in ascending order, an int64 vector.
        places: For each row of `values`, its index in `rows`; None if `values` has one row for each
            of `rows`, in the same order.
        values: The gradients of rows, in the order in which they arrived.
    """

    rows: torch.Tensor
    places: torch.Tensor | None
    values: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor, values: torch.Tensor) -> RowGradient:
        if _ascend(rows):
            return cls(rows, None, values)
        found, places = distinct(rows)
        return cls(found, places, values)

    @classmethod
    def added(cls, rows: torch.Tensor, values: torch.Tensor) -> RowGradient:
        """Return a gradient whose repeated rows are added up, in their order."""
        if _ascend(rows):
            return cls(rows, None, values)
        found, sums = summed(rows, values)
        return cls(found, None, sums)

    def only(self, wanted: torch.Tensor) -> RowGradient:
        """Return the gradient of some of the distinct rows, which a mask selects."""
        if self.places is None:
            return RowGradient(self.rows[wanted], None, self.values[wanted])
        kept = wanted[self.places]
        renumbered = wanted.cumsum(0) - 1
        places = renumbered[self.places[kept]]
        return RowGradient(self.rows[wanted], places, self.values[kept])

    def as_sparse(self) -> torch.Tensor:
        """Return the gradient of the distinct rows as a sparse tensor."""
        shape = torch.Size((len(self.rows), *self.values.shape[1:]))
        if self.places is not None:
            return as_sparse(self.places.unsqueeze(0), self.values, shape)
        places = torch.arange(len(self.rows)).unsqueeze(0)
        return as_sparse(places, self.values, shape, is_coalesced=True)


def _ascend(rows: torch.Tensor) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def as_sparse(
    indices: torch.Tensor, values: torch.Tensor, shape: torch.Size, is_coalesced: bool | None = None
) -> torch.Tensor:
    """Return a sparse tensor of rows, which were checked before."""
    return torch.sparse_coo_tensor(
        indices, values, shape, check_invariants=False, is_coalesced=is_coalesced
    )


def gather(
    store: VariableStore, references: Sequence[GradientRef], tensors: Sequence[torch.Tensor]
) -> list[Gradient]:
    """Return the gradients of a request; `check_gradient` checks whether they fit.

    Raises:
        VariableNotFoundError: There is no such variable; the error suggests the nearest name.
        InvalidArgumentError: A variable is named twice, or there is no such tensor.
    """
    seen: set[str] = set()
    for reference in references:
        if reference.variable in seen:
            raise InvalidArgumentError(
                f"the request has two gradients of {reference.variable!r}; add them up",
                variable=reference.variable,
            )
        seen.add(reference.variable)
    return [_gather_one(store, reference, tensors) for reference in references]


def _gather_one(
    store: VariableStore, reference: GradientRef, tensors: Sequence[torch.Tensor]
) -> Gradient:
    variable = store.get(reference.variable)
    value = tensor_at(tensors, reference.tensor, variable)
    rows = None
    if reference.HasField("rows"):
        rows = tensor_at(tensors, reference.rows, variable)
    return Gradient(variable.name, reference.group, value, rows)


def check_gradient(variable: Variable, gradient: Gradient) -> None:
    """Check a gradient against its variable.

    Raises:
        InvalidArgumentError: The shape does not fit.
        InvalidTypeError: The dtype is not the variable's.
        RowIndexError: A row lies outside of the variable.
    """
    if gradient.rows is not None:
        check_rows(variable, gradient.rows)
    check_fit(variable, gradient.value, gradient.rows, "the gradient")


def decoded_specs(references: Sequence[GradientRef]) -> list[TensorSpec]:
    """Return the descriptions of a request's encoded gradients after decoding."""
    return [each.encoding.decoded for each in references if each.HasField("encoding")]


def decode_gradients(
    references: Sequence[GradientRef], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the tensors of a request, with those of encoded gradients decoded.

    Raises:
        InvalidArgumentError: A tensor is not as its encoding says, or several gradients share an
            encoded tensor.
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
