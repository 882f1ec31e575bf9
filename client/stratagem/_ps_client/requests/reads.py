"""Reading from a server: what to read, how a request says so, and filling the caller's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import NamedTuple, TypeAlias, cast

import torch
from google.protobuf.message import DecodeError

from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.transport import Responses
from stratagem_proto.errors import FailedPreconditionError, MalformedStreamError
from stratagem_proto.v1.consistency_pb2 import InputDigest, StepBegin, StepGrant
from stratagem_proto.v1.parameter_server_pb2 import (
    FollowingRead,
    JointRows,
    ReadContents,
    ReadHeader,
    ReadRequest,
    ReadValue,
    Selection,
    StepMark,
    UpdateAndReadHeader,
    UpdateHeader,
)
from stratagem_proto.v1.tensor_pb2 import ENCODING_KIND_NARROWED, Encoding, TensorSpec
from stratagem_proto.wire.frames import Assembler, Header, decode_frame, take_header
from stratagem_proto.wire.placed import (
    SegmentLayout,
    all_of,
    announced_places,
    decode_whole,
    kinds_described,
    kinds_of,
    layout_of,
)
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype, encode_dtype, spec_of


class Reading(NamedTuple):
    """The read of one variable.

    Attributes:
        variable: Its name.
        into: Receives the value; of the variable's shape and dtype. It keeps its memory, and counts
            as written for autograd.
        newer_than: Leave `into` as it is if the version is still this one.
        narrowed_to: What elements are rounded to on their way; None for not at all.
    """

    variable: str
    into: torch.Tensor
    newer_than: int | None = None
    narrowed_to: torch.dtype | None = None


class RowsReading(NamedTuple):
    """The read of rows of several variables, which come as one tensor.

    Attributes:
        variables: Their names.
        rows: The rows of each, int64 vectors.
        into: Receives all rows, those of the first variable first; of the variables' dtype.
        narrowed_to: As of `Reading`.
    """

    variables: Sequence[str]
    rows: Sequence[torch.Tensor]
    into: torch.Tensor
    narrowed_to: torch.dtype | None = None

    @property
    def variable(self) -> str:
        """What messages call the variables."""
        return self.variables[0]

    def encoded(self) -> JointRows:
        """Return what asks a server for the rows."""
        rows = self.rows[0] if len(self.rows) == 1 else torch.cat([*self.rows])
        return JointRows(
            variables=self.variables,
            sizes=list(map(len, self.rows)),
            indices=bytes(as_bytes(rows)),
            narrowed_to=None if self.narrowed_to is None else encode_dtype(self.narrowed_to),
        )


AnyReading: TypeAlias = Reading | RowsReading


class AskedRows(NamedTuple):
    """Rows of variables on several servers.

    Attributes:
        readings: How to read them, by server.
        found: The rows of each variable, once they were read.
    """

    readings: Mapping[int, Sequence[RowsReading]]
    found: Sequence[torch.Tensor]


class ReadsAfterUpdate(NamedTuple):
    """Whole variables to read after an update.

    Their tensors have the layout, and `encoded` is the part of an `UpdateHeader` that asks for
    them.
    """

    readings: Sequence[Reading]
    layout: SegmentLayout
    encoded: bytes


def following(readings: Sequence[Reading]) -> ReadsAfterUpdate:
    """Return readings of whole variables, to be done after an update."""
    layout = layout_of(kinds_of([reading.into for reading in readings]))
    return ReadsAfterUpdate(readings, layout, _encode_read_after_update(_wholes(readings)))


_Whole: TypeAlias = tuple[str, int | None, torch.dtype | None]
_Wholes: TypeAlias = tuple[_Whole, ...]


def _wholes(readings: Sequence[Reading]) -> _Wholes:
    return tuple([(r.variable, r.newer_than, r.narrowed_to) for r in readings])


# The same variables are read with each step.
@lru_cache(maxsize=16)
def _encode_read(wholes: _Wholes) -> bytes:
    return ReadRequest(selections=_selections(wholes)).SerializeToString()


@lru_cache(maxsize=16)
def _encode_read_after_update(wholes: _Wholes) -> bytes:
    then = FollowingRead(selections=_selections(wholes))
    return UpdateHeader(then=then).SerializeToString()


def _selections(wholes: Sequence[_Whole]) -> Iterator[Selection]:
    for variable, newer_than, narrowed_to in wholes:
        number = None if narrowed_to is None else encode_dtype(narrowed_to)
        yield Selection(variable=variable, newer_than=newer_than, narrowed_to=number)


NOTHING_FOLLOWS = following(())


def read(  # noqa: PLR0913 - the fields of a message
    readings: Sequence[AnyReading],
    after: StepMark | None = None,
    wait: float = 0.0,
    note_header: Callable[[ReadHeader], None] = lambda _: None,
    snapshot: bytes = b"",
    begins: Sequence[StepBegin] = (),
    inputs: Sequence[InputDigest] = (),
) -> Request[list[int]]:
    """Return the request that fills the readings' tensors; it gives their versions, 0 of rows.

    Readings of variables come before those of rows.

    The server waits up to `wait` seconds until the step `after` is applied. It gives permits for
    the steps that begin if that needs no waiting. A snapshot is the cut whose values to read; empty
    for those of now. `note_header` gets the header of the answer. The server compares the inputs
    with those of other workers.
    """
    message = ReadRequest(
        after=after,
        wait_seconds=wait,
        snapshot=snapshot,
        begins=begins,
        inputs=inputs,
        joint_rows=[each.encoded() for each in readings if isinstance(each, RowsReading)],
    )
    variables = [each for each in readings if isinstance(each, Reading)]
    layout = layout_of(kinds_of([reading.into for reading in readings]))
    return Request(
        "Read",
        message,
        _receiver(readings, layout, note_header),
        rest=_encode_read(_wholes(variables)),
        response_nbytes=layout.nbytes,
        response_room=layout.room,
        wait=wait,
        awaits="the other workers' parts of a step" if wait else "",
    )


def _receiver(
    readings: Sequence[AnyReading], layout: SegmentLayout, note_header: Callable[[ReadHeader], None]
) -> Callable[[Responses], list[int]]:
    def receive(responses: Responses) -> list[int]:
        header, versions = fill(readings, layout, responses, ReadHeader)
        note_header(header)
        return versions

    return receive


def fill(
    readings: Sequence[AnyReading],
    layout: SegmentLayout,
    responses: Responses,
    header_type: type[Header],
) -> tuple[Header, list[int]]:
    """Fill the readings' tensors; return the header and the versions of the values.

    The layout is that of the tensors; the header is a `ReadHeader`, or has one.

    Raises:
        MalformedStreamError: It is no answer to that.
        FailedPreconditionError: A variable is another one now.
    """
    first = next(responses, b"")
    taken = take_header(first, header_type)
    if taken is None:
        raise MalformedStreamError("a read was answered without a header")
    header, chunks = taken
    of_read = header.values if isinstance(header, UpdateAndReadHeader) else header
    values = cast("ReadHeader", of_read)
    responses.reached = values.reached
    versions = list(values.versions)
    if len(versions) != len(readings):
        raise _other_number(readings, len(versions), "versions")
    if values.contents == all_of(layout):
        targets = [reading.into for reading in readings]
    else:
        contents = _contents(values)
        targets = _targets(readings, contents)
        layout = layout_of(kinds_described(contents.tensors))
    seen = [first]
    if responses.segment is not None:
        is_filled = _taken(targets, layout, chunks, seen, responses)
    else:
        is_filled = _copied(targets, layout, chunks, seen, responses)
    if not is_filled:
        _assemble(targets, _contents(values).tensors, seen, responses, header_type)
    return header, versions


def _copied(
    targets: list[torch.Tensor],
    layout: SegmentLayout,
    chunks: memoryview,
    seen: list[bytes],
    responses: Responses,
) -> bool:
    """Copy small values that have all come, each as one chunk, with the first message.

    Returns whether they have; a second message is added to those that were seen.
    """
    values = decode_whole(chunks, layout)
    if values is None:
        return False
    # The status comes after the messages, so the stream is read to its end.
    message = next(responses, None)
    if message is not None:
        seen.append(message)
        return False
    if values:
        with torch.no_grad():
            torch._foreach_copy_([targets[place[0]] for place in layout.places], values)
    return True


def _contents(values: ReadHeader) -> ReadContents:
    try:
        return ReadContents.FromString(values.contents)
    except DecodeError as error:
        raise MalformedStreamError(f"what came of a read is no ReadContents: {error}") from error


def _taken(
    targets: list[torch.Tensor],
    layout: SegmentLayout,
    chunks: memoryview,
    seen: list[bytes],
    responses: Responses,
) -> bool:
    """Copy values run by run from where `starts` puts them in the segment.

    Messages other than the first, whose chunks are given, are added to those that were seen.
    Returns whether all values were in the segment, where the layout has them.
    """
    assert responses.segment is not None
    if layout.room > responses.segment.nbytes:
        return False
    views, places = responses.segment.tensors(layout.kinds), layout.places
    message, taken = None, 0
    with torch.no_grad():
        while True:
            if chunks:
                run = announced_places(layout, chunks)
                if run is None or run.start != taken:
                    return False
                first, last = places[run.start][0], places[run.stop - 1][0]
                torch._foreach_copy_(targets[first : last + 1], views[first : last + 1])
                taken = run.stop
            message = next(responses, None)
            if message is None:
                break
            seen.append(message)
            chunks = memoryview(message)
    responses.received(layout.nbytes)
    return taken == len(places)


def _assemble(
    targets: Sequence[torch.Tensor],
    sent: Sequence[TensorSpec],
    seen: Sequence[bytes],
    responses: Responses,
    header_type: type[Header],
) -> None:
    """Fill the targets from messages: those that were seen, and those that are left."""
    # Bytes land in the target's own memory if they are its elements.
    landings = []
    for target, spec in zip(targets, sent, strict=True):
        is_plain = target.device.type == "cpu" and target.is_contiguous()
        landings.append(target if is_plain and spec_of(target) == spec else allocate(spec))
    assembler = Assembler(sent, landings)
    for message in chain(seen, responses):
        frame = decode_frame(message, header_type, responses.segment)
        placed = [len(one.data) for one in frame.chunks if one.start is not None]
        responses.received(sum(placed))
        assembler.add(frame.chunks)
    assembler.finish()
    for target, landing in zip(targets, landings, strict=True):
        if landing is target:
            torch.autograd.graph.increment_version(target)
        else:
            with torch.no_grad():
                target.copy_(landing)


def _targets(readings: Sequence[AnyReading], contents: ReadContents) -> list[torch.Tensor]:
    """Return the tensors to fill, in the order in which the stream brings them."""
    if len(contents.values) != len(readings):
        raise _other_number(readings, len(contents.values), "values")
    targets: dict[int, torch.Tensor] = {}
    for reading, value in zip(readings, contents.values, strict=True):
        if value.HasField("tensor"):
            _require_same(reading, contents, value)
            targets[value.tensor] = reading.into
    if sorted(targets) != list(range(len(contents.tensors))):
        raise MalformedStreamError(
            f"a Read announced {len(contents.tensors)} tensors, but its values point "
            f"to {len(targets)}"
        )
    return [targets[index] for index in range(len(targets))]


def _other_number(readings: Sequence[AnyReading], number: int, what: str) -> MalformedStreamError:
    return MalformedStreamError(f"{number} {what} came where {len(readings)} were asked for")


def _require_same(reading: AnyReading, contents: ReadContents, value: ReadValue) -> None:
    if value.tensor >= len(contents.tensors):
        return
    theirs, ours = contents.tensors[value.tensor], spec_of(reading.into)
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


def _require_narrowed(reading: AnyReading, sent: TensorSpec, encoding: Encoding) -> None:
    asked, expected = reading.narrowed_to, None
    if asked is not None:
        expected = TensorSpec(dtype=encode_dtype(asked), shape=encoding.decoded.shape)
    if encoding.kind != ENCODING_KIND_NARROWED or sent != expected:
        raise MalformedStreamError(
            f"variable {reading.variable!r} was sent in an encoding that was not asked "
            f"for; what was is {asked}"
        )


@dataclass(frozen=True)
class Answer:
    """What came behind an update.

    Attributes:
        versions: Those of the variables that were read.
        grants: Permits, unless a step has to wait.
        has_rows_on_disk: Whether the server likes to hear of rows before they are read.
    """

    versions: Sequence[int]
    grants: Sequence[StepGrant]
    has_rows_on_disk: bool


def and_read(
    update: Request[list[int]],
    then: ReadsAfterUpdate,
    begins: Sequence[StepBegin],
    tensors: Sequence[torch.Tensor] | None = None,
    rows: Sequence[RowsReading] = (),
    announced: Sequence[RowsReading] = (),
) -> Request[Answer]:
    """Return the request that runs an update program, then fills the readings' tensors.

    The request that only runs the program is not to be used any more. Given tensors take the place
    of its own. Permits for steps are asked for if that needs no waiting. Rows are read besides,
    and the server is told of those that are announced.
    """
    message = cast("UpdateHeader", update.message)
    message.then.begins.extend(begins)
    message.then.announced_rows.extend([each.encoded() for each in announced])
    readings: Sequence[AnyReading] = then.readings
    layout = then.layout
    if rows:
        message.then.joint_rows.extend([each.encoded() for each in rows])
        readings = [*then.readings, *rows]
        layout = layout_of(kinds_of([reading.into for reading in readings]))
    return Request(
        "UpdateAndRead",
        message,
        partial(_answer, readings, len(then.readings), layout),
        update.tensors if tensors is None else tensors,
        update.rest + then.encoded,
        layout.nbytes,
        layout.room,
        update.derived_nbytes,
        layout=update.layout,
    )


def _answer(
    readings: Sequence[AnyReading], variables: int, layout: SegmentLayout, responses: Responses
) -> Answer:
    header, versions = fill(readings, layout, responses, UpdateAndReadHeader)
    on_disk = header.values.has_rows_on_disk
    return Answer(versions[:variables], list(header.grants), on_disk)
