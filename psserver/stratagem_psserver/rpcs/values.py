"""Reading and assigning values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from google.protobuf.message import Message

from stratagem_proto.codec import split
from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.frames import encode_frame
from stratagem_proto.placed import place_by_runs
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.segment import Segment, starts
from stratagem_proto.tensors import nbytes_of
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.compute import TENSOR_BYTES
from stratagem_psserver.exactly_once.mutations import Chunks, Staged
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.assignments import Write, prepare, run
from stratagem_psserver.variables.held_snapshots import HeldSnapshot
from stratagem_psserver.variables.selections import Selected, is_wanted, select
from stratagem_psserver.variables.store import VariableStore

# So many runs let a client read nearly all of the time. Longer ones are copied beside
# the event loop, so that several clients are served at once.
_RUNS = 10


class ValueRpcs:
    """Read and Assign."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def read(
        self, request: pb.ReadRequest, segment: Segment | None = None
    ) -> AsyncIterator[bytes]:
        state = self._state
        if not request.into_segment:
            segment = None
        state.finished(request.session_id, request.finished, request.report)
        if request.HasField("after"):
            await self._wait(request.after, request.wait_seconds)
        variables = state.variables(request.session_id, request.snapshot)

        def headed(header: pb.ReadHeader) -> pb.ReadHeader:
            header.rejected_steps = state.rounds.rejected(request.after.group)
            return header

        reading = Reading(variables, request.selections, segment)
        async for frame in frames_of(state, reading, headed):
            yield frame

    async def _wait(self, mark: pb.StepMark, seconds: float) -> None:
        state = self._state
        applied = partial(state.rounds.is_applied, mark)
        if not await state.waits.until(("group", mark.group), applied, seconds):
            state.rounds.require_finished(mark)
            raise DeadlineExceededError(
                f"step {mark.step} of {mark.group!r} was not applied in {seconds:g} s: "
                f"{state.rounds.missing(mark)}"
            )

    async def assign(self, header: pb.AssignHeader, chunks: Chunks) -> bytes:
        return await self._state.mutations.once_staged(
            header, header.tensors, chunks, partial(self._assign, header), borrows=True
        )

    async def _assign(
        self, header: pb.AssignHeader, staged: Staged
    ) -> pb.AssignResponse:
        state = self._state
        names = [assignment.variable for assignment in header.assignments]
        async with state.changing(names):
            writes = prepare(state.store, header.assignments, staged.tensors)
            size = sum(write.value.nbytes + TENSOR_BYTES for write in writes)
            await state.compute.run(partial(run, writes, state.store.room), size)
            return pb.AssignResponse(versions=[_counted(write) for write in writes])


@dataclass(frozen=True)
class Reading:
    """What to read.

    Attributes:
        variables: Of which variables.
        selections: What of them.
        segment: Where to leave the values, if they fit; None to send them.
    """

    variables: VariableStore | HeldSnapshot
    selections: Sequence[pb.Selection]
    segment: Segment | None


async def frames_of(
    state: ServerState,
    reading: Reading,
    headed: Callable[[pb.ReadHeader], Message],
) -> AsyncIterator[bytes]:
    """What all that is selected is at one moment, as the frames of a stream.

    Args:
        state: The server.
        reading: What to read.
        headed: Makes the header of the stream of that of a Read.
    """
    names = [selection.variable for selection in reading.selections]
    async with state.locked(names):
        header, chosen = _select(reading.variables, reading.selections)
        nbytes = sum(each.nbytes for each in chosen)
        reservation = state.budget.reserve(nbytes, "a read")
        # Frames are copies, so this is the snapshot that the locks are for.
        with reservation:
            message, segment = headed(header), _large_enough(reading.segment, header)
            if segment is not None:
                # So small are these frames that none waits for the client to read.
                async for frame in _placed(state, message, chosen, segment):
                    yield frame
                frames = []
            else:
                encode = partial(_encode, message, chosen)
                size = nbytes + len(chosen) * TENSOR_BYTES
                frames = await state.compute.run(encode, size)
            reservation = reservation.hand_over()
    if nbytes:
        state.figures.calls(pb.ReadRequest.__name__).sent.observe(nbytes)
    with reservation:
        for frame in frames:
            yield frame


def _large_enough(segment: Segment | None, header: pb.ReadHeader) -> Segment | None:
    if segment is None:
        return None
    needed = starts([nbytes_of(spec) for spec in header.tensors])[1]
    return segment if needed <= segment.nbytes else None


async def _placed(
    state: ServerState, header: Message, chosen: Sequence[Selected], segment: Segment
) -> AsyncIterator[bytes]:
    """Frames of which each is sent, and read, while the bytes of the next are placed.

    A pull of 10 MB takes 1.21 ms and not 1.63.
    """
    making = sum(each.nbytes for each in chosen if not each.is_there)
    tensors = await state.compute.run(partial(_tensors, chosen), making)
    nbytes = sum(each.nbytes for each in chosen)
    size = CHUNK_BYTES * max(1, nbytes // (CHUNK_BYTES * _RUNS))
    frames = place_by_runs(header, tensors, segment, size)
    while frame := await state.compute.run(partial(next, frames, None), size):
        yield encode_frame(frame)
        if nbytes > size:
            await asyncio.sleep(0)  # others have their turn after each run


def _select(
    variables: VariableStore | HeldSnapshot, selections: Sequence[pb.Selection]
) -> tuple[pb.ReadHeader, list[Selected]]:
    header = pb.ReadHeader()
    chosen: list[Selected] = []
    for selection in selections:
        variable = variables.get(selection.variable)
        version, tensor, encoding = variable.version, None, None
        if is_wanted(variable, selection):
            tensor = len(chosen)
            chosen.append(select(variable, selection))
            encoding = chosen[-1].encoding
            header.tensors.append(chosen[-1].sent)
        header.values.add(version=version, tensor=tensor, encoding=encoding)
    return header, chosen


def _encode(header: Message, chosen: Sequence[Selected]) -> list[bytes]:
    return [encode_frame(frame) for frame in split(header, _tensors(chosen))]


def _tensors(chosen: Sequence[Selected]) -> list[torch.Tensor]:
    return [each.tensor() for each in chosen]


def _counted(write: Write) -> int:
    write.variable.version += 1
    return write.variable.version
