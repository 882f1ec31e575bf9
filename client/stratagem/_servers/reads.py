"""Reading variables from a server, into tensors that the caller has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from stratagem._servers.request import Request
from stratagem._servers.transports.call import Responses
from stratagem_proto.codec import Assembler
from stratagem_proto.errors import FailedPreconditionError, MalformedStreamError
from stratagem_proto.frames import Frame, Header, decode_frame
from stratagem_proto.placed import lent, needed
from stratagem_proto.segment import Segment
from stratagem_proto.tensors import (
    allocate,
    as_bytes,
    decode_dtype,
    encode_dtype,
    spec_of,
)
from stratagem_proto.v1.parameter_server_pb2 import (
    ReadHeader,
    ReadRequest,
    ReadValue,
    Rows,
    Selection,
    StepMark,
)
from stratagem_proto.v1.tensor_pb2 import (
    ENCODING_KIND_NARROWED,
    Encoding,
    TensorSpec,
)


class Reading(NamedTuple):
    """What to read of one variable.

    Attributes:
        variable: Its name.
        into: Receives the value; of the variable's dtype and of the shape of what is
            read. It keeps its memory, and counts as written for autograd.
        newer_than: Leave `into` as it is unless the version is higher.
        rows: Indices of the rows to read, int64; None for the whole variable.
        narrowed_to: What elements are rounded to on their way; None for not at all.
    """

    variable: str
    into: torch.Tensor
    newer_than: int | None = None
    rows: torch.Tensor | None = None
    narrowed_to: torch.dtype | None = None


def read(
    readings: Sequence[Reading],
    after: StepMark | None = None,
    wait: float = 0.0,
    rejected: Callable[[int], None] = lambda _: None,
    snapshot: bytes = b"",
) -> Request[list[int]]:
    """The request that fills the readings' tensors.

    Args:
        readings: What to read, of one server.
        after: Wait until this step is applied.
        wait: For how long, in seconds.
        rejected: Hears how many steps of that group were dropped so far.
        snapshot: The cut whose values to read; empty for those of now.

    Returns:
        A request whose result are the versions read, one for each reading.
    """
    message = ReadRequest(
        selections=selections(readings),
        after=after,
        wait_seconds=wait,
        snapshot=snapshot,
    )
    into = [reading.into for reading in readings]
    return Request(
        "Read",
        message,
        _receiver(readings, rejected),
        response_nbytes=sum(tensor.nbytes for tensor in into),
        response_room=needed(into),
        wait=wait,
    )


def selections(readings: Iterable[Reading]) -> list[Selection]:
    """How servers are asked for that."""
    return [_selection(reading) for reading in readings]


def _selection(reading: Reading) -> Selection:
    rows, narrowed_to = None, None
    if reading.rows is not None:
        rows = Rows(indices=bytes(as_bytes(reading.rows)))
    if reading.narrowed_to is not None:
        narrowed_to = encode_dtype(reading.narrowed_to)
    return Selection(
        variable=reading.variable,
        newer_than=reading.newer_than,
        rows=rows,
        narrowed_to=narrowed_to,
    )


def _receiver(
    readings: Sequence[Reading], rejected: Callable[[int], None]
) -> Callable[[Responses], list[int]]:
    def receive(responses: Responses) -> list[int]:
        frames = decoded(responses, ReadHeader)
        first = next(frames, Frame())
        if first.header is None:
            raise MalformedStreamError("a Read was answered without a header")
        fill(readings, first.header, first, frames, responses.segment)
        rejected(first.header.rejected_steps)
        return [value.version for value in first.header.values]

    return receive


def decoded(responses: Responses, header_type: type[Header]) -> Iterator[Frame[Header]]:
    """The frames of an answer."""
    for message in responses:
        frame = decode_frame(message, header_type, responses.segment)
        placed = [len(one.data) for one in frame.chunks if one.start is not None]
        responses.received(sum(placed))
        yield frame


def fill(
    readings: Sequence[Reading],
    header: ReadHeader,
    first: Frame[Any],
    rest: Iterable[Frame[Any]],
    segment: Segment | None = None,
) -> None:
    """Fills the readings' tensors.

    Args:
        readings: What was asked for.
        header: What the server says of the answer.
        first: The frame that has come with it.
        rest: Those after it, in order.
        segment: That of the call, if it has one.

    Raises:
        MalformedStreamError: They are no answer to that.
        FailedPreconditionError: A variable is another one now.
    """
    if len(header.values) != len(readings):
        raise MalformedStreamError(
            f"{len(header.values)} values came where {len(readings)} were asked for"
        )
    targets = _targets(readings, header)
    placed = segment and lent(header.tensors, first.chunks, segment)
    if not placed:
        _assemble(targets, header, chain([first], rest))
        return
    with torch.no_grad():
        torch._foreach_copy_(targets, placed)
    if any(frame.chunks for frame in rest):
        raise MalformedStreamError("more came than all tensors that were announced")


def _assemble(
    targets: Sequence[torch.Tensor], header: ReadHeader, frames: Iterable[Frame[Any]]
) -> None:
    landings = list(map(_landing, targets, header.tensors))
    assembler = Assembler(header.tensors, landings)
    for frame in frames:
        assembler.add(frame.chunks)
    assembler.finish()
    _land(targets, landings)


def _targets(readings: Sequence[Reading], header: ReadHeader) -> list[torch.Tensor]:
    """The tensors to fill, in the order in which the stream brings them."""
    targets: dict[int, torch.Tensor] = {}
    for reading, value in zip(readings, header.values, strict=True):
        if value.HasField("tensor"):
            _require_same(reading, header, value)
            targets[value.tensor] = reading.into
    if sorted(targets) != list(range(len(header.tensors))):
        raise MalformedStreamError(
            f"a Read announced {len(header.tensors)} tensors, but its values point to "
            f"{len(targets)}"
        )
    return [targets[index] for index in range(len(targets))]


def _require_same(reading: Reading, header: ReadHeader, value: ReadValue) -> None:
    if value.tensor >= len(header.tensors):
        return
    theirs, ours = header.tensors[value.tensor], spec_of(reading.into)
    if value.HasField("encoding"):
        _require_narrowed(reading, theirs, value.encoding)
        theirs = value.encoding.decoded
    if theirs != ours:
        raise FailedPreconditionError(
            f"variable {reading.variable!r} has shape {tuple(theirs.shape)} and dtype "
            f"{decode_dtype(theirs.dtype)} on its server, but {tuple(ours.shape)} and "
            f"{reading.into.dtype} here: it was deleted and created anew meanwhile. "
            "Start this program again",
            variable=reading.variable,
        )


def _require_narrowed(reading: Reading, sent: TensorSpec, encoding: Encoding) -> None:
    asked, expected = reading.narrowed_to, None
    if asked is not None:
        expected = TensorSpec(dtype=encode_dtype(asked), shape=encoding.decoded.shape)
    if encoding.kind != ENCODING_KIND_NARROWED or sent != expected:
        raise MalformedStreamError(
            f"variable {reading.variable!r} was sent in an encoding that was not asked "
            f"for; what was is {asked}"
        )


def _landing(target: torch.Tensor, sent: TensorSpec) -> torch.Tensor:
    """Memory for the bytes: the target's own, where they are those of its elements."""
    is_plain = target.device.type == "cpu" and target.is_contiguous()
    return target if is_plain and spec_of(target) == sent else allocate(sent)


def _land(targets: Sequence[torch.Tensor], landings: Sequence[torch.Tensor]) -> None:
    for target, landing in zip(targets, landings, strict=True):
        if landing is target:
            torch.autograd.graph.increment_version(target)
        else:
            with torch.no_grad():
                target.copy_(landing)
