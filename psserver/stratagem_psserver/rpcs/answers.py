"""Values on their way to who reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from google.protobuf.message import Message

from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.parameter_server_pb2 import ReadHeader
from stratagem_proto.wire.codec import split
from stratagem_proto.wire.frames import encode_frame
from stratagem_proto.wire.placed import encode_filled, place_by_runs
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.compute import TENSOR_BYTES
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.locks import Holding
from stratagem_psserver.variables.read_plans import ReadPlan

# Less is copied on the event loop. Longer runs are copied beside it, so that several clients are
# served at once. With so many runs, one client reads nearly all the time.
_RUN_BYTES = 4 * CHUNK_BYTES
_MOST_RUNS = 10


class ReadTask(NamedTuple):
    """A request to read.

    Attributes:
        plan: Plans the answer, as of now.
        selections: What to read.
        segment: Where to put the values, if they fit; None to send them.
    """

    plan: Callable[[], ReadPlan]
    selections: Sequence[pb.Selection]
    segment: Segment | None


Frames: TypeAlias = bytes | AsyncIterator[bytes]
"""An answer: its only frame, or all of them as they are made."""

Headed: TypeAlias = Callable[[ReadHeader], Message]


def frames_of(state: ServerState, reading: ReadTask, headed: Headed) -> Frames:
    """Return what all that is selected is at one moment, as the frames of a stream.

    Args:
        state: The server.
        reading: What to read.
        headed: Makes the header of the stream of that of a Read.
    """
    only = _only_frame(state, reading, headed)
    return _frames(state, reading, headed) if only is None else only


def _only_frame(state: ServerState, reading: ReadTask, headed: Headed) -> bytes | None:
    """Return the frame of values that are placed in one go; None if they are not."""
    if (segment := reading.segment) is None:
        return None
    choice = reading.plan()
    if choice.nbytes > CHUNK_BYTES or choice.layout.room > segment.nbytes:
        return None
    # What does not wait needs no locks, only that nobody holds them.
    if not state.locks.are_free(choice.owners):
        return None
    with state.budget.reserve(choice.nbytes, "a read"):
        message = headed(choice.present_header())
        frame = encode_filled(message, choice.layout, choice.fill, segment)
    _count(state, choice)
    return frame


def _count(state: ServerState, choice: ReadPlan) -> None:
    if choice.nbytes:
        state.figures.calls(pb.ReadRequest.__name__).sent.observe(choice.nbytes)


async def _frames(state: ServerState, reading: ReadTask, headed: Headed) -> AsyncIterator[bytes]:
    locks = state.locked([selection.variable for selection in reading.selections])
    async with locks:
        choice = reading.plan()
        # Frames are copies, so this is the snapshot that the locks are for.
        with state.budget.reserve(choice.nbytes, "a read"):
            segment, message = reading.segment, headed(choice.present_header())
            _count(state, choice)
            frames: SentValues | AsyncGenerator[bytes, None]
            if segment is None or choice.layout.room > segment.nbytes:
                frames = await _sent(state, message, choice, locks)
            else:
                frames = _placed(state, message, choice, segment)
            async with aclosing(frames):
                async for frame in frames:
                    yield frame


async def _sent(
    state: ServerState, header: Message, choice: ReadPlan, locks: Holding
) -> SentValues:
    frames = map(encode_frame, split(header, await _tensors(state, choice)))
    return SentValues(frames, locks, partial(state.compute.run, nbytes=_size(choice)))


async def _tensors(state: ServerState, choice: ReadPlan) -> Sequence[torch.Tensor]:
    making = sum(each.nbytes for each in choice.selected if not each.is_there)
    return await state.compute.run(choice.tensors, making)


def _size(choice: ReadPlan) -> int:
    return choice.nbytes + len(choice.selected) * TENSOR_BYTES


def _is_one_run(choice: ReadPlan) -> bool:
    """Return whether values are placed at once, on the event loop."""
    if choice.nbytes <= CHUNK_BYTES:
        return True
    # To look rows up takes longer than to copy them.
    is_short = _size(choice) <= _RUN_BYTES
    return is_short and all(each.is_there for each in choice.selected)


async def _placed(
    state: ServerState, header: Message, choice: ReadPlan, segment: Segment
) -> AsyncGenerator[bytes, None]:
    """Yield frames; while one is sent and read, the bytes of the next are placed."""
    if _is_one_run(choice):
        yield encode_filled(header, choice.layout, choice.fill, segment)
        return
    tensors = await _tensors(state, choice)
    chunks = choice.nbytes // (CHUNK_BYTES * _MOST_RUNS)
    size = max(_RUN_BYTES, CHUNK_BYTES * chunks)
    # One run is no work, so that it is placed on the event loop.
    work = size - _RUN_BYTES + len(choice.selected) * TENSOR_BYTES
    frames = place_by_runs(header, tensors, segment, size)
    while frame := await state.compute.run(partial(next, frames, None), work):
        yield encode_frame(frame)
        await asyncio.sleep(0)  # others have their turn after each run


class SentValues(AsyncIterator[bytes]):
    """Frames of values whose locks are held, each made when it is asked for.

    The bytes of a frame are in a processor's cache when they are sent, and no frame waits for the
    others to be made. As soon as somebody waits for a lock, all that is left is made at once and
    the locks are given back, so that a slow reader is in nobody's way. Close it.

    Args:
        frames: What to send; copies, once they are made.
        locks: Those of the values.
        compute: Runs what takes as long as to make all frames.
    """

    def __init__(
        self,
        frames: Iterator[bytes],
        locks: Holding,
        compute: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._frames, self._locks, self._compute = frames, locks, compute
        self._made: deque[bytes] = deque()
        self._making: asyncio.Future[None] | None = None
        locks.hurry_if_wanted(self._hurry)

    def _hurry(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_all())

    async def _make_all(self) -> None:
        try:
            await self._compute(lambda: self._made.extend(self._frames))
        finally:
            self._locks.release()

    async def __anext__(self) -> bytes:
        if self._making is not None:
            await asyncio.shield(self._making)
        frame = self._made.popleft() if self._made else next(self._frames, None)
        if frame is None:
            raise StopAsyncIteration
        return frame

    async def aclose(self) -> None:
        """Return once the values are left alone."""
        if self._making is not None:
            await asyncio.wait([self._making])
