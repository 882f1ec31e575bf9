"""The gradients of requests: decoded, checked, and kept until their backward pass ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from stratagem_proto.errors import AbortedError, InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.protocol import check_name
from stratagem_proto.rows import distinct, summed
from stratagem_proto.v1.parameter_server_pb2 import GradientRef
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from stratagem_proto.wire.encodings import Encoded, decode
from stratagem_psserver.limits import Reservation
from stratagem_psserver.variables.assignments import check_fit, tensor_at
from stratagem_psserver.variables.reads import check_rows
from stratagem_psserver.variables.store import Variable, VariableStore
from stratagem_rpc.shares import is_used_up


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


class StepGradients(NamedTuple):
    """The gradients of one step.

    Attributes:
        each: The gradient of each variable, in the order of the variables.
        rows: The rows of each gradient, None for a dense one; empty if all are dense.
        flat: One vector of all gradients and the gaps between them, as they lie in shared memory;
            None if they do not.
    """

    each: Sequence[torch.Tensor]
    rows: Sequence[torch.Tensor | None] = ()
    flat: torch.Tensor | None = None


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
    def from_rows(cls, rows: torch.Tensor, values: torch.Tensor) -> RowGradient:
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


# No sensible program has as many; without a limit they would fill the memory.
MAX_PASSES = 10_000


@dataclass
class Kept:
    """The gradients of one backward pass that have arrived.

    Attributes:
        number: The client's number of the pass.
        reservation: The bytes of the budget that the gradients occupy.
        gradients: The gradients by variable, in the order of their arrival.
        records: The positions in the log of the requests that brought them.
    """

    number: int
    reservation: Reservation
    gradients: dict[str, Gradient] = field(default_factory=dict)
    records: list[int] = field(default_factory=list)


class KeptGradients:
    """The kept gradients of all sessions, of at most one pass for each session and optimizer."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str], Kept] = {}

    def keep(
        self,
        session_id: bytes,
        backward: BackwardPass,
        gradients: Sequence[Gradient],
        reservation: Reservation,
        record: int = 0,
    ) -> None:
        """Add gradients to those of a pass; drop those of an earlier pass.

        Args:
            session_id: The session.
            backward: The pass.
            gradients: The gradients.
            reservation: Their bytes of the budget.
            record: The position in the log of the request that brought them.

        Raises:
            InvalidArgumentError: A variable has a gradient already.
            ResourceExhaustedError: Gradients of too many passes are kept for the session.
        """
        check_name(backward.optimizer, "optimizer")
        key = (session_id, backward.optimizer)
        kept = self._kept.get(key)
        if kept is None:
            self._require_room(session_id)
        if kept is None or kept.number != backward.number:
            self.drop(session_id, backward)
            kept = self._kept[key] = Kept(backward.number, reservation.hand_over())
        else:
            require_distinct(gradients, kept.gradients)
            kept.reservation.absorb(reservation)
        kept.records.append(record)
        kept.gradients |= {gradient.variable: gradient for gradient in gradients}

    def _require_room(self, session_id: bytes) -> None:
        def own() -> int:
            return sum(session == session_id for session, _ in self._kept)

        if is_used_up(MAX_PASSES, len(self._kept), own):
            raise ResourceExhaustedError(
                f"gradients of {own()} backward passes are kept for session "
                f"{session_id.hex()[:8]}, which is its share: three quarters of what others leave "
                f"of {MAX_PASSES}; give an optimizer the same name in each step"
            )

    def get(self, session_id: bytes, backward: BackwardPass) -> Kept:
        """Return the gradients of a pass; the caller calls `drop` once they are used.

        Raises:
            AbortedError: No gradients of the pass are kept, or no longer.
        """
        kept = self._kept.get((session_id, backward.optimizer))
        if kept is None or kept.number != backward.number:
            raise AbortedError(
                f"the gradients of backward pass {backward.number} of "
                f"{backward.optimizer!r} are gone, because the lease of the session ran "
                "out meanwhile; compute them again"
            )
        return kept

    def drop(self, session_id: bytes, backward: BackwardPass) -> None:
        """Drop the gradients that are kept for an optimizer, if any."""
        kept = self._kept.pop((session_id, backward.optimizer), None)
        if kept is not None:
            kept.reservation.release()

    def records(self) -> Iterator[int]:
        """Yield the positions in the log of the requests that brought what is kept."""
        for kept in self._kept.values():
            yield from kept.records

    def session_ended(self, session_id: bytes) -> None:
        """Drop the gradients that a session has sent."""
        for key in [key for key in self._kept if key[0] == session_id]:
            self._kept.pop(key).reservation.release()


def require_distinct(gradients: Sequence[Gradient], kept: dict[str, Gradient]) -> None:
    """Check that the variables of some gradients have none in a pass yet.

    Raises:
        InvalidArgumentError: A variable has one.
    """
    for gradient in gradients:
        if gradient.variable in kept:
            raise InvalidArgumentError(
                f"{gradient.variable!r} has a gradient in this backward pass already; "
                "send each once",
                variable=gradient.variable,
            )
